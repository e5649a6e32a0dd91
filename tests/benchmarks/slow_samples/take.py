"""The work of every job of this benchmark: a few epochs, as fast as batches come, with a record of the arrivals."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks.loaders.consume import report, touch

Batch = tuple[Any, Any, float | None]
"""Samples, their ids, and the moment at which the first of them was begun, where that is known."""


def take(open_loader: Callable[[], Callable[[], Iterable[Batch]]], epochs: int, with_digest: bool) -> None:
    """Says `ready`, waits for the command to go, reports each epoch, says `done`, and waits for the command to end.

    `open_loader` makes the loader, and returns a function that begins an epoch.
    """
    report(event="ready")
    sys.stdin.readline()
    went = time.monotonic()
    batches = open_loader()
    for _ in range(epochs):
        report(event="epoch", went=went, **one_epoch(batches(), with_digest))
    report(event="done")
    sys.stdin.readline()


def one_epoch(batches: Iterable[Batch], with_digest: bool) -> dict[str, Any]:
    began = time.monotonic()
    first_began: float | None = None
    arrivals, ids = [], []
    digest = hashlib.blake2b(digest_size=16)
    for samples, numbers, batch_began in batches:
        touch(samples)
        arrivals.append(time.monotonic())
        ids.append(numbers.tolist())
        if batch_began is not None:
            # Batches come in order, but their samples may have been begun in any.
            first_began = batch_began if first_began is None else min(first_began, batch_began)
        if with_digest:
            for part in (samples, numbers):
                digest.update(np.asarray(part).tobytes())
    return {
        "began": began if first_began is None else first_began,
        "arrivals": arrivals,
        "ids": ids,
        "digest": digest.hexdigest() if with_digest else "",
    }


class Stamped:
    """Samples of a Python dataset without their labels, with their ids and the moment at which each was begun."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, index: int) -> tuple[Any, int, float]:
        began = time.monotonic()
        made = self.of[index]
        return made[0] if isinstance(made, tuple) else made, index, began


def stamped(batches: Iterable[Any]) -> Iterator[Batch]:
    for samples, ids, began in batches:
        yield samples, ids, float(began.min())
