"""What it costs to measure each sample's cost: speed with and without, in pairs, and bytes."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.measure import MIB, Dataset, Setup, cache_budget
from tests.bench.records import Spread
from tests.bench_slow.delivery import Epoch, later_rate
from tests.bench_slow.features import Features
from tests.bench_slow.running import Coordinator, Job, Outcome, Progress, run

COSTS_VARIABLE = "COPREP_COSTS"
WORKERS = 2
SEED = 1
PAIRS = 5
"""In each repetition."""
CHEAP = "50000,1,0"
"""A Python dataset whose samples cost next to nothing."""
SAMPLES, QUICK_SAMPLES = 2_000_000, 200_000
"""Of the dataset whose samples' bytes are counted."""


@dataclass(frozen=True)
class Work:
    """What is done with and without measuring. Whole epochs of one seed: both sides prepare the very same."""

    label: str
    epochs: int
    """As many as make some seconds, and one before that is not looked at."""
    cache: str | None = None
    """Of coprep's own pipeline. None: a Python dataset."""

    def job(self, data: Dataset) -> Job:
        epochs = [str(self.epochs), ""]
        if self.cache is None:
            arguments = ["coprep", CHEAP, str(WORKERS), json.dumps({"seed": SEED}), *epochs]
            return Job("tests.bench_slow.job_python", arguments)
        options = json.dumps({"cache": self.cache, "seed": SEED})
        return Job("tests.bench_slow.job_native", [str(data.root), options, *epochs])


WORKS = (
    Work("images, cache off", 1 + 4, "off"),
    Work("images, cache decoded", 1 + 15, "decoded"),
    Work("Python samples that cost next to nothing", 1 + 4),
)
"""From where a sample costs most to where it costs least, and measuring it most beside that."""


@dataclass(frozen=True)
class CostOptions:
    """What to measure."""

    data: Dataset
    features: Features
    repeat: int
    quick: bool


@dataclass(frozen=True)
class Side:
    """With measuring, or without."""

    per_s: float
    """Samples, from the second epoch."""
    cpu_s: float
    measured: int
    """Samples whose costs are known, by the coordinator's own account."""


@dataclass(frozen=True)
class CostRecord:
    """One piece of work. Ratios are with measuring over without, over the pairs."""

    work: str
    on_per_s: float
    off_per_s: float
    rate_ratio: Spread
    cpu_ratio: Spread
    """Of the CPU seconds of all processes."""
    pairs: int
    switched: bool
    """Whether costs were measured on one side only. If not, what differs is chance."""

    @property
    def slower_percent(self) -> float:
        return 100 * (1 - self.rate_ratio.median)

    @property
    def more_cpu_percent(self) -> float:
        return 100 * (self.cpu_ratio.median - 1)

    @classmethod
    def of(cls, work: Work, pairs: Sequence[tuple[Side, Side]]) -> CostRecord:
        return cls(
            work=work.label,
            on_per_s=statistics.median(on.per_s for on, _ in pairs),
            off_per_s=statistics.median(off.per_s for _, off in pairs),
            rate_ratio=Spread.of([on.per_s / off.per_s for on, off in pairs]),
            cpu_ratio=Spread.of([on.cpu_s / off.cpu_s for on, off in pairs]),
            pairs=len(pairs),
            switched=all(on.measured > 0 and off.measured == 0 for on, off in pairs),
        )

    def as_json(self) -> dict[str, Any]:
        return {"part": "cost", **asdict(self)}


@dataclass(frozen=True)
class BytesRecord:
    """Memory (PSS) of a coordinator after an epoch of a dataset of very many samples."""

    samples: int
    on_bytes: int
    off_bytes: int
    told_bytes: int | None
    """What measured costs take, by the coordinator's own account."""

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
    """Everything of this part."""

    records: list[CostRecord] = field(default_factory=list)
    bytes: BytesRecord | None = None


def measure_cost(options: CostOptions) -> CostResults:
    pairs: dict[Work, list[tuple[Side, Side]]] = {work: [] for work in WORKS}
    count = options.repeat * (1 if options.quick else PAIRS)
    progress = Progress(count * len(WORKS) + 2)
    for number in range(count):
        for work in WORKS:
            on, off = one_pair(work, options, on_first=number % 2 == 0)
            pairs[work].append((on, off))
            progress.say(f"{work.label}: {on.per_s:,.0f}/s with costs measured, {off.per_s:,.0f} without")
    results = CostResults()
    results.records = [CostRecord.of(work, each) for work, each in pairs.items()]
    samples = QUICK_SAMPLES if options.quick else SAMPLES
    one, other = (many_samples(samples, measured, progress) for measured in (True, False))
    results.bytes = BytesRecord(samples, one.status["pss_bytes"], other.status["pss_bytes"], one.costs.get("bytes"))
    return results


def one_pair(work: Work, options: CostOptions, on_first: bool) -> tuple[Side, Side]:
    found = {}
    for on in (on_first, not on_first):
        options.data.read()
        cache = cache_budget(Setup("coprep", work.cache))
        with costs_measured(on):
            outcome = run(work.job(options.data), Coordinator(cache, options.features.threads(WORKERS)))
        epochs = [Epoch.of(message) for message in outcome.of("epoch")]
        found[on] = Side(later_rate(epochs), outcome.cpu_s, outcome.costs.get("measured", 0))
    return found[True], found[False]


@contextlib.contextmanager
def costs_measured(on: bool) -> Iterator[None]:
    """In the environment of what is started meanwhile."""
    before = os.environ.pop(COSTS_VARIABLE, None)
    if not on:
        os.environ[COSTS_VARIABLE] = "off"
    try:
        yield
    finally:
        os.environ.pop(COSTS_VARIABLE, None)
        if before is not None:
            os.environ[COSTS_VARIABLE] = before


def many_samples(samples: int, on: bool, progress: Progress) -> Outcome:
    with costs_measured(on):
        outcome = run(Job("tests.bench_slow.job_many", [str(samples)]), Coordinator())
    size = outcome.status["pss_bytes"] / MIB
    progress.say(f"{samples:,} samples, costs {'measured' if on else 'off'}: {size:,.1f} MiB of the coordinator")
    return outcome
