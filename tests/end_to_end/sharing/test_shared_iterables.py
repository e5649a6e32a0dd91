"""An IterableDataset in a cohort: one reader iterates it, and all jobs are given the same batches."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from coordinators import coordinator_pid
from jobs import Job, Start
from user_datasets import noted
from user_jobs import HERE, MemberProcess, finish, together
from waiting import kill, until

torch = pytest.importorskip("torch")
import user_iterables as ui  # noqa: E402
from coprep._iterables import Batches, EpochEnds, Reader  # noqa: E402
from torch.utils import data  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_is_left")
LENGTHS = [24, 7, 0, 33]

SCRIPT = """
import json, pickle, sys, time, coprep
from pathlib import Path
from user_iterables import *
dataset, own, epochs, state = eval(sys.argv[1]), eval(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
pause, leaves = own.pop("pause", 0), own.pop("leaves", 0)
train = coprep.DataLoader(dataset, **{**dict(batch_size=4, cohort="c"), **own})
if state and Path(state).exists():
    train.load_state_dict(pickle.loads(Path(state).read_bytes()))
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(train.epoch, epochs):
    batches, count = iter(train), 0
    while not leaves or count < leaves:
        try:
            items = next(batches).tolist()
        except StopIteration:
            break
        except LookupError as error:
            items = [str(error)]
        count += 1
        print(json.dumps([epoch, items]), flush=True)
        if sys.stdin.readline() == "save\\n":
            Path(state).write_bytes(pickle.dumps(train.state_dict()))
        time.sleep(pause)
assert dataset.epoch == -1, "it is not iterated here"
print("done", flush=True)
"""
"""The program of a member. Arguments: dataset, options, epochs, path of its state. It waits for a line after each
batch.
"""


class Member(MemberProcess):
    """A job that runs ``SCRIPT``."""

    def __init__(self, start: Start, dataset: str, epochs: int, state: Path | str = "", **own: Any) -> None:
        job: Job = start(SCRIPT, dataset, repr(own), epochs, state, imports_torch=True, PYTHONPATH=HERE)
        super().__init__(job, epochs)


def cohort(
    start: Start,
    dataset: str = f"Items({LENGTHS})",
    epochs: int = 4,
    own: list[dict[str, Any]] | None = None,
    **all_: Any,
) -> list[Member]:
    each = own or [{}, {}]
    members = [Member(start, dataset, epochs, **{"cohort_size": len(each), **all_, **one}) for one in each]
    [member.job.say("go") for member in members]
    return members


def reader_pid() -> int:
    found: list[int] = []

    def is_there() -> bool:
        (stream,) = json.loads(coprep._coprep.status(None))["streams"]
        found[:] = stream["worker_pids"]
        assert len(found) <= 1
        return bool(found)

    # There is no reader for a moment after a kill, until another one replaces it.
    until(is_there, "there is a reader")
    return found[0]


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_members_of_different_speeds_are_given_the_same_batches(
    start: Start, tmp_path: Path, workers: int | None
) -> None:
    log = tmp_path / "log"
    speeds: list[dict[str, Any]] = [{}, {"pause": 0.005}, {"pause": 0.02}]
    members = cohort(start, f"Items({LENGTHS}, {str(log)!r})", own=speeds, num_workers=workers)
    finish(members)
    first = members[0]
    assert all(member.epochs == first.epochs for member in members)
    # PyTorch starts its workers for each epoch, as copies of the reader. The reader's dataset stays at its first epoch,
    # and so all epochs have the first length.
    lengths = LENGTHS[:1] * 4 if workers else LENGTHS
    assert [sorted(items) for items in first.given()] == [list(range(length)) for length in lengths]
    made = [line.split(":") for line in noted(log)]
    assert len(made) == sum(lengths), "each item of an epoch is made once, for all"
    assert len({pid for pid, _ in made}) == (8 if workers else 1)


@pytest.mark.parametrize(("taken", "workers"), [(0, 0), (5, 0), (6, 0), (5, 2)])
def test_the_batches_are_the_same_though_the_reader_is_killed(start: Start, taken: int, workers: int) -> None:
    lengths = [24, 24]
    members = cohort(start, f"Items({lengths})", 2, num_workers=workers)
    if taken == 0:
        # Only the first member has taken a batch.
        together(members[:1], 1)
    else:
        together(members, taken)
    kill(reader_pid())
    finish(members)
    assert members[0].epochs == members[1].epochs
    assert [sorted(items) for items in members[0].given()] == [list(range(length)) for length in lengths]


@pytest.mark.parametrize("workers", [0, 2])
def test_there_are_never_two_readers(start: Start, tmp_path: Path, workers: int) -> None:
    members = cohort(start, f"Alone([400], {str(tmp_path / 'lock')!r})", 1, num_workers=workers)
    for pause in (0.0, 0.2, 0.0, 0.1):
        # 20 batches are more than the queues hold, so that the reader to be killed has made the last one. After a
        # pause the queues are full and the reader is idle, without one it is at the next batches.
        together(members, 20)
        time.sleep(pause)
        kill(reader_pid())
    finish(members)
    assert members[0].epochs == members[1].epochs
    assert [sorted(items) for items in members[0].given()] == [list(range(400))]


@pytest.mark.parametrize("taken", [0, 5, 6])
def test_each_batch_comes_once_though_the_coordinator_is_killed(start: Start, taken: int) -> None:
    lengths = [24, 24]
    members = cohort(start, f"Items({lengths})", 2)
    together(members[:1], 1) if taken == 0 else together(members, taken)
    kill(coordinator_pid())
    finish(members)
    assert members[0].epochs == members[1].epochs
    assert members[0].given() == [list(range(length)) for length in lengths]


@pytest.mark.parametrize("taken", [0, 3])
def test_the_others_go_on_when_a_member_is_killed(start: Start, tmp_path: Path, taken: int) -> None:
    log = tmp_path / "log"
    first, *others = cohort(start, f"Items([24], {str(log)!r})", own=[{}, {}, {}])
    together([first], 1) if taken == 0 else together([first, *others], taken)
    first.job.kill()
    finish(others)
    assert others[0].epochs == others[1].epochs
    epochs = len(others[0].given())
    assert others[0].given() == [list(range(24))] * epochs
    # The reader is forked from a member. If that was the first, another reader has begun the epoch anew.
    assert 24 * epochs <= len(noted(log)) <= 24 * epochs + 24


def test_members_go_on_where_their_states_were_taken(start: Start, tmp_path: Path) -> None:
    own = [{"state": tmp_path / f"state{k}"} for k in range(2)]
    before = cohort(start, "Items([24])", 2, own)
    together(before, 2)
    for member in before:
        member.hear()
        member.job.say("save")
        # The state is written when the next batch is there.
        member.hear()
    [member.job.kill() for member in before]
    after = cohort(start, "Items([24])", 2, own)
    finish(after)
    assert after[0].epochs == after[1].epochs
    assert after[0].given() == [list(range(12, 24)), list(range(24))]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_dataset_is_left_by_all(start: Start, tmp_path: Path, workers: int) -> None:
    log = tmp_path / "log"
    own: list[dict[str, Any]] = [{"leaves": 9}, {"leaves": 5, "pause": 0.01}]
    members = cohort(start, f"Endless([1], {str(log)!r})", 3, own, num_workers=workers)
    finish(members)
    assert members[0].epochs[0][:5] == members[1].epochs[0]
    assert [len(batches) for batches in members[0].epochs + members[1].epochs] == [9] * 3 + [5] * 3
    assert all(batches[0] == [0, 1, 2, 3] for member in members for batches in member.epochs)
    # The fixture checks that no process is left that would go on for ever.


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_iteration_raises_comes_once_to_each_job_and_ends_it(start: Start, workers: int) -> None:
    members = cohort(start, "Items([20], fails_at=9)", 2, num_workers=workers)
    finish(members)
    assert members[0].epochs == members[1].epochs
    for batches in members[0].epochs:
        assert sum("item 9" in str(batch) for batch in batches) == 1
        if workers == 0:
            assert [len(batch) for batch in batches] == [4, 4, 1]


# Within one process.


def alone(dataset: Any, **own: Any) -> coprep.DataLoader:
    """Returns a loader that is the only member of its cohort."""
    return coprep.DataLoader(dataset, cohort="c", cohort_size=1, **own)


def shown(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: shown(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [shown(value) for value in batch]
    return (str(batch.dtype), batch.tolist()) if hasattr(batch, "dtype") else batch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 4, "collate_fn": ui.collate},
        {"batch_size": None, "collate_fn": ui.double},
    ],
)
def test_batches_are_those_of_pytorch(own: dict[str, Any], workers: int) -> None:
    theirs = data.DataLoader(ui.Items([10, 3]), num_workers=workers, **own)
    with alone(ui.Items([10, 3]), num_workers=workers, **own) as ours:
        for _ in range(2):
            assert shown(list(ours)) == shown(list(theirs))


def test_batches_may_be_of_any_shape() -> None:
    own: dict[str, Any] = {"batch_size": 2}
    theirs = data.DataLoader(ui.Rows([10]), **own)
    with alone(ui.Rows([10]), **own) as ours:
        assert shown(list(ours)) == shown(list(theirs))
        batch = next(iter(ours))
        batch["row"][0, 0] = 7
    with alone(ui.Rows([10]), framework="numpy", **own) as ours:
        batches = list(ours)
    assert [batch["array"].shape for batch in batches] == [(2, 3)] * 5
    assert isinstance(batches[4]["row"], np.ndarray) and batches[4]["row"].shape == (2, 5)


def test_the_transform_is_applied_to_each_item() -> None:
    with alone(ui.Items([5]), batch_size=2, transform=ui.double) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6], [8]]


def test_random_numbers_are_those_of_seed_epoch_and_batch() -> None:
    def passes() -> list[Any]:
        with alone(ui.Random([6]), batch_size=2, seed=7) as loader:
            return [[batch.tolist() for batch in loader] for _ in range(2)]

    first = passes()
    assert passes() == first
    assert len({number for epoch in first for batch in epoch for number in batch}) == 12


def test_its_length_is_that_of_pytorch() -> None:
    with alone(ui.Items([5])) as loader, pytest.raises(TypeError, match="len"):
        len(loader)
    for own in ({"batch_size": 2}, {"batch_size": 2, "drop_last": True}, {"batch_size": None}):
        with alone(ui.Sized([5]), **own) as loader:
            assert len(loader) == len(data.DataLoader(ui.Sized([5]), **own))  # type: ignore[arg-type]


def test_what_pytorch_refuses_is_refused() -> None:
    for own in ({"shuffle": True}, {"sampler": [0, 1]}):
        with pytest.raises(ValueError, match="IterableDataset"):
            alone(ui.Items([5]), **own)
    for own in ({"cache": "prepared"}, {"reuse": 2}):
        with pytest.raises(ValueError, match="no ids"):
            alone(ui.Items([5]), **own)


def test_a_dataset_that_cannot_begin_says_so() -> None:
    with alone(ui.FailsAtOnce([5])) as loader:
        batches = iter(loader)
        with pytest.raises(LookupError, match="no item at all"):
            next(batches)
        assert list(batches) == []


def test_a_worker_of_pytorchs_that_ends_takes_its_reader_with_it_and_nothing_is_lost(tmp_path: Path) -> None:
    with alone(ui.Deadly([24], str(tmp_path / "log"), fails_at=1), batch_size=4, num_workers=2) as loader:
        for _ in range(2):
            items = [batch.tolist() for batch in loader]
            assert items[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
            assert sorted(i for batch in items for i in batch) == list(range(24))
    assert noted(tmp_path / "log") == ["dies"]


def test_a_batch_that_ends_its_readers_is_reported_and_the_epoch_ends_if_none_comes_past_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    given: list[list[int]] = []
    failed = []
    with alone(ui.Deadly([20], str(log), fails_at=40), batch_size=4) as loader:
        batches = iter(loader)
        while True:
            try:
                given.append(next(batches).tolist())
            except StopIteration:
                break
            except coprep.SampleError as error:
                assert "was killed by signal 9" in str(error)
                failed.append(error.id)
        assert given == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert 2 in failed and len(failed) > 1 and len(noted(log)) < 40
        # The dataset kills no reader any more. In the next epoch these numbers stand for other batches, and none fails.
        log.write_text("tame\n" * 40)
        assert [batch.tolist() for batch in loader] == [list(range(i, i + 4)) for i in range(0, 20, 4)]


def test_a_failed_batch_is_skipped_if_that_is_asked_for() -> None:
    loader = alone(ui.Items([20], fails_at=9), batch_size=4, on_error="skip")
    with loader, pytest.warns(coprep.SkippedSampleWarning):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_is_not_shared_says_why() -> None:
    with pytest.warns(coprep.UnsharedWarning, match="only a cohort can share it"):
        assert len(list(coprep.DataLoader(ui.Items([5])))) == 5
    with pytest.warns(coprep.UnsharedWarning, match="pickle"):
        assert len(list(alone(ui.Unpicklable([5])))) == 3
    with pytest.warns(coprep.UnsharedWarning, match="each rank has its own"):
        alone(ui.Items([5]), rank=0, world_size=2)


def test_large_batches_come_whole() -> None:
    class Large(ui.Items):
        def value(self, item: int) -> Any:
            return torch.full((1 << 20,), item, dtype=torch.uint8)

    with alone(Large([12]), batch_size=4) as loader:
        batches = list(loader)
    assert [batch[:, -1].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_two_loaders_on_one_dataset_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPREP_COHORT", "study:1")
    loaders = [coprep.DataLoader(ui.Items([3])) for _ in range(2)]
    assert [[batch.item() for batch in pair] for pair in zip(*loaders, strict=True)] == [[0, 0], [1, 1], [2, 2]]
    [loader.close() for loader in loaders]


def test_it_looks_as_with_pytorch() -> None:
    with alone(ui.Items([5]), batch_size=2) as loader:
        theirs = data.DataLoader(ui.Items([5]), batch_size=2)
        assert type(loader.sampler) is type(theirs.sampler)
        assert loader._dataset_kind == theirs._dataset_kind
        assert "in the order of its iteration" in repr(loader)
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        assert (state["epoch"], state["seed"]) == (0, loader.seed)


def test_members_leave_an_iterator_of_their_own_alone() -> None:
    dataset = ui.Items([6])
    with alone(dataset) as loader:
        assert len(list(loader)) == 6
    assert dataset.epoch == -1


# The reader.


def reader(dataset: Any, batch_size: int | None = 2) -> Reader:
    options: dict[str, Any] = {"drop_last": False, "workers": 0, "persistent_workers": False, "prefetch_factor": None}
    return Reader(Batches(dataset, None, None, batch_size=batch_size, **options), 7)


def test_batches_may_be_asked_for_in_another_order_and_each_item_is_made_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    batches = reader(ui.Items([7], str(log)))
    assert [batches.batch(0, number) for number in (2, 0, 3, 1)] == [[4, 5], [0, 1], [6], [2, 3]]
    for number in (5, 4):
        with pytest.raises(EpochEnds) as ends:
            batches.batch(0, number)
        assert ends.value.batches == 4
    assert len(noted(log)) == 7


def test_a_batch_that_was_given_before_is_given_again() -> None:
    batches = reader(ui.Items([7]))
    assert batches.batch(0, 1) == [2, 3]
    assert batches.batch(0, 2) == [4, 5]
    assert batches.batch(0, 1) == [2, 3]
    assert batches.batch(0, 0) == [0, 1], "what was passed over is kept"
    assert batches.batch(1, 0) == [0, 1]
    assert batches.batch(0, 3) == [6]


def test_what_is_kept_is_bounded() -> None:
    batches = reader(ui.Items([1000]), None)
    assert batches.batch(0, 900) == 900
    assert len(batches._kept) <= 64
    assert batches.batch(0, 899) == 899
    assert batches.batch(0, 3) == 3


def test_the_reader_is_no_worker() -> None:
    class Asks(ui.Items):
        def value(self, item: int) -> Any:
            return data.get_worker_info()

    with alone(Asks([2]), batch_size=2, collate_fn=ui.collate) as loader:
        assert list(loader) == [("collated", [None, None])]
