"""Random numbers of a sample: a function of the stream's seed, the sample and its visit, wherever it is made."""

from __future__ import annotations

import _random
import random
import sys
from typing import Any

import numpy as np

from coprep._coprep import sample_key

_PYTHON: Any = random.seed.__self__  # type: ignore[attr-defined]
"""The global generator of ``random``."""


def seed_all(seed: int, sample: int, visit: int) -> None:
    """Seed all global generators for a sample."""
    seed_by(sample_key(seed, sample, visit))


def seed_by(number: int) -> None:
    """Seed the global generators of ``random``, NumPy, and PyTorch (its CPU one) if it has been imported.

    Args:
        number: 64 bits, the key of a sample.
    """
    # random.seed of an integer, without looking at what it is given.
    _random.Random.seed(_PYTHON, number)
    _PYTHON.gauss_next = None
    np.random.seed(number & 0xFFFFFFFF)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed would note the seed for devices too, with a stack trace.
        torch.default_generator.manual_seed(number)
