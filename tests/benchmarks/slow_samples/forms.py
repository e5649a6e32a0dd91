"""Measures the form of cached samples: seconds of an epoch by the size of the cache, against the best that is possible.

Fetching and preparing overlap, so an epoch takes as long as the longer of two times: processor seconds over processors,
and bytes read over the rate of storage. The latency of storage does not count, since several threads wait at a time.
Copying from the page cache is work of a processor. So on storage as it is, only the processors count.

The best is the better of two regimes. In one, nothing is kept decoded, and each sample is decoded only as large as its
crop needs. In the other, decoded forms are allowed, and all samples are decoded in full. A mix of the two is not
comparable: decoding at a reduced size gives slightly other pixels, so a sample's pixels would depend on the content of
the cache. coprep never mixes them in a stream, hence an optimum that did so would belong to another, easier problem.

The cost of a sample differs from epoch to epoch: a small crop is decoded from a small part of the file. A choice that
is best for a few measurements is best partly by chance, and no choice does as well in the next epochs. So all samples
are measured in several runs, each with its own crops, and costs are the means. The report shows the remaining chance:
it values the choice by half of the runs with the costs of the other half.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.benchmarks.loaders.measure import MIB, Dataset
from tests.benchmarks.loaders.records import Spread
from tests.benchmarks.slow_samples.delivery import Epoch, steady_epoch
from tests.benchmarks.slow_samples.features import Features
from tests.benchmarks.slow_samples.knapsack import Choice, Item, Plan, fastest
from tests.benchmarks.slow_samples.running import Coordinator, Job, Outcome, Progress, run
from tests.benchmarks.slow_samples.subset import pixels
from tools.demo.children import ChildFailed

IMAGES = 600
QUICK_IMAGES = 192
WORKERS = 2
SEED = 1
AUTO, ENCODED, DECODED = "auto", "encoded", "decoded"
FORMS = (AUTO, ENCODED, DECODED)
OFF = "off"
BUDGETS = (5, 10, 25, 50, 100, 200)
QUICK_BUDGETS = (10, 100)
"""Sizes of the cache in per cent of the encoded bytes."""
REDUCED, FULL = "reduced", "full"
"""The two ways to decode a sample: only as large as its crop needs, or with all its pixels."""
FAST, SLOWED = "as-it-is", "slowed"


@dataclass(frozen=True)
class Storage:
    """Storage: its options for the coordinator, and its rate."""

    options: Sequence[str]
    bytes_per_s: int | None
    """Rate of storage, or `None` if reads come from the page cache, which makes them work of a processor."""

    def seconds(self, size: int) -> float:
        return size / self.bytes_per_s if self.bytes_per_s else 0.0


STORAGES = {
    FAST: Storage([], None),
    SLOWED: Storage(["--storage-rate", "20M", "--storage-latency", "5ms"], 20 * MIB),
}
SETTLING_EPOCHS = 3
"""Epochs before the compared ones. They are reported, but not compared.

The first one fills the cache. In the next ones costs and look-ahead settle: the cached samples are quick from then on,
so the others take much longer than the usual sample. They are therefore drawn further ahead, and are fetched once for
later epochs.
"""
SETTLED_EPOCHS = 9
"""Epochs that are compared."""
LISTED_EPOCHS = 3
LISTINGS = 8
QUICK_LISTINGS = 2
"""Runs by which all samples are measured, each with a seed of its own."""
STAGES = ("fetch_s", "decode_s", "fixed_s", "random_s")
"""Stages of a sample, as the list of costs names them."""


@dataclass(frozen=True)
class FormsOptions:
    """The cases to measure, and how."""

    data: Dataset
    forms: Sequence[str]
    storages: Sequence[str]
    budgets: Sequence[int]
    features: Features
    listings: int
    repeat: int

    def there(self) -> tuple[list[str], list[str]]:
        """Returns the forms and storages that this coprep supports."""
        forms = [form for form in self.forms if form != AUTO or self.features.auto]
        return forms, [storage for storage in self.storages if storage != SLOWED or self.features.slow_storage]

    def bytes_of(self, budget: int) -> int:
        return self.data.bytes * budget // 100


@dataclass(frozen=True)
class FormsRun:
    """The epochs of one job with one cache."""

    fill_s: float
    epoch_s: float
    """Seconds of an epoch in the steady state."""
    from_second_s: float
    cache: dict[str, Any]
    """Status of the cache when the job was done."""
    others_cores: float


@dataclass(frozen=True)
class FormsRecord:
    """Seconds of an epoch; the spread is over the repetitions."""

    storage: str
    form: str
    budget_percent: int
    budget_bytes: int
    fill_s: Spread
    epoch_s: Spread
    from_second_s: Spread
    """The mean of all epochs except the first."""
    by_form: dict[str, int]
    """Samples in the cache by form, in the last repetition."""
    used_bytes: int
    lambda_s_per_mib: float | None
    saves_s_per_epoch: float | None
    """Saved seconds by the coordinator's own account."""
    others_cores: float
    repetitions: int

    @classmethod
    def of(cls, case: tuple[str, str, int], budget_bytes: int, runs: Sequence[FormsRun]) -> FormsRecord:
        storage, form, budget = case
        cache = runs[-1].cache
        return cls(
            storage=storage,
            form=form,
            budget_percent=budget,
            budget_bytes=budget_bytes,
            fill_s=Spread.of([run.fill_s for run in runs]),
            epoch_s=Spread.of([run.epoch_s for run in runs]),
            from_second_s=Spread.of([run.from_second_s for run in runs]),
            by_form=entries_by_form(cache),
            used_bytes=cache["used"],
            lambda_s_per_mib=cache.get("lambda_s_per_mib"),
            saves_s_per_epoch=cache.get("saves_s_per_epoch"),
            others_cores=statistics.median(run.others_cores for run in runs),
            repetitions=len(runs),
        )

    def as_json(self) -> dict[str, Any]:
        return {"part": "forms", **asdict(self)}


@dataclass(frozen=True)
class OptimumRecord:
    """The best epoch that is possible within a budget, by the costs of all samples."""

    storage: str
    budget_percent: int
    budget_bytes: int
    epoch_s: float
    bound_s: float
    """Lower bound: no choice of forms is faster."""
    by_others_s: float | None
    """Seconds of the choice by half of the measurements, valued by the other half. Without chance it would equal
    `epoch_s`. `None` if there was only one measurement."""
    processors_s: float
    storage_s: float
    """Seconds of processors and of storage. The longer of the two is the epoch."""
    decoding: str
    by_form: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {"part": "forms, optimum", **asdict(self)}


@dataclass(frozen=True)
class ModelRecord:
    """The model behind the optimum where it can be compared: epochs without a cache, and with all samples decoded."""

    storage: str
    form: str
    decoding: str
    predicted_s: float
    measured_s: float

    def as_json(self) -> dict[str, Any]:
        return {"part": "forms, model", **asdict(self)}


@dataclass
class FormsResults:
    """All results of this part."""

    data: Dataset
    storages: Sequence[str]
    """The storages that were asked for."""
    records: list[FormsRecord] = field(default_factory=list)
    optima: list[OptimumRecord] = field(default_factory=list)
    models: list[ModelRecord] = field(default_factory=list)


def measure_forms(options: FormsOptions) -> FormsResults:
    """Measures all cases.

    Each repetition first measures a part of the costs, so that costs and epochs come from the same time. Then it runs
    every form with every budget in turn.
    """
    forms, storages = options.there()
    cases = [(storage, form, budget) for storage in storages for budget in options.budgets for form in forms]
    listings = options.listings if options.features.listing else 0
    slowed = [storage for storage in storages if storage != FAST and listings]
    progress = Progress(len(LISTED) * listings + options.repeat * (len(slowed) + len(cases)))
    listed = Listed(options, progress)
    runs: dict[tuple[str, str, int], list[FormsRun]] = {case: [] for case in cases}
    for turn in range(options.repeat):
        # The listings are spread evenly over the repetitions.
        for number in range(turn, listings, options.repeat):
            listed.measure(SEED + number)
        for storage in slowed:
            listed.run_uncached(storage)
        for storage, form, budget in cases:
            one = one_run(options, storage, form, options.bytes_of(budget), SEED + turn)
            runs[storage, form, budget].append(one)
            progress.say(
                f"storage {storage}, {form}, {budget} %: {one.epoch_s:.2f} s,"
                f" to fill {one.fill_s:.2f} s (others used {one.others_cores:.2f} cores)"
            )
    results = FormsResults(options.data, options.storages)
    results.records = [FormsRecord.of(case, options.bytes_of(case[2]), each) for case, each in runs.items()]
    if listings:
        results.models = listed.models()
        results.optima = [
            optimum(listed.costs, storage, budget, options.bytes_of(budget))
            for storage in storages
            for budget in options.budgets
        ]
    return results


def one_run(options: FormsOptions, storage: str, form: str, cache_bytes: int, seed: int) -> FormsRun:
    outcome = run_job(options, storage, form, cache_bytes, SETTLING_EPOCHS + SETTLED_EPOCHS, seed=seed)
    epochs = epochs_of(outcome)
    (cache,) = outcome.status["caches"]
    return FormsRun(
        fill_s=epochs[0].end - epochs[0].began,
        epoch_s=steady_epoch(epochs[SETTLING_EPOCHS:]),
        from_second_s=later_epoch(outcome),
        cache=cache,
        others_cores=outcome.others_cores,
    )


def run_job(
    options: FormsOptions,
    storage: str,
    form: str,
    cache_bytes: int,
    epochs: int,
    listed: str | None = None,
    seed: int = SEED,
) -> Outcome:
    """Runs one job. With `listed`, samples are decoded in that way, and the outcome has the costs of all samples."""
    options.data.read()
    loader: dict[str, Any] = {"cache": form, "seed": seed}
    if form != OFF:
        loader["cache_bytes"] = cache_bytes
    arguments = [str(options.data.root), json.dumps(loader), str(epochs), "", "exact" if listed == FULL else ""]
    serve = [*options.features.threads(WORKERS), *STORAGES[storage].options]
    slowest = len(options.data.files) if listed else 0
    return run(
        Job("tests.benchmarks.slow_samples.job_native", arguments), Coordinator(str(2 * cache_bytes), serve, slowest)
    )


def epochs_of(outcome: Outcome) -> list[Epoch]:
    return [Epoch.of(message) for message in outcome.of("epoch")]


def later_epoch(outcome: Outcome) -> float:
    """Returns the mean duration of the epochs from the second on."""
    first, *later = epochs_of(outcome)
    return (later[-1].end - first.end) / len(later)


def entries_by_form(cache: dict[str, Any]) -> dict[str, int]:
    """Returns the number of entries by form.

    The status has them as a list or a dictionary. A coprep with a single form per cache tells only the number of
    entries.
    """
    told = cache.get("by_form")
    if told is None:
        return {cache["form"]: cache["entries"]}
    rows = told if isinstance(told, list) else [{"form": form, **row} for form, row in told.items()]
    return {row["form"]: row["entries"] for row in rows if row["entries"]}


# The best that is possible.


@dataclass(frozen=True)
class Costs:
    """Costs of each sample, measured on storage as it is: seconds of a processor, and bytes."""

    encoded_bytes: Sequence[int]
    decoded_bytes: Sequence[int]
    off: dict[str, Sequence[dict[str, float]]]
    """Seconds of each stage without a cache, by the way of decoding."""
    cropped_s: Sequence[float]
    """Seconds that remain where a sample is cached decoded."""

    @classmethod
    def mean(cls, of: Sequence[Costs]) -> Costs:
        """Returns the mean of several measurements of the same samples."""
        first = of[0]
        off: dict[str, Sequence[dict[str, float]]] = {
            decoding: [mean_row(rows) for rows in zip(*(one.off[decoding] for one in of), strict=True)]
            for decoding in first.off
        }
        cropped = [statistics.fmean(each) for each in zip(*(one.cropped_s for one in of), strict=True)]
        return cls(first.encoded_bytes, first.decoded_bytes, off, cropped)

    def needs_s(self, storage: Storage, decoding: str) -> tuple[float, float]:
        """Returns the seconds of an epoch without a cache: those of the processors, and those of storage."""
        total = sum(sum(row.values()) for row in self.off[decoding])
        return total / WORKERS, storage.seconds(sum(self.encoded_bytes))

    def forms(self, storage: Storage, decoding: str) -> list[list[Item]]:
        """Returns the forms in which each sample can be cached, with the seconds that each saves of both resources."""
        found = []
        columns = (self.encoded_bytes, self.decoded_bytes, self.off[decoding], self.cropped_s)
        for encoded, decoded, row, cropped in zip(*columns, strict=True):
            read_s = storage.seconds(encoded)
            items = [Item(ENCODED, encoded, (row["fetch_s"] / WORKERS, read_s))]
            if decoding == FULL:
                items.append(Item(DECODED, decoded, ((sum(row.values()) - cropped) / WORKERS, read_s)))
            found.append(items)
        return found

    def epoch_s(self, storage: Storage, decoding: str, choice: Choice) -> float:
        """Returns the seconds of an epoch with a choice, which may have been made by other costs."""
        forms = self.forms(storage, decoding)
        items = [{item.form: item for item in forms[sample]}[kept.form] for sample, kept in choice.kept.items()]
        saved = [sum(item.saved_s[resource] for item in items) for resource in (0, 1)]
        return max(needs - saves for needs, saves in zip(self.needs_s(storage, decoding), saved, strict=True))


LISTED = ((OFF, REDUCED), (OFF, FULL), (DECODED, FULL))
"""Runs that list costs. The model can be compared with each of them."""


def mean_row(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {stage: statistics.fmean(row[stage] for row in rows) for stage in rows[0]}


class Listed:
    """The costs of all samples, measured several times: without a cache in both ways of decoding, and with all cached
    decoded."""

    def __init__(self, options: FormsOptions, progress: Progress) -> None:
        self.options, self.progress = options, progress
        self.costs: list[Costs] = []
        self.epochs: dict[tuple[str, str, str], list[float]] = {}
        """Seconds of an epoch, by storage, cache and decoding."""

    def measure(self, seed: int) -> None:
        files = self.options.data.files
        decoded_bytes = [3 * count for count in pixels(files)]
        rows = {}
        for form, decoding in LISTED:
            # All samples must fit, so there are 4 KiB to spare for each.
            room = 0 if form == OFF else sum(decoded_bytes) + 4096 * len(files)
            outcome = run_job(self.options, FAST, form, room, LISTED_EPOCHS, decoding, seed)
            rows[form, decoding] = listing(outcome.status, len(files))
            self.note(FAST, form, decoding, outcome)
        self.costs.append(
            Costs(
                encoded_bytes=[path.stat().st_size for path in files],
                decoded_bytes=decoded_bytes,
                off={decoding: rows[OFF, decoding] for decoding in (REDUCED, FULL)},
                # With all samples cached decoded, only the random operators remain.
                cropped_s=[row["random_s"] for row in rows[DECODED, FULL]],
            )
        )

    def run_uncached(self, storage: str) -> None:
        """Runs without a cache, only to check the model: the costs come from storage as it is."""
        self.note(storage, OFF, REDUCED, run_job(self.options, storage, OFF, 0, LISTED_EPOCHS))

    def note(self, storage: str, form: str, decoding: str, outcome: Outcome) -> None:
        seconds = later_epoch(outcome)
        self.epochs.setdefault((storage, form, decoding), []).append(seconds)
        self.progress.say(f"costs, storage {storage}, cache {form}, decoding {decoding}: {seconds:.2f} s an epoch")

    def models(self) -> list[ModelRecord]:
        """Returns how well the model behind the optima predicts epochs."""
        costs = Costs.mean(self.costs)
        found = []
        for (storage, form, decoding), epochs in self.epochs.items():
            cropped = sum(costs.cropped_s) / WORKERS
            predicted = cropped if form == DECODED else max(costs.needs_s(STORAGES[storage], decoding))
            found.append(ModelRecord(storage, form, decoding, predicted, statistics.median(epochs)))
        return found


def optimum(measured: Sequence[Costs], storage: str, budget: int, budget_bytes: int) -> OptimumRecord:
    """Returns the better of the two regimes, by the means of all measurements.

    Every choice belongs to one of the regimes, so the lower of their bounds holds for all choices.
    """
    there = STORAGES[storage]
    costs = Costs.mean(measured)
    plans = plans_of(costs, there, budget_bytes)
    decoding, best = shortest(plans)
    processors_s, storage_s = best.needs_s
    return OptimumRecord(
        storage=storage,
        budget_percent=budget,
        budget_bytes=budget_bytes,
        epoch_s=best.epoch_s,
        bound_s=min(plan.bound_s for plan in plans.values()),
        by_others_s=by_others(measured, there, budget_bytes),
        processors_s=processors_s,
        storage_s=storage_s,
        decoding=decoding,
        by_form=best.choice.by_form,
    )


def plans_of(costs: Costs, storage: Storage, budget_bytes: int) -> dict[str, Plan]:
    """Returns the best plan for each way of decoding."""
    return {
        decoding: fastest(costs.forms(storage, decoding), budget_bytes, costs.needs_s(storage, decoding))
        for decoding in (REDUCED, FULL)
    }


def shortest(plans: dict[str, Plan]) -> tuple[str, Plan]:
    # Where storage is the bottleneck, the two plans differ by a few bytes only. Rounding then picks the first, so that
    # the name is stable.
    return min(plans.items(), key=lambda plan: round(plan[1].epoch_s, 4))


def by_others(measured: Sequence[Costs], storage: Storage, budget_bytes: int) -> float | None:
    """Returns the mean over both halves of the measurements, each valued with the choice by the other half."""
    if len(measured) < 2:
        return None
    halves = [Costs.mean(measured[first::2]) for first in (0, 1)]
    valued = []
    for chooses, values in (halves, halves[::-1]):
        decoding, plan = shortest(plans_of(chooses, storage, budget_bytes))
        valued.append(values.epoch_s(storage, decoding, plan.choice))
    return statistics.fmean(valued)


def listing(status: dict[str, Any], samples: int) -> list[dict[str, float]]:
    """Returns the seconds of each stage, by sample id."""
    (stream,) = status["streams"]
    rows: list[dict[str, Any]] = stream["costs"]["slowest"]
    by_id = {row["id"]: {stage: float(row[stage] or 0) for stage in STAGES} for row in rows}
    if missing := set(range(samples)) - by_id.keys():
        raise ChildFailed(
            f"coprep status --slow {samples} lists no costs of {len(missing)} samples ({min(missing)}, ...)"
        )
    return [by_id[sample] for sample in range(samples)]
