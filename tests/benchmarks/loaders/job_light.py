"""A job that loads the Python dataset of images with coprep and imports no PyTorch, like a trainer in JAX or an
evaluation.

It only names the dataset, which the worker processes then make. Its batches are numpy arrays.
"""

from __future__ import annotations

import sys
import time

import coprep

from tests.benchmarks.loaders.consume import consume, report

DATASET = "tests.benchmarks.loaders.datasets:images"


def main() -> None:
    batch_size, warm_after, workers = map(int, sys.argv[1:])
    report(event="ready")
    sys.stdin.readline()
    started = time.monotonic()
    loader = coprep.DataLoader(
        DATASET,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        framework="numpy",
    )
    consume(loader, started, warm_after)


if __name__ == "__main__":
    main()
