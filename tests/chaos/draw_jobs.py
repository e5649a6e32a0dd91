"""Draws the datasets and the jobs of a plan."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

from tests.chaos.plan import SIZES, Data, Job, Point


@dataclass
class DrawState:
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


def draw_data(d: DrawState) -> Data:
    kind = d.pick(folder=20, files=25, plain=18, together=7, transform=22, pickled=8)
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


def draw_jobs(d: DrawState) -> list[Job]:
    count = d.rng.choices([1, 2, 3, 4, 5], [22, 30, 24, 14, 10])[0]
    base = _job(d, 0)
    if count > 1 and d.chance(0.12):
        return _cohort(d, base, count)
    jobs = [base]
    while len(jobs) < count:
        jobs.append(_alike(d, base) if d.chance(0.75) else _job(d, d.rng.randrange(len(d.datas))))
    return jobs


def _cohort(d: DrawState, base: Job, count: int) -> list[Job]:
    """Returns jobs in step, which differ only in their start and the duration of their steps, and some other jobs."""
    size = d.rng.randint(2, count)
    base = dataclasses.replace(base, ranks=1, barrier=False, second="", leave=None, resume=None, saves=0)
    jobs = [
        dataclasses.replace(base, cohort=size, start_s=d.rng.choice([0.0, 0.0, 0.2]), pause_s=draw_step(d))
        for _ in range(size)
    ]
    others = [_alike(d, base) for _ in range(count - size)]
    if d.chance(0.5):
        # A loader refuses reuse with a sampler of its own, which may give a sample twice in an epoch.
        jobs = [dataclasses.replace(job, sampler=True, shuffle=True, reuse=None) for job in jobs]
    return jobs + others


def _alike(d: DrawState, base: Job) -> Job:
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


def draw_step(d: DrawState) -> float:
    return d.rng.choice([0.0, 0.001, 0.004, 0.012])


def _job(d: DrawState, number: int) -> Job:
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
        pause_s=draw_step(d),
        hold=d.rng.choice([1, 3, 8, 30]) if d.chance(0.3) else 0,
        write=d.chance(0.25),
        threads=d.rng.choice([1, 4]) if d.chance(0.15) else 0,
        ballast=d.rng.choice([8, 64, 256]) << 20 if d.chance(0.1) else 0,
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


def _with_cache(d: DrawState, job: Job, data: Data) -> Job:
    if d.chance(0.4):
        return job
    forms = ["off", "auto", "encoded", "decoded"] if data.is_native else ["off", "prepared", "reuse"]
    form = d.rng.choice(forms if data.kind != "transform" else [*forms, "decoded", "auto"])
    if form == "reuse":
        return dataclasses.replace(job, reuse=d.rng.choice([1, 2, 3]))
    if form == "off":
        return dataclasses.replace(job, cache=form)
    return dataclasses.replace(job, cache=form, cache_bytes=d.rng.choice([None, 4096, 65536]), lru=d.chance(0.2))


def _with_events(d: DrawState, job: Job, data: Data) -> Job:
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
