"""The code of a user that worker processes run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Program(NamedTuple):
    """The user's code that workers run."""

    dataset: Any
    """The dataset, or ``module:factory``."""
    transform: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], None] | None
    whole: bool
    """``True`` if samples travel as they are, because the job collates them."""
    batched: bool
    """``True`` if samples become batches. Then ``__getitems__`` is used if the dataset has it, as PyTorch does."""
    as_index: Callable[[int], Any] = int
    """Makes the index that the dataset gets from the id of a sample."""

    def fetch(self) -> Callable[[int], Any]:
        """Returns the function that makes a sample of the dataset from its id."""
        at_once = getattr(self.dataset, "__getitems__", None) if self.batched else None
        one, index = self.dataset.__getitem__, self.as_index
        if at_once:
            return lambda sample: _only(at_once([index(sample)]), self.dataset)
        return one if index is int else lambda sample: one(index(sample))

    def sample(self, seed: int, sample: int, visit: int, seed_all: Callable[[int, int, int], None]) -> Any:
        """Returns a sample, made by the random numbers of a stream of this seed.

        Args:
            seed_all: seeds the generators for a sample.
        """
        if self.transform is None:
            seed_all(seed, sample, visit)
            return self.fetch()(sample)
        # The value may be cached for jobs of any seed and visit, so nothing random in it may depend on these.
        seed_all(0, sample, 0)
        value = self.fetch()(sample)
        seed_all(seed, sample, visit)
        return self.transform(value)

    def loaded(self) -> Program:
        """Returns the program with the dataset itself in place of its factory's name."""
        return self._replace(dataset=call_factory(self.dataset)) if isinstance(self.dataset, str) else self


class NotSamplesError(TypeError):
    """The dataset's ``__getitems__`` makes something else than one sample for each index."""


def _only(made: Any, dataset: Any) -> Any:
    if not isinstance(made, (list, tuple)) or len(made) != 1:
        what = f"{len(made)} samples" if isinstance(made, (list, tuple)) else f"a {type(made).__qualname__}"
        raise NotSamplesError(
            f"{type(dataset).__qualname__}.__getitems__ returned {what} for one index, and samples are shared one by "
            "one: return a list of as many samples as there are indices, or leave __getitems__ out"
        )
    return made[0]


def call_factory(name: str) -> Any:
    """Returns the dataset that ``module:factory`` makes."""
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found()
