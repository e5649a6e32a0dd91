"""The photographs: a folder in which each occurs several times under different names.

A few hundred photographs are an epoch of a few batches, which no training has, and their pixels would stay in the
processor's own cache. The copies are links, so they take no space.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.loaders.measure import Dataset


@dataclass(frozen=True)
class Photographs:
    """A folder with a folder for each class."""

    root: Path
    files: int
    """Number of photographs in the original folder."""
    bytes: int
    copies: int

    @property
    def samples(self) -> int:
        return self.files * self.copies


def linked(original: Dataset, copies: int, folder: Path) -> Photographs:
    """Makes a folder in which each photograph occurs several times."""
    for path in original.files:
        place = folder / path.relative_to(original.root).parent
        place.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            (place / f"{copy:03}-{path.name}").symlink_to(path)
    return Photographs(folder, len(original.files), original.bytes, copies)
