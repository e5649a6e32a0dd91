"""Tests bad days of user code: it raises, hangs, dies and changes, and so do its processes. Nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
import user_datasets as ud
from batches import QUEUE, ids
from coordinators import coordinator_pid, processes_of, stream
from jobs import Job, Start, go, in_step, reports, run_on, seen
from user_jobs import HERE, NUMPY, RANK, TRAIN, job
from waiting import gone, stop, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 24


def epoch(loader: coprep.DataLoader) -> tuple[list[int], list[Exception]]:
    """Returns the ids of an epoch, in ascending order, and its exceptions."""
    batches = iter(loader)
    taken: list[int] = []
    raised: list[Exception] = []
    while True:
        try:
            taken += next(batches)[-1].tolist()
        except StopIteration:
            return sorted(taken), raised
        except Exception as error:
            raised.append(error)


def without(*bad: int) -> list[int]:
    return [i for i in range(N) if i not in bad]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def fork_server() -> int:
    """Returns the process from which the workers were forked."""
    pids: list[int] = []

    def found() -> bool:
        # A worker may have ended since, and be replaced.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids[:] = {parent(worker) for worker in stream()["worker_pids"]}
        return bool(pids)

    until(found, "there are workers")
    (pid,) = pids
    return pid


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: all(map(gone, pids)), "they are gone")


def until_delivered(samples: int) -> None:
    until(lambda: stream()["totals"]["delivered"] == samples, "workers have nothing to do")


# --- user code raises ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["dataset", "transform"])
def test_an_exception_reaches_every_job(start: Start, stage: str) -> None:
    data, transform = f"Faulty({N}, [5, 17], fail)", "None"
    if stage == "transform":
        data, transform = f"Numbers({N})", "FaultyTransform([5, 17], fail)"
    options = "{'batch_size': %d, 'shuffle': True, 'transform': " + transform + "}"
    jobs = [start(TRAIN, data, options % size, 2, 0.005, PYTHONPATH=HERE) for size in (4, 4, 6)]
    for one in jobs:
        assert one.line() == "ready"
    assert len(stream()["jobs"]) == 3
    go(*jobs)
    for report in [report for one in jobs for report in reports(one)]:
        assert sorted(report["seen"]) == without(5, 17)
        errors = sorted(report["errors"], key=lambda error: error[2])
        for (kind, text, id, where, worker, cause), bad in zip(errors, (5, 17), strict=True):
            assert (kind, text, id, where) == ("Broken", f"sample {bad} is broken", bad, stage)
            assert re.fullmatch(r"[01] \(process \d+\)", worker)
            assert "raise Broken(i)" in cause and "user_datasets.py" in cause and "coprep/_worker.py" not in cause


def test_an_exception_is_raised_as_it_was() -> None:
    with coprep.DataLoader(ud.Faulty(N, [7], ud.fail), 4, **NUMPY) as loader:
        taken, (error,) = epoch(loader)
        assert taken == without(7)
        assert type(error) is ud.Broken and error.id == 7 and str(error) == "sample 7 is broken"
        cause = error.__cause__
        assert type(cause) is coprep.SampleError and (cause.id, cause.stage) == (7, "dataset")
        # The next epoch tries the sample again.
        taken, (error,) = epoch(loader)
        assert taken == without(7) and type(error) is ud.Broken
        assert loader.stats()["errors"] == 2


@pytest.mark.parametrize("bad", [1, 7])
def test_every_pass_that_an_exception_ends_begins_anew(bad: int) -> None:
    with coprep.DataLoader(ud.Faulty(N, [bad], ud.fail), 4, **NUMPY) as loader:
        for _ in range(3):
            taken: list[int] = []
            with pytest.raises(ud.Broken):
                for batch in loader:
                    taken += batch[-1].tolist()
            assert taken == list(range(bad // 4 * 4))
        assert loader.stats()["errors"] == 3


def test_of_several_in_a_batch_the_first_is_raised_first_whoever_was_quicker() -> None:
    data = ud.Faulty(N, [8, 9, 10, 13], ud.fail, pause=0.002, slow={8: 0.3, 9: 0.1})
    with coprep.DataLoader(data, 4, **{**NUMPY, "num_workers": 4}) as loader:
        batches = iter(loader)
        found: list[Any] = []
        while True:
            try:
                found.append(next(batches)[-1].tolist())
            except ud.Broken as error:
                found.append(error.id)
            except StopIteration:
                break
    # Another sample may have replaced one that failed.
    assert [found[0], found[1]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found[2:5] == [8, 9, 10] and 11 in found[5]
    assert [one for one in found if isinstance(one, int)] == [8, 9, 10, 13]
    assert sorted(i for one in found if isinstance(one, list) for i in one) == without(8, 9, 10, 13)


def test_stop_iteration_ends_no_epoch() -> None:
    with coprep.DataLoader(ud.Faulty(N, [7], ud.stop), 4, **NUMPY) as loader:
        taken, (error,) = epoch(loader)
        assert taken == without(7)
        assert type(error) is RuntimeError and "sample 7 raised StopIteration" in str(error)


def test_skipping_counts_and_goes_on() -> None:
    transform = ud.FaultyTransform([3, 11, 12], ud.fail)
    with coprep.DataLoader(ud.Numbers(N), 4, True, on_error="skip", transform=transform, **NUMPY) as loader:
        for _ in range(3):
            assert epoch(loader) == (without(3, 11, 12), [])
        assert stream()["jobs"][0]["skipped"] == loader.stats()["skipped"] == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_when_all_samples_fail_the_first_is_raised(workers: int) -> None:
    data = ud.Faulty(N, list(range(N)), ud.fail)
    with coprep.DataLoader(data, 4, **{**NUMPY, "num_workers": workers}) as loader:
        with pytest.raises(ud.Broken, match="sample 0 is broken"):
            next(iter(loader))
        data.bad = []
        assert epoch(loader) == (without(), [])


def test_skipping_goes_on_when_the_first_samples_fail() -> None:
    data = ud.Faulty(N, list(range(8)), ud.fail)
    with coprep.DataLoader(data, 4, on_error="skip", **NUMPY) as loader:
        assert epoch(loader) == (list(range(8, N)), [])


def test_a_worker_init_fn_that_raises_says_so() -> None:
    loader = coprep.DataLoader(ud.Numbers(N), 4, worker_init_fn=ud.raising_init, **NUMPY)
    with pytest.raises(ud.Broken, match="not a good number") as caught:
        next(iter(loader))
    assert "raising_init" in str(caught.value.__cause__)
    loader.close()


# --- workers die ---------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_while_idle_is_replaced() -> None:
    with coprep.DataLoader(ud.Numbers(N), 4, True, **NUMPY) as loader:
        assert epoch(loader) == (without(), [])
        for number in range(2):
            # The next epoch is prepared when it begins.
            until_delivered((1 + 3 * number) * N)
            pids = stream()["worker_pids"]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            until(lambda pids=pids: not set(pids) & set(stream()["worker_pids"]), "their end is seen")
            for _ in range(3):
                assert epoch(loader) == (without(), [])


def test_a_worker_that_is_killed_while_busy_loses_nothing(start: Start) -> None:
    # The dataset is large enough that even with full queues each taken batch leaves a sample to make.
    size = 4 * (4 * 3 + 2 * QUEUE)
    jobs = [job(start, f"Numbers({size}, pause=0.03)", 1, 0, "step", batch_size=4) for _ in range(2)]
    for _ in range(4):
        # Six more prepared samples show that a sample that was lost before has been made.
        prepared = stream()["totals"]["prepared"]
        in_step(*jobs, batches=3)
        until(lambda prepared=prepared: stream()["totals"]["prepared"] >= prepared + 6, "samples are made")
        with contextlib.suppress(IndexError, ProcessLookupError):
            os.kill(stream()["worker_pids"][0], signal.SIGKILL)
    run_on(*jobs)
    for one in jobs:
        for report in reports(one):
            assert sorted(report["seen"]) == list(range(size)) and report["errors"] == []


# The timing decides whether two messages come at once, so a single run may miss that case.
def test_many_workers_that_are_killed_are_replaced_by_the_same_fork_server() -> None:
    size = 4 * (20 + 2 * QUEUE)
    with coprep.DataLoader(ud.Numbers(size, pause=0.02), 4, **{**NUMPY, "num_workers": 8}) as loader:
        batches = iter(loader)
        taken = next(batches)[-1].tolist()
        first = fork_server()
        for number in range(4):
            # All that may lie ready does, so that no sample is lost twice.
            until_delivered((1 + 5 * number + QUEUE) * 4)
            for _ in range(5):
                taken += next(batches)[-1].tolist()
            workers = stream()["worker_pids"]
            # A stopped coordinator cannot give the samples of a killed worker to the next one that is killed.
            with stopped(coordinator_pid()):
                kill_all(workers)
        taken += next(batches)[-1].tolist()
        assert fork_server() == first
        taken += [i for batch in batches for i in batch[-1].tolist()]
        assert sorted(taken) == list(range(size))
        assert loader.stats()["reconnects"] == 0


@pytest.mark.parametrize(
    ("what", "how"),
    [
        (ud.kill, "signal 9, SIGKILL"),
        (ud.crash, "signal 11, SIGSEGV"),
        (ud.leave, "exited with status 5"),
        (ud.leave_at_once, "exited with status 5"),
        (ud.interrupt, "exited with status 1"),
    ],
)
def test_a_sample_that_ends_its_worker_is_reported(tmp_path: Path, what: Any, how: str) -> None:
    log = str(tmp_path / "log")
    with coprep.DataLoader(ud.Faulty(N, [5], what, log=log), 4, **NUMPY) as loader:
        for _ in range(2):
            taken, (error,) = epoch(loader)
            assert taken == without(5)
            assert type(error) is coprep.SampleError and error.id == 5
            assert "sample 5" in str(error) and how in str(error) and "another before" in str(error)
            assert ud.noted(log).count("dataset:5") == 2, "in the second epoch it fails at once"
    # No other sample is suspected, which would have it made again more often.
    assert ud.noted(log).count("dataset:6") <= ud.noted(log).count("dataset:5") + 4


def test_jobs_may_skip_a_sample_that_ends_its_worker() -> None:
    with coprep.DataLoader(ud.Faulty(N, [5], ud.kill), 4, on_error="skip", **NUMPY) as loader:
        for _ in range(2):
            assert epoch(loader) == (without(5), [])


def test_a_sample_that_ends_its_worker_among_those_that_are_looked_at_first_is_reported_as_any_other() -> None:
    # With a transform, four samples spread over the dataset are inspected: 0, 16, 8 and 4.
    options: dict[str, Any] = {"transform": ud.FaultyTransform([], None), **NUMPY}
    with coprep.DataLoader(ud.Faulty(N, [4], ud.kill), 4, **options) as loader:
        taken, (error,) = epoch(loader)
    assert taken == without(4)
    assert type(error) is coprep.SampleError and error.id == 4


@pytest.mark.parametrize("what", [ud.kill, ud.leave_at_once])
def test_a_first_sample_that_ends_its_worker_is_reported_as_any_other(what: Any) -> None:
    with coprep.DataLoader(ud.Faulty(N, [0], what), 4, **NUMPY) as loader:
        taken, (error,) = epoch(loader)
    assert taken == without(0)
    assert type(error) is coprep.SampleError and error.id == 0


def test_a_sample_that_hangs_is_reported_with_the_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with coprep.DataLoader(ud.Faulty(N, [5], ud.hang, log=str(log)), 4, timeout=1, **NUMPY) as loader:
        taken, (error,) = epoch(loader)
        assert ud.noted(log).count("dataset:5") == 2, "another worker tries it once more"
        assert taken == without(5)
        assert type(error) is coprep.SampleError and error.id == 5
        assert "longer than 1 s" in str(error)


def test_a_first_sample_that_hangs_is_reported_with_the_time() -> None:
    loader = coprep.DataLoader(ud.Faulty(N, [0], ud.hang), 4, timeout=0.5, **NUMPY)
    with pytest.raises(coprep.CoprepError) as caught:
        next(iter(loader))
    assert "sample" in str(caught.value) and "longer" in str(caught.value)


def test_a_short_timeout_is_for_samples_and_not_for_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADS_S", "4")
    with coprep.DataLoader("user_datasets:slow_to_load", 4, timeout=1, **NUMPY) as loader:
        assert epoch(loader) == (without(), [])


# --- fork servers and coordinators die ---------------------------------------------------------------------------


def test_jobs_go_on_when_the_fork_server_is_killed(start: Start) -> None:
    # The jobs take more than lay ready, twice, and one more epoch.
    steps, sizes = QUEUE + 2, (4, 6)
    epochs = 2 * steps // (N // max(sizes)) + 2
    jobs = [job(start, f"Numbers({N}, pause=0.005)", epochs, 0.01, "step", batch_size=size) for size in sizes]
    for last in (False, True):
        in_step(*jobs, batches=steps)
        before = stream()["worker_pids"]
        killed = fork_server()
        # The second time, the fork server is killed while the jobs run on.
        if last:
            run_on(*jobs)
        os.kill(killed, signal.SIGKILL)
        until(lambda killed=killed, before=before: all(map(gone, [killed, *before])), "workers end with it", 3)
    for one in jobs:
        for report in reports(one):
            assert sorted(report["seen"]) == without() and report["errors"] == []


def test_jobs_go_on_when_the_coordinator_is_killed(start: Start) -> None:
    jobs = [job(start, f"Numbers({N}, pause=0.005)", 4, 0.03, "step", batch_size=size) for size in (4, 6)]
    in_step(*jobs, batches=5)
    first, others = coordinator_pid(), [fork_server(), *stream()["worker_pids"]]
    run_on(*jobs)
    os.kill(first, signal.SIGKILL)
    until(lambda: all(map(gone, others)), "nothing that runs user code outlives it", 3)
    for one in jobs:
        for report in reports(one):
            assert sorted(report["seen"]) == without() and report["errors"] == []
    assert coordinator_pid() != first


def ranks_in_step(start: Start, dataset: str = "Numbers(50)") -> list[Job]:
    """Starts two ranks of a job that wait for a line before each batch."""
    code = RANK.replace("count += 1", 'count += 1\n    print("batch", flush=True)\n    sys.stdin.readline()')
    code = code.replace("seen, batches, count", "sys.stdin.readline()\nseen, batches, count", 1)
    code = code.replace("Numbers(50)", dataset)
    options = "{'rank': %d, 'world_size': 2, 'group': 'g'}"
    return [start(code, "none", -1, options % rank, PYTHONPATH=HERE) for rank in range(2)]


def assert_every_sample_once(ranks: list[Job]) -> None:
    """Asserts that ranks, told to continue after their last batch, have had all samples in the same number of steps."""
    results = [json.loads(one.line()) for one in ranks]
    for one in ranks:
        one.say("end")
        one.result()
    assert [steps for steps, _ in results] == [7, 7]
    assert sorted(i for _, taken in results for i in taken) == list(range(50))


def test_ranks_go_on_when_the_fork_server_is_killed(start: Start) -> None:
    ranks = ranks_in_step(start)
    in_step(*ranks, batches=3)
    os.kill(fork_server(), signal.SIGKILL)
    in_step(*ranks, batches=4)
    go(*ranks)
    assert_every_sample_once(ranks)


@pytest.mark.parametrize("what", [coordinator_pid, fork_server])
def test_a_rank_that_computes_does_not_hold_up_one_that_waits(start: Start, what: Callable[[], int]) -> None:
    """It requests nothing until the other rank has its batch, as in a collective operation of both."""
    computes, asks = ranks = ranks_in_step(start)
    in_step(*ranks, batches=3)
    os.kill(what(), signal.SIGKILL)
    for rank in (asks, computes):
        rank.say("on")
        assert rank.line() == "batch"
    in_step(*ranks, batches=3)
    go(*ranks)
    assert_every_sample_once(ranks)


def test_stopping_leaves_no_process(socket_path: Path) -> None:
    with coprep.DataLoader(ud.Numbers(N, pause=0.01), 4, True, **NUMPY) as loader:
        batches = iter(loader)
        taken = next(batches)[-1].tolist()
        others = [coordinator_pid(), fork_server(), *stream()["worker_pids"]]
        coprep.stop()
        until(lambda: all(map(gone, others)), "all processes end", 3)
        assert sorted(taken + [i for batch in batches for i in batch[-1].tolist()]) == without()


def test_closing_the_last_loader_ends_its_processes(socket_path: Path) -> None:
    for persists in (False, True):
        with coprep.DataLoader(ud.Numbers(N), 4, True, persistent_workers=persists, **NUMPY) as loader:
            assert epoch(loader) == (without(), [])
        until(lambda: set(processes_of(socket_path)) <= {coordinator_pid()}, "they end", 3)


def test_workers_have_the_environment_of_their_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in ("first", "second"):
        monkeypatch.setenv("MARK", mark)
        with coprep.DataLoader(ud.Place(4), 4, **NUMPY) as loader:
            ((batch, _),) = loader
        assert batch["variable"] == [mark] * 4


def test_a_job_that_is_killed_while_its_dataset_is_loaded_leaves_nothing(start: Start, socket_path: Path) -> None:
    victim = start(TRAIN, "'user_datasets:slow_to_load'", "{}", 1, 0, PYTHONPATH=HERE, LOADS_S="300")
    # The job, the coordinator, and the interpreter that loads.
    until(lambda: len(processes_of(socket_path)) == 3, "the fork server loads")
    victim.kill()
    until(lambda: processes_of(socket_path) == [coordinator_pid()], "it is gone, and what loads for it", 10)
    with coprep.DataLoader(ud.Numbers(N), 4, **NUMPY) as loader:
        assert epoch(loader) == (without(), [])


# --- unsuitable datasets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["connection", "open file", "beside its identity", "in a transform", "locks"])
def test_a_dataset_need_not_be_pickled(tmp_path: Path, kind: str, workers: int) -> None:
    (tmp_path / "data").touch()
    options: dict[str, Any] = {**NUMPY, "num_workers": workers}
    data: Any = ud.Numbers(8)
    if kind == "connection":
        data = ud.Connected()
    elif kind == "open file":
        data = ud.OpenFile(tmp_path / "data")
    elif kind == "beside its identity":
        data = ud.Identified(ud.Connected().connection)
    elif kind == "locks":
        data = ud.Locked()
    else:
        options["transform"] = ud.FaultyTransform([], ud.Connected().connection)
    with coprep.DataLoader(data, 4, **options) as loader:
        for _ in range(2):
            assert epoch(loader) == (list(range(8)), [])


def test_a_dataset_that_cannot_be_pickled_cannot_be_sent_to_a_new_interpreter() -> None:
    loader = coprep.DataLoader(ud.Connected(), 4, multiprocessing_context="spawn", **NUMPY)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"cannot pickle 'sqlite3.Connection' object"):
            next(iter(loader))
    assert coprep.status()["streams"] == []


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((ud.np.zeros(3, ud.np.int64), 5), r"part '0'.*shape \(3,\).*shape \(64,\)"),
        ((ud.np.zeros(64, ud.np.float32), 5), r"part '0'.*float32.*int64"),
        ((ud.np.zeros(64, ud.np.int64), "5"), r"part '1'.*str.*int"),
        ((ud.np.zeros(64, ud.np.int64), 5, 5), r"sample.*3.*2"),
        ("five", r"str.*list"),
        (None, r"None.*list"),
    ],
    ids=["shape", "dtype", "type of a part", "length", "type", "none"],
)
def test_a_sample_unlike_the_first_is_named(sample: Any, message: str) -> None:
    with coprep.DataLoader(ud.Odd(N, 5, sample), 4, **NUMPY) as loader:
        taken, (error,) = epoch(loader)
    # As with PyTorch, no batch can be made of them, and the next ones come.
    assert taken == [i for i in range(N) if i // 4 != 5 // 4]
    assert isinstance(error, ValueError) and re.search(message, str(error)), error
    assert str(error).startswith("sample 5 is unlike the first one of its batch") and "collate_fn" in str(error)


def test_a_module_that_only_the_job_has_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_by_hand")
    exec("class Data:\n  def __len__(self): return 8\n  def __getitem__(self, i): return i\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    with coprep.DataLoader(module.Data(), 4, **NUMPY) as loader:
        assert epoch(loader) == (list(range(8)), [])


def test_an_empty_dataset_has_no_batches() -> None:
    for options in ({}, {"shuffle": True}, {"drop_last": True}):
        loader = coprep.DataLoader(ud.Numbers(0), 4, **NUMPY, **options)
        assert len(loader) == 0 and list(loader) == [] and list(loader) == []


def test_what_can_only_be_iterated_over_is_refused() -> None:
    with pytest.raises(TypeError, match="generator can only be iterated over"):
        coprep.DataLoader(i for i in range(10))


def test_user_code_may_print_a_lot() -> None:
    with coprep.DataLoader(ud.Loud(N), 4, True, **NUMPY) as loader:
        for _ in range(3):
            assert sorted(ids(loader)) == without()


def test_a_job_may_come_after_one_that_failed(start: Start) -> None:
    """A failed job's own process must not keep other jobs from the dataset."""
    broken = start(TRAIN, "'user_datasets:missing'", "{}", 1, 0, PYTHONPATH=HERE)
    code, error = broken.ended()
    assert code != 0 and "missing" in error
    after = job(start, f"Numbers({N})", 1)
    go(after)
    assert seen(after) == [without()]
