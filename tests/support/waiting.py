"""Waits for events, each with a bound."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

WAIT = 60.0
"""Seconds after which an expected event counts as missing."""


def until(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = WAIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise AssertionError(f"it does not happen: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


def state(process: Path) -> str:
    """Returns the state of a process or thread by its folder in /proc, as a letter."""
    return (process / "stat").read_text().rsplit(")", 1)[1].split()[0]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie whose parent has not waited for it counts as gone.
        return state(Path(f"/proc/{pid}")) == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def kill(pid: int) -> None:
    """Kills a process, and waits until it is gone."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), "it is gone")


def stop(pid: int) -> None:
    """Stops a process, and waits until each of its threads has stopped. They may run for a while after the signal."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    until(lambda: all(state(task) == "T" for task in tasks.iterdir()), "it has stopped")
