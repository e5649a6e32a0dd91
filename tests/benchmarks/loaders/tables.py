"""Tables of results, and the pages of the documentation that hold all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.loaders.records import Bar

Table = tuple[list[str], list[list[str]]]
"""A header, and rows of as many cells."""


class Section(NamedTuple):
    """Tables under one heading."""

    heading: str
    tables: Sequence[Table]


@dataclass(frozen=True)
class TablesPage:
    """The complete tables of one benchmark, as a page of `docs/results/tables`."""

    name: str
    """Name of the page in `docs/results` that explains the tables, without its ending. Both pages have this name."""
    title: str
    """Title of the page that explains the tables."""
    command: str
    conditions: str
    sections: Sequence[Section]

    def text(self) -> str:
        parts = [
            f"# {self.title}: complete tables",
            f"`{self.command}` made these tables. [{self.title}](../{self.name}.md) explains them.",
            self.conditions,
        ]
        for heading, tables in self.sections:
            parts += [f"## {heading}", *map(markdown, tables)]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> Path:
        """Writes the page where `docs/results/tables` can be copied from. Returns its path."""
        path = folder / "tables" / f"{self.name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text())
        return path


def tables_of(sections: Sequence[Section]) -> list[Table]:
    return [table for section in sections for table in section.tables]


def bars_table(bars: Sequence[Bar]) -> Table:
    return ["against the bar", "asked", "got", ""], [bar.cells() for bar in bars]


def markdown(table: Table) -> str:
    header, rows = table
    ruler = ["---", *["--:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ruler, *rows))
