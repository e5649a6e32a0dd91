"""Draws charts as SVG with two logarithmic axes, such as images per second over the number of jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.benchmarks.loaders.measure import Setup
from tests.benchmarks.loaders.records import Record, Spread

WIDTH, HEIGHT = 790, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 240, 30, 50
COLOURS = {
    Setup("coprep", "off"): "#1f77b4",
    Setup("coprep", "encoded"): "#17becf",
    Setup("coprep", "decoded"): "#2ca02c",
    Setup("torch-pil"): "#d62728",
    Setup("torch-io"): "#ff7f0e",
    Setup("coprep-python"): "#9467bd",
    Setup("coprep-python", light=True): "#e377c2",
    Setup("torch-python"): "#8c564b",
    Setup("limit"): "#7f7f7f",
}
LABEL_HEIGHT = 15
DASHES = 'stroke-dasharray="5 4"'
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve of a chart: its label, its colour, and its values over x."""

    label: str
    colour: str
    points: Sequence[tuple[float, Spread]]
    across: bool = False
    """``True`` if the value was measured once and holds for all x, so that it is drawn across the chart."""
    dashed: bool = False


@dataclass(frozen=True)
class Words:
    """The texts on a chart."""

    title: str
    below: str
    tick: Callable[[float], str]
    """Formats a value of x."""
    value: Callable[[float], str]


def whole(value: float) -> str:
    return f"{value:,.0f}"


class Axes:
    """Maps x and values to points on the drawing."""

    def __init__(self, xs: Sequence[float], values: Sequence[float]) -> None:
        self.xs = sorted(set(xs))
        self.low = 10.0 ** math.floor(math.log10(min(values)))
        self.high = 10.0 ** math.ceil(math.log10(max(values) * 1.01))

    def x(self, x: float) -> float:
        span = math.log(self.xs[-1] / self.xs[0]) or 1
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(x / self.xs[0]) / span

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Returns 1, 2 and 5 of each power of ten."""
        powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def draw(records: Sequence[Record], title: str) -> str:
    """Draws images per second over the number of jobs."""
    lines = []
    for setup, colour in COLOURS.items():
        mine = sorted((record for record in records if record.setup == setup), key=lambda record: record.jobs)
        points = [(record.jobs, record.images_per_s) for record in mine]
        lines.append(Line(setup.label, colour, points, across=setup.loader == "limit"))
    return draw_lines(lines, Words(title, "jobs at a time", whole, whole))


def draw_lines(lines: Sequence[Line], words: Words) -> str:
    """Draws the lines that have points."""
    lines = [line for line in lines if line.points]
    points = [point for line in lines for point in line.points]
    axes = Axes([x for x, _ in points], [value for _, spread in points for value in (spread.min, spread.max)])
    body = [frame(words), grid(axes, words), *(drawn(line, axes) for line in lines), names(lines, axes, words)]
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, *body, "</svg>"]) + "\n"


def frame(words: Words) -> str:
    middle = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="18" font-size="13">{words.title}</text>'
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{words.below}</text>'
    )


def grid(axes: Axes, words: Words) -> str:
    parts = []
    for value in axes.ticks():
        y = axes.y(value)
        parts.append(segment((LEFT, y), (WIDTH - RIGHT, y), "#e4e4e4"))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{words.value(value)}</text>')
    for x in axes.xs:
        position = f'x="{axes.x(x):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text {position} text-anchor="middle">{words.tick(x)}</text>')
    return "\n".join(parts)


def drawn(line: Line, axes: Axes) -> str:
    """Draws the medians as a joined line, with a mark and the spread for each."""
    parts = []
    if line.across:
        y = axes.y(line.points[0][1].median)
        parts.append(segment((LEFT, y), (WIDTH - RIGHT, y), line.colour, DASHES))
    style = f'stroke-width="2" {DASHES}' if line.dashed else 'stroke-width="2"'
    points = [(axes.x(x), axes.y(spread.median)) for x, spread in line.points]
    parts += [segment(one, next_one, line.colour, style) for one, next_one in pairwise(points)]
    for (x, y), (_, spread) in zip(points, line.points, strict=True):
        parts.append(segment((x, axes.y(spread.min)), (x, axes.y(spread.max)), line.colour))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{line.colour}"/>')
    return "\n".join(parts)


def segment(one: Point, other: Point, colour: str, style: str = "") -> str:
    (x1, y1), (x2, y2) = one, other
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {style}/>'


def names(lines: Sequence[Line], axes: Axes, words: Words) -> str:
    """Writes each line's name beside its last point, and moves names apart where they would overlap."""
    parts = []
    free = float("-inf")
    for line in sorted(lines, key=lambda line: -line.points[-1][1].median):
        last = line.points[-1][1].median
        free = max(axes.y(last) + 4, free + LABEL_HEIGHT)
        text = f"{line.label}: {words.value(last)}"
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{free:.1f}" fill="{line.colour}">{text}</text>')
    return "\n".join(parts)
