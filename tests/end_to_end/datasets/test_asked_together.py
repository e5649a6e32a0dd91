"""Tests datasets that are asked for all samples of a minibatch in one call, by ``__getitems__``."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from batches import content, ids
from user_datasets import note, noted
from user_jobs import NUMPY

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 90


class Beside:
    """Sample i is i, the number and the sum of the ids that it was asked for with, and a random number of the call."""

    def __init__(self, log: Path | None = None, fails: int | None = None, ends_once: Path | None = None) -> None:
        self.log = None if log is None else str(log)
        self.fails = fails
        self.ends_once = ends_once

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        raise AssertionError("it was asked for a single sample")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert all(type(i) is int for i in indices)
        note(self.log, len(indices))
        if self.fails in indices:
            raise LookupError(f"sample {self.fails} is not there")
        if self.ends_once is not None and 7 in indices and not self.ends_once.exists():
            self.ends_once.touch()
            os._exit(3)
        draw = random.random() + np.random.random()
        return [(i, len(indices), sum(indices), draw) for i in indices]


def doubled(sample: Any) -> Any:
    i, count, total, draw = sample
    return i, count, total, draw, random.random()


def batches_of(loader: coprep.DataLoader) -> Iterator[tuple[list[int], list[int], list[int]]]:
    for (_, count, total, *_), index in loader:
        yield index.tolist(), count.tolist(), total.tolist()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 8, 70])
def test_a_minibatch_is_asked_for_in_one_call(tmp_path: Path, batch_size: int, workers: int) -> None:
    options: dict[str, Any] = {**NUMPY, "num_workers": workers}
    calls = 0
    with coprep.DataLoader(Beside(tmp_path / "calls"), batch_size, True, **options) as loader:
        for _ in range(2):
            given: list[int] = []
            for index, count, total in batches_of(loader):
                assert set(count) == {len(index)} and set(total) == {sum(index)}
                given += index
                calls += 1
            assert sorted(given) == list(range(N))
    # The first look at the dataset calls twice more, and a few minibatches of the third epoch are made ahead.
    assert len(noted(tmp_path / "calls")) <= max(1.05 * calls, calls + 2) + 3


def test_random_numbers_do_not_depend_on_the_worker() -> None:
    for transform in (None, doubled):
        found = []
        for workers in (0, 2):
            options: dict[str, Any] = {**NUMPY, "num_workers": workers, "transform": transform}
            with coprep.DataLoader(Beside(), 8, True, seed=1, **options) as loader:
                found.append([content(batch) for _ in range(2) for batch in loader])
        assert found[0] == found[1]


def test_jobs_of_other_batch_sizes_share_what_was_made() -> None:
    with (
        coprep.DataLoader(Beside(), 12, True, **NUMPY) as first,
        coprep.DataLoader(Beside(), 5, True, **NUMPY) as second,
    ):
        assert first.seed == second.seed
        epochs = [iter(first), iter(second)]
        taken: list[list[Any]] = [[], []]
        for _ in range(N // 5):
            for at, epoch in enumerate(epochs):
                if at or len(taken[0]) < N:
                    (_, count, *_), index = next(epoch)
                    taken[at] += index.tolist()
                    # Batches of 5 are cut from what calls for minibatches of 12 made. The last one of an epoch has 6.
                    assert set(count.tolist()) <= {12, N % 12}
    assert sorted(taken[0]) == sorted(taken[1]) == list(range(N))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sample_that_fails_is_told_and_the_others_come(workers: int) -> None:
    options: dict[str, Any] = {**NUMPY, "num_workers": workers}
    with (
        coprep.DataLoader(Beside(fails=11), 8, on_error="skip", **options) as loader,
        pytest.warns(coprep.SkippedSampleWarning, match="sample 11"),
    ):
        assert sorted(ids(loader)) == [i for i in range(N) if i != 11]
    with coprep.DataLoader(Beside(fails=11), 8, **options) as loader, pytest.raises(LookupError, match="sample 11"):
        ids(loader)


class InGroups(Beside):
    """Samples of which no more than two can be made at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if len(indices) > 2:
            raise LookupError(f"there are no groups of {len(indices)}")
        return super().__getitems__(indices)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_only_the_call_has_is_raised(workers: int) -> None:
    """Samples that are asked for alone would be others than those of the call."""
    options: dict[str, Any] = {**NUMPY, "num_workers": workers}
    with (
        coprep.DataLoader(InGroups(), 8, **options) as loader,
        pytest.raises(LookupError, match="there are no groups of 8"),
    ):
        ids(loader)


def test_all_samples_come_if_a_worker_ends_in_the_call(tmp_path: Path) -> None:
    with coprep.DataLoader(Beside(ends_once=tmp_path / "ended"), 8, **NUMPY) as loader:
        assert ids(loader) == list(range(N))
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("options", [{"transform": doubled, "cache": "decoded"}, {"cache": "prepared"}])
def test_cached_samples_are_asked_for_one_by_one(tmp_path: Path, options: dict[str, Any]) -> None:
    dataset = Beside(tmp_path / "calls")
    with coprep.DataLoader(dataset, 8, True, **options, **NUMPY) as loader:
        for _ in range(2):
            assert all(set(count) == {1} for _, count, _ in batches_of(loader))
    assert len(noted(tmp_path / "calls")) <= N + 10


def test_a_subset_that_asks_for_single_samples_is_not_asked_for_several() -> None:
    data = pytest.importorskip("torch.utils.data")
    from coprep._program import Program

    def asks_for_several(dataset: Any) -> bool:
        program = Program(dataset, None, None, whole=False, batched=True)
        assert program.fetch()(3) is not None
        return program.fetch_several() is not None

    plain, several = data.TensorDataset(*(pytest.importorskip("torch").arange(9),)), Beside()
    assert not asks_for_several(plain)
    assert not asks_for_several(data.Subset(plain, range(9)))
    assert not asks_for_several(data.Subset(data.Subset(plain, range(9)), range(5)))
    assert asks_for_several(several)
    assert asks_for_several(data.Subset(several, range(9)))
    assert asks_for_several(data.Subset(data.Subset(several, range(9)), range(5)))
