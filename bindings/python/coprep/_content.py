"""Digests of the values of arrays and tensors."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from coprep._modules import digest_of as _hash


def array_digest(array: npt.NDArray[Any]) -> bytes:
    """Returns the digest of an array without objects."""
    about = repr((array.dtype, array.dtype.str, array.shape)).encode()
    if array.dtype.names is not None:  # There may be undefined bytes between fields.
        return _hash(about, *(array_digest(array[name]) for name in array.dtype.names))
    result = hashlib.blake2b(about, digest_size=16)
    if array.nbytes == 0:
        return result.digest()
    if array.flags.c_contiguous:
        result.update(array.view(np.ndarray).reshape(-1).view(np.uint8).data)
    else:
        blocks = np.nditer(array, flags=["external_loop", "buffered"], order="C", buffersize=1 << 18)
        for block in blocks:
            result.update(np.ascontiguousarray(block).view(np.uint8).data)
    return result.digest()


def tensor_digest(tensor: Any) -> bytes:
    """Returns the digest of the values of a tensor, in whatever layout it holds them."""
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    if tensor.device.type == "meta":
        return b""
    if tensor.is_quantized:
        return _hash(tensor_digest(tensor.dequantize()), tensor_digest(tensor.int_repr()))
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    data = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return array_digest(data.view(torch.uint8).numpy()) if data.numel() else b""
