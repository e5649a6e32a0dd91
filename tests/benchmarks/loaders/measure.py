"""Makes one measurement: some jobs at a time with one loader, over a window of time in the steady state."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.benchmarks.loaders import DATA_VARIABLE
from tests.benchmarks.loaders.machine import (
    CpuClock,
    available_bytes,
    cores,
    has_mapped,
    pss_bytes,
    remove_torch_files,
    trees,
)
from tools.demo.children import Child, ChildFailed, Children, coprep_command, messages

BATCH_SIZE = 64
TENSOR_BATCH_SIZE = 128
WARM_TIMEOUT_S = 600.0
WINDOW_TIMEOUT_S = 60.0
PSS_SAMPLES, PSS_PAUSE_S = 5, 0.8
"""Moments at which the memory of processes is read, and the seconds between them."""
WARM_BATCHES = 4
"""Batches that each job takes before the window, where no cache has to be filled first."""
CACHE_SHARE = 0.6
"""Share of the free memory that a coordinator's cache may use. Within it, the cache gets as much as the dataset
needs.
"""
TORCH_WORKERS = cores()
"""Workers of each PyTorch job: one per core, which is the usual choice."""
PYTHON_WORKERS = 2
"""Workers for the Python dataset. With PyTorch each job has this many; with coprep all jobs share them."""
TORCH_WINDOW = 2
"""Factor by which PyTorch's windows on images are longer. With many jobs, each gets a batch only every second or two.
One job gets many batches of tensors a second, so those windows keep their length."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MIB = 1 << 20


@dataclass(frozen=True)
class Setup:
    """A loader, in one of the configurations that are compared."""

    loader: str
    cache: str | None = None
    samples: Literal["images", "tensors"] = "images"
    """The kind of samples. Tensors come from a Python dataset that only indexes, which leaves the loader's own cost."""
    light: bool = False
    """``True`` if an import string names the Python dataset, so that only the workers import PyTorch."""

    @property
    def label(self) -> str:
        label = self.loader if self.cache is None else f"{self.loader}, cache {self.cache}"
        if self.light:
            label += ", light jobs"
        return label if self.samples == "images" else f"{label}, {self.samples}"

    @property
    def is_coprep(self) -> bool:
        return self.loader.startswith("coprep")

    @property
    def is_python(self) -> bool:
        """``True`` if it loads the Python dataset, which is the same for all loaders that do."""
        return self.loader.endswith("-python")

    @property
    def batch_size(self) -> int:
        return BATCH_SIZE if self.samples == "images" else TENSOR_BATCH_SIZE


@dataclass(frozen=True)
class Dataset:
    """An image folder, with its files and their size."""

    root: Path
    files: Sequence[Path]
    bytes: int

    @classmethod
    def find(cls, root: Path) -> Dataset:
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return cls(root, files, sum(path.stat().st_size for path in files))

    def read(self) -> None:
        """Brings every file into the page cache."""
        for path in self.files:
            path.read_bytes()


@dataclass(frozen=True)
class Run:
    """The figures of one measurement. A figure is `None` if it does not apply to this loader."""

    images_per_s: float
    cpu_s_per_1000: float
    pss_mib: float | None
    first_batch_s: float | None
    ready_to_first_s: Sequence[float]
    """Seconds to the first batch, by job, from when the process has its imports and its dataset."""
    pss_ready_mib: float | None
    """Memory of jobs that are ready, before they load anything. The coordinator, which is there to load, does not
    count."""
    staging_mib: float | None
    gaps_ms: list[float]
    job_cpu_us_per_batch: float | None
    others_cores: float


def measure(setup: Setup, jobs: int, data: Dataset, seconds: int, limit: Path | None) -> Run:
    """Reads all files once, then measures."""
    data.read()
    if setup.loader.startswith("torch") and setup.samples == "images":
        seconds *= TORCH_WINDOW
    if setup.loader == "limit":
        assert limit is not None
        return measure_limit(limit, data, seconds)
    with Children() as children:
        return measure_jobs(setup, jobs, data, seconds, children)


class Fleet:
    """The jobs of one measurement, and their coordinator if there is one."""

    def __init__(self, setup: Setup, jobs: int, data: Dataset, children: Children) -> None:
        self.env = dict(ONE_THREAD)
        self.roots: list[int] = []
        self.processes: list[int] = []
        # Callbacks run in reverse order: the second one while the processes are there, the first one after their end.
        children.callback(lambda: remove_torch_files(self.processes))
        self.heard: dict[str, dict[str, dict[str, Any]]] = {}
        if setup.is_coprep:
            coordinator, variables = children.coordinator(cache=cache_budget(setup))
            self.env |= variables
            self.roots.append(coordinator.pid)
        if setup.is_python:
            self.env[DATA_VARIABLE] = str(data.root)
        module, arguments = job_command(setup, data)
        self.jobs: list[Child] = []
        for number in range(1, jobs + 1):
            started = [] if setup.is_python else [str(time.monotonic())]
            self.jobs.append(children.module(f"job {number}", module, [*arguments, *started], self.env))
            self.heard[f"job {number}"] = {}
        self.roots += [job.pid for job in self.jobs]
        children.callback(lambda: self.processes.extend(trees(self.roots)))

    def begin(self, in_turn: bool) -> list[float]:
        """Lets ready jobs begin, all at once or in turn. Returns the seconds to their first batches."""
        for job in self.jobs:
            job.tell("go")
            if in_turn:
                self.wait_for("first", WARM_TIMEOUT_S, [job])
        return [first["seconds"] for first in self.wait_for("first", WARM_TIMEOUT_S)]

    def wait_for(self, event: str, timeout: float, jobs: Sequence[Child] = ()) -> list[dict[str, Any]]:
        """Waits until `jobs`, by default all, have said `event`. Returns their messages."""
        deadline = time.monotonic() + timeout
        jobs = jobs or self.jobs
        while missing := [job for job in jobs if event not in self.heard[job.name]]:
            if time.monotonic() > deadline:
                raise missing[0].failure(f"did not say {event!r} within {timeout:.0f} s ({len(missing)} did not)")
            for job, message in messages(missing, 0.5):
                self.heard[job.name][message["event"]] = message
            for job in self.jobs:
                if not job.running():
                    raise job.failure()
        return [self.heard[job.name][event] for job in jobs]

    def check_light(self) -> None:
        """Checks that jobs which are said to import no PyTorch have not imported it."""
        for job in self.jobs:
            if has_mapped(job.pid, "libtorch"):
                raise ChildFailed(f"{job.name} has PyTorch in its memory, and is to be measured without")

    def pss_of_jobs(self) -> float | None:
        """Returns the memory of the jobs in MiB, without their coordinator."""
        sizes = [pss_bytes(pid) for pid in trees(job.pid for job in self.jobs)]
        return None if None in sizes else sum(size or 0 for size in sizes) / MIB

    def staging(self) -> float | None:
        """Returns the size of the coordinator's staging areas in MiB, or `None` if there is no coordinator."""
        if "COPREP_SOCKET" not in self.env:
            return None
        return float(sum(stream["staging_bytes"] for stream in coordinator_status(self.env)["streams"])) / MIB

    def pss(self) -> float | None:
        """Returns the memory of all processes together in MiB. Shared memory counts once."""
        sizes = [pss_bytes(pid) for pid in trees(self.roots)]
        if None in sizes and "COPREP_SOCKET" in self.env:
            sizes = [size for size in sizes if size is not None] + [coordinator_status(self.env)["pss_bytes"]]
        return None if None in sizes else sum(size or 0 for size in sizes) / MIB


def coordinator_status(env: dict[str, str]) -> dict[str, Any]:
    command = [str(coprep_command()), "status", "--json"]
    answer = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=True, timeout=30)
    status: dict[str, Any] = json.loads(answer.stdout)
    return status


def steady_pss(fleet: Fleet) -> float | None:
    """Returns the memory of all processes in MiB, as the median of several moments.

    The jobs keep taking batches after their window, so this is the steady state. Workers of a loader decode in step.
    They have most memory at the end of a batch, so that a single moment would show a part of that cycle.
    """
    sizes = []
    for _ in range(PSS_SAMPLES):
        sizes.append(fleet.pss())
        time.sleep(PSS_PAUSE_S)
    return median_or_none(sizes)


def measure_jobs(setup: Setup, jobs: int, data: Dataset, seconds: int, children: Children) -> Run:
    fleet = Fleet(setup, jobs, data, children)
    pss_ready, ready_to_first_s = None, []
    if setup.is_python:
        fleet.wait_for("ready", WARM_TIMEOUT_S)
        pss_ready = fleet.pss_of_jobs()
        # Jobs of coprep begin in turn, so that each one after the first joins a running stream.
        ready_to_first_s = fleet.begin(in_turn=setup.is_coprep)
    fleet.wait_for("warm", WARM_TIMEOUT_S)
    # The window begins a little later, which leaves the jobs time to read its bounds.
    begin = time.monotonic() + 0.2
    for job in fleet.jobs:
        job.tell(f"{begin} {begin + seconds}")
    sleep_until(begin)
    before = CpuClock.read(fleet.roots)
    sleep_until(begin + seconds)
    after = CpuClock.read(fleet.roots)
    pss, staging = steady_pss(fleet), fleet.staging()
    if setup.light:
        fleet.check_light()
    windows = fleet.wait_for("window", WINDOW_TIMEOUT_S)
    firsts = fleet.wait_for("first", WINDOW_TIMEOUT_S)
    images = sum(window["images"] for window in windows)
    if not images:
        raise ChildFailed(f"{setup.label}: no batch arrived within {seconds} s; give SECONDS more")
    return Run(
        images_per_s=images / seconds,
        cpu_s_per_1000=1000 * after.ours_since(before) / images,
        pss_mib=pss,
        first_batch_s=None if setup.is_python else median_or_none([job["seconds"] for job in firsts]),
        ready_to_first_s=ready_to_first_s,
        pss_ready_mib=pss_ready,
        staging_mib=staging,
        gaps_ms=[gap for window in windows for gap in window["gaps_ms"]],
        job_cpu_us_per_batch=median_or_none([window["cpu_us_per_batch"] for window in windows]),
        others_cores=after.others_since(before) / seconds,
    )


def median_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0))


def cache_budget(setup: Setup) -> str:
    return "0" if setup.cache in (None, "off") else str(int(CACHE_SHARE * available_bytes()))


def job_command(setup: Setup, data: Dataset) -> tuple[str, list[str]]:
    """Returns the job's module and its arguments, except the moment of start, which Python datasets do not take."""
    if setup.is_python:
        few = [str(setup.batch_size), str(WARM_BATCHES * setup.batch_size), str(PYTHON_WORKERS)]
        if setup.light:
            return "tests.benchmarks.loaders.job_light", few
        return "tests.benchmarks.loaders.job_python", [setup.loader, setup.samples, *few]
    common = [str(data.root), str(setup.batch_size)]
    if setup.loader == "coprep":
        assert setup.cache is not None
        warm_after = WARM_BATCHES * BATCH_SIZE if setup.cache == "off" else len(data.files) + BATCH_SIZE
        return "tests.benchmarks.loaders.job_coprep", [*common, str(warm_after), setup.cache]
    decoder = setup.loader.removeprefix("torch-")
    return "tests.benchmarks.loaders.job_torch", [*common, str(WARM_BATCHES * BATCH_SIZE), decoder, str(TORCH_WORKERS)]


def measure_limit(program: Path, data: Dataset, seconds: int) -> Run:
    """Measures a plain loop with a thread per core that keeps nothing. It has no batches, hence no gaps."""
    with Children() as children:
        before = CpuClock.read([])
        command = [str(program), str(data.root), "--threads", str(cores()), "--seconds", str(seconds), "--json"]
        child = children.start("limit", command)
        # Memory is read halfway, while the program is at work.
        time.sleep(seconds / 2)
        pss = pss_bytes(child.pid)
        said = [message for _, message in messages([child], seconds + WARM_TIMEOUT_S)]
        if not said:
            raise child.failure()
        after = CpuClock.read([child.pid])
        elapsed = time.monotonic() - child.started
    return Run(
        images_per_s=said[-1]["images_per_second"],
        cpu_s_per_1000=said[-1]["cpu_seconds_per_1000"],
        pss_mib=pss and pss / MIB,
        first_batch_s=None,
        ready_to_first_s=[],
        pss_ready_mib=None,
        staging_mib=None,
        gaps_ms=[],
        job_cpu_us_per_batch=None,
        others_cores=after.others_since(before) / elapsed,
    )


def limit_cpu_s_per_1000(program: Path, data: Dataset) -> float:
    """Measures the CPU cost of the same loop over each image once, which are exactly the images of an epoch."""
    with Children() as children:
        command = [str(program), str(data.root), "--threads", str(cores()), "--epochs", "1", "--json"]
        child = children.start("limit", command)
        said = [message for _, message in messages([child], WARM_TIMEOUT_S + len(data.files))]
        if not said:
            raise child.failure()
    return float(said[-1]["cpu_seconds_per_1000"])
