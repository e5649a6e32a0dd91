"""Whole-system tests: real jobs, a real coordinator, real JPEGs, through the public Python interface."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import coprep
import numpy as np
import pytest
from PIL import Image

# The command that belongs to this interpreter's environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

WAIT = 60.0
"""Seconds after which something that should happen counts as not happening."""


def photo(seed: int, width: int, height: int) -> Image.Image:
    """A picture with edges and gradients whose top-left pixels tell which it is."""
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
    """200 JPEGs in 4 classes."""
    return make_folder(tmp_path_factory.mktemp("photos"), 200)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the test's own. Whatever runs there is ended, and nothing may be left."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    socket = runtime / "coordinator.sock"
    monkeypatch.setenv("COPREP_SOCKET", str(socket))
    monkeypatch.setenv("COPREP_CACHE", "64M")
    monkeypatch.setenv("COPREP_STAGING", "64M")
    before = shm()
    yield socket
    if socket.exists():
        with contextlib.suppress(coprep.CoprepError):
            coprep.stop()
    until(lambda: not socket.exists() or not alive(socket), "the coordinator ends")
    shutil.rmtree(runtime, ignore_errors=True)
    assert shm() == before, "something is left in /dev/shm"


def alive(socket: Path) -> bool:
    return (
        subprocess.run(["coprep", "--socket", str(socket), "status"], capture_output=True, timeout=WAIT).returncode == 0
    )


def shm() -> set[str]:
    # Fuzzing, if it runs at the same time, has segments of its own.
    return {name for name in os.listdir("/dev/shm") if "coprep" in name and "fuzz" not in name}


def processes_of(socket: Path) -> list[int]:
    """Processes that were started with this socket in their environment: jobs, the coordinator, hosts and workers."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and os.fsencode(socket) in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def until(condition: Callable[[], bool], what: str, seconds: float = WAIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it does not happen: {what}"
        time.sleep(0.02)


@pytest.fixture
def pipeline(folder: Path, place: Path) -> coprep.Pipeline:
    return coprep.ImageFolder(folder).decode().random_resized_crop(32).random_horizontal_flip()


class Job:
    """A training script in a process of its own. Lines it prints are its report."""

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
        """The next line it prints."""
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

    def result(self) -> str:
        """What it printed, once it has ended well."""
        out, err = self.process.communicate(timeout=WAIT * 2)
        assert self.process.returncode == 0, err
        return out.strip()

    def ended(self) -> tuple[int, str]:
        """Exit code and what it said on stderr."""
        _, err = self.process.communicate(timeout=WAIT * 2)
        return self.process.returncode, err


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    """Starts jobs, and ends those that are left."""
    jobs: list[Job] = []

    def start(code: str, *args: object, **env: str) -> Job:
        jobs.append(Job(code, *args, **env))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


def ids(loader: coprep.DataLoader) -> list[int]:
    """Sample ids of one epoch, in order."""
    return [int(i) for batch in loader for i in batch[-1]]
