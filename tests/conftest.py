"""Fixtures for whole-system tests: real jobs, a real coordinator, real JPEGs, through the public Python interface."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import coprep
import pytest

pytest.register_assert_rewrite("batches", "coordinators", "jobs", "waiting")

from coordinators import coordinator_at, processes_of  # noqa: E402
from jobs import Job, Start  # noqa: E402
from photos import make_folder  # noqa: E402
from waiting import until  # noqa: E402
from warm_interpreter import WarmInterpreter  # noqa: E402

# Tests must run the `coprep` command of this interpreter's environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# A shell ignores these signals for a process in the background, and all its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


JOBS = pytest.StashKey[list[Job]]()
"""The jobs that a test has started."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Ends the remaining jobs of a test before its fixtures end. A job that runs on would start another coordinator."""
    for job in item.stash.get(JOBS, []):
        if job.process.poll() is None:
            job.kill()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 200 JPEGs in 4 classes."""
    return make_folder(tmp_path_factory.mktemp("photos"), 200)


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of a coordinator for one test."""
    with coordinator_at(tmp_path / "run", monkeypatch) as socket:
        yield socket


@pytest.fixture
def nothing_is_left(socket_path: Path) -> Iterator[None]:
    """Checks that none of the coordinator's processes is left once it has ended."""
    yield
    with contextlib.suppress(coprep.CoprepError):
        coprep.stop()
    until(lambda: not processes_of(socket_path), lambda: f"every process ends: {left_of(socket_path)}", 10)


def left_of(socket: Path) -> str:
    """Describes the processes that are left of a coordinator, with the end of its log."""
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in processes_of(socket)]
    logs = [log.read_text()[-2000:] for log in socket.parent.glob("*.log")]
    return "\n".join([*commands, *logs])


@pytest.fixture
def pipeline(folder: Path, socket_path: Path) -> coprep.Pipeline:
    return coprep.ImageFolder(folder).decode().random_resized_crop(32).random_horizontal_flip()


@pytest.fixture(scope="session")
def warm_interpreter() -> Iterator[WarmInterpreter]:
    # Without the settings of the test that happens to be the first.
    interpreter = WarmInterpreter({name: value for name, value in os.environ.items() if not name.startswith("COPREP_")})
    yield interpreter
    interpreter.close()


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """Starts jobs. Those that remain after the test are ended. ``imports_torch``: the job need not wait for that."""
    jobs: list[Job] = request.node.stash.setdefault(JOBS, [])

    def start(code: str, *args: object, imports_torch: bool = False, **env: str) -> Job:
        interpreter = request.getfixturevalue("warm_interpreter") if imports_torch else None
        jobs.append(Job(code, *args, interpreter=interpreter, **env))
        return jobs[-1]

    return start
