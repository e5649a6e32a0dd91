"""The code of a user that worker processes run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
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
        if several := self._at_once():
            return lambda sample: several([sample])[0]
        one, index = self.dataset.__getitem__, self.as_index
        return one if index is int else lambda sample: one(index(sample))

    def fetch_several(self) -> Callable[[list[int]], Sequence[Any]] | None:
        """Returns the function that makes samples of the dataset in one call.

        There is none if the dataset makes one after the other, or if its values may be cached for a transform.
        """
        return None if self.transform is not None or _is_loop(self.dataset) else self._at_once()

    def first(self, samples: list[int]) -> dict[int, Any]:
        """Returns the first samples by id, if the dataset makes several in one call: some make none alone.

        Raises:
            NotSamplesError: it makes something else. A batch of two parts looks like two samples, and not like one.
        """
        several, made = self.fetch_several(), {}
        try:
            if several is not None and len(samples) > 1:
                made = dict(zip(samples, several(samples), strict=True))
                several(samples[:1])
        except NotSamplesError:
            raise
        except Exception:
            # A sample that was not made is asked for by itself.
            pass
        return made

    def together(self, samples: list[int]) -> Sequence[Any] | None:
        """Returns samples that one call makes, or ``None`` if each has to be asked for by itself.

        Each is asked for by itself after an error, if one of them fails alone: that shows which. An error that only the
        call for all of them has is raised.
        """
        several, fetch = self.fetch_several(), self.fetch()
        if several is None:
            return None
        try:
            return several(samples)
        except Exception:
            try:
                for sample in samples:
                    fetch(sample)
            except Exception:
                return None
            raise

    def _at_once(self) -> Callable[[list[int]], Sequence[Any]] | None:
        at_once = getattr(self.dataset, "__getitems__", None) if self.batched else None
        if not at_once:
            return None
        index = self.as_index
        return lambda samples: _one_for_each(at_once([index(one) for one in samples]), samples, self.dataset)

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


def _is_loop(dataset: Any) -> bool:
    """Returns whether a dataset's ``__getitems__`` is that of PyTorch's ``Subset``, which asks for single samples."""
    module = sys.modules.get("torch.utils.data.dataset")
    if module is None or getattr(type(dataset), "__getitems__", None) is not vars(module.Subset).get("__getitems__"):
        return False
    return "__getitems__" not in vars(dataset) and (
        _is_loop(dataset.dataset) or not callable(getattr(dataset.dataset, "__getitems__", None))
    )


def _one_for_each(made: Any, samples: list[int], dataset: Any) -> Sequence[Any]:
    if isinstance(made, (list, tuple)) and len(made) == len(samples):
        return made
    what = f"{len(made)} samples" if isinstance(made, (list, tuple)) else f"a {type(made).__qualname__}"
    indices = "one index" if len(samples) == 1 else f"{len(samples)} indices"
    raise NotSamplesError(
        f"{type(dataset).__qualname__}.__getitems__ returned {what} for {indices}, and samples are shared one by one: "
        "return a list of as many samples as there are indices, or leave __getitems__ out"
    )


def call_factory(name: str) -> Any:
    """Returns the dataset that ``module:factory`` makes."""
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found()
