"""Draws a chart of a pool over time as SVG: its threads by stage, and below it the rate, with the turns marked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from tests.benchmarks.loaders.chart import DASHES, Point, segment
from tests.benchmarks.loaders.measure import MIB
from tests.benchmarks.slow_samples.series import WINDOW_S, Phase, PoolSnapshot, windows

WIDTH = 790
LEFT, RIGHT = 70, 150
TOP, HEIGHT, GAP, BELOW = 52, 150, 44, 46
TICKS = 4
STEPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
"""Upper ends of an axis, in units of a power of ten."""
TIME_STEPS_S = (1, 2, 5, 10, 20, 30, 60)
FETCHING, PREPARING, THREADS, RATE, ALLOWED = "#9ecae1", "#fdae6b", "#3b3b3b", "#d62728", "#7f7f7f"


@dataclass(frozen=True)
class Part:
    """A phase, with its name."""

    phase: Phase
    name: str
    allowed: float | None
    """Bytes per second that could be reached, if known."""

    @property
    def rates(self) -> list[tuple[float, float]]:
        """Returns MiB per second, each at the middle of its window, which lies within the phase."""
        return [(at + WINDOW_S / 2, value / MIB) for at, value in windows(self.phase.snapshots)]

    @property
    def limit(self) -> float | None:
        """Returns the allowed MiB per second."""
        return None if self.allowed is None else self.allowed / MIB


@dataclass(frozen=True)
class Panel:
    """Maps seconds and values to points on the drawing. Values start at zero."""

    top: float
    until: float
    high: float

    @property
    def bottom(self) -> float:
        return self.top + HEIGHT

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.until

    def point(self, at: float, value: float) -> Point:
        return self.x(at), self.bottom - HEIGHT * value / self.high


def draw_timeline(parts: Sequence[Part], title: str) -> str:
    snapshots = [snapshot for part in parts for snapshot in part.phase.snapshots]
    until = snapshots[-1].at
    most = max(max(snapshot.fetching + snapshot.preparing, snapshot.threads) for snapshot in snapshots)
    highest = max(value for part in parts for value in [part.limit or 0.0, *(each for _, each in part.rates)])
    above = Panel(TOP, until, rounded_up(most))
    below = Panel(TOP + HEIGHT + GAP, until, rounded_up(highest))
    height = below.bottom + BELOW
    body = [
        f'<rect width="{WIDTH}" height="{height:g}" fill="white"/>',
        text((LEFT, 18), title, 'font-size="13"'),
        *grid(above),
        *areas(snapshots, above),
        *grid(below),
        *rate_lines(parts, below),
        *turns(parts, above, below),
        *times(below),
        *legend(above, [("preparing", PREPARING), ("fetching", FETCHING), ("threads it may have", THREADS)]),
        *legend(below, [("MiB/s", RATE), ("what is allowed", ALLOWED)]),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', *body, "</svg>"]) + "\n"


def areas(snapshots: Sequence[PoolSnapshot], panel: Panel) -> list[str]:
    """Draws the preparing threads, stacked on them the fetching threads, and the number of threads as a line."""
    times = [snapshot.at for snapshot in snapshots]
    nothing, preparing = [0.0] * len(snapshots), [float(snapshot.preparing) for snapshot in snapshots]
    both = [float(snapshot.preparing + snapshot.fetching) for snapshot in snapshots]
    found = []
    for low, high, colour in ((nothing, preparing, PREPARING), (preparing, both, FETCHING)):
        edge = chain(zip(times, high, strict=True), reversed(list(zip(times, low, strict=True))))
        found.append(f'<polygon points="{points(edge, panel)}" fill="{colour}"/>')
    steps = [(at, snapshot.threads) for snapshot, after in pairwise(snapshots) for at in (snapshot.at, after.at)]
    return [*found, polyline(points(steps, panel), THREADS)]


def rate_lines(parts: Sequence[Part], panel: Panel) -> list[str]:
    found = []
    ends = [*(part.phase.turn for part in parts[1:]), panel.until]
    for part, end in zip(parts, ends, strict=True):
        found.append(polyline(points(part.rates, panel), RATE))
        if part.limit is not None:
            line = panel.point(part.phase.turn, part.limit), panel.point(end, part.limit)
            found.append(segment(*line, ALLOWED, DASHES))
    return found


def turns(parts: Sequence[Part], above: Panel, below: Panel) -> list[str]:
    """Draws a line through both panels where each part begins, with its name."""
    found = []
    for part in parts:
        x = above.x(part.phase.turn)
        found.append(segment((x, above.top - 6), (x, below.bottom), "#b0b0b0"))
        found.append(text((x + 4, above.top - 10), part.name))
    return found


def grid(panel: Panel) -> list[str]:
    found = []
    step = panel.high / TICKS
    for value in (number * step for number in range(TICKS + 1)):
        (left, y), (right, _) = panel.point(0, value), panel.point(panel.until, value)
        found.append(segment((left, y), (right, y), "#e4e4e4"))
        found.append(text((LEFT - 8, y + 4), f"{value:,g}", 'text-anchor="end"'))
    return found


def times(panel: Panel) -> list[str]:
    step = next((step for step in TIME_STEPS_S if panel.until / step <= 3 * TICKS), TIME_STEPS_S[-1])
    ticks = range(0, int(panel.until) + 1, step)
    found = [text((panel.x(at), panel.bottom + 18), str(at), 'text-anchor="middle"') for at in ticks]
    return [*found, text((panel.x(panel.until / 2), panel.bottom + 36), "seconds", 'text-anchor="middle"')]


def legend(panel: Panel, entries: Sequence[tuple[str, str]]) -> list[str]:
    found = []
    for number, (name, colour) in enumerate(entries):
        y = panel.top + 10 + 18 * number
        found.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{y - 9:g}" width="10" height="10" fill="{colour}"/>')
        found.append(text((WIDTH - RIGHT + 28, y), name))
    return found


def rounded_up(value: float) -> float:
    """Rounds up to a number that divides into ticks without fractions, where it is large enough for that."""
    power: float = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return max(next(step for step in STEPS if step * power >= value) * power, float(TICKS))


def points(values: Iterable[Point], panel: Panel) -> str:
    points = (panel.point(at, value) for at, value in values)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def polyline(points: str, colour: str) -> str:
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def text(point: Point, words: str, style: str = "") -> str:
    x, y = point
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'
