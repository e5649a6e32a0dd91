"""Checks random orders, random numbers, and the ways to repeat them."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch

from .parts_of_checks import Numbers, Pictures, ints, same
from .table import behaviour


class Randoms(Numbers):
    """A dataset whose samples are numbers that the three random number generators give in ``__getitem__``."""

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))


@behaviour("shuffle")
def shuffle(DataLoader: Any) -> None:
    """shuffle=True gives a permutation."""
    for workers in (0, 2):
        order = ints(DataLoader(Numbers(20), batch_size=3, shuffle=True, num_workers=workers))
        assert sorted(order) == list(range(20)) and order != list(range(20))


@behaviour("shuffle keeps samples whole")
def shuffle_keeps_samples_whole(DataLoader: Any) -> None:
    """Shuffled pictures keep their labels."""
    for picture, label in DataLoader(Pictures(20), batch_size=4, shuffle=True, num_workers=2):
        assert (picture[:, 0, 0, 0] == label).all()


@behaviour("shuffle anew")
def shuffle_anew(DataLoader: Any) -> None:
    """Each epoch has an order of its own."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(20), batch_size=4, shuffle=True, num_workers=workers)
        assert len({tuple(ints(loader)) for _ in range(3)}) == 3


@behaviour("shuffle with drop_last")
def shuffle_with_drop_last(DataLoader: Any) -> None:
    """The dropped samples are random too: no sample comes twice, and the full batches come."""
    order = ints(DataLoader(Numbers(20), batch_size=6, shuffle=True, drop_last=True, num_workers=2))
    assert len(order) == 18 and len(set(order)) == 18


def order_of(DataLoader: Any, seed: int, workers: int = 2, epochs: int = 2) -> list[list[int]]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    loader = DataLoader(Numbers(20), batch_size=4, shuffle=True, num_workers=workers, generator=generator)
    return [ints(loader) for _ in range(epochs)]


@behaviour("generator repeats the order")
def generator_repeats_order(DataLoader: Any) -> None:
    """Generators of the same seed give the same orders, epoch by epoch."""
    for workers in (0, 2):
        assert order_of(DataLoader, 7, workers) == order_of(DataLoader, 7, workers)


@behaviour("order and number of workers")
def order_whatever_the_workers(DataLoader: Any) -> None:
    """The order for a seed does not depend on the number of workers."""
    assert order_of(DataLoader, 7, 0) == order_of(DataLoader, 7, 1) == order_of(DataLoader, 7, 3)


@behaviour("another seed, another order")
def another_seed(DataLoader: Any) -> None:
    """Generators of different seeds give different orders."""
    assert order_of(DataLoader, 7, epochs=1) != order_of(DataLoader, 8, epochs=1)


@behaviour(
    "the order for a seed",
    difference="Any sample's place must be known without the whole permutation, and must not change with PyTorch.",
)
def order_is_randperm(DataLoader: Any) -> None:
    """The order for a seed is that of torch.randperm."""
    generator = torch.Generator()
    generator.manual_seed(7)
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    assert order_of(DataLoader, 7, epochs=1) == [torch.randperm(20, generator=generator).tolist()]


@order_is_randperm.instead
def order_is_a_permutation(DataLoader: Any) -> None:
    """The order for a seed is coprep's own permutation, the same each time."""
    (order,) = order_of(DataLoader, 7, epochs=1)
    assert sorted(order) == list(range(20))
    assert [order] == order_of(DataLoader, 7, epochs=1)


@behaviour(
    "two loaders of one generator",
    difference="A generator stands for its seed, so that jobs that give the same seed share.",
)
def one_generator_for_two(DataLoader: Any) -> None:
    """Two loaders that draw from one generator have different orders."""
    generator = torch.Generator()
    generator.manual_seed(7)
    loaders = [DataLoader(Numbers(20), shuffle=True, num_workers=2, generator=generator) for _ in range(2)]
    assert ints(loaders[0]) != ints(loaders[1])


@one_generator_for_two.instead
def one_seed_for_two(DataLoader: Any) -> None:
    """Two loaders of one generator both have the order of its initial seed."""
    generator = torch.Generator()
    generator.manual_seed(7)
    loaders = [DataLoader(Numbers(20), shuffle=True, num_workers=2, generator=generator) for _ in range(2)]
    assert ints(loaders[0]) == ints(loaders[1])


@behaviour(
    "torch.manual_seed",
    difference="Jobs that give no seed take that of the jobs that run already, to share; seed= fixes the order.",
)
def global_seed(DataLoader: Any) -> None:
    """torch.manual_seed before an epoch fixes its order."""
    loader = DataLoader(Numbers(20), shuffle=True, num_workers=2)
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        orders.append(ints(loader))
    assert orders[0] == orders[1]


@global_seed.instead
def seed_argument(DataLoader: Any) -> None:
    """seed= fixes the orders; torch.manual_seed does not."""
    orders = []
    for _ in range(2):
        loader = DataLoader(Numbers(20), shuffle=True, num_workers=2, seed=5)
        orders.append([ints(loader) for _ in range(2)])
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]


def drawn(loader: Any) -> list[tuple[float, ...]]:
    """Returns the numbers that each sample drew from random, numpy and torch."""
    return [tuple(row) for batch in loader for row in torch.stack([c.double() for c in batch], 1).tolist()]


@behaviour("random numbers of samples")
def random_numbers_differ(DataLoader: Any) -> None:
    """random, numpy and torch give each sample numbers of its own."""
    for workers in (0, 2):
        rows = drawn(DataLoader(Randoms(12), batch_size=2, num_workers=workers))
        assert all(len(set(column)) == 12 for column in zip(*rows, strict=True)), rows


@behaviour("random numbers of epochs")
def random_numbers_differ_by_epoch(DataLoader: Any) -> None:
    """random, numpy and torch give other numbers in the next epoch."""
    loader = DataLoader(Randoms(6), batch_size=2, num_workers=2)
    first, second = drawn(loader), drawn(loader)
    assert all(not set(a) & set(b) for a, b in zip(zip(*first, strict=True), zip(*second, strict=True), strict=True))


@behaviour("random numbers are repeated")
def random_numbers_repeat(DataLoader: Any) -> None:
    """Generators of the same seed give the same random numbers in __getitem__, epoch by epoch."""
    runs = []
    for _ in range(2):
        generator = torch.Generator()
        generator.manual_seed(3)
        loader = DataLoader(Randoms(6), batch_size=2, num_workers=2, generator=generator)
        runs.append([drawn(loader) for _ in range(2)])
    assert runs[0] == runs[1]


@behaviour("random numbers of another seed")
def random_numbers_of_another_seed(DataLoader: Any) -> None:
    """Generators of different seeds give different random numbers in __getitem__."""
    runs = []
    for seed in (3, 4):
        generator = torch.Generator()
        generator.manual_seed(seed)
        runs.append(drawn(DataLoader(Randoms(6), batch_size=2, num_workers=2, generator=generator)))
    assert not set(runs[0]) & set(runs[1])


class Seeds(Numbers):
    """A dataset whose samples are PyTorch's seed in ``__getitem__``, and a number drawn there."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        return torch.initial_seed(), float(torch.rand(()))


@behaviour("torch.initial_seed in a sample")
def initial_seed_in_sample(DataLoader: Any) -> None:
    """In a worker, torch.initial_seed() fits into an int64 tensor."""
    for seed in range(4):
        generator = torch.Generator()
        generator.manual_seed(seed)
        for seeds, _ in DataLoader(Seeds(8), batch_size=4, num_workers=2, generator=generator):
            assert seeds.dtype == torch.int64 and (seeds >= 0).all()


def seed_by_hand(worker: int) -> None:
    torch.manual_seed(12345)


@behaviour(
    "seeds in worker_init_fn",
    difference="A sample is the same whoever makes it: each is seeded anew, from the loader's seed.",
)
def seeds_in_init_fn(DataLoader: Any) -> None:
    """A seed that worker_init_fn sets is in force in __getitem__."""
    for seeds, _ in DataLoader(Seeds(8), batch_size=4, num_workers=2, worker_init_fn=seed_by_hand):
        assert (seeds == 12345).all()


@seeds_in_init_fn.instead
def seeds_in_init_fn_are_warned_of(DataLoader: Any) -> None:
    """A seed that worker_init_fn sets has no effect on samples, and a warning says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seeded = [drawn for _, drawn in DataLoader(Seeds(8), 4, num_workers=2, seed=3, worker_init_fn=seed_by_hand)]
    assert [w.category for w in caught if "worker_init_fn seeds torch" in str(w.message)] == [UserWarning]
    plain = [drawn for _, drawn in DataLoader(Seeds(8), 4, num_workers=2, seed=3)]
    assert same(seeded, plain)


@behaviour("random numbers of the job")
def random_state_of_the_job(DataLoader: Any) -> None:
    """Random numbers that workers draw from random and numpy do not disturb the job's own generators."""
    before = random.getstate(), np.random.get_state()[1].tolist()
    drawn(DataLoader(Randoms(6), batch_size=2, num_workers=2))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
