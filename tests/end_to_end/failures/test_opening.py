"""Tests opening and starting on bad days: slow folders, processes killed as they start, and paths that are no files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket as sockets
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import coprep
import pytest
import user_datasets as ud
from batches import ids
from coordinators import alive, coordinator_pid, processes_of, stream
from image_jobs import TRAIN, N, whole
from jobs import Start, go, seen
from photos import make_folder
from user_jobs import HERE, NUMPY
from waiting import WAIT, gone, until

SHIM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Folders whose path contains SHIM_SLOW are not opened while SHIM_GATE is there. SHIM_LOG has a line for each try. */
DIR *opendir(const char *name) {
    DIR *(*next)(const char *) = dlsym(RTLD_NEXT, "opendir");
    if (strstr(name, getenv("SHIM_SLOW"))) {
        int log = open(getenv("SHIM_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
        (void)!write(log, name, strlen(name));
        (void)!write(log, "\n", 1);
        close(log);
        while (access(getenv("SHIM_GATE"), F_OK) == 0) usleep(10000);
    }
    return next(name);
}
"""


class Slow:
    """A folder that a coordinator cannot list while the gate file exists."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder, self.gate, self.log = folder, root / "gate", root / "log"
        self.gate.touch()

    def listings(self) -> int:
        """Returns how often a listing of the folder has begun."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return lines.count(str(self.folder))

    def waiting(self) -> int:
        """Returns the number of waiting jobs that the coordinator has logged."""
        return (self.gate.parent / "serve.log").read_text().count("a client waits")

    def open(self) -> None:
        self.gate.unlink()


@pytest.fixture
def slow(tmp_path: Path, socket_path: Path) -> Iterator[Slow]:
    """A folder, with a running coordinator for which it is slow."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to make a slow opendir with")
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=WAIT)
    folder = Slow(tmp_path, make_folder(tmp_path / "slow_photos", N))
    shim = {"LD_PRELOAD": library, "SHIM_SLOW": folder.folder, "SHIM_GATE": folder.gate, "SHIM_LOG": folder.log}
    env = {**os.environ, **{name: str(value) for name, value in shim.items()}}
    with open(tmp_path / "serve.log", "w") as log:
        serve = subprocess.Popen(["coprep", "serve"], env=env, stderr=log)
    until(lambda: alive(socket_path), "the coordinator listens")
    yield folder
    # The coordinator may still wait at the gate.
    with contextlib.suppress(FileNotFoundError):
        folder.open()
    serve.terminate()
    serve.wait(WAIT)


# --- one slow folder ---------------------------------------------------------------------------------------------


def test_a_slow_folder_holds_up_nobody_else(slow: Slow, folder: Path, tmp_path: Path, start: Start) -> None:
    running = start(TRAIN, folder, 16, 1, 0.0)
    assert running.line() == "ready"
    waiting = [start(TRAIN, slow.folder, 16, 1, 0.0) for _ in range(2)]
    go(*waiting)
    until(lambda: slow.listings() == 1, "the slow folder is being listed")

    # A job joins a running stream, and takes an epoch there.
    joining = start(TRAIN, folder, 16, 1, 0.0)
    go(joining)
    assert seen(joining) == whole(1)
    # Another dataset is opened, the last job of its stream leaves, and its cache is dropped.
    other = coprep.ImageFolder(make_folder(tmp_path / "other", 20)).decode().random_resized_crop(16)
    with coprep.DataLoader(other, 4, framework="numpy", with_index=True) as loader:
        assert sorted(ids(loader)) == list(range(20))
        assert len(coprep.status()["streams"]) == 2
    until(lambda: len(coprep.status()["streams"]) == 1, "the other stream is closed")
    freed = subprocess.run(["coprep", "drop", str(tmp_path / "other")], capture_output=True, text=True, timeout=WAIT)
    assert freed.returncode == 0 and not freed.stdout.startswith("0 B")
    # The same holds for a loader that is asked only for its length.
    until(lambda: slow.waiting() == 2, "both wait")
    assert slow.listings() == 1 and all(one.process.poll() is None for one in waiting)

    slow.open()
    assert [seen(one) for one in waiting] == [whole(1)] * 2
    assert slow.listings() == 1
    go(running)
    assert seen(running) == whole(1)


def test_jobs_of_different_seeds_that_start_at_once_each_have_their_own(slow: Slow) -> None:
    data = coprep.ImageFolder(slow.folder).decode().random_resized_crop(32)
    loaders = [coprep.DataLoader(data, 16, shuffle=True, seed=seed, framework="numpy") for seed in (1, 2, 1)]
    with ThreadPoolExecutor() as threads:
        seeds = threads.map(lambda loader: loader.seed, loaders)
        until(lambda: slow.waiting() == 3, "all wait")
        slow.open()
        assert list(seeds) == [1, 2, 1]
    assert slow.listings() <= 2 and len(coprep.status()["streams"]) == 2
    for loader in loaders:
        loader.close()


def test_who_waits_for_a_slow_folder_is_told_which(slow: Slow, folder: Path) -> None:
    data = coprep.ImageFolder(slow.folder).decode().random_resized_crop(32)
    with pytest.raises(coprep.TimeoutError, match=f"the files of the folder {slow.folder} are being listed, for"):
        len(coprep.DataLoader(data, 16, timeout=3))
    # The same holds for a loader of which only the length is asked.
    with pytest.raises(coprep.TimeoutError, match=str(slow.folder)):
        len(coprep.DataLoader(coprep.ImageFolder(slow.folder).decode().center_crop(32), 16, timeout=3))
    # Both loaders have left, and the folder is not listed again.
    assert slow.listings() == 1 and coprep.status()["streams"] == []


def test_a_long_wait_for_a_folder_is_told_once(slow: Slow, start: Start) -> None:
    job = start(TRAIN, slow.folder, 16, 1, 0.0)
    go(job)
    until(lambda: slow.waiting() == 1, "the coordinator logs it")
    # The wait goes on for a while, in which neither the warning nor the log line may be repeated.
    time.sleep(3)
    slow.open()
    out, err = job.process.communicate(timeout=WAIT)
    assert job.process.returncode == 0 and '"seen"' in out
    assert err.count("WaitingWarning") == 1 and f"the folder {slow.folder}" in err, err
    assert slow.waiting() == 1


def test_a_job_that_leaves_while_its_folder_is_listed_disturbs_nobody(slow: Slow, start: Start) -> None:
    first, second = (start(TRAIN, slow.folder, 16, 1, 0.0) for _ in range(2))
    until(lambda: slow.waiting() == 2, "both wait")
    first.kill()
    slow.open()
    go(second)
    assert seen(second) == whole(1)
    assert slow.listings() == 1
    until(lambda: coprep.status()["streams"] == [], "the stream is closed")


def test_a_stream_that_nobody_waits_for_any_more_is_not_left_open(slow: Slow, start: Start) -> None:
    only = start(TRAIN, slow.folder, 16, 1, 0.0)
    until(lambda: slow.listings() == 1, "the slow folder is being listed")
    only.kill()
    slow.open()
    again = start(TRAIN, slow.folder, 16, 1, 0.0)
    go(again)
    assert seen(again) == whole(1)
    until(lambda: coprep.status()["streams"] == [], "no stream is left")


# --- killed as they start ----------------------------------------------------------------------------------------


@pytest.fixture
def killed_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Path]]:
    """Sets how many processes are killed while they load a dataset. Returns the file in which they are noted."""

    def set_times(times: int) -> Path:
        monkeypatch.setenv("LOADS_KILLED", str(times))
        monkeypatch.setenv("LOADS_LOG", str(tmp_path / "log"))
        return tmp_path / "log"

    yield set_times


@pytest.mark.usefixtures("nothing_is_left")
def test_a_fork_server_that_is_killed_while_it_loads_costs_a_pause(killed_at_load: Callable[[int], Path]) -> None:
    log = killed_at_load(2)
    with coprep.DataLoader("user_datasets:killed_at_load", 4, **NUMPY) as loader:
        assert sorted(ids(loader)) == list(range(24))
    assert len(ud.noted(log)) == 3


@pytest.mark.usefixtures("nothing_is_left")
def test_a_fork_server_that_is_killed_by_a_first_sample_costs_a_pause(tmp_path: Path) -> None:
    data = ud.KilledAtLook(24, 2, str(tmp_path / "log"))
    with coprep.DataLoader(data, 4, **NUMPY) as loader:
        assert sorted(ids(loader)) == list(range(24))


@pytest.mark.usefixtures("nothing_is_left")
def test_a_fork_server_that_is_killed_after_a_worker_of_its_costs_a_pause(tmp_path: Path) -> None:
    data = ud.KilledAtLook(24, 1, str(tmp_path / "log"), workers=1)
    with coprep.DataLoader(data, 4, **NUMPY) as loader:
        assert sorted(ids(loader)) == list(range(24))


@pytest.mark.usefixtures("nothing_is_left")
def test_the_only_sample_has_a_second_worker_if_the_first_one_is_killed(tmp_path: Path) -> None:
    data = ud.KilledAtLook(1, 0, str(tmp_path / "log"), workers=1)
    with coprep.DataLoader(data, 1, **NUMPY) as loader:
        assert ids(loader) == [0]


TOO_OFTEN = "the process that runs the dataset's code came to its end 4 times before a batch was ready"


@pytest.mark.usefixtures("nothing_is_left")
def test_a_dataset_that_kills_its_fork_server_each_time_is_one_clear_error(
    killed_at_load: Callable[[int], Path], tmp_path: Path
) -> None:
    log = killed_at_load(1000)
    for data in ("user_datasets:killed_at_load", ud.KilledAtLook(24, 1000, str(tmp_path / "looks"))):
        loader = coprep.DataLoader(data, 4, **NUMPY)
        with pytest.raises(coprep.CoprepError, match=TOO_OFTEN):
            next(iter(loader))
        loader.close()
    assert len(ud.noted(tmp_path / "looks")) == 4
    # A fifth one may have been started before the job heard of it.
    assert len(ud.noted(log)) in (4, 5)


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("times", [2, 1000])
def test_ranks_whose_fork_server_is_killed_while_it_loads_end_together(
    start: Start, killed_at_load: Callable[[int], Path], times: int
) -> None:
    code = """
    import json, sys, coprep
    train = coprep.DataLoader("user_datasets:killed_at_load", 4, rank=int(sys.argv[1]), world_size=2, group="g",
                              framework="numpy", with_index=True, num_workers=1)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps([i for batch in train for i in batch[-1].tolist()]))
    """
    killed_at_load(times)
    ranks = [start(code, rank, PYTHONPATH=HERE) for rank in range(2)]
    for rank in ranks:
        assert rank.line() == "ready"
    go(*ranks)
    if times == 2:
        assert sorted(sum((eval(rank.result()) for rank in ranks), [])) == list(range(24))
        return
    for rank in ranks:
        code_, err = rank.ended()
        assert code_ == 1 and TOO_OFTEN in err


def launcher(tmp_path: Path, deaths: int) -> Path:
    """Makes a coordinator's program whose first starts are killed."""
    script, log = tmp_path / "launch", tmp_path / "starts"
    dies = f"echo x >> {log}\n[ $(wc -l < {log}) -le {deaths} ] && kill -9 $$"
    script.write_text(f'#!/bin/sh\n{dies}\nexec {shutil.which("coprep")} "$@"\n')
    script.chmod(0o700)
    return script


def test_a_coordinator_that_is_killed_as_it_starts_is_started_again(
    pipeline: coprep.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_BIN", str(launcher(tmp_path, 2)))
    with coprep.DataLoader(pipeline, 16, framework="numpy", with_index=True) as loader:
        assert sorted(ids(loader)) == list(range(N))
    assert len((tmp_path / "starts").read_text().splitlines()) == 3


def test_a_coordinator_that_is_killed_each_time_is_one_clear_error(
    pipeline: coprep.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_BIN", str(launcher(tmp_path, 1000)))
    with pytest.raises(coprep.CoprepError, match=r"ended while it started, in each of 3 attempts.*log"):
        len(coprep.DataLoader(pipeline, 16))
    assert len((tmp_path / "starts").read_text().splitlines()) == 3


# --- children of a killed job ------------------------------------------------------------------------------------

FORK = """
import ctypes, os, sys, time, coprep
data = coprep.ImageFolder(sys.argv[1]).decode().random_resized_crop(32).random_horizontal_flip()
train = coprep.DataLoader(data, batch_size=16, shuffle=True, framework="numpy", with_index=True)
batches = iter(train)
held = [next(batches) for _ in range(3)]
sums = [int(images.sum()) for images, *_ in held]
# By libc, or behind its back: then the child has the socket too.
child = os.fork() if sys.argv[2] == "libc" else ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0)
if child == 0:
    if sums == [int(images.sum()) for images, *_ in held]:
        print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["libc", "kernel"])
def test_a_killed_job_whose_child_lives_keeps_nothing(pipeline: coprep.Pipeline, start: Start, way: str) -> None:
    if way == "kernel" and os.uname().machine != "x86_64":
        pytest.skip("the number of clone is that of x86-64")
    victim = start(FORK, pipeline.root, way)
    # The killed job's batches are still valid in its child.
    child = int(victim.line())
    try:
        assert len(stream()["jobs"]) == 1
        links = [os.readlink(link) for link in Path(f"/proc/{child}/fd").iterdir()]
        has_socket = any(link.startswith("socket:") for link in links)
        assert has_socket == (way == "kernel")
        victim.kill()
        until(lambda: coprep.status()["streams"] == [], "the coordinator drops the job")
        assert not gone(child)
    finally:
        os.kill(child, signal.SIGKILL)


# --- files that are none -----------------------------------------------------------------------------------------


def test_samples_that_are_no_files_are_one_clear_error_each(tmp_path: Path, socket_path: Path) -> None:
    root = make_folder(tmp_path / "photos", 12, classes=1) / "class0"
    os.mkfifo(root / "90_pipe.jpg")
    (root / "91_zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "elsewhere").mkdir()
    (root / "92_folder.jpg").symlink_to(tmp_path / "elsewhere")
    (root / "93_nothing.jpg").symlink_to(tmp_path / "nothing")
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(root / "94_socket.jpg"))
    data = coprep.ImageFolder(root.parent).decode().random_resized_crop(16)
    failed = {}
    with coprep.DataLoader(data, 4, framework="numpy", with_index=True, timeout=WAIT) as loader:
        batches, taken = iter(loader), []
        while True:
            try:
                taken += next(batches)[-1].tolist()
            except StopIteration:
                break
            except coprep.SampleError as error:
                failed[Path(error.path).name] = str(error)
        memory = int(Path(f"/proc/{coordinator_pid()}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert sorted(taken) == list(range(12))
    what = {
        "90_pipe.jpg": "it is a named pipe",
        "91_zero.jpg": "it is a character device",
        "93_nothing.jpg": "No such file",
        "94_socket.jpg": "it is a socket",
    }
    assert {name: text in failed[name] for name, text in what.items()} == dict.fromkeys(what, True), failed
    assert memory < 1 << 30, "a device was read"


# --- a runtime directory that is made again ----------------------------------------------------------------------


def test_a_coordinator_that_ends_leaves_its_successor_reachable(
    pipeline: coprep.Pipeline, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough that the first coordinator still runs when the second one starts.
    monkeypatch.setenv("COPREP_IDLE", "3")
    with coprep.DataLoader(pipeline, 16, framework="numpy") as loader:
        next(iter(loader))
        first = coordinator_pid()
    # This happens at logout and login.
    shutil.rmtree(socket_path.parent)
    socket_path.parent.mkdir(mode=0o700)
    monkeypatch.setenv("COPREP_IDLE", "600")
    with coprep.DataLoader(pipeline, 16, framework="numpy") as loader:
        next(iter(loader))
    second = coordinator_pid()
    assert second != first and not gone(first)
    until(lambda: gone(first), "the first one ends for idleness")
    assert coordinator_pid() == second
    assert {Path(f"{socket_path}{suffix}").exists() for suffix in ("", ".lock", ".log")} == {True}


# --- waits for others --------------------------------------------------------------------------------------------


def test_a_loader_that_only_one_rank_uses_says_whom_it_waits_for(pipeline: coprep.Pipeline) -> None:
    # A loader warns after 10 s. A timeout of 25 s leaves time for a second warning, which must not come.
    loader = coprep.DataLoader(pipeline, 16, framework="numpy", rank=0, world_size=2, group="g", timeout=25)
    batches = iter(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(coprep.TimeoutError, match="waiting for rank 1 of 2 to attach"):
            next(batches)
    told = [warning for warning in caught if warning.category is coprep.WaitingWarning]
    assert len(told) == 1 and told[0].filename == __file__
    assert "rank 1 of 2 of this job has not attached" in str(told[0].message)
    assert "rank=0, world_size=1" in str(told[0].message)
    log = Path(f"{os.environ['COPREP_SOCKET']}.log").read_text()
    assert log.count("rank 1 of 2 of this job has not attached") == 1
    loader.close()


def test_a_rank_that_leaves_an_epoch_alone_says_whom_it_waits_for(pipeline: coprep.Pipeline, start: Start) -> None:
    code = """
    import sys, coprep
    data = coprep.ImageFolder(sys.argv[1]).decode().random_resized_crop(32)
    train = coprep.DataLoader(data, 16, framework="numpy", rank=int(sys.argv[2]), world_size=2, group="g", timeout=60)
    for batch in train:
        break
    print("left", flush=True)
    sys.stdin.readline()
    next(iter(train))
    """
    ranks = [start(code, pipeline.root, rank) for rank in range(2)]
    for rank in ranks:
        assert rank.line() == "left"
    go(ranks[0])
    assert ranks[0].process.stderr is not None
    warning = ranks[0].process.stderr.readline()
    assert "WaitingWarning" in warning and "rank 1 of 2 of this job has not left the epoch" in warning
    go(ranks[1])
    for rank in ranks:
        rank.result()


def test_a_cohort_that_is_not_complete_says_so(pipeline: coprep.Pipeline) -> None:
    # A loader warns after 10 s, which has to be before its timeout.
    with coprep.DataLoader(pipeline, 16, framework="numpy", cohort="c", cohort_size=2, timeout=15) as loader:
        batches = iter(loader)
        told = pytest.warns(coprep.WaitingWarning, match="cohort 'c' waits: 1 of its 2 members are here")
        with told, pytest.raises(coprep.TimeoutError):
            next(batches)


# --- the log of a good day ---------------------------------------------------------------------------------------


def test_a_fork_server_ends_without_a_word(tmp_path: Path, socket_path: Path) -> None:
    """No leaks that libraries report at an interpreter's end, nothing that the job does at its own, and no errors."""
    (tmp_path / "loud_exit.py").write_text(
        "import atexit, os, sys\n"
        "class Loud:\n"
        "    def __del__(self): os.write(2, b'leaked\\n')\n"
        "sys.loud = Loud()\n"
        "atexit.register(lambda: os.write(2, b'ran at exit\\n'))\n"
        "class Data:\n"
        "    def __init__(self, bad): self.bad = bad\n"
        "    def __len__(self): return 24\n"
        "    def __getitem__(self, i): return object() if self.bad else i\n"
    )
    # The fork server of the second loader is useless. That of the third ends with the job.
    code = (
        "import loud_exit, coprep, os\n"
        "def loader(bad, **options): return coprep.DataLoader(loud_exit.Data(bad), 4, num_workers=2, **options)\n"
        "with loader(False) as first:\n"
        "    list(first)\n"
        "try: next(iter(loader(True)))\n"
        "except TypeError: pass\n"
        "third = loader(False, persistent_workers=True)\n"
        "next(iter(third))\n"
        "os._exit(0)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=WAIT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    with open(f"{socket_path}.log") as text:
        # The log is kept open, since the coordinator removes it.
        coprep.stop()
        until(lambda: not processes_of(socket_path), "all processes end")
        said = text.read()
    assert "Traceback" not in said and "WARN" not in said, said


@pytest.mark.parametrize("kind", ["file", "pipe", "link to itself", "folder of all"])
def test_a_folder_that_is_not_ours_is_told_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"/tmp/coprep-test-{os.getpid()}")
    monkeypatch.setenv("COPREP_SOCKET", str(folder / "coordinator.sock"))
    try:
        match kind:
            case "file":
                folder.touch()
            case "pipe":
                os.mkfifo(folder)
            case "link to itself":
                folder.symlink_to(folder)
            case "folder of all":
                folder.mkdir()
                folder.chmod(0o777)
        began = time.monotonic()
        with pytest.raises(coprep.CoprepError, match=f"{folder}.* private folder of user"):
            next(iter(coprep.DataLoader(ud.Numbers(8), 4, **NUMPY)))
        assert time.monotonic() - began < 10
    finally:
        folder.rmdir() if folder.is_dir() else folder.unlink()
