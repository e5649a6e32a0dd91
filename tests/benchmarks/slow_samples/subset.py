"""Selects images by their files: finds how large they are, and makes smaller or larger folders of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.benchmarks.loaders.measure import Dataset

SLOW_FROM = 5
"""Pixels of a slow image, in multiples of the median, at least."""


def part_of(data: Dataset, count: int, folder: Path) -> Dataset:
    """Makes an image folder of `count` links, taken evenly by size, so that the share of large files stays the same."""
    by_size = sorted(data.files, key=lambda path: (path.stat().st_size, path))
    count = min(count, len(by_size))
    for number in range(count):
        path = by_size[(2 * number + 1) * len(by_size) // (2 * count)]
        link = folder / path.relative_to(data.root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return Dataset.find(folder)


def repeated(data: Dataset, times: int, folder: Path) -> Dataset:
    """Makes an image folder in which each file of `data` is linked this many times."""
    for path in data.files:
        target = folder / path.relative_to(data.root).parent
        target.mkdir(parents=True, exist_ok=True)
        for number in range(times):
            (target / f"{number}-{path.name}").symlink_to(path)
    return Dataset.find(folder)


def pixels(files: Sequence[Path]) -> list[int]:
    """Returns width times height, from the files' headers."""
    Image.MAX_IMAGE_PIXELS = None
    found = []
    for path in files:
        with Image.open(path) as image:
            found.append(image.width * image.height)
    return found


def slow_images(files: Sequence[Path]) -> frozenset[int]:
    """Returns the ids of the slow images. An image folder numbers its files in the order of their paths."""
    sizes = pixels(files)
    bound = SLOW_FROM * statistics.median(sizes)
    return frozenset(number for number, size in enumerate(sizes) if size >= bound)
