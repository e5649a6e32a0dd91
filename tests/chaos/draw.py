"""Draws the plan of a history from its seed. The same seed gives the same plan on any machine."""

from __future__ import annotations

import dataclasses
import random

from tests.chaos.draw_jobs import DrawState, draw_data, draw_jobs
from tests.chaos.draw_stores import stored
from tests.chaos.draw_troubles import TROUBLES, draw_kill
from tests.chaos.plan import SIZES, Data, Job, Plan, Point


def draw(seed: int, points: tuple[Point, ...] = ()) -> Plan:
    """Returns the plan of a seed.

    Args:
        seed: any integer.
        points: failpoints that a plan may use.
    """
    d = DrawState(random.Random(seed), points)
    d.datas.append(draw_data(d))
    if d.chance(0.25):
        d.datas.append(draw_data(d))
    jobs = draw_jobs(d)
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
    return stored(_iterated(_drawn(TROUBLES[trouble](d, plan))))


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
    d = DrawState(random.Random(f"iterated {plan.seed}"))
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
    kills = tuple(draw_kill(d, plan) for _ in range(d.rng.choice([0, 1, 1, 2])))
    return dataclasses.replace(plan, faults=(*plan.faults, *kills))
