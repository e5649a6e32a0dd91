"""A job that loads with coprep. Its batches are numpy arrays, and it imports nothing else."""

from __future__ import annotations

import sys
from typing import Any

import coprep

from tests.benchmarks.loaders.consume import consume


def main() -> None:
    cache: Any
    data, batch_size, warm_after, cache, started = sys.argv[1:]
    pipeline = coprep.ImageFolder(data).decode().random_resized_crop(224).random_horizontal_flip()
    loader = coprep.DataLoader(pipeline, batch_size=int(batch_size), shuffle=True, cache=cache, framework="numpy")
    consume(loader, float(started), int(warm_after))


if __name__ == "__main__":
    main()
