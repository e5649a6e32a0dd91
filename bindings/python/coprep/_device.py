"""Batches on a GPU: the checks beforehand, the tensors that they are written to, and the way of everything else there.

``empty`` and ``stream`` are all that uploaded batches need of PyTorch's CUDA. Tests put others in their place, whose
tensors are the CPU's, for a driver whose GPUs are host memory.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coprep import _coprep
from coprep._options import DeviceForm

if TYPE_CHECKING:
    from coprep._structure import Array, Framework

_HERE = os.path.join(os.path.dirname(__file__), "")
_FLOATS = ("float32", "float16", "bfloat16")
_FORMATS = ("contiguous_format", "channels_last")
_AUTO_UPLOADS = "own"
"""The meaning of ``uploads="auto"``. Sharing takes a process with a context of its own, of some hundred MiB of the
GPU's memory. Whether several jobs gain more than that costs is not measured on a GPU yet, so it is left to those who
ask."""


# --- PyTorch's CUDA, which tests replace --------------------------------------------------------------------------


def empty(shape: Sequence[int], dtype: Any, memory_format: Any, gpu: int) -> Any:
    """Returns a tensor on a GPU whose elements are undefined, of the allocator of PyTorch."""
    import torch

    return torch.empty(shape, dtype=dtype, memory_format=memory_format, device=f"cuda:{gpu}")


def stream(gpu: int) -> int:
    """Returns the handle of PyTorch's current stream on a GPU."""
    import torch

    return int(torch.cuda.current_stream(gpu).cuda_stream)


def current_gpu() -> int:
    """Returns the number of PyTorch's current GPU."""
    import torch

    return int(torch.cuda.current_device())


def moved(tensor: Any, gpu: int) -> Any:
    """Returns a copy of a tensor of the CPU on a GPU. The copy is made behind the work of the current stream."""
    # A copy from memory that is not pinned would hold up this thread.
    pinned = tensor if tensor.is_pinned() or not tensor.numel() else tensor.pin_memory()
    return pinned.to(f"cuda:{gpu}", non_blocking=True)


# --- checks when a loader is made ---------------------------------------------------------------------------------


def gpu_of(device: Any, framework: Framework) -> Gpu | None:
    """Returns the GPU that the argument ``device`` names, or ``None`` if it names the host.

    Raises:
        TypeError, ValueError: it is no device, or not one that batches can lie on.
        RuntimeError: there is no such GPU that can be used. CUDA has not begun in this process afterwards.
    """
    kind, index = ("cpu", None) if device is None else _parsed(device)
    if kind == "cpu":
        if framework == "dlpack":
            raise ValueError(
                "framework='dlpack' gives arrays on a GPU: add device='cuda', or take framework='numpy', whose arrays "
                "other frameworks take too"
            )
        return None
    if framework == "dlpack" and kind == "cuda":
        _supported_cuda(index or 0, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return DlpackGpu(index or 0)
    if kind != "cuda":
        raise ValueError(
            f"device={str(device)!r}: batches can lie on the CPU, or on a GPU of NVIDIA ('cuda', 'cuda:1')"
        )
    if framework == "numpy":
        raise _not_torch(device)
    _check_usable(device, index)
    return Gpu(index)


def shares_uploads(uploads: str) -> bool:
    """Returns ``True`` if the argument ``uploads`` asks for shared uploads."""
    return (_AUTO_UPLOADS if uploads == "auto" else uploads) == "shared"


def _parsed(device: Any) -> tuple[str, int | None]:
    """Returns the type of a device and its index, of a text such as ``cuda:1`` or a ``torch.device``."""
    if isinstance(device, str):
        kind, colon, index = device.partition(":")
        if colon and not index.isdecimal():
            raise ValueError(f"device={device!r} must be 'cuda', 'cuda:N' with a number N, or 'cpu'")
        return kind, int(index) if colon else None
    named = getattr(device, "type", None)
    if not isinstance(named, str):
        raise TypeError(f"device must be a text such as 'cuda:0', or a torch.device, not {device!r}")
    return named, getattr(device, "index", None)


def _not_torch(device: Any) -> Exception:
    import importlib.util

    if importlib.util.find_spec("torch"):
        return ValueError(
            f"device={str(device)!r} gives tensors of PyTorch: leave out framework='numpy', or leave out device (for "
            "JAX and CuPy: framework='dlpack')"
        )
    return RuntimeError(
        f"device={str(device)!r} gives tensors of PyTorch, which is not installed: install PyTorch with CUDA, or for "
        "JAX and CuPy say framework='dlpack'"
    )


def _check_usable(device: Any, index: int | None) -> None:
    import torch

    needed = torch.version.cuda
    if needed is None:
        raise RuntimeError(
            f"device={str(device)!r} needs a PyTorch with CUDA, and this one ({torch.__version__}) has none: install "
            "one for CUDA (pytorch.org/get-started/locally)"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    supported = _supported_cuda(index or 0, visible)
    # Within a major version of CUDA, a driver runs programs for any minor version.
    if int(supported.partition(".")[0]) < int(needed.partition(".")[0]):
        raise RuntimeError(
            f"device={str(device)!r}: the NVIDIA driver supports CUDA {supported}, and this PyTorch needs {needed}: "
            f"update the driver, or install a PyTorch for CUDA {supported}"
        )


@functools.cache
def _supported_cuda(number: int, visible: str | None) -> str:
    """Returns the newest version of CUDA that the driver of a GPU supports. Another process asks the driver.

    Raises:
        RuntimeError: the GPU cannot be used.
    """
    # `visible` is a key of the cache alone: it decides which GPU has this number.
    return _coprep.check_gpu(number)


class ImageForm:
    """The type and the memory format of images, as ``dtype`` and ``memory_format`` ask for them.

    Raises:
        TypeError, ValueError: they are no such thing, or the pipeline cannot have them.
    """

    def __init__(self, dtype: Any, memory_format: Any, pipeline: _coprep.Pipeline | None, framework: Framework) -> None:
        name = _name_of("dtype", dtype, (*_FLOATS, "uint8"))
        layout = _name_of("memory_format", memory_format, _FORMATS)
        given = [n for n, value in (("dtype", name), ("memory_format", layout)) if value is not None]
        if given and pipeline is None:
            raise TypeError(
                f"{given[0]} is for native pipelines: convert the samples of a Python dataset in its transform"
            )
        if given and pipeline is not None and not pipeline._is_of_images:
            raise ValueError(f"{given[0]} is for images: tokens and arrays have their own types")
        if given and framework == "numpy":
            raise ValueError(f"{given[0]} is for tensors of PyTorch: leave out framework='numpy', or leave it out")
        self._table = None if pipeline is None else _coprep.normalize_table(pipeline)
        if name in _FLOATS and self._table is None:
            raise ValueError(
                f"dtype={name} needs normalize at the end of the pipeline: without it images are uint8, from 0 to 255 "
                "(normalize((0, 0, 0), (1, 1, 1)) gives 0 to 1)"
            )
        if name == "uint8" and self._table is not None:
            raise ValueError("dtype=uint8 is for pipelines without normalize, whose images are floating-point numbers")
        if layout == "channels_last" and framework == "dlpack" and self._table is None:
            raise ValueError(
                "memory_format=channels_last needs normalize at the end of the pipeline where framework='dlpack'"
            )
        self._dtype = name or ("uint8" if self._table is None else "float32")
        self._channels_last = layout == "channels_last"
        self._is_default = not given
        self._values: Any = None

    def on_device(self, shared: bool) -> DeviceForm:
        """Returns the form that the native loader gives images on a GPU."""
        return DeviceForm("float32" if self._table is None else self._dtype, self._channels_last, shared)

    def of_host(self, images: Any) -> Any:
        """Returns images of the host in this form. Those that have it already are not copied."""
        if self._is_default:
            return images
        import torch

        return images.to(dtype=getattr(torch, self._dtype), memory_format=self._memory_format(torch))

    def of_device(self, images: Any, why_unconverted: str | None) -> Any:
        """Returns images of a GPU in this form. Those that have it already are not copied."""
        if why_unconverted is not None:
            _warn_unconverted(why_unconverted)
            images = self._looked_up(images)
        if not self._channels_last:
            return images
        import torch

        return images.contiguous(memory_format=torch.channels_last)

    def _memory_format(self, torch: Any) -> Any:
        return torch.channels_last if self._channels_last else torch.contiguous_format

    def _looked_up(self, images: Any) -> Any:
        """Returns normalised images, computed by PyTorch: the element that the table has for each byte."""
        import torch

        if self._values is None:
            assert self._table is not None
            # The table is copied, because PyTorch warns of memory that cannot be written, such as that of bytes.
            table = np.frombuffer(bytearray(self._table), np.float32).reshape(3, 256)
            self._values = torch.from_numpy(table).to(images.device).to(getattr(torch, self._dtype))
        normalised = torch.empty(images.shape, dtype=self._values.dtype, device=images.device)
        for channel, values in enumerate(self._values):
            bytes_of_channel = images[:, channel]
            found = values.index_select(0, bytes_of_channel.flatten().int())
            normalised[:, channel] = found.view(bytes_of_channel.shape)
        return normalised


def _name_of(argument: str, value: Any, choices: tuple[str, ...]) -> str | None:
    """Returns the name of PyTorch's dtype or memory format, which may be given as that name."""
    if value is None:
        return None
    name = str(value).removeprefix("torch.")
    if name not in choices:
        known = ", ".join(f"torch.{choice}" for choice in choices)
        raise ValueError(f"{argument} must be one of {known}, not {value!r}")
    return name


@functools.cache
def _warn_unconverted(why: str) -> None:
    # The warning names the line of the user's program that asked for the batch.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"images are normalised by PyTorch's operations, which take more time and memory of the GPU: {why}",
        RuntimeWarning,
        stacklevel=level,
    )


# --- batches ------------------------------------------------------------------------------------------------------


class Gpu:
    """The GPU of a loader. PyTorch is asked about it, and CUDA begins, when the first batch is wanted.

    Args:
        index: its number in this process, or ``None`` for the one that is PyTorch's current GPU at the first batch.
    """

    def __init__(self, index: int | None) -> None:
        self._index = index
        self._process: int | None = None

    def __repr__(self) -> str:
        return "cuda" if self._index is None else f"cuda:{self._index}"

    @property
    def index(self) -> int:
        """Number of the GPU."""
        if self._index is None:
            self._index = current_gpu()
        return self._index

    def stream(self) -> tuple[int, int]:
        """Returns the number of the GPU and the handle of PyTorch's current stream there."""
        if self._process is None:
            self._process = os.getpid()
        if os.getpid() != self._process:
            # CUDA had begun before this process was forked, so PyTorch must not be asked. The native loader refuses it.
            return self.index, 0
        return self.index, stream(self.index)

    def tensors(self, batch: _coprep.DeviceBatch) -> list[Any]:
        """Returns a tensor for each field. They are filled by work in PyTorch's current stream."""
        import torch

        formats = (torch.contiguous_format, torch.channels_last)
        made = [
            empty(shape, getattr(torch, dtype), formats[channels_last], self.index)
            for dtype, shape, channels_last in batch.fields
        ]
        batch.write([tensor.data_ptr() for tensor in made], stream(self.index))
        return made

    def formed(self, images: Any, form: ImageForm, why_unconverted: str | None) -> Any:
        """Returns images of :meth:`tensors` in the form that the user has asked for."""
        return form.of_device(images, why_unconverted)

    def ids(self, ids: Array) -> Any:
        """Returns the ids of a batch as users get them. They stay on the host."""
        import torch

        return torch.from_numpy(ids)

    def check_movable(self, what: str) -> None:
        """Fails unless a batch of the host can be moved here.

        Args:
            what: the reason why batches are made on the host.
        """

    def leaf(self, dtype: str) -> Any:
        """Returns the function that makes a leaf of a batch: tensors that lie here already, and parts of no bytes."""
        return self._leaf

    def _leaf(self, part: Array | Any) -> Any:
        import torch

        return moved(torch.from_numpy(part), self.index) if isinstance(part, np.ndarray) else part

    def move(self, batch: Any) -> Any:
        """Returns a batch of the host with its tensors here. Other parts stay as they are."""
        torch: Any = sys.modules["torch"]
        if isinstance(batch, torch.Tensor):
            return moved(batch, self.index) if batch.device.type == "cpu" else batch
        # A text is a sequence of texts, so it must not be taken apart as other sequences are.
        if isinstance(batch, (str, bytes)):
            return batch
        if hasattr(batch, "to") and callable(batch.to):
            # Batches of other libraries, such as PackedSequence or BatchEncoding, know their tensors.
            return batch.to(f"cuda:{self.index}")
        if isinstance(batch, Mapping):
            return _mapping(batch, {key: self.move(value) for key, value in batch.items()})
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*[self.move(item) for item in batch])
        if isinstance(batch, tuple):
            return tuple(self.move(item) for item in batch)
        if isinstance(batch, Sequence):
            return _sequence(batch, [self.move(item) for item in batch])
        return batch


class DlpackGpu(Gpu):
    """The GPU of a loader for frameworks other than PyTorch, which is not needed."""

    def stream(self) -> tuple[int, int]:
        """Returns the number of the GPU and the handle of its default stream: arrays are filled in another one."""
        return self.index, 0

    def tensors(self, batch: _coprep.DeviceBatch) -> list[Any]:
        """Returns an array for each field."""
        return list(batch.arrays())

    def formed(self, images: Any, form: ImageForm, why_unconverted: str | None) -> Any:
        if why_unconverted is not None:
            raise RuntimeError(
                f"images cannot be normalised on the GPU: {why_unconverted}. Leave out normalize, and do it in your "
                "framework"
            )
        return images

    def ids(self, ids: Array) -> Any:
        return ids

    def check_movable(self, what: str) -> None:
        raise TypeError(
            f"{what} give batches that are made on the host, and framework='dlpack' gives none of these: leave out "
            "device and take framework='numpy'"
        )

    def _leaf(self, part: Array | Any) -> Any:
        return part


def ids_of(batch: _coprep.DeviceBatch) -> Array:
    """Returns the ids of a batch."""
    # A copy, since arrays are writable and bytes are not.
    return np.frombuffer(bytearray(batch.ids), np.int64)


def _mapping(batch: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Returns a mapping of the same type with other items, or a dict if the type makes none."""
    import copy

    if type(batch) is dict or not isinstance(batch, MutableMapping):
        return items
    # A copy keeps what the type has beside its items, such as the factory of a `defaultdict`.
    clone = copy.copy(batch)
    clone.update(items)
    return clone


def _sequence(batch: Sequence[Any], items: list[Any]) -> Any:
    import copy

    if type(batch) is list or not isinstance(batch, MutableSequence):
        return items
    clone = copy.copy(batch)
    for i, item in enumerate(items):
        clone[i] = item
    return clone
