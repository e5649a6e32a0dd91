"""The work of every benchmark job on its batches, whichever loader they come from.

A job takes batch after batch, reads one byte of each image, and does nothing else. It tells the parent when its first
batch came and when it is warm. The parent answers with a window of time, and the job reports the batches that arrived
within it. Then it keeps taking batches until it is ended, so that every job runs beside the same number of others.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Window:
    """Arrivals from `start` to `end`, in seconds of the machine's monotonic clock."""

    start: float
    end: float
    images: int = 0
    gaps_ms: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    reported: bool = False

    def note(self, before: float, now: float, images: int) -> None:
        if self.start <= now < self.end:
            self.images += images
            self.gaps_ms.append(1000 * (now - before))
            self.cpu_s.append(time.process_time())
        elif now >= self.end and not self.reported:
            self.reported = True
            report(event="window", images=self.images, gaps_ms=self.gaps_ms, cpu_us_per_batch=self.cpu_us_per_batch())

    def cpu_us_per_batch(self) -> float | None:
        """Returns the CPU time of this process, with all its threads, between two arrivals."""
        batches = len(self.cpu_s) - 1
        return 1e6 * (self.cpu_s[-1] - self.cpu_s[0]) / batches if batches > 0 else None


def consume(loader: Iterable[tuple[Any, Any]], started: float, warm_after: int) -> None:
    """Takes batches for good. The steady state is reached after `warm_after` images."""
    window: Window | None = None
    images_so_far = 0
    before = started
    for images, _labels in forever(loader):
        touch(images)
        now = time.monotonic()
        if images_so_far == 0:
            report(event="first", seconds=now - started)
        # Only the batch that crosses the bound meets this, so the message comes once.
        if images_so_far < warm_after <= images_so_far + len(images):
            report(event="warm")
        images_so_far += len(images)
        window = window or told_window()
        if window:
            window.note(before, now, len(images))
        before = now


def forever(loader: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    while True:
        yield from loader


def touch(samples: Any) -> int:
    """Reads the first element of each sample."""
    return int(samples[(slice(None), *[0] * (samples.ndim - 1))].sum())


def told_window() -> Window | None:
    """Returns the window that the parent sent, or `None` if it has not come yet."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    start, end = map(float, sys.stdin.readline().split())
    return Window(start, end)


def report(**message: Any) -> None:
    print(json.dumps(message), flush=True)
