"""Digests of the values of arrays and tensors."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coprep._coprep import content_digest
from coprep._memory import address_of
from coprep._modules import digest_of as _hash

_BETWEEN = "\0"
"""Character between texts that are hashed together."""
_WIDEST = 8
"""Most elements of tuples and lists that are hashed by columns."""
_NESTED, _KINDS = 6, 8
"""Most levels, and most types of values at one place, of what is hashed by columns."""
MOST_ELEMENTS = 20_000_000
"""Most elements at one level of lists within lists. A list that holds itself would have any number."""
Note = Callable[[Sequence[str]], None]
Column = Callable[[Sequence[Any], Note, int], bytes | None]
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


def column_digest(values: Sequence[Any], note: Note, level: int = 0) -> bytes | None:
    """Returns the digest of texts and numbers, and of lists, tuples and dicts of them; ``None`` for anything else.

    Values at the same place of each element are hashed together, which takes a tenth of the time of pickling them.
    ``note`` is given the texts.
    """
    kinds = sorted(set(map(type, values)), key=_name)
    if level > _NESTED or len(kinds) > _KINDS:
        return None
    if len(kinds) != 1:
        numbers = {kind: number for number, kind in enumerate(kinds)}
        which = np.fromiter(map(numbers.__getitem__, map(type, values)), np.uint8, len(values))
        parts = [column_digest([value for value in values if type(value) is kind], note, level) for kind in kinds]
        return None if None in parts else _hash(b"mixed", array_digest(which), *filter(None, parts))
    (kind,) = kinds
    of_kind = COLUMNS.get(kind)
    digest = None if of_kind is None else of_kind(values, note, level)
    return None if digest is None else _hash(kind.__name__.encode(), b"%d" % len(values), digest)


def _name(kind: type) -> str:
    return kind.__name__


def _texts(values: Sequence[Any], note: Note, _: int) -> bytes | None:
    note(values)
    text = _BETWEEN.join(values)
    if text.count(_BETWEEN) != len(values) - 1:
        return None
    return array_digest(np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8))


def _numbers(dtype: Any) -> Column:
    def digest(values: Sequence[Any], _: Note, __: int) -> bytes | None:
        try:
            return array_digest(np.fromiter(values, dtype, len(values)))
        except OverflowError:
            return None

    return digest


def _elements(values: Sequence[Any], note: Note, level: int) -> bytes | None:
    widths = set(map(len, values))
    if sum(map(len, values)) > MOST_ELEMENTS:
        return None
    flat = list(itertools.chain.from_iterable(values))
    if len(widths) > 1 or max(widths) > _WIDEST:
        lengths = array_digest(np.fromiter(map(len, values), np.int64, len(values)))
        digest = column_digest(flat, note, level + 1)
        return None if digest is None else _hash(lengths, digest)
    (width,) = widths
    return _together([column_digest(flat[first::width], note, level + 1) for first in range(width)])


def _entries(values: Sequence[Any], note: Note, level: int) -> bytes | None:
    names = set(map(tuple, values))
    if len(names) > 1:
        return None
    (keys,) = names
    if len(keys) * len(values) > MOST_ELEMENTS:
        return None
    flat = list(itertools.chain.from_iterable(map(dict.values, values)))
    columns = [column_digest(flat[first :: len(keys)], note, level + 1) for first in range(len(keys))]
    return _together([column_digest(keys, note, level + 1), *columns])


def _together(columns: list[bytes | None]) -> bytes | None:
    return None if None in columns else _hash(*filter(None, columns))


COLUMNS: dict[type, Column] = {
    str: _texts,
    int: _numbers(np.int64),
    float: _numbers(np.float64),
    bool: _numbers(np.bool_),
    type(None): lambda values, note, level: b"none",
    tuple: _elements,
    list: _elements,
    dict: _entries,
}


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
