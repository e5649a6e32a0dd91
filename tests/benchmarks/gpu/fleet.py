"""The jobs and their coordinator. All measurements are made with the same processes, since starting them is slow.

The jobs that a measurement does not need wait, and use the GPU's memory alone. The others get the same algorithms of
cuDNN in all modes, whatever it found to be the best ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.drop_in.running import until_all_say
from tests.benchmarks.gpu.plan import ON_GPU, SHARING, Case, JobSettings
from tests.benchmarks.gpu.records import Row
from tests.benchmarks.loaders.machine import CpuClock, available_bytes, remove_torch_files, trees
from tests.benchmarks.loaders.measure import CACHE_SHARE, ONE_THREAD, coordinator_status, sleep_until
from tools.demo.children import Child, Children

START_TIMEOUT_S = 180.0
"""Limit for the imports of all jobs, which read gigabytes of libraries from a disk that may be slow."""
STEP_TIMEOUT_S = 60.0
MOST_CACHE_BYTES = 24 << 30
"""Budget of the cache where there is much memory. The pixels of 10,000 photographs take 6 GB or so. A container may
have less than /proc/meminfo says."""
RING_TIMEOUT_S = 30.0
"""Limit for the uploader to open its context and its ring."""
BEFORE_WINDOW_S = 0.2
"""Time that jobs have to read the bounds of a window before it begins."""


class NoDevice(Exception):
    """A job cannot use the device. The message says why."""


@dataclass(frozen=True)
class Fleet:
    """Jobs that wait for commands, and their coordinator."""

    coordinator: Child
    jobs: Sequence[Child]
    env: dict[str, str]
    settings: JobSettings
    about: dict[str, Any]
    """Description of the device, as the first job gives it."""

    def measure(self, case: Case, repetition: int, seconds: float) -> Row:
        """Lets as many jobs as the case has train with its mode, and returns what they and the processors did."""
        jobs = self.jobs[: case.jobs]
        if error := self._open(case, jobs):
            return Row(case.mode, case.jobs, repetition, error=error)
        counted = self._uploads() if case.mode in ON_GPU else None
        roots = [self.coordinator.pid, *(job.pid for job in jobs)]
        begin = time.monotonic() + BEFORE_WINDOW_S
        tell(jobs, do="window", begin=begin, end=begin + seconds)
        sleep_until(begin)
        before = CpuClock.read(roots)
        sleep_until(begin + seconds)
        after = CpuClock.read(roots)
        uploads = None if counted is None else self._uploads() - counted
        closed = answers("closed", jobs)
        if error := first_error(closed):
            return Row(case.mode, case.jobs, repetition, error=error)
        steps = sum(answer["steps"] for answer in closed)
        return Row(
            case.mode,
            case.jobs,
            repetition,
            seconds=seconds,
            by_job=closed,
            cpu_s=after.ours_since(before),
            images=steps * self.settings.batch_size,
            uploads_per_batch=uploads / steps if uploads is not None and steps else None,
            others_cores=after.others_since(before) / seconds,
        )

    @contextmanager
    def training(self, case: Case) -> Iterator[str | None]:
        """Keeps jobs training in the block. Yields an error if they cannot."""
        jobs = self.jobs[: case.jobs]
        error = self._open(case, jobs)
        yield error
        if not error:
            tell(jobs, do="abandon")
            answers("closed", jobs)

    def _open(self, case: Case, jobs: Sequence[Child]) -> str | None:
        """Waits until all jobs train steadily. Returns an error if one cannot; then all have closed their loaders."""
        tell(jobs, do="open", mode=case.mode, jobs=case.jobs)
        error = first_error(answers("steady", jobs))
        if not error and case.mode in SHARING and case.jobs > 1:
            error = self._wait_for_ring()
        if error:
            tell(jobs, do="abandon")
            answers("closed", jobs)
        return error

    def _uploads(self) -> int:
        """Returns the copies to the GPU so far, by jobs and for several of them."""
        gpus = coordinator_status(self.env)["gpus"]
        return sum(gpu["own_uploads"] + gpu["shared_uploads"] for gpu in gpus)

    def _wait_for_ring(self) -> str | None:
        """Waits until uploads are shared. Returns the reason if they are not."""
        end = time.monotonic() + RING_TIMEOUT_S
        while time.monotonic() < end:
            gpus = coordinator_status(self.env)["gpus"]
            if any(gpu["rings"] for gpu in gpus):
                return None
            if notes := [note for gpu in gpus for note in gpu["notes"]]:
                return f"uploads are not shared: {notes[0]}"
            time.sleep(0.05)
        return f"uploads are not shared after {RING_TIMEOUT_S:g} s"


def tell(to: Sequence[Child], /, **command: Any) -> None:
    for job in to:
        job.tell(json.dumps(command))


def answers(event: str, jobs: Sequence[Child], timeout: float = STEP_TIMEOUT_S) -> list[dict[str, Any]]:
    """Returns the message of each job.

    Raises:
        ChildFailed: a job ended, or did not answer in time.
    """
    return [said[-1] for said in until_all_say(event, jobs, timeout)]


def first_error(said: Sequence[dict[str, Any]]) -> str | None:
    return next((message["error"] for message in said if "error" in message), None)


@contextmanager
def started(settings: JobSettings, jobs: int, samples: int) -> Iterator[Fleet]:
    """Starts the jobs, lets them warm up one by one, and fills the coordinator's cache with the photographs.

    Raises:
        NoDevice: a job cannot use the device.
        ChildFailed: a job ended, or the cache does not hold all photographs.
    """
    with Children() as children:
        processes: list[int] = []
        # Callbacks run in reverse order: the second one while the processes are there, the first one after their end.
        children.callback(lambda: remove_torch_files(processes))
        coordinator, place = children.coordinator(
            cache=str(min(int(CACHE_SHARE * available_bytes()), MOST_CACHE_BYTES))
        )
        env = ONE_THREAD | place
        argument = json.dumps(asdict(settings))
        all_jobs = [
            children.module(f"job {number}", "tests.benchmarks.gpu.job", [argument], env)
            for number in range(1, jobs + 1)
        ]
        children.callback(lambda: processes.extend(trees(job.pid for job in all_jobs)))
        ready = answers("ready", all_jobs, START_TIMEOUT_S)
        if error := first_error(ready):
            raise NoDevice(error)
        fleet = Fleet(coordinator, all_jobs, env, settings, ready[0])
        # In turn: cuDNN measures its algorithms, and another job on the GPU would disturb it.
        for job in all_jobs:
            tell([job], do="warm")
            answers("warm", [job])
        fill_cache(fleet, samples)
        yield fleet


def fill_cache(fleet: Fleet, samples: int) -> None:
    """Lets a job take all photographs, and checks that the cache holds their pixels.

    Raises:
        ChildFailed: it does not.
    """
    first = fleet.jobs[0]
    tell([first], do="fill")
    answers("full", [first], START_TIMEOUT_S)
    caches = coordinator_status(fleet.env)["caches"]
    cached = sum(of["entries"] for cache in caches for of in cache["by_form"] if of["form"] == "decoded")
    if cached != samples:
        raise fleet.coordinator.failure(f"has the pixels of {cached:,} photographs in its cache, of {samples:,}")
