"""Tests generators of random numbers that a dataset or its transform holds: other numbers for each sample."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import coprep
import numpy as np
import pytest
from coprep._fingerprint import fingerprint

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SAMPLES = 12
GLOBAL = np.random.default_rng(0)


class Crop:
    """A random transform such as MONAI's: with a generator of its own, ``R``."""

    def __init__(self, seed: int) -> None:
        self.R = np.random.RandomState(seed)

    def __call__(self, value: int) -> float:
        return value + float(self.R.uniform())

    def set_random_state(self, seed: int) -> None:
        self.R = np.random.RandomState(seed)


class Shared(Crop):
    """A transform whose class has the generator, as MONAI's have until one is set."""

    R = np.random.RandomState(0)

    def __init__(self, seed: int) -> None:
        # The generator of the class stands for that of each instance.
        del seed


class Slots:
    __slots__ = ("generator",)

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)


class Dataset(data.Dataset[float]):
    """Samples that a function draws from what the dataset holds."""

    def __init__(self, held: Any, draw: Callable[[Any], float]) -> None:
        self.held = held
        self.draw = draw

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> float:
        return self.draw(self.held)


def in_closure(seed: int) -> Callable[[], float]:
    generator = random.Random(seed)
    return lambda: generator.random()


def bits(seed: int) -> Any:
    return np.random.Generator(np.random.MT19937(seed))


HELD: dict[str, tuple[Callable[[int], Any], Callable[[Any], float]]] = {
    "random.Random": (random.Random, lambda held: held.random()),
    "numpy.random.RandomState": (np.random.RandomState, lambda held: held.random_sample()),
    "numpy.random.Generator": (np.random.default_rng, lambda held: held.random()),
    "numpy.random.Generator of other bits": (bits, lambda held: held.random()),
    "numpy.random.RandomState of other bits": (
        lambda seed: np.random.RandomState(np.random.PCG64(seed)),
        lambda held: held.random_sample(),
    ),
    "bits alone": (np.random.Philox, lambda held: np.random.Generator(held).random()),
    "torch.Generator": (
        lambda seed: torch.Generator().manual_seed(seed),
        lambda held: float(torch.rand((), generator=held, dtype=torch.float64)),
    ),
    "a transform's": (Crop, lambda held: held(0)),
    "a transform's class": (Shared, lambda held: held(0)),
    "in a list": (lambda seed: [1, [Crop(seed)]], lambda held: held[1][0](0)),
    "in a dict": (lambda seed: {"a": Crop(seed)}, lambda held: held["a"](0)),
    "one of many": (lambda seed: [Crop(seed + i) for i in range(200)], lambda held: held[150](0)),
    "behind much data": (
        lambda seed: {
            "rows": [{"box": [i + j / 64 for j in range(64)]} for i in range(300)],
            "crops": [[[Crop(seed)]]],
        },
        lambda held: held["crops"][0][0][0](0),
    ),
    "in slots": (Slots, lambda held: held.generator.random()),
    "in a closure": (in_closure, lambda held: held()),
    "in a partial": (lambda seed: functools.partial(Crop.__call__, Crop(seed), 0), lambda held: held()),
    "a method": (lambda seed: random.Random(seed).random, lambda held: held()),
    "a global variable": (lambda _: None, lambda held: GLOBAL.random()),
    "two at once": (
        lambda seed: (random.Random(seed), random.Random(seed)),
        lambda held: held[0].random() - held[1].random(),
    ),
}


def numbers(loader: Any) -> list[float]:
    return [float(x) for batch in loader for x in batch]


@pytest.mark.parametrize("held", HELD)
def test_each_sample_has_other_numbers_wherever_it_is_made(held: str) -> None:
    make, draw = HELD[held]
    found = []
    for workers, seed in ((2, 1), (0, 1), (2, 1), (2, 2)):
        with coprep.DataLoader(Dataset(make(seed), draw), 2, num_workers=workers, seed=5) as loader:
            found.append([numbers(loader), numbers(loader)])
    first, second = found[0]
    assert len({*first, *second}) == 2 * SAMPLES
    # The loader's seed decides, and not that of the generator.
    assert found == [found[0]] * 4
    with coprep.DataLoader(Dataset(make(1), draw), 2, num_workers=1, seed=6) as loader:
        assert not {*numbers(loader)} & {*first}


@pytest.mark.parametrize("held", HELD)
def test_seeds_of_generators_do_not_count(held: str) -> None:
    make, draw = HELD[held]
    used = Dataset(make(1), draw)
    used[0]
    assert dict(fingerprint({"dataset": used})) == dict(fingerprint({"dataset": Dataset(make(2), draw)}))


def test_kinds_of_generators_count() -> None:
    draw = HELD["random.Random"][1]
    kinds = [random.Random(1), np.random.RandomState(1), np.random.default_rng(1)]
    found = {str(fingerprint({"dataset": Dataset(held, draw)})) for held in kinds}
    assert len(found) == len(kinds)


def seeds_dataset(number: int) -> None:
    """Seeds the transform of the dataset, as ``monai.data.utils.worker_init_fn`` does."""
    info = data.get_worker_info()
    assert info is not None
    info.dataset.held.set_random_state(info.seed % 2**32)


def test_a_worker_init_fn_that_seeds_a_transform_changes_nothing() -> None:
    found = []
    for workers in (1, 2):
        dataset = Dataset(Crop(0), lambda held: held(0))
        with coprep.DataLoader(dataset, 2, num_workers=workers, worker_init_fn=seeds_dataset, seed=5) as loader:
            found.append(numbers(loader) + numbers(loader))
    assert found[0] == found[1] and len(set(found[0])) == 2 * SAMPLES


class Lazy(Dataset):
    """A dataset that makes its generator when it needs one."""

    def __init__(self) -> None:
        super().__init__(None, lambda held: held.random())

    def __getitem__(self, i: int) -> float:
        self.held = self.held or random.Random()
        return super().__getitem__(i)


def test_a_generator_that_is_made_in_a_worker_is_seeded_too() -> None:
    found = []
    for _ in range(2):
        with coprep.DataLoader(Lazy(), 1, num_workers=1, seed=5, persistent_workers=True) as loader:
            found.append(numbers(loader) + numbers(loader))
    # The first sample of a worker has the generator as the dataset made it.
    assert found[0][SAMPLES:] == found[1][SAMPLES:] and len(set(found[0])) == 2 * SAMPLES


class Crops:
    """The random part of a preparation."""

    def __init__(self, seed: int) -> None:
        self.crop = Crop(seed)

    def __call__(self, value: int) -> float:
        return self.crop(value)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generator_of_a_separate_transform(workers: int) -> None:
    common: dict[str, Any] = {"batch_size": 2, "num_workers": workers, "seed": 5, "cache": "decoded"}
    with coprep.DataLoader(list(range(SAMPLES)), transform=Crops(1), **common) as loader:
        first, second = numbers(loader), numbers(loader)
    assert [int(x) for x in first] == [int(x) for x in second] == list(range(SAMPLES))
    assert len({x % 1 for x in first + second}) == 2 * SAMPLES


class Sampled(data.IterableDataset[float]):
    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)

    def __iter__(self) -> Any:
        return (self.generator.random() for _ in range(SAMPLES))


def test_the_generator_of_an_iterable_dataset_is_seeded_for_each_epoch() -> None:
    found = []
    for seed in (1, 2):
        with coprep.DataLoader(Sampled(seed), 2, cohort=f"alone {seed}", cohort_size=1, seed=5) as loader:
            found.append([numbers(loader), numbers(loader)])
    assert found[0] == found[1]
    assert len({*found[0][0], *found[0][1]}) == 2 * SAMPLES
