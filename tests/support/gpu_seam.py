"""In a training script: PyTorch's CUDA, or the CPU's tensors in its place where the driver is the fake one.

A script imports this module first. With ``COPREP_TEST_REAL_GPU`` it changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from coprep import _device

REAL = "COPREP_TEST_REAL_GPU" in os.environ
_NOT_READY = 600


class _Driver:
    """The fake driver of this process, called as another user of CUDA would."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, name)(*arguments))

    def must(self, name: str, *arguments: Any) -> None:
        # A fault that the test has asked for may hit this call, once.
        code = self.call(name, *arguments) and self.call(name, *arguments)
        assert code == 0, f"{name}: {code}"

    def wait_for(self, event: ctypes.c_void_p) -> int:
        """Waits until an event is no longer reported as not ready. Returns the code of the last query."""
        while (code := self.call("cuEventQuery", event)) == _NOT_READY:
            time.sleep(0.0005)
        return code

    def synchronize(self, gpu: int, stream: int = 0) -> None:
        """Waits for all work of a stream."""
        context, event, popped = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.must("cuInit", 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        self.must("cuCtxPushCurrent_v2", context)
        self.must("cuEventCreate", ctypes.byref(event), 2)
        self.must("cuEventRecord", event, ctypes.c_void_p(stream))
        # A fault may hit one of the queries, as any other call.
        code = self.wait_for(event) and self.wait_for(event)
        assert code == 0, f"cuEventQuery: {code}"
        self.must("cuEventDestroy_v2", event)
        self.must("cuCtxPopCurrent_v2", ctypes.byref(popped))
        self.must("cuDevicePrimaryCtxRelease_v2", gpu)


def synchronize(gpu: int = 0, stream: int = 0) -> None:
    """Waits for all work of a stream of a GPU, by default the current one."""
    if REAL:
        torch.cuda.synchronize(gpu)
    else:
        _Driver().synchronize(gpu, stream)


def new_stream(gpu: int = 0) -> int:
    """Returns the handle of a new stream of the fake driver, in a context that stays."""
    driver, context, stream = _Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.must("cuInit", 0)
    driver.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    driver.must("cuCtxPushCurrent_v2", context)
    driver.must("cuStreamCreate", ctypes.byref(stream), 1)
    driver.must("cuCtxPopCurrent_v2", ctypes.byref(context))
    assert stream.value
    return stream.value


def gpu_of(tensor: Any) -> int:
    """Returns the GPU that a tensor is on. The fake one has no place of its own."""
    assert tensor.device.type == ("cuda" if REAL else "cpu"), tensor.device
    return int(tensor.device.index or 0) if REAL else _gpus.get(tensor.data_ptr(), -1)


_gpus: dict[int, int] = {}
"""GPUs of the tensors, by address."""
_kept: list[Any] = []
"""All tensors. The allocator of the CPU gives memory to others that work of the fake GPU has still to write."""


def _empty(shape: Sequence[int], dtype: Any, memory_format: Any, gpu: int) -> Any:
    # Filled, so that an element that nobody writes is noticed.
    tensor = torch.empty(shape, dtype=dtype, memory_format=memory_format)
    tensor.view(torch.uint8).fill_(0x5A) if tensor.is_contiguous() and tensor.dim() else tensor.fill_(90)
    _gpus[tensor.data_ptr()] = gpu
    _kept.append(tensor)
    return tensor


def _moved(tensor: Any, gpu: int) -> Any:
    copy = tensor.clone()
    _gpus[copy.data_ptr()] = gpu
    return copy


def _looked_up(form: Any, images: Any) -> Any:
    # PyTorch's operations on tensors of the CPU do not wait for the fake GPU.
    synchronize(gpu_of(images))
    return _own_looked_up(form, images)


def _of_device(form: Any, images: Any, why: str | None) -> Any:
    if form._channels_last and images.dtype == torch.uint8:
        synchronize(gpu_of(images))
    return _own_of_device(form, images, why)


if not REAL:
    _own_looked_up = _device.ImageForm._looked_up
    _own_of_device = _device.ImageForm.of_device
    _device.empty = _empty
    _device.moved = _moved
    _device.stream = lambda gpu: 0
    _device.current_gpu = lambda: 0
    _device.ImageForm._looked_up = _looked_up  # type: ignore[method-assign]
    _device.ImageForm.of_device = _of_device  # type: ignore[method-assign]
    # The version of CUDA that PyTorch was built for does not matter beside the fake driver.
    torch.version.cuda = "13.0"
