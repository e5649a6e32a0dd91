"""Fixtures for whole-system tests: real jobs, a real coordinator, real JPEGs, through the public Python interface."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from PIL import Image

# Tests must run the `coprep` command of this interpreter's environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# A shell ignores these signals for a process in the background, and all its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

WAIT = 60.0
"""Seconds after which an expected event counts as missing."""
QUEUE = 16
"""Largest number of minibatches that lie ready for a job."""


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Returns a picture with edges and gradients, drawn from the seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def make_folder(root: Path, count: int, classes: int = 4) -> Path:
    for i in range(count):
        folder = root / f"class{i % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(i, 160 + i % 50, 120 + i % 40).save(folder / f"{i:05}.jpg", quality=90)
    return root


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 200 JPEGs in 4 classes."""
    return make_folder(tmp_path_factory.mktemp("photos"), 200)


@contextlib.contextmanager
def coordinator_at(runtime: Path, patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the coordinator's socket in this folder. Afterwards the coordinator is ended, and nothing may be left."""
    runtime.mkdir(mode=0o700)
    socket = runtime / "coordinator.sock"
    patch.setenv("COPREP_SOCKET", str(socket))
    patch.setenv("COPREP_CACHE", "64M")
    patch.setenv("COPREP_STAGING", "64M")
    # Segments that exist already are not this test's.
    before = shm()
    yield socket
    wait_for_preparations()
    if socket.exists():
        with contextlib.suppress(coprep.CoprepError):
            coprep.stop()
    until(lambda: not socket.exists() or not alive(socket), "the coordinator ends")
    shutil.rmtree(runtime, ignore_errors=True)
    assert shm() == before, "something is left in /dev/shm"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of a coordinator for one test."""
    with coordinator_at(tmp_path / "run", monkeypatch) as socket:
        yield socket


@pytest.fixture
def nothing_is_left(place: Path) -> Iterator[None]:
    """Checks that none of the coordinator's processes is left once it has ended."""
    yield
    wait_for_preparations()
    with contextlib.suppress(coprep.CoprepError):
        coprep.stop()
    until(lambda: not processes_of(place), "every process ends", 5)


def wait_for_preparations() -> None:
    """Waits until no loader is about to start a coordinator in the background."""
    until(lambda: "coprep-prepare" not in threads(), "loaders have told what they need")


def threads() -> set[str]:
    """Returns the names of this process's threads."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.add((task / "comm").read_text().strip())
    return found


def alive(socket: Path) -> bool:
    return (
        subprocess.run(["coprep", "--socket", str(socket), "status"], capture_output=True, timeout=WAIT).returncode == 0
    )


def shm() -> set[str]:
    # A fuzzer that runs at the same time has segments of its own.
    return {name for name in os.listdir("/dev/shm") if "coprep" in name and "fuzz" not in name}


def processes_of(socket: Path) -> list[int]:
    """Returns the processes with this socket in their environment: jobs, the coordinator, fork servers and workers."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and os.fsencode(socket) in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie whose parent has not waited for it counts as gone.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def coordinator_pid() -> int:
    return coprep.status()["pid"]


def stream() -> dict[str, Any]:
    """Returns the status of the only stream. While a stream is opened anew, there is none for a moment."""
    streams: list[dict[str, Any]] = []

    def one() -> bool:
        streams[:] = coprep.status()["streams"]
        return len(streams) == 1

    until(one, "there is one stream")
    return streams[0]


def until(condition: Callable[[], bool], what: str, seconds: float = WAIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it does not happen: {what}"
        time.sleep(0.02)


@pytest.fixture
def pipeline(folder: Path, place: Path) -> coprep.Pipeline:
    return coprep.ImageFolder(folder).decode().random_resized_crop(32).random_horizontal_flip()


class Job:
    """A training script in a process of its own. The lines that it prints are its report."""

    def __init__(self, code: str, *args: object, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def line(self) -> str:
        """Returns the next line that the job prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the job ended: {self.process.stderr.read() if self.process.stderr else ''}"
        return line.strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT)

    def run_on(self) -> None:
        """Closes the job's input, so that it stops waiting for lines."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def result(self) -> str:
        """Returns the job's output once it has ended successfully."""
        out, err = self.process.communicate(timeout=WAIT * 2)
        assert self.process.returncode == 0, err
        return out.strip()

    def ended(self) -> tuple[int, str]:
        """Returns the exit code and the text on stderr."""
        _, err = self.process.communicate(timeout=WAIT * 2)
        return self.process.returncode, err


Start = Callable[..., Job]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts jobs, and ends the remaining ones after the test."""
    jobs: list[Job] = []

    def start(code: str, *args: object, **env: str) -> Job:
        jobs.append(Job(code, *args, **env))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


def go(*jobs: Job) -> None:
    for job in jobs:
        job.say("go")


def in_step(*jobs: Job, batches: int) -> None:
    """Lets jobs that wait for a line after each batch take this many batches, side by side."""
    for _ in range(batches):
        go(*jobs)
        assert {job.line() for job in jobs} == {"batch"}


def run_on(*jobs: Job) -> None:
    for job in jobs:
        job.run_on()


def reports(job: Job) -> list[dict[str, Any]]:
    """Returns the job's report on each epoch, once it has ended successfully."""
    return [json.loads(line) for line in job.result().splitlines() if line.startswith("{")]


def seen(job: Job) -> list[list[int]]:
    """Returns the ids of each epoch, in ascending order."""
    return [sorted(report["seen"]) for report in reports(job)]


def ids(loader: coprep.DataLoader) -> list[int]:
    """Returns the sample ids of one epoch, in order."""
    return [int(i) for batch in loader for i in batch[-1]]


def content(value: Any) -> Any:
    """Returns a form of the value that can be compared bit for bit."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [content(item) for item in value]
    return value


def batches(loader: coprep.DataLoader, epochs: int) -> list[Any]:
    with loader:
        return [content(batch) for _ in range(epochs) for batch in loader]
