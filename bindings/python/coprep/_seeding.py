"""Random numbers of a sample: a function of the stream's seed, the sample and its visit, wherever it is made."""

from __future__ import annotations

import _random
import random
import sys
from typing import Any

import numpy as np

_PYTHON: Any = random.seed.__self__  # type: ignore[attr-defined]
"""The global generator of ``random``."""
_MASK = 2**64 - 1


def key(seed: int, sample: int, visit: int) -> int:
    """64 well-mixed bits (SplitMix64, Steele et al. 2014) of three numbers."""
    state = seed
    for word in (sample, visit):
        state = (state ^ (word * 0xD1342543DE82EF95)) + 0x9E3779B97F4A7C15 & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def seed_all(seed: int, sample: int, visit: int) -> None:
    """Seed the global generators of ``random``, NumPy, and PyTorch (its CPU one) if it has been imported."""
    number = key(seed, sample, visit)
    # random.seed of an integer, without looking at what it is given.
    _random.Random.seed(_PYTHON, number)
    _PYTHON.gauss_next = None
    np.random.seed(number & 0xFFFFFFFF)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed would note the seed for devices too, with a stack trace.
        torch.default_generator.manual_seed(number)
