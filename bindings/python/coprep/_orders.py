"""Samplers of the user's own, whose order the jobs of a cohort share."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from coprep._coprep import MOST_OWN_SAMPLES


class CannotBeShared(ValueError):
    """A sampler gives values that jobs cannot share."""


class OwnOrder(NamedTuple):
    """A sampler of the user's own, which determines the samples of an epoch and their order.

    It may give another number of samples in each epoch, a sample more than once, or some never. Each member of a cohort
    iterates its own sampler when it begins an epoch. The order of the first member to begin is the order of all.
    """

    sampler: Iterable[Any]
    """Gives sample ids or, if ``batch_size`` is set, batches of them."""
    batch_size: int | None = None
    """Number of samples of each batch but the last, if the sampler gives batches."""

    def batches(self, batch_size: int, drop_last: bool) -> int:
        """Returns the number of batches of an epoch, by the length of the sampler.

        Raises:
            TypeError: the sampler has no length.
        """
        length = len(self.sampler)  # type: ignore[arg-type]
        if self.batch_size is not None:
            return length
        return length // batch_size if drop_last else -(-length // batch_size)

    def ids(self, samples: int) -> bytes:
        """Returns the sample ids of the next epoch in the coordinator's format: native-endian, 32 bits each.

        Args:
            samples: number of samples of the dataset.

        Raises:
            IndexError: the sampler gives an id that the dataset does not have.
            CannotBeShared: the sampler gives no ids, batches of unequal size, or too many samples.
        """
        # One more than allowed, so that an endless sampler ends here.
        given = itertools.islice(self._ids(), MOST_OWN_SAMPLES + 1)
        ids = np.fromiter(given, np.int64)
        if ids.size > MOST_OWN_SAMPLES:
            raise CannotBeShared(
                f"{self._name} gives more than {MOST_OWN_SAMPLES:,} samples for an epoch, the most that a cohort shares"
            )
        if ids.size and not 0 <= (least := ids.min()) <= (most := ids.max()) < samples:
            wrong = least if least < 0 else most
            raise IndexError(
                f"{self._name} gives the id {wrong}, which is out of range: the dataset has {samples} samples, 0 to "
                f"{samples - 1}"
            )
        return ids.astype(np.uint32).tobytes()

    @property
    def _name(self) -> str:
        return type(self.sampler).__qualname__

    def _ids(self) -> Iterator[int]:
        try:
            yield from map(operator.index, self._flat())
        except TypeError as error:
            raise CannotBeShared(
                f"{self._name} gives something else than sample ids ({error}), and a cohort shares samples by their ids"
            ) from error

    def _flat(self) -> Iterator[Any]:
        if self.batch_size is None:
            yield from self.sampler
            return
        last = self.batch_size
        for batch in self.sampler:
            ids = list(batch)
            # Only the last batch may be short, so each one must follow a full one.
            if last != self.batch_size or not 0 < len(ids) <= self.batch_size:
                size = last if last != self.batch_size else len(ids)
                raise CannotBeShared(
                    f"{self._name} has batch_size {self.batch_size}, and a batch of it that is not its last one has "
                    f"{size} samples: a cohort shares batches of equal size only"
                )
            last = len(ids)
            yield from ids


def own_order(sampler: Any, batch_sampler: Any) -> OwnOrder | str:
    """Returns the order of a sampler, if a cohort can share it, or the reason why it cannot."""
    if batch_sampler is None:
        return OwnOrder(sampler)
    size: Any = getattr(batch_sampler, "batch_size", None)
    if isinstance(size, bool) or not hasattr(size, "__index__") or not 0 < operator.index(size) < 2**31:
        return (
            f"{type(batch_sampler).__qualname__} has no batch_size, so that its batches may be of any size, and a "
            "cohort shares batches of equal size only"
        )
    return OwnOrder(batch_sampler, operator.index(size))


def repeats(sampler: Any, inner: Any) -> bool:
    """Returns whether a sampler gives what another one gives, again and again without end.

    Classes of timm, Ultralytics and others replace a loader's sampler by such a one, so that its workers stay.
    """
    try:
        names = [name for name, value in vars(sampler).items() if value is inner]
        marks = [object(), object()]
        probe = copy.copy(sampler)
        vars(probe).update(dict.fromkeys(names, marks))
        return bool(names) and list(itertools.islice(probe, 5)) == [*marks, *marks, marks[0]]
    except Exception:
        # It is any object of the user's, and one that does something else with the marks may raise anything.
        return False
