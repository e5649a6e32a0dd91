"""Turns rows into the figures of each case, and figures into the ratios that the bars name. No clock, no I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.benchmarks.gpu.plan import ARRAYS_OWN, ARRAYS_SHARED, DEVICE, PIN, SHARING, SYNTHETIC, Case
from tests.benchmarks.loaders.measure import median_or_none
from tests.benchmarks.loaders.records import Bar, Spread, quantile

LIMIT_SHARE = {1: 0.98}
"""Share of the limit that jobs must reach, by their number."""
LIMIT_SHARE_OF_SEVERAL = 0.97


@dataclass(frozen=True)
class Row:
    """One measurement, or the reason why there is none."""

    mode: str
    jobs: int
    repetition: int
    error: str | None = None
    seconds: float = 0.0
    by_job: Sequence[dict[str, Any]] = ()
    """Records of each job, as `window.Recorder` has them, with the memory of the GPU."""
    cpu_s: float = 0.0
    """CPU seconds of the jobs, the coordinator and all workers in the window."""
    images: int = 0
    uploads_per_batch: float | None = None
    """Copies to the GPU in the window, by jobs and for several of them, over the batches of all jobs."""
    others_cores: float = 0.0

    @property
    def case(self) -> Case:
        return Case(self.mode, self.jobs)

    @property
    def steps_per_s(self) -> float | None:
        """Returns the rate of all jobs together, or `None` if a job has none."""
        rates = [job["steps_per_s"] for job in self.by_job]
        return None if None in rates or not rates else sum(rates)

    @property
    def cpu_s_per_1000(self) -> float | None:
        return 1000 * self.cpu_s / self.images if self.images else None

    def pooled(self, figure: str) -> list[float]:
        """Returns the values of all jobs."""
        return [value for job in self.by_job for value in job[figure]]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Record:
    """The figures of a case over its repetitions. A figure is `None` where it was not measured."""

    case: Case
    error: str | None
    steps_per_s: Spread | None = None
    each: Spread | None = None
    """Steps per second of single jobs."""
    wait_share: float | None = None
    next_us_p50: float | None = None
    next_us_p99: float | None = None
    finish_us_p50: float | None = None
    cpu_s_per_1000: float | None = None
    uploads_per_batch: float | None = None
    used_mib: float | None = None
    """Memory of the GPU that all processes use, those of jobs that wait included."""
    allocated_mib: float | None = None
    """The most memory that PyTorch has allocated in one job."""
    others_cores: float | None = None

    @classmethod
    def of(cls, case: Case, rows: Sequence[Row]) -> Record:
        measured = [row for row in rows if row.steps_per_s is not None]
        if not measured:
            errors = [row.error for row in rows if row.error]
            return cls(case, errors[0] if errors else "a job did less than two steps: give --seconds more")
        memory = [job.get("memory_mib", {}) for row in measured for job in row.by_job]
        next_us = [value for row in measured for value in row.pooled("next_us")]
        return cls(
            case,
            None,
            steps_per_s=Spread.of([row.steps_per_s for row in measured if row.steps_per_s is not None]),
            each=Spread.of([job["steps_per_s"] for row in measured for job in row.by_job]),
            wait_share=statistics.fmean(job["wait_share"] for row in measured for job in row.by_job),
            next_us_p50=quantile(next_us, 0.5),
            next_us_p99=quantile(next_us, 0.99),
            finish_us_p50=quantile([value for row in measured for value in row.pooled("finish_us")], 0.5),
            cpu_s_per_1000=median_or_none([row.cpu_s_per_1000 for row in measured]),
            uploads_per_batch=median_or_none([row.uploads_per_batch for row in measured]),
            used_mib=max((each["used"] for each in memory if each), default=None),
            allocated_mib=max((each["allocated"] for each in memory if each), default=None),
            others_cores=statistics.median(row.others_cores for row in measured),
        )


@dataclass(frozen=True)
class Records:
    """The figures of all cases, and the results of the Rust program."""

    by_case: dict[Case, Record] = field(default_factory=dict)
    native: dict[str, Any] = field(default_factory=dict)
    latency: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Single uploads beside jobs that train, by the number of jobs."""

    @classmethod
    def of(cls, report: dict[str, Any]) -> Records:
        rows = [Row(**row) for row in report["rows"]]
        cases = dict.fromkeys(row.case for row in rows)
        by_case = {case: Record.of(case, [row for row in rows if row.case == case]) for case in cases}
        latency = {each["jobs"]: each["results"] for each in report["latency"]}
        return cls(by_case, report["native"], latency)

    def figure(self, mode: str, jobs: int, get: Callable[[Record], float | None]) -> float | None:
        record = self.by_case.get(Case(mode, jobs))
        return get(record) if record else None

    def rate(self, mode: str, jobs: int) -> float | None:
        return self.figure(mode, jobs, lambda record: record.steps_per_s.median if record.steps_per_s else None)

    def of_limit(self, case: Case) -> float | None:
        """Returns the rate of a case over that of jobs whose batch stays on the GPU."""
        return ratio(self.rate(case.mode, case.jobs), self.rate(SYNTHETIC, case.jobs))

    def data_cpu_s_per_1000(self, case: Case) -> float | None:
        """Returns the CPU seconds that batches cost: those of a case beyond those of training without a loader."""
        total, training = (
            self.figure(mode, case.jobs, lambda record: record.cpu_s_per_1000) for mode in (case.mode, SYNTHETIC)
        )
        return None if total is None or training is None else total - training

    def upload_gb_per_s(self, source: str, size: int) -> Spread | None:
        """Returns the bandwidth of one kind of memory, and one size by its place in the list of sizes."""
        found = [upload for upload in self.native.get("uploads", []) if upload["from"] == source]
        return Spread.of(found[size]["gb_per_s"]) if found else None

    def kernel_us(self, element: str) -> float | None:
        """Returns the time of the slower order of elements."""
        times = [statistics.median(k["us"]) for k in self.native.get("kernels", []) if k["element"] == element]
        return max(times, default=None)

    def different_bits(self) -> int | None:
        bits = [kernel["different_bits"] for kernel in self.native.get("kernels", [])]
        return sum(bits) if bits else None


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def bars(records: Records, jobs: Sequence[int]) -> list[Bar]:
    """Returns the targets of the design, for these numbers of jobs."""
    return [
        *upload_bars(records),
        *kernel_bars(records),
        *training_bars(records, jobs),
        *cost_bars(records, jobs),
        *sharing_bars(records, jobs),
    ]


def upload_bars(records: Records) -> list[Bar]:
    def share(size: int) -> float | None:
        pinned, reference = (records.upload_gb_per_s(source, size) for source in ("staging, pinned", "cuMemHostAlloc"))
        return ratio(pinned.median if pinned else None, reference.median if reference else None)

    return [
        Bar(f"G1: upload of {size} MB from the pinned staging area, over cuMemHostAlloc", 0.95, True, share(number))
        for number, size in enumerate(("9.6", "38.5"))
    ]


def kernel_bars(records: Records) -> list[Bar]:
    return [
        Bar("G3: conversion of a batch to float32", 15, False, records.kernel_us("float32"), "us"),
        Bar("G3: conversion of a batch to bfloat16", 10, False, records.kernel_us("bfloat16"), "us"),
        Bar("G3: bits that differ from the CPU's", 1, False, records.different_bits(), "bits"),
    ]


def training_bars(records: Records, jobs: Sequence[int]) -> list[Bar]:
    found = []
    for count in jobs:
        device, plural = Case(DEVICE, count), "s" * (count > 1)
        asked = LIMIT_SHARE.get(count, LIMIT_SHARE_OF_SEVERAL)
        over_pin = ratio(records.rate(DEVICE, count), records.rate(PIN, count))
        found += [
            Bar(f"G4: steps/s of {count} job{plural}, over the limit", asked, True, records.of_limit(device), digits=3),
            Bar(f"G4: steps/s of {count} job{plural}, over coprep-pin", 1, True, over_pin, digits=3),
            Bar(f"G4: upload p99 beside {count} job{plural}", 2, False, upload_p99_ms(records, count), "ms"),
        ]
    return found


def sharing_bars(records: Records, jobs: Sequence[int]) -> list[Bar]:
    """Returns what shared uploads are to reach, if they were measured. One job shares with nobody."""
    found = []
    for count in (count for count in jobs if count > 1):
        for mode in (mode for mode in SHARING if Case(mode, count) in records.by_case):
            copies = records.figure(mode, count, lambda record: record.uploads_per_batch)
            found.append(
                Bar(f"G2: copies for each batch of {count} jobs, {mode}", 1.05 / count, False, copies, digits=3)
            )
    if 8 in jobs and Case(ARRAYS_SHARED, 8) in records.by_case:
        gain = ratio(records.rate(ARRAYS_SHARED, 8), records.rate(ARRAYS_OWN, 8))
        found.append(Bar("G9: steps/s of 8 jobs with arrays, shared over own uploads", 1.5, True, gain))
    return found


def upload_p99_ms(records: Records, jobs: int) -> float | None:
    results = records.latency.get(jobs, {}).get("latency", {})
    p99 = quantile(results.get("us", []), 0.99)
    return None if p99 is None else p99 / 1000


def cost_bars(records: Records, jobs: Sequence[int]) -> list[Bar]:
    found = []
    for count in jobs:
        of_jobs = f"{count} job{'s' * (count > 1)}"
        next_us = records.figure(DEVICE, count, lambda record: record.next_us_p50)
        ours, theirs = (records.data_cpu_s_per_1000(Case(mode, count)) for mode in (DEVICE, PIN))
        found += [
            Bar(f"G5: next() of {of_jobs}, p50", 150, False, next_us, "us"),
            Bar(f"G5: CPU of batches of {of_jobs}, over coprep-pin", 0.6, False, ratio(ours, theirs)),
        ]
    return found
