"""A job over coprep's own pipeline. Its batches are numpy arrays."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import coprep

from tests.bench.measure import BATCH_SIZE
from tests.bench_slow.take import Batch, take


def batches(loader: Iterable[Any]) -> Iterator[Batch]:
    for images, _labels, ids in loader:
        yield images, ids, None


def main() -> None:
    data, options, epochs, digest = sys.argv[1:]

    def open_loader() -> Callable[[], Iterable[Batch]]:
        pipeline = coprep.ImageFolder(data).decode().random_resized_crop(224).random_horizontal_flip()
        loader = coprep.DataLoader(
            pipeline, batch_size=BATCH_SIZE, shuffle=True, framework="numpy", with_index=True, **json.loads(options)
        )
        return lambda: batches(loader)

    take(open_loader, int(epochs), digest == "digest")


if __name__ == "__main__":
    main()
