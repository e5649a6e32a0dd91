"""Presents the results: tables on the terminal, pages with tables and charts, and series for other tools."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from tests.benchmarks.loaders import machine
from tests.benchmarks.loaders.chart import Line, Words, draw_lines
from tests.benchmarks.loaders.measure import BATCH_SIZE, MIB, Dataset
from tests.benchmarks.loaders.records import Bar, Spread
from tests.benchmarks.loaders.report import number
from tests.benchmarks.loaders.tables import Section, Table, TablesPage, bars_table, markdown, tables_of
from tests.benchmarks.slow_samples.balance import BalanceResults, Series
from tests.benchmarks.slow_samples.bars import (
    against_fixed,
    balance_bars,
    by_itself_bars,
    cost_bars,
    forms_bars,
    order_bars,
    pair_bars,
    spread_of,
)
from tests.benchmarks.slow_samples.cost import BytesRecord, CostResults
from tests.benchmarks.slow_samples.delivery import LAST_BATCHES
from tests.benchmarks.slow_samples.forms import AUTO, DECODED, ENCODED, FormsResults
from tests.benchmarks.slow_samples.order import WORKERS, GapRecord, OrderRecord, OrderResults
from tests.benchmarks.slow_samples.overhead import OverheadRecord
from tests.benchmarks.slow_samples.pairs import PairRecord
from tests.benchmarks.slow_samples.series import PoolSnapshot
from tests.benchmarks.slow_samples.timeline import Part, draw_timeline
from tests.benchmarks.slow_samples.watch import WatchRecord, WatchResults
from tools.demo import screen

OPTIMUM = "optimum"
COLOURS = {AUTO: "#d62728", ENCODED: "#17becf", DECODED: "#2ca02c", OPTIMUM: "#7f7f7f"}


@dataclass(frozen=True)
class Explained:
    """A page of the documentation that explains the tables of some parts."""

    title: str
    parts: str


PAGES = {
    "slow-samples": Explained("Slow samples, measured", "order"),
    "cache-forms": Explained("Forms in the cache, measured", "forms"),
    "costs": Explained("What measuring costs", "cost,watch"),
    "balance": Explained("The balance of threads", "balance"),
}
"""The pages in `docs/results`, by name."""


class HasJson(Protocol):
    """A record of any part."""

    def as_json(self) -> dict[str, Any]: ...


@dataclass
class Results:
    """All measurements of one call. A part that was left out is `None`."""

    data: Dataset
    missing: Sequence[str]
    """Features that this coprep lacks."""
    repeat: int
    quick: bool
    order: OrderResults | None = None
    forms: FormsResults | None = None
    cost: CostResults | None = None
    watch: WatchResults | None = None
    balance: BalanceResults | None = None

    def conditions(self) -> str:
        when = datetime.now(timezone.utc).date()
        parts = [
            f"{when}, {machine.processor()}, {machine.cores()} cores. {len(self.data.files):,} images,"
            f" {self.data.bytes / MIB:,.0f} MiB, in the page cache; batches of {BATCH_SIZE}, shuffled;"
            f" {WORKERS} workers each (balance: one for each core, and as many that wait as it takes);"
            f" medians of {self.repeat} taken in turn (lowest to highest)."
        ]
        if self.forms:
            some = self.forms.data
            parts.append(f"Forms of {len(some.files):,} of these images, {some.bytes / MIB:,.0f} MiB.")
        others = [record.others_cores for record in self.order.records] if self.order else []
        others += [record.others_cores for record in self.forms.records] if self.forms else []
        others += [record.others_cores for record in self.balance.records] if self.balance else []
        if others:
            parts.append(f"Meanwhile others used {min(others):.2f} to {max(others):.2f} cores.")
        if self.missing:
            parts.append(f"Not in this coprep, and left out: {'; '.join(self.missing)}.")
        if self.quick:
            parts.append("QUICK: sizes so small that the numbers mean nothing.")
        return " ".join(parts)

    def pairs(self) -> list[PairRecord]:
        return [*(self.cost.records if self.cost else []), *(self.watch.records if self.watch else [])]

    def bars(self) -> dict[str, list[Bar]]:
        """Returns the bars by the name of the page that explains them."""
        costs = cost_bars(self.cost) if self.cost else []
        costs += by_itself_bars("attribution and metrics", self.watch.by_itself) if self.watch else []
        return {
            "slow-samples": order_bars(self.order) if self.order else [],
            "cache-forms": forms_bars(self.forms) if self.forms else [],
            "costs": costs + pair_bars(self.pairs()),
            "balance": balance_bars(self.balance) if self.balance else [],
        }

    def sections(self) -> dict[str, list[Section]]:
        """Returns the measured tables by the name of the page that explains them."""
        return {
            "slow-samples": order_sections(self.order) if self.order else [],
            "cache-forms": forms_sections(self.forms) if self.forms else [],
            "costs": [
                *(cost_sections(self.cost) if self.cost else []),
                *(watch_sections(self.watch) if self.watch else []),
            ],
            "balance": balance_sections(self.balance) if self.balance else [],
        }

    def as_json(self) -> list[dict[str, Any]]:
        records: list[HasJson] = []
        if self.order:
            records += [*self.order.records, *self.order.digests]
        if self.forms:
            records += [*self.forms.records, *self.forms.optima, *self.forms.models]
        records += self.pairs()
        if self.cost:
            records += [record for record in (self.cost.by_itself, self.cost.bytes) if record]
        records += [self.watch.by_itself] if self.watch and self.watch.by_itself else []
        if self.balance:
            records += self.balance.records
        return [record.as_json() for record in records]


# Order.


def rates_table(records: Sequence[OrderRecord]) -> Table:
    epochs = max(len(record.rates) for record in records)
    header = ["samples/s", "limit", *(f"epoch {epoch}" for epoch in range(1, epochs + 1))]
    header += ["first epoch / limit", "later / limit", "the same by all processors", "cores in use", "first batch s"]
    header.append("not exactly once")
    rows = [
        [
            named(record),
            number(record.limit, 0),
            *(number(rate, 0) for rate in record.rates),
            spread(record.first_rate_to_limit),
            spread(record.later_rate_to_limit),
            f"{middle(record.first_rate_to_whole)}, {middle(record.later_rate_to_whole)}",
            number(record.cores, 2),
            number(record.first_batch_s, 2),
            str(record.astray),
        ]
        for record in records
    ]
    return header, rows


def gaps_table(records: Sequence[OrderRecord]) -> Table:
    header = ["gaps, ms", "first epoch p50", "p99", "max", "p99 / p50", "later p50", "p99", "max", "p99 / p50"]
    return header, [[named(record), *gaps(record.first_gaps), *gaps(record.later_gaps)] for record in records]


def gaps(record: GapRecord) -> list[str]:
    return [number(record.p50, 1), number(record.p99, 1), number(record.max, 1), spread(record.p99_to_p50)]


def places_table(records: Sequence[OrderRecord]) -> Table:
    header = [
        "slow samples",
        "how many",
        "mean rank (0 to 1)",
        f"in the last {LAST_BATCHES} batches, against chance",
        "farthest of any sample from its draw, batches",
        "drawn ahead, batches",
        "overtaken",
    ]
    rows = [
        [
            named(record),
            f"{record.slow} of {record.count:,}",
            number(record.slow_mean_rank, 3),
            number(record.slow_share_at_end, 2),
            number(record.displacement, 0),
            number(record.drawn_ahead, 0),
            number(record.overtaken, 0),
        ]
        for record in records
    ]
    return header, rows


def digests_table(results: OrderResults) -> Table:
    workers = list(dict.fromkeys(count for record in results.digests for count in record.digests))
    header = ["all batches of one seed", *(f"{count} worker{'s' * (count > 1)}" for count in workers)]
    rows = [
        [record.samples, *(" ".join(digest[:8] for digest in record.digests[count]) for count in workers)]
        for record in results.digests
    ]
    return header, rows


def order_sections(results: OrderResults) -> list[Section]:
    found = []
    if records := results.records:
        found.append(Section("Rates", [rates_table(records)]))
        found.append(Section("Gaps between batches", [gaps_table(records)]))
        found.append(Section("Where slow samples come", [places_table(records)]))
    if results.digests:
        found.append(Section("Digests of all batches", [digests_table(results)]))
    return found


def named(record: OrderRecord) -> str:
    return f"{record.samples}, {record.loader}"


# Forms.


def forms_table(results: FormsResults, storage: str) -> Table:
    forms = [form for form in (AUTO, ENCODED, DECODED) if any(record.form == form for record in results.records)]
    found = {(record.budget_percent, record.form): record for record in results.records if record.storage == storage}
    best = {record.budget_percent: record for record in results.optima if record.storage == storage}
    fixed = {one.budget: one for one in against_fixed(results.records, storage)}
    header = [f"seconds of an epoch, storage {storage}", *forms, OPTIMUM, "its bound", "by others"]
    header += [
        "auto / optimum",
        "auto / better fixed",
        "runs differ by",
        "auto, encoded, decoded from the second epoch on",
    ]
    header += ["auto keeps", "the optimum keeps", "it decodes"]
    rows = []
    for budget in dict.fromkeys(budget for budget, _ in found):
        auto, optimum, against = found.get((budget, AUTO)), best.get(budget), fixed.get(budget)
        mine = [found[budget, form] for form in forms if (budget, form) in found]
        rows.append(
            [
                f"{budget} % ({mine[0].budget_bytes / MIB:,.0f} MiB)",
                *(spread(record.epoch_s) for record in mine),
                number(optimum.epoch_s if optimum else None, 2),
                number(optimum.bound_s if optimum else None, 2),
                number(optimum.by_others_s if optimum else None, 2),
                number(auto.epoch_s.median / optimum.epoch_s if auto and optimum else None, 3),
                number(against.ratio if against else None, 3),
                f"{100 * max(map(spread_of, mine)):.1f} %",
                ", ".join(number(record.from_second_s.median, 2) for record in mine),
                kept(auto.by_form) if auto else "",
                kept(optimum.by_form) if optimum else "",
                optimum.decoding if optimum else "",
            ]
        )
    return header, rows


def kept(by_form: dict[str, int]) -> str:
    return ", ".join(f"{count} {form}" for form, count in sorted(by_form.items())) or "nothing"


def accounts_table(results: FormsResults) -> Table:
    """Tabulates the coordinator's own account of its choice."""
    header = ["auto", "used MiB", "lambda, s/MiB", "saves s an epoch, by its account", "to fill s"]
    rows = [
        [
            f"storage {record.storage}, {record.budget_percent} %",
            number(record.used_bytes / MIB, 1),
            "" if record.lambda_s_per_mib is None else f"{record.lambda_s_per_mib:.3g}",
            number(record.saves_s_per_epoch, 2),
            spread(record.fill_s),
        ]
        for record in results.records
        if record.form == AUTO
    ]
    return header, rows


def models_table(results: FormsResults) -> Table:
    header = ["the model behind the optimum", "predicted s", "measured s", "measured / predicted"]
    rows = [
        [
            f"storage {record.storage}, cache {record.form}, decoding {record.decoding}",
            number(record.predicted_s, 2),
            number(record.measured_s, 2),
            number(record.measured_s / record.predicted_s if record.predicted_s else None, 3),
        ]
        for record in results.models
    ]
    return header, rows


def forms_sections(results: FormsResults) -> list[Section]:
    storages = dict.fromkeys(record.storage for record in results.records)
    sections = [
        Section("Seconds of an epoch", [forms_table(results, storage) for storage in storages]),
        Section("What the coordinator says of its choice", [accounts_table(results)]),
        Section("The model behind the optimum", [models_table(results)]),
    ]
    return [section for section in sections if any(rows for _, rows in section.tables)]


def forms_charts(results: FormsResults) -> dict[str, str]:
    """Returns one chart for each storage, by file name."""
    words = Words("", "cache, % of the encoded bytes", lambda budget: f"{budget:g}", lambda seconds: f"{seconds:.3g}")
    found = {}
    for storage in dict.fromkeys(record.storage for record in results.records):
        points: dict[str, list[tuple[float, Spread]]] = {form: [] for form in COLOURS}
        for record in results.records:
            if record.storage == storage:
                points[record.form].append((record.budget_percent, record.epoch_s))
        for best in results.optima:
            if best.storage == storage:
                points[OPTIMUM].append((best.budget_percent, Spread.of([best.epoch_s])))
        lines = [Line(form, COLOURS[form], each, dashed=form == OPTIMUM) for form, each in points.items()]
        title = f"seconds of an epoch, storage {storage.replace('-', ' ')}"
        found[f"forms-{storage}.svg"] = draw_lines(lines, Words(title, words.below, words.tick, words.value))
    return found


# Pairs.


def pairs_table(records: Sequence[PairRecord], memory: BytesRecord | None = None) -> Table:
    """Tabulates the pairs. `memory` is the memory that samples' costs take."""
    what = ", ".join(dict.fromkeys(record.what for record in records))
    header = [what, "samples/s with", "without", "with / without", "CPU with / without", "pairs"]
    rows = [
        [
            record.work,
            number(record.on_per_s, 0),
            number(record.off_per_s, 0),
            spread(record.rate_ratio, 3),
            spread(record.cpu_ratio, 3),
            str(record.pairs),
        ]
        for record in records
    ]
    if memory:
        told = memory.told_per_sample
        text = f"bytes of a sample, of {memory.samples:,}: {memory.per_sample:.1f} more memory (PSS)"
        rows.append([text + ("" if told is None else f", {told:.1f} by its own account"), *[""] * 5])
    return header, rows


PREPARING = ("% of preparing an image", "% of preparing it decoded from the cache")


def overhead_table(record: OverheadRecord) -> Table:
    header = ["costs measured, by itself", *(f"{step.replace('_', ' ')}, ns" for step in record.steps_ns)]
    header += [*PREPARING, "runs"]
    shares = [spread(share) for share in (record.of_images, record.of_decoded)]
    return header, [["a sample", *(number(ns, 0) for ns in record.steps_ns.values()), *shares, str(record.runs)]]


def watch_table(record: WatchRecord) -> Table:
    header = ["attribution and metrics, by themselves", "attribution, ns a sample", "an answer, ms", *PREPARING]
    shares = [spread(share, 3) for share in (record.of_images, record.of_decoded)]
    return header, [["fetched every second", spread(record.attribution_ns, 0), number(record.answer_ms, 2), *shares]]


def cost_sections(results: CostResults) -> list[Section]:
    by_itself = [overhead_table(results.by_itself)] if results.by_itself else []
    return [Section("Costs", [pairs_table(results.records, results.bytes), *by_itself])]


def watch_sections(results: WatchResults) -> list[Section]:
    by_itself = [watch_table(results.by_itself)] if results.by_itself else []
    return [Section("Attribution and metrics", [pairs_table(results.records), *by_itself])]


# Balance.


def balance_table(results: BalanceResults) -> Table:
    header = ["balance", "threads", "samples/s", "MiB/s", "against what is allowed", "s to settle", "astray after that"]
    header.append("s until processors are counted right")
    rows = [
        [
            f"{record.scenario}, {record.number + 1}: {record.world}",
            spread(record.threads, 0),
            spread(record.samples_per_s, 0),
            spread(record.mib_per_s, 1),
            spread(record.of_allowed),
            spread(record.settled_s, 1),
            f"{100 * record.astray:.0f} %",
            spread(record.cpus_s, 1),
        ]
        for record in results.records
    ]
    return header, rows


def balance_sections(results: BalanceResults) -> list[Section]:
    return [Section("Phases", [balance_table(results)])] if results.records else []


def balance_charts(results: BalanceResults) -> dict[str, str]:
    """Returns one chart for each scenario, of its last repetition, by file name."""
    found = {}
    for scenario, runs in results.runs.items():
        last = runs[-1]
        names = (world.name for world in last.scenario.worlds)
        parts = [Part(*each) for each in zip(last.phases, names, last.allowed(), strict=True)]
        found[f"balance-{scenario}.svg"] = draw_timeline(parts, f"threads by stage, and MiB a second: {scenario}")
    return found


def balance_series(results: BalanceResults) -> dict[str, str]:
    """Returns every snapshot of every repetition, one file for each scenario, by file name."""
    return {f"balance-{scenario}.csv": series_csv(runs) for scenario, runs in results.runs.items()}


def series_csv(runs: Sequence[Series]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["repetition", "phase", *(column.name for column in fields(PoolSnapshot))])
    for repetition, run in enumerate(runs, 1):
        for count, phase in enumerate(run.phases, 1):
            rows.writerows([repetition, count, *snapshot.row()] for snapshot in phase.snapshots)
    return text.getvalue()


# All.


def tables(results: Results) -> list[Table]:
    """Returns all tables, with one table of all bars at the end."""
    measured = [table for sections in results.sections().values() for table in tables_of(sections)]
    return [*measured, bars_table([bar for bars in results.bars().values() for bar in bars])]


def pages(results: Results) -> list[TablesPage]:
    """Returns the pages of complete tables. A page whose parts were not measured is left out."""
    bars, conditions = results.bars(), " ".join([results.conditions(), *notes(results)])
    return [
        TablesPage(
            name,
            PAGES[name].title,
            f"make bench-slow ONLY={PAGES[name].parts}",
            conditions,
            [*sections, Section("Bars", [bars_table(bars[name])])],
        )
        for name, sections in results.sections().items()
        if sections
    ]


def spread(values: Spread | None, digits: int = 2) -> str:
    if values is None:
        return ""
    return f"{values.median:.{digits}f} ({values.min:.{digits}f}-{values.max:.{digits}f})"


def middle(values: Spread | None) -> str:
    return number(values.median if values else None, 2)


def notes(results: Results) -> list[str]:
    unswitched = [f"{record.work}, {record.what}" for record in results.pairs() if not record.switched]
    return [
        f"Not switched, on both sides of a pair or on none, so what differs is chance: {each}." for each in unswitched
    ]


def show(results: Results) -> None:
    for header, rows in tables(results):
        print()
        screen.table(header, rows)
    print("\n" + "\n".join([*notes(results), results.conditions()]))


def write(results: Results, folder: Path) -> list[Path]:
    """Writes `report.json`, `report.md`, charts, series, and pages for the documentation. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["# Benchmark of slow samples", results.conditions(), *notes(results)]
    charts = forms_charts(results.forms) if results.forms and results.forms.records else {}
    parts += [f"![seconds of an epoch over the size of the cache]({name})" for name in charts]
    timelines = balance_charts(results.balance) if results.balance else {}
    parts += [f"![threads by stage and samples a second over time]({name})" for name in timelines]
    parts += [markdown(table) for table in tables(results)]
    files = {
        "report.json": json.dumps(results.as_json(), indent=1) + "\n",
        "report.md": "\n\n".join(parts) + "\n",
        **charts,
        **timelines,
        **(balance_series(results.balance) if results.balance else {}),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return [*(folder / name for name in files), *(page.write(folder) for page in pages(results))]
