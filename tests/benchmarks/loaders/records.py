"""Turns single runs into records, and records into the ratios that the targets name."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tests.benchmarks.loaders.handover import HandOver
from tests.benchmarks.loaders.measure import Run, Setup, median_or_none

Case = tuple[Setup, int]
"""A loader, and its number of jobs."""
COPREP_PYTHON, TORCH_PYTHON = Setup("coprep-python"), Setup("torch-python")
COPREP_LIGHT = Setup("coprep-python", light=True)
TOTAL = "total, all jobs import torch"
ADDED = "what loading adds to these jobs"
LIGHT_TOTAL = "total, coprep's jobs import no torch (light jobs), PyTorch's do"


@dataclass(frozen=True)
class Spread:
    """The median and the extremes over the repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Record:
    """A loader with one number of jobs at a time. Images count for all jobs together; the other figures are medians."""

    loader: str
    cache: str | None
    samples: Literal["images", "tensors"]
    light: bool
    jobs: int
    images_per_s: Spread
    cpu_s_per_1000: float
    pss_mib: float | None
    first_batch_s: float | None
    ready_to_first_s: float | None
    """Seconds to the first batch of the first job."""
    others_to_first_s: Spread | None
    """Seconds to the first batch of the later jobs, over them and the repetitions. With coprep, these join a running
    stream."""
    pss_ready_mib: float | None
    gap_ms_p50: float | None
    gap_ms_p99: float | None
    job_cpu_us_per_batch: float | None
    others_cores: float
    repetitions: int

    @classmethod
    def of(cls, setup: Setup, jobs: int, runs: Sequence[Run]) -> Record:
        joining = [seconds for run in runs for seconds in run.ready_to_first_s[1:]]
        return cls(
            loader=setup.loader,
            cache=setup.cache,
            samples=setup.samples,
            light=setup.light,
            jobs=jobs,
            images_per_s=Spread.of([run.images_per_s for run in runs]),
            cpu_s_per_1000=statistics.median(run.cpu_s_per_1000 for run in runs),
            pss_mib=median_or_none([run.pss_mib for run in runs]),
            first_batch_s=median_or_none([run.first_batch_s for run in runs]),
            ready_to_first_s=median_or_none([run.ready_to_first_s[0] for run in runs if run.ready_to_first_s]),
            others_to_first_s=Spread.of(joining) if joining else None,
            pss_ready_mib=median_or_none([run.pss_ready_mib for run in runs]),
            gap_ms_p50=median_or_none([quantile(run.gaps_ms, 0.5) for run in runs]),
            gap_ms_p99=median_or_none([quantile(run.gaps_ms, 0.99) for run in runs]),
            job_cpu_us_per_batch=median_or_none([run.job_cpu_us_per_batch for run in runs]),
            others_cores=statistics.median(run.others_cores for run in runs),
            repetitions=len(runs),
        )

    @property
    def setup(self) -> Setup:
        return Setup(self.loader, self.cache, self.samples, self.light)

    @property
    def loading_mib(self) -> float | None:
        """Returns the memory that loading adds to ready jobs."""
        if self.pss_mib is None or self.pss_ready_mib is None:
            return None
        return self.pss_mib - self.pss_ready_mib

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Returns the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


@dataclass(frozen=True)
class Comparison:
    """The memory, in MiB, that the same number of jobs need with coprep and with PyTorch over one Python dataset."""

    what: str
    jobs: int
    ours: float | None
    theirs: float | None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.ours is not None and self.theirs else None


def memory_comparisons(records: Sequence[Record]) -> list[Comparison]:
    """Compares the memory of both loaders.

    Jobs that import PyTorch are large before they load anything. So the memory that loading adds, and light jobs, are
    compared as well as the total.
    """
    by_case = {(record.setup, record.jobs): record for record in records}
    found = []
    for jobs in sorted({jobs for _, jobs in by_case}):
        theirs = by_case.get((TORCH_PYTHON, jobs))
        if not theirs:
            continue
        if ours := by_case.get((COPREP_PYTHON, jobs)):
            found.append(Comparison(TOTAL, jobs, ours.pss_mib, theirs.pss_mib))
            found.append(Comparison(ADDED, jobs, ours.loading_mib, theirs.loading_mib))
        if light := by_case.get((COPREP_LIGHT, jobs)):
            found.append(Comparison(LIGHT_TOTAL, jobs, light.pss_mib, theirs.pss_mib))
    return found


@dataclass(frozen=True)
class Bar:
    """A target for the measurements, with the measured value."""

    what: str
    asked: float
    at_least: bool
    got: float | None
    unit: str = "x"
    digits: int = 2
    """Digits after the point, where the value is small."""

    @property
    def met(self) -> bool | None:
        if self.got is None:
            return None
        return self.got >= self.asked if self.at_least else self.got < self.asked

    def cells(self) -> list[str]:
        asked = f"{'at least' if self.at_least else 'under'} {self.asked:g} {self.unit}"
        if self.got is None:
            return [self.what, asked, "not measured", ""]
        got = f"{self.got:,.0f} {self.unit}" if self.got >= 50 else f"{self.got:.{self.digits}f} {self.unit}"
        return [self.what, asked, got, "met" if self.met else "NOT MET"]


def bars(records: Sequence[Record], handover: Sequence[HandOver] = ()) -> list[Bar]:
    by_case = {(record.setup, record.jobs): record for record in records}

    def ratio(one: Case, other: Case) -> float | None:
        if one not in by_case or other not in by_case:
            return None
        return by_case[one].images_per_s.median / by_case[other].images_per_s.median

    def memory(case: Case) -> float | None:
        return by_case[case].pss_mib if case in by_case else None

    def memory_ratio(what: str, jobs: int) -> float | None:
        return next((row.ratio for row in memory_comparisons(records) if (row.what, row.jobs) == (what, jobs)), None)

    def joining(case: Case) -> float | None:
        seconds = by_case[case].others_to_first_s if case in by_case else None
        return seconds.median if seconds else None

    coprep, ours, theirs = Setup("coprep", "off"), COPREP_PYTHON, TORCH_PYTHON
    one, eight = (coprep, 1), (coprep, 8)
    # A job that writes to its batch pays for copies of the pages, which the target leaves out.
    dearest = max((row.cpu_us_per_batch for row in handover if row.touch != "write"), default=None)
    return [
        Bar("one job, cache off, against the limit", 0.85, True, ratio(one, (Setup("limit"), 1))),
        Bar("8 jobs against one", 7.6, True, ratio(eight, one)),
        Bar("8 jobs against 8 with torchvision.io", 15, True, ratio(eight, (Setup("torch-io"), 8))),
        Bar("one job, cache decoded against off", 2.5, True, ratio((Setup("coprep", "decoded"), 1), one)),
        Bar("memory of 8 jobs, all processes (PSS)", 1200, False, memory(eight), "MiB"),
        Bar("CPU of a job for the hand-over of a batch of 9.6 MB", 100, False, dearest, "us"),
        Bar("Python dataset, one job against one with PyTorch", 0.95, True, ratio((ours, 1), (theirs, 1))),
        Bar("Python dataset, 8 jobs against 8 with PyTorch", 7, True, ratio((ours, 8), (theirs, 8))),
        # The total has no target: importing PyTorch in eight jobs takes more than a third of PyTorch's total.
        Bar(
            "Python dataset, memory (PSS) that loading adds to 8 jobs, against 8 with PyTorch",
            0.36,
            False,
            memory_ratio(ADDED, 8),
        ),
        Bar(
            "Python dataset, memory (PSS) of 8 jobs that import what their loader needs (light jobs), all processes",
            0.333,
            False,
            memory_ratio(LIGHT_TOTAL, 8),
        ),
        Bar("Python dataset, first batch of a job that joins (jobs 2 to 8)", 0.5, False, joining((ours, 8)), "s"),
    ]
