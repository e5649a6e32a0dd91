"""The sets of samples for which order is measured, in the form that the benchmark and its jobs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders import DATA_VARIABLE
from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.slow_samples.spin import Spin
from tests.benchmarks.slow_samples.subset import repeated, slow_images

MEDIAN_MS = 2.0
SPINS = {10: 3840, 50: 3840, 200: 1536}
"""Number of samples by slowdown: 60 batches of 64, and 24 where an epoch would take too long."""
QUICK_SPINS = {10: 1280, 50: 640, 200: 320}
QUICK_MEDIAN_MS = 0.5
NATIVE_TIMES = 4
"""Copies of each image. Without them an epoch of a second or two would be hardly longer than the look-ahead."""
NATIVE, PYTHON = "images-native", "images-python"
NAMES = (NATIVE, PYTHON, *(f"spin-{slowdown}x" for slowdown in SPINS))


@dataclass(frozen=True)
class Samples:
    """A set of samples."""

    name: str
    count: int
    slow: frozenset[int]
    """Ids of the slow samples."""
    data: Dataset | None = None
    spin: Spin | None = None

    @property
    def is_native(self) -> bool:
        return self.name == NATIVE

    @property
    def env(self) -> dict[str, str]:
        return {DATA_VARIABLE: str(self.data.root)} if self.data else {}

    @property
    def argument(self) -> str:
        """Returns the argument from which `opened` makes the dataset in another process."""
        return f"{self.spin.samples},{self.spin.slowdown:g},{self.spin.median_ms:g}" if self.spin else "images"


def opened(argument: str) -> Any:
    """Returns the Python dataset for that argument. Images need PyTorch."""
    if argument == "images":
        from tests.benchmarks.loaders import datasets

        return datasets.images()
    count, slowdown, median_ms = argument.split(",")
    return Spin(int(count), float(slowdown), float(median_ms))


def all_samples(data: Dataset, only: Sequence[str], quick: bool, folder: Path) -> list[Samples]:
    """Returns the sets to measure. `folder` receives links to images."""
    images = {PYTHON: data} if PYTHON in only else {}
    if NATIVE in only:
        images = {NATIVE: data if quick else repeated(data, NATIVE_TIMES, folder), **images}
    found = [Samples(name, len(each.files), slow_images(each.files), data=each) for name, each in images.items()]
    for slowdown, count in (QUICK_SPINS if quick else SPINS).items():
        if (name := f"spin-{slowdown}x") in only:
            spin = Spin(count, slowdown, QUICK_MEDIAN_MS if quick else MEDIAN_MS)
            found.append(Samples(name, count, spin.slow(), spin=spin))
    return found
