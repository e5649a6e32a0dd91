"""Computes figures from arrivals: rates, gaps, repeated samples, positions of slow samples. No clock, no I/O."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

from tests.benchmarks.loaders.records import quantile

LAST_BATCHES = 8


@dataclass(frozen=True)
class Epoch:
    """One pass, as its batches arrived."""

    began: float
    """PoolSnapshot at which the first sample was begun or, if that is not known, the first batch was requested."""
    arrivals: Sequence[float]
    batches: Sequence[Sequence[int]]
    digest: str = ""

    @classmethod
    def of(cls, message: dict[str, Any]) -> Epoch:
        return cls(message["began"], message["arrivals"], message["ids"], message["digest"])

    @property
    def ids(self) -> list[int]:
        return list(chain.from_iterable(self.batches))

    @property
    def end(self) -> float:
        return self.arrivals[-1]


@dataclass(frozen=True)
class Gaps:
    """Milliseconds between consecutive batches."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, arrivals: Sequence[float]) -> Gaps:
        gaps = [1000 * (after - before) for before, after in pairwise(arrivals)]
        p50, p99 = quantile(gaps, 0.5), quantile(gaps, 0.99)
        assert p50 is not None and p99 is not None, "an epoch of one batch has no gaps"
        return cls(p50, p99, max(gaps))

    @property
    def ratio(self) -> float:
        return self.p99 / self.p50


def rates(epochs: Sequence[Epoch]) -> list[float]:
    """Returns the samples per second of each epoch. A later epoch begins at the last batch of the one before."""
    begins = [epochs[0].began, *(epoch.end for epoch in epochs)]
    return [len(epoch.ids) / (epoch.end - began) for began, epoch in zip(begins, epochs, strict=False)]


def later_rate(epochs: Sequence[Epoch]) -> float:
    """Returns the samples per second of all epochs after the first, together."""
    return sum(len(epoch.ids) for epoch in epochs[1:]) / (epochs[-1].end - epochs[0].end)


def steady_epoch(epochs: Sequence[Epoch]) -> float:
    """Returns the seconds of an epoch: the slope of the least-squares line through the moments at which batches came.

    The coordinator draws ahead beyond the end of an epoch, and further ahead at some moments than at others. The time
    from the first moment to the last would depend mostly on these two moments.
    """
    delivered = accumulate(len(batch) for epoch in epochs for batch in epoch.batches)
    passes = [samples / len(epochs[0].ids) for samples in delivered]
    return statistics.linear_regression(passes, list(chain.from_iterable(epoch.arrivals for epoch in epochs))).slope


def first_gaps(epochs: Sequence[Epoch]) -> Gaps:
    """Returns the gaps within the first epoch."""
    return Gaps.of(epochs[0].arrivals)


def later_gaps(epochs: Sequence[Epoch]) -> Gaps:
    """Returns the gaps from the last batch of the first epoch on, including those between epochs."""
    return Gaps.of([epochs[0].end, *chain.from_iterable(epoch.arrivals for epoch in epochs[1:])])


def astray(epoch: Epoch, samples: int) -> int:
    """Returns how many samples did not come exactly once, plus how many ids came that do not exist."""
    times = Counter(epoch.ids)
    wrong = sum(times[sample] != 1 for sample in range(samples))
    return wrong + sum(not 0 <= sample < samples for sample in times)


def mean_rank(epoch: Epoch, of: Collection[int]) -> float | None:
    """Returns the mean position of these samples in the epoch: 0 at its start, 1 at its end."""
    ranks = [rank for rank, sample in enumerate(epoch.ids) if sample in of]
    return statistics.fmean(ranks) / (len(epoch.ids) - 1) if ranks else None


def share_at_end(epoch: Epoch, of: Collection[int]) -> float | None:
    """Returns how many of these samples lie in the last batches, over the number expected by chance.

    The result is `None` if the last batches are the whole epoch, or if there are no such samples.
    """
    last = list(chain.from_iterable(epoch.batches[-LAST_BATCHES:]))
    expected = len(of) * len(last) / len(epoch.ids)
    return sum(sample in of for sample in last) / expected if expected and len(last) < len(epoch.ids) else None


def distances(delivered: Sequence[int], drawn: Sequence[int], batch_size: int) -> list[int]:
    """Returns how far each sample lies from its position in the draw, in batches."""
    drawn_for = {sample: number // batch_size for number, sample in enumerate(drawn)}
    return [abs(number // batch_size - drawn_for[sample]) for number, sample in enumerate(delivered)]


def is_same_draw(delivered: Sequence[int], drawn: Sequence[int], batch_size: int) -> bool:
    """Returns whether half of all samples lie near their position in the draw.

    In another draw, half of them lie 0.29 epochs away.
    """
    if sorted(delivered) != sorted(drawn):
        return False
    return statistics.median(distances(delivered, drawn, batch_size)) <= len(drawn) / batch_size / 8
