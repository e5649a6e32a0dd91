"""Tests parts of a dataset (``torch.utils.data.Subset``): as PyTorch gives them, and shared like the dataset itself."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import coprep
import pytest
import torch
from batches import QUEUE
from coordinators import stream
from torch.utils import data as torch_data
from waiting import until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 24


class Numbers:
    """Each sample tells its id, and the type of the index that was given."""

    def __init__(self, samples: int = N) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: Any) -> tuple[int, str]:
        number = int(index)
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return number % len(self), type(index).__name__


class AtOnce(Numbers):
    def __getitems__(self, indices: list[Any]) -> list[tuple[int, str]]:
        return [(self[index][0] + 100, self[index][1]) for index in indices]


class Told(torch_data.Dataset[tuple[int, Any]]):
    """Each sample tells how many samples the dataset of its worker has."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, Any]:
        info = torch_data.get_worker_info()
        return index, -1 if info is None else len(info.dataset)  # type: ignore[arg-type]


class Derived(torch_data.Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)[0], "derived"

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def with_method(subset: Any) -> Any:
    subset.__getitems__ = lambda indices: [(index, "by a method of its own") for index in indices]
    return subset


def named(subset: Any) -> Any:
    subset.classes = ["a", "b"]
    return subset


def array(*numbers: int, dtype: Any = "int64") -> Any:
    import numpy as np

    return np.array(numbers, dtype)


Subset = torch_data.Subset
SHARED: dict[str, Callable[[], Any]] = {
    "a range": lambda: Subset(Numbers(), range(3, 20, 2)),
    "a descending range, shuffled": lambda: (Subset(Numbers(), range(20, 3, -1)), {"shuffle": True}),
    "a list": lambda: Subset(Numbers(), [1, 5, 7, 23]),
    "a tuple": lambda: Subset(Numbers(), (1, 5, 7)),
    "one sample": lambda: Subset(Numbers(), [9]),
    "all samples": lambda: Subset(Numbers(), list(range(N))),
    "an array": lambda: Subset(Numbers(), array(2, 3, 11)),
    "an array of int32": lambda: Subset(Numbers(), array(2, 3, 11, dtype="int32")),
    "an array of unsigned bytes": lambda: Subset(Numbers(), array(2, 3, 11, dtype="uint8")),
    "a list of NumPy's integers": lambda: Subset(Numbers(), list(array(2, 3, 11))),
    "a tensor": lambda: Subset(Numbers(), torch.tensor([0, 4, 6])),
    "a tensor of int32": lambda: Subset(Numbers(), torch.tensor([0, 4, 6], dtype=torch.int32)),
    "nested": lambda: Subset(Subset(Numbers(), range(2, 22, 2)), [0, 3, 9]),
    "nested, of other types": lambda: Subset(Subset(Numbers(), array(4, 5, 8)), [0, 2]),
    "nested three times": lambda: Subset(Subset(Subset(Numbers(), range(20)), range(5, 20)), [1, 3]),
    "random order": lambda: (Subset(Numbers(), [7, 2, 9, 1]), {"shuffle": True}),
    "random_split": lambda: (parts()[0], {"shuffle": True}),
    "random_split by fractions": lambda: (
        torch_data.random_split(Numbers(), [0.75, 0.25], torch.Generator().manual_seed(1))[1],
        {"shuffle": True},
    ),
    "a dataset that makes samples at once": lambda: Subset(AtOnce(), [3, 4]),
    "samples one by one": lambda: (Subset(AtOnce(), [3, 4]), {"batch_size": None}),
    "an attribute of its own": lambda: named(Subset(Numbers(), [1, 2])),
    "a SequentialSampler": lambda: of_sampler(Subset(Numbers(), [1, 2, 6]), torch_data.SequentialSampler),
    "a RandomSampler": lambda: of_sampler(Subset(Numbers(), [6, 2, 1]), torch_data.RandomSampler),
    "a DistributedSampler of one rank": lambda: (
        (part := Subset(Numbers(), [6, 2, 1])),
        {"sampler": torch_data.DistributedSampler(part, 1, 0)},
    ),
    "drop_last": lambda: (Subset(Numbers(), [1, 2, 6, 7]), {"drop_last": True}),
    "samples of this process": lambda: (Subset(Numbers(), array(1, 2, 6)), {"num_workers": 0}),
    "spawned workers": lambda: (Subset(Numbers(), torch.tensor([1, 2])), {"multiprocessing_context": "spawn"}),
    "own collation": lambda: (Subset(Numbers(), [3, 5]), {"collate_fn": tuple}),
}
"""Parts whose samples are shared with jobs on the whole dataset, with options of the loader."""
APART: dict[str, Callable[[], Any]] = {
    "a repeat": lambda: Subset(Numbers(), [1, 2, 2, 5]),
    "all repeated": lambda: (Subset(Numbers(), [3, 3, 3]), {"shuffle": True}),
    "a negative id": lambda: Subset(Numbers(), [0, -1]),
    "no order": lambda: Subset(Numbers(), [5, 1, 7]),
    "a permutation": lambda: Subset(Numbers(), list(range(N))[::-1]),
    "random_split without shuffle": lambda: parts()[1],
    "floats": lambda: Subset(Numbers(), [1.0, 2.0]),  # type: ignore[list-item]
    "booleans": lambda: Subset(Numbers(), [True, False]),
    "integers of two types": lambda: Subset(Numbers(), [0, *array(2, 3)]),
    "a nested negative id": lambda: Subset(Subset(Numbers(), [4, 5, 6]), [-3, -1]),
    "a nested repeat": lambda: Subset(Subset(Numbers(), [4, 4, 6]), [0, 1]),
    "a negative id among others": lambda: Subset(Numbers(), [0, 4, -8]),
    "a class of one's own": lambda: Derived(Numbers(), [1, 2]),
    "a method of its own": lambda: with_method(Subset(Numbers(), [1, 2])),
    "code that looks at the worker's dataset": lambda: Subset(Told(), [1, 2, 3]),
    "weights": lambda: (
        Subset(Numbers(), [1, 2, 3]),
        {"sampler": torch_data.WeightedRandomSampler([0.0, 1.0, 0.0], 5)},
    ),
    "draws": lambda: (
        (part := Subset(Numbers(), [4])),
        {"sampler": torch_data.RandomSampler(part, replacement=True, num_samples=3)},
    ),
    "a SubsetRandomSampler": lambda: (
        Subset(Numbers(), [4, 5, 6]),
        {"sampler": torch_data.SubsetRandomSampler([0, 2])},
    ),
    "a part of a concatenation": lambda: torch_data.ConcatDataset([Subset(Numbers(), [1]), Subset(Numbers(), [2])]),
    "a dictionary as dataset": lambda: Subset({3: (3, "a"), 5: (5, "b")}, [3, 5]),  # type: ignore[arg-type]
}
"""Parts that stay datasets of their own, since their samples or their order would be others."""


def parts() -> list[Any]:
    return torch_data.random_split(Numbers(), [18, 6], torch.Generator().manual_seed(3))


def of_sampler(part: Any, sampler: Any) -> Any:
    return part, {"sampler": sampler(part)}


def made(kind: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    given = kind()
    dataset, options = given if type(given) is tuple else (given, {})
    return dataset, {"batch_size": 2, "num_workers": 2, **options}


def taken(loader: Any) -> list[Any]:
    """Returns the batches of two passes, each sorted if the order is random."""
    found = []
    for _ in range(2):
        # A sampler of one's own, or the end of a dataset, may have an error as its result.
        try:
            batches = [[str(part) for part in batch] for batch in loader]
        except Exception as error:
            batches = [[type(error).__name__]]
        found.append(batches)
    return found


def flat(passes: list[Any]) -> Any:
    """Returns the samples of each pass, whatever their order."""
    samples = []
    for batches in passes:
        text = [part.replace("tensor(", "").strip("[]()").split(", ") for batch in batches for part in batch]
        samples.append(sorted(word.strip("[]() ") for words in text for word in words))
    return samples


@pytest.mark.parametrize("name", [*SHARED, *APART])
def test_samples_are_those_of_pytorch(name: str) -> None:
    kind = {**SHARED, **APART}[name]
    dataset, options = made(kind)
    expected = taken(torch_data.DataLoader(dataset, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", coprep.UnsharedWarning)
        with coprep.DataLoader(dataset, **options) as loader:
            assert len(loader) == len(torch_data.DataLoader(dataset, **options))
            found = taken(loader)
    is_random = options.get("shuffle") or type(options.get("sampler", 0)) not in (int, torch_data.SequentialSampler)
    assert flat(found) == flat(expected) if is_random else found == expected


def stream_of(loader: Any) -> int:
    number: int = loader._native.attached()["stream"]
    return number


@pytest.mark.parametrize("name", [*SHARED, *APART])
def test_parts_share_with_the_whole_dataset_if_their_samples_are_the_same(name: str) -> None:
    part, options = made({**SHARED, **APART}[name])
    common = {**options, "shuffle": type(options.get("sampler", 0)) not in (int, torch_data.SequentialSampler)}
    common |= {"shuffle": options["shuffle"]} if "shuffle" in options else {}
    sampler = common.pop("sampler", None)
    common |= {"seed": sampler.seed} if isinstance(sampler, torch_data.DistributedSampler) else {}
    innermost = part
    while isinstance(innermost, Subset) and isinstance(innermost.dataset, Subset):
        innermost = innermost.dataset
    whole: Any = Numbers()
    if name in SHARED:
        # The dataset gets an index of the type that the innermost part has.
        is_plain = type(innermost.indices[0]) is int
        whole = innermost.dataset if is_plain else Subset(innermost.dataset, innermost.indices)
    with coprep.DataLoader(whole, **common) as one, coprep.DataLoader(part, **options) as other:
        assert len(one) > 0
        assert (stream_of(one) == stream_of(other)) == (name in SHARED)


def numbers(loader: Any) -> list[int]:
    return sorted(int(number) for batch in loader for number in batch[0])


def test_folds_are_prepared_once() -> None:
    """Five folds, each by another way to say it, prepare the union of their samples once."""
    base, ids = Numbers(400), list(range(400))
    random.Random(1).shuffle(ids)
    folds = [sorted(set(ids) - set(ids[k * 80 : (k + 1) * 80])) for k in range(5)]
    common: dict[str, Any] = {"batch_size": 20, "num_workers": 1}
    loaders = [
        coprep.DataLoader(Subset(base, folds[0]), shuffle=True, **common),
        coprep.DataLoader(Subset(Subset(base, folds[1]), range(320)), shuffle=True, **common),
        coprep.DataLoader(base, sampler=torch_data.SubsetRandomSampler(folds[2]), **common),
        coprep.DataLoader(base, subset=folds[3], shuffle=True, **common),
        coprep.DataLoader(torch_data.random_split(base, [320, 80])[0], shuffle=True, **common),
    ]
    assert len(set(map(stream_of, loaders))) == 1
    epochs = 8
    for _ in range(epochs):
        passes = [iter(loader) for loader in loaders]
        found: list[list[int]] = [[] for _ in loaders]
        for _ in range(16):
            for one, got in zip(passes, found, strict=True):
                got += next(one)[0].tolist()
        assert [sorted(got) for got in found[:4]] == folds[:4]
        assert len(set(found[4])) == 320
    # By themselves the folds would have 1,600 samples in each epoch. Some are prepared ahead.
    assert stream()["totals"]["prepared"] <= epochs * 400 + 2 * 6 * QUEUE * 20
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_part_that_changes_between_passes_is_followed(workers: int) -> None:
    part = Subset(Numbers(), [1, 2, 3])
    with coprep.DataLoader(part, 2, num_workers=workers) as loader:
        assert numbers(loader) == [1, 2, 3]
        part.indices = [2, 5, 9, 11]
        assert (numbers(loader), len(loader)) == ([2, 5, 9, 11], 2)
        part.indices = [9, 5, 5]
        assert [int(n) for batch in loader for n in batch[0]] == [9, 5, 5]
        part.indices = [5, 9]
        assert numbers(loader) == [5, 9]
        part.dataset = Numbers(6)
        part.indices = range(6)
        assert numbers(loader) == list(range(6))
        assert loader.epoch == 5


def test_ids_and_errors_have_the_positions_of_the_part() -> None:
    class Broken(Numbers):
        def __getitem__(self, index: Any) -> Any:
            if index == 9:
                raise ValueError("nine")
            return super().__getitem__(index)

    part = Subset(Broken(), [11, 4, 9, 2])
    for workers in (0, 1):
        common: dict[str, Any] = {"shuffle": True, "with_index": True, "num_workers": workers}
        with coprep.DataLoader(part, 1, on_error="skip", **common) as loader:
            with pytest.warns(coprep.SkippedSampleWarning, match="sample 2 is left out"):
                found = {int(ids[0]): int(batch[0][0]) for batch, ids in loader}
            assert found == {0: 11, 1: 4, 3: 2}
        with coprep.DataLoader(part, 1, **common) as loader, pytest.raises(ValueError, match="nine") as caught:
            list(loader)
        if workers:
            cause = caught.value.__cause__
            assert isinstance(cause, coprep.SampleError) and cause.id == 2
            assert "sample 2 (9 of the whole dataset) failed" in str(cause)
            assert pickle.loads(pickle.dumps(cause)).id == 2


def test_the_slowest_samples_have_the_positions_of_the_part() -> None:
    with coprep.DataLoader(Subset(Numbers(), [20, 21, 22]), 1, num_workers=1) as loader:
        list(loader)
        until(lambda: loader.stats(slow=5)["slow"] != [], "costs are known")
        assert {slow["id"] for slow in loader.stats(slow=5)["slow"]} <= {0, 1, 2}


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_part_is_resumed(shuffle: bool) -> None:
    def loader(indices: Any, **options: Any) -> Any:
        return coprep.DataLoader(Subset(Numbers(), indices), 2, num_workers=1, shuffle=shuffle, seed=4, **options)

    with loader([3, 4, 7, 8, 9, 10]) as first:
        batches = iter(first)
        given = [int(n) for n in next(batches)[0]]
        state = json.loads(json.dumps(first.state_dict()))
        rest = [int(n) for batch in batches for n in batch[0]]
    assert state["numbering"] == "dataset"
    with loader([3, 4, 7, 8, 9, 10]) as second:
        second.load_state_dict(state)
        assert [int(n) for batch in second for n in batch[0]] == rest
        assert numbers(second) == [3, 4, 7, 8, 9, 10] == sorted(given + rest)
    with loader([3, 3, 3]) as other, pytest.raises(ValueError, match="resume with the same indices"):
        other.load_state_dict(state)


def test_a_state_of_positions_is_resumed_by_positions() -> None:
    """States of earlier versions hold the positions of samples in the part."""
    indices = [3, 4, 7, 8, 9, 10]
    # This class stays a dataset of its own.
    with coprep.DataLoader(Derived(Numbers(), indices), 2, num_workers=1, seed=4) as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
    assert "numbering" not in state
    with coprep.DataLoader(Subset(Numbers(), indices), 2, num_workers=1, seed=4) as second:
        second.load_state_dict(state)
        assert numbers(second) == indices[2:]
        assert numbers(second) == indices


def test_selections_of_hugging_face_share(tmp_path: Any) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"id": list(range(40)), "text": [f"text {i}" for i in range(40)]})

    def ids(batches: Any) -> list[int]:
        return [int(n) for batch in batches for n in batch["id"]]

    in_arrays = whole.with_format("numpy")
    doubled = whole.with_transform(lambda rows: {"id": [2 * n for n in rows["id"]]})
    kinds: dict[str, Any] = {
        "select": whole.select([3, 5, 9, 30]),
        "filter": whole.filter(lambda row: row["id"] % 3 == 0),
        "a split": whole.train_test_split(0.2, seed=1)["train"],
        "shuffle": whole.shuffle(seed=3),
        "nested": Subset(whole.select([1, 3, 5, 7, 9]), [0, 2, 4]),
        "a format": in_arrays.select([2, 4]),
        "a transform": doubled.select([7, 5]),
    }
    for shuffle in (True, False):
        for name, part in kinds.items():
            loader = coprep.DataLoader(part, 3, shuffle=shuffle, num_workers=1, seed=1)
            expected = ids(torch_data.DataLoader(part, 3))
            like: Any = {"a format": in_arrays, "a transform": doubled}.get(name, whole)
            with loader, coprep.DataLoader(like, 3, shuffle=shuffle, num_workers=1, seed=1) as other:
                found = [ids(loader) for _ in range(2)]
                is_same = stream_of(loader) == stream_of(other)
                assert is_same == (shuffle or expected == sorted(expected)), name
            assert [sorted(one) for one in found] == [sorted(expected)] * 2
            assert shuffle or found == [expected] * 2


@pytest.fixture(autouse=True)
def same_generator() -> Iterator[None]:
    torch.manual_seed(0)
    yield
