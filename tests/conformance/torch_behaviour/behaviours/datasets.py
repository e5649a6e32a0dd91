"""Checks which objects may be a dataset, and the effects of changes to it."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from .parts_of_checks import Numbers, Pictures, ints, raises, same
from .table import behaviour


class Endless:
    """A dataset without a length."""

    def __getitem__(self, index: int) -> int:
        return index * 2


class AtOnce(Numbers):
    """A dataset that must be read by lists of ids: single samples are wrong."""

    def __getitem__(self, index: int) -> int:
        return -1

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [int(i) * 10 for i in indices]


class Beside(AtOnce):
    """Gives with each sample the number of samples that it was asked for together with."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(int(i), len(indices)) for i in indices]


class Stream(torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@behaviour("sequences as datasets")
def sequences(DataLoader: Any) -> None:
    """Lists, ranges, arrays and tensors are datasets."""
    for data in (list(range(5)), range(5), np.arange(5), torch.arange(5)):
        assert ints(DataLoader(data, batch_size=2, num_workers=2)) == list(range(5))


@behaviour("TensorDataset")
def tensor_dataset(DataLoader: Any) -> None:
    """TensorDataset gives rows of its tensors."""
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    found = list(DataLoader(torch_data.TensorDataset(x, y), batch_size=4, num_workers=2))
    assert same(found, [[x[:4], y[:4]], [x[4:], y[4:]]])


@behaviour("Subset")
def subset(DataLoader: Any) -> None:
    """Subset gives its indices of the dataset, in their order."""
    data = torch_data.Subset(Pictures(10), [7, 2, 2, 9])
    assert [int(x) for _, label in DataLoader(data, batch_size=3, num_workers=2) for x in label] == [7, 2, 2, 9]


@behaviour("ConcatDataset")
def concat_dataset(DataLoader: Any) -> None:
    """ConcatDataset gives one dataset after the other."""
    data = torch_data.ConcatDataset([Pictures(2), Pictures(3)])
    assert [int(x) for _, label in DataLoader(data, batch_size=2, num_workers=2) for x in label] == [0, 1, 0, 1, 2]


@behaviour("StackDataset")
def stack_dataset(DataLoader: Any) -> None:
    """StackDataset gives the samples of several datasets together, also by name."""
    data = torch_data.StackDataset(a=Numbers(4), b=Numbers(4, offset=10))
    found = list(DataLoader(data, batch_size=4, num_workers=2))
    assert same(found, [{"a": torch.arange(4), "b": torch.arange(10, 14)}])


@behaviour("random_split")
def split(DataLoader: Any) -> None:
    """The parts of random_split have no sample in common and have all together."""
    parts = torch_data.random_split(Pictures(10), [7, 3])
    found = [[int(x) for _, label in DataLoader(p, batch_size=2, num_workers=2) for x in label] for p in parts]
    assert [len(x) for x in found] == [7, 3] and sorted(found[0] + found[1]) == list(range(10))


@behaviour("__getitems__")
def getitems(DataLoader: Any) -> None:
    """A dataset that has __getitems__ is asked by that, and not by __getitem__."""
    for workers in (0, 2):
        assert ints(DataLoader(AtOnce(5), batch_size=2, num_workers=workers)) == [0, 10, 20, 30, 40]


@behaviour("__getitems__ of a batch")
def getitems_of_a_batch(DataLoader: Any) -> None:
    """__getitems__ is asked for all samples of a batch at once."""
    for workers in (0, 1, 2):
        batches = DataLoader(Beside(5), batch_size=2, num_workers=workers)
        assert [beside.tolist() for _, beside in batches] == [[2, 2], [2, 2], [1]]


@behaviour("__getitems__ without batching")
def getitems_without_batching(DataLoader: Any) -> None:
    """Without batching, __getitems__ is not used."""
    assert list(DataLoader(AtOnce(2), batch_size=None, num_workers=2)) == [-1, -1]


@behaviour("IterableDataset")
def iterable_dataset(DataLoader: Any) -> None:
    """An IterableDataset is iterated. (Outside of a cohort it shares nothing here: UnsharedWarning.)"""
    for options in ({}, {"num_workers": 1}):
        assert ints(DataLoader(Stream(), batch_size=2, **options)) == list(range(5))


@behaviour("a dataset without a length")
def endless_dataset(DataLoader: Any) -> None:
    """A dataset without a length needs a sampler; otherwise it is a TypeError."""
    assert ints(DataLoader(Endless(), sampler=[3, 1], num_workers=2)) == [6, 2]
    with raises(TypeError):
        list(DataLoader(Endless(), num_workers=2))


@behaviour("a dataset of a local class")
def local_dataset(DataLoader: Any) -> None:
    """A dataset's class may be defined in a function, and use variables around it."""
    factor = 3

    class Local(torch_data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index * factor

    assert ints(DataLoader(Local(), batch_size=2, num_workers=2)) == [0, 3, 6, 9]


@behaviour("a dataset that holds a lambda")
def lambda_dataset(DataLoader: Any) -> None:
    """A dataset may hold lambdas, as transforms often do."""
    assert ints(DataLoader(Mapped(lambda i: i + 7), batch_size=2, num_workers=2)) == [7, 8, 9]


class Mapped(Numbers):
    def __init__(self, transform: Callable[[int], int]) -> None:
        super().__init__(3)
        self.transform = transform

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


@behaviour("a dataset that cannot be pickled")
def unpicklable_dataset(DataLoader: Any) -> None:
    """A dataset that cannot be pickled cannot go to a spawned worker, and the error says so."""
    data = Numbers(3)
    data.open = (x for x in range(3))  # type: ignore[attr-defined]
    with raises(TypeError, ValueError, RuntimeError, pickle.PicklingError, texts=("pickle",)):
        list(DataLoader(data, num_workers=1, multiprocessing_context="spawn"))


@behaviour("a dataset that cannot be pickled, without workers")
def unpicklable_dataset_without_workers(DataLoader: Any) -> None:
    """With num_workers=0 a dataset may hold objects that cannot be pickled, and so may worker_init_fn."""
    data = Numbers(3)
    data.open = (x for x in range(3))  # type: ignore[attr-defined]
    loader = DataLoader(data, num_workers=0, worker_init_fn=lambda worker: next(data.open))  # type: ignore[attr-defined]
    assert ints(loader) == ints(loader) == [0, 1, 2]
    data.count = 2
    assert ints(loader) == [0, 1]


def inherited() -> list[Any]:
    """Returns objects that cannot be pickled, and that a child inherits by fork."""
    context = multiprocessing.get_context("fork")
    return [(x for x in range(3)), context.Value("i", 3), context.Semaphore(3)]


@behaviour("what comes by fork alone")
def unpicklable_with_fork(DataLoader: Any) -> None:
    """A dataset may hold objects that cannot be pickled, such as a multiprocessing.Value, also with workers."""
    for held in inherited():
        for options in ({}, {"num_workers": 2, "multiprocessing_context": "fork"}):
            assert ints(DataLoader(Holding(held), **options)) == [0, 1, 2]


class Holding(Numbers):
    def __init__(self, held: Any) -> None:
        super().__init__(3)
        self.held = held


@behaviour("changing a dataset, without workers")
def changed_dataset_without_workers(DataLoader: Any) -> None:
    """Without workers, a change to the dataset is seen at once."""
    data = Numbers(4)
    it = iter(DataLoader(data, num_workers=0))
    assert int(next(it)) == 0
    data.offset = 10
    assert ints(it) == [11, 12, 13]


@behaviour("changing a dataset between epochs")
def changed_dataset(DataLoader: Any) -> None:
    """A change to the dataset's attributes is seen in the next epoch."""
    data = Numbers(4)
    loader = DataLoader(data, batch_size=2, num_workers=2)
    assert ints(loader) == [0, 1, 2, 3]
    data.offset = 10
    assert ints(loader) == [10, 11, 12, 13]


@behaviour("a dataset that grows or shrinks")
def changed_length(DataLoader: Any) -> None:
    """A change to the dataset's length is seen by len and in the next epoch."""
    for options in ({}, {"shuffle": True}):
        data = Numbers(4)
        loader = DataLoader(data, batch_size=2, num_workers=2, **options)
        for count in (4, 7, 2):
            data.count = count
            assert len(loader) == (count + 1) // 2
            assert sorted(ints(loader)) == list(range(count))


@behaviour("changes in workers stay there")
def changes_in_workers(DataLoader: Any) -> None:
    """Changes that __getitem__ makes in a worker do not change the job's dataset."""
    data = Remembering(6)
    assert ints(DataLoader(data, batch_size=2, num_workers=2)) == list(range(6))
    assert data.seen == []


class Remembering(Numbers):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.seen: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.seen.append(index)
        return index
