"""Runs one job at a time, with a coordinator of its own where it needs one, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.loaders.machine import CpuClock, remove_torch_files, trees
from tests.benchmarks.loaders.measure import ONE_THREAD, coordinator_status
from tools.demo.children import Child, Children, coprep_command, messages

READY_TIMEOUT_S = 120.0
DONE_TIMEOUT_S = 900.0
END_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Job:
    """A module of this repository, run as a process."""

    module: str
    arguments: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Coordinator:
    """Options of `coprep serve`, and the size of the list to request when the job is done."""

    cache: str = "0"
    options: Sequence[str] = ()
    slowest: int = 0
    """Number of slow samples to list with their costs."""


@dataclass(frozen=True)
class Outcome:
    """The messages of a job between `ready` and `done`, and other observations."""

    said: Sequence[dict[str, Any]]
    status: dict[str, Any]
    cpu_s: float
    """CPU seconds of all its processes, the coordinator's included, from `ready` to `done`."""
    later_cpu_s: float
    """The same from the end of the first epoch, for a job that reports its epochs."""
    others_cores: float
    first_others_cores: float
    """Cores that other processes used until the end of the first epoch."""
    later_others_cores: float
    """The same from there on."""

    @property
    def costs(self) -> dict[str, Any]:
        """Returns the costs of the job's samples by the coordinator's status, or nothing if it reports none."""
        streams = self.status.get("streams") or [{}]
        costs: dict[str, Any] = streams[0].get("costs", {})
        return costs

    def of(self, event: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["event"] == event]


def run(job: Job, coordinator: Coordinator | None = None) -> Outcome:
    """Starts the job, waits until it is done, and ends it."""
    with Children() as children:
        env = dict(ONE_THREAD) | dict(job.env)
        roots, processes = [], list[int]()
        children.callback(lambda: remove_torch_files(processes))
        if coordinator:
            child, variables = children.coordinator(coordinator.cache, coordinator.options)
            env |= variables
            roots.append(child.pid)
        child = children.module("job", job.module, job.arguments, env)
        roots.append(child.pid)
        # Callbacks run in reverse: this one lists the processes, they are ended, and the first one cleans up.
        children.callback(lambda: processes.extend(trees(roots)))
        hear(child, "ready", READY_TIMEOUT_S)
        before, began = CpuClock.read(roots), time.monotonic()
        child.tell("go")
        first_epoch: list[tuple[CpuClock, float]] = []
        said = hear(child, "done", DONE_TIMEOUT_S, lambda: first_epoch.append((CpuClock.read(roots), time.monotonic())))
        after, ended = CpuClock.read(roots), time.monotonic()
        status = listed_status(env, coordinator.slowest) if coordinator else {}
        # PyTorch's files bear the ids of workers, which are listed before the job ends them.
        processes += trees(roots)
        end(child)
    ((middle, turned),) = first_epoch
    return Outcome(
        said,
        status,
        cpu_s=after.ours_since(before),
        later_cpu_s=after.ours_since(middle),
        others_cores=after.others_since(before) / (ended - began),
        first_others_cores=middle.others_since(before) / (turned - began),
        later_others_cores=after.others_since(middle) / (ended - turned),
    )


def hear(child: Child, event: str, timeout: float, at_first: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Returns all messages up to `event`, after which the job waits for a command.

    `at_first` is called once: at the first epoch, or at `event` if the job reports no epochs.
    """
    said: list[dict[str, Any]] = []
    is_first = True
    deadline = time.monotonic() + timeout
    for _, message in messages([child], timeout):
        if is_first and message["event"] in ("epoch", event):
            at_first()
            is_first = False
        said.append(message)
        if message["event"] == event:
            return said
    # A child that has closed its output is about to end. Its exit code may be all that tells why.
    while child.running() and time.monotonic() < deadline:
        time.sleep(0.01)
    raise child.failure(f"did not say {event!r} within {timeout:.0f} s" if child.running() else "")


def end(child: Child) -> None:
    """Lets the job end by itself, with its workers."""
    child.tell("end")
    deadline = time.monotonic() + END_TIMEOUT_S
    while child.running():
        if time.monotonic() > deadline:
            raise child.failure(f"did not end within {END_TIMEOUT_S:.0f} s")
        time.sleep(0.01)


def listed_status(env: dict[str, str], slowest: int) -> dict[str, Any]:
    """Returns the coordinator's status with the costs of this many samples."""
    if not slowest:
        return coordinator_status(env)
    command = [str(coprep_command()), "status", "--slow", str(slowest), "--json"]
    answer = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=True, timeout=60)
    status: dict[str, Any] = json.loads(answer.stdout)
    return status


@dataclass
class Progress:
    """Prints a numbered line for each finished item."""

    of: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def say(self, what: str) -> None:
        self.done += 1
        print(f"[{self.done}/{self.of} {time.monotonic() - self.began:5.0f} s] {what}", flush=True)


def side_by_side(jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
    """Runs jobs that need no coordinator at once, and yields their messages when they are done."""
    with Children() as children:
        started = [
            children.module(f"job {number}", job.module, job.arguments, {**ONE_THREAD, **job.env})
            for number, job in enumerate(jobs, 1)
        ]
        for child in started:
            hear(child, "ready", READY_TIMEOUT_S)
        for child in started:
            child.tell("go")
        for child in started:
            yield hear(child, "done", DONE_TIMEOUT_S)[-1]
