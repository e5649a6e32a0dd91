"""Finds errors in a history from the logs of its jobs. These functions are pure: none of them looks at a process."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.jobs import ids_of
from tests.chaos.plan import Job, Plan

MANY = 8
"""Most ids that a message names."""


@dataclass(frozen=True)
class Finding:
    kind: str
    """The broken rule, in few words that are the same for all findings of the kind."""
    text: str

    @property
    def signature(self) -> str:
        """A text that is the same for findings that probably have one cause."""
        text = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", self.text)
        return f"{self.kind}: {re.sub(r'(N, )+N', 'N', text)[:160]}"


@dataclass
class Pass:
    """An epoch of one rank's loader."""

    epoch: int
    batches: list[list[int]] = field(default_factory=list)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    """Id of the sample, class and text of each error."""
    is_complete: bool = False

    @property
    def ids(self) -> list[int]:
        return [i for batch in self.batches for i in batch]


@dataclass
class Rank:
    """The logs of one rank of a job, from all processes that the rank had."""

    passes: dict[int, list[Pass]] = field(default_factory=dict)
    """Passes by the number of the loader."""
    wrong: list[str] = field(default_factory=list)
    """Descriptions of batches with wrong contents."""
    crash: tuple[str, str] | None = None
    """Class and text of the exception that ended the rank."""
    is_done: bool = False
    kept: list[str] = field(default_factory=list)
    """Mappings of shared memory that are left after everything was closed."""
    malformed: list[str] = field(default_factory=list)
    """Lines of the logs that are no records. If there are any, nothing else is known of the rank."""


@dataclass(frozen=True)
class Log:
    """The log of one process of a rank."""

    records: list[dict[str, Any]]
    malformed: list[str]
    """Lines that are no records."""


def parse(text: str, is_killed: bool) -> Log:
    """Reads a log. The last line of a killed process may be cut, and is left out if it is."""
    *lines, rest = text.split("\n")
    log = Log([], [])
    for line in lines:
        _read_line(log, line)
    # Each record is written together with the end of its line. Only a kill can come between the two.
    if rest and not is_killed:
        log.malformed.append(rest)
    return log


def _read_line(log: Log, line: str) -> None:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if isinstance(record, dict) and "what" in record:
        log.records.append(record)
    else:
        log.malformed.append(line)


def read_rank(runs: Sequence[Sequence[dict[str, Any]]], malformed: Sequence[str] = ()) -> Rank:
    """Joins the records of a rank's processes, in the order in which the processes ran.

    Args:
        runs: the records of each process.
        malformed: lines of the logs that are no records. If there are any, the records are not read, since those that
            are missing would make the others look wrong.
    """
    if malformed:
        return Rank(malformed=list(malformed))
    records: list[dict[str, Any]] = []
    for run in runs:
        for resumed_from in (record for record in run if record["what"] == "resumed"):
            # The batches after that state are given again, so that their first records do not count.
            is_it = [record["what"] == "state" and record["name"] == resumed_from["name"] for record in records]
            del records[is_it.index(True) + 1 :]
        records += run
    rank = Rank()
    resumed: int | None = None
    for record in records:
        resumed = _take(rank, record, resumed)
    return rank


def _take(rank: Rank, record: dict[str, Any], resumed: int | None) -> int | None:
    """Adds a record to a rank.

    Args:
        resumed: the epoch of a state that was loaded and has not been continued yet.

    Returns:
        ``resumed`` for the next record.
    """
    what = record["what"]
    if what == "resumed":
        return int(record["epoch"])
    if what == "epoch":
        passes = rank.passes.setdefault(record["loader"], [])
        is_rest = record["loader"] == 0 and resumed == record["epoch"]
        # The resumed process takes the rest of the pass that its state interrupted, and begins no pass.
        if is_rest and passes and passes[-1].epoch == resumed and not passes[-1].is_complete:
            return None
        passes.append(Pass(record["epoch"]))
        # A second loader has no state, so its epoch does not use up the first one's.
        return None if record["loader"] == 0 else resumed
    if what in ("batch", "error", "end"):
        current = rank.passes[record["loader"]][-1]
        if what == "batch":
            current.batches.append(record["ids"])
        elif what == "error":
            current.errors.append((record["id"], record["type"], record["text"]))
        else:
            current.is_complete = True
    elif what == "state" and record["is_fresh"]:
        # All samples of the epoch were given, so the next pass is a whole epoch.
        last = rank.passes.get(0, [])[-1:]
        for one in last:
            one.is_complete |= one.epoch == record["epoch"]
    elif what == "wrong":
        rank.wrong.append(f"samples {_some(record['ids'])}, {record['when']}")
    elif what == "crash":
        rank.crash = (record["type"], record["text"])
    elif what == "done":
        rank.is_done = True
    elif what == "closed":
        rank.kept = [line for line in record["maps"] if "coprep" in line]
    return resumed


def _some(ids: Iterable[int]) -> str:
    every = sorted(ids)
    more = f" and {len(every) - MANY} more" if len(every) > MANY else ""
    return ", ".join(map(str, every[:MANY])) + more


# --- one job -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Due:
    """The samples of a job, by the results that are due for them."""

    ids: frozenset[int]
    """Ids of all samples of the job."""
    bad: frozenset[int]
    """Ids of the samples that cannot be prepared."""
    may_fail: frozenset[int]
    """Ids of the samples that may fail, since their files were changed or they kill a worker."""
    any_may_fail: bool
    """``True`` if any sample may fail: panics cost samples, or several workers were killed. Two kills at one sample are
    reported as its error, as they must be.
    """


def due_of(plan: Plan, number: int) -> Due:
    job = plan.jobs[number]
    data = plan.datas[job.data]
    ids = frozenset(ids_of(job, data.samples))
    worker_kills = sum(f.kind == "kill" and f.target == "worker" for f in plan.faults)
    # After one death another worker makes the sample. After two deaths at a sample, the sample fails.
    workers_die_twice = worker_kills + bool(data.deadly_once) > 1 or plan.is_short_of_memory
    return Due(
        ids,
        ids & {*data.failing, *data.deadly},
        ids & (plan.affected(job.data) | (frozenset(data.deadly_once) if plan.kills else frozenset())),
        plan.panics_cost_samples or (not data.is_native and workers_die_twice),
    )


def check_job(
    plan: Plan, number: int, ranks: Sequence[Rank], is_cut: bool = False, is_alone: bool = False
) -> list[Finding]:
    """Checks the batches, errors and ends of a job's ranks.

    Args:
        plan: the plan of the history.
        number: the number of the job.
        ranks: the logs of its ranks.
        is_cut: whether the job was killed, so that its last epoch need not be whole.
        is_alone: whether another member of its cohort has failed.
    """
    job = plan.jobs[number]
    due = due_of(plan, number)
    name = f"job {number}"
    if any(rank.malformed for rank in ranks):
        return [
            Finding("malformed log", f"{name}, rank {n}: {line[:200]!r}")
            for n, rank in enumerate(ranks)
            for line in rank.malformed[:MANY]
        ]
    found = [Finding("contents", f"{name}, rank {n}: {text}") for n, rank in enumerate(ranks) for text in rank.wrong]
    for n, rank in enumerate(ranks):
        if rank.crash and not is_due(plan, *rank.crash, is_alone or _others_failed(ranks, rank)):
            found.append(Finding(f"error not due, {rank.crash[0]}", f"{name}, rank {n}: {rank.crash[1]}"))
        if rank.kept:
            found.append(Finding("memory kept", f"{name}, rank {n}: after closing: {rank.kept[:3]}"))
    is_whole = all(rank.is_done for rank in ranks)
    if not is_whole and not is_cut and not any(rank.crash for rank in ranks):
        found.append(Finding("unfinished", f"{name}: neither ended nor told an error"))
    for loader in sorted({loader for rank in ranks for loader in rank.passes}):
        own = job if loader == 0 else dataclasses.replace(job, shuffle=False, draws=0)
        if plan.datas[job.data].is_iterable:
            for one in ranks[0].passes[loader]:
                found += _check_iterated(f"{name}, epoch {one.epoch}", own, plan.datas[job.data].samples, due, one)
            continue
        for passes in _side_by_side([rank.passes.get(loader, []) for rank in ranks]):
            found += _check_pass(
                f"{name}, loader {loader}, epoch {passes[0].epoch}", own, due, plan, passes, len(ranks)
            )
    return found


def _side_by_side(passes: Sequence[Sequence[Pass]]) -> list[list[Pass]]:
    """Returns for each epoch the passes of the ranks that have begun it."""
    most = max((len(one) for one in passes), default=0)
    return [[one[n] for one in passes if n < len(one)] for n in range(most)]


def _check_pass(where: str, job: Job, due: Due, plan: Plan, passes: Sequence[Pass], ranks: int) -> list[Finding]:
    given = Counter(i for one in passes for i in one.ids)
    errors = Counter(id for one in passes for id, _, _ in one.errors)
    found = []

    def find(kind: str, ids: Iterable[int]) -> None:
        if ids := list(ids):
            found.append(Finding(kind, f"{where}: {len(ids)} of {len(due.ids)}: {_some(ids)}"))

    if not job.draws:
        find("sample repeated", [i for i, times in given.items() if times > 1])
    find("sample not of the job", set(given) - due.ids)
    find("failing sample given", due.bad & set(given))
    if job.skip:
        find("error despite skip", errors)
    elif not due.any_may_fail:
        find("error not due, sample", set(errors) - due.bad - due.may_fail)
    # After a kill, a stream that is opened anew may make a failed sample again. Draws may repeat a sample.
    if not plan.kills and not job.draws:
        find("error repeated", [i for i, times in errors.items() if times > 1])
    # A sample that fails once and is skipped may still come, if the coordinator ends before the job has heard of the
    # failure. It breaks the order then. So does a rank that is given others' samples because it lacks some of its own.
    lacks_some = job.skip and (due.any_may_fail or (ranks > 1 and bool(due.bad | due.may_fail)))
    if not job.shuffle and not job.relaxed and not lacks_some:
        found += _check_order(where, passes)
    is_complete = len(passes) == ranks and all(one.is_complete for one in passes)
    if is_complete and job.draws:
        found += _check_draws(where, job, passes)
    elif is_complete:
        found += _check_whole(where, job, due, passes, set(given), set(errors))
    return found


def _check_order(where: str, passes: Sequence[Pass]) -> list[Finding]:
    for one in passes:
        for before, after in zip(one.ids, one.ids[1:], strict=False):
            if after <= before:
                return [Finding("order broken", f"{where}: {after} comes after {before}")]
    return []


def _check_draws(where: str, job: Job, passes: Sequence[Pass]) -> list[Finding]:
    """Checks an epoch of draws that all ranks have ended.

    The number of samples is exact, since another sample is drawn for each one that cannot be prepared.
    """
    step = job.batch_size * len(passes)
    rounds = job.draws // step if job.drop_last else -(-job.draws // step)
    expected = min(job.draws, rounds * step)
    given = sum(len(one.ids) for one in passes)
    found = []
    if given != expected:
        found.append(Finding("number of draws", f"{where}: {given} and not {expected}"))
    steps = [len(one.batches) for one in passes]
    if set(steps) != {rounds}:
        found.append(Finding("number of batches", f"{where}: {steps} and not {rounds}"))
    return found


def _check_whole(
    where: str, job: Job, due: Due, passes: Sequence[Pass], given: set[int], errors: set[int]
) -> list[Finding]:
    """Checks an epoch without replacement that all ranks have ended."""
    found = []
    step = job.batch_size * len(passes)
    lost = due.ids - given - due.bad - due.may_fail
    if not job.skip:
        lost -= errors
    elif due.any_may_fail:
        lost = frozenset()
    silent = (due.bad | due.may_fail) - given - errors if not job.skip else frozenset()
    left_out = len(due.ids) - len(given)
    # The last step is left out unless it is full, and so is each sample that fails.
    most = step - 1 + len(due.bad | due.may_fail | errors) if job.drop_last else 0
    if lost and (not job.drop_last or left_out > most):
        found.append(Finding("sample lost", f"{where}: {len(lost)} of {len(due.ids)}: {_some(lost)}"))
    if silent and not job.drop_last:
        found.append(Finding("error missing", f"{where}: {len(silent)} of {len(due.ids)}: {_some(silent)}"))
    steps = [len(one.batches) for one in passes]
    if len(set(steps)) > 1:
        found.append(Finding("steps unequal", f"{where}: {steps}"))
    elif not due.bad and not due.may_fail and not due.any_may_fail and not errors:
        expected = len(due.ids) // step if job.drop_last else -(-len(due.ids) // step)
        if steps[0] != expected:
            found.append(Finding("number of batches", f"{where}: {steps[0]} and not {expected}"))
        elif len(passes) == 1 and {len(batch) for batch in passes[0].batches[:-1]} - {job.batch_size}:
            sizes = [len(batch) for batch in passes[0].batches]
            found.append(Finding("size of batches", f"{where}: {sizes} and not {job.batch_size}"))
    return found


def batches_of_iteration(job: Job, samples: int) -> list[list[int]]:
    """Returns the batches of an iterable dataset in the order of PyTorch's loader.

    Worker k of n, counted from 0, gives the samples k, k + n, k + 2n, ... in batches of its own. The workers take
    turns.
    """
    workers = max(1, job.workers)
    shares = [list(range(first, samples, workers)) for first in range(workers)]
    size = job.batch_size
    own = [[share[at : at + size] for at in range(0, len(share), size)] for share in shares]
    most = max(map(len, own))
    turns = [batches[turn] for turn in range(most) for batches in own if turn < len(batches)]
    return [batch for batch in turns if len(batch) == size or not job.drop_last]


def _check_iterated(where: str, job: Job, samples: int, due: Due, one: Pass) -> list[Finding]:
    """Checks an epoch of an iterable dataset. The ids of its errors are numbers of batches."""
    expected = batches_of_iteration(job, samples)
    failed = {id for id, _, _ in one.errors}
    found = []
    if failed and job.skip:
        found.append(Finding("error despite skip", f"{where}: batches {_some(failed)}"))
    elif failed and not due.any_may_fail:
        found.append(Finding("error not due, sample", f"{where}: batches {_some(failed)}"))
    given = [expected.index(batch) if batch in expected else -1 for batch in one.batches]
    if -1 in given:
        strange = one.batches[given.index(-1)]
        return [*found, Finding("batch not of the iteration", f"{where}: {strange}")]
    if any(after <= before for before, after in zip(given, given[1:], strict=False)):
        return [*found, Finding("order broken", f"{where}: batches {given}")]
    end = len(expected) if one.is_complete else max(given, default=-1) + 1
    # The epoch ends early if a second batch kills its readers before another batch was made.
    if len(failed) > 1 and max(failed) > max(given, default=-1):
        end = min(end, max(failed) + 1)
    lost = set(range(end)) - set(given) - failed
    if lost and not (job.skip and due.any_may_fail):
        found.append(Finding("batch lost", f"{where}: {_some(lost)} of {len(expected)}"))
    return found


# --- several jobs --------------------------------------------------------------------------------------------


def check_cohort(plan: Plan, jobs: Sequence[Sequence[Rank]]) -> list[Finding]:
    """Checks that the jobs of the cohort were given the same batches."""
    members = [n for n, job in enumerate(plan.jobs) if job.cohort]
    # In relaxed order a sample that is slow for one job may come in another batch.
    if len(members) < 2 or any(plan.jobs[n].relaxed for n in members):
        return []
    # A sample that fails once may fail for one job only.
    if plan.panics_cost_samples:
        return []
    whole = {n: [one for one in jobs[n][0].passes.get(0, []) if one.is_complete] for n in members}
    if plan.datas[plan.jobs[members[0]].data].is_iterable:
        whole = {n: _may_be_compared(plan, n, passes) for n, passes in whole.items()}
    first, *others = members
    found = []
    for other in others:
        of_other = {one.epoch: one for one in whole[other]}
        for mine, theirs in ((one, of_other[one.epoch]) for one in whole[first] if one.epoch in of_other):
            if mine.batches != theirs.batches:
                at = next(
                    (k for k, pair in enumerate(zip(mine.batches, theirs.batches, strict=False)) if pair[0] != pair[1]),
                    -1,
                )
                found.append(
                    Finding("cohort differs", f"jobs {first} and {other}, epoch {mine.epoch}: from batch {at} on")
                )
                break
    return found


def _may_be_compared(plan: Plan, number: int, passes: list[Pass]) -> list[Pass]:
    """Returns the passes over an iterable dataset that no failure can have cut short.

    A batch at which two readers were killed is an error for the members at that time. A member that has come again may
    get the batch from a later reader.
    """
    if not due_of(plan, number).any_may_fail:
        return passes
    return [] if plan.jobs[number].skip else [one for one in passes if not one.errors]


# --- errors that a plan makes due ----------------------------------------------------------------------------


def _others_failed(ranks: Sequence[Rank], rank: Rank) -> bool:
    """Returns whether another rank has failed by itself, so that this one waits in vain."""
    return any(other.crash and not re.search(_SHORT["cohort"], other.crash[1]) for other in ranks if other is not rank)


_SHORT = {
    # A coordinator that has no descriptor for a connection can only close it, and says why in its log.
    "descriptors": r"descriptor|[Tt]oo many open files|os error 24|EMFILE|could not attach anew",
    "disk": r"[Nn]o space left|os error 28|disk is full",
    "memory": r"memory|signal: 9|os error 12",
    "cohort": r"cohort|barrier|waiting for rank",
}
"""Pattern of a clear error's text, by the resource that is short."""


def is_due(plan: Plan, kind: str, text: str, is_alone: bool = False) -> bool:
    """Returns whether the plan makes this error due and the error tells the reason.

    Args:
        plan: the plan of the history.
        kind, text: class and text of the exception.
        is_alone: whether another member of the job's cohort, or another of its ranks, has failed.
    """
    reasons = {
        "descriptors": plan.descriptors > 0,
        "disk": plan.small_disk,
        "memory": plan.is_short_of_memory or (plan.small_shm and kind == "MemoryError"),
        # Without descriptors the others cannot come. This rank then tells only for whom it waits, and the others tell
        # that descriptors are short.
        "cohort": is_alone
        or plan.descriptors > 0
        or any(job.cohort and plan.is_killed(n) for n, job in enumerate(plan.jobs)),
    }
    return any(holds and re.search(_SHORT[why], f"{kind} {text}") for why, holds in reasons.items())


def check_logs(plan: Plan, name: str, text: str) -> list[Finding]:
    """Checks the log of the coordinator, fork servers and workers for panics."""
    if plan.failpoints:
        return []
    return [Finding("panic", f"{name}: {line.strip()[:300]}") for line in text.splitlines() if "panicked at" in line][
        :3
    ]


# --- the machine afterwards ----------------------------------------------------------------------------------


def check_descriptors(before: Counter[str], after: Counter[str]) -> list[Finding]:
    """Checks that the coordinator has no more descriptors than before.

    Args:
        before, after: counts of the descriptors by the name of their file.
    """
    more = after - before
    if sum(after.values()) <= sum(before.values()):
        return []
    return [
        Finding("descriptors leaked", f"{sum(before.values())} before, {sum(after.values())} after: {dict(more)} more")
    ]


def check_left(what: str, names: Iterable[str]) -> list[Finding]:
    """Checks that nothing of a kind is left.

    Args:
        what: name of the kind.
        names: names of the things of this kind that are still there.
    """
    left = sorted(names)
    return [Finding(f"{what} left", ", ".join(left[:MANY]))] if left else []
