"""Digests of the values of arrays and tensors."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coprep._coprep import content_digest
from coprep._memory import address_of
from coprep._modules import digest_of as _hash

_BETWEEN = "\0"
"""Character between texts that are hashed together."""
_WIDEST = 8
"""Most elements of tuples that are hashed by columns."""
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


def column_digest(values: Sequence[Any]) -> bytes | None:
    """Returns the digest of texts or numbers of one type, or of tuples of them. ``None`` if they are anything else."""
    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else None
    array: npt.NDArray[Any]
    if kind is str:
        text = _BETWEEN.join(values)
        if text.count(_BETWEEN) != len(values) - 1:
            return None
        array = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    elif kind is int or kind is float:
        try:
            array = np.fromiter(values, np.int64 if kind is int else np.float64, len(values))
        except OverflowError:
            return None
    elif kind is tuple:
        widths = set(map(len, values))
        if len(widths) != 1 or not 0 < max(widths) <= _WIDEST:
            return None
        width, flat = widths.pop(), list(itertools.chain.from_iterable(values))
        columns = [column_digest(flat[first::width]) for first in range(width)]
        return None if None in columns else _hash(b"tuple", *(column for column in columns if column is not None))
    else:
        return None
    return _hash(kind.__name__.encode(), b"%d" % len(values), array_digest(array))


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
