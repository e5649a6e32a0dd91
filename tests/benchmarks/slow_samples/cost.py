"""Measures the cost of measuring each sample's cost: the speed with and without it, its own CPU time, and its bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders.measure import MIB
from tests.benchmarks.slow_samples.overhead import OverheadRecord, run_overhead
from tests.benchmarks.slow_samples.pairs import PairOptions, PairRecord, Switch, environment, measure_pairs
from tests.benchmarks.slow_samples.running import Coordinator, Job, Outcome, Progress, run

OFF = {"COPREP_COSTS": "off"}
COSTS = Switch("cost", "costs measured", OFF, lambda outcome: outcome.costs.get("measured", 0) > 0)
SAMPLES, QUICK_SAMPLES = 2_000_000, 200_000
"""Size of the dataset for which the bytes per sample are counted."""


@dataclass(frozen=True)
class BytesRecord:
    """Memory (PSS) of a coordinator after an epoch of a dataset with very many samples."""

    samples: int
    on_bytes: int
    off_bytes: int
    told_bytes: int | None
    """Bytes of the measured costs, by the coordinator's own account."""

    @property
    def per_sample(self) -> float:
        return (self.on_bytes - self.off_bytes) / self.samples

    @property
    def told_per_sample(self) -> float | None:
        return None if self.told_bytes is None else self.told_bytes / self.samples

    def as_json(self) -> dict[str, Any]:
        return {"part": "cost, bytes", **asdict(self)}


@dataclass
class CostResults:
    """All results of this part."""

    records: list[PairRecord] = field(default_factory=list)
    by_itself: OverheadRecord | None = None
    bytes: BytesRecord | None = None


def measure_cost(options: PairOptions, overhead: Path | None) -> CostResults:
    """Measures this part. `overhead` is the program that measures the CPU time by itself."""
    by_itself = OverheadRecord.of(run_overhead(overhead, options.data, options.quick)) if overhead else None
    records = measure_pairs(COSTS, options)
    samples = QUICK_SAMPLES if options.quick else SAMPLES
    progress = Progress(2)
    one, other = (many_samples(samples, measured, progress) for measured in (True, False))
    told = BytesRecord(samples, one.status["pss_bytes"], other.status["pss_bytes"], one.costs.get("bytes"))
    return CostResults(records, by_itself, told)


def many_samples(samples: int, on: bool, progress: Progress) -> Outcome:
    with environment({} if on else OFF, without=OFF):
        outcome = run(Job("tests.benchmarks.slow_samples.job_many", [str(samples)]), Coordinator())
    size = outcome.status["pss_bytes"] / MIB
    progress.say(f"{samples:,} samples, costs {'measured' if on else 'off'}: {size:,.1f} MiB of the coordinator")
    return outcome
