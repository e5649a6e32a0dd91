"""The targets for the measurements, and the measured values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.benchmarks.loaders.records import Bar, Spread
from tests.benchmarks.slow_samples.balance import PROCESSORS, BalanceResults, PhaseRecord
from tests.benchmarks.slow_samples.cost import CostResults
from tests.benchmarks.slow_samples.forms import AUTO, DECODED, ENCODED, FormsRecord, FormsResults
from tests.benchmarks.slow_samples.order import DETERMINISTIC, RELAXED, OrderRecord, OrderResults
from tests.benchmarks.slow_samples.overhead import OverheadRecord
from tests.benchmarks.slow_samples.pairs import PairRecord
from tests.benchmarks.slow_samples.series import NEAR
from tests.benchmarks.slow_samples.watch import WatchRecord

RATE = 0.95
GAP = 2.5
NEAR_OPTIMUM = 1.05
COST_PERCENT = 1.0
COST_BYTES = 32
FOLLOWS_S = 5.0
REACHES = 1 - NEAR
"""Share of the allowed rate that a pool must reach. Without this target, a pool that soon settles at too low a rate
would look as good as one that follows."""


def order_bars(results: OrderResults) -> list[Bar]:
    by_case = {(record.samples, record.loader): record for record in results.records}
    found = []
    for samples in results.samples:
        found += deterministic_bars(samples, by_case.get((samples, DETERMINISTIC)))
        found += relaxed_bars(samples, by_case.get((samples, RELAXED)))
    for record in results.digests:
        what = f"{record.samples}, deterministic: different sequences of {', '.join(map(str, record.digests))} workers"
        found.append(Bar(what, 2, False, record.different, "sequences"))
    return found


def deterministic_bars(samples: str, record: OrderRecord | None) -> list[Bar]:
    return [
        *later_bars(f"{samples}, deterministic, from the second epoch", record),
        exactly_once(f"{samples}, deterministic", record),
    ]


def relaxed_bars(samples: str, record: OrderRecord | None) -> list[Bar]:
    """Returns the targets of the first epoch and of the later ones apart, so that neither hides the other."""
    return [
        *first_bars(f"{samples}, relaxed, first epoch", record),
        *later_bars(f"{samples}, relaxed, later epochs", record),
        exactly_once(f"{samples}, relaxed", record),
    ]


def first_bars(what: str, record: OrderRecord | None) -> list[Bar]:
    if record is None:
        return epoch_bars(what, None, None)
    return epoch_bars(what, record.first_rate_to_limit, record.first_gaps.p99_to_p50)


def later_bars(what: str, record: OrderRecord | None) -> list[Bar]:
    if record is None:
        return epoch_bars(what, None, None)
    return epoch_bars(what, record.later_rate_to_limit, record.later_gaps.p99_to_p50)


def epoch_bars(what: str, rate: Spread | None, gaps: Spread | None) -> list[Bar]:
    return [
        Bar(
            f"{what}: rate against the limit of the processors that others left",
            RATE,
            True,
            rate.median if rate else None,
        ),
        Bar(f"{what}: p99 gap against the median", GAP, False, gaps.median if gaps else None),
    ]


def exactly_once(what: str, record: OrderRecord | None) -> Bar:
    return Bar(f"{what}: samples not given exactly once", 1, False, record.astray if record else None, "samples")


class Against(NamedTuple):
    """One budget: seconds with `auto` over those of the better fixed form, and the spread by chance between runs."""

    budget: int
    ratio: float
    spread: float


def against_fixed(records: Sequence[FormsRecord], storage: str) -> list[Against]:
    found = []
    mine = {(record.budget_percent, record.form): record for record in records if record.storage == storage}
    for budget in dict.fromkeys(budget for budget, _ in mine):
        auto, fixed = mine.get((budget, AUTO)), [mine.get((budget, form)) for form in (ENCODED, DECODED)]
        known = [record for record in fixed if record]
        if auto and len(known) == len(fixed):
            best = min(record.epoch_s.median for record in known)
            found.append(Against(budget, auto.epoch_s.median / best, max(map(spread_of, [auto, *known]))))
    return found


def spread_of(record: FormsRecord) -> float:
    """Returns the range from the fastest to the slowest repetition, as a share of the median."""
    return (record.epoch_s.max - record.epoch_s.min) / record.epoch_s.median


def forms_bars(results: FormsResults) -> list[Bar]:
    found = []
    best = {(record.storage, record.budget_percent): record.epoch_s for record in results.optima}
    for storage in results.storages:
        ratios = [
            (record.epoch_s.median / best[storage, record.budget_percent], record.budget_percent)
            for record in results.records
            if record.form == AUTO and record.storage == storage and (storage, record.budget_percent) in best
        ]
        ratio, budget = max(ratios, default=(None, None))
        what = f"storage {storage}: an epoch with auto against the optimum, the worst budget"
        found.append(Bar(what + (f" ({budget} %)" if ratios else ""), NEAR_OPTIMUM, False, ratio))
        # The spread of the runs is allowed, so the worst budget is the one that exceeds it most.
        worst = max(against_fixed(results.records, storage), key=lambda one: one.ratio - one.spread, default=None)
        what = f"storage {storage}: auto against the better of encoded and decoded, the worst budget"
        if worst is None:
            found.append(Bar(what, 1, False, None))
            continue
        what += f" ({worst.budget} %; runs differ by {100 * worst.spread:.1f} %, which is allowed)"
        found.append(Bar(what, 1 + round(worst.spread, 3), False, worst.ratio))
    return found


def cost_bars(results: CostResults) -> list[Bar]:
    found = by_itself_bars("measuring costs", results.by_itself)
    size = results.bytes.per_sample if results.bytes else None
    return [*found, Bar("memory for the costs of a sample", COST_BYTES, False, size, "bytes")]


def by_itself_bars(what: str, record: OverheadRecord | WatchRecord | None) -> list[Bar]:
    shares = (record.of_images, record.of_decoded) if record else (None, None)
    return [
        Bar(f"{work}: {what}, by itself, of the preparation", COST_PERCENT, False, median_of(share), "%")
        for work, share in zip(("images, cache off", "images, cache decoded"), shares, strict=True)
    ]


def pair_bars(records: Sequence[PairRecord]) -> list[Bar]:
    found = []
    for record in records:
        slower = record.slower_percent if record.switched else None
        more = record.more_cpu_percent if record.switched else None
        found.append(Bar(f"{record.work}: slower by {record.what}", COST_PERCENT, False, slower, "%"))
        found.append(Bar(f"{record.work}: more CPU by {record.what}", COST_PERCENT, False, more, "%"))
    return found


TURNS = {1: "it turns poor", 2: "it is as before"}
"""Description of each turn, by the number of the phase that begins."""


def balance_bars(results: BalanceResults) -> list[Bar]:
    by_case = {(record.scenario, record.number): record for record in results.records}
    found = []
    for scenario in results.scenarios:
        for number, turn in TURNS.items():
            record = by_case.get((scenario, number))
            found += turn_bars(f"balance, {scenario}, {turn}", record)
            if scenario == PROCESSORS:
                what = f"balance, {scenario}, {turn}: until the pool counts on as many as there are"
                found.append(Bar(what, FOLLOWS_S, False, median_of(record.cpus_s if record else None), "s"))
    return found


def turn_bars(what: str, record: PhaseRecord | None) -> list[Bar]:
    settled, reached = (record.settled_s, record.of_allowed) if record else (None, None)
    return [
        Bar(f"{what}: until the rate stays near what it reaches", FOLLOWS_S, False, median_of(settled), "s"),
        Bar(f"{what}: that rate against what is allowed", round(REACHES, 2), True, median_of(reached)),
    ]


def median_of(values: Spread | None) -> float | None:
    return values.median if values else None
