"""Presents the results as tables for people and as JSON for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from tests.benchmarks.loaders import machine
from tests.benchmarks.loaders.tables import Section, Table, TablesPage
from tests.benchmarks.native_data.kinds import KINDS
from tests.benchmarks.native_data.running import Plan, Run
from tools.demo import screen


@dataclass(frozen=True)
class Results:
    """All repetitions of the chosen measurements."""

    runs: Mapping[Plan, Sequence[Run]]
    versions: Mapping[str, str]
    seconds: float
    quick: bool

    def conditions(self) -> str:
        repetitions = max(map(len, self.runs.values()))
        versions = ", ".join(f"{package} {version}" for package, version in self.versions.items())
        parts = [
            f"{datetime.now(timezone.utc).date()}, {machine.processor()}, {machine.cores()} cores; windows of"
            f" {self.seconds:g} s, medians of {repetitions}. {versions}."
        ]
        if self.quick:
            parts.append("QUICK: times so short that the figures mean nothing.")
        return " ".join(parts)

    def table(self, kind: str) -> Table:
        rows = []
        for plan, runs in self.runs.items():
            if plan.kind == kind:
                rates = [run.samples_per_s for run in runs]
                numbers = [statistics.median(rates), min(rates), max(rates)]
                cells = [f"{number:,.0f}" for number in numbers]
                cells += [
                    f"{statistics.median(run.cpu_s_per_1000 for run in runs):.3f}",
                    f"{statistics.median(run.first_batch_s for run in runs):.2f}",
                    f"{max(run.others_cores for run in runs):.2f}",
                ]
                rows.append([plan.loader, str(plan.jobs), *cells])
        samples = KINDS[kind].samples
        return [
            "loader",
            "jobs",
            f"{samples}/s",
            "lowest",
            "highest",
            "CPU s/1,000",
            "first batch s",
            "others, cores",
        ], rows

    def page(self) -> TablesPage:
        kinds = dict.fromkeys(plan.kind for plan in self.runs)
        sections = [Section(f"{kind}: {KINDS[kind].about}", [self.table(kind)]) for kind in kinds]
        return TablesPage(
            "native-data", "Tokens, arrays, audio, parquet", "make bench-data", self.conditions(), sections
        )


def show(results: Results) -> None:
    for section in results.page().sections:
        print(f"\n{section.heading}")
        for table in section.tables:
            screen.table(*table)
    print(f"\n{results.conditions()}")


def write(results: Results, folder: Path) -> list[Path]:
    """Writes `report.json` and the page for the documentation. Returns the written paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    runs = [{**asdict(plan), **asdict(run)} for plan, runs in results.runs.items() for run in runs]
    path.write_text(json.dumps({"conditions": results.conditions(), "runs": runs}, indent=1) + "\n")
    return [path, results.page().write(folder)]
