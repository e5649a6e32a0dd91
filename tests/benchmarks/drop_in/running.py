"""Runs jobs at the same time, with a coordinator of their own, and watches its shared memory meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coprep

from tests.benchmarks.drop_in.plan import Plan
from tests.benchmarks.loaders.machine import PROC, CpuClock, pss_bytes, remove_torch_files, trees
from tests.benchmarks.loaders.measure import MIB, ONE_THREAD
from tests.benchmarks.slow_samples.running import DONE_TIMEOUT_S, READY_TIMEOUT_S, end
from tools.demo.children import Child, Children, messages

LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """The observations of some jobs."""

    said: Sequence[Sequence[dict[str, Any]]]
    """The messages of each job."""
    ready_s: Sequence[float]
    """Seconds from the start of the process to `ready`, for each job."""
    staging_mib: float | None
    """The largest size of the staging areas that the coordinator reported."""
    shared_mib: float | None
    """The largest size of its memory files by the kernel's account, or `None` without permission to read it."""
    peak_mib: float | None
    """The largest PSS of the jobs, their children and the coordinator, or `None` without permission to read it."""
    others_cores: float


@dataclass
class SharedMemory:
    """Sizes of a coordinator's shared memory, as seen at each look."""

    coordinator: int
    socket: str
    staging_bytes: list[int] = field(default_factory=list)
    held_bytes: list[int] = field(default_factory=list)

    def look(self) -> None:
        # The coordinator may be busy opening a stream. The next look comes soon.
        with contextlib.suppress(coprep.CoprepError):
            self.staging_bytes.append(staging_bytes(coprep.status(self.socket)))
        with contextlib.suppress(PermissionError):
            self.held_bytes.append(memory_files_bytes(self.coordinator))


def staging_bytes(status: dict[str, Any]) -> int:
    """Returns the bytes of all staging areas in the output of `coprep status --json`."""
    return sum(stream["staging_bytes"] for stream in status["streams"])


def memory_files_bytes(pid: int) -> int:
    """Returns the memory of all memory files of a process, mapped or not, counting each once.

    Raises:
        PermissionError: this user may not look into the process.
    """
    found: dict[int, int] = {}
    for entry in (PROC / str(pid) / "fd").iterdir():
        # A file may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(entry).startswith("/memfd:"):
                about = os.stat(entry)
                found[about.st_ino] = 512 * about.st_blocks
    return sum(found.values())


@dataclass
class Peak:
    """The memory of processes with all their children, as seen at each look."""

    roots: Sequence[int]
    sizes: list[int] = field(default_factory=list)

    def look(self) -> None:
        sizes = [pss_bytes(pid) for pid in trees(self.roots)]
        # A process may have ended meanwhile. Without permission no size is known.
        if any(sizes):
            self.sizes.append(sum(size or 0 for size in sizes))


def run(plans: Sequence[Plan], folder: Path) -> Outcome:
    """Starts one job for each plan, lets all begin at the same time, and ends them when all are done.

    Args:
        folder: a folder for modules that datasets need.
    """
    with Children() as children:
        env = {**ONE_THREAD, "PYTHONPATH": str(folder)}
        roots: list[int] = []
        processes: list[int] = []
        memory: SharedMemory | None = None
        children.callback(lambda: remove_torch_files(processes))
        if any(plan.loader == "coprep" for plan in plans):
            coordinator, variables = children.coordinator()
            env |= variables
            roots.append(coordinator.pid)
            memory = SharedMemory(coordinator.pid, variables["COPREP_SOCKET"])
        jobs = [
            children.module(f"job {number}", "tests.benchmarks.drop_in.job", [json.dumps(plan.as_json())], env)
            for number, plan in enumerate(plans, 1)
        ]
        roots += [job.pid for job in jobs]
        # Callbacks run in reverse: this one lists the processes, they are ended, and the first one cleans up.
        children.callback(lambda: processes.extend(trees(roots)))
        ready = until_all_say("ready", jobs, READY_TIMEOUT_S)
        before, began = CpuClock.read(roots), time.monotonic()
        for job in jobs:
            job.tell("go")
        peak = Peak(roots)
        # Reading the sizes takes time, so that only jobs whose memory matters are watched.
        watched = [peak] if any(plan.ballast_mib for plan in plans) else []
        said = until_all_say("done", jobs, DONE_TIMEOUT_S, [*watched, *([memory] if memory else [])])
        after, ended = CpuClock.read(roots), time.monotonic()
        processes += trees(roots)
        for job in jobs:
            end(job)
    return Outcome(
        said,
        [messages[-1]["at"] - job.started for messages, job in zip(ready, jobs, strict=True)],
        highest_mib(memory.staging_bytes if memory else []),
        highest_mib(memory.held_bytes if memory else []),
        highest_mib(peak.sizes),
        after.others_since(before) / (ended - began),
    )


def highest_mib(sizes: Sequence[int]) -> float | None:
    return max(sizes) / MIB if sizes else None


def until_all_say(
    event: str, jobs: Sequence[Child], timeout: float, watched: Sequence[SharedMemory | Peak] = ()
) -> list[list[dict[str, Any]]]:
    """Returns all messages of each job up to `event`.

    Raises:
        ChildFailed: a job ended, or did not say `event` in time.
    """
    said: dict[str, list[dict[str, Any]]] = {job.name: [] for job in jobs}
    deadline = time.monotonic() + timeout
    while missing := [job for job in jobs if not has_said(event, said[job.name])]:
        if time.monotonic() > deadline:
            raise missing[0].failure(f"did not say {event!r} within {timeout:.0f} s")
        for each in watched:
            each.look()
        for job, message in messages(missing, LOOK_EVERY_S):
            said[job.name].append(message)
        for job in missing:
            if not job.running() and not has_said(event, said[job.name]):
                raise job.failure()
    for each in watched:
        each.look()
    return list(said.values())


def has_said(event: str, said: Sequence[dict[str, Any]]) -> bool:
    return bool(said) and said[-1]["event"] == event


@contextlib.contextmanager
def job_that_says(module: str, arguments: Sequence[str], folder: Path) -> Iterator[tuple[Child, dict[str, Any]]]:
    """Starts a process without a coordinator, and yields it with its single message."""
    with Children() as children:
        child = children.module("job", module, arguments, {**ONE_THREAD, "PYTHONPATH": str(folder)})
        for _, message in messages([child], READY_TIMEOUT_S):
            yield child, message
            return
        raise child.failure()
