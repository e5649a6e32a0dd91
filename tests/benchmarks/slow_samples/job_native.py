"""A job over coprep's own pipeline. Its batches are numpy arrays.

usage: python -m tests.benchmarks.slow_samples.job_native DATA LOADER_OPTIONS EPOCHS [digest] [exact]

With `digest` it reports a digest of all batches. With `exact`, samples are decoded in full, however small their crop
becomes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import coprep

from tests.benchmarks.loaders.measure import BATCH_SIZE
from tests.benchmarks.slow_samples.take import Batch, take


def batches(loader: Iterable[Any]) -> Iterator[Batch]:
    arriving = iter(loader)
    began = admitted()
    for images, _labels, ids in arriving:
        yield images, ids, began


def admitted() -> float:
    """Returns the moment at which this job, the only one, was admitted. From then on samples are prepared for it."""
    asked = time.monotonic()
    (stream,) = coprep.status()["streams"]
    (job,) = stream["jobs"]
    return asked - float(job["age_s"])


def main() -> None:
    data, options, epochs, *words = sys.argv[1:]

    def open_loader() -> Callable[[], Iterable[Batch]]:
        pipeline = (
            coprep.ImageFolder(data)
            .decode(scaled="exact" not in words)
            .random_resized_crop(224)
            .random_horizontal_flip()
        )
        loader = coprep.DataLoader(
            pipeline, batch_size=BATCH_SIZE, shuffle=True, framework="numpy", with_index=True, **json.loads(options)
        )
        return lambda: batches(loader)

    take(open_loader, int(epochs), "digest" in words)


if __name__ == "__main__":
    main()
