"""Training scripts whose batches go to a GPU: the fake one, or with ``COPREP_TEST_REAL_GPU`` this machine's."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import coprep
import pytest
from jobs import Job
from waiting import WAIT, until
from warm_interpreter import WarmInterpreter

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
REAL = "COPREP_TEST_REAL_GPU" in os.environ
_LIBRARY = "libcoprep_fake_cuda.so"
FIELDS = 2
"""Copies for each minibatch of images: the images, and the labels."""
fake_only = pytest.mark.skipif(REAL, reason="it needs the faults of the fake driver, and runs without a GPU")
"""Marks tests of faults, which no real driver has on demand."""


def calls(spread: range) -> range:
    """Returns the numbers of the calls of the driver at which a test has a fault: a spread of them, or with
    ``COPREP_TEST_EVERY_CALL`` each one from the first to the last."""
    return range(spread.start, spread.stop) if "COPREP_TEST_EVERY_CALL" in os.environ else spread


def fake_driver() -> Path:
    """Returns the library of the fake driver."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    # Where the Rust tests are built, it lies among the libraries that they use.
    places = [target / place / _LIBRARY for place in ("debug", "debug/deps", "release")]
    built = [path for path in places if path.exists()]
    if not built:
        pytest.fail(f"{_LIBRARY} is not built: cargo build -p coprep-fake-cuda")
    return max(built, key=lambda path: path.stat().st_mtime)


class Driver:
    """The driver that jobs find.

    Args:
        folder: a new folder for the driver and its trace.
        settings: of the fake driver, as the README of tests/fake_cuda names them.
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.folder = folder
        self.settings = settings
        folder.mkdir(exist_ok=True)
        if not REAL:
            for name in ("libcuda.so", "libcuda.so.1"):
                link = folder / name
                if not link.exists():
                    link.symlink_to(fake_driver())

    @property
    def trace(self) -> Path:
        return self.folder / "trace"

    def environment(self) -> dict[str, str]:
        paths = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
        if REAL:
            return {"PYTHONPATH": paths}
        settings = f"{self.settings};trace={self.trace}".strip(";")
        return {
            "PYTHONPATH": paths,
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKE_CUDA": settings,
        }

    def calls(self, pid: int | None = None) -> Counter[str]:
        """Returns how often each function succeeded, in one process or in all."""
        lines = [line.split(" ") for line in self.trace.read_text().splitlines()]
        return Counter(name for process, name, answer in lines if answer == "0" and pid in (None, int(process)))

    def processes(self) -> set[int]:
        """Returns the processes that have called the driver."""
        return {int(line.split(" ")[0]) for line in self.trace.read_text().splitlines()}

    def answers(self, function: str) -> list[str]:
        """Returns the answers of a function, in the order of the calls."""
        lines = [line.split(" ") for line in self.trace.read_text().splitlines()]
        return [answer for _, name, answer in lines if name == function]

    def job(self, code: str, *args: object) -> Job:
        """Starts a training script. With the fake driver it is a fork, which need not import PyTorch."""
        return Job(code, *args, interpreter=None if REAL else warm_interpreter(), **self.environment())

    def new_interpreter(self, code: str, *args: object) -> Job:
        """Starts a training script whose interpreter finds this folder's driver, and not another fake one."""
        return Job(code, *args, **self.environment())


@functools.cache
def warm_interpreter() -> WarmInterpreter:
    """Returns an interpreter of this test process whose scripts find the fake driver."""
    folder = tempfile.TemporaryDirectory(prefix="coprep-fake-cuda-")
    atexit.register(folder.cleanup)
    interpreter = WarmInterpreter({**os.environ, **Driver(Path(folder.name)).environment()})
    atexit.register(interpreter.close)
    return interpreter


class Serving:
    """A coordinator whose uploaders find a driver of their own.

    Args:
        folder: a new folder for the driver and its trace, and for the log.
        settings: of the fake driver that the uploaders find. Jobs have their own.
        variables: further variables of the coordinator's environment.
    """

    def __init__(self, folder: Path, settings: str = "", **variables: str) -> None:
        self.driver = Driver(folder, settings)
        self.log = folder / "log"
        environment = {**os.environ, **self.driver.environment(), **variables}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(["coprep", "serve"], env=environment, stderr=log)
        until(
            lambda: "coordinator listens" in self.log.read_text(),
            "the coordinator listens",
        )

    def uploaders(self) -> list[int]:
        """Returns the processes that upload."""
        rings = [ring for gpu in coprep.status()["gpus"] for ring in gpu["rings"]]
        return sorted({ring["uploader_pid"] for ring in rings})

    def uploaded(self) -> int:
        """Returns the number of minibatches that the uploaders have begun to copy."""
        return self.driver.calls()["cuMemcpyHtoDAsync_v2"] // FIELDS

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(WAIT)
