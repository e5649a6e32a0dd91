"""Runs one loader with some jobs, and measures a window of time in the steady state."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders.machine import CpuClock, cores, remove_torch_files, trees
from tests.benchmarks.loaders.measure import ONE_THREAD, sleep_until
from tests.benchmarks.native_data.kinds import KINDS
from tests.benchmarks.storage.peers.loaders import workers_of
from tools.demo.children import Child, ChildFailed, Children, messages

START_TIMEOUT_S, WINDOW_TIMEOUT_S = 300.0, 60.0
SETTLE_S = 0.5
"""Seconds from when all jobs are in the steady state to the window."""
WARM_BATCHES = 8
CACHE = "4G"


@dataclass(frozen=True)
class Plan:
    """One loader and one number of jobs."""

    kind: str
    loader: str
    jobs: int

    def command(self, data: Path, python: Path) -> list[str]:
        """Returns the command of a job. `python` is the interpreter that has the packages of the other loaders."""
        package = "tests.benchmarks.native_data"
        if self.loader.startswith("coprep"):
            program, options = [sys.executable, "-m", f"{package}.job_coprep"], ["decoded" if self.is_cached else "off"]
        else:
            program, options = (
                [str(python), "-m", f"{package}.job_torch"],
                [self.loader, str(workers_of(self.jobs, cores()))],
            )
        return [*program, self.kind, str(data), str(self.warm_after()), *options]

    def warm_after(self) -> int:
        """Returns the samples of a job after which it is in the steady state."""
        kind = KINDS[self.kind]
        return WARM_BATCHES * kind.batch_size + (kind.count if self.is_cached else 0)

    @property
    def is_cached(self) -> bool:
        return self.loader.endswith("cached")


@dataclass(frozen=True)
class Run:
    """The figures of one window."""

    samples_per_s: float
    cpu_s_per_1000: float
    first_batch_s: float
    others_cores: float


def measure(plan: Plan, data: Path, python: Path, seconds: float) -> Run:
    with Children() as children:
        processes: list[int] = []
        children.callback(lambda: remove_torch_files(processes))
        env, roots = dict(ONE_THREAD), []
        if plan.loader.startswith("coprep"):
            coordinator, variables = children.coordinator(CACHE)
            env |= variables
            roots.append(coordinator.pid)
        jobs = [children.start(f"job {number}", plan.command(data, python), env) for number in range(plan.jobs)]
        roots += [job.pid for job in jobs]
        children.callback(lambda: processes.extend(trees(roots)))
        firsts, _ = wait_for(("first", "warm"), jobs, START_TIMEOUT_S)
        begin = time.monotonic() + SETTLE_S
        for job in jobs:
            job.tell(f"{begin} {begin + seconds}")
        sleep_until(begin)
        before = CpuClock.read(roots)
        sleep_until(begin + seconds)
        after = CpuClock.read(roots)
        (windows,) = wait_for(("window",), jobs, WINDOW_TIMEOUT_S)
    samples = sum(window["images"] for window in windows)
    if not samples:
        raise ChildFailed(f"{plan}: no batch arrived within {seconds} s")
    return Run(
        samples_per_s=samples / seconds,
        cpu_s_per_1000=1000 * after.ours_since(before) / samples,
        first_batch_s=max(first["seconds"] for first in firsts),
        others_cores=after.others_since(before) / seconds,
    )


def wait_for(events: Sequence[str], jobs: Sequence[Child], timeout: float) -> list[list[Mapping[str, Any]]]:
    """Waits until all jobs have said all `events`. Returns the messages of each event."""
    heard: dict[tuple[str, str], Mapping[str, Any]] = {}
    deadline = time.monotonic() + timeout
    while missing := [job for job in jobs if any((event, job.name) not in heard for event in events)]:
        if time.monotonic() > deadline:
            raise missing[0].failure(f"did not say {' and '.join(events)} within {timeout:.0f} s")
        for job, message in messages(missing, 0.5):
            heard[message["event"], job.name] = message
        for job in missing:
            if not job.running():
                raise job.failure()
    return [[heard[event, job.name] for job in jobs] for event in events]
