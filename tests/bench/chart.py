"""A chart of images per second over the number of jobs, both on logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from tests.bench.measure import Setup
from tests.bench.records import Record

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
Place = tuple[float, float]


class Axes:
    """From jobs and rates to places on the drawing."""

    def __init__(self, jobs: Sequence[int], rates: Sequence[float]) -> None:
        self.jobs = sorted(set(jobs))
        self.low = 10 ** math.floor(math.log10(min(rates)))
        self.high = 10 ** math.ceil(math.log10(max(rates) * 1.01))

    def x(self, jobs: float) -> float:
        span = math.log(self.jobs[-1] / self.jobs[0]) or 1
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(jobs / self.jobs[0]) / span

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(rate / self.low) / math.log(self.high / self.low)

    def rates(self) -> list[float]:
        """1, 2 and 5 of each power of ten."""
        powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def draw(records: Sequence[Record], title: str) -> str:
    axes = Axes([record.jobs for record in records], [record.images_per_s.max for record in records])
    lines = [part for setup in COLOURS if (part := line(setup, records, axes))]
    body = [frame(title), grid(axes), *lines, names(records, axes)]
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, *body, "</svg>"]) + "\n"


def frame(title: str) -> str:
    middle = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="18" font-size="13">{title}</text>'
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">jobs at a time</text>'
    )


def grid(axes: Axes) -> str:
    parts = []
    for rate in axes.rates():
        y = axes.y(rate)
        parts.append(segment((LEFT, y), (WIDTH - RIGHT, y), "#e4e4e4"))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:,.0f}</text>')
    for jobs in axes.jobs:
        parts.append(f'<text x="{axes.x(jobs):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{jobs}</text>')
    return "\n".join(parts)


def line(setup: Setup, records: Sequence[Record], axes: Axes) -> str:
    """The medians joined, a mark for each, and its spread. The limit, measured once, goes across."""
    colour = COLOURS[setup]
    mine = sorted((record for record in records if record.setup == setup), key=lambda record: record.jobs)
    parts = []
    if setup.loader == "limit" and mine:
        y = axes.y(mine[0].images_per_s.median)
        parts.append(segment((LEFT, y), (WIDTH - RIGHT, y), colour, 'stroke-dasharray="5 4"'))
    places = [(axes.x(record.jobs), axes.y(record.images_per_s.median)) for record in mine]
    parts += [segment(one, next_one, colour, 'stroke-width="2"') for one, next_one in pairwise(places)]
    for (x, y), record in zip(places, mine, strict=True):
        low, high = axes.y(record.images_per_s.min), axes.y(record.images_per_s.max)
        parts.append(segment((x, low), (x, high), colour))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    return "\n".join(parts)


def segment(one: Place, other: Place, colour: str, style: str = "") -> str:
    (x1, y1), (x2, y2) = one, other
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {style}/>'


def names(records: Sequence[Record], axes: Axes) -> str:
    """Beside the last point of each line, moved apart where they would overlap."""
    last = {record.setup: record for record in sorted(records, key=lambda record: record.jobs)}
    parts = []
    free = float("-inf")
    for setup, record in sorted(last.items(), key=lambda item: -item[1].images_per_s.median):
        free = max(axes.y(record.images_per_s.median) + 4, free + LABEL_HEIGHT)
        text = f"{setup.label}: {record.images_per_s.median:,.0f}"
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{free:.1f}" fill="{COLOURS[setup]}">{text}</text>')
    return "\n".join(parts)
