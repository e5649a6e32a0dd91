"""Runs one loader with one or eight jobs: two epochs, and then the memory while the jobs go on."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.loaders.machine import CpuClock, cores, cpu_seconds, remove_torch_files, trees
from tests.benchmarks.loaders.measure import MIB, ONE_THREAD
from tests.benchmarks.slow_samples.running import DONE_TIMEOUT_S, READY_TIMEOUT_S, hear
from tests.benchmarks.storage.peers import EPOCHS
from tests.benchmarks.storage.peers.bucket import Bucket
from tests.benchmarks.storage.peers.loaders import Loader, workers_of
from tests.benchmarks.storage.peers.memory import (
    disk_bytes,
    memory_of,
    remove_new,
    shm_bytes,
    streaming_files,
)
from tools.demo.children import Child, ChildFailed, Children, coprep_command

CACHE = "4G"
"""Memory of coprep's cache, which is more than the dataset."""
END_TIMEOUT_S = 30.0
SETTLE_S, MEMORY_SAMPLES, MEMORY_PAUSE_S = 1.5, 3, 0.5
"""Seconds of the third epoch before memory is read, the number of readings, and the seconds between them."""


@dataclass(frozen=True)
class Epoch:
    """The figures of one epoch of all jobs."""

    images_per_s: float
    cpu_s_per_1000: float
    gets: float
    """Requests for objects, for each sample of the dataset, those of a warm-up and of opening included."""
    other_requests: float
    """Requests for listings and lengths, for each sample."""
    kilobytes: float
    """Bytes of objects that the server sent, for each sample."""
    server_cores: float
    """Processors that the server used."""
    others_cores: float


@dataclass(frozen=True)
class Run:
    """The figures of one loader with one number of jobs."""

    epochs: Sequence[Epoch]
    first_batch_s: float
    """Seconds to the first batch of the first epoch, as the median of the jobs."""
    memory_mib: float
    disk_mib: float
    warm_up_s: float


class Fleet:
    """The jobs of one run, their coordinator if there is one, and their folder."""

    def __init__(self, loader: Loader, jobs: int, bucket: Bucket, python: Path, children: Children) -> None:
        self.loader, self.jobs_count, self.bucket, self.children = loader, jobs, bucket, children
        self.folder = children.folder / "kept"
        scratch = children.folder / "tmp"
        scratch.mkdir()
        self.folder.mkdir()
        server = bucket.server
        self.env: dict[str, str] = {
            **ONE_THREAD,
            **server.environment(),
            # Of MosaicML streaming.
            "S3_ENDPOINT_URL": server.address,
            "XDG_CACHE_HOME": str(self.folder),
            "TMPDIR": str(scratch),
        }
        self.roots: list[int] = []
        self.warm_up_s = 0.0
        self.counted = server.counts()
        self._clean_up_afterwards()
        if loader.is_coprep:
            coordinator, variables = children.coordinator(CACHE, env=self.env)
            self.env |= variables
            self.roots.append(coordinator.pid)
            if loader.is_warmed:
                self._warm()
        self.jobs = self._start(python)
        self.roots += [job.pid for job in self.jobs]

    def _clean_up_afterwards(self) -> None:
        # Callbacks run in reverse order, so these run after the jobs have ended.
        processes: list[int] = []
        before = streaming_files()
        self.files_before = shm_bytes()
        self.children.callback(lambda: remove_torch_files(processes))
        self.children.callback(lambda: remove_new(before))
        self.processes = processes

    def _warm(self) -> None:
        began = time.monotonic()
        command = [str(coprep_command()), "warm", self.bucket.url(self.loader), "--form", "encoded"]
        done = subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise ChildFailed(f"coprep warm ended with code {done.returncode}:\n{done.stderr[-2000:]}")
        self.warm_up_s = time.monotonic() - began

    def _start(self, python: Path) -> list[Child]:
        """Starts the jobs, and lets them make their loaders in turn.

        In turn, because two jobs of MosaicML streaming that start at the same moment may choose the same names for
        their shared memory.
        """
        interpreter = sys.executable if self.loader.is_coprep else str(python)
        module = f"tests.benchmarks.storage.peers.{self.loader.job}"
        jobs = []
        for number in range(1, self.jobs_count + 1):
            command = [interpreter, "-m", module, json.dumps(self._plan(number))]
            jobs.append(self.children.start(f"job {number}", command, self.env))
        for job in jobs:
            hear(job, "imported", READY_TIMEOUT_S)
        for job in jobs:
            job.tell("make the loader")
            hear(job, "ready", READY_TIMEOUT_S)
        return jobs

    def _plan(self, number: int) -> Mapping[str, object]:
        return {
            "url": self.bucket.url(self.loader),
            "endpoint": self.bucket.server.address,
            "cache": str(self.folder / ("all-jobs" if self.loader.has_one_folder else f"job-{number}")),
            "workers": workers_of(self.jobs_count, cores()),
        }

    def epoch(self) -> tuple[Epoch, float]:
        """Runs one epoch of all jobs. Returns its figures and the seconds to the first batch."""
        server = self.bucket.server.process.pid
        before, server_before, began = CpuClock.read(self.roots), cpu_seconds(server), time.monotonic()
        for job in self.jobs:
            job.tell("go")
        said = [hear(job, "epoch", DONE_TIMEOUT_S)[-1] for job in self.jobs]
        after, server_cpu_s = CpuClock.read(self.roots), cpu_seconds(server) - server_before
        counts = self.bucket.server.counts()
        seconds = max(float(message["ended"]) for message in said) - began
        samples = self.bucket.samples
        for job, message in zip(self.jobs, said, strict=True):
            if message["images"] != samples:
                raise job.failure(f"got {message['images']} images of {samples} in an epoch")
        images = samples * len(self.jobs)
        more = {name: counts[name] - self.counted[name] for name in counts}
        self.counted = counts
        figures = Epoch(
            images_per_s=images / seconds,
            cpu_s_per_1000=1000 * after.ours_since(before) / images,
            gets=more["gets"] / samples,
            other_requests=(more["lists"] + more["heads"]) / samples,
            kilobytes=more["bytes"] / samples / 1000,
            server_cores=server_cpu_s / seconds,
            others_cores=max(after.others_since(before) - server_cpu_s, 0.0) / seconds,
        )
        return figures, statistics.median(float(message["first_s"]) for message in said)

    def memory_mib(self) -> float:
        """Returns the memory of all processes while the jobs take a third epoch."""
        for job in self.jobs:
            job.tell("go on")
        time.sleep(SETTLE_S)
        readings = []
        for _ in range(MEMORY_SAMPLES):
            readings.append(memory_of(trees(self.roots), self.files_before).total / MIB)
            time.sleep(MEMORY_PAUSE_S)
        return statistics.median(readings)

    def end(self) -> None:
        """Lets the jobs end by themselves, so that they remove their shared memory."""
        self.processes += trees(self.roots)
        for job in self.jobs:
            job.tell("end")
        deadline = time.monotonic() + END_TIMEOUT_S
        while any(job.running() for job in self.jobs) and time.monotonic() < deadline:
            time.sleep(0.05)


def run(loader: Loader, jobs: int, bucket: Bucket, python: Path) -> Run:
    """Runs a loader from an empty folder. `python` is the interpreter that has the other loaders."""
    with Children() as children:
        fleet = Fleet(loader, jobs, bucket, python, children)
        epochs = [fleet.epoch() for _ in range(EPOCHS)]
        memory = fleet.memory_mib()
        disk = disk_bytes(fleet.folder) / MIB
        fleet.end()
    return Run(
        epochs=[figures for figures, _ in epochs],
        first_batch_s=epochs[0][1],
        memory_mib=memory,
        disk_mib=disk,
        warm_up_s=fleet.warm_up_s,
    )
