"""Draws the plan of a history from its seed. The same seed gives the same plan on any machine."""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, field
from typing import Any

SIZES = (40, 96, 200)
"""Numbers of samples that a dataset may have."""
RUNTIME_BYTES = 64 << 10
"""Size in bytes of the runtime directory's file system if the plan fills it."""
SHM_BYTES = 64 << 20
"""Size in bytes of ``/dev/shm`` if the plan makes it small."""

ROOMY = 600 << 20
"""A memory limit in bytes that no history should reach. A process that is killed at it has grown without bound."""


@dataclass(frozen=True)
class Point:
    """A point in the code at which a build with failpoints can panic."""

    name: str
    costs_a_sample: bool = False
    """Whether a panic there makes the preparation of a sample fail."""


@dataclass(frozen=True)
class Data:
    """A dataset. The jobs that use the same one and the same options share a stream."""

    kind: str
    """``folder`` and ``files`` are native pipelines. ``plain``, ``transform`` and ``pickled`` are Python datasets.
    ``iterable`` is the iterable dataset of a cohort.
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
        return self.kind in ("folder", "files")

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
    system of the runtime directory.
    """
    at: At
    target: str = ""
    """Kind of process: ``job``, ``worker``, ``fork_server``, ``zygote`` or ``coordinator``. For ``files``, one of
    ``FILE_FAULTS``.
    """
    which: int = 0
    """Number of the job. For other kinds of process, picks one of the present processes of the kind."""
    seconds: float = 0.0
    """Duration of a stop."""
    again: float = 0.0
    """Seconds after which a killed job is started again from its last state, or 0 if it is not started again."""
    data: int = 0
    ids: tuple[int, ...] = ()
    """Ids of the samples whose files are changed."""


@dataclass(frozen=True)
class Job:
    data: int
    start_s: float = 0.0
    ranks: int = 1
    barrier: bool = False
    """Whether the ranks meet after each batch, as an all-reduce makes them."""
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
    """Whether draws have unequal weights. Some samples are not drawn at all then."""
    cohort: int = 0
    """Number of jobs in the cohort, or 0 if the job is in none."""
    sampler: bool = False
    """Whether the job has a sampler of its own, with another order of its samples in each epoch and process."""
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
    """Whether the job writes into its batches."""
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
    """Whether the job closes its loaders before it ends."""


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
    """Whether the coordinator keeps its caches in named segments."""
    pool: int = 2
    """Number of the coordinator's threads that prepare samples."""
    served: bool = False
    """Whether the runner starts the coordinator, instead of the first job."""
    log: str = "file"
    """Target of a served coordinator's log: ``file``, ``full`` (/dev/full), ``closed`` (a pipe that nobody reads)."""
    small_disk: bool = False
    """Whether the runtime directory is a file system of 64 KiB."""
    small_shm: bool = False
    """Whether ``/dev/shm`` has 64 MiB."""
    descriptors: int = 0
    """RLIMIT_NOFILE of jobs and coordinator, or 0 if it is not changed."""
    memory: int = 0
    """Limit of the control group of jobs and coordinator in bytes, or 0 if there is no group."""
    failpoints: str = ""
    """Panics that a build with failpoints injects."""
    panics_cost_samples: bool = False
    """Whether a sample at which such a panic happens cannot be prepared."""
    ending: str = "stop"
    """Way in which the coordinator ends: ``stop`` (the command), ``term`` (SIGTERM) or ``idle`` (by itself)."""
    probe: bool = False
    """Whether jobs attach and leave after the others. The coordinator must then have as many descriptors as before."""

    def is_killed(self, job: int) -> bool:
        return any(f.kind == "kill" and f.target == "job" and f.which == job for f in self.faults)

    def affected(self, data: int) -> frozenset[int]:
        """Returns the ids of the samples whose files are changed in mid-run."""
        if self.datas[data].kind != "files":
            return frozenset()
        # All lists of files begin with the same files, so a change affects each list that is long enough.
        changed = (i for f in self.faults if f.kind == "files" for i in f.ids)
        return frozenset(i for i in changed if i < self.datas[data].samples)

    @property
    def is_short_of_memory(self) -> bool:
        return 0 < self.memory < ROOMY

    @property
    def kills(self) -> bool:
        """Whether a process that makes or hands out samples may die."""
        return bool(
            any(f.kind == "kill" and f.target != "job" for f in self.faults)
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


# --- drawing -------------------------------------------------------------------------------------------------


@dataclass
class _Draw:
    """State of the drawing of a plan: random numbers, failpoints, and the datasets so far."""

    rng: random.Random
    points: tuple[Point, ...] = ()
    datas: list[Data] = field(default_factory=list)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, **weights: float) -> str:
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def ids(self, samples: int, most: int) -> tuple[int, ...]:
        return tuple(sorted(self.rng.sample(range(samples), self.rng.randint(1, most))))


def draw(seed: int, points: tuple[Point, ...] = ()) -> Plan:
    """Returns the plan of a seed.

    Args:
        seed: any integer.
        points: failpoints that a plan may use.
    """
    d = _Draw(random.Random(seed), points)
    d.datas.append(_data(d))
    if d.chance(0.25):
        d.datas.append(_data(d))
    jobs = _jobs(d)
    trouble = d.pick(
        none=12,
        kills=46,
        stops=10,
        files=10,
        disk=6,
        descriptors=6,
        memory=5,
        shm=5,
        sleepers=4,
        points=6 if points else 0,
    )
    plan = Plan(
        seed=seed,
        datas=tuple(d.datas),
        jobs=tuple(jobs),
        staging=d.rng.choice(["64K", "256K", "1M", "8M"]),
        cache=d.rng.choice(["0", "256K", "4M", "16M"]),
        cache_form=d.rng.choice([None, None, None, "off", "encoded", "decoded"]),
        # Only named caches lie in /dev/shm, so a small one matters to them alone.
        cache_name=trouble == "shm" or d.chance(0.06),
        pool=d.rng.choice([1, 2, 2, 4]),
        served=d.chance(0.3),
        ending=d.pick(stop=5, term=3, idle=2),
        probe=d.chance(0.3),
    )
    return _iterated(_drawn(_TROUBLES[trouble](d, plan)))


def _drawn(plan: Plan) -> Plan:
    """Lets the jobs on the first job's dataset draw with replacement, in some plans.

    It has random numbers of its own, so that a seed's other choices stay as they are.
    """
    rng = random.Random(f"draws {plan.seed}")
    if rng.random() >= 0.2:
        return plan
    lead = plan.jobs[0]
    samples = plan.datas[lead.data].samples
    draws, weighted = rng.choice([samples, 2 * samples + 1, 3 * samples]), rng.random() < 0.6

    def drawing(job: Job) -> Job:
        own = dataclasses.replace(job, subset=None, reuse=None, second="", sampler=False)
        return dataclasses.replace(own, shuffle=True, draws=draws, weighted=weighted)

    return dataclasses.replace(plan, jobs=tuple(drawing(j) if j.data == lead.data else j for j in plan.jobs))


def _iterated(plan: Plan) -> Plan:
    """Gives the members of the cohort an iterable dataset, in some plans.

    It has random numbers of its own, as :func:`_drawn` has.
    """
    d = _Draw(random.Random(f"iterated {plan.seed}"))
    members = [job for job in plan.jobs if job.cohort]
    # PyTorch itself needs more memory and more descriptors than such plans leave.
    if not members or plan.memory or plan.descriptors or not d.chance(0.4):
        return plan
    samples = d.rng.choice(SIZES)
    data = Data("iterable", samples, width=d.rng.choice([8, 64, 1024]))
    if d.chance(0.3):
        data = dataclasses.replace(data, slow=d.ids(samples, 4), slow_s=d.rng.choice([0.03, 0.1, 0.3]))
    if d.chance(0.1):
        data = dataclasses.replace(data, deadly_once=d.ids(samples, 1))
    workers = d.pick(none=7, two=3)

    def iterating(job: Job) -> Job:
        leave = (d.rng.randrange(job.epochs), d.rng.randint(0, samples // job.batch_size)) if d.chance(0.2) else None
        own = dataclasses.replace(job, data=len(plan.datas), shuffle=False, relaxed=False, subset=None, seed=None)
        own = dataclasses.replace(own, draws=0, weighted=False, sampler=False, leave=leave)
        own = dataclasses.replace(own, cache=None, cache_bytes=None, lru=False, reuse=None)
        return dataclasses.replace(own, workers=2 if workers == "two" else 0)

    jobs = tuple(iterating(job) if job.cohort else job for job in plan.jobs)
    plan = dataclasses.replace(plan, datas=(*plan.datas, data), jobs=jobs)
    # Most faults were drawn for jobs that may have been native, without workers. So some kills are added.
    kills = tuple(_kill(d, plan) for _ in range(d.rng.choice([0, 1, 1, 2])))
    return dataclasses.replace(plan, faults=(*plan.faults, *kills))


def _data(d: _Draw) -> Data:
    kind = d.pick(folder=20, files=25, plain=25, transform=22, pickled=8)
    samples = d.rng.choice(SIZES)
    if kind in ("folder", "files"):
        return Data(kind, samples, operators=d.pick(crop=5, fixed=3, float=2))
    data = Data(kind, samples, width=d.rng.choice([8, 8, 64, 1024]))
    if d.chance(0.3):
        data = dataclasses.replace(data, slow=d.ids(samples, 4), slow_s=d.rng.choice([0.03, 0.1, 0.3]))
    if d.chance(0.25):
        data = dataclasses.replace(data, failing=d.ids(samples, 6))
    if d.chance(0.06):
        data = dataclasses.replace(data, deadly=d.ids(samples, 2))
    if d.chance(0.08):
        data = dataclasses.replace(data, deadly_once=d.ids(samples, 3))
    # A sample misbehaves in one way only.
    deadly = tuple(i for i in data.deadly if i not in data.failing)
    once = tuple(i for i in data.deadly_once if i not in (*data.failing, *deadly))
    return dataclasses.replace(data, deadly=deadly, deadly_once=once)


def _jobs(d: _Draw) -> list[Job]:
    count = d.rng.choices([1, 2, 3, 4, 5], [22, 30, 24, 14, 10])[0]
    base = _job(d, 0)
    if count > 1 and d.chance(0.12):
        return _cohort(d, base, count)
    jobs = [base]
    while len(jobs) < count:
        jobs.append(_alike(d, base) if d.chance(0.75) else _job(d, d.rng.randrange(len(d.datas))))
    return jobs


def _cohort(d: _Draw, base: Job, count: int) -> list[Job]:
    """Returns jobs in step, which differ only in their start and the duration of their steps, and some other jobs."""
    size = d.rng.randint(2, count)
    base = dataclasses.replace(base, ranks=1, barrier=False, second="", leave=None, resume=None, saves=0)
    jobs = [
        dataclasses.replace(base, cohort=size, start_s=d.rng.choice([0.0, 0.0, 0.2]), pause_s=_step(d))
        for _ in range(size)
    ]
    others = [_alike(d, base) for _ in range(count - size)]
    if d.chance(0.5):
        # A loader refuses reuse with a sampler of its own, which may give a sample twice in an epoch.
        jobs = [dataclasses.replace(job, sampler=True, shuffle=True, reuse=None) for job in jobs]
    return jobs + others


def _alike(d: _Draw, base: Job) -> Job:
    """Returns a job that shares the stream of ``base``. Options that do not define the stream are its own."""
    own = _job(d, base.data)
    alike = dataclasses.replace(
        own,
        shuffle=base.shuffle,
        relaxed=base.relaxed,
        cache=base.cache,
        cache_bytes=base.cache_bytes,
        lru=base.lru,
        reuse=base.reuse,
        seed=base.seed,
        batch_size=base.batch_size if d.chance(0.6) else own.batch_size,
        start_s=0.0 if d.chance(0.5) else own.start_s,
    )
    return _possible(alike, d.datas[base.data])


def _step(d: _Draw) -> float:
    return d.rng.choice([0.0, 0.001, 0.004, 0.012])


def _job(d: _Draw, number: int) -> Job:
    data = d.datas[number]
    size = d.rng.choice([1, 3, 8, 8, 8, 16, 64]) if data.samples < 100 else d.rng.choice([5, 8, 16, 16, 33, 256])
    ranks = d.rng.choices([1, 2, 3], [76, 16, 8])[0]
    barrier = ranks > 1 and d.chance(0.5)
    epochs = d.rng.choice([1, 2, 2, 3, 5])
    job = Job(
        data=number,
        start_s=0.0 if d.chance(0.45) else round(d.rng.uniform(0.02, 0.9), 3),
        ranks=ranks,
        barrier=barrier,
        epochs=epochs,
        batch_size=size,
        shuffle=d.chance(0.6),
        relaxed=d.chance(0.2),
        skip=d.chance(0.35),
        drop_last=d.chance(0.15),
        subset=(lambda n: (d.rng.randrange(n), n))(d.rng.choice([2, 5])) if d.chance(0.2) else None,
        seed=d.rng.choice([1, 2]) if d.chance(0.2) else None,
        workers=d.rng.choice([1, 2, 2, 3]),
        pause_s=_step(d),
        hold=d.rng.choice([1, 3, 8, 30]) if d.chance(0.3) else 0,
        write=d.chance(0.25),
        close=d.chance(0.7),
    )
    job = _with_cache(d, job, data)
    return _with_events(d, _possible(job, data), data)


def _possible(job: Job, data: Data) -> Job:
    """Returns the job without options that a loader refuses.

    A loader refuses samples that cannot be assigned evenly to its ranks, and ``drop_last`` if no batch is full.
    """
    if job.ranks > 1 and job.batch_size < 3:
        job = dataclasses.replace(job, batch_size=3)
    fold, folds = job.subset or (0, 0)
    samples = sum(not folds or i % folds != fold for i in range(data.samples))
    fills_none = samples < job.batch_size * job.ranks
    return dataclasses.replace(job, drop_last=False) if fills_none else job


def _with_cache(d: _Draw, job: Job, data: Data) -> Job:
    if d.chance(0.4):
        return job
    forms = ["off", "auto", "encoded", "decoded"] if data.is_native else ["off", "prepared", "reuse"]
    form = d.rng.choice(forms if data.kind != "transform" else [*forms, "decoded", "auto"])
    if form == "reuse":
        return dataclasses.replace(job, reuse=d.rng.choice([1, 2, 3]))
    if form == "off":
        return dataclasses.replace(job, cache=form)
    return dataclasses.replace(job, cache=form, cache_bytes=d.rng.choice([None, 4096, 65536]), lru=d.chance(0.2))


def _with_events(d: _Draw, job: Job, data: Data) -> Job:
    """Returns the job with an event in its training: it leaves an epoch, pauses, resumes, or has a second loader."""
    step = job.batch_size * job.ranks
    batches = max(1, data.samples // step)
    moment = (d.rng.randrange(job.epochs), d.rng.randint(0, batches))
    event = d.pick(none=52, leave=12, idle=12, resume=10, saves=6, second=8)
    if event == "leave":
        return dataclasses.replace(job, leave=moment)
    if event == "idle":
        return dataclasses.replace(job, idle=(*moment, round(d.rng.uniform(0.1, 1.2), 2)))
    if event == "resume" and (job.barrier or job.ranks == 1):
        return dataclasses.replace(job, resume=moment)
    if event == "saves" and job.ranks == 1:
        return dataclasses.replace(job, saves=d.rng.choice([1, 2, 5]))
    if event == "second" and job.ranks == 1:
        return dataclasses.replace(job, second=d.rng.choice(["zip", "validate"]))
    return job


# --- trouble -------------------------------------------------------------------------------------------------


def _none(d: _Draw, plan: Plan) -> Plan:
    return plan


def _targets(d: _Draw, plan: Plan) -> str:
    has_code = any(not plan.datas[job.data].is_native for job in plan.jobs)
    code = 3 if has_code else 0
    return d.pick(coordinator=5, job=3, worker=code, fork_server=code, zygote=code)


def _moment(d: _Draw, plan: Plan, target: str) -> At:
    """Draws a moment: at random, at a batch (most often about an epoch's border), or while the process starts."""
    event = d.pick(start=5, batch=4, appears=3 if target != "job" else 0)
    if event == "start":
        return At("start", round(d.rng.uniform(0.0, 1.5), 3))
    if event == "appears":
        return At("appears", round(d.rng.choice([0.0, d.rng.uniform(0.0, 0.05), d.rng.uniform(0.0, 0.4)]), 4))
    number = d.rng.randrange(len(plan.jobs))
    job = plan.jobs[number]
    batches = max(1, plan.datas[job.data].samples // (job.batch_size * job.ranks))
    batch = d.rng.choice([d.rng.randint(1, batches), batches, batches - 1, 1])
    return At(
        "batch", round(d.rng.choice([0.0, d.rng.uniform(0, 0.02)]), 4), number, d.rng.randrange(job.epochs), batch
    )


def _kill(d: _Draw, plan: Plan) -> Fault:
    target = _targets(d, plan)
    at = _moment(d, plan, target)
    if target != "job":
        return Fault("kill", at, target, d.rng.randrange(100))
    number = d.rng.randrange(len(plan.jobs))
    job = plan.jobs[number]
    if job.cohort:
        # A member that never comes keeps the others waiting, as it must. So it is killed after its first batch.
        at = At("batch", at.seconds if at.event == "batch" else 0.0, number, 0, 1)
    again = round(d.rng.uniform(0.05, 0.4), 2) if job.saves else 0.0
    return Fault("kill", at, "job", number, again=again)


def _kills(d: _Draw, plan: Plan) -> Plan:
    faults = tuple(_kill(d, plan) for _ in range(d.rng.choice([1, 1, 2, 3, 4])))
    return dataclasses.replace(plan, faults=faults)


def _stops(d: _Draw, plan: Plan) -> Plan:
    stops = []
    for _ in range(d.rng.choice([1, 2, 3])):
        target = _targets(d, plan)
        which = d.rng.randrange(len(plan.jobs)) if target == "job" else d.rng.randrange(100)
        stops.append(Fault("stop", _moment(d, plan, target), target, which, seconds=round(d.rng.uniform(0.05, 1.5), 2)))
    kills = [_kill(d, plan)] if d.chance(0.4) else []
    return dataclasses.replace(plan, faults=(*stops, *kills))


FILE_FAULTS = ("removed", "cut", "cut_in_place", "emptied", "changed", "folder", "dangling", "grown", "fifo", "zero")


def _files(d: _Draw, plan: Plan) -> Plan:
    """Adds changes of files, to lists of files only.

    A folder that is listed anew after a kill would be another dataset, as it should.
    """
    number = next((n for n, data in enumerate(plan.datas) if data.kind == "files"), None)
    datas = plan.datas
    if number is None:
        first = plan.datas[0]
        datas = (Data("files", first.samples, operators=d.pick(crop=5, fixed=3, float=2)), *plan.datas[1:])
        number = 0
        plan = dataclasses.replace(plan, datas=datas, jobs=tuple(_native(job, datas) for job in plan.jobs))
    faults = []
    for _ in range(d.rng.choice([1, 1, 2])):
        what = d.rng.choice(FILE_FAULTS)
        most = 1 if what in ("fifo", "zero") else 10
        faults.append(
            Fault("files", _moment(d, plan, "job"), what, data=number, ids=d.ids(plan.datas[number].samples, most))
        )
    kills = [_kill(d, plan)] if d.chance(0.3) else []
    # A link to /dev/zero must not take the memory of the whole machine.
    memory = ROOMY if any(fault.target == "zero" for fault in faults) else 0
    return dataclasses.replace(plan, faults=(*faults, *kills), memory=memory)


def _native(job: Job, datas: tuple[Data, ...]) -> Job:
    """Returns the job with a cache that a native pipeline can have, if its dataset is one."""
    if datas[job.data].is_native and (job.cache == "prepared" or job.reuse):
        return dataclasses.replace(job, cache=None, cache_bytes=None, reuse=None, lru=False)
    return job


def _disk(d: _Draw, plan: Plan) -> Plan:
    way = d.pick(fill=5, full=2, closed=2)
    if way != "fill":
        return dataclasses.replace(plan, served=True, log=way)
    kills = [_kill(d, plan)] if d.chance(0.3) else []
    return dataclasses.replace(plan, small_disk=True, faults=(Fault("fill", _moment(d, plan, "job")), *kills))


def _descriptors(d: _Draw, plan: Plan) -> Plan:
    kills = [_kill(d, plan)] if d.chance(0.2) else []
    # A job takes about 10 descriptors of the coordinator, so a few jobs reach such a limit.
    return dataclasses.replace(plan, descriptors=d.rng.randint(24, 80), faults=tuple(kills))


def _memory(d: _Draw, plan: Plan) -> Plan:
    # The limits are far below ROOMY, so that the kernel kills some of the processes.
    limit = d.rng.choice([64, 96, 128, 192]) << 20
    return dataclasses.replace(plan, memory=limit, staging=d.rng.choice(["8M", "64M"]))


def _shm(d: _Draw, plan: Plan) -> Plan:
    kills = [_kill(d, plan)] if d.chance(0.5) else []
    cache = d.rng.choice(["4M", "32M", "256M"])
    return dataclasses.replace(plan, small_shm=True, cache=cache, faults=tuple(kills))


def _sleepers(d: _Draw, plan: Plan) -> Plan:
    """Adds jobs that stop reading, and one that comes later. They must not stop the others."""
    awake = dataclasses.replace(
        plan.jobs[0], ranks=1, barrier=False, cohort=0, sampler=False, leave=None, resume=None, saves=0, second=""
    )
    batches = max(1, plan.datas[awake.data].samples // awake.batch_size)
    jobs = []
    # Jobs at different positions have few minibatches in common, and each keeps buffers of its own.
    for number in range(d.rng.choice([2, 4, 5, 6])):
        moment = (0, min(batches, d.rng.choice([1, 2, 5, 9])))
        start = round(0.1 * number * d.rng.choice([0, 1]), 2)
        jobs.append(dataclasses.replace(awake, start_s=start, idle=None, sleep=moment, pause_s=_step(d)))
    late = dataclasses.replace(awake, start_s=round(d.rng.uniform(0.4, 1.0), 2))
    return dataclasses.replace(plan, jobs=(*jobs, late), staging=d.rng.choice(["64K", plan.staging]))


def _points(d: _Draw, plan: Plan) -> Plan:
    chosen = d.rng.sample(d.points, min(len(d.points), d.rng.choice([1, 1, 2])))
    # A process panics at most twice at a point, since the jobs must come to their ends.
    panics = ";".join(f"{point.name}={d.rng.choice(['1%2*', '5%2*', '20%2*', '1*'])}panic" for point in chosen)
    costs = any(point.costs_a_sample for point in chosen)
    return dataclasses.replace(plan, failpoints=panics, panics_cost_samples=costs)


_TROUBLES = {
    "none": _none,
    "kills": _kills,
    "stops": _stops,
    "files": _files,
    "disk": _disk,
    "descriptors": _descriptors,
    "memory": _memory,
    "shm": _shm,
    "sleepers": _sleepers,
    "points": _points,
}


# --- the table of the summary --------------------------------------------------------------------------------


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
        "job: leaves an epoch": job.leave,
        "job: pauses": job.idle,
        "job: sleeps": job.sleep,
        "job: resumes": job.resume or job.saves,
        "job: second loader": job.second,
        "job: barrier": job.barrier,
        "cache: lru": job.lru,
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
