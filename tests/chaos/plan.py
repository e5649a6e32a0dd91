"""The plan of a history: its datasets, its jobs, its faults and its limits; as JSON too."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

SIZES = (40, 96, 200)
"""Numbers of samples that a dataset may have."""
RUNTIME_BYTES = 64 << 10
"""Size in bytes of the runtime directory's file system if the plan fills it."""
SHM_BYTES = 64 << 20
"""Size in bytes of ``/dev/shm`` if the plan makes it small."""

ROOMY = 600 << 20
"""A memory limit in bytes that no history should reach. A process that is killed at it has grown without bound."""

BUCKET = "chaos"
"""Bucket of the datasets in an object store."""
SHARDS = 4
"""Number of tar shards of a dataset that lies in shards."""

FILE_FAULTS = ("removed", "cut", "cut_in_place", "emptied", "changed", "folder", "dangling", "grown", "fifo", "zero")
"""Changes of a file, as targets of a fault of kind ``files``."""
STORE_FAULTS = ("kill", "stop", "refuse", "breaks")
"""Faults of the object store, as targets of a fault of kind ``store``."""
NEW_KEYS = "new_keys"
"""Another such fault: the store takes new keys beside those of the jobs, and then only the new ones."""
OBJECT_FAULTS = ("replaced", "removed")
"""Changes of an object, as targets of a fault of kind ``objects``."""

LOOSE, SHARDED = ("objects", "urls"), ("shards", "web_shards")
"""Kinds of datasets in an object store, by the way in which samples lie there."""


@dataclass(frozen=True)
class Point:
    """A point in the code at which a build with failpoints can panic."""

    name: str
    costs_a_sample: bool = False
    """``True`` if a panic there makes the preparation of a sample fail."""


@dataclass(frozen=True)
class Data:
    """A dataset. The jobs that use the same one and the same options share a stream."""

    kind: str
    """``folder`` and ``files`` are native pipelines. So are those in an object store: ``objects`` (a prefix), ``urls``
    (a list), ``shards`` and ``web_shards`` (tar shards by the interface of S3, and by plain HTTP). ``plain``,
    ``together`` (by ``__getitems__``), ``transform`` and ``pickled`` are Python datasets. ``iterable`` is the iterable
    dataset of a cohort.
    """
    samples: int
    operators: str = "crop"
    """Operators of a native pipeline: ``crop`` (random), ``fixed`` (nothing random), ``float`` (random, normalized)."""
    width: int = 8
    """Number of elements in a sample's array, of a Python dataset."""
    slow: tuple[int, ...] = ()
    """Ids of the samples that take ``slow_s`` seconds."""
    slow_s: float = 0.0
    failing: tuple[int, ...] = ()
    """Ids of the samples that raise each time."""
    deadly: tuple[int, ...] = ()
    """Ids of the samples that kill their worker each time."""
    deadly_once: tuple[int, ...] = ()
    """Ids of the samples that kill their first worker only."""

    @property
    def is_native(self) -> bool:
        return self.kind in ("folder", "files") or self.is_remote

    @property
    def is_remote(self) -> bool:
        return self.kind in LOOSE + SHARDED

    def shard_of(self, i: int) -> int:
        """Returns the number of the shard of a sample."""
        return i * SHARDS // self.samples

    @property
    def is_iterable(self) -> bool:
        return self.kind == "iterable"


@dataclass(frozen=True)
class At:
    """The moment of a fault: a number of seconds after an event."""

    event: str
    """``start`` is the start of the history. ``batch`` is a batch of a job. ``appears`` is the appearance of the first
    process of the fault's target.
    """
    seconds: float = 0.0
    job: int = 0
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Fault:
    kind: str
    """``kill`` and ``stop`` (SIGSTOP, then SIGCONT) signal a process. ``files`` changes files. ``fill`` fills the file
    system of the runtime directory. ``store`` makes the object store fail, and ``objects`` changes objects in it.
    """
    at: At
    target: str = ""
    """Kind of process: ``job``, ``worker``, ``fork_server`` or ``coordinator``; ``giver``, a job that a fork server was
    forked from; or ``giver_and_server``, both at once. For ``files``, one of ``FILE_FAULTS``; for ``store``, one of
    ``STORE_FAULTS`` or ``NEW_KEYS``; for ``objects``, one of ``OBJECT_FAULTS``.
    """
    which: int = 0
    """Number of the job. For other kinds of process, picks one of the present processes of the kind."""
    seconds: float = 0.0
    """Duration of a stop, or of a fault of the object store. Of new keys, the time for which the old ones count too."""
    again: float = 0.0
    """Seconds after which a killed job is started again from its last state, or 0 if it is not started again."""
    data: int = 0
    ids: tuple[int, ...] = ()
    """Ids of the samples whose files or objects are changed. Of a sample in a shard, the shard is changed."""


@dataclass(frozen=True)
class Job:
    data: int
    start_s: float = 0.0
    ranks: int = 1
    barrier: bool = False
    """``True`` if the ranks meet after each batch, as an all-reduce makes them."""
    epochs: int = 2
    batch_size: int = 8
    shuffle: bool = True
    relaxed: bool = False
    skip: bool = False
    drop_last: bool = False
    subset: tuple[int, int] | None = None
    """``(k, n)`` leaves out fold k of n."""
    draws: int = 0
    """Number of draws with replacement in an epoch, or 0 if each sample comes once."""
    weighted: bool = False
    """``True`` if draws have unequal weights. Some samples are not drawn at all then."""
    cohort: int = 0
    """Number of jobs in the cohort, or 0 if the job is in none."""
    sampler: bool = False
    """``True`` if the job has a sampler of its own, with another order of its samples in each epoch and process."""
    cache: str | None = None
    cache_bytes: int | None = None
    lru: bool = False
    reuse: int | None = None
    seed: int | None = None
    workers: int = 2
    pause_s: float = 0.0
    """Duration of a training step."""
    hold: int = 0
    """Number of batches that the job keeps. Each is verified again before it is dropped."""
    write: bool = False
    """``True`` if the job writes into its batches."""
    threads: int = 0
    """Number of threads that the job runs beside its training. They allocate memory, and hold locks now and then."""
    ballast: int = 0
    """Bytes of memory that the job holds, and writes anew before each epoch."""
    leave: tuple[int, int] | None = None
    """``(epoch, batches)``: the job leaves that epoch after that number of batches."""
    idle: tuple[int, int, float] | None = None
    """``(epoch, batches, seconds)``: the job pauses there, as for a validation."""
    sleep: tuple[int, int] | None = None
    """``(epoch, batches)``: the job takes nothing more there until all jobs that do not sleep have ended."""
    resume: tuple[int, int] | None = None
    """``(epoch, batches)``: the job ends there, and another process goes on from its state."""
    saves: int = 0
    """Number of batches between two saves of the state, or 0 if it is never saved."""
    second: str = ""
    """Use of a second loader of the same dataset, if there is one. ``zip`` iterates it side by side with the first,
    ``validate`` after each epoch.
    """
    close: bool = True
    """``True`` if the job closes its loaders before it ends."""


@dataclass(frozen=True)
class Plan:
    seed: int
    datas: tuple[Data, ...]
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...] = ()
    staging: str = "8M"
    cache: str = "16M"
    cache_form: str | None = None
    cache_name: bool = False
    """``True`` if the coordinator keeps its caches in named segments."""
    pool: int = 2
    """Number of the coordinator's threads that prepare samples."""
    served: bool = False
    """``True`` if the runner starts the coordinator, instead of the first job."""
    log: str = "file"
    """Target of a served coordinator's log: ``file``, ``full`` (/dev/full), ``closed`` (a pipe that nobody reads)."""
    small_disk: bool = False
    """``True`` if the runtime directory is a file system of 64 KiB."""
    small_shm: bool = False
    """``True`` if ``/dev/shm`` has 64 MiB."""
    descriptors: int = 0
    """RLIMIT_NOFILE of jobs and coordinator, or 0 if it is not changed."""
    memory: int = 0
    """Limit of the control group of jobs and coordinator in bytes, or 0 if there is no group."""
    failpoints: str = ""
    """Panics that a build with failpoints injects."""
    panics_cost_samples: bool = False
    """``True`` if a sample at which such a panic happens cannot be prepared."""
    disk: bool = False
    """``True`` if the coordinator keeps samples on a disk."""
    keys_s: float = 0.0
    """Seconds for which keys of the store are valid that the jobs give by themselves, each job its own. 0 if the store
    takes requests without keys.
    """
    ending: str = "stop"
    """Way in which the coordinator ends: ``stop`` (the command), ``term`` (SIGTERM) or ``idle`` (by itself)."""
    probe: bool = False
    """``True`` if jobs attach and leave after the others. The coordinator must end with as many descriptors as now."""

    def is_killed(self, job: int) -> bool:
        return any(f.kind == "kill" and f.target == "job" and f.which == job for f in self.faults)

    def affected(self, data: int) -> frozenset[int]:
        """Returns the ids of the samples whose files or objects are changed in mid-run."""
        own = self.datas[data]
        if own.is_remote:
            return frozenset(i for fault in self.faults if fault.kind == "objects" for i in self._met(own, fault))
        if own.kind != "files":
            return frozenset()
        # All lists of files begin with the same files, so a change affects each list that is long enough.
        changed = (i for f in self.faults if f.kind == "files" for i in f.ids)
        return frozenset(i for i in changed if i < self.datas[data].samples)

    def _met(self, data: Data, fault: Fault) -> set[int]:
        """Returns the ids of a dataset's samples that a change of objects meets."""
        changed = self.datas[fault.data]
        if changed.kind == data.kind == "urls":
            return {i for i in fault.ids if i < data.samples}
        # The shards of a size are read by the interface of S3 and by plain HTTP.
        if changed.kind in SHARDED and data.kind in SHARDED and changed.samples == data.samples:
            shards = {data.shard_of(i) for i in fault.ids}
            return {i for i in range(data.samples) if data.shard_of(i) in shards}
        return set()

    @property
    def is_remote(self) -> bool:
        """``True`` if a dataset lies in an object store."""
        return any(data.is_remote for data in self.datas)

    @property
    def is_short_of_memory(self) -> bool:
        return 0 < self.memory < ROOMY

    @property
    def kills(self) -> bool:
        """``True`` if a process that makes or hands out samples may die."""
        return bool(
            any(f.kind == "kill" for f in self.faults)
            or self.is_short_of_memory
            or self.failpoints
            or any(d.deadly or d.deadly_once for d in self.datas)
        )

    def dumps(self) -> str:
        """Returns the plan as JSON, without the fields that have their default values."""
        return json.dumps(_brief(self), indent=1)


def _brief(item: Any) -> Any:
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        shown = {}
        for one in dataclasses.fields(item):
            value = getattr(item, one.name)
            if one.default is dataclasses.MISSING or value != one.default:
                shown[one.name] = _brief(value)
        return shown
    if isinstance(item, tuple):
        return [_brief(one) for one in item]
    return item


def loads(text: str) -> Plan:
    """Returns the plan that ``Plan.dumps`` wrote."""
    raw = json.loads(text)
    return Plan(
        **{
            **raw,
            "datas": tuple(Data(**_tuples(d)) for d in raw["datas"]),
            "jobs": tuple(Job(**_tuples(j)) for j in raw["jobs"]),
            "faults": tuple(Fault(**{**_tuples(f), "at": At(**f["at"])}) for f in raw.get("faults", ())),
        }
    )


def _tuples(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


def features(plan: Plan) -> set[str]:
    """Returns the names of the features of a plan that the summary counts."""
    found = {f"jobs: {len(plan.jobs)}", f"staging: {plan.staging}", f"ends by: {plan.ending}"}
    found |= {f"started by: {'serve' if plan.served else 'a job'}"}
    for job in plan.jobs:
        found |= _job_features(job, plan.datas[job.data])
    for fault in plan.faults:
        target = f" {fault.target}" if fault.target else ""
        found.add(f"fault: {fault.kind}{target}")
    limits = {
        "fault: log full": plan.log == "full",
        "fault: log closed": plan.log == "closed",
        "fault: few descriptors": plan.descriptors,
        "fault: little memory": plan.is_short_of_memory,
        "fault: small /dev/shm": plan.small_shm,
        "fault: panics": plan.failpoints,
        "cache: named": plan.cache_name,
        "cache: disk": plan.disk,
        "store: keys of the jobs": plan.keys_s,
    }
    found |= {name for name, is_there in limits.items() if is_there}
    return found if any(name.startswith("fault:") for name in found) else found | {"fault: none"}


def _job_features(job: Job, data: Data) -> set[str]:
    form = "reuse" if job.reuse else job.cache or "default"
    flags = {
        "job: late": job.start_s > 0,
        "job: cohort": job.cohort,
        "job: own sampler": job.sampler,
        "job: subset": job.subset,
        "job: draws": job.draws,
        "job: drop_last": job.drop_last,
        "job: holds batches": job.hold,
        "job: writes in place": job.write,
        "job: has threads": job.threads,
        "job: rewrites memory": job.ballast,
        "job: leaves an epoch": job.leave,
        "job: pauses": job.idle,
        "job: sleeps": job.sleep,
        "job: resumes": job.resume or job.saves,
        "job: second loader": job.second,
        "job: barrier": job.barrier,
        "cache: lru": job.lru,
        "data: in a store": data.is_remote,
        "data: slow samples": data.slow,
        "data: failing samples": data.failing,
        "data: deadly samples": data.deadly or data.deadly_once,
    }
    return {
        f"data: {data.kind}",
        f"order: {'relaxed' if job.relaxed else 'deterministic'}",
        f"shuffle: {job.shuffle}",
        f"on_error: {'skip' if job.skip else 'raise'}",
        f"ranks: {job.ranks}",
        f"cache: {form}",
    } | {name for name, is_there in flags.items() if is_there}
