"""Tests which parts of the user's own datasets are made once and kept, and which are made anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from batches import batches, content, ids
from user_jobs import NUMPY
from waiting import until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 48


def test_what_comes_before_the_transform_runs_once(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data, transform = ud.Numbers(N, log=log, pause=0.002), ud.Scaled(log=log)
    with coprep.DataLoader(data, 8, True, transform=transform, **NUMPY) as loader:
        for _ in range(2):
            assert sorted(ids(loader)) == list(range(N))
        before = Counter(ud.noted(log))
        for _ in range(2):
            assert sorted(ids(loader)) == list(range(N))
        calls = Counter(ud.noted(log))
    loaded = {what: count for what, count in calls.items() if what.startswith("dataset")}
    assert loaded == {what: before[what] for what in loaded}
    assert len(loaded) == N
    # Four samples are inspected before, and one per worker may be in preparation when the next epoch begins.
    assert sum(loaded.values()) <= N + 4 + 2
    assert all(calls[f"transform:{i}"] >= 4 for i in range(N))


def test_jobs_with_different_transforms_share_what_is_decoded(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data = ud.Numbers(N, log=log)
    with coprep.DataLoader(data, 8, True, transform=ud.Scaled(), **NUMPY) as first:
        for _ in range(2):
            assert sorted(ids(first)) == list(range(N))
        before = len(ud.noted(log))
        with coprep.DataLoader(data, 8, True, transform=ud.negated, **NUMPY) as second:
            (negated, labels), index = next(iter(second))
            assert (negated == -index[:, None]).all() and (labels == index).all()
            assert sorted(ids(second)) == list(range(N))
            status = coprep.status()
    assert len(status["streams"]) == 2
    (cache,) = status["caches"]
    assert cache["entries"] == N and cache["hits"] >= N
    # Only the samples that the second job inspected before it began were made again.
    assert len(ud.noted(log)) <= before + 4


def test_cached_values_are_those_that_were_made() -> None:
    """The transform works in place, and must not change the cached values."""
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "transform": ud.Scaled(), **NUMPY}
    uncached = batches(coprep.DataLoader(ud.Numbers(N, pause=0.002), cache="off", **options), 3)
    with coprep.DataLoader(ud.Numbers(N, pause=0.002), cache="decoded", **options) as loader:
        assert [content(batch) for _ in range(3) for batch in loader] == uncached
        # The hits include those of the epoch that is prepared next.
        until(lambda: coprep.status()["caches"][0]["hits"] >= 2 * N, "what was made is found")
    assert batches(coprep.DataLoader(ud.Numbers(N, pause=0.002), **{**options, "num_workers": 0}), 3) == uncached


def test_prepared_samples_run_no_code_again(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data = ud.Noisy(N, log=log, pause=0.002)
    with coprep.DataLoader(data, 8, cache="prepared", **NUMPY) as loader:
        for _ in range(2):
            assert ids(loader) == list(range(N))
        calls = Counter(ud.noted(log))
        # One sample is inspected before, and some may be in preparation when the next epoch begins.
        assert len(calls) == N and sum(calls.values()) <= N + 1 + 8
        third, fourth = ([content(batch) for batch in loader] for _ in range(2))
        assert third == fourth
        assert Counter(ud.noted(log)) == calls


# The timing decides whether a sample is in preparation at the epoch's border, so a single run may miss that case.
def test_prepared_samples_are_the_same_from_the_first_epoch_on() -> None:
    with coprep.DataLoader(ud.Noisy(N, pause=0.002), 8, cache="prepared", **NUMPY) as loader:
        first, *later = ([content(batch) for batch in loader] for _ in range(3))
    assert later == [first, first]


def test_prepared_samples_are_the_same_without_workers() -> None:
    options: dict[str, Any] = {"batch_size": 4, "cache": "prepared", "seed": 1, "framework": "numpy"}
    made = batches(coprep.DataLoader(ud.Noisy(12), num_workers=0, **options), 2)
    assert made[:3] == made[3:]


def test_prepared_samples_that_outgrow_their_room_still_come() -> None:
    with coprep.DataLoader(ud.Growing(24), 4, cache="prepared", collate_fn=list, timeout=20, **NUMPY) as loader:
        for _ in range(3):
            assert sum(len(samples) for samples, _ in loader) == 24


def test_prepared_samples_are_those_of_their_seed() -> None:
    def one(seed: int) -> list[bytes]:
        with coprep.DataLoader(ud.Noisy(12), 4, cache="prepared", seed=seed, **NUMPY) as loader:
            return [np.asarray(part).tobytes() for batch in loader for part in batch[0]]

    first = one(1)
    assert one(2) != first
    assert one(1) == first


def test_reuse_is_for_prepared_samples() -> None:
    with pytest.raises(ValueError, match="reuse keeps prepared samples"):
        coprep.DataLoader(ud.Numbers(4), reuse=2, cache="decoded")
