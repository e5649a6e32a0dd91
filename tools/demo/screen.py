"""What a person sees: progress while the jobs run, and the tables at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

PLAIN_EVERY_S = 3.0
REDRAW_EVERY_S = 0.2
BAR = 24


@dataclass
class JobLine:
    """The state of one job, as last heard."""

    name: str
    detail: str
    epochs: int
    state: str
    epoch: float = 0.0
    loss: float | None = None
    accuracy: float = 0.0
    samples: int = 0


@dataclass
class Progress:
    """Draws the jobs in place on a terminal, and as a line now and then elsewhere."""

    jobs: list[JobLine]
    live: bool = field(default_factory=lambda: sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
    began: float = field(default_factory=time.monotonic)
    _drawn: float = 0.0
    _lines: int = 0

    def show(self, now: bool = False) -> None:
        due = REDRAW_EVERY_S if self.live else PLAIN_EVERY_S
        if not now and time.monotonic() - self._drawn < due:
            return
        self._drawn = time.monotonic()
        if self.live:
            self._redraw([*map(job_line, self.jobs), self._total()])
        else:
            print(self._plain(), flush=True)

    def _redraw(self, lines: Sequence[str]) -> None:
        up = f"\x1b[{self._lines}A" if self._lines else ""
        sys.stdout.write(up + "".join(f"\r{line}\x1b[K\n" for line in lines))
        sys.stdout.flush()
        self._lines = len(lines)

    def _total(self) -> str:
        seconds = time.monotonic() - self.began
        samples = sum(job.samples for job in self.jobs)
        return f"  {seconds:5.1f} s  {samples:,} samples delivered, {samples / max(seconds, 0.1):,.0f}/s"

    def _plain(self) -> str:
        parts = [f"{job.name}: {short_state(job)}" for job in self.jobs]
        return f"{self._total()} ({', '.join(parts)})"


def job_line(job: JobLine) -> str:
    filled = round(BAR * min(job.epoch / job.epochs, 1))
    bar = colour("32", "━" * filled) + colour("2", "─" * (BAR - filled))
    if job.loss is None:
        return f"  {job.name}, {job.detail:20} {bar} {job.state}"
    return (
        f"  {job.name}, {job.detail:20} {bar} epoch {min(job.epoch, job.epochs):4.1f}/{job.epochs}"
        f"  loss {job.loss:5.2f}  accuracy {job.accuracy:4.0%}  {job.state}"
    )


def short_state(job: JobLine) -> str:
    return job.state if job.loss is None else f"epoch {job.epoch:.1f} loss {job.loss:.2f}"


def colour(code: str, text: str) -> str:
    plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def heading(text: str) -> None:
    print("\n" + colour("1", text), flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for number, row in enumerate((header, *rows)):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  " + "   ".join(cells)
        print(colour("1", line) if number == 0 else line)
