"""Datasets of the jobs that need NumPy and no PyTorch. A job names a dataset by a list: a name, and arguments."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
KB = 1000


def opened(spec: list[Any]) -> Any:
    """Returns a dataset by its name and arguments."""
    name, *arguments = spec
    if name == "ragged":
        return Ragged(*arguments)
    if name == "counted":
        return Counted(*arguments)
    if name == "changing":
        return Changing(*arguments)
    # The other datasets need PyTorch.
    from tests.benchmarks.drop_in import torch_datasets

    return torch_datasets.opened(name, *arguments)


@dataclass(frozen=True)
class Ragged:
    """Samples of 100 kB, with a few that are many times as large. Each costs the same time off the processor."""

    samples: int
    cost_s: float
    large: dict[str, int]
    """Size of each large sample by id, in bytes. Ids are text, as JSON requires."""

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Array:
        time.sleep(self.cost_s)
        return np.full(self.large.get(str(index), 100 * KB), index % 251, np.uint8)


class Changing:
    """A dataset in memory that the program changes before each pass, as a curriculum does."""

    def __init__(self, samples: int, mib: int) -> None:
        self.values = np.zeros((samples, (mib << 20) // samples), np.uint8)

    def change(self) -> None:
        self.values += 1

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Array:
        return self.values[index, : 10 * KB]


@dataclass(frozen=True)
class Counted:
    """A dataset that counts its calls in all processes: each call appends a byte to a file."""

    samples: int
    cost_s: float
    file: str

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Array:
        # With O_APPEND a write goes to the end of the file even if other processes write at the same time.
        file = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b".")
        finally:
            os.close(file)
        time.sleep(self.cost_s)
        return np.full(16, index, np.float32)
