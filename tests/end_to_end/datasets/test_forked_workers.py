"""Tests that workers are copies of a job, as PyTorch's are, and end with it while other jobs notice nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import coprep
import pytest
import user_datasets as ud
from coordinators import coordinator_pid, processes_of, stream
from jobs import Job, Start
from user_jobs import HERE, NUMPY
from waiting import WAIT, gone, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 240
PAUSE = 0.005
SOON = 2.0
"""Seconds after which nothing of a job may be left. It is one second on a machine without other work."""

DRIVEN = """
import itertools, json, os, signal, socket, sys, threading, time, warnings
import coprep
import user_datasets as ud
options = dict(batch_size=4, framework="numpy", with_index=True, num_workers=2)
seen = []
def begin(dataset, **own):
    global data, loader, batches
    data = dataset
    loader = coprep.DataLoader(data, **{**options, **own})
    batches = iter(loader)
def take(number=None):
    for batch in itertools.islice(batches, number):
        seen.extend(batch[-1].tolist())
for line in sys.stdin:
    exec(json.loads(line))
    # One write, for workers write to the same pipe.
    sys.stdout.write("done\\n")
    sys.stdout.flush()
"""
"""A job that executes the code that it is told, one piece a line, as JSON."""


def driven(start: Start, *pieces: str) -> Job:
    job = start(DRIVEN, PYTHONPATH=HERE)
    do(job, *pieces)
    return job


def do(job: Job, *pieces: str) -> list[str]:
    """Lets a job execute pieces of code. Returns what it has printed."""
    printed = []
    for code in pieces:
        tell(job, code)
        while (told := job.line()) != "done":
            printed.append(told)
    return printed


def tell(job: Job, code: str) -> None:
    job.say(json.dumps(code))


def seen(job: Job) -> list[int]:
    (told,) = do(job, "print(seen)")
    return list(json.loads(told))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def workers_of(job: Job) -> list[int]:
    """Returns the fork server that was forked from a job, and its workers, once they run."""
    found: list[int] = []

    def are_found() -> bool:
        # A worker may have ended since it was listed.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            workers = stream()["worker_pids"]
            servers = {parent(worker) for worker in workers}
            found[:] = [*servers, *workers]
            return bool(servers) and all(parent(server) == job.process.pid for server in servers)
        return False

    until(are_found, "the job has forked workers")
    return found


def numbers(**more: Any) -> str:
    arguments = "".join(f", {name}={value!r}" for name, value in more.items())
    return f"ud.Numbers({N}, pause={PAUSE}{arguments})"


# --- a job that has forked workers leaves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "leave",
    ["loader.close()", "del loader, batches", "sys.exit()", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"],
)
def test_others_notice_nothing_when_the_job_that_forked_the_workers_leaves(start: Start, leave: str) -> None:
    first = driven(start, f"begin({numbers()}, shuffle=True)", "take(3)")
    others = [driven(start, f"begin({numbers()}, shuffle=True)", "take(2)") for _ in range(2)]
    assert len(stream()["jobs"]) == 3
    processes = workers_of(first)
    tell(first, leave)
    until(lambda: all(map(gone, processes)), "its workers end with it", SOON)
    for other in others:
        do(other, "take()")
        assert sorted(seen(other)) == list(range(N))
        assert other.process.poll() is None
    assert len(stream()["jobs"]) == 2
    for other in others:
        other.run_on()
        code, errors = other.ended()
        assert (code, errors) == (0, "")


def test_each_job_that_is_left_forks_in_its_turn(start: Start) -> None:
    jobs = [driven(start, f"begin({numbers()}, shuffle=True)", "take(1)") for _ in range(3)]
    for number, job in enumerate(jobs):
        # The others do not wait for a batch, so they are not asked.
        do(job, "take(20)")
        workers_of(job)
        if job is not jobs[-1]:
            job.kill()
            until(lambda left=2 - number: len(stream()["jobs"]) == left, "it has left")
    do(jobs[-1], "take()")
    assert sorted(seen(jobs[-1])) == list(range(N))


@pytest.mark.parametrize("end", ["loader.close(); listening.close(); locked.close()", "os.kill(os.getpid(), 9)"])
def test_what_a_job_holds_is_free_when_it_has_left(start: Start, tmp_path: Path, end: str) -> None:
    (tmp_path / "lock").touch()
    first = driven(
        start,
        "listening = socket.create_server(('127.0.0.1', 0))",
        f"import fcntl; locked = open({str(tmp_path / 'lock')!r}); fcntl.flock(locked, fcntl.LOCK_EX)",
        f"begin({numbers()}, shuffle=True)",
        "take(3)",
    )
    port = int(do(first, "print(listening.getsockname()[1])")[0])
    other = driven(start, f"begin({numbers()}, shuffle=True)", "take(2)")
    workers_of(first)
    tell(first, end)

    def port_is_free() -> bool:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return True
        return False

    def lock_is_free() -> bool:
        with open(tmp_path / "lock") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    until(port_is_free, "the port is free", SOON)
    until(lock_is_free, "the lock is free", SOON)
    do(other, "take()")
    assert sorted(seen(other)) == list(range(N))


@pytest.mark.parametrize("code", ["take(3)", "take()", "take(3); os._exit(0)"])
def test_the_pipes_of_a_job_end_with_it(start: Start, code: str) -> None:
    """As in ``python job.py | tee log``, while another job has the stream."""
    script = textwrap.dedent(DRIVEN).partition("for line in")[0] + f"begin({numbers()}, shuffle=True); {code}\n"
    environment = {**os.environ, "PYTHONPATH": HERE}
    command = [sys.executable, "-c", script]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    other = driven(start, f"begin({numbers()}, shuffle=True)", "take(1)")
    first.wait(WAIT)
    out, err = first.communicate(timeout=SOON)
    assert (out, err) == ("", "")
    do(other, "take()")
    assert sorted(seen(other)) == list(range(N))


def test_nothing_outlives_a_coordinator_that_is_killed(start: Start) -> None:
    job = driven(start, f"begin({numbers()}, persistent_workers=True)", "take(3)")
    processes = workers_of(job)
    os.kill(coordinator_pid(), signal.SIGKILL)
    until(lambda: all(map(gone, processes)), "they end with it", SOON)
    do(job, "take()")
    assert sorted(seen(job)) == list(range(N))


def test_many_loaders_leave_no_descriptor_and_no_zombie(start: Start, socket_path: Path) -> None:
    job = driven(
        start,
        "def run(number):\n    begin(ud.Numbers(24, pause=number * 1e-6))\n    take()\n    loader.close()",
        f"begin({numbers()})",
        "take(1)",
        "kept = loader, batches",
        *[f"run({number})" for number in range(101, 105)],
    )
    pids = (coordinator_pid(), job.process.pid)
    before = [descriptors(pid) for pid in pids]
    do(job, *[f"run({number})" for number in range(1, 13)])
    for pid, most in zip(pids, before, strict=True):
        # A leak would show as many descriptors.
        until(lambda pid=pid, most=most: descriptors(pid) <= most + 3, "no descriptor is left")
    until(lambda: zombies(job.process.pid) == [], "no zombie is left", SOON)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def zombies(pid: int) -> list[int]:
    return [child for child in children(pid) if gone(child)]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_job_may_have_more_open_files_than_select_can_watch(start: Start, method: str) -> None:
    job = driven(
        start,
        "from resource import RLIMIT_NOFILE, getrlimit, setrlimit",
        "setrlimit(RLIMIT_NOFILE, (4096, getrlimit(RLIMIT_NOFILE)[1]))",
        "files = [open('/dev/null') for _ in range(1100)]",
        f"begin({numbers()}, multiprocessing_context={method!r})",
        "take()",
    )
    assert sorted(seen(job)) == list(range(N))


# --- when workers end -----------------------------------------------------------------------------------------


def test_workers_end_with_the_pass(socket_path: Path) -> None:
    with coprep.DataLoader(ud.Numbers(24, pause=0.005), 4, True, **NUMPY) as loader:
        for _ in range(3):
            workers = []
            for _batch in loader:
                workers = workers or stream()["worker_pids"]
            assert workers
            until(lambda workers=workers: all(map(gone, workers)), "they end", SOON)
            until(lambda: set(processes_of(socket_path)) <= {coordinator_pid()}, "so does their fork server", SOON)


@pytest.mark.parametrize("pause", [0.005, 0.5])
def test_workers_that_have_inspected_samples_end(pause: float) -> None:
    with coprep.DataLoader(ud.Numbers(24, pause=pause), 4, **NUMPY) as loader:
        batches = iter(loader)
        next(batches)
        (server,) = {parent(worker) for worker in stream()["worker_pids"]}
        until(lambda: set(children(server)) == set(stream()["worker_pids"]), "the others end", SOON)
        del batches


def test_persistent_workers_stay_until_the_loader_is_closed() -> None:
    with coprep.DataLoader(ud.Numbers(24, pause=0.005), 4, True, persistent_workers=True, **NUMPY) as loader:
        workers: set[int] = set()
        for _ in range(3):
            assert len(list(loader)) == 6
            workers |= set(stream()["worker_pids"])
        assert len(workers) == 2
    until(lambda: all(map(gone, workers)), "they end", SOON)


def test_workers_see_what_the_job_has_set_before_each_pass() -> None:
    with coprep.DataLoader(ud.Settings(8), 4, **NUMPY) as loader:
        for setting in (3, 5):
            ud.Settings.setting = setting
            try:
                assert [values.tolist() for (values, _), _ in loader] == [[setting] * 4] * 2
            finally:
                ud.Settings.setting = 0


# --- a worker is a copy of the job -----------------------------------------------------------------------------


def test_modules_are_imported_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, user_datasets as ud\n"
        f"ud.note({str(tmp_path / 'imports')!r}, os.getpid())\n"
        "VALUE = 0\n"
        "class Data(ud.Numbers):\n"
        "    def __getitem__(self, i):\n"
        "        return VALUE, i\n"
    )
    job = driven(start, f"sys.path.insert(0, {str(tmp_path)!r}); import mine; mine.VALUE = 7")
    do(job, "begin(mine.Data(24))", "values = [v for (values, _), _ in batches for v in values.tolist()]")
    assert do(job, "print(set(values))") == ["{7}"], "what a program sets in its modules reaches the workers"
    assert ud.noted(tmp_path / "imports") == [str(job.process.pid)]


def test_open_handles_are_inherited(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(range(24)))
    with coprep.DataLoader(ud.Handles(tmp_path / "data", 24), 4, **NUMPY) as loader:
        for _ in range(2):
            values = [value for (read, _), _ in loader for value in read.tolist()]
            assert values == list(range(24))


def test_objects_of_multiprocessing_reach_workers(start: Start) -> None:
    job = driven(
        start,
        "import multiprocessing as mp; manager = mp.Manager()",
        "counted, noted, queue = mp.Value('i', 0), manager.dict(), mp.SimpleQueue()",
        "begin(ud.Counted(24, counted, noted, queue))",
        "take()",
    )
    assert seen(job) == list(range(24))
    printed = do(job, "print(counted.value, sorted(noted) == list(range(24)), [queue.get() for _ in range(24)])")
    count, is_whole, *got = printed[0].replace("[", "").replace("]", "").replace(",", "").split()
    assert (count, is_whole) == ("24", "True")
    assert sorted(map(int, got)) == list(range(24))
    do(job, "loader.close(); manager.shutdown()")


def test_a_worker_is_a_child_for_multiprocessing() -> None:
    with coprep.DataLoader(ud.Processes(24), 4, **NUMPY) as loader:
        for ((is_child, names, pids), _), _ in loader:
            assert all(is_child.tolist())
            assert all(re.fullmatch(r"Process-\d+", name) for name in names)
            assert os.getpid() not in pids.tolist()


def test_output_of_workers_is_the_jobs(start: Start) -> None:
    """A second job, which has forked nothing, prints nothing."""
    first = driven(start, "begin(ud.Printing(24, pause=0.01))", "take(2)")
    workers_of(first)
    other = driven(start, "begin(ud.Printing(24, pause=0.01))")
    assert do(other, "take()") == []
    tell(first, "take()")
    first.run_on()
    out, err = first.process.communicate(timeout=WAIT)
    # Some lines came while the first batches were taken.
    assert {"sample 20", "sample 23"} <= set(out.splitlines())
    assert "warning of sample 23" in err


def test_a_dataset_is_never_freed_in_a_worker(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "freed"
    job = driven(
        start,
        "import gc; gc.disable()",
        # Garbage that a collection in a worker would find.
        f"cycle = [ud.Freed(8, log={str(log)!r})]; cycle.append(cycle); del cycle",
        f"begin(ud.Freed({N}, log={str(log)!r}, pause={PAUSE}), persistent_workers=True)",
        "take()",
        "batches = iter(loader); take(3)",
    )
    processes = workers_of(job)
    do(job, "loader.close()")
    until(lambda: all(map(gone, processes)), "the workers end", SOON)
    assert ud.noted(log) == []
    do(job, "del loader, batches, data; gc.collect()")
    assert set(ud.noted(log)) == {str(job.process.pid)}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_program_may_ignore_the_end_of_its_children(start: Start, when: str) -> None:
    """Before or after it has started the coordinator."""
    job = driven(start)
    if when == "after":
        do(job, "begin(ud.Numbers(4))", "loader.close()")
    do(job, "signal.signal(signal.SIGCHLD, signal.SIG_IGN)", f"begin({numbers()}, shuffle=True)", "take(3)")
    processes = workers_of(job)
    os.kill(processes[0], signal.SIGKILL)
    do(job, "take()", "batches = iter(loader); take()", "loader.close()")
    assert sorted(seen(job)) == sorted(2 * list(range(N)))
    until(lambda: zombies(job.process.pid) == [], "no zombie is left", SOON)


def test_a_loader_may_be_used_in_a_thread_that_ends(start: Start) -> None:
    """Workers must not end with the thread that forked them."""
    job = driven(
        start,
        "thread = threading.Thread(target=lambda: (begin(ud.Numbers(400, pause=0.005)), take(2)))",
        "thread.start(); thread.join()",
    )
    processes = workers_of(job)
    do(job, "time.sleep(0.1)", "take(10)")
    assert set(processes) == set(workers_of(job)), "the workers are the same"
    do(job, "take()")
    assert seen(job) == list(range(400))


def test_a_program_with_threads_may_fork(start: Start) -> None:
    job = driven(
        start,
        "def work():\n    while True:\n        sum(range(1000))\n        print(end='', file=sys.stderr)",
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()",
        f"begin({numbers()}, shuffle=True)",
        "for _ in range(3): take(); batches = iter(loader)",
    )
    assert sorted(seen(job)) == sorted(3 * list(range(N)))
    do(job, "loader.close()")


# --- a dataset that has changed --------------------------------------------------------------------------------


def test_a_job_whose_dataset_has_changed_in_mid_pass_goes_on_by_itself(start: Start) -> None:
    first = driven(start, f"begin({numbers()}, shuffle=True)", "take(3)")
    other = driven(start, f"begin({numbers()}, shuffle=True)", "take(2)")
    changed = driven(start, f"begin({numbers()}, shuffle=True)", "take(2)", "data.pause = 0.0001")
    workers_of(first)
    first.kill()
    # It waits for a batch alone, so it is the one that is asked.
    do(changed, "take()")
    assert sorted(seen(changed)) == list(range(N))
    do(other, "take()")
    assert sorted(seen(other)) == list(range(N))
    assert len(coprep.status()["streams"]) == 2
    told = "UnsharedWarning: the dataset was changed while an epoch was iterated"
    for job, warning in ((changed, told), (other, "")):
        job.run_on()
        code, errors = job.ended()
        assert code == 0 and (warning in errors if warning else errors == "")


def test_with_persistent_workers_a_changed_dataset_stays_in_its_stream(start: Start) -> None:
    jobs = [driven(start, f"begin({numbers()}, shuffle=True, persistent_workers=True)", "take(3)") for _ in range(3)]
    first, changed, other = jobs
    workers_of(first)
    do(changed, "data.pause = 0.0001")
    first.kill()
    for job in (other, changed):
        do(job, "take()")
        assert sorted(seen(job)) == list(range(N))
    workers_of(other)
    assert len(coprep.status()["streams"]) == 1


@pytest.mark.parametrize("persistent", [False, True])
def test_each_job_has_samples_of_its_own_code_when_files_are_edited(
    start: Start, tmp_path: Path, persistent: bool
) -> None:
    def write(value: int) -> None:
        (tmp_path / "helper.py").write_text(f"def value():\n    return {value}\n")
        (tmp_path / "edited.py").write_text(
            "import helper\n"
            f"CONSTANT = {10 * value}\n"
            "class Data:\n    def __len__(self):\n        return 12\n"
            f"    def __getitem__(self, i):\n        return {100 * value} + CONSTANT + helper.value()\n"
        )

    write(1)
    begin = f"import edited; begin(edited.Data(), persistent_workers={persistent})"
    values = "print(sorted({int(value) for batch in loader for value in batch[0]}))"
    path = f"{HERE}{os.pathsep}{tmp_path}"
    first = start(DRIVEN, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    assert do(first, begin, values) == ["[111]"]
    write(2)
    second = start(DRIVEN, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    assert do(second, begin, values) == ["[222]"]
    for _ in range(2):
        assert do(first, values) == ["[111]"]
        assert do(second, values) == ["[222]"]
    # The coordinator is started anew.
    os.kill(coordinator_pid(), signal.SIGKILL)
    assert do(first, values) == ["[111]"]
    assert do(second, values) == ["[222]"]
    write(1)
    third = start(DRIVEN, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    assert do(third, begin, values) == ["[111]"]
    streams = [do(job, "print(loader._native.attached()['stream'])") for job in (first, second, third)]
    assert streams[0] == streams[2] != streams[1]
