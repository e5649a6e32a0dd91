"""Iterable datasets in a cohort: one process, the reader, makes the batches of all jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from coprep._generators import SampleSeeder
from coprep._program import Program
from coprep._seeding import seed_all
from coprep._unshared import torch_loader

_EPOCH = 2**32
"""Stands for the epoch as a whole where the number of a batch keys random numbers. Numbers of batches are smaller."""
_KEPT = 64
"""Most batches to keep for a request that comes late. The reader never has more requests than that before it."""


class EpochEnds(Exception):
    """Raised for a batch that the epoch does not have, because it is over."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches)
        self.batches = batches
        """Number of batches in the epoch."""


class Batches:
    """An iterable dataset with all that makes batches of its items, except the collation. It travels to the reader.

    Args:
        dataset: a ``torch.utils.data.IterableDataset``.
        transform: applied to each of its items.
        worker_init_fn: called in each of PyTorch's workers.
        batch_size: number of items in a batch. ``None``: an item is a batch.
        drop_last: leave out the last batch if it is short, as PyTorch does.
        workers: number of PyTorch's workers, each of which iterates the dataset. 0: the reader itself iterates it.
        persistent_workers, prefetch_factor: passed to PyTorch for these workers.
    """

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        *,
        batch_size: int | None,
        drop_last: bool,
        workers: int,
        persistent_workers: bool,
        prefetch_factor: int | None,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.worker_init_fn = worker_init_fn
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.workers = workers
        self.persistent_workers = persistent_workers
        self.prefetch_factor = prefetch_factor

    def code(self) -> dict[str, Any]:
        """Returns the user's objects, by name."""
        found = {"dataset": self.dataset, "transform": self.transform, "worker_init_fn": self.worker_init_fn}
        return {name: value for name, value in found.items() if value is not None}

    def options(self) -> tuple[Any, ...]:
        """Returns the options on which the batches depend."""
        return self.batch_size, self.drop_last, self.workers, self.persistent_workers, self.prefetch_factor

    def __len__(self) -> int:
        # The length is unknown before an epoch ends. The coordinator needs a number that is the same in all processes.
        return 1

    def __getitem__(self, number: int) -> Any:
        raise TypeError("the batches of an IterableDataset have no order but that of its iteration")

    def loader(self) -> Any:
        """Returns PyTorch's own loader, which gives each batch as a list of items."""
        return torch_loader(
            self.dataset,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            num_workers=self.workers,
            collate_fn=_Items(self.transform, self.batch_size is not None),
            worker_init_fn=_WorkerInit(self.worker_init_fn, os.getpid()) if self.workers else None,
            # A spawned process would look for the user's main script, which the reader does not have.
            multiprocessing_context="fork" if self.workers else None,
            persistent_workers=self.persistent_workers,
            prefetch_factor=self.prefetch_factor,
        )


class _Items:
    """A ``collate_fn`` that applies the transform to each item and leaves the collation to the jobs."""

    def __init__(self, transform: Callable[[Any], Any] | None, batched: bool) -> None:
        self._transform = transform
        self._batched = batched

    def __call__(self, items: Any) -> Any:
        transform = self._transform
        if transform is None:
            return items
        return [transform(item) for item in items] if self._batched else transform(items)


class _WorkerInit:
    """A ``worker_init_fn`` that makes PyTorch's worker end with its reader, however the reader ends."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None, reader: int) -> None:
        self._worker_init_fn = worker_init_fn
        self._reader = reader

    def __call__(self, number: int) -> None:
        from coprep._processes import end_with_parent

        end_with_parent(self._reader)
        if self._worker_init_fn is not None:
            self._worker_init_fn(number)


class _Made(NamedTuple):
    """A batch, or the error that the iteration raised in its place."""

    batch: Any
    error: Exception | None = None


class Reader:
    """Gives the batches of an epoch by their numbers, and iterates the dataset to make them.

    Requests come nearly in ascending order. A batch that was given before may be requested again, after another reader
    or a job has ended. Then the reader iterates the epoch from its beginning, past the batches before that one.

    Args:
        batches: the dataset, and the size of its batches.
        seed: keys the random numbers of each batch, together with the epoch and the number of the batch.
    """

    def __init__(self, batches: Batches, seed: int) -> None:
        self._batches = batches
        self._seed = seed
        self._loader: Any = None
        self._iterator: Any = None
        self._epoch: int | None = None
        self._next = 0
        """Number of the batch that the iterator gives next."""
        self._end: int | None = None
        """Number of batches in the epoch, once the iteration has ended."""
        self._kept: dict[int, _Made] = {}
        """Batches that are made but not given yet, by number."""

    def batch(self, epoch: int, number: int) -> Any:
        """Returns a batch as a list of items; without batching, an item.

        Raises:
            EpochEnds: the epoch has no such batch.
            Exception: the iteration raised it in place of this batch.
        """
        if self._end is not None and epoch == self._epoch and number >= self._end:
            raise EpochEnds(self._end)
        if epoch != self._epoch or (number < self._next and number not in self._kept):
            self._begin(epoch)
        while number >= self._next:
            if self._end is not None:
                raise EpochEnds(self._end)
            self._advance()
        made = self._kept.pop(number)
        if made.error is not None:
            raise made.error
        return made.batch

    def _begin(self, epoch: int) -> None:
        # Dropping the iterator ends PyTorch's workers of the former epoch, before others begin.
        self._iterator = None
        self._kept.clear()
        self._epoch, self._next, self._end = epoch, 0, None
        # Generators of the dataset's own go on through the epoch, as they do where it is iterated alone.
        SampleSeeder(Program(self._batches.dataset, self._batches.transform, None, True, True)).seed_all(
            self._seed, _EPOCH, epoch
        )
        try:
            if self._loader is None:
                _leave_workers()
                self._loader = self._batches.loader()
            self._iterator = iter(self._loader)
        except Exception as error:
            # The epoch ends with this error, as a loop over PyTorch's loader would.
            self._keep(_Made(None, error))
            self._end = self._next

    def _advance(self) -> None:
        seed_all(self._seed, self._next, self._epoch or 0)
        try:
            self._keep(_Made(next(self._iterator)))
        except StopIteration:
            self._end = self._next
            self._iterator = None
        except Exception as error:
            self.end_with_workers()
            # The next request asks the iterator again, which goes on or ends, as with PyTorch.
            self._keep(_Made(None, error))

    def end_with_workers(self) -> None:
        """Ends this process if one of PyTorch's workers has failed.

        The other workers would go on without the batches that the failed one had yet to give. The next reader iterates
        the epoch anew.
        """
        for worker in getattr(self._iterator, "_workers", ()):
            # The exit code is `None` while the worker runs, and 0 if it has ended as it should.
            if worker.exitcode:
                sys.stderr.write(f"worker {worker.pid} of PyTorch ended ({worker.exitcode}), and its reader with it\n")
                sys.stderr.flush()
                if worker.exitcode < 0:
                    # The same signal, so that the report on this reader names the worker's cause of death.
                    os.kill(os.getpid(), -worker.exitcode)
                os._exit(1)

    def _keep(self, made: _Made) -> None:
        self._kept[self._next] = made
        self._next += 1
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]


def _leave_workers() -> None:
    """Lets ``get_worker_info`` be ``None`` here, as in a process that iterates by itself."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None:
        worker._worker_info = None
