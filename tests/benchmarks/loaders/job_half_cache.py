"""A job that reads a dataset a few times with a small cache, and reports how many bytes each epoch fetched."""

from __future__ import annotations

import sys
from typing import Any

import coprep

from tests.benchmarks.loaders.consume import report
from tests.benchmarks.loaders.measure import BATCH_SIZE


def main() -> None:
    policy: Any
    data, cache_bytes, policy, epochs = sys.argv[1:]
    pipeline = coprep.ImageFolder(data).decode().random_resized_crop(224).random_horizontal_flip()
    loader = coprep.DataLoader(
        pipeline,
        batch_size=BATCH_SIZE,
        shuffle=True,
        cache="encoded",
        cache_bytes=int(cache_bytes),
        cache_policy=policy,
        framework="numpy",
    )
    for _ in range(int(epochs)):
        for _images, _labels in loader:
            pass
    (stream,) = coprep.status()["streams"]
    # Bytes count by visit, which for a single job is the epoch, so those read ahead for the next epoch count there.
    for fetched in stream["totals"]["fetched_by_visit"][: int(epochs)]:
        report(fetched_bytes=fetched)


if __name__ == "__main__":
    main()
