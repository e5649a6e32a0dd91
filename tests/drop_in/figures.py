"""A figure over the repetitions, and the bar it is held against. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.records import Spread

MET, NOT_MET, NOT_MEASURED, NO_BAR = "met", "NOT MET", "not measured", ""


@dataclass(frozen=True)
class Figure:
    """One figure of one case. Smaller is better, for all that have a bar."""

    case: str
    what: str
    unit: str
    values: Sequence[float]
    """One of each repetition. Empty: it could not be measured."""
    at_most: float | None = None
    """The bar. None: the figure is reported only."""

    @property
    def spread(self) -> Spread | None:
        return Spread.of(self.values) if self.values else None

    @property
    def verdict(self) -> str:
        """Returns whether the median keeps to the bar."""
        if self.spread is None:
            return NOT_MEASURED
        if self.at_most is None:
            return NO_BAR
        return MET if self.spread.median <= self.at_most else NOT_MET

    @property
    def differs_percent(self) -> float | None:
        """Returns the distance of the lowest from the highest run, of the median. None: one run, or a median of 0."""
        spread = self.spread
        if spread is None or len(self.values) < 2 or spread.median == 0:
            return None
        return 100 * (spread.max - spread.min) / abs(spread.median)

    def cells(self) -> list[str]:
        bar = "" if self.at_most is None else f"at most {self.at_most:g} {self.unit}"
        return [f"{self.case}: {self.what}", bar, self._measured(), self._differs(), self.verdict]

    def _measured(self) -> str:
        spread = self.spread
        if spread is None:
            return ""
        median = f"{shown(spread.median)} {self.unit}"
        return median if len(self.values) < 2 else f"{median} ({shown(spread.min)} to {shown(spread.max)})"

    def _differs(self) -> str:
        if len(self.values) < 2:
            return "one run" if self.values else ""
        percent = self.differs_percent
        return "" if percent is None else f"{percent:.0f} %"

    def as_json(self) -> dict[str, Any]:
        spread = self.spread
        return {
            **asdict(self),
            "values": list(self.values),
            "median": spread.median if spread else None,
            "differs_percent": self.differs_percent,
            "verdict": self.verdict,
        }


def shown(value: float) -> str:
    """Returns a number with three digits, or all that stand before the point."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3f}" if size < 1 else f"{value:.2f}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Returns ours over theirs, of runs that were taken in turn. Empty: one side was not measured."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)] if ours and theirs else []


def missed(figures: Sequence[Figure]) -> int:
    return sum(figure.verdict == NOT_MET for figure in figures)
