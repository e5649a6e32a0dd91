"""Computes pauses and times of passes from the moments at which batches came. No clock, no I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Pass:
    """One epoch of one loader, in seconds of the machine's monotonic clock."""

    loader: int
    """Number of the loader in its job, from 0."""
    made: float
    """PoolSnapshot just before the loader was made."""
    arrivals: Sequence[float]

    @classmethod
    def of(cls, message: dict[str, Any]) -> Pass:
        return cls(message["loader"], message["made"], message["arrivals"])

    @property
    def end(self) -> float:
        return self.arrivals[-1]

    @property
    def first_batch_s(self) -> float:
        """Returns the seconds from the making of the loader to the first batch, for a loader's first pass."""
        return self.arrivals[0] - self.made

    @property
    def longest_pause_s(self) -> float:
        """Returns the longest time between consecutive batches."""
        return max((after - before for before, after in pairwise(self.arrivals)), default=0.0)


def passes_of(messages: Sequence[dict[str, Any]], loader: int = 0) -> list[Pass]:
    """Returns the passes of one loader, from all messages of its job."""
    found = [Pass.of(message) for message in messages if message["event"] == "pass"]
    return [one for one in found if one.loader == loader]


def first_pass_s(passes: Sequence[Pass]) -> float:
    """Returns the seconds from the making of the loader to the last batch of its first pass."""
    return passes[0].end - passes[0].made


def later_pass_s(passes: Sequence[Pass]) -> float:
    """Returns the mean seconds of the passes after the first one, from its last batch on."""
    return (passes[-1].end - passes[0].end) / (len(passes) - 1)


def all_passes_s(passes: Sequence[Pass]) -> float:
    """Returns the seconds from the making of the loader to the last batch of its last pass."""
    return passes[-1].end - passes[0].made


def border_to_gap(passes: Sequence[Pass]) -> float:
    """Returns the longest gap between passes, from the second border on, over the median gap.

    The first border is left out, since some loaders learn only there that the job continues.
    """
    borders = [after.arrivals[0] - before.end for before, after in pairwise(passes)][1:]
    within = [after - before for one in passes for before, after in pairwise(one.arrivals)]
    return max(borders) / statistics.median(within)
