"""Draws the troubles of a plan: faults, and limits of the machine."""

from __future__ import annotations

import dataclasses

from tests.chaos.draw_jobs import DrawState, draw_step
from tests.chaos.plan import FILE_FAULTS, ROOMY, At, Data, Fault, Job, Plan


def _none(d: DrawState, plan: Plan) -> Plan:
    return plan


def _targets(d: DrawState, plan: Plan) -> str:
    has_code = any(not plan.datas[job.data].is_native for job in plan.jobs)
    code = 3 if has_code else 0
    # A member of a cohort that never comes keeps the others waiting, as it must.
    giver = 0 if any(job.cohort for job in plan.jobs) else code
    return d.pick(coordinator=5, job=3, worker=code, fork_server=code, giver=giver, giver_and_server=giver)


def draw_moment(d: DrawState, plan: Plan, target: str) -> At:
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


def draw_kill(d: DrawState, plan: Plan) -> Fault:
    target = _targets(d, plan)
    at = draw_moment(d, plan, target)
    if target != "job":
        return Fault("kill", at, target, d.rng.randrange(100))
    number = d.rng.randrange(len(plan.jobs))
    job = plan.jobs[number]
    if job.cohort:
        # A member that never comes keeps the others waiting, as it must. So it is killed after its first batch.
        at = At("batch", at.seconds if at.event == "batch" else 0.0, number, 0, 1)
    again = round(d.rng.uniform(0.05, 0.4), 2) if job.saves else 0.0
    return Fault("kill", at, "job", number, again=again)


def _kills(d: DrawState, plan: Plan) -> Plan:
    faults = tuple(draw_kill(d, plan) for _ in range(d.rng.choice([1, 1, 2, 3, 4])))
    return dataclasses.replace(plan, faults=faults)


def _stops(d: DrawState, plan: Plan) -> Plan:
    stops = []
    for _ in range(d.rng.choice([1, 2, 3])):
        target = _targets(d, plan).removesuffix("_and_server")
        which = d.rng.randrange(len(plan.jobs)) if target == "job" else d.rng.randrange(100)
        stops.append(
            Fault("stop", draw_moment(d, plan, target), target, which, seconds=round(d.rng.uniform(0.05, 1.5), 2))
        )
    kills = [draw_kill(d, plan)] if d.chance(0.4) else []
    return dataclasses.replace(plan, faults=(*stops, *kills))


def _files(d: DrawState, plan: Plan) -> Plan:
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
            Fault("files", draw_moment(d, plan, "job"), what, data=number, ids=d.ids(plan.datas[number].samples, most))
        )
    kills = [draw_kill(d, plan)] if d.chance(0.3) else []
    # A link to /dev/zero must not take the memory of the whole machine.
    held = sum(job.ballast * max(1, job.ranks) for job in plan.jobs)
    memory = ROOMY + held if any(fault.target == "zero" for fault in faults) else 0
    return dataclasses.replace(plan, faults=(*faults, *kills), memory=memory)


def _native(job: Job, datas: tuple[Data, ...]) -> Job:
    """Returns the job with a cache that a native pipeline can have, if its dataset is one."""
    if datas[job.data].is_native and (job.cache == "prepared" or job.reuse):
        return dataclasses.replace(job, cache=None, cache_bytes=None, reuse=None, lru=False)
    return job


def _disk(d: DrawState, plan: Plan) -> Plan:
    way = d.pick(fill=5, full=2, closed=2)
    if way != "fill":
        return dataclasses.replace(plan, served=True, log=way)
    kills = [draw_kill(d, plan)] if d.chance(0.3) else []
    return dataclasses.replace(plan, small_disk=True, faults=(Fault("fill", draw_moment(d, plan, "job")), *kills))


def _descriptors(d: DrawState, plan: Plan) -> Plan:
    kills = [draw_kill(d, plan)] if d.chance(0.2) else []
    # A job takes about 10 descriptors of the coordinator, so a few jobs reach such a limit.
    return dataclasses.replace(plan, descriptors=d.rng.randint(24, 80), faults=tuple(kills))


def _memory(d: DrawState, plan: Plan) -> Plan:
    # The limits are far below ROOMY, so that the kernel kills some of the processes.
    limit = d.rng.choice([64, 96, 128, 192]) << 20
    return dataclasses.replace(plan, memory=limit, staging=d.rng.choice(["8M", "64M"]))


def _shm(d: DrawState, plan: Plan) -> Plan:
    kills = [draw_kill(d, plan)] if d.chance(0.5) else []
    cache = d.rng.choice(["4M", "32M", "256M"])
    return dataclasses.replace(plan, small_shm=True, cache=cache, faults=tuple(kills))


def _sleepers(d: DrawState, plan: Plan) -> Plan:
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
        jobs.append(dataclasses.replace(awake, start_s=start, idle=None, sleep=moment, pause_s=draw_step(d)))
    late = dataclasses.replace(awake, start_s=round(d.rng.uniform(0.4, 1.0), 2))
    return dataclasses.replace(plan, jobs=(*jobs, late), staging=d.rng.choice(["64K", plan.staging]))


def _points(d: DrawState, plan: Plan) -> Plan:
    chosen = d.rng.sample(d.points, min(len(d.points), d.rng.choice([1, 1, 2])))
    # A process panics at most twice at a point, since the jobs must come to their ends.
    panics = ";".join(f"{point.name}={d.rng.choice(['1%2*', '5%2*', '20%2*', '1*'])}panic" for point in chosen)
    costs = any(point.costs_a_sample for point in chosen)
    return dataclasses.replace(plan, failpoints=panics, panics_cost_samples=costs)


TROUBLES = {
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
