"""A figure over the repetitions, and the target for it. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.loaders.records import Spread

MET, NOT_MET, NOT_MEASURED, NO_BAR = "met", "NOT MET", "not measured", ""


@dataclass(frozen=True)
class Figure:
    """A figure of one case. Smaller is better for all figures with a target."""

    case: str
    what: str
    unit: str
    values: Sequence[float]
    """One value for each repetition. The list is empty if the figure could not be measured."""
    at_most: float | None = None
    """The largest value that meets the target, or `None` if the figure is only reported."""

    @property
    def spread(self) -> Spread | None:
        return Spread.of(self.values) if self.values else None

    @property
    def verdict(self) -> str:
        """Returns whether the median meets the target."""
        if self.spread is None:
            return NOT_MEASURED
        if self.at_most is None:
            return NO_BAR
        return MET if self.spread.median <= self.at_most else NOT_MET

    @property
    def differs_percent(self) -> float | None:
        """Returns the range of the runs in per cent of the median, or `None` for one run or a median of 0."""
        spread = self.spread
        if spread is None or len(self.values) < 2 or spread.median == 0:
            return None
        return 100 * (spread.max - spread.min) / abs(spread.median)

    def cells(self) -> list[str]:
        bar = "" if self.at_most is None else f"at most {self.at_most:.4g} {self.unit}"
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
    """Formats a number with three significant digits, or with all digits before the point."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3f}" if size < 1 else f"{value:.2f}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Returns our values over theirs, from runs that took turns. The list is empty if one side was not measured."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)] if ours and theirs else []


def missed(figures: Sequence[Figure]) -> int:
    return sum(figure.verdict == NOT_MET for figure in figures)
