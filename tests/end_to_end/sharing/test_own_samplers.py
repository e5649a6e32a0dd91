"""Tests samplers of the user's own: shared in a cohort, and not outside of one."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from coordinators import coordinator_pid
from jobs import Job, Start
from user_jobs import HERE, NUMPY, MemberProcess, finish, together
from waiting import kill

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 40
LENGTHS = [24, 7, 0, 33]
LOOKED_AT = 1
"""Samples that are inspected when a stream opens."""

SCRIPT = """
import json, pickle, random, sys, coprep
from user_datasets import *
class Sampler:
    # Any ids, some of them often, another number in each epoch, and others in each process.
    def __init__(self, size, lengths):
        self.size, self.lengths, self.epoch = size, lengths, 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __len__(self):
        return self.lengths[self.epoch]
    def __iter__(self):
        draw = random.SystemRandom()
        return (draw.randrange(self.size) for _ in range(len(self)))
data, lengths, own = (eval(argument) for argument in sys.argv[1:4])
epochs, state = int(sys.argv[4]), sys.argv[5]
options = dict(framework="numpy", with_index=True, num_workers=2, batch_size=4, cohort="c")
sampler = Sampler(len(data), lengths)
train = coprep.DataLoader(data, sampler=sampler, **{**options, **own})
if state and Path(state).exists():
    train.load_state_dict(pickle.loads(Path(state).read_bytes()))
print("ready", flush=True)
sys.stdin.readline()
first = train.epoch
for epoch in range(first, epochs):
    sampler.set_epoch(epoch)
    assert len(train) == -(-lengths[epoch] // options["batch_size"]) or "batch_size" in own
    for (values, *_), ids in train:
        assert values.ndim == 1 or (values == ids[:, None]).all()
        print(json.dumps([epoch, ids.tolist()]), flush=True)
        if sys.stdin.readline() == "save\\n":
            Path(state).write_bytes(pickle.dumps(train.state_dict()))
print("done", flush=True)
"""
"""Code of a member. Its arguments are a dataset, the lengths of its epochs, options, the number of epochs, and the path
of its state. It waits for a line after each batch."""


class Member(MemberProcess):
    """A job that runs ``SCRIPT``."""

    def __init__(
        self, start: Start, lengths: list[int], data: str = f"Numbers({N})", state: Path | str = "", **own: Any
    ) -> None:
        job: Job = start(SCRIPT, data, lengths, repr(own), len(lengths), state, PYTHONPATH=HERE)
        super().__init__(job, len(lengths))


def cohort(start: Start, count: int, lengths: list[int] = LENGTHS, **own: Any) -> list[Member]:
    members = [Member(start, lengths, **{"cohort_size": count, **own}) for _ in range(count)]
    [member.job.say("go") for member in members]
    return members


@pytest.mark.parametrize("count", [2, 4])
def test_members_with_random_samplers_of_their_own_are_given_the_same_batches(
    start: Start, tmp_path: Path, count: int
) -> None:
    log = tmp_path / "log"
    members = cohort(start, count, data=f"Numbers({N}, log={str(log)!r})")
    finish(members)
    first = members[0]
    assert [len(ids) for ids in first.given()] == LENGTHS
    assert all(member.epochs == first.epochs for member in members)
    assert len(set(first.given()[3])) < LENGTHS[3], "some ids come twice"
    made = [line for line in ud.noted(log) if line.startswith("dataset:")]
    assert len(made) == sum(LENGTHS) + LOOKED_AT, "each sample of an epoch is made once, for all"


def test_members_of_different_batch_sizes_are_given_the_same_samples(start: Start) -> None:
    members = [Member(start, LENGTHS, cohort_size=2, batch_size=size) for size in (3, 8)]
    [member.job.say("go") for member in members]
    finish(members)
    assert members[0].given() == members[1].given()
    assert [len(ids) for ids in members[0].given()] == LENGTHS


@pytest.mark.parametrize("taken", [0, 3])
def test_the_others_go_on_when_the_first_member_is_killed(start: Start, taken: int) -> None:
    first, *others = cohort(start, 3)
    together([first], 1) if taken == 0 else together([first, *others], taken)
    first.job.kill()
    finish(others)
    assert others[0].epochs == others[1].epochs
    assert [len(ids) for ids in others[0].given()] == LENGTHS
    assert first.epochs[0] == others[0].epochs[0][: max(1, taken)]


@pytest.mark.parametrize("taken", [0, 1, 5, 8])
def test_each_sample_comes_once_though_the_coordinator_is_killed(start: Start, taken: int) -> None:
    members = cohort(start, 2)
    if taken == 0:
        # Only the first member got a batch.
        together(members[:1], 1)
    else:
        together(members, taken)
    kill(coordinator_pid())
    finish(members)
    assert members[0].epochs == members[1].epochs
    assert [len(ids) for ids in members[0].given()] == LENGTHS


def test_each_sample_comes_once_though_the_coordinator_and_the_first_member_are_killed(start: Start) -> None:
    first, *others = cohort(start, 3)
    together([first, *others], 2)
    pid = coordinator_pid()
    os.kill(pid, signal.SIGKILL)
    first.job.kill()
    finish(others)
    assert others[0].epochs == others[1].epochs
    assert [len(ids) for ids in others[0].given()] == LENGTHS
    assert first.epochs[0] == others[0].epochs[0][:2]


def test_the_others_go_on_though_the_member_that_was_ahead_of_them_is_killed_with_the_coordinator(start: Start) -> None:
    lengths = [16, 20, 8]
    first, *others = cohort(start, 3, lengths)
    together(others, 2)
    # The first member is in the next epoch, and the others know its order already.
    first.take(5)
    pid = coordinator_pid()
    os.kill(pid, signal.SIGKILL)
    first.job.kill()
    finish(others)
    assert others[0].epochs == others[1].epochs
    assert [len(ids) for ids in others[0].given()] == lengths
    assert first.epochs[0] == others[0].epochs[0]


def test_members_go_on_where_their_states_were_taken(start: Start, tmp_path: Path) -> None:
    states = [tmp_path / f"state{k}" for k in range(2)]

    def members() -> list[Member]:
        both = [Member(start, LENGTHS, state=state, cohort_size=2) for state in states]
        [member.job.say("go") for member in both]
        return both

    before = members()
    together(before, 2)
    for member in before:
        member.hear()
        member.job.say("save")
        # The state is written when the next batch comes.
        member.hear()
    [member.job.kill() for member in before]
    after = members()
    finish(after)
    assert after[0].epochs == after[1].epochs
    assert before[0].epochs[0][:3] + after[0].epochs[0] == before[0].epochs[0] + after[0].epochs[0][1:]
    assert [len(ids) for ids in after[0].given()] == [LENGTHS[0] - 12, *LENGTHS[1:]]


# Within one process.


class Given:
    """A sampler of given ids."""

    def __init__(self, *ids: Any) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ids)


class Batches(Given):
    """A batch sampler of given batches of ids."""

    batch_size = 3


def alone(**own: Any) -> coprep.DataLoader:
    """Returns the loader of a cohort's only member."""
    return coprep.DataLoader(ud.Numbers(N), cohort="c", cohort_size=1, **{**NUMPY, **own})


def given(loader: coprep.DataLoader) -> list[list[int]]:
    return [batch[-1].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_ids_come_in_the_order_of_the_sampler(workers: int) -> None:
    with alone(sampler=Given(5, 3, 3, 39, 0, 5), batch_size=4, num_workers=workers) as loader:
        assert len(loader) == 2
        assert [given(loader) for _ in range(2)] == [[[5, 3, 3, 39], [0, 5]]] * 2
        assert "Given" in repr(loader)


def test_a_short_last_batch_is_left_out() -> None:
    with alone(sampler=Given(*range(6)), batch_size=4, drop_last=True) as loader:
        assert len(loader) == 1
        assert [given(loader) for _ in range(2)] == [[[0, 1, 2, 3]]] * 2
    with alone(sampler=Given(*range(3)), batch_size=4, drop_last=True) as loader:
        assert [given(loader) for _ in range(2)] == [[], []]


def test_an_epoch_that_is_left_early_is_followed_by_a_whole_one() -> None:
    with alone(sampler=Given(*range(12)), batch_size=4) as loader:
        for epoch in (0, 1):
            assert next(iter(loader))[-1].tolist() == [0, 1, 2, 3]
            assert loader.epoch == epoch
        assert given(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_samples_that_come_twice_are_not_augmented_alike() -> None:
    loader = coprep.DataLoader(ud.Noisy(N), 2, sampler=Given(1, 1, 1, 1), cohort="c", cohort_size=1, **NUMPY)
    with loader:
        values = [row.tobytes() for (values, *_), _ in loader for row in values]
    assert len(set(values)) == 4


def test_a_batch_sampler_whose_batches_are_of_equal_size_is_shared() -> None:
    with alone(batch_sampler=Batches([4, 2, 4], [0, 1, 2], [7])) as loader:
        assert len(loader) == 3
        assert given(loader) == [[4, 2, 4], [0, 1, 2], [7]]


def test_two_loaders_on_one_dataset_keep_their_samplers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPREP_COHORT", "study:1")
    orders = [[3, 1, 2], [9, 8, 7]]
    loaders = [coprep.DataLoader(ud.Numbers(N), sampler=Given(*order), **NUMPY) for order in orders]
    together = zip(*loaders, strict=True)
    assert [[ids.item() for _, ids in pair] for pair in together] == [[3, 9], [1, 8], [2, 7]]
    [loader.close() for loader in loaders]


def test_what_a_sampler_must_not_give() -> None:
    for sampler, error, match in (
        (Given(0, N), IndexError, f"id {N}"),
        (Given(0, -1), IndexError, "id -1"),
        (Given("a"), ValueError, "sample ids"),
        (Given([1, 2]), ValueError, "sample ids"),
    ):
        with alone(sampler=sampler) as loader, pytest.raises(error, match=match):
            list(loader)
    for batch_sampler in (Batches([1], [1, 2, 3]), Batches([1, 2, 3, 4]), Batches([])):
        with alone(batch_sampler=batch_sampler) as loader, pytest.raises(ValueError, match="equal size"):
            list(loader)


def test_a_sampler_without_a_length_is_shared() -> None:
    with alone(sampler=iter([3, 1])) as loader:
        with pytest.raises(TypeError):
            len(loader)
        assert given(loader) == [[3], [1]]
        assert given(loader) == []


def test_what_is_not_shared_says_why(recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("torch")
    data = ud.Numbers(N)
    with pytest.warns(coprep.UnsharedWarning, match="Given is an order of its own"):
        assert [len(batch[1]) for batch in coprep.DataLoader(data, 2, sampler=Given(1, 2, 3))] == [2, 1]
    with pytest.warns(coprep.UnsharedWarning, match="has no batch_size"):
        coprep.DataLoader(data, batch_sampler=Given([1], [2]), cohort="c", cohort_size=1)
    odd = coprep.DataLoader(data, batch_sampler=Batches([1], [2, 3]), cohort="c", cohort_size=1)
    with pytest.warns(coprep.UnsharedWarning, match="has batch_size 3, and"):
        assert [batch[1].tolist() for batch in odd] == [[1], [2, 3]]
    with pytest.warns(coprep.UnsharedWarning, match="each rank has its own"):
        coprep.DataLoader(data, sampler=Given(1), cohort="c", cohort_size=1, rank=0, world_size=2)


def test_a_native_pipeline_takes_any_sampler_in_a_cohort(pipeline: coprep.Pipeline) -> None:
    options: dict[str, Any] = {"batch_size": 2, "with_index": True}
    with coprep.DataLoader(pipeline, sampler=Given(7, 7, 150), cohort="c", cohort_size=1, **options) as loader:
        assert [ids.tolist() for _, _, ids in loader] == [[7, 7], [150]]
    loader = coprep.DataLoader(pipeline, sampler=Given(200), cohort="c", cohort_size=1, **options)
    with loader, pytest.raises(IndexError, match="id 200"):
        list(loader)


def test_a_sample_that_raises_does_so_each_time_it_comes() -> None:
    data = ud.Raising(N, {3: "json"})
    options: dict[str, Any] = {"batch_size": 2, "cohort": "c", "cohort_size": 1, **NUMPY}
    with coprep.DataLoader(data, sampler=Given(1, 3, 3, 2), **options) as loader:
        epoch, found, errors = iter(loader), [], 0
        while True:
            try:
                found.append(next(epoch)[-1].tolist())
            except StopIteration:
                break
            except json.JSONDecodeError:
                errors += 1
    assert (found, errors) == ([[1], [2]], 2)


def test_a_state_goes_on_with_its_order_and_with_no_other_kind_of_sampler() -> None:
    ids = random.sample(range(N), 12)
    with alone(sampler=Given(*ids), batch_size=4) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    with alone(sampler=Given(*reversed(ids)), batch_size=4) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert given(loader) == [ids[4:8], ids[8:]]
        assert given(loader) == [ids[::-1][k : k + 4] for k in (0, 4, 8)]
        assert "order" not in loader.state_dict()
    with coprep.DataLoader(ud.Numbers(N), **NUMPY) as other, pytest.raises(ValueError, match="kind of sampler"):
        other.load_state_dict(state)
    assert pickle.loads(pickle.dumps(state)) == state


def test_orders_of_many_samples_are_told() -> None:
    ids = np.random.default_rng(1).integers(0, N, 300_000)
    with alone(sampler=Given(*ids), batch_size=30_000, num_workers=0) as loader:
        found = [i for batch in given(loader) for i in batch]
    assert found == ids.tolist()
