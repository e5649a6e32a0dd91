"""Presents the results as tables for people and as JSON for programs. No clock but for the date, no I/O but files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders import machine
from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.loaders.records import Bar
from tests.benchmarks.loaders.tables import Section, Table, TablesPage, bars_table
from tests.benchmarks.storage.cases import Case, Values
from tests.benchmarks.storage.peers.table import PeerResults
from tests.benchmarks.storage.running import COPIES
from tools.demo import screen


@dataclass(frozen=True)
class Results:
    """All repetitions of the chosen cases."""

    photographs: Dataset
    cases: Sequence[Case]
    runs: dict[str, list[Values]]
    """The figures of each repetition, by the name of the case."""
    quick: bool
    peers: PeerResults | None = None

    def conditions(self) -> str:
        files, size = len(self.photographs.files), self.photographs.bytes
        repetitions = max((len(runs) for runs in self.runs.values()), default=0)
        parts = [
            f"{datetime.now(timezone.utc).date()}, {machine.processor()}, {machine.cores()} cores, which server and"
            f" jobs share; {files:,} photographs of {size / max(files, 1) / 1000:.0f} KB,"
            f" under {COPIES * files:,} names in the parts `at-once` and `latency`"
            f"{f'; medians of {repetitions}' if repetitions else ''}.",
        ]
        if self.peers:
            parts.append(self.peers.conditions())
        if self.quick:
            parts.append("QUICK: times so short that the figures mean nothing.")
        return " ".join(parts)

    def medians(self, case: Case) -> Values:
        """Returns the median of each figure that some repetition has."""
        runs = self.runs[case.name]
        names = [name for name, _, _ in case.figures if any(name in run for run in runs)]
        return {name: statistics.median(run[name] for run in runs if name in run) for name in names}

    def table(self, case: Case) -> Table:
        medians, rows = self.medians(case), []
        for name, unit, digits in case.figures:
            if name not in medians:
                continue
            values = [run[name] for run in self.runs[case.name] if name in run]
            spread = [f"{number:,.{digits}f}" for number in (medians[name], min(values), max(values))]
            rows.append([f"{name} ({unit})" if unit else name, *spread])
        return ["figure", "median", "lowest", "highest"], rows

    def bars(self) -> list[Bar]:
        return [bar for case in self.cases for bar in case.bars(self.medians(case))]

    def page(self) -> TablesPage:
        sections = [Section("Bars", [bars_table(self.bars())])]
        sections += [Section(f"{case.name}: {case.about}", [self.table(case)]) for case in self.cases]
        sections += self.peers.sections() if self.peers else []
        return TablesPage("storage", "Remote storage", "make bench-storage", self.conditions(), sections)


def show(results: Results) -> None:
    for case in results.cases:
        print(f"\n{case.name}: {case.about}")
        screen.table(*results.table(case))
    for table in results.peers.tables() if results.peers else []:
        print()
        screen.table(*table)
    print()
    screen.table(*bars_table(results.bars()))
    print(f"\n{results.conditions()}")


def write(results: Results, folder: Path) -> list[Path]:
    """Writes `report.json` and the page for the documentation. Returns the written paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    report: dict[str, Any] = {"conditions": results.conditions(), "runs": results.runs}
    if results.peers:
        report["peers"] = results.peers.as_json()
    path.write_text(json.dumps(report, indent=1) + "\n")
    return [path, results.page().write(folder)]
