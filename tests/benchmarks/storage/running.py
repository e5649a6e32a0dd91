"""Runs jobs with a coordinator of their own, with a local object store or a process that stands for its load."""

from __future__ import annotations

import json
import math
import random
import shutil
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders.machine import CpuClock, cpu_seconds, yield_to_others
from tests.benchmarks.loaders.measure import ONE_THREAD, Dataset
from tests.benchmarks.slow_samples.running import DONE_TIMEOUT_S, READY_TIMEOUT_S, hear
from tests.support.object_server import ObjectServer
from tools.demo.children import Child, Children

BUCKET, LONG_BUCKET, SHARDS_BUCKET, MANY_SHARDS_BUCKET = "photos", "long", "shards", "many-shards"
SHARDS, MANY_SHARDS = 16, 1000
COPIES = 16
"""Names of each photograph where rates are measured, so that an epoch lasts for seconds, as with larger sets."""
SKIP_S = 3.0
"""Seconds from the first request for a batch until the rate is steady."""


@dataclass(frozen=True)
class Store:
    """An object store on this machine that holds the photographs."""

    server: ObjectServer

    @classmethod
    def of(cls, program: Path, photographs: Path) -> Store:
        server = ObjectServer(program)
        # A server elsewhere wakes no thread here, so this one must not take the processor from those that are measured.
        yield_to_others(server.process.pid)
        server.load(BUCKET, "", photographs)
        return cls(server)

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}"

    def long(self, photographs: Path) -> str:
        """Returns the URL of the photographs of a folder, which are put into the store."""
        self.server.load(LONG_BUCKET, "", photographs)
        return f"s3://{LONG_BUCKET}"

    def shards(self, photographs: Dataset) -> str:
        """Returns the URL of the same photographs in tar shards, which are written and put into the store."""
        files = random.Random(0).sample(photographs.files, len(photographs.files))
        return self._shards(SHARDS_BUCKET, [files[shard::SHARDS] for shard in range(SHARDS)])

    def many_shards(self, photographs: Dataset) -> str:
        """Returns the URL of `MANY_SHARDS` tar shards with a photograph each, which are put into the store."""
        files = photographs.files
        return self._shards(MANY_SHARDS_BUCKET, [[files[shard % len(files)]] for shard in range(MANY_SHARDS)])

    def _shards(self, bucket: str, shards: Sequence[Sequence[Path]]) -> str:
        with tempfile.TemporaryDirectory(prefix="coprep-shards-") as folder:
            for shard, files in enumerate(shards):
                with tarfile.open(Path(folder) / f"{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
                    for number, file in enumerate(files):
                        archive.add(file, f"{number:06}.jpg")
            self.server.load(bucket, "", Path(folder))
        return f"s3://{bucket}/{{000..{len(shards) - 1:03}}}.tar"

    def gets(self) -> int:
        return self.server.counts()["gets"]


def under_several_names(photographs: Dataset, folder: Path) -> Path:
    """Makes a folder with each photograph under `COPIES` names. Returns the folder."""
    for path in photographs.files:
        name = folder / path.relative_to(photographs.root)
        name.parent.mkdir(parents=True, exist_ok=True)
        for copy in range(COPIES):
            _link(path, name.with_name(f"{copy}-{name.name}"))
    return folder


def _link(path: Path, name: Path) -> None:
    """Gives a file another name, or copies it to another file system."""
    try:
        name.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, name)


@dataclass(frozen=True)
class Disk:
    """A disk cache of the coordinator."""

    folder: str
    bytes: int
    """Size of the file, with its table."""
    samples: int = 0
    """Samples that must lie on it before the run ends."""

    def options(self) -> list[str]:
        return ["--disk-cache", self.folder, "--disk-bytes", str(self.bytes)]


@dataclass(frozen=True)
class Plan:
    """The data and the options of all jobs of one run. A run lasts for `seconds` or for `epochs`."""

    data: str
    jobs: int = 1
    seconds: float = 0.0
    epochs: int = 0
    options: Mapping[str, Any] = field(default_factory=lambda: {"cache": "off"})
    cache: str = "0"
    """Size of the coordinator's cache."""
    disk: Disk | None = None
    kill: bool = False
    """The coordinator is killed at the end, and not asked to end."""
    index_folder: str | None = None
    """The user's cache folder for indexes of shards, or `None` for the usual one."""
    burn: float = 0.0
    """Processors that other processes use meanwhile, such as 0.4."""

    def arguments(self) -> list[str]:
        plan = {
            "data": self.data,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "options": dict(self.options),
            "on_disk": self.disk.samples if self.disk else 0,
        }
        return [json.dumps(plan)]


@dataclass(frozen=True)
class Window:
    """Seconds of a run, and the CPU seconds that were used within them."""

    start: float
    end: float
    coprep_cpu_s: float
    """By the coordinator and the job."""
    server_cpu_s: float
    others_cores: float


@dataclass(frozen=True)
class Outcome:
    """The observations of one run."""

    began: float
    arrivals: Sequence[tuple[float, int]]
    """The batches of the first job: their times and their numbers of images."""
    fetched_by_visit: Sequence[int]
    window: Window
    gets_by_epoch: Sequence[int] = ()
    """GETs of the store up to the end of each epoch of all jobs."""

    def images(self, start: float, end: float) -> int:
        return sum(images for at, images in self.arrivals if start <= at < end)

    @property
    def images_per_s(self) -> float:
        window = self.window
        return self.images(window.start, window.end) / (window.end - window.start)

    @property
    def cpu_s_per_1000(self) -> float:
        return 1000 * self.window.coprep_cpu_s / max(self.images(self.window.start, self.window.end), 1)

    @property
    def server_share(self) -> float:
        """The processors that the server used, such as 0.4."""
        return self.window.server_cpu_s / (self.window.end - self.window.start)

    def rates_by_second(self) -> list[float]:
        seconds = int(self.arrivals[-1][0] - self.began) if self.arrivals else 0
        return [float(self.images(self.began + second, self.began + second + 1)) for second in range(seconds)]


def run(plan: Plan, store: Store | None = None) -> Outcome:
    """Runs the jobs of a plan from beginning to end."""
    with Children() as children:
        _burners(plan, children)
        env = {**ONE_THREAD, **(store.server.environment() if store else {})}
        if plan.index_folder:
            env["XDG_CACHE_HOME"] = plan.index_folder
        options = plan.disk.options() if plan.disk else []
        coordinator, variables = children.coordinator(cache=plan.cache, options=options, env=env)
        jobs = [
            children.module(f"job {number}", "tests.benchmarks.storage.job", plan.arguments(), {**env, **variables})
            for number in range(1, plan.jobs + 1)
        ]
        for job in jobs:
            hear(job, "ready", READY_TIMEOUT_S)
        for job in jobs:
            job.tell("go")
        window = _window(plan, [coordinator, jobs[0]], store)
        gets = [_gets_after_epoch(jobs, store) for _ in range(plan.epochs)] if store else []
        done = [hear(job, "done", DONE_TIMEOUT_S)[-1] for job in jobs][0]
        if plan.kill:
            coordinator.process.kill()
    arrivals = [(float(at), int(images)) for at, images in done["arrivals"]]
    return Outcome(float(done["began"]), arrivals, done["fetched_by_visit"], window, gets)


@dataclass(frozen=True)
class Opening:
    """The time and the requests of opening a dataset."""

    seconds: float
    samples: int
    lists: int
    gets: int


def open_dataset(url: str, store: Store, index_folder: str) -> Opening:
    """Opens tar shards by a coordinator that has just started. Returns what that took."""
    with Children() as children:
        env = {**ONE_THREAD, **store.server.environment(), "XDG_CACHE_HOME": index_folder}
        _, variables = children.coordinator(env=env)
        before = store.server.counts()
        job = children.module("job", "tests.benchmarks.storage.opening", [url], {**env, **variables})
        opened = hear(job, "opened", DONE_TIMEOUT_S)[-1]
        after = store.server.counts()
    lists, gets = (after[kind] - before[kind] for kind in ("lists", "gets"))
    return Opening(float(opened["seconds"]), int(opened["samples"]), lists, gets)


def _burners(plan: Plan, children: Children) -> None:
    # A process uses one processor at most.
    processes = math.ceil(plan.burn)
    for number in range(1, processes + 1):
        share = str(plan.burn / processes)
        burner = children.module(f"burner {number}", "tests.benchmarks.storage.burn", [share])
        hear(burner, "ready", READY_TIMEOUT_S)


def _gets_after_epoch(jobs: Sequence[Child], store: Store) -> int:
    for job in jobs:
        hear(job, "epoch", DONE_TIMEOUT_S)
    gets = store.gets()
    for job in jobs:
        job.tell("go on")
    return gets


def _window(plan: Plan, ours: Sequence[Child], store: Store | None) -> Window:
    """Measures from `SKIP_S` to the end of a run that lasts for some seconds. Of epochs, nothing is timed."""
    if plan.seconds > 0:
        time.sleep(SKIP_S)
    pids, server = [child.pid for child in ours], [store.server.process.pid] if store else []
    before, start = CpuClock.read([*pids, *server]), time.monotonic()
    cpu_before, server_before = sum(map(cpu_seconds, pids)), sum(map(cpu_seconds, server))
    # The job must not end within the window, since the processor time of an ended process cannot be read.
    time.sleep(max(plan.seconds - SKIP_S - 0.5, 0.0) or 0.001)
    cpu_after, server_after = sum(map(cpu_seconds, pids)), sum(map(cpu_seconds, server))
    end, after = time.monotonic(), CpuClock.read([*pids, *server])
    others = after.others_since(before) / (end - start)
    return Window(start, end, cpu_after - cpu_before, server_after - server_before, others)
