"""Tests ranks that leave a job in order while another rank has batches to take.

Then the coordinator, or the process that workers were forked from, is killed. The other rank must get the rest of the
batches, and must not wait for the rank that left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import coprep
import pytest
from coordinators import coordinator_pid, stream
from jobs import Start
from user_jobs import HERE, RankProcess
from waiting import gone, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N, BATCH, STEPS = 400, 20, 10

READ = """
import json, multiprocessing, os, signal, sys, time, coprep
from user_datasets import *
rank, ranks, epochs, leave_after, stop_after, how = *map(int, sys.argv[1:6]), sys.argv[6]
# In the last batch of rank 0.
gated = 400 - 20 * ranks
# A process that multiprocessing forks has no standard input.
lines = os.fdopen(os.dup(0))

def read():
    train = coprep.DataLoader(Gated(400, gated, sys.argv[7]), batch_size=20, framework="numpy", with_index=True,
                              num_workers=3, rank=rank, world_size=ranks, group="g", timeout=60)
    step = 0
    for epoch in range(epochs):
        for _, ids in train:
            step += 1
            print(json.dumps([epoch, ids.tolist()]), flush=True)
            lines.readline()
            if step in (leave_after, stop_after):
                break
        if step == stop_after:
            break
    if how == "lives on":
        train.close()
        print("closed", flush=True)
        lines.readline()
    elif how == "fails":
        raise SystemExit(3)
    elif how in ("keeps itself", "is forked"):
        train.myself = train
    elif how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)

if how == "is forked":
    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join()
else:
    read()
"""
"""Code of a rank that reads some epochs. It prints each batch, and waits for a line. It may leave its epoch, or stop,
after some batches."""


class Rank(RankProcess):
    """A rank that runs ``READ``."""

    def __init__(
        self,
        start: Start,
        gate: Path,
        rank: int,
        *,
        ranks: int = 2,
        epochs: int = 1,
        leave_after: int = 0,
        stop_after: int = 0,
        how: str = "ends",
    ) -> None:
        options = (rank, ranks, epochs, leave_after, stop_after, how, gate)
        super().__init__(start(READ, *options, PYTHONPATH=HERE), epochs)

    def collect(self) -> None:
        """Collects all batches that the rank gets until it ends."""
        self.job.run_on()
        for line in self.job.result().splitlines():
            epoch, ids = json.loads(line)
            self.epochs[epoch].append(ids)

    def has_ended(self) -> None:
        until(lambda: self.job.process.poll() is not None, "the rank ends")


def all_ids(ranks: list[Rank], epoch: int = 0) -> list[int]:
    return sorted(i for rank in ranks for ids in rank.epochs[epoch] for i in ids)


def assert_exact(ranks: list[Rank], epoch: int = 0) -> None:
    steps = STEPS * 2 // len(ranks)
    assert [len(rank.epochs[epoch]) for rank in ranks] == [steps] * len(ranks), f"steps of epoch {epoch}"
    assert all_ids(ranks, epoch) == list(range(N)), f"epoch {epoch}"


def kill_coordinator() -> None:
    os.kill(coordinator_pid(), signal.SIGKILL)


def kill_fork_server() -> None:
    """Kills the fork server, so that a rank forks another one."""
    workers = stream()["worker_pids"]
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in workers}
    # It may have been forked from the rank that has left, and then there is none.
    for pid in parents:
        os.kill(pid, signal.SIGKILL)
    # A worker that lives a little longer could still make the sample for which the rank must wait.
    until(lambda: all(gone(pid) for pid in workers), "the workers end")


def is_attached(rank: Rank) -> bool:
    with contextlib.suppress(coprep.CoprepError):
        streams = coprep.status()["streams"]
        return any(rank.job.process.pid in job["pids"] for stream in streams for job in stream["jobs"])
    return False


def lose_connection(gate: Path, kill: Callable[[], None]) -> None:
    """Kills, so that ranks lose their ready batches. They come again when one of them asks for its next batch."""
    kill()
    gate.touch()
    # Ranks look each 0.2 s whether the coordinator is there.
    time.sleep(0.5)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Path of a file without which the last batch of rank 0 is not made."""
    return tmp_path / "gate"


kills = pytest.mark.parametrize("kill", [kill_coordinator, kill_fork_server])


@kills
@pytest.mark.parametrize("how", ["ends", "lives on", "fails", "keeps itself", "is forked"])
def test_the_rest_is_given_without_a_rank_that_has_left(
    start: Start, gate: Path, kill: Callable[[], None], how: str
) -> None:
    ranks = [Rank(start, gate, 0), Rank(start, gate, 1, how=how)]
    ranks[0].take(3)
    ranks[1].take(STEPS)
    if how == "lives on":
        assert ranks[1].job.line() == "closed"
    else:
        ranks[1].has_ended()
    lose_connection(gate, kill)
    ranks[0].collect()
    assert_exact(ranks)


@kills
def test_a_rank_leaves_when_the_connection_is_lost(start: Start, gate: Path, kill: Callable[[], None]) -> None:
    ranks = [Rank(start, gate, 0), Rank(start, gate, 1)]
    ranks[0].take(3)
    ranks[1].take(STEPS - 1)
    ranks[1].hear()
    kill()
    gate.touch()
    ranks[1].job.say("on")
    ranks[1].has_ended()
    ranks[0].collect()
    assert_exact(ranks)


def test_ranks_leave_one_after_the_other(start: Start, gate: Path) -> None:
    """Rank 0 hears of each departure in a different stream, so its knowledge must survive a change of stream."""
    gate.touch()
    ranks = [Rank(start, gate, rank, ranks=4) for rank in range(4)]
    for rank in ranks:
        rank.take(1)
    for last in (3, 2, 1):
        ranks[last].take(STEPS // 2 - len(ranks[last].epochs[0]))
        ranks[last].has_ended()
        lose_connection(gate, kill_coordinator)
        if last > 1:
            ranks[0].take(1)
            until(lambda: is_attached(ranks[0]), "it attaches anew, and hears of the departure")
    ranks[0].collect()
    assert_exact(ranks)


def test_a_rank_that_has_left_holds_up_no_later_epoch(start: Start, gate: Path) -> None:
    """The coordinator dies as well: the other rank still takes as many steps in each epoch, and no sample twice."""
    gate.touch()
    ranks = [Rank(start, gate, 0, epochs=5), Rank(start, gate, 1)]
    ranks[0].take(3)
    ranks[1].take(STEPS)
    ranks[1].has_ended()
    # The rest of the first epoch, three whole epochs, and six steps of the last one.
    ranks[0].take(STEPS - 3 + 3 * STEPS + 6)
    lose_connection(gate, kill_coordinator)
    ranks[0].collect()
    assert all_ids(ranks) == list(range(N))
    for ids in ranks[0].epochs:
        given = [i for batch in ids for i in batch]
        assert len(ids) == STEPS and len(set(given)) == len(given) == N // 2


def test_a_rank_that_leaves_the_epoch_does_not_wait_for_one_that_has_left_the_job(start: Start, gate: Path) -> None:
    """One rank asks for the next epoch, and waits, since all ranks must ask. The other one ends instead."""
    gate.touch()
    ranks = [Rank(start, gate, 0, epochs=2, leave_after=3), Rank(start, gate, 1, stop_after=4)]
    ranks[0].take(3)
    assert not ranks[0].is_given_more(0.5), "the other rank has not left the epoch"
    ranks[1].take(4)
    ranks[1].has_ended()
    ranks[0].collect()
    assert [len(ids) for ids in ranks[0].epochs] == [3, STEPS]


def test_a_rank_that_is_killed_is_awaited(start: Start, gate: Path) -> None:
    """A killed rank is awaited, since it may be started again with a state that it had saved."""
    ranks = [Rank(start, gate, 0), Rank(start, gate, 1, stop_after=4, how="is killed")]
    ranks[0].take(3)
    ranks[1].take(4)
    ranks[1].has_ended()
    lose_connection(gate, kill_coordinator)
    ranks[0].job.run_on()
    # Batches may lie ready. No test can wait for ever: three seconds are far more than a batch takes.
    while ranks[0].is_given_more(3):
        ranks[0].hear()
    assert len(ranks[0].epochs[0]) < STEPS
    assert ranks[0].job.process.poll() is None


@pytest.mark.parametrize("number", [0, 1])
def test_a_later_job_of_the_group_waits_for_all_its_ranks(start: Start, gate: Path, number: int) -> None:
    """The same script is started again while a rank of the first job is still there."""
    first = [Rank(start, gate, 0), Rank(start, gate, 1)]
    first[1].take(STEPS)
    first[1].has_ended()
    lose_connection(gate, kill_coordinator)
    second = {number: Rank(start, gate, number)}
    assert not second[number].is_given_more(3), "a rank of the job has not come"
    first[0].collect()
    assert_exact(first)
    assert not second[number].is_given_more(0.5), "a rank of the job has not come"
    second[1 - number] = Rank(start, gate, 1 - number)
    second[0].take(STEPS)
    second[1].collect()
    second[0].collect()
    assert_exact([second[0], second[1]])
