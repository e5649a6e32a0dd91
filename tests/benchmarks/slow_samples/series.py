"""Computes figures from a pool's states over time: phases, rates, seconds to settle. No clock, no I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

WINDOW_S = 1.0
"""Seconds over which a rate is taken. Samples differ, and a shorter window would show their differences."""
NEAR = 0.15
"""Largest relative difference of two rates that count as the same."""
STAYS_S = 3.0
"""Seconds for which a rate must stay near, unless its phase ends earlier, to count as settled."""


@dataclass(frozen=True)
class PoolSnapshot:
    """The state of the pool, by `coprep status`."""

    at: float
    """Seconds since the series began."""
    cpus: int
    threads: int
    fetching: int
    preparing: int
    to_fetch: int
    to_prepare: int
    prepared: int
    """Samples prepared so far."""
    fetched_bytes: int
    """Bytes read for them so far."""

    @classmethod
    def of(cls, at: float, status: dict[str, Any]) -> PoolSnapshot:
        """Returns the state of a coordinator with one stream."""
        pool = status["pool"]
        (stream,) = status["streams"]
        now = ("cpus", "threads", "fetching", "preparing", "to_fetch", "to_prepare", "prepared")
        return cls(at=at, **{key: pool[key] for key in now}, fetched_bytes=stream["totals"]["fetched_bytes"])

    def row(self) -> list[Any]:
        return list(asdict(self).values())


Count = Callable[[PoolSnapshot], int]
"""Reads a value that only grows."""


def samples_of(snapshot: PoolSnapshot) -> int:
    return snapshot.prepared


def bytes_of(snapshot: PoolSnapshot) -> int:
    return snapshot.fetched_bytes


@dataclass(frozen=True)
class Phase:
    """The time from one turn to the next."""

    turn: float
    snapshots: Sequence[PoolSnapshot]
    """The states of this phase; the first one is just after the turn."""

    @property
    def seconds(self) -> float:
        return self.snapshots[-1].at - self.turn

    @property
    def last_third(self) -> Sequence[PoolSnapshot]:
        begin = self.snapshots[-1].at - (self.snapshots[-1].at - self.snapshots[0].at) / 3
        return [snapshot for snapshot in self.snapshots if snapshot.at >= begin]

    def reaches(self, count: Count) -> float:
        """Returns the rate per second in its last third."""
        return rate(self.last_third, count)

    @property
    def threads(self) -> float:
        """Returns the median number of threads in its last third."""
        return statistics.median(snapshot.threads for snapshot in self.last_third)

    def settled_s(self) -> float | None:
        """Returns the seconds from the turn until the rate stays near that of the phase, or `None` if it never does."""
        near = self.near()
        for number, (at, _) in enumerate(near):
            if all(is_near for later, is_near in near[number:] if later <= at + STAYS_S):
                return at - self.turn
        return None

    def astray(self) -> float:
        """Returns the share of the windows after settling in which the rate is not near that of the phase."""
        settled = self.settled_s()
        after = [] if settled is None else [near for at, near in self.near() if at >= self.turn + settled]
        return after.count(False) / len(after) if after else 1.0

    def near(self) -> list[tuple[float, bool]]:
        """Returns the start of each window, with whether its rate is near the one that the phase reaches."""
        reaches = self.reaches(bytes_of)
        return [(at, abs(value - reaches) <= NEAR * reaches) for at, value in windows(self.snapshots)]

    def cpus_s(self, cpus: int) -> float | None:
        """Returns the seconds from the turn until the pool counts on this many processors, or `None` if it never
        does.
        """
        return next((snapshot.at - self.turn for snapshot in self.snapshots if snapshot.cpus == cpus), None)


def phases(snapshots: Sequence[PoolSnapshot], turns: Sequence[float]) -> list[Phase]:
    """Returns a phase for each turn. The first turn is the start of the series."""
    ends = [*turns[1:], float("inf")]
    return [
        Phase(turn, [snapshot for snapshot in snapshots if turn <= snapshot.at < end])
        for turn, end in zip(turns, ends, strict=True)
    ]


def rate(snapshots: Sequence[PoolSnapshot], count: Count) -> float:
    """Returns the rate per second from the first to the last of these snapshots."""
    first, last = snapshots[0], snapshots[-1]
    return (count(last) - count(first)) / (last.at - first.at)


def windows(snapshots: Sequence[PoolSnapshot]) -> list[tuple[float, float]]:
    """Returns the bytes per second from each snapshot to the first one that is `WINDOW_S` later, if there is one.

    Each window looks ahead, so the windows of a phase contain nothing of the phase before.
    """
    found = []
    end = 0
    for number, snapshot in enumerate(snapshots):
        while end < len(snapshots) and snapshots[end].at < snapshot.at + WINDOW_S:
            end += 1
        if end == len(snapshots):
            break
        found.append((snapshot.at, rate((snapshots[number], snapshots[end]), bytes_of)))
    return found
