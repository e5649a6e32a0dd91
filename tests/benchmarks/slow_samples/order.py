"""Measures the order of batches: how fast, how evenly and in which order they come where some samples are slow.

A rate is compared with the limit: the rate of the same workers if they did nothing but prepare. A machine is never
quite free. Processor time that other processes take in a run, the host of a virtual machine included (steal time), is
not available to any worker. So a rate is compared with the limit of the processors that were left, and also with the
limit of all processors.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders.machine import cores
from tests.benchmarks.loaders.measure import BATCH_SIZE, limit_cpu_s_per_1000, median_or_none
from tests.benchmarks.loaders.records import Spread
from tests.benchmarks.slow_samples import delivery
from tests.benchmarks.slow_samples.delivery import Epoch, Gaps
from tests.benchmarks.slow_samples.features import Features
from tests.benchmarks.slow_samples.running import Coordinator, Job, Outcome, Progress, run, side_by_side
from tests.benchmarks.slow_samples.samples import Samples

WORKERS = 2
"""Workers of each loader: processes for a Python dataset, threads for coprep's own pipeline."""
EPOCHS = 3
DIGEST_WORKERS = (1, 2, 8)
DIGEST_EPOCHS = 2
DIGEST_SEED = 7
DIGEST_MEDIAN_MS = 0.2
"""Median cost of the artificial samples here: lower than where speed is measured, with the same tail."""
CALIBRATION_S = 2.0
"""Seconds of artificial samples that are made to measure their cost beyond the nominal one."""

TORCH_IN_ORDER, TORCH_OUT_OF_ORDER = "torch-in-order", "torch-out-of-order"
DETERMINISTIC, RELAXED = "coprep-deterministic", "coprep-relaxed"
LOADERS: dict[str, dict[str, Any]] = {
    TORCH_IN_ORDER: {"in_order": True},
    TORCH_OUT_OF_ORDER: {"in_order": False},
    DETERMINISTIC: {"cache": "off"},
    RELAXED: {"cache": "off", "order": "relaxed"},
}
"""The loaders, with the options of each."""


@dataclass(frozen=True)
class OrderOptions:
    """The cases to measure, and how."""

    samples: Sequence[Samples]
    loaders: Sequence[str]
    features: Features
    limit: Path | None
    repeat: int

    def loaders_of(self, samples: Samples) -> list[str]:
        chosen = [loader for loader in self.loaders if loader != RELAXED or self.features.relaxed]
        return [loader for loader in chosen if loader.startswith("coprep") or not samples.is_native]


@dataclass(frozen=True)
class Run:
    """The epochs of one job. The limit is measured just before and just after them, since a machine drifts."""

    limit: float | None
    epochs: Sequence[Epoch]
    first_batch_s: float
    displacement: int | None
    costs: dict[str, Any]
    cores: float | None
    """Cores that coprep and the job use from the second epoch on. `None` for PyTorch, whose processes end with an
    epoch."""
    others_cores: float
    first_left: float
    """Share of the workers' processors that was left by other processes in the first epoch."""
    later_left: float
    """The same share from the second epoch on."""

    def first_to_limit(self) -> float | None:
        return self.limit and delivery.rates(self.epochs)[0] / (self.limit * self.first_left)

    def later_to_limit(self) -> float | None:
        return self.limit and delivery.later_rate(self.epochs) / (self.limit * self.later_left)


@dataclass(frozen=True)
class GapRecord:
    """Milliseconds between batches, as medians of the repetitions."""

    p50: float
    p99: float
    max: float
    p99_to_p50: Spread

    @classmethod
    def of(cls, gaps: Sequence[Gaps]) -> GapRecord:
        return cls(
            statistics.median(one.p50 for one in gaps),
            statistics.median(one.p99 for one in gaps),
            statistics.median(one.max for one in gaps),
            Spread.of([one.ratio for one in gaps]),
        )


@dataclass(frozen=True)
class OrderRecord:
    """A set of samples with one loader."""

    samples: str
    loader: str
    count: int
    slow: int
    limit: float | None
    """Samples per second if the workers did nothing but prepare."""
    rates: Sequence[float]
    """Samples per second of each epoch."""
    first_rate_to_limit: Spread | None
    later_rate_to_limit: Spread | None
    """Rates over the limit of the processors that other processes left."""
    first_rate_to_whole: Spread | None
    later_rate_to_whole: Spread | None
    """Rates over the limit of all processors."""
    first_batch_s: float
    first_gaps: GapRecord
    later_gaps: GapRecord
    astray: int
    """Samples that did not come exactly once in an epoch, over all epochs of all repetitions."""
    slow_mean_rank: float | None
    slow_share_at_end: float | None
    displacement: int | None
    drawn_ahead: int | None
    """Minibatches that were drawn ahead because of slow samples."""
    overtaken: int | None
    """Overtaken samples in all epochs of a repetition. This figure and `drawn_ahead` are coprep's own account, and the
    largest of the repetitions."""
    cores: float | None
    """Cores that coprep and the job use from the second epoch on."""
    others_cores: float
    repetitions: int

    @classmethod
    def of(cls, samples: Samples, loader: str, runs: Sequence[Run]) -> OrderRecord:
        epochs = [epoch for run in runs for epoch in run.epochs]
        return cls(
            samples=samples.name,
            loader=loader,
            count=samples.count,
            slow=len(samples.slow),
            limit=median_or_none([run.limit for run in runs]),
            rates=[statistics.median(each) for each in zip(*(delivery.rates(run.epochs) for run in runs), strict=True)],
            first_rate_to_limit=spread_of([run.first_to_limit() for run in runs]),
            later_rate_to_limit=spread_of([run.later_to_limit() for run in runs]),
            first_rate_to_whole=spread_of([times(run.first_to_limit(), run.first_left) for run in runs]),
            later_rate_to_whole=spread_of([times(run.later_to_limit(), run.later_left) for run in runs]),
            first_batch_s=statistics.median(run.first_batch_s for run in runs),
            first_gaps=GapRecord.of([delivery.first_gaps(run.epochs) for run in runs]),
            later_gaps=GapRecord.of([delivery.later_gaps(run.epochs) for run in runs]),
            astray=sum(delivery.astray(epoch, samples.count) for epoch in epochs),
            slow_mean_rank=mean_or_none([delivery.mean_rank(epoch, samples.slow) for epoch in epochs]),
            slow_share_at_end=mean_or_none([delivery.share_at_end(epoch, samples.slow) for epoch in epochs]),
            displacement=most(run.displacement for run in runs),
            drawn_ahead=most(run.costs.get("window") for run in runs),
            overtaken=most(run.costs.get("overtaken") for run in runs),
            cores=median_or_none([run.cores for run in runs]),
            others_cores=statistics.median(run.others_cores for run in runs),
            repetitions=len(runs),
        )

    def as_json(self) -> dict[str, Any]:
        return {"part": "order", **asdict(self)}


@dataclass(frozen=True)
class DigestRecord:
    """Digests of all batches of one seed in deterministic order, by the number of workers."""

    samples: str
    digests: dict[int, Sequence[str]]
    """Digest of each epoch."""

    @property
    def different(self) -> int:
        return len({tuple(epochs) for epochs in self.digests.values()})

    def as_json(self) -> dict[str, Any]:
        return {"part": "order, digests", **asdict(self)}


@dataclass
class OrderResults:
    """All results of this part."""

    samples: Sequence[str]
    """The sets of samples that were asked for."""
    records: list[OrderRecord] = field(default_factory=list)
    digests: list[DigestRecord] = field(default_factory=list)


def most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def times(value: float | None, part: float) -> float | None:
    return None if value is None else value * part


def spread_of(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def left_by(others_cores: float) -> float:
    """Returns the share of the workers' processors that is left where other processes use this many cores."""
    return min(max(cores() - others_cores, 0.01) / WORKERS, 1.0)


def measure_order(options: OrderOptions) -> OrderResults:
    runs: dict[tuple[str, str], list[Run]] = {}
    digested = [samples for samples in options.samples if DETERMINISTIC in options.loaders]
    cases = sum(1 + len(options.loaders_of(samples)) for samples in options.samples)
    progress = Progress(options.repeat * cases + len(DIGEST_WORKERS) * len(digested))
    for repetition in range(options.repeat):
        for samples in options.samples:
            one_turn(options, samples, 1 + repetition, runs, progress)
    results = OrderResults([samples.name for samples in options.samples])
    for samples in options.samples:
        for loader in options.loaders_of(samples):
            results.records.append(OrderRecord.of(samples, loader, runs[samples.name, loader]))
    results.digests = [digests_of(samples, options.features, progress) for samples in digested]
    return results


def one_turn(
    options: OrderOptions, samples: Samples, seed: int, runs: dict[tuple[str, str], list[Run]], progress: Progress
) -> None:
    """Measures the limit, then each loader followed by the limit once more."""
    before = limit_of(samples, options.limit)
    progress.say(f"{samples.name}, limit: {before:,.0f}/s" if before else f"{samples.name}, limit: not measured")
    deterministic: list[list[int]] = []
    for loader in options.loaders_of(samples):
        outcome = run_loader(samples, loader, WORKERS, seed, EPOCHS, options.features)
        epochs = [Epoch.of(message) for message in outcome.of("epoch")]
        if loader == DETERMINISTIC:
            deterministic = [epoch.ids for epoch in epochs]
        drawn: Sequence[Sequence[int]] = [message["ids"] for message in outcome.of("drawn")]
        if loader == RELAXED:
            drawn = relaxed_draw(epochs, deterministic)
        first_batch_s = epochs[0].arrivals[0] - outcome.of("epoch")[0]["went"]
        after = limit_of(samples, options.limit)
        limit = (before + after) / 2 if before and after else None
        # This limit is also the one before the next loader.
        before = after
        later_s = epochs[-1].end - epochs[0].end
        one = Run(
            limit,
            epochs,
            first_batch_s,
            displacement=farthest(epochs, drawn),
            costs=outcome.costs,
            cores=outcome.later_cpu_s / later_s if loader.startswith("coprep") else None,
            others_cores=outcome.others_cores,
            first_left=left_by(outcome.first_others_cores),
            later_left=left_by(outcome.later_others_cores),
        )
        runs.setdefault((samples.name, loader), []).append(one)
        progress.say(f"{samples.name}, {loader}: {summary(one)}")


def farthest(epochs: Sequence[Epoch], drawn: Sequence[Sequence[int]]) -> int | None:
    """Returns the largest distance of a sample from its position in the draw, in batches.

    Returns `None` without a known draw.
    """
    if len(drawn) != len(epochs):
        return None
    return max(
        max(delivery.distances(epoch.ids, order, BATCH_SIZE)) for epoch, order in zip(epochs, drawn, strict=True)
    )


def relaxed_draw(epochs: Sequence[Epoch], deterministic: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Returns the draw of a relaxed run if it equals the deterministic draw of the same seed, else an empty list."""
    same = all(
        delivery.is_same_draw(epoch.ids, order, BATCH_SIZE) for epoch, order in zip(epochs, deterministic, strict=False)
    )
    return deterministic if same else []


def summary(run: Run) -> str:
    rates = delivery.rates(run.epochs)[0], delivery.later_rate(run.epochs)
    gaps = delivery.first_gaps(run.epochs), delivery.later_gaps(run.epochs)
    shares = run.first_to_limit(), run.later_to_limit()
    parts = []
    for when, rate, share, gap in zip(("first epoch", "later"), rates, shares, gaps, strict=True):
        of = f" ({share:.2f} of the limit)" if share else ""
        parts.append(f"{when} {rate:,.0f}/s{of}, p99 gap {gap.ratio:.1f}x")
    return f"{'; '.join(parts)} (others used {run.others_cores:.2f} cores)"


def run_loader(
    samples: Samples, loader: str, workers: int, seed: int, epochs: int, features: Features, digest: str = ""
) -> Outcome:
    if samples.data:
        samples.data.read()
    options = json.dumps({**LOADERS[loader], "seed": seed})
    kind = loader.partition("-")[0]
    coordinator = Coordinator(options=features.threads(workers)) if kind == "coprep" else None
    rest = [options, str(epochs), digest]
    if samples.is_native:
        assert samples.data is not None
        return run(Job("tests.benchmarks.slow_samples.job_native", [str(samples.data.root), *rest]), coordinator)
    arguments = [kind, samples.argument, str(workers), *rest]
    return run(Job("tests.benchmarks.slow_samples.job_python", arguments, samples.env), coordinator)


def limit_of(samples: Samples, program: Path | None) -> float | None:
    """Returns the samples per second of workers that only prepare: their number over the CPU seconds of a sample."""
    if samples.data:
        samples.data.read()
    if not samples.is_native:
        return WORKERS / plain_cost_s(samples)
    if program is None:
        return None
    assert samples.data is not None
    return 1000 * WORKERS / limit_cpu_s_per_1000(program, samples.data)


def plain_cost_s(samples: Samples) -> float:
    """Returns the mean CPU seconds of a sample in a plain loop, run in as many processes as there are workers.

    The nominal cost of artificial samples is known. Only their cost beyond it is measured, on some of them.
    """
    told = [samples.spin.cost_s(index) for index in range(samples.count)] if samples.spin else [0.0] * samples.count
    # Each process takes every n-th sample, so that it works for about `CALIBRATION_S` seconds.
    stride = max(int(sum(told) / WORKERS / CALIBRATION_S), 1)
    jobs = [
        Job(
            "tests.benchmarks.slow_samples.job_plain",
            [samples.argument, str(stride * part), str(stride * WORKERS)],
            samples.env,
        )
        for part in range(WORKERS)
    ]
    beyond = [
        spent - told[index]
        for message in side_by_side(jobs)
        for index, spent in zip(message["ids"], message["cpu_s"], strict=True)
    ]
    return statistics.fmean(told) + statistics.fmean(beyond)


def digests_of(samples: Samples, features: Features, progress: Progress) -> DigestRecord:
    found: dict[int, Sequence[str]] = {}
    if samples.spin:
        samples = replace(samples, spin=replace(samples.spin, median_ms=DIGEST_MEDIAN_MS))
    for workers in DIGEST_WORKERS:
        outcome = run_loader(samples, DETERMINISTIC, workers, DIGEST_SEED, DIGEST_EPOCHS, features, "digest")
        found[workers] = [message["digest"] for message in outcome.of("epoch")]
        progress.say(f"{samples.name}, deterministic order, {workers} workers: {' '.join(found[workers])}")
    return DigestRecord(samples.name, found)
