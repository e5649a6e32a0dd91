"""Tests ranks of one job at different places when the coordinator dies, above all at an epoch's border."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from coordinators import coordinator_pid
from jobs import Job, Start, run_on
from user_jobs import HERE, RankProcess

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N, BATCH, STEPS = 400, 20, 10

READ = """
import json, sys, coprep
from user_datasets import *
rank, gate, leave_after = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
train = coprep.DataLoader(Gated(400, 399, gate), batch_size=20, framework="numpy", with_index=True, num_workers=3,
                          rank=rank, world_size=2, group="g")
for epoch in range(3):
    for step, (_, ids) in enumerate(train):
        print(json.dumps([epoch, ids.tolist()]), flush=True)
        sys.stdin.readline()
        if epoch == 0 and step + 1 == leave_after:
            break
print("done", flush=True)
"""
"""Code of a rank that reads three epochs. It prints each batch, and waits for a line. It leaves the first epoch early
if asked to."""


class Rank(RankProcess):
    """A rank that runs ``READ``."""

    def __init__(self, start: Start, rank: int, gate: Path, leave_after: int = 0) -> None:
        super().__init__(start(READ, rank, gate, leave_after, PYTHONPATH=HERE), epochs=3)

    def collect(self) -> None:
        """Collects all batches that the rank gets until it ends."""
        for line in self.job.result().splitlines()[:-1]:
            epoch, ids = json.loads(line)
            self.epochs[epoch].append(ids)


def finish(ranks: list[Rank]) -> None:
    # Ranks wait for each other at the borders of epochs, so all run on before any is collected.
    run_on(*(rank.job for rank in ranks))
    for rank in ranks:
        rank.collect()


def assert_exact(ranks: list[Rank], epoch: int) -> None:
    assert [len(rank.epochs[epoch]) for rank in ranks] == [STEPS, STEPS], f"steps of epoch {epoch}"
    assert sorted(i for rank in ranks for ids in rank.epochs[epoch] for i in ids) == list(range(N)), f"epoch {epoch}"


@pytest.mark.parametrize("first", [0, 1])
def test_a_coordinator_that_dies_at_the_border_of_an_epoch_takes_no_batch_from_any_rank(
    start: Start, tmp_path: Path, first: int
) -> None:
    """One rank has finished its epoch, and requests the next one. The last batch of the other is not ready yet."""
    gate = tmp_path / "gate"
    ranks = [Rank(start, rank, gate) for rank in range(2)]
    for _ in range(STEPS - 1):
        ranks[0].take(1)
        ranks[1].take(1)
    # The last sample belongs to the last batch of rank 1.
    ranks[0].take(1)
    assert not ranks[0].is_given_more(2), "a batch of the next epoch, before the other rank has all of this one"
    if first:
        gate.touch()
        ranks[1].take(1)
        ranks[0].take(1)
    os.kill(coordinator_pid(), signal.SIGKILL)
    gate.touch()
    finish(ranks)
    for epoch in range(3):
        assert_exact(ranks, epoch)


def test_a_rank_that_leaves_its_epoch_waits_for_one_that_does_not_yet(start: Start, tmp_path: Path) -> None:
    """The coordinator dies while one rank has left its epoch at the step at which the other will leave."""
    gate = tmp_path / "gate"
    gate.touch()
    ranks = [Rank(start, rank, gate, leave_after=6) for rank in range(2)]
    for _ in range(3):
        ranks[0].take(1)
        ranks[1].take(1)
    ranks[0].take(3)
    assert not ranks[0].is_given_more(0.5), "a batch of the next epoch, before the other rank has left this one"
    os.kill(coordinator_pid(), signal.SIGKILL)
    finish(ranks)
    assert [len(rank.epochs[0]) for rank in ranks] == [6, 6]
    given = [i for rank in ranks for ids in rank.epochs[0] for i in ids]
    assert len(set(given)) == len(given) == 12 * BATCH
    for epoch in (1, 2):
        assert_exact(ranks, epoch)


MEMBER = """
import json, sys, coprep
from user_datasets import *
train = coprep.DataLoader(Faulty(60, [7, 23, 41], fail), 4, True, framework="numpy", with_index=True, num_workers=2,
                          seed=3, cohort="c", cohort_size=2, on_error=sys.argv[1])
for epoch in range(2):
    batches = iter(train)
    while True:
        try:
            _, ids = next(batches)
        except StopIteration:
            break
        except Exception as error:
            print(json.dumps([epoch, "failed", error.__cause__.id]), flush=True)
            continue
        print(json.dumps([epoch, "batch", ids.tolist()]), flush=True)
        sys.stdin.readline()
"""
"""Code of a member of a cohort. It waits for a line after each batch."""


@pytest.mark.parametrize("on_error", ["skip", "raise"])
@pytest.mark.parametrize("ahead", [0, 5])
def test_members_of_a_cohort_stay_in_step_over_failed_samples_and_a_killed_coordinator(
    start: Start, on_error: str, ahead: int
) -> None:
    members: list[Job] = [start(MEMBER, on_error, PYTHONPATH=HERE) for _ in range(2)]
    told: list[list[list]] = [[], []]

    def take(member: int, batches: int) -> None:
        while batches:
            told[member].append(json.loads(members[member].line()))
            if told[member][-1][1] == "batch":
                batches -= 1
                members[member].say("on")

    take(0, 3 + ahead)
    take(1, 3)
    os.kill(coordinator_pid(), signal.SIGKILL)
    run_on(*members)
    for member, job in enumerate(members):
        told[member] += [json.loads(line) for line in job.result().splitlines()]
    assert told[0] == told[1]
    for epoch in range(2):
        given = sorted(i for e, what, ids in told[0] if (e, what) == (epoch, "batch") for i in ids)
        assert given == [i for i in range(60) if i not in (7, 23, 41)]
        failed = sorted(i for e, what, i in told[0] if (e, what) == (epoch, "failed"))
        assert failed == ([7, 23, 41] if on_error == "raise" else [])


@pytest.mark.parametrize("taken", [0, 3])
def test_a_member_of_a_cohort_goes_on_when_the_others_have_ended(start: Start, taken: int) -> None:
    """The coordinator dies, and the others do not come back."""
    code = MEMBER.replace("4, True", "12, True")
    code = code.replace("for epoch", "train.seed\nprint('here', flush=True)\nsys.stdin.readline()\nfor epoch", 1)
    members: list[Job] = [start(code, "skip", PYTHONPATH=HERE) for _ in range(2)]
    assert [member.line() for member in members] == ["here", "here"]
    ends, goes_on = members
    ends.run_on()
    told = [json.loads(line) for line in ends.result().splitlines()]
    assert len(told) == 10
    given = []
    for _ in range(taken):
        goes_on.say("on")
        given.append(json.loads(goes_on.line()))
    os.kill(coordinator_pid(), signal.SIGKILL)
    goes_on.run_on()
    assert given + [json.loads(line) for line in goes_on.result().splitlines()] == told


SHORT = """
import sys, coprep
from user_datasets import *
options = dict(framework="numpy", with_index=True, num_workers=1, timeout=20, **eval(sys.argv[1]))
train = coprep.DataLoader(Numbers(48), 4, True, **options)
train.seed
print("here", flush=True)
sys.stdin.readline()
print([ids.tolist() for _, ids in train], flush=True)
"""
"""Code of a job that announces its place in a stream, and reads an epoch after a line."""


@pytest.mark.parametrize("own", ["dict(rank={}, world_size=2, group='g')", "dict(cohort='c', cohort_size=2)"])
def test_ranks_and_members_without_a_seed_meet_where_the_first_of_them_is(start: Start, own: str) -> None:
    """A job with a seed opens another stream between them. The first stream has another job, without a seed."""
    jobs = []
    for options in ("{}", own.format(0), "dict(seed=7)", own.format(1)):
        jobs.append(start(SHORT, options, PYTHONPATH=HERE))
        assert jobs[-1].line() == "here"
    run_on(*jobs)
    first, second = eval(jobs[1].result()), eval(jobs[3].result())
    given = sorted(i for batches in (first, second) for ids in batches for i in ids)
    if "cohort" in own:
        assert first == second and given == sorted([*range(48), *range(48)])
    else:
        assert len(first) == len(second) and given == list(range(48))
