"""Random numbers of a sample, as a function of the stream's seed, the sample and its visit, wherever it is made."""

from __future__ import annotations

import _random
import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from coprep._coprep import sample_key

_PYTHON: Any = random.seed.__self__  # type: ignore[attr-defined]
"""The global generator of ``random``."""
INT64 = 2**63 - 1
"""Bits of a seed that fit into a signed integer of 64 bits. PyTorch's must: ``torch.initial_seed()`` is collated."""


def seed_all(seed: int, sample: int, visit: int) -> None:
    """Seeds all global generators for a sample."""
    seed_by(sample_key(seed, sample, visit))


def seed_by(number: int) -> None:
    """Seeds the global generators of ``random``, NumPy, and PyTorch (its CPU one) if it has been imported.

    Args:
        number: 64 bits, the key of a sample.
    """
    # This is random.seed without its checks of the argument's type.
    _random.Random.seed(_PYTHON, number)
    _PYTHON.gauss_next = None
    np.random.seed(number & 0xFFFFFFFF)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed would also record the seed for devices, with a stack trace.
        torch.default_generator.manual_seed(number & INT64)


class SeedWatch:
    """Detects whether user code seeds the global generators with seeds of its own.

    Seeds derived from ``torch.initial_seed()``, as in PyTorch's recipe for reproducible workers, do not count as the
    user's own.
    """

    def __init__(self, worker_seed: int) -> None:
        self._worker_seed = worker_seed
        self._is_derived = False
        self._before = (random.getstate(), np.random.get_state(legacy=False), _torch_seed())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Notes whether PyTorch's seed is asked for within the block."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            yield
            return
        initial_seed = torch.initial_seed

        def noted() -> int:
            self._is_derived = True
            seed: int = initial_seed()
            return seed

        torch.initial_seed = noted
        try:
            yield
        finally:
            torch.initial_seed = initial_seed

    def found(self) -> list[str]:
        """Returns the names of the generators that were seeded."""
        before, numpy_before, torch_before = self._before
        if self._is_derived:
            return []
        derived = {self._worker_seed % modulus for modulus in (2**63, 2**32, 2**32 - 1)}
        found = []
        if _python_key(random.getstate()) not in _python_keys(before, derived):
            found.append("random")
        numpy_after = np.random.get_state(legacy=False)
        # Generators of another kind are not examined.
        is_usual = numpy_before["bit_generator"] == numpy_after["bit_generator"] == "MT19937"
        if is_usual and _numpy_key(numpy_after) not in _numpy_keys(numpy_before, derived):
            found.append("numpy.random")
        if _torch_seed() not in {torch_before, *derived}:
            found.append("torch")
        return found


def _torch_seed() -> int:
    torch: Any = sys.modules.get("torch")
    return 0 if torch is None else int(torch.default_generator.initial_seed())


def _python_key(state: tuple[Any, ...]) -> tuple[int, ...]:
    key: tuple[int, ...] = state[1][:-1]
    return key


def _python_keys(before: tuple[Any, ...], seeds: set[int]) -> list[tuple[int, ...]]:
    """Returns the keys of a generator that was not seeded, drawn from or not, or that was given one of these seeds."""
    drawn = random.Random()
    drawn.setstate(before)
    generators = [drawn, *map(random.Random, seeds)]
    [generator.random() for generator in generators]
    seeded = [random.Random(seed) for seed in seeds]
    return [_python_key(before), *(_python_key(generator.getstate()) for generator in generators + seeded)]


def _numpy_key(state: Any) -> bytes:
    key: bytes = state["state"]["key"].tobytes()
    return key


def _numpy_keys(before: Any, seeds: set[int]) -> list[bytes]:
    """Returns the same keys for NumPy's generator."""
    drawn = np.random.RandomState()
    drawn.set_state(before)
    generators = [drawn, *(np.random.RandomState(seed) for seed in seeds if seed < 2**32)]
    seeded = [_numpy_key(generator.get_state(legacy=False)) for generator in generators]
    [generator.random_sample() for generator in generators]
    return [_numpy_key(before), *seeded, *(_numpy_key(generator.get_state(legacy=False)) for generator in generators)]
