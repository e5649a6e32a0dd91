"""Digests of the values of arrays and tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from coprep._coprep import content_digest
from coprep._memory import address_of
from coprep._modules import digest_of as _hash


def array_digest(array: npt.NDArray[Any]) -> bytes:
    """Returns the digest of an array without objects."""
    about = repr((array.dtype, array.dtype.str, array.shape)).encode()
    if array.dtype.names is not None:  # There may be undefined bytes between fields.
        return _hash(about, *(array_digest(array[name]) for name in array.dtype.names))
    if array.nbytes == 0 or array.flags.c_contiguous:
        return _hash(about, _digest_of_contents(array))
    blocks = np.nditer(array, flags=["external_loop", "buffered"], order="C", buffersize=1 << 18)
    return _hash(about, *(_digest_of_contents(np.ascontiguousarray(block)) for block in blocks))


def _digest_of_contents(array: npt.NDArray[Any]) -> bytes:
    return content_digest(address_of(array), array.nbytes)


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
