"""An artificial dataset whose samples cost a given CPU time, without sleep."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SLOW_SHARE = 0.05


@dataclass(frozen=True)
class Spin:
    """A map-style dataset whose samples are small arrays that hold their id."""

    samples: int
    slowdown: float
    """Cost of a slow sample, in multiples of the median."""
    median_ms: float

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        burn(self.cost_s(index))
        return np.full(1, index, np.float32)

    def cost_s(self, index: int) -> float:
        return self.median_ms / 1000 * (self.slowdown if is_slow(index) else 1)

    def slow(self) -> frozenset[int]:
        return frozenset(filter(is_slow, range(self.samples)))


def is_slow(index: int) -> bool:
    """Returns whether a sample is slow. The share of slow ids is `SLOW_SHARE`, and they are always the same ones."""
    digest = hashlib.blake2b(index.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < SLOW_SHARE * 2**64


def burn(seconds: float) -> None:
    """Keeps this thread on a processor for this CPU time, however often it is interrupted."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
