"""Presents the results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.benchmarks.drop_in.case import Case, Once, as_json
from tests.benchmarks.drop_in.figures import missed
from tests.benchmarks.drop_in.plan import WORKERS
from tests.benchmarks.loaders import machine
from tests.benchmarks.loaders.tables import Section, Table, TablesPage, markdown
from tools.demo import screen

HEADER = ["figure", "bar", "measured", "runs differ by", ""]


@dataclass(frozen=True)
class Results:
    """All measurements of one call."""

    runs: dict[str, list[Once]]
    """The runs by the name of the case."""
    cases: Sequence[Case]
    quick: bool

    def conditions(self) -> str:
        others = [cores for runs in self.runs.values() for run in runs for cores in run.others_cores]
        repetitions = max((len(runs) for runs in self.runs.values()), default=0)
        parts = [
            f"{datetime.now(timezone.utc).date()}, {machine.processor()}, {machine.cores()} cores,"
            f" PyTorch {version_of('torch')}; {WORKERS} workers each; medians of {repetitions} taken in turn (lowest to"
            f" highest), ratios of runs side by side.",
            f"Meanwhile others used {min(others, default=0):.2f} to {max(others, default=0):.2f} cores.",
        ]
        if self.quick:
            parts.append("QUICK: sizes so small that the figures mean nothing.")
        return " ".join(parts)

    def table(self) -> Table:
        figures = [figure for case in self.cases for figure in case.figures(self.runs[case.name])]
        return HEADER, [figure.cells() for figure in figures]

    def page(self) -> TablesPage:
        sections = [Section("Figures and bars", [self.table()])]
        return TablesPage("drop-in", "Drop-in replacement", "make drop-in", self.conditions(), sections)

    def missed(self) -> int:
        return sum(missed(case.figures(self.runs[case.name])) for case in self.cases)


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not there"


def show(results: Results) -> None:
    print()
    screen.table(*results.table())
    print(f"\n{results.conditions()}\nbars that are not met: {results.missed()}")


def write(results: Results, folder: Path) -> list[Path]:
    """Writes `report.json`, `report.md` and the page for the documentation. Returns the written paths."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [as_json(case, results.runs[case.name]) for case in results.cases]
    page = ["# Drop-in cost", results.conditions(), markdown(results.table())]
    page.append("\n".join(f"- **{case.name}**: {case.about}." for case in results.cases))
    texts = {
        "report.json": json.dumps({"conditions": results.conditions(), "cases": records}, indent=1) + "\n",
        "report.md": "\n\n".join(page) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [*(folder / name for name in texts), results.page().write(folder)]
