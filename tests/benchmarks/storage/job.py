"""A job that reads photographs for some seconds or epochs, and reports when its batches came."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import coprep

from tests.benchmarks.loaders.consume import report, touch
from tests.benchmarks.loaders.measure import BATCH_SIZE

DISK_TIMEOUT_S = 60.0
"""Longest time until the samples of an epoch lie on the disk."""


def main() -> None:
    plan = json.loads(sys.argv[1])
    data = plan["data"]
    source = coprep.WebDataset(data, label=None) if data.endswith(".tar") else coprep.ImageFolder(data)
    pipeline = source.decode().random_resized_crop(224).random_horizontal_flip()
    options: dict[str, Any] = plan["options"]
    loader = coprep.DataLoader(pipeline, batch_size=BATCH_SIZE, shuffle=True, framework="numpy", **options)
    report(event="ready")
    sys.stdin.readline()
    began = time.monotonic()
    arrivals: list[tuple[float, int]] = []
    for _ in range(plan["epochs"]):
        arrivals += take(loader)
        report(event="epoch")
        sys.stdin.readline()
    while time.monotonic() < began + plan["seconds"]:
        arrivals += take(loader, until=began + plan["seconds"])
    if plan["on_disk"]:
        await_on_disk(plan["on_disk"])
    (stream,) = coprep.status()["streams"]
    # Bytes count by visit, which for a single job is the epoch, so those read ahead for the next epoch count there.
    report(event="done", began=began, arrivals=arrivals, fetched_by_visit=stream["totals"]["fetched_by_visit"])
    # The parent reads the processor time of a process that still runs.
    sys.stdin.readline()


def await_on_disk(samples: int) -> None:
    """Waits until so many samples lie on the coordinator's disk. They are written while jobs go on."""
    deadline = time.monotonic() + DISK_TIMEOUT_S
    while sum(cache["entries"] for cache in coprep.status()["disk"]["caches"]) < samples:
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {DISK_TIMEOUT_S:.0f} s, fewer than {samples} samples lie on the disk")
        time.sleep(0.05)


def take(loader: Iterable[tuple[Any, Any]], until: float = math.inf) -> Iterator[tuple[float, int]]:
    """Takes the batches of an epoch, and yields the time and the images of each."""
    for images, _labels in loader:
        touch(images)
        now = time.monotonic()
        yield now, len(images)
        if now >= until:
            return


if __name__ == "__main__":
    main()
