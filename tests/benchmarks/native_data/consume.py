"""The work of a job on its batches: it reads one number of each sample, in a window of time that the parent chooses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.benchmarks.loaders.consume import consume


class Pairs:
    """Batches as pairs, the second half of which nobody reads. A batch without labels is an array alone."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for batch in self.loader:
            # Batches of Hugging Face's `datasets` are dicts.
            parts = list(batch.values()) if isinstance(batch, dict) else batch
            yield (parts[0] if isinstance(parts, (list, tuple)) else parts), None


def run(loader: Iterable[Any], warm_after: int) -> None:
    """Takes batches until the parent ends the process. After `warm_after` samples it is in the steady state."""
    consume(Pairs(loader), time.monotonic(), warm_after)
