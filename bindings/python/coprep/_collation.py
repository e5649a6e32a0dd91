"""Batches of whole samples, which PyTorch's own collation makes in the job.

Samples travel whole where the arrays of a :class:`Structure` cannot hold them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coprep._packing import Packed
from coprep._structure import Framework, MismatchError, Structure, convert, image_tensor, record

Collate = Callable[..., Any]


def collate(samples: list[Any], framework: Framework, *, as_worker: bool) -> Any:
    """Returns the batch of samples.

    Args:
        as_worker: whether it is the one that PyTorch's workers make. Without workers, PyTorch promotes the types of
            tensors that differ.

    Raises:
        TypeError, ValueError, RuntimeError: no batch can be made of them. For torch it is the error of PyTorch's
            ``default_collate``.
    """
    return _of_arrays(samples) if framework == "numpy" else _of_tensors(samples, as_worker=as_worker)


def written(structure: Structure, samples: list[Any], framework: Framework) -> Any:
    """Returns the batch of samples that have this structure.

    Raises:
        MismatchError: one of them does not have it.
    """
    arrays = [np.empty((len(samples), *field.shape), field.storage) for field in structure.fields]
    packed = []
    for i, sample in enumerate(samples):
        try:
            packed.append(structure.write(sample, arrays, i))
        except MismatchError as error:
            error.row = i
            raise
    blobs: list[memoryview | None] = [_bytes_of(part) for part in packed if part is not None]
    return structure.batch(arrays, blobs if structure.has_blob else None, len(samples), framework)


def _bytes_of(packed: Packed) -> memoryview:
    room = memoryview(bytearray(packed.size))
    packed.write_to(room)
    return room


def _of_arrays(samples: list[Any]) -> Any:
    # A tensor of a derived class has its values in NumPy, too.
    arrays = [convert(sample, "numpy") for sample in samples]
    return written(Structure.of(arrays[0]), arrays, "numpy")


def _of_tensors(samples: list[Any], *, as_worker: bool) -> Any:
    from torch.utils.data._utils import collate as torchs

    table = torchs.default_collate_fn_map
    # Types for which PyTorch has no rule come last, so that any rule of the user's goes before them.
    rules: dict[Any, Any] = dict(table)
    for kind, rule in _further().items():
        rules.setdefault(kind, rule)
    stack = _tensors_as_worker if as_worker else _tensors
    rules = {kind: stack if rule is torchs.collate_tensor_fn else rule for kind, rule in rules.items()}
    return torchs.collate(samples, collate_fn_map=rules)


class _KindOfRecord(type):
    def __instancecheck__(cls, value: Any) -> bool:
        is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
        return is_record and not isinstance(value, (Mapping, Sequence))


class _Record(metaclass=_KindOfRecord):
    """Stands for every dataclass that is no container."""


def _further() -> dict[type, Collate]:
    """Returns the rules for types that PyTorch does not collate, and that batches of arrays are made of, too."""
    images: Any = sys.modules.get("PIL.Image")
    of_images: dict[type, Collate] = {} if images is None else {images.Image: _images}
    return {**of_images, complex: _complex_numbers, _Record: _records}


def _tensors(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    from torch.utils.data._utils.collate import collate_tensor_fn

    # Batches of coprep have no strides of their own, as those of workers. PyTorch would keep those of the samples.
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map).contiguous()


def _tensors_as_worker(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    import torch

    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:
        return _tensors(batch, collate_fn_map=collate_fn_map)
    # PyTorch's workers stack into memory that they share, of the type of the first tensor, and count elements before.
    sum(tensor.numel() for tensor in batch)
    return torch.stack(list(batch), 0, out=first.new_empty((len(batch), *first.size())))


def _images(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    from torch.utils.data._utils.collate import collate as torchs

    return torchs([image_tensor(image) for image in batch], collate_fn_map=collate_fn_map)


def _complex_numbers(batch: Sequence[complex], *, collate_fn_map: Any) -> Any:
    import torch

    return torch.tensor(batch, dtype=torch.complex128)


def _records(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    from torch.utils.data._utils.collate import collate as torchs

    names = [field.name for field in dataclasses.fields(batch[0])]
    columns = ([getattr(sample, name) for sample in batch] for name in names)
    parts = (torchs(column, collate_fn_map=collate_fn_map) for column in columns)
    return record(type(batch[0]), zip(names, parts, strict=True))


class Rules:
    """The rules of PyTorch's collation that the program has changed, in ``default_collate_fn_map``."""

    def __init__(self) -> None:
        self._table: dict[Any, Any] | None = None
        self._structure: Structure | None = None
        self._concern = False

    def concern(self, structure: Structure) -> bool:
        """Returns whether samples of this structure have a part whose rule is not PyTorch's."""
        table = _table()
        # This is asked for each batch, and the answer seldom changes.
        if table == self._table and structure is self._structure:
            return self._concern
        self._table, self._structure = dict(table), structure
        changed = tuple(changed_kinds())
        self._concern = bool(changed) and any(issubclass(kind, changed) for kind in structure.kinds())
        return self._concern


def _table() -> dict[Any, Any]:
    return getattr(sys.modules.get("torch.utils.data._utils.collate"), "default_collate_fn_map", {})


def changed_kinds() -> list[Any]:
    """Returns the types whose rules are not PyTorch's own."""
    table, torch = _table(), sys.modules.get("torch")
    # A program may keep PyTorch from being imported, after parts of it were.
    if not table or torch is None:
        return []
    module: Any = sys.modules["torch.utils.data._utils.collate"]
    names = {
        torch.Tensor: "tensor",
        np.ndarray: "numpy_array",
        (np.bool_, np.number, np.object_): "numpy_scalar",
        float: "float",
        int: "int",
        str: "str",
        bytes: "str",
    }
    own = {kind: getattr(module, f"collate_{name}_fn", None) for kind, name in names.items()}
    return [kind for kind, rule in table.items() if own.get(kind) is not rule]
