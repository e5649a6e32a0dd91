"""The form of cached samples: seconds of an epoch by what the cache may take, against the best that is possible."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.measure import Dataset
from tests.bench.records import Spread
from tests.bench_slow.delivery import Epoch
from tests.bench_slow.features import Features
from tests.bench_slow.knapsack import Choice, Item, choose
from tests.bench_slow.running import Coordinator, Job, Outcome, Progress, run
from tests.bench_slow.subset import pixels
from tools.demo.children import ChildFailed

IMAGES = 600
QUICK_IMAGES = 192
WORKERS = 2
SEED = 1
AUTO, ENCODED, DECODED = "auto", "encoded", "decoded"
FORMS = (AUTO, ENCODED, DECODED)
BUDGETS = (5, 10, 25, 50, 100, 200)
QUICK_BUDGETS = (10, 100)
"""Per cent of the encoded bytes."""
FAST, SLOWED = "as-it-is", "slowed"
STORAGES: dict[str, list[str]] = {
    FAST: [],
    SLOWED: ["--storage-rate", "20M", "--storage-latency", "5ms"],
}
"""With what the coordinator is told."""
LATER_EPOCHS = {FAST: 6, SLOWED: 2}
"""Those measured, after one that fills the cache: more of them where they are short."""
LISTED_EPOCHS = 3
STAGES = ("fetch_s", "decode_s", "fixed_s", "random_s")
"""Of a sample, as its costs are listed."""


@dataclass(frozen=True)
class FormsOptions:
    """What to measure."""

    data: Dataset
    forms: Sequence[str]
    storages: Sequence[str]
    budgets: Sequence[int]
    features: Features
    repeat: int

    def there(self) -> tuple[list[str], list[str]]:
        """Forms and storages that this coprep has."""
        forms = [form for form in self.forms if form != AUTO or self.features.auto]
        return forms, [storage for storage in self.storages if storage != SLOWED or self.features.slow_storage]

    def bytes_of(self, budget: int) -> int:
        return self.data.bytes * budget // 100


@dataclass(frozen=True)
class FormsRun:
    """One job's epochs with one cache."""

    fill_s: float
    epochs_s: Sequence[float]
    cache: dict[str, Any]
    """Its status when the job was done."""
    others_cores: float


@dataclass(frozen=True)
class FormsRecord:
    """Seconds of an epoch; the spread is over the repetitions, each the median of its epochs after the first."""

    storage: str
    form: str
    budget_percent: int
    budget_bytes: int
    fill_s: Spread
    epoch_s: Spread
    by_form: dict[str, int]
    """Samples in the cache, of the last repetition."""
    used_bytes: int
    lambda_s_per_mib: float | None
    saves_s_per_epoch: float | None
    """By the coordinator's own account."""
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
            epoch_s=Spread.of([statistics.median(run.epochs_s) for run in runs]),
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
    """No choice of forms is faster."""
    by_form: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {"part": "forms, optimum", **asdict(self)}


@dataclass(frozen=True)
class ModelRecord:
    """The model behind the optimum, where it can be compared: an epoch without a cache, and with all decoded."""

    storage: str
    form: str
    predicted_s: float
    measured_s: float

    def as_json(self) -> dict[str, Any]:
        return {"part": "forms, model", **asdict(self)}


@dataclass
class FormsResults:
    """Everything of this part."""

    data: Dataset
    storages: Sequence[str]
    """Asked for."""
    records: list[FormsRecord] = field(default_factory=list)
    optima: list[OptimumRecord] = field(default_factory=list)
    models: list[ModelRecord] = field(default_factory=list)


def measure_forms(options: FormsOptions) -> FormsResults:
    """The costs of all samples first, then every form with every budget, taken in turn."""
    forms, storages = options.there()
    cases = [(storage, form, budget) for storage in storages for budget in options.budgets for form in forms]
    listings = 2 * len(storages) if options.features.listing else 0
    progress = Progress(listings + options.repeat * len(cases))
    results = FormsResults(options.data, options.storages)
    if listings:
        for storage in storages:
            predict(options, storage, results, progress)
    runs: dict[tuple[str, str, int], list[FormsRun]] = {case: [] for case in cases}
    for _ in range(options.repeat):
        for storage, form, budget in cases:
            one = one_run(options, storage, form, options.bytes_of(budget))
            runs[storage, form, budget].append(one)
            progress.say(
                f"storage {storage}, {form}, {budget} %: {statistics.median(one.epochs_s):.2f} s,"
                f" to fill {one.fill_s:.2f} s (others used {one.others_cores:.2f} cores)"
            )
    results.records = [FormsRecord.of(case, options.bytes_of(case[2]), each) for case, each in runs.items()]
    return results


def one_run(options: FormsOptions, storage: str, form: str, cache_bytes: int) -> FormsRun:
    outcome = run_job(options, storage, form, cache_bytes, 1 + LATER_EPOCHS[storage], listing=False)
    fill, *later = epoch_seconds(outcome)
    (cache,) = outcome.status["caches"]
    return FormsRun(fill, later, cache, outcome.others_cores)


def run_job(options: FormsOptions, storage: str, form: str, cache_bytes: int, epochs: int, *, listing: bool) -> Outcome:
    options.data.read()
    loader: dict[str, Any] = {"cache": form, "seed": SEED}
    if form != "off":
        loader["cache_bytes"] = cache_bytes
    arguments = [str(options.data.root), json.dumps(loader), str(epochs), ""]
    serve = [*options.features.threads(WORKERS), *STORAGES[storage]]
    slowest = len(options.data.files) if listing else 0
    return run(Job("tests.bench_slow.job_native", arguments), Coordinator(str(2 * cache_bytes), serve, slowest))


def epoch_seconds(outcome: Outcome) -> list[float]:
    """From the end of the one before; the first from when its first batch was asked for."""
    epochs = [Epoch.of(message) for message in outcome.of("epoch")]
    begins = [epochs[0].began, *(epoch.end for epoch in epochs)]
    return [epoch.end - began for began, epoch in zip(begins, epochs, strict=False)]


def entries_by_form(cache: dict[str, Any]) -> dict[str, int]:
    """From a list or a dictionary; a coprep that knows one form for a cache says no more than its entries."""
    told = cache.get("by_form")
    if told is None:
        return {cache["form"]: cache["entries"]}
    rows = told if isinstance(told, list) else [{"form": form, **row} for form, row in told.items()]
    return {row["form"]: row["entries"] for row in rows if row["entries"]}


# The best that is possible.


def predict(options: FormsOptions, storage: str, results: FormsResults, progress: Progress) -> None:
    """Costs without a cache and with all samples decoded say what each form of each sample saves.

    Two runs, since a sample that is not cached is decoded only as far as its crop asks, and one that is cached is
    cropped out of all its pixels.
    """
    files = options.data.files
    decoded_bytes = [3 * count for count in pixels(files)]
    costs: dict[str, list[dict[str, float]]] = {}
    measured: dict[str, float] = {}
    for form, cache_bytes in (("off", 0), (DECODED, sum(decoded_bytes) + 4096 * len(files))):
        outcome = run_job(options, storage, form, cache_bytes, LISTED_EPOCHS, listing=True)
        costs[form] = listing(outcome.status, len(files))
        measured[form] = statistics.median(epoch_seconds(outcome)[1:])
        progress.say(f"storage {storage}, costs of all samples, {form}: {measured[form]:.2f} s an epoch")
    total = [sum(row.values()) for row in costs["off"]]
    cropped = [row["random_s"] for row in costs[DECODED]]
    samples = [
        [Item(ENCODED, path.stat().st_size, off["fetch_s"]), Item(DECODED, size, whole - crop)]
        for path, size, off, whole, crop in zip(files, decoded_bytes, costs["off"], total, cropped, strict=True)
    ]
    for form, seconds in (("off", sum(total)), (DECODED, sum(cropped))):
        results.models.append(ModelRecord(storage, form, seconds / WORKERS, measured[form]))
    for budget in options.budgets:
        choice = choose(samples, options.bytes_of(budget))
        results.optima.append(optimum(storage, budget, options.bytes_of(budget), sum(total), choice))


def optimum(storage: str, budget: int, budget_bytes: int, total_s: float, choice: Choice) -> OptimumRecord:
    return OptimumRecord(
        storage=storage,
        budget_percent=budget,
        budget_bytes=budget_bytes,
        epoch_s=(total_s - choice.saved_s) / WORKERS,
        bound_s=(total_s - choice.bound_s) / WORKERS,
        by_form=choice.by_form,
    )


def listing(status: dict[str, Any], samples: int) -> list[dict[str, float]]:
    """The seconds of each stage, by sample id."""
    (stream,) = status["streams"]
    rows: list[dict[str, Any]] = stream["costs"]["slowest"]
    by_id = {row["id"]: {stage: float(row[stage] or 0) for stage in STAGES} for row in rows}
    if missing := set(range(samples)) - by_id.keys():
        raise ChildFailed(
            f"coprep status --slow {samples} lists no costs of {len(missing)} samples ({min(missing)}, ...)"
        )
    return [by_id[sample] for sample in range(samples)]
