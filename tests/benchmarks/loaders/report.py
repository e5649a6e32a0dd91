"""Presents the results: tables on the terminal, a page with a chart, and a page for the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from tests.benchmarks.loaders import chart, machine
from tests.benchmarks.loaders.half_cache import HalfCache
from tests.benchmarks.loaders.handover import HandOver
from tests.benchmarks.loaders.measure import (
    BATCH_SIZE,
    MIB,
    PYTHON_WORKERS,
    TENSOR_BATCH_SIZE,
    TORCH_WINDOW,
    TORCH_WORKERS,
    Dataset,
)
from tests.benchmarks.loaders.records import Comparison, Record, Spread, bars, memory_comparisons
from tests.benchmarks.loaders.tables import Section, Table, TablesPage, bars_table, markdown, tables_of
from tools.demo import screen


@dataclass
class Results:
    """All measurements of one call of the benchmark."""

    data: Dataset
    seconds: int
    records: list[Record] = field(default_factory=list)
    half_cache: list[HalfCache] = field(default_factory=list)
    handover: Sequence[HandOver] = ()

    def of(self, samples: str) -> list[Record]:
        return [record for record in self.records if record.samples == samples]

    def conditions(self) -> str:
        when = datetime.now(timezone.utc).date()
        others = [record.others_cores for record in self.records]
        repetitions = max((record.repetitions for record in self.records), default=0)
        return (
            f"{when}, {machine.processor()}, {machine.cores()} cores. {len(self.data.files):,} images,"
            f" {self.data.bytes / MIB:,.0f} MiB, in the page cache; random-resized-crop 224, flip, uint8,"
            f" batches of {BATCH_SIZE}, shuffled."
            f" Windows of {self.seconds} s ({TORCH_WINDOW} times that for PyTorch)"
            f" in the steady state; medians of {repetitions} taken in turn (lowest to highest)."
            f" PyTorch has {TORCH_WORKERS} worker processes a job; for the Python dataset {PYTHON_WORKERS},"
            f" and coprep {PYTHON_WORKERS} for all jobs. First batches over it count from when all is imported and the"
            f" dataset made. Light jobs import no torch: they name the dataset, which only coprep's workers import and"
            f" make, within the time to the first batch. Before loading, the jobs alone are counted, without the"
            f" coordinator. Meanwhile others used {min(others, default=0):.2f} to {max(others, default=0):.2f} cores."
        )


def rates_table(records: Sequence[Record]) -> Table:
    jobs = sorted({record.jobs for record in records})
    setups = list(dict.fromkeys(record.setup for record in records))
    cells = {(record.setup, record.jobs): spread(record) for record in records}
    header = ["images/s, all jobs together", *(f"{count} job{'s' * (count > 1)}" for count in jobs)]
    return header, [[setup.label, *(cells.get((setup, count), "") for count in jobs)] for setup in setups]


def costs_table(records: Sequence[Record]) -> Table:
    header = ["loader", "jobs", "CPU s per 1,000", "PSS MiB", "first batch s", "gap ms p50", "p99", "job CPU us/batch"]
    rows = [
        [
            record.setup.label,
            str(record.jobs),
            f"{record.cpu_s_per_1000:.2f}",
            number(record.pss_mib, 0),
            number(record.first_batch_s, 2),
            number(record.gap_ms_p50, 1),
            number(record.gap_ms_p99, 1),
            number(record.job_cpu_us_per_batch, 0),
        ]
        for record in records
    ]
    return header, rows


def python_table(records: Sequence[Record]) -> Table:
    """Tabulates the Python dataset.

    Each job of coprep begins when the one before it has its first batch. PyTorch's jobs share nothing, so they begin at
    once.
    """
    header = [
        "Python dataset",
        "jobs",
        "s to the first batch",
        "of jobs 2 and on",
        "PSS MiB",
        "before loading",
        "loading adds",
    ]
    rows = [
        [
            f"{record.setup.label}{beginning(record)}",
            str(record.jobs),
            number(record.ready_to_first_s, 2),
            seconds(record.others_to_first_s),
            number(record.pss_mib, 0),
            number(record.pss_ready_mib, 0),
            number(record.loading_mib, 0),
        ]
        for record in records
    ]
    return header, rows


def beginning(record: Record) -> str:
    if record.jobs == 1:
        return ""
    return ", begun one by one" if record.setup.is_coprep else ", begun all at once"


def memory_table(comparisons: Sequence[Comparison]) -> Table:
    header = ["memory (PSS) over the Python dataset, MiB", "jobs", "coprep", "PyTorch", "coprep / PyTorch"]
    rows = [
        [row.what, str(row.jobs), number(row.ours, 0), number(row.theirs, 0), number(row.ratio, 2)]
        for row in comparisons
    ]
    return header, rows


def tensors_table(records: Sequence[Record]) -> Table:
    """Tabulates samples that need no work, so that all of their cost is the loader's."""
    header = [
        f"tensors of (3, 32, 32), batches of {TENSOR_BATCH_SIZE}",
        "samples/s",
        "us a sample",
        "CPU us",
        "PSS MiB",
    ]
    rows = [
        [
            record.setup.label,
            spread(record),
            number(1e6 / record.images_per_s.median, 1),
            number(1e3 * record.cpu_s_per_1000, 1),
            number(record.pss_mib, 0),
        ]
        for record in records
    ]
    return header, rows


def half_cache_table(results: Sequence[HalfCache]) -> Table:
    epochs = range(1, len(results[0].fetched_bytes) + 1)
    header = ["bytes fetched, share of the dataset", *(f"epoch {epoch}" for epoch in epochs)]
    rows = [
        [result.policy, *(f"{fetched / result.dataset_bytes:.4f}" for fetched in result.fetched_bytes)]
        for result in results
    ]
    return header, rows


def handover_table(rows: Sequence[HandOver]) -> Table:
    header = ["hand-over by itself", "touches", "latency us p50", "p99", "CPU us/batch and job"]
    cells = [
        [
            f"{row.consumers} job{'s' * (row.consumers > 1)}",
            row.touch,
            number(row.latency_us_p50, 0),
            number(row.latency_us_p99, 0),
            number(row.cpu_us_per_batch, 0),
        ]
        for row in rows
    ]
    return header, cells


def sections(results: Results) -> list[Section]:
    found = []
    if images := results.of("images"):
        found.append(Section("Rates and costs", [rates_table(images), costs_table(images)]))
    if python := [record for record in results.records if record.setup.is_python]:
        found.append(Section("The start and the memory of the Python dataset", [python_table(python)]))
    if memory := memory_comparisons(results.records):
        found.append(Section("Memory against PyTorch", [memory_table(memory)]))
    if tensors := results.of("tensors"):
        found.append(Section("Tensors", [tensors_table(tensors)]))
    if results.half_cache:
        found.append(Section("Half of the dataset fits into the cache", [half_cache_table(results.half_cache)]))
    if results.handover:
        found.append(Section("The hand-over by itself", [handover_table(results.handover)]))
    return [*found, Section("Bars", [bars_table(bars(results.records, results.handover))])]


def page(results: Results) -> TablesPage:
    return TablesPage("loaders", "Against other loaders", "make bench", results.conditions(), sections(results))


def spread(record: Record) -> str:
    rate = record.images_per_s
    return f"{rate.median:,.0f} ({rate.min:,.0f}-{rate.max:,.0f})"


def seconds(values: Spread | None) -> str:
    return f"{values.median:.2f} ({values.min:.2f}-{values.max:.2f})" if values else ""


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def show(results: Results) -> None:
    for header, rows in tables_of(sections(results)):
        print()
        screen.table(header, rows)
    print(f"\n{results.conditions()}")


def write(results: Results, folder: Path) -> None:
    """Writes `report.json`, `report.md`, `report.svg` and the page for the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps([record.as_json() for record in results.records], indent=1) + "\n")
    parts = ["# Benchmark", results.conditions()]
    if images := results.of("images"):
        (folder / "report.svg").write_text(chart.draw(images, "images per second, all jobs together"))
        parts.append("![images per second over jobs](report.svg)")
    parts += [markdown(table) for table in tables_of(sections(results))]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")
    page(results).write(folder)
