"""Checks samples that come one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from .parts_of_checks import Numbers, Pictures, Point, same
from .table import behaviour


def converts(DataLoader: Any, samples: list[Any]) -> None:
    """Asserts that without batching each of these samples comes out of PyTorch's default conversion."""
    expected = [torch_data.default_convert(sample) for sample in samples]
    for workers in (0, 1):
        found = list(DataLoader(samples, batch_size=None, num_workers=workers))
        assert same(found, expected), f"{workers} workers: {found!r} should be {expected!r}"


@behaviour("batch_size=None")
def no_batching(DataLoader: Any) -> None:
    """Without batching, samples come as they are, one by one."""
    for workers in (0, 2):
        assert list(DataLoader(Numbers(5), batch_size=None, num_workers=workers)) == [0, 1, 2, 3, 4]


@behaviour("batch_size=None, shapes")
def no_batching_shapes(DataLoader: Any) -> None:
    """Without batching, there is no batch dimension."""
    for i, (picture, label) in enumerate(DataLoader(Pictures(4), batch_size=None, num_workers=2)):
        assert picture.shape == (3, 4, 4) and type(label) is int and label == i


@behaviour("batch_size=None with shuffle")
def no_batching_shuffled(DataLoader: Any) -> None:
    """Without batching, shuffle still shuffles."""
    order = list(DataLoader(Numbers(20), batch_size=None, shuffle=True, num_workers=2))
    assert sorted(order) == list(range(20)) and order != list(range(20))


@behaviour("batch_size=None with a sampler")
def no_batching_with_sampler(DataLoader: Any) -> None:
    """Without batching, the indices of the sampler go to the dataset as they are."""
    assert list(DataLoader(Numbers(9), batch_size=None, sampler=[3, 1, 3], num_workers=2)) == [3, 1, 3]


class Bulk(Numbers):
    """A dataset that prepares whole batches: its index is a list."""

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor(index) * 2


@behaviour("batches made by the dataset")
def bulk_loading(DataLoader: Any) -> None:
    """Without batching, a batch sampler as the sampler lets the dataset make whole batches."""
    data = Bulk(7)
    sampler = torch_data.BatchSampler(torch_data.SequentialSampler(data), 3, drop_last=False)
    batches = list(DataLoader(data, batch_size=None, sampler=sampler, num_workers=2))
    assert [b.tolist() for b in batches] == [[0, 2, 4], [6, 8, 10], [12]]


@behaviour("conversion of arrays")
def convert_arrays(DataLoader: Any) -> None:
    """Without batching, NumPy arrays and scalars become tensors."""
    converts(DataLoader, [np.arange(3), np.float32(1.5), np.array(2.0), np.array([True])])


@behaviour("conversion of other types")
def convert_others(DataLoader: Any) -> None:
    """Without batching, numbers, strings, bytes, None and tensors come as they are."""
    converts(DataLoader, [1, 2.5, "word", b"bytes", None, True, torch.ones(2)])


@behaviour("conversion of containers")
def convert_containers(DataLoader: Any) -> None:
    """Without batching, arrays in dicts, lists, tuples and named tuples become tensors; tuples become lists."""
    array = np.arange(3)
    converts(DataLoader, [{"a": array, "b": "x"}, [array, 1], (array, "y"), Point(array, 2), {"d": [(array,)]}])


@behaviour("conversion of string arrays")
def convert_string_arrays(DataLoader: Any) -> None:
    """Without batching, NumPy arrays of strings stay arrays."""
    converts(DataLoader, [np.array(["a", "b"]), np.array([b"c"])])


@behaviour("batch_size=None with a collate_fn")
def no_batching_with_collate(DataLoader: Any) -> None:
    """Without batching, collate_fn is called with each sample."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(3), batch_size=None, collate_fn=str, num_workers=workers)
        assert list(loader) == ["0", "1", "2"]
