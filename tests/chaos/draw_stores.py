"""Draws the plans whose datasets lie in an object store, and the faults of that store."""

from __future__ import annotations

import dataclasses
import random

from tests.chaos.draw_jobs import DrawState
from tests.chaos.draw_troubles import draw_moment
from tests.chaos.plan import NEW_KEYS, OBJECT_FAULTS, SHARDED, STORE_FAULTS, Data, Fault, Job, Plan


def stored(plan: Plan) -> Plan:
    """Moves the native datasets into an object store, in some plans.

    It has random numbers of its own, so that a seed's other choices stay as they are.
    """
    d = DrawState(random.Random(f"stored {plan.seed}"))
    natives = sorted({job.data for job in plan.jobs if plan.datas[job.data].is_native})
    has_files = any(fault.kind == "files" for fault in plan.faults)
    # A coordinator that reads from a store needs more descriptors than such plans leave.
    if not natives or has_files or plan.descriptors or not d.chance(0.35):
        return plan
    moved = set(d.rng.sample(natives, d.rng.randint(1, len(natives))))
    datas = tuple(_moved(d, data) if n in moved else data for n, data in enumerate(plan.datas))
    plan = dataclasses.replace(plan, datas=datas, disk=d.chance(0.3))
    if d.chance(0.3) and (changed := _changed(d, plan)):
        return _with_keys(d, changed)
    count = d.rng.choice([0, 1, 1, 2, 3])
    plan = dataclasses.replace(plan, faults=(*plan.faults, *(_of_store(d, plan) for _ in range(count))))
    return _with_keys(d, plan)


def _with_keys(d: DrawState, plan: Plan) -> Plan:
    """Lets the jobs give keys of the store by themselves, in some plans. Plain HTTP has none."""
    if any(data.kind == "web_shards" for data in plan.datas) or not d.chance(0.4):
        return plan
    plan = dataclasses.replace(plan, keys_s=round(d.rng.uniform(0.3, 3.0), 1))
    if d.chance(0.5):
        return plan
    change = Fault("store", draw_moment(d, plan, "job"), NEW_KEYS, seconds=round(d.rng.uniform(0.5, 1.5), 2))
    return dataclasses.replace(plan, faults=(*plan.faults, change))


def _moved(d: DrawState, data: Data) -> Data:
    loose = "objects" if data.kind == "folder" else "urls"
    kind = d.pick(loose=5, shards=3, web_shards=2)
    return dataclasses.replace(data, kind=loose if kind == "loose" else kind)


def _of_store(d: DrawState, plan: Plan) -> Fault:
    # While a dataset is opened, a store that is away for five seconds is an error, as it must be.
    seconds = round(d.rng.uniform(0.05, 1.5), 2)
    return Fault("store", draw_moment(d, plan, "job"), d.rng.choice(STORE_FAULTS), seconds=seconds)


def _changed(d: DrawState, plan: Plan) -> Plan | None:
    """Returns the plan with changes of objects in place of its faults, or ``None`` if it has no dataset for them.

    Whoever lists the store afterwards has another dataset, as it should. So nobody may open it twice: no coordinator,
    no rank, no member of a cohort and no resumed job. Of a prefix, ids would be those of other objects.
    """
    numbers = [n for n, data in enumerate(plan.datas) if data.kind == "urls" or data.kind in SHARDED]
    if not numbers:
        return None
    if any(data.is_iterable for data in plan.datas):
        return None
    number = d.rng.choice(numbers)
    data = plan.datas[number]
    # A shard that is missing would be an error for the jobs that come later.
    what = "replaced" if data.kind in SHARDED else d.rng.choice(OBJECT_FAULTS)
    ids = d.ids(data.samples, 10)
    if data.kind in SHARDED:
        # One shard, since draws would find nothing if all of them were replaced.
        ids = tuple(i for i in ids if data.shard_of(i) == data.shard_of(ids[0]))
    change = Fault("objects", draw_moment(d, plan, "job"), what, data=number, ids=ids)
    waits = tuple(
        Fault("store", draw_moment(d, plan, "job"), "breaks", seconds=round(d.rng.uniform(0.05, 1.5), 2))
        for _ in range(d.rng.choice([0, 1]))
    )
    jobs = tuple(_opened_once(job) for job in plan.jobs)
    plan = dataclasses.replace(plan, memory=0, small_shm=False, small_disk=False)
    plan = dataclasses.replace(plan, failpoints="", panics_cost_samples=False)
    return dataclasses.replace(plan, jobs=jobs, faults=(change, *waits))


def _opened_once(job: Job) -> Job:
    alone = dataclasses.replace(job, ranks=1, barrier=False, cohort=0, sampler=False)
    return dataclasses.replace(alone, resume=None, saves=0, second="")
