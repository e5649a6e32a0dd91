"""Coordinators for tests, and their threads, processes and segments as seen from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
from waiting import WAIT, until


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
    if socket.exists():
        # The coordinator may end by itself in this moment.
        with contextlib.suppress(coprep.CoprepError):
            coprep.stop()
    # A killed coordinator leaves its socket, so that the file alone does not tell.
    until(lambda: not socket.exists() or not alive(socket), "the coordinator ends")
    shutil.rmtree(runtime, ignore_errors=True)
    assert shm() == before, "something is left in /dev/shm"


def threads() -> set[str]:
    """Returns the names of this process's threads."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        # The thread may have ended since it was listed.
        with contextlib.suppress(OSError):
            found.add((task / "comm").read_text().strip())
    return found


def knows(variable: str) -> bool:
    """Returns whether the command that is installed reads a variable of the environment. Release builds lack some."""
    command = shutil.which("coprep")
    assert command is not None
    return variable.encode() in Path(command).read_bytes()


def alive(socket: Path) -> bool:
    return (
        subprocess.run(["coprep", "--socket", str(socket), "status"], capture_output=True, timeout=WAIT).returncode == 0
    )


def shm() -> set[str]:
    # A fuzzer that runs at the same time has segments of its own.
    return {name for name in os.listdir("/dev/shm") if "coprep" in name and "fuzz" not in name}


_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
_SPAWNED = b"multiprocessing.spawn"


def processes_of(socket: Path) -> list[int]:
    """Returns the processes with this socket in their environment: jobs, the coordinator, fork servers and workers.

    Those that ``multiprocessing`` has started to fork others stay as long as their program, and are left out.
    """
    found = []
    for folder in Path("/proc").iterdir():
        # The process may have ended since it was listed, or it is another user's.
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and os.fsencode(socket) in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes()
                if any(helper in command for helper in _HELPERS):
                    continue
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if _SPAWNED in command and _SPAWNED not in Path(f"/proc/{parent}/cmdline").read_bytes():
                    continue
                found.append(int(folder.name))
    return found


def coordinator_pid() -> int:
    return coprep.status()["pid"]


def lasting_outage() -> dict[str, Any]:
    """Waits until an outage of the only store has lasted for a second, and returns the outage.

    By then all reads that began before the outage are over. An answer to one of them would end the outage for a moment.
    """
    found: list[dict[str, Any]] = []

    def lasts() -> bool:
        found[:] = coprep.status()["outages"]
        return bool(found) and found[0]["lasts_s"] >= 1

    until(lasts, "an outage lasts for a second")
    (outage,) = found
    return outage


def stream() -> dict[str, Any]:
    """Returns the status of the only stream. While a stream is opened anew, there is none for a moment."""
    streams: list[dict[str, Any]] = []

    def one() -> bool:
        streams[:] = coprep.status()["streams"]
        return len(streams) == 1

    until(one, "there is one stream")
    return streams[0]
