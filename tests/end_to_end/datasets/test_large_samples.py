"""Tests samples that are far larger than most: each costs its own bytes, and no stream is opened anew."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from coordinators import coordinator_pid, stream
from jobs import Start, go, in_step, reports, run_on, seen
from user_jobs import HERE, NUMPY, TRAIN
from waiting import WAIT, gone, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 64
MB = 1 << 20
LATE = {40: 3 * MB, 50: MB, 63: 2 * MB}
"""Bytes of the large samples by id. They are not among the samples that are inspected when the stream opens."""


@pytest.fixture(autouse=True)
def staging(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of staging that a stream may take."""
    monkeypatch.setenv("COPREP_STAGING", "16M")
    return 16 * MB


def uneven(data: ud.Uneven, batch_size: int = 4, **own: Any) -> coprep.DataLoader:
    return coprep.DataLoader(data, batch_size, collate_fn=ud.as_they_are, **{**NUMPY, **own})


def check(batch: Any, large: dict[int, int], small: int = 2000) -> list[int]:
    """Checks that the samples of a batch are whole, and returns their ids."""
    for values, i in batch[0]:
        assert len(values) == large.get(i, small) and (values == i % 251).all(), i
    return [i for _, i in batch[0]]


def epoch(loader: coprep.DataLoader, large: dict[int, int]) -> list[int]:
    return [i for batch in loader for i in check(batch, large)]


def settled(before: dict[str, Any], limit: int) -> None:
    """Checks that the stream is still the same one, and within its limit."""
    now = stream()
    assert now["id"] == before["id"], "it was opened anew"
    assert now["staging_bytes"] <= limit


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("order", ["deterministic", "relaxed"])
def test_late_outliers_cost_their_own_bytes(staging: int, shuffle: bool, order: Any) -> None:
    with uneven(ud.Uneven(N, LATE), shuffle=shuffle, order=order) as loader:
        before = (loader.seed, stream())[1]
        for _ in range(3):
            assert sorted(epoch(loader, LATE)) == list(range(N))
        settled(before, staging)
        assert loader.stats()["reconnects"] == 0


def test_one_outlier_takes_its_own_bytes_and_no_more() -> None:
    with uneven(ud.Uneven(N, {45: 3 * MB})) as loader:
        before = (loader.seed, stream())[1]
        for _ in range(3):
            assert epoch(loader, {45: 3 * MB}) == list(range(N))
        # The next epoch's large sample may be made while this one's is held. Memory is taken in steps of 2 MB.
        settled(before, before["staging_bytes"] + 2 * 3 * MB + 2 * MB)


def test_two_jobs_share_what_is_large(start: Start, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data = f"Uneven({N}, {LATE}, log={log!r})"
    options = "{'batch_size': 4, 'shuffle': True, 'collate_fn': as_they_are, 'cohort': 'both', 'cohort_size': 2}"
    jobs = [start(TRAIN, data, options, 2, 0, "step", PYTHONPATH=HERE) for _ in range(2)]
    for one in jobs:
        assert one.line() == "ready"
    before = stream()
    in_step(*jobs, batches=2 * N // 4)
    assert stream()["id"] == before["id"]
    run_on(*jobs)
    assert [one["errors"] for job in jobs for one in reports(job)] == [[]] * 4
    # The calls are those of two epochs, of the ready part of a third, and of the inspection when the stream opened.
    assert len(ud.noted(log)) <= 3 * N + 16


def test_an_outlier_in_every_batch() -> None:
    large = {i: MB + i for i in range(3, N, 4)}
    with uneven(ud.Uneven(N, large)) as loader:
        for _ in range(2):
            assert epoch(loader, large) == list(range(N))


@pytest.mark.parametrize("where", [{0: 3 * MB}, {N - 1: 3 * MB}, {0: 3 * MB, N - 1: MB}])
def test_outliers_at_either_end(where: dict[int, int], staging: int) -> None:
    with uneven(ud.Uneven(N, where)) as loader:
        before = (loader.seed, stream())[1]
        for _ in range(2):
            assert epoch(loader, where) == list(range(N))
        settled(before, staging)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_where_all_are_large_a_few_minibatches_lie_ready(staging: int, workers: int) -> None:
    large = dict.fromkeys(range(N), MB + MB // 2)
    with uneven(ud.Uneven(N, large), num_workers=workers) as loader:
        before = (loader.seed, stream())[1]
        for _ in range(2):
            assert epoch(loader, large) == list(range(N))
        # Two things exceed the limit: the minibatch for which the job waits, and samples that workers have made and
        # cannot write yet. All 16 minibatches that could lie ready would take 96 MB.
        settled(before, staging + 12 * MB + workers * 2 * MB)


def test_a_minibatch_that_is_larger_than_the_whole_limit_still_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPREP_STAGING", "1M")
    large = {9: 7 * MB, 10: 9 * MB, 23: 5 * MB}
    with uneven(ud.Uneven(24, large), 3) as loader:
        for _ in range(3):
            assert epoch(loader, large) == list(range(24))


def test_jobs_with_different_batch_sizes_read_what_straddles_buffers() -> None:
    large = {i: MB // 2 + i for i in range(0, N, 3)}
    first, second = uneven(ud.Uneven(N, large), 8), uneven(ud.Uneven(N, large), 3)
    with first, second:
        assert first.seed == second.seed, "they share a stream, which the first has opened"
        for _ in range(2):
            others = iter(second)
            taken = [(check(batch, large), check(next(others), large)) for batch in first]
            rest = [i for batch in others for i in check(batch, large)]
            assert sorted(i for one, _ in taken for i in one) == list(range(N))
            assert sorted([i for _, other in taken for i in other] + rest) == list(range(N))
        assert second.stats()["copies"] > 0


def test_a_worker_that_dies_while_it_writes_a_large_one(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data = ud.DyingInTheMiddle(N, LATE, 50, str(mark))
    with uneven(data) as loader:
        before = (loader.seed, stream())[1]
        assert epoch(loader, LATE) == list(range(N))
        assert mark.exists(), "one has died"
        assert epoch(loader, LATE) == list(range(N))
        assert stream()["id"] == before["id"] and loader.stats()["errors"] == 0


def test_a_batch_that_is_held_for_long_stays_as_it_is() -> None:
    large = dict.fromkeys(range(0, N, 4), MB)
    holder, other = uneven(ud.Uneven(N, large)), uneven(ud.Uneven(N, large))
    with other:
        batches = iter(holder)
        held = [next(batches) for _ in range(2)]
        for _ in range(4):
            assert sorted(epoch(other, large)) == list(range(N))
        ids = [check(batch, large) for batch in held]
        # A held batch must also outlive its loader, after which its memory could go to another job.
        holder.close()
        for _ in range(2):
            assert sorted(epoch(other, large)) == list(range(N))
        assert [check(batch, large) for batch in held] == ids


def kill_fork_server() -> Callable[[], bool]:
    """Kills the fork server, which ends all its workers. The job starts another one when it waits for a batch."""
    workers = stream()["worker_pids"]
    (pid,) = {int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1]) for worker in workers}
    os.kill(pid, signal.SIGKILL)
    until(lambda: all(map(gone, [pid, *workers])), "workers end with it")
    return lambda: stream()["worker_pids"] == []


def stop_coordinator() -> Callable[[], bool]:
    pid = coordinator_pid()
    coprep.stop()
    return lambda: gone(pid)


@pytest.mark.parametrize("end", [kill_fork_server, stop_coordinator])
def test_what_lies_ready_when_its_maker_ends_is_whole(end: Callable[[], Callable[[], bool]]) -> None:
    # The dataset is larger than all that can lie ready, so that some samples are still to be made.
    size = 4 * N
    large = dict.fromkeys(range(0, size, 4), 300_000)
    with uneven(ud.Uneven(size, large)) as loader:
        batches = iter(loader)
        held = next(batches)
        until(lambda: stream()["jobs"][0]["held"] >= 6, "some batches lie ready")
        has_ended = end()
        # The job takes one more batch and releases it, so that another one is to be made.
        ids = check(held, large) + check(next(batches), large)
        until(has_ended, "the stream is given up, or has no workers")
        ids += [i for batch in batches for i in check(batch, large)]
        assert ids == list(range(size))
        assert check(held, large) == ids[:4]


@pytest.mark.parametrize("reuse", [None, 2])
def test_jobs_at_different_places_wait_for_samples_from_the_cache(
    reuse: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each large sample exceeds the limit. Some are copied from the cache, and some have left it when there is room.
    monkeypatch.setenv("COPREP_STAGING", "64K")
    large = dict.fromkeys(range(3, N, 4), 50_000)
    own: dict[str, Any] = {"cache": "prepared", "timeout": 60, **({} if reuse is None else {"reuse": reuse})}
    data = ud.Uneven(N, large)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
        loaders = [stack.enter_context(uneven(data, size, **own)) for size in (5, 16, 5, 3)]
        for _ in range(3):
            assert list(threads.map(lambda loader: epoch(loader, large), loaders)) == [list(range(N))] * 4


def test_a_job_that_does_not_read_keeps_no_memory_from_one_that_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is less than one minibatch. So each minibatch exceeds it, and is made only for a job that waits for it.
    monkeypatch.setenv("COPREP_STAGING", "64K")
    large = dict.fromkeys(range(N), 20_000)
    data, options = ud.Uneven(N, large), {"num_workers": 1, "timeout": 60}
    with uneven(data, **options) as paused:
        batches = iter(paused)
        first = check(next(batches), large)
        until(lambda: stream()["jobs"][0]["queued"] >= 1, "more is made for it than it has taken")
        with uneven(data, **options) as other:
            assert other.seed == paused.seed, "they share a stream"
            assert epoch(other, large) == list(range(N))
        assert first + [i for batch in batches for i in check(batch, large)] == list(range(N))


def test_a_job_that_keeps_all_batches_is_given_copies(staging: int) -> None:
    large = dict.fromkeys(range(0, N, 2), MB)
    with uneven(ud.Uneven(N, large)) as loader:
        before = (loader.seed, stream())[1]
        kept = list(loader)
        assert [i for batch in kept for i in check(batch, large)] == list(range(N))
        assert loader.stats()["copies"] > 0
        settled(before, staging + 4 * MB)


def test_what_one_job_writes_in_place_no_other_sees() -> None:
    large = dict.fromkeys(range(0, N, 4), MB)
    first, second = uneven(ud.Uneven(N, large)), uneven(ud.Uneven(N, large))
    with first, second:
        for _ in range(2):
            for one, other in zip(first, second, strict=True):
                for values, _ in one[0]:
                    values += 100
                check(other, large)


def test_everything_is_given_back() -> None:
    with uneven(ud.Uneven(N, LATE)) as loader:
        assert epoch(loader, LATE) == list(range(N))
        batches = iter(loader)
        held = next(batches)
        del held, batches
        until(
            lambda: stream()["jobs"][0]["held"] <= stream()["jobs"][0]["queued"], "nothing is held but what is queued"
        )
    until(lambda: not coprep.status()["streams"], "the stream goes")


@pytest.mark.parametrize("reuse", [None, 2])
def test_large_samples_are_kept_prepared(tmp_path: Path, reuse: int | None) -> None:
    log = str(tmp_path / "log")
    own: dict[str, Any] = {"cache": "prepared", "cache_bytes": "16M"}
    if reuse is not None:
        own["reuse"] = reuse
    with uneven(ud.Uneven(N, LATE, log=log, pause=0.001), **own) as loader:
        for _ in range(4):
            assert epoch(loader, LATE) == list(range(N))
        calls = Counter(ud.noted(log))
        assert set(calls) == {f"dataset:{i}" for i in range(N)}
        if reuse is None:
            # Some samples are inspected before, and some may be in preparation when the next epoch begins.
            assert sum(calls.values()) <= N + 16 + 8


def test_large_values_are_kept_before_the_random_part(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data = ud.Uneven(N, LATE, log=log, pause=0.001)
    with uneven(data, cache="decoded", transform=ud.same, shuffle=True) as loader:
        for _ in range(3):
            assert sorted(epoch(loader, LATE)) == list(range(N))
        assert sum(Counter(ud.noted(log)).values()) <= N + 16 + 24


def test_a_sample_for_which_there_can_never_be_memory_is_one_clear_error(start: Start) -> None:
    # The coordinator inherits the limits of the job that starts it.
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))\n"
    data, options = f"Uneven({N}, {{40: 40 << 20}})", "{'batch_size': 4, 'collate_fn': as_they_are}"
    job = start(limited + TRAIN, data, options, 1, 0, PYTHONPATH=HERE)
    assert job.line() == "ready"
    go(job)
    (report,) = reports(job)
    assert sorted(report["seen"]) == [i for i in range(N) if i != 40]
    ((kind, text, id, *_),) = report["errors"]
    assert (kind, id) == ("SampleError", 40)
    assert "41943" in text and "ulimit -f" in text and "make the sample, or the batch, smaller" in text


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a mount namespace")
def test_a_small_dev_shm_is_enough_for_large_samples(socket_path: Path) -> None:
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    options = "{'batch_size': 4, 'collate_fn': as_they_are}"
    training = [sys.executable, "-c", TRAIN, f"Uneven({N}, {LATE})", options, "2", "0"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *training],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT * 2,
        env={**os.environ, "PYTHONPATH": HERE},
    )
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line) for line in done.stdout.splitlines() if line != "ready"]
    assert [sorted(epoch["seen"]) for epoch in epochs] == [list(range(N))] * 2
    assert all(not epoch["errors"] for epoch in epochs)


def test_no_core_dump_of_a_worker_looks_for_memory_that_is_not_there() -> None:
    with uneven(ud.Uneven(N, LATE), persistent_workers=True) as loader:
        assert epoch(loader, LATE) == list(range(N))
        (pid, *_) = stream()["worker_pids"]
        maps = Path(f"/proc/{pid}/smaps").read_text()
    # Each mapping has its name in the first line and its flags in the last.
    _, staging = maps.split("coprep-staging", 1)
    flags = next(line for line in staging.splitlines() if line.startswith("VmFlags:"))
    assert "dd" in flags.split()


def test_texts_of_any_length_beside_fields() -> None:
    lengths = [7, 100_000, 0, 3, 1_000_000, 50]
    with coprep.DataLoader(ud.Lines(lengths * 6), 4, **NUMPY) as loader:
        for _ in range(2):
            for batch, ids in loader:
                assert batch["text"] == ["x" * lengths[i % 6] for i in ids.tolist()]
                assert (np.asarray(batch["id"]) == ids).all()


def test_jobs_that_begin_later_see_large_samples_too(start: Start) -> None:
    options = "{'batch_size': 4, 'shuffle': True, 'collate_fn': as_they_are}"
    large = dict.fromkeys(range(0, N, 5), MB)
    first = start(TRAIN, f"Uneven({N}, {large})", options, 3, 0.01, PYTHONPATH=HERE)
    assert first.line() == "ready"
    go(first)
    second = start(TRAIN, f"Uneven({N}, {large})", options, 2, 0, PYTHONPATH=HERE)
    assert second.line() == "ready"
    go(second)
    assert [seen(first), seen(second)] == [[list(range(N))] * 3, [list(range(N))] * 2]
