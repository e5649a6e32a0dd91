"""Parts of a dataset as ids of that dataset, so that jobs on different parts share the samples that these have."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coprep._arguments import is_iterable_dataset

Ids = npt.NDArray[np.int64]
MOST_SAMPLES = 2**32
"""Ids have 32 bits."""


class Fold(NamedTuple):
    """A ``torch.utils.data.Subset``, or one of one, as ids of the dataset that has the samples."""

    dataset: Any
    ids: Ids
    """The id of the sample at each position."""
    order: Ids
    """The positions, by ascending id."""
    as_index: Callable[[int], Any]
    """Function that makes the index, as the dataset gets it from PyTorch, of an id."""

    @property
    def subset(self) -> bytes:
        """Returns the ids in the coordinator's format: native-endian, 32 bits each, ascending."""
        return self.ids[self.order].astype(np.uint32).tobytes()

    def positions(self, ids: Ids) -> Ids:
        """Returns the positions of samples by their ids. An id that is not of this part has any position."""
        places = np.searchsorted(self.ids, ids, sorter=self.order)
        return self.order[np.minimum(places, len(self.order) - 1)]


class Positions:
    """Numbers the samples of a loader as its user does, whatever numbers they have in the stream."""

    def __init__(self) -> None:
        self.fold: Fold | None = None

    def all_of(self, ids: Ids) -> Ids:
        """Returns the positions of samples in the loader's dataset."""
        return ids if self.fold is None else self.fold.positions(ids)

    def has(self, sample: int) -> bool:
        """Returns whether a sample of the stream is one of the loader's."""
        return self.fold is None or bool(self.fold.ids[self.of(sample)] == sample)

    def of(self, sample: int) -> int:
        """Returns the position of a sample in the loader's dataset."""
        return int(self.all_of(np.array([sample]))[0])


class TensorIndex(NamedTuple):
    """Makes the index that PyTorch takes from a tensor of indices."""

    dtype: Any

    def __call__(self, number: int) -> Any:
        """Returns a tensor without dimensions."""
        import torch

        return torch.tensor(number, dtype=self.dtype)


def fold_of(dataset: Any, *, is_shuffled: bool) -> Fold | None:
    """Returns the samples of a part of a dataset as ids of that, or ``None`` if that makes a difference to its user.

    Args:
        is_shuffled: whether the order is random. Otherwise samples come by ascending id.
    """
    ids: Ids | None = None
    as_index: Callable[[int], Any] = int
    while is_part(dataset):
        part = _read_subset(dataset) if _is_subset(dataset) else _read_selection(dataset)
        if part is None:
            return None
        dataset, numbers, as_index = part
        if ids is None:
            ids = numbers
        elif _are_in_range(ids, len(numbers)):
            ids = numbers[ids]
        else:
            return None
    samples = None if ids is None else _length(dataset)
    if ids is None or samples is None or not _are_in_range(ids, samples):
        return None
    order = np.argsort(ids, kind="stable")
    if (np.diff(ids[order]) == 0).any() or not (is_shuffled or (np.diff(ids) > 0).all()):
        return None
    return Fold(dataset, ids, order, as_index)


def is_part(dataset: Any) -> bool:
    """Returns whether a dataset is a ``torch.utils.data.Subset``, or a selection from a ``datasets.Dataset``."""
    return _is_subset(dataset) or _is_selection(dataset)


Part = tuple[Any, Ids, Callable[[int], Any]]
"""A dataset, the samples of a part of it, and what makes of a number the index that the dataset gets."""


def _is_subset(dataset: Any) -> bool:
    module: Any = sys.modules.get("torch.utils.data.dataset")
    return module is not None and isinstance(dataset, module.Subset)


def _read_subset(subset: Any) -> Part | None:
    module: Any = sys.modules["torch.utils.data.dataset"]
    methods = [vars(module.Subset).get(name) for name in ("__getitem__", "__getitems__", "__len__")]
    are_original = all(getattr(method, "__globals__", None) is vars(module) for method in methods)
    given = vars(subset)
    # Workers would call a method of the instance in place of the class's.
    if type(subset) is not module.Subset or not are_original or "__getitems__" in given:
        return None
    numbers = _numbers(given.get("indices"))
    return None if numbers is None or "dataset" not in given else (given["dataset"], *numbers)


def _is_selection(dataset: Any) -> bool:
    module: Any = sys.modules.get("datasets.arrow_dataset")
    # The user may have modules of this name.
    kind: Any = getattr(module, "Dataset", None)
    return type(kind) is type and type(dataset) is kind and getattr(dataset, "_indices", None) is not None


def _read_selection(selection: Any) -> Part | None:
    try:
        numbers = selection._indices.column(0).to_numpy().astype(np.int64)
    except Exception:
        # Another version may keep its indices in another form.
        return None
    attributes = {**vars(selection), "_indices": None}
    whole = _whole.get(selection)
    if whole is None or any(vars(whole).get(name) is not value for name, value in attributes.items()):
        whole = object.__new__(type(selection))
        vars(whole).update(attributes)
        _whole[selection] = whole
    return whole, numbers, int


_whole: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The datasets that selections are made from, by the selection."""


def _numbers(given: Any) -> tuple[Ids, Callable[[int], Any]] | None:
    """Returns indices, and what makes of a number an index of their type. ``None`` if they are no plain integers."""
    if type(given) is range and len(given) <= MOST_SAMPLES:
        return np.arange(given.start, given.stop, given.step), int
    if type(given) in (list, tuple):
        kinds = set(map(type, given))
        kind = kinds.pop() if len(kinds) == 1 else bool
        if kind is not int and not issubclass(kind, np.integer):
            return None
        try:
            return np.fromiter(given, np.int64, len(given)), kind
        except OverflowError:
            return None
    array = given
    as_index: Any = None
    torch: Any = sys.modules["torch"]
    if type(given) is torch.Tensor and given.device.type == "cpu" and given.layout is torch.strided:
        array, as_index = given.detach().numpy(), TensorIndex(given.dtype)
    if type(array) is not np.ndarray or array.ndim != 1 or array.dtype.kind not in "iu":
        return None
    return array.astype(np.int64), as_index or array.dtype.type


def _are_in_range(ids: Ids, samples: int) -> bool:
    return bool(ids.size) and bool(ids.min() >= 0) and bool(ids.max() < min(samples, MOST_SAMPLES))


def _length(dataset: Any) -> int | None:
    """Returns the number of samples of a map-style dataset, or ``None`` if it is none or has no length."""
    if isinstance(dataset, str) or is_iterable_dataset(dataset) or not hasattr(dataset, "__getitem__"):
        return None
    try:
        return len(dataset)
    except TypeError:
        return None
