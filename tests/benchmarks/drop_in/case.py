"""The types that all cases share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.benchmarks.drop_in.figures import Figure
from tests.benchmarks.drop_in.plan import Side

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """The folder, the sizes and the turns of one repetition."""

    folder: Path
    """Folder for generated files."""
    quick: bool
    coprep_first: bool = True
    """``True`` if coprep runs before PyTorch. It alternates with the repetitions."""

    def in_turn(self, measure: Callable[[Side], T]) -> dict[Side, T]:
        order: tuple[Side, Side] = ("coprep", "torch") if self.coprep_first else ("torch", "coprep")
        return {side: measure(side) for side in order}


@dataclass(frozen=True)
class Once:
    """One repetition of one case."""

    values: dict[str, float]
    """Measured values by name. A value that could not be measured is left out."""
    others_cores: Sequence[float]
    """Cores that other programs used, one value for each run."""


@dataclass(frozen=True)
class Case:
    """A kind of program, with the figures that are checked."""

    name: str
    about: str
    prepare: Callable[[Setting], None]
    """Generates files. It is called once."""
    once: Callable[[Setting], Once]
    figures: Callable[[Sequence[Once]], list[Figure]]


def column(runs: Sequence[Once], name: str) -> list[float]:
    """Returns this value of each repetition. The list is empty if some repetition lacks it."""
    found = [run.values[name] for run in runs if name in run.values]
    return found if len(found) == len(runs) else []


def known(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def nothing_to_prepare(_setting: Setting) -> None:
    pass


def as_json(case: Case, runs: Sequence[Once]) -> dict[str, Any]:
    return {
        "case": case.name,
        "about": case.about,
        "figures": [figure.as_json() for figure in case.figures(runs)],
        "runs": [run.values for run in runs],
        "others_cores": [list(run.others_cores) for run in runs],
    }
