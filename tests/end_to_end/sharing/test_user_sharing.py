"""Tests sharing between processes on the user's own datasets, and the reasons that prevent it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
import user_datasets as ud
from batches import QUEUE
from coordinators import processes_of, stream
from jobs import Start, go, in_step, run_on, seen
from user_jobs import NUMPY, job
from waiting import until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 48


@pytest.mark.parametrize("count", [2, 4])
def test_processes_on_one_dataset_share_one_stream(start: Start, count: int) -> None:
    epochs = 32
    with coprep.DataLoader(ud.Numbers(N), batch_size=8, shuffle=True, **NUMPY) as watcher:
        assert watcher.seed >= 0 and len(watcher) == N // 8
        jobs = [job(start, f"Numbers({N})", epochs, 0, "step") for _ in range(count)]
        assert len(stream()["jobs"]) == count + 1
        in_step(*jobs, batches=epochs * N // 8)
        assert [seen(one) for one in jobs] == [[list(range(N))] * epochs] * count
        totals = stream()["totals"]
    assert totals["delivered"] >= count * epochs * N
    # The queues may have been filled before the next job came, and again at the end, when no job needs the samples.
    assert totals["prepared"] <= epochs * N + 2 * (count + 1) * QUEUE * 8


def test_a_job_may_join_in_mid_epoch(start: Start) -> None:
    first = job(start, f"Numbers({N})", 3, 0, "step", batch_size=4)
    in_step(first, batches=5)
    second = job(start, f"Numbers({N})", 3, 0, batch_size=4)
    assert len(stream()["jobs"]) == 2
    run_on(first)
    go(second)
    assert seen(first) == seen(second) == [list(range(N))] * 3


@pytest.mark.parametrize("seed", [1, 2])
def test_jobs_that_stop_early_take_nothing_from_the_others(start: Start, socket_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    jobs = [job(start, f"Numbers({N}, pause=0.001)", 5, 0.02, "mark") for _ in range(4)]
    until(lambda: len(stream()["worker_pids"]) == 2, "workers run")
    workers = stream()["worker_pids"]
    go(*jobs)
    for victim in rng.sample(jobs, 2):
        for _ in range(rng.randrange(12)):
            assert victim.line() == "batch"
        victim.kill()
        jobs.remove(victim)
    assert [seen(one) for one in jobs] == [[list(range(N))] * 5] * 2
    until(lambda: coprep.status()["streams"] == [], "the stream is closed")
    until(lambda: not set(workers) & set(processes_of(socket_path)), "the stream's workers end", 30)
    # The loaded dataset is kept for the next job, and so are the modules that were imported for it.
    assert len(processes_of(socket_path)) <= 3


def test_jobs_of_different_batch_sizes_share_a_stream(start: Start) -> None:
    sizes = (4, 7, 16, 64)
    jobs = [job(start, f"Numbers({N})", 3, 0.005, batch_size=size) for size in sizes]
    assert sorted(j["batch_size"] for j in stream()["jobs"]) == sorted(sizes)
    go(*jobs)
    assert [seen(one) for one in jobs] == [[list(range(N))] * 3] * len(sizes)


def one_epoch(loader: coprep.DataLoader, into: list[int]) -> Iterator[None]:
    for batch in loader:
        into += batch[-1].tolist()
        yield


def in_turn(*loaders: coprep.DataLoader) -> list[list[int]]:
    """Returns the ids of an epoch of each loader, in ascending order. The loaders take a batch each in turn."""
    taken: list[list[int]] = [[] for _ in loaders]
    running = [one_epoch(loader, into) for loader, into in zip(loaders, taken, strict=True)]
    while running:
        running = [one for one in running if next(one, "over") is None]
    return [sorted(ids) for ids in taken]


def test_folds_share_what_they_have_in_common() -> None:
    # An epoch is several times as long as a queue, so the first loader cannot have received all of it.
    size = 8 * QUEUE * 6
    folds = [[i for i in range(size) if i % 4 != k] for k in range(2)]
    loaders = [coprep.DataLoader(ud.Numbers(size), 6, True, subset=fold, **NUMPY) for fold in folds]
    assert [len(loader) for loader in loaders] == [size // 8] * 2
    for _ in range(2):
        assert in_turn(*loaders) == folds
    totals = stream()["totals"]
    assert totals["prepared"] < totals["delivered"]
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(
    ("part", "first", "second"),
    [
        ("dataset.pause", {"dataset": ud.Numbers(8, pause=0.01)}, {"dataset": ud.Numbers(8, pause=0.02)}),
        ("transform.by", {"transform": ud.Scaled(2)}, {"transform": ud.Scaled(3)}),
        ("transform", {"transform": ud.Scaled(2)}, {"transform": ud.negated}),
        ("shuffle", {"shuffle": True}, {"shuffle": False}),
        ("seed", {"seed": 1}, {"seed": 2}),
    ],
)
def test_status_names_what_differs(part: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    common = {"dataset": ud.Numbers(8), "batch_size": 4, **NUMPY}
    one, other = (coprep.DataLoader(**{**common, **own}) for own in (first, second))
    with one, other:
        assert isinstance(one.seed + other.seed, int)
        streams = coprep.status()["streams"]
        assert len(streams) == 2
        for status in streams:
            (differs,) = status["differs"]
            assert part in json.dumps(differs), differs
    with coprep.DataLoader(**{**common, **first}) as one, coprep.DataLoader(**{**common, **first}) as other:
        assert isinstance(one.seed + other.seed, int)
        assert stream()["differs"] == []
