"""A job that loads a Python dataset, with coprep or with PyTorch's DataLoader. Everything else is the same.

It imports its modules and makes its dataset before it says that it is ready. It makes its loader when it is told to go,
and the time to its first batch counts from then on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import coprep
import torch
from torch.utils.data import Dataset, TensorDataset

from tests.benchmarks.loaders import datasets
from tests.benchmarks.loaders.consume import consume, report

TENSORS = 50_000


def dataset(samples: str) -> Dataset[Any]:
    """Returns images as users of PyTorch load them, or samples that cost almost nothing."""
    if samples == "images":
        return datasets.images()
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(TENSORS, 3, 32, 32, generator=generator), torch.arange(TENSORS) % 10)


def loader_of(loader: str, of: Dataset[Any], batch_size: int, workers: int) -> Iterable[tuple[Any, Any]]:
    kind: Any = coprep.DataLoader if loader == "coprep-python" else torch.utils.data.DataLoader
    made: Iterable[tuple[Any, Any]] = kind(
        of, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )
    return made


def main() -> None:
    loader, samples, batch_size, warm_after, workers = sys.argv[1:]
    torch.set_num_threads(1)
    of = dataset(samples)
    report(event="ready")
    sys.stdin.readline()
    started = time.monotonic()
    consume(loader_of(loader, of, int(batch_size), int(workers)), started, int(warm_after))


if __name__ == "__main__":
    main()
