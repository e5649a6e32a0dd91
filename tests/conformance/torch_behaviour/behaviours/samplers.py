"""Checks samplers and batch samplers, of PyTorch and of the user's own."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

from .parts_of_checks import Backwards, Numbers, ints, raises, script
from .table import behaviour


class Keyed:
    """A dataset whose keys are words."""

    def __init__(self, **values: int) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: str) -> int:
        return self.values[key]


class Lengthless:
    """An iterable that is no sampler and has no length."""

    def __iter__(self) -> Iterator[int]:
        return iter([2, 0, 1])


class NumpyIndices(Lengthless):
    def __iter__(self) -> Iterator[Any]:
        return iter(np.array([2, 0, 1]))


@behaviour("SequentialSampler")
def sequential_sampler(DataLoader: Any) -> None:
    """SequentialSampler gives the dataset's order."""
    data = Numbers(7)
    assert ints(DataLoader(data, batch_size=3, sampler=torch_data.SequentialSampler(data), num_workers=2)) == list(
        range(7)
    )


@behaviour("RandomSampler")
def random_sampler(DataLoader: Any) -> None:
    """RandomSampler gives a permutation, a new one each epoch."""
    data = Numbers(20)
    loader = DataLoader(data, batch_size=3, sampler=torch_data.RandomSampler(data), num_workers=2)
    first, second = ints(loader), ints(loader)
    assert sorted(first) == sorted(second) == list(range(20)) and first != second


@behaviour("RandomSampler with a generator")
def random_sampler_generator(DataLoader: Any) -> None:
    """A RandomSampler's generator repeats its order."""
    data = Numbers(20)
    orders = []
    for _ in range(2):
        generator = torch.Generator()
        generator.manual_seed(11)
        sampler = torch_data.RandomSampler(data, generator=generator)
        orders.append(ints(DataLoader(data, batch_size=3, sampler=sampler, num_workers=2)))
    assert orders[0] == orders[1]


@behaviour("RandomSampler with replacement")
def random_sampler_replacement(DataLoader: Any) -> None:
    """With replacement, num_samples are drawn, and some come several times."""
    data = Numbers(10)
    sampler = torch_data.RandomSampler(data, replacement=True, num_samples=50)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
    order = ints(loader)
    assert len(loader) == 7 and len(order) == 50 and set(order) <= set(range(10))


@behaviour("RandomSampler, fewer samples")
def random_sampler_fewer(DataLoader: Any) -> None:
    """A num_samples below the dataset's length gives that many different samples."""
    data = Numbers(20)
    loader = DataLoader(data, batch_size=3, sampler=torch_data.RandomSampler(data, num_samples=5), num_workers=2)
    order = ints(loader)
    assert len(loader) == 2 and len(order) == 5 == len(set(order)) and set(order) <= set(range(20))


@behaviour("RandomSampler, more samples")
def random_sampler_more(DataLoader: Any) -> None:
    """A num_samples above the dataset's length goes through it several times."""
    data = Numbers(6)
    order = ints(DataLoader(data, sampler=torch_data.RandomSampler(data, num_samples=15), num_workers=2))
    assert sorted(order[:6]) == sorted(order[6:12]) == list(range(6)) and len(order) == 15


@behaviour("SubsetRandomSampler")
def subset_random_sampler(DataLoader: Any) -> None:
    """SubsetRandomSampler gives its indices, shuffled anew each epoch."""
    chosen = list(range(1, 40, 2))
    loader = DataLoader(Numbers(40), batch_size=3, sampler=torch_data.SubsetRandomSampler(chosen), num_workers=2)
    first, second = ints(loader), ints(loader)
    assert len(loader) == 7 and sorted(first) == sorted(second) == chosen and first != second


@behaviour("WeightedRandomSampler")
def weighted_random_sampler(DataLoader: Any) -> None:
    """WeightedRandomSampler draws num_samples samples, and none of weight 0."""
    sampler = torch_data.WeightedRandomSampler([0.0, 1.0, 0.0, 3.0], 20)
    loader = DataLoader(Numbers(4), batch_size=6, sampler=sampler, num_workers=2)
    order = ints(loader)
    assert len(loader) == 4 and len(order) == 20 and set(order) <= {1, 3}


@behaviour("a sampler of one's own")
def own_sampler(DataLoader: Any) -> None:
    """A Sampler subclass sets the order, in every epoch."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(6), batch_size=4, sampler=Backwards(6), num_workers=workers)
        assert [ints(loader) for _ in range(2)] == [[5, 4, 3, 2, 1, 0]] * 2


@behaviour("a list as the sampler")
def list_sampler(DataLoader: Any) -> None:
    """Any iterable of indices is a sampler, and may repeat them."""
    assert ints(DataLoader(Numbers(9), batch_size=2, sampler=[8, 1, 1, 4, 8], num_workers=2)) == [8, 1, 1, 4, 8]


@behaviour("a sampler without a length")
def lengthless_sampler(DataLoader: Any) -> None:
    """A sampler without a length is fine, but the loader then has none: TypeError."""
    loader = DataLoader(Numbers(3), batch_size=2, sampler=Lengthless(), num_workers=2)
    assert [ints(loader) for _ in range(2)] == [[2, 0, 1]] * 2
    with raises(TypeError):
        len(loader)


@behaviour("a sampler of NumPy integers")
def numpy_indices(DataLoader: Any) -> None:
    """Indices may be NumPy integers."""
    assert ints(DataLoader(Numbers(3), batch_size=2, sampler=NumpyIndices(), num_workers=2)) == [2, 0, 1]


@behaviour("a sampler of negative indices")
def negative_indices(DataLoader: Any) -> None:
    """Indices go to the dataset as they are: a list counts negative ones from its end."""
    assert ints(DataLoader([10, 20, 30], batch_size=2, sampler=[-1, 0, -2], num_workers=2)) == [30, 10, 20]


@behaviour("a sampler of keys")
def key_sampler(DataLoader: Any) -> None:
    """Indices may be keys of any type that the dataset takes."""
    loader = DataLoader(Keyed(one=1, two=2, three=3), batch_size=2, sampler=["two", "one"], num_workers=2)
    assert ints(loader) == [2, 1]


@behaviour("an index out of range")
def index_out_of_range(DataLoader: Any) -> None:
    """An index that the dataset lacks raises the dataset's own exception."""
    with raises(IndexError):
        list(DataLoader(Numbers(3), sampler=[0, 3], num_workers=2))


@behaviour("a sampler with drop_last")
def sampler_with_drop_last(DataLoader: Any) -> None:
    """drop_last applies to the indices of the sampler."""
    loader = DataLoader(Numbers(9), batch_size=2, sampler=[5, 4, 3], drop_last=True, num_workers=2)
    assert len(loader) == 1 and ints(loader) == [5, 4]


@behaviour("BatchSampler")
def batch_sampler(DataLoader: Any) -> None:
    """BatchSampler as the batch_sampler sets batches and order."""
    data = Numbers(7)
    batches = torch_data.BatchSampler(Backwards(7), 3, drop_last=False)
    loader = DataLoader(data, batch_sampler=batches, num_workers=2)
    assert len(loader) == 3 and [b.tolist() for b in loader] == [[6, 5, 4], [3, 2, 1], [0]]


@behaviour("BatchSampler over RandomSampler")
def batch_sampler_random(DataLoader: Any) -> None:
    """A random sampler in a BatchSampler gives a permutation in full batches."""
    data = Numbers(20)
    batches = torch_data.BatchSampler(torch_data.RandomSampler(data), 5, drop_last=True)
    found = [b.tolist() for b in DataLoader(data, batch_sampler=batches, num_workers=2)]
    assert [len(b) for b in found] == [5] * 4 and sorted(itertools.chain(*found)) == list(range(20))


@behaviour("batches of unequal size")
def list_batch_sampler(DataLoader: Any) -> None:
    """Any iterable of lists of indices is a batch sampler; its batches may differ in size."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(9), batch_sampler=[[0], [3, 2, 1], [8, 8]], num_workers=workers)
        assert [[b.tolist() for b in loader] for _ in range(2)] == [[[0], [3, 2, 1], [8, 8]]] * 2


@behaviour("DistributedSampler")
def distributed_sampler(DataLoader: Any) -> None:
    """The ranks of a DistributedSampler have the same number of samples, and all samples together."""
    for shuffle in (False, True):
        found = distributed(DataLoader, 12, shuffle)
        assert [len(x) for x in found] == [6, 6] and sorted(found[0] + found[1]) == list(range(12))


@behaviour("DistributedSampler in order")
def distributed_in_order(DataLoader: Any) -> None:
    """Without shuffling rank r of W has the samples r, r + W, r + 2 W, ..."""
    for count in (12, 40):
        assert distributed(DataLoader, count, shuffle=False) == [list(range(rank, count, 2)) for rank in range(2)]


def distributed(DataLoader: Any, count: int, shuffle: bool, drop_last: bool = False) -> list[list[int]]:
    """Returns the samples of two ranks that advance together, as a launcher would start them."""
    data = Numbers(count)
    samplers = [
        torch_data.DistributedSampler(data, num_replicas=2, rank=rank, shuffle=shuffle, seed=4, drop_last=drop_last)
        for rank in range(2)
    ]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WORLD_SIZE", "2")
        loaders = [DataLoader(data, batch_size=2, sampler=sampler, num_workers=2) for sampler in samplers]
    assert len(loaders[0]) == len(loaders[1])
    found: list[list[int]] = [[], []]
    for batches in zip(*loaders, strict=True):
        for mine, batch in zip(found, batches, strict=True):
            mine += batch.tolist()
    return found


@behaviour(
    "DistributedSampler that does not divide", "No sample comes twice in an epoch: one rank's last batch is shorter."
)
def distributed_sampler_odd(DataLoader: Any) -> None:
    """If samples cannot be divided evenly, one comes twice, or with drop_last not at all."""
    found = distributed(DataLoader, 11, shuffle=True)
    assert [len(x) for x in found] == [6, 6] and set(found[0] + found[1]) == set(range(11))
    found = distributed(DataLoader, 11, shuffle=True, drop_last=True)
    assert [len(x) for x in found] == [5, 5] and len(set(found[0] + found[1])) == 10


@distributed_sampler_odd.instead
def distributed_sampler_odd_ours(DataLoader: Any) -> None:
    """Every sample comes once, and ranks have the same number of batches, with the sampler's drop_last too."""
    for drop_last in (False, True):
        found = distributed(DataLoader, 11, shuffle=True, drop_last=drop_last)
        assert sorted(found[0] + found[1]) == list(range(11)) and sorted(map(len, found)) == [5, 6]
        in_order = distributed(DataLoader, 11, shuffle=False, drop_last=drop_last)
        assert in_order == [list(range(rank, 11, 2)) for rank in range(2)]


@behaviour("ranks one after another")
def ranks_in_turn(DataLoader: Any) -> None:
    """A process that no launcher has started may iterate over the loaders of several ranks, one after another."""
    data = Numbers(8)
    ranks = [torch_data.DistributedSampler(data, 2, rank, shuffle=False) for rank in range(2)]
    assert [ints(DataLoader(data, sampler=sampler)) for sampler in ranks] == [[0, 2, 4, 6], [1, 3, 5, 7]]


@behaviour("DistributedSampler.set_epoch")
def distributed_sampler_epochs(DataLoader: Any) -> None:
    """set_epoch gives each epoch an order of its own."""
    data = Numbers(20)
    sampler = torch_data.DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        orders.append(ints(loader))
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20)) and orders[0] != orders[1]


@behaviour(
    "warning about a sampler of one's own",
    difference="An order that only one job knows cannot be shared outside of a cohort; that is said once.",
)
def own_sampler_is_silent(DataLoader: Any) -> None:
    """A sampler of the user's own gives no warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert ints(DataLoader(Numbers(4), sampler=Backwards(4), num_workers=1)) == [3, 2, 1, 0]
    assert not said


@own_sampler_is_silent.instead
def own_sampler_warns(DataLoader: Any) -> None:
    """A sampler of the user's own gives one UnsharedWarning."""
    code = """
        import warnings
        class Backwards:
            def __iter__(self): return iter([3, 2, 1, 0])
            def __len__(self): return 4
        if __name__ == "__main__":
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                loader = DataLoader([0, 1, 2, 3], sampler=Backwards(), num_workers=1)
                found = [[int(b) for b in loader] for _ in range(2)]
            print(found, [w.category.__name__ for w in said])
    """
    assert script(DataLoader, code) == "[[3, 2, 1, 0], [3, 2, 1, 0]] ['UnsharedWarning']"
