"""The output for a person: progress while the jobs run, and the tables at the end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PLAIN_EVERY_S = 3.0
"""Seconds between two lines of progress where there is no terminal."""
REDRAW_EVERY_S = 0.2
"""Seconds between two drawings on a terminal."""
BAR = 24
"""Largest width of a bar in columns."""
BESIDE_BAR = 78
"""Columns of a job's line without its bar. A line wider than the terminal could not be redrawn in place."""
FEW = 0.02
"""Share of the work below which the time left cannot be estimated."""


@dataclass
class JobLine:
    """The state of a job, as last reported."""

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
    """Draws the jobs in place on a terminal, and prints a line now and then elsewhere."""

    jobs: list[JobLine]
    live: bool = field(default_factory=lambda: is_live())
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
        done = sum(min(job.epoch / job.epochs, 1) for job in self.jobs) / len(self.jobs)
        rate = f"{samples / max(seconds, 0.1):,.0f}/s"
        return f"  {seconds:5.1f} s  {samples:,} samples delivered, {rate}, {done:.0%} done{left(done, seconds)}"

    def _plain(self) -> str:
        parts = [f"{job.name}: {short_state(job)}" for job in self.jobs]
        return f"{self._total()} ({', '.join(parts)})"


def left(done: float, seconds: float) -> str:
    """Returns the time left, if it can be estimated: `, 12 s left`."""
    return f", {seconds * (1 - done) / done:.0f} s left" if done >= FEW else ""


def counted(made: Iterable[object], total: int, what: str) -> None:
    """Consumes an iterable and shows the count: in place on a terminal, as a line now and then elsewhere."""
    live = is_live()
    began = shown = time.monotonic()
    for number, _ in enumerate(made, 1):
        now = time.monotonic()
        if now - shown >= (REDRAW_EVERY_S if live else PLAIN_EVERY_S):
            shown = now
            line = f"  {number:,} of {total:,} {what}{left(number / total, now - began)}"
            print(f"\r{line}\x1b[K" if live else line, end="" if live else "\n", flush=True)
    if live:
        print("\r\x1b[K", end="", flush=True)


def is_live() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def job_line(job: JobLine) -> str:
    """Formats a job with its bar."""
    width = max(3, min(BAR, shutil.get_terminal_size().columns - BESIDE_BAR))
    filled = round(width * min(job.epoch / job.epochs, 1))
    bar = colour("32", "━" * filled) + colour("2", "─" * (width - filled))
    if job.loss is None:
        return f"  {job.name}, {job.detail:20} {bar} {job.state}"
    return (
        f"  {job.name}, {job.detail:20} {bar} epoch {min(job.epoch, job.epochs):4.1f}/{job.epochs}"
        f"  loss {job.loss:5.2f}  accuracy {job.accuracy:4.0%}  {job.state}"
    )


def short_state(job: JobLine) -> str:
    """Formats a job in few words, for a line that names all jobs."""
    return job.state if job.loss is None else f"epoch {job.epoch:.1f} loss {job.loss:.2f}"


def colour(code: str, text: str) -> str:
    """Colours a text, if the output is a terminal and NO_COLOR is not set."""
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def heading(text: str) -> None:
    print("\n" + colour("1", text), flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table: the first column aligned to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for number, row in enumerate((header, *rows)):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  " + "   ".join(cells)
        print(colour("1", line) if number == 0 else line)
