"""Tests jobs that stop reading for long beside one that joins later, with fewer buffers than all of them could use."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import coprep
import pytest
import user_datasets as ud
from batches import ids
from coordinators import stream
from image_jobs import N, job, whole
from jobs import Start, go, seen
from waiting import stop, until

LIMIT = 40.0
"""Seconds after which a job gives up waiting for a batch. Jobs in these tests pause until the others are done."""
OPTIONS: dict[str, Any] = {"batch_size": 16, "shuffle": True, "framework": "numpy", "with_index": True}


class Reader:
    """A job of one rank, or one rank of a job, in this process. It holds the batch that it read last."""

    def __init__(self, data: Any, **options: Any) -> None:
        self.loader: coprep.DataLoader = coprep.DataLoader(data, timeout=LIMIT, **{**OPTIONS, **options})
        len(self.loader)  # attaches
        self.batches: Iterator[Any] = iter(())
        self.held: Any = None
        self.epochs: list[list[int]] = []
        self.errors: list[int] = []

    def begin(self) -> None:
        self.batches = iter(self.loader)
        self.epochs.append([])

    def read(self, batches: int) -> None:
        for _ in range(batches):
            assert self.step(), "the epoch is over"

    def step(self) -> bool:
        """Takes the next batch. Returns `False` if the epoch is over."""
        while True:
            try:
                self.held = next(self.batches)
            except StopIteration:
                self.held = None
                return False
            except ud.Broken as error:
                self.errors.append(error.id)
                continue
            self.epochs[-1] += self.held[-1].tolist()
            return True

    def finish(self) -> None:
        while self.step():
            pass


@pytest.fixture
def few_buffers(socket_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets a staging area so small that there are as few buffers as possible."""
    monkeypatch.setenv("COPREP_STAGING", "200K")


@contextlib.contextmanager
def paused(count: int, data: Any, **options: Any) -> Iterator[list[Reader]]:
    """Yields jobs in mid-epoch. After the block they continue, get each sample once, and then leave."""
    readers = [Reader(data, **options) for _ in range(count)]
    for at, reader in enumerate(readers):
        reader.begin()
        reader.read(1 + at % 3)
    yield readers
    for reader in readers:
        reader.finish()
        reader.begin()
        reader.finish()
        assert [sorted(epoch) for epoch in reader.epochs] == [list(range(len(data)))] * 2
        reader.loader.close()


@pytest.mark.parametrize("count", [3, 4, 5, 6, 9, 10])
def test_jobs_that_pause_do_not_starve_one_that_joins(pipeline: coprep.Pipeline, few_buffers: None, count: int) -> None:
    with paused(count, pipeline):
        # This is the fewest that the coordinator makes for a stream.
        assert stream()["buffers"] == 12
        with coprep.DataLoader(pipeline, timeout=LIMIT, **OPTIONS) as train:
            assert [sorted(ids(train)) for _ in range(3)] == whole(3)


def test_jobs_that_never_read_again_stop_nobody(pipeline: coprep.Pipeline) -> None:
    sleepers = [Reader(pipeline) for _ in range(40)]
    for sleeper in sleepers:
        sleeper.begin()
        sleeper.read(1)
    # This is the most that the coordinator makes for a stream.
    assert stream()["buffers"] == 64
    with coprep.DataLoader(pipeline, timeout=LIMIT, **OPTIONS) as train:
        assert [sorted(ids(train)) for _ in range(3)] == whole(3)
    for sleeper in sleepers:
        sleeper.loader.close()


@pytest.mark.parametrize("ends", [signal.SIGCONT, signal.SIGKILL])
def test_jobs_that_are_stopped_starve_nobody(
    pipeline: coprep.Pipeline, start: Start, few_buffers: None, ends: signal.Signals
) -> None:
    """Jobs are stopped at any point: between two batches, or asleep while they wait for one."""
    jobs = [job(start, pipeline, 16, 40, 0.001 * at) for at in range(6)]
    go(*jobs)
    until(lambda: all(one["delivered"] > N for one in stream()["jobs"]), "all of them are at work")
    for one in jobs:
        stop(one.process.pid)
    with coprep.DataLoader(pipeline, timeout=LIMIT, **OPTIONS) as train:
        assert [sorted(ids(train)) for _ in range(3)] == whole(3)
    for one in jobs:
        one.process.send_signal(ends)
    if ends == signal.SIGCONT:
        assert [seen(one) for one in jobs] == [whole(40)] * 6
        return
    until(lambda: coprep.status()["streams"] == [], "the killed jobs are forgotten")


def test_ranks_that_pause_together_starve_nobody(pipeline: coprep.Pipeline, few_buffers: None) -> None:
    groups = [
        [Reader(pipeline, batch_size=10, rank=rank, world_size=2, group=f"g{group}") for rank in range(2)]
        for group in range(3)
    ]
    for ranks in groups:
        for reader in ranks:
            reader.begin()
        for _ in range(3):
            for reader in ranks:
                reader.read(1)
    with coprep.DataLoader(pipeline, timeout=LIMIT, **OPTIONS) as train:
        assert [sorted(ids(train)) for _ in range(3)] == whole(3)
    for ranks in groups:
        # Three of the ten steps of this epoch are already done.
        for _ in range(7):
            for reader in ranks:
                reader.read(1)
        assert [reader.step() for reader in ranks] == [False, False]
        assert sorted(ranks[0].epochs[0] + ranks[1].epochs[0]) == list(range(N))
        for reader in ranks:
            reader.loader.close()


def test_in_relaxed_order_nothing_is_lost_or_repeated(few_buffers: None) -> None:
    data = ud.Numbers(N, slow=dict.fromkeys(range(0, N, 23), 0.1))
    with paused(5, data, order="relaxed", num_workers=2), Reader(data, order="relaxed", num_workers=2).loader as train:
        assert [sorted(ids(train)) for _ in range(2)] == whole(2)


def test_each_error_is_raised_once(few_buffers: None) -> None:
    bad = list(range(3, N, 7))
    data = ud.Faulty(N, bad, ud.fail)
    readers = [Reader(data, num_workers=2) for _ in range(5)]
    for at, reader in enumerate(readers):
        reader.begin()
        reader.read(1 + at)
    joiner = Reader(data, num_workers=2)
    for reader in [joiner, *readers]:
        if reader is joiner:
            reader.begin()
        reader.finish()
        assert sorted(reader.errors) == bad
        assert sorted(reader.epochs[0]) == [i for i in range(N) if i not in bad]
        reader.loader.close()


def test_a_cohort_goes_on_with_its_sequence(pipeline: coprep.Pipeline, few_buffers: None) -> None:
    """A member that pauses holds up its cohort, but no other job."""
    with coprep.DataLoader(pipeline, seed=5, **OPTIONS) as alone:
        expected = ids(alone)
    cohort: dict[str, Any] = {"seed": 5, "cohort": "c", "cohort_size": 3}
    members = [Reader(pipeline, **cohort) for _ in range(3)]
    for member in members:
        member.begin()
        member.read(2)
    with paused(3, pipeline), coprep.DataLoader(pipeline, timeout=LIMIT, **OPTIONS) as train:
        assert [sorted(ids(train)) for _ in range(2)] == whole(2)
    # The members wait for each other, so each needs a thread.
    threads = [threading.Thread(target=member.finish) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert [member.epochs[0] for member in members] == [expected] * 3
    for member in members:
        member.loader.close()
