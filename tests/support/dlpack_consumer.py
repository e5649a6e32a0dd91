"""Takes arrays of a GPU over through DLPack, as a framework does, and reads them where the GPU is the fake one."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

UNVERSIONED, VERSIONED = b"dltensor", b"dltensor_versioned"
_USED = {UNVERSIONED: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}
_INT, _UNSIGNED, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Unversioned(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class Taken:
    """An array that was taken over. It is given back by :meth:`delete`, and not before.

    Args:
        capsule: the result of ``__dlpack__``. Nobody else can take the array over from it afterwards.
    """

    def __init__(self, capsule: Any) -> None:
        name = _api.PyCapsule_GetName(capsule)
        assert name in _USED, f"{name!r} is not to be taken over"
        self.is_versioned = name == VERSIONED
        self._address = _api.PyCapsule_GetPointer(capsule, name)
        assert self._address is not None
        # The interpreter keeps the address of the name, so the text must stay.
        assert _api.PyCapsule_SetName(capsule, _USED[name]) == 0
        kind = _Versioned if self.is_versioned else _Unversioned
        self._managed: Any = kind.from_address(self._address)
        if self.is_versioned:
            assert (self._managed.major, self._managed.flags) == (1, 0)
        tensor = self._managed.tensor
        self.device = (tensor.device_type, tensor.device_id)
        assert (tensor.lanes, tensor.byte_offset) == (1, 0)
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim])
        self._kind = (tensor.code, tensor.bits)

    @property
    def is_bfloat(self) -> bool:
        return self._kind == (_BFLOAT, 16)

    def bits(self) -> npt.NDArray[Any]:
        """Returns the elements. Those of bfloat16 are integers."""
        names = {_INT: "i", _UNSIGNED: "u", _FLOAT: "f", _BFLOAT: "u", _BOOL: "b"}
        code, bits = self._kind
        dtype = np.dtype(f"{names[code]}{bits // 8}")
        count = int(np.prod(self.shape))
        memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(self._managed.tensor.data)
        flat = np.frombuffer(memory, dtype)
        strides = [stride * dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides).copy()

    def delete(self) -> None:
        """Gives the array back."""
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._managed.deleter)(self._address)
