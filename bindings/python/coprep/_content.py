"""Digests of the values of arrays and tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from coprep._coprep import content_digest
from coprep._memory import address_of
from coprep._modules import digest_of as _hash

_CHUNK = 4 << 20
"""Bytes of an array that are hashed at a time, about."""


def array_digest(array: npt.NDArray[Any]) -> bytes:
    """Returns the digest of an array without objects."""
    about = repr((array.dtype, array.dtype.str, array.shape)).encode()
    if array.dtype.names is not None:  # There may be undefined bytes between fields.
        return _hash(about, *(array_digest(array[name]) for name in array.dtype.names))
    # Whole elements, so that the digest does not depend on how the array lies in memory.
    elements = max(1, _CHUNK // max(1, array.itemsize))
    chunk = elements * array.itemsize
    if array.nbytes <= chunk or array.flags.c_contiguous:
        return _hash(about, _bytes_digest(np.ascontiguousarray(array), chunk))
    chunks = (array.flat[begin : begin + elements] for begin in range(0, array.size, elements))
    digests = np.frombuffer(b"".join(_bytes_digest(part, chunk) for part in chunks), np.uint8)
    return _hash(about, _bytes_digest(digests, digests.nbytes))


def _bytes_digest(array: npt.NDArray[Any], chunk: int) -> bytes:
    return content_digest(address_of(array), array.nbytes, chunk)


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
