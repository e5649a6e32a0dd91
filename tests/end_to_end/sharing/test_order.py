"""Tests ``shuffle=False``: every job and every loader gets ascending ids, with any other jobs on the stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from batches import QUEUE, content, ids
from coordinators import stream
from jobs import Job, Start, go, in_step, reports, run_on
from photos import make_folder
from user_jobs import HERE, NUMPY

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 200
IN_ORDER = list(range(N))
OPTIONS: dict[str, dict[str, Any]] = {
    "native": {},
    "python": {},
    "prepared": {"cache": "prepared"},
    "seeded": {"seed": 3},
    "in the job": {"num_workers": 0},
}
KINDS = list(OPTIONS)


def source(kind: str, folder: Path) -> Any:
    if kind in ("native", "seeded"):
        return coprep.ImageFolder(folder).decode().resize(40).center_crop(32)
    return ud.Numbers(N)


def make(kind: str, folder: Path, batch_size: int = 10, **own: Any) -> coprep.DataLoader:
    return coprep.DataLoader(source(kind, folder), batch_size, **{**NUMPY, **OPTIONS[kind], **own})


def predictions(batch: Any) -> list[int]:
    """Returns a stand-in for a model's prediction of each sample. It depends on the sample alone."""
    values = batch[0][0] if isinstance(batch[0], list) else batch[0]
    return [int(np.asarray(value, np.int64).sum()) for value in values]


JOB = """
import json, sys, time
from pathlib import Path
from test_order import make, predictions
kind, folder, own, epochs, pause = sys.argv[1], Path(sys.argv[2]), eval(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
loader = make(kind, folder, **own)
if own.get("world_size", 1) == 1:
    loader.seed  # attaches
    print("ready", flush=True)
    sys.stdin.readline()
for epoch in range(epochs):
    report = {"seen": [], "predicted": [], "batches": 0}
    for batch in loader:
        report["seen"] += batch[-1].tolist()
        report["predicted"] += predictions(batch)
        report["batches"] += 1
        if "step" in sys.argv:
            print("batch", flush=True)
            sys.stdin.readline()
        time.sleep(float(pause))
    print(json.dumps(report), flush=True)
"""
"""Code of a job. Its arguments are a kind, a folder, options, epochs, and seconds per batch. With ``step`` it announces
each batch, and waits."""

PATH = f"{Path(__file__).parent}{os.pathsep}{HERE}"
"""Folders that a job needs on its path: it imports this module."""


def job(start: Start, kind: str, folder: Path, epochs: int, *more: str, pause: float = 0.0, **own: Any) -> Job:
    begun = start(JOB, kind, folder, repr(own), epochs, pause, *more, PYTHONPATH=PATH)
    if own.get("world_size", 1) == 1:
        assert begun.line() == "ready"
    return begun


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(10, 10), (10, 7)], ids=["equal batches", "unequal batches"])
def test_a_job_that_joins_in_the_middle_predicts_by_position(
    start: Start, folder: Path, kind: str, sizes: tuple[int, int]
) -> None:
    first = job(start, kind, folder, 2, "step", batch_size=sizes[0])
    in_step(first, batches=7)
    second = job(start, kind, folder, 2, "step", batch_size=sizes[1])
    in_step(first, second, batches=5)
    assert len(stream()["jobs"]) == 2
    run_on(first, second)
    epochs = [*reports(first), *reports(second)]
    assert [epoch["seen"] for epoch in epochs] == [IN_ORDER] * 4
    assert [epoch["predicted"] for epoch in epochs] == [epochs[0]["predicted"]] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_different_speeds_are_each_given_their_own_order(start: Start, folder: Path, kind: str) -> None:
    jobs = [job(start, kind, folder, 3, pause=pause) for pause in (0.0, 0.004, 0.01)]
    go(*jobs)
    for one in jobs:
        assert [epoch["seen"] for epoch in reports(one)] == [IN_ORDER] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_that_are_read_in_turn_give_equal_batches(folder: Path, socket_path: Path, kind: str) -> None:
    size, epochs = 4, 3
    with make(kind, folder, size) as one, make(kind, folder, size) as other:
        for _ in range(epochs):
            pairs = list(zip(one, other, strict=True))
            assert [content(left) for left, _ in pairs] == [content(right) for _, right in pairs]
            assert [int(i) for left, _ in pairs for i in left[-1]] == IN_ORDER
        totals = stream()["totals"]
    # The first job had a queue, and a minibatch in preparation, before the second one came; and now both have them.
    assert totals["prepared"] <= epochs * N + 2 * (QUEUE + 1) * size


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_loader_begins_anew_in_order(folder: Path, socket_path: Path, kind: str) -> None:
    with make(kind, folder) as idle, make(kind, folder) as passes:
        assert next(iter(idle))[-1].tolist() == IN_ORDER[:10]
        assert ids(passes) == IN_ORDER
        assert ids(idle) == IN_ORDER
        assert ids(passes) == IN_ORDER


def taken_in_turn(*loaders: coprep.DataLoader) -> list[list[int]]:
    """Returns the ids of an epoch of each loader, in the order in which they came."""
    taken: list[list[int]] = [[] for _ in loaders]

    def one_epoch(loader: coprep.DataLoader, into: list[int]) -> Iterator[None]:
        for batch in loader:
            into += batch[-1].tolist()
            yield

    running = [one_epoch(loader, into) for loader, into in zip(loaders, taken, strict=True)]
    while running:
        running = [one for one in running if next(one, "over") is None]
    return taken


SUBSETS = {
    "a stretch": list(range(25, 170)),
    "scattered": [i for i in range(N) if i % 3 != 1],
    "without a stretch": [i for i in range(N) if not 40 <= i < 80],
}


@pytest.mark.parametrize("kind", ["native", "python"])
@pytest.mark.parametrize("subset", SUBSETS.values(), ids=SUBSETS)
def test_subsets_beside_the_whole(folder: Path, socket_path: Path, kind: str, subset: list[int]) -> None:
    sizes = (10, 10, 7)
    sets = (None, subset, subset)
    loaders = [make(kind, folder, size, subset=ids) for size, ids in zip(sizes, sets, strict=True)]
    for _ in range(3):
        assert taken_in_turn(*loaders) == [IN_ORDER, subset, subset]
    assert len(stream()["jobs"]) == 3
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("kind", ["native", "python"])
def test_each_rank_is_assigned_its_positions_beside_another_job(start: Start, folder: Path, kind: str) -> None:
    beside = job(start, kind, folder, 2, "step", batch_size=10)
    in_step(beside, batches=4)
    ranks = [job(start, kind, folder, 2, rank=rank, world_size=2, group="g", batch_size=10) for rank in range(2)]
    in_step(beside, batches=4)
    run_on(beside)
    for rank, one in enumerate(ranks):
        assert [epoch["seen"] for epoch in reports(one)] == [IN_ORDER[rank::2]] * 2
    assert [epoch["seen"] for epoch in reports(beside)] == [IN_ORDER] * 2


def test_a_cohort_and_a_job_beside_it(start: Start, folder: Path) -> None:
    cohort = {"cohort": "c", "cohort_size": 2, "batch_size": 10}
    beside = job(start, "python", folder, 2, "step", batch_size=7)
    in_step(beside, batches=3)
    members = [job(start, "python", folder, 2, **cohort) for _ in range(2)]
    go(*members)
    in_step(beside, batches=3)
    run_on(beside)
    for one in (beside, *members):
        assert [epoch["seen"] for epoch in reports(one)] == [IN_ORDER] * 2


@pytest.fixture
def spoilt(tmp_path: Path) -> tuple[Path, list[int]]:
    """A folder of 200 JPEGs, two of which cannot be decoded, and the ids of the others."""
    folder = make_folder(tmp_path / "spoilt", N, classes=1)
    files = sorted(folder.rglob("*.jpg"))
    for bad in (33, 120):
        files[bad].write_bytes(b"no")
    return folder, [i for i in IN_ORDER if i not in (33, 120)]


def test_bad_files_are_left_out_and_all_else_keeps_its_place(socket_path: Path, spoilt: tuple[Path, list[int]]) -> None:
    folder, good = spoilt
    with make("native", folder, on_error="skip") as one, make("native", folder, 7, on_error="skip") as other:
        for _ in range(3):
            assert taken_in_turn(one, other) == [good, good]


def test_a_batch_is_shorter_by_its_bad_samples(socket_path: Path, spoilt: tuple[Path, list[int]]) -> None:
    folder, good = spoilt
    with make("native", folder, on_error="skip") as loader:
        sizes = [len(batch[-1]) for batch in loader]
        assert sizes == [9 if at in (3, 12) else 10 for at in range(N // 10)]
        # The second epoch knows the bad samples, and fills its batches.
        assert [batch[-1].tolist() for batch in loader] == [good[at : at + 10] for at in range(0, len(good), 10)]


def test_ranks_take_equally_many_steps_though_samples_are_bad(start: Start, spoilt: tuple[Path, list[int]]) -> None:
    folder, good = spoilt
    own = {"world_size": 2, "group": "g", "batch_size": 10, "on_error": "skip"}
    both = [reports(one) for one in [job(start, "native", folder, 3, rank=rank, **own) for rank in range(2)]]
    for epochs in zip(*both, strict=True):
        assert {epoch["batches"] for epoch in epochs} == {10}
        assert sorted(i for epoch in epochs for i in epoch["seen"]) == good
        assert all(epoch["seen"] == sorted(epoch["seen"]) for epoch in epochs)


def test_an_exception_of_one_sample_leaves_the_others_in_their_order(socket_path: Path) -> None:
    with (
        coprep.DataLoader(ud.Faulty(N, [41], ud.fail), 10, on_error="skip", **NUMPY) as skips,
        coprep.DataLoader(ud.Faulty(N, [41], ud.fail), 10, **NUMPY) as raises,
    ):
        assert next(iter(skips))[-1].tolist() == IN_ORDER[:10]
        seen, batches = [], iter(raises)
        with pytest.raises(ud.Broken):
            for batch in batches:
                seen += batch[-1].tolist()
        for batch in batches:
            seen += batch[-1].tolist()
        assert seen == [i for i in IN_ORDER if i != 41]
        assert ids(skips) == [i for i in IN_ORDER if i != 41]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [10, 7])
def test_a_job_resumes_in_order_beside_another(folder: Path, socket_path: Path, kind: str, size: int) -> None:
    with make(kind, folder, size) as before:
        batches = iter(before)
        for _ in range(6):
            next(batches)
        state = before.state_dict()
        with make(kind, folder, 10) as beside, make(kind, folder, size) as after:
            after.load_state_dict(state)
            assert taken_in_turn(beside, after) == [IN_ORDER, IN_ORDER[6 * size :]]
            assert taken_in_turn(beside, after) == [IN_ORDER, IN_ORDER]


def test_a_job_whose_coordinator_died_goes_on_in_order(start: Start, folder: Path) -> None:
    jobs = [job(start, "python", folder, 2, "step", batch_size=size) for size in (10, 7)]
    in_step(*jobs, batches=5)
    Job(f"import os, signal; os.kill({coprep.status()['pid']}, signal.SIGKILL)").result()
    run_on(*jobs)
    for one in jobs:
        assert [epoch["seen"] for epoch in reports(one)] == [IN_ORDER] * 2


@pytest.mark.parametrize("kind", ["native", "python"])
def test_in_relaxed_order_each_sample_comes_once_in_an_order_of_its_own(
    folder: Path, socket_path: Path, kind: str
) -> None:
    with make(kind, folder, order="relaxed") as one, make(kind, folder, 7, order="relaxed") as other:
        next(iter(one))
        for _ in range(2):
            assert [sorted(taken) for taken in taken_in_turn(one, other)] == [IN_ORDER, IN_ORDER]
        assert len(stream()["jobs"]) == 2
