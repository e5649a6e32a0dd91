"""Datasets that can only be iterated, in a cohort: one process, the reader, makes the batches of all jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from coprep._seeding import seed_all
from coprep._unshared import torch_loader

_EPOCH = 2**32
"""Stands for an epoch as a whole where random numbers are keyed by the number of a batch, which is smaller."""
_KEPT = 64
"""Batches that are kept for whoever asks for them late. More are on their way to the reader at no time."""


class EpochEnds(Exception):
    """The epoch has no such batch."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches)
        self.batches = batches
        """Batches that it has."""


class Batches:
    """A dataset that can only be iterated, with all that makes batches of it but the collation. Travels to the reader.

    Args:
        dataset: a ``torch.utils.data.IterableDataset``.
        transform: applied to each of its items.
        worker_init_fn: called in each of PyTorch's workers.
        batch_size: items of a batch; ``None``: an item is a batch.
        drop_last: as PyTorch's.
        workers: PyTorch's workers, each of which iterates the dataset. 0: the reader itself does.
        persistent_workers, prefetch_factor: of these workers.
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

    def __len__(self) -> int:
        # Nobody knows before the end of an epoch. The coordinator wants a number that is the same in all processes.
        return 1

    def __getitem__(self, number: int) -> Any:
        raise TypeError("the batches of an IterableDataset have no order but that of its iteration")

    def loader(self) -> Any:
        """Returns PyTorch's own loader of lists of items."""
        return torch_loader(
            self.dataset,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            num_workers=self.workers,
            collate_fn=_Items(self.transform, self.batch_size is not None),
            worker_init_fn=_WorkerInit(self.worker_init_fn, os.getpid()) if self.workers else None,
            # The main script is not to be found in a process that is started anew.
            multiprocessing_context="fork" if self.workers else None,
            persistent_workers=self.persistent_workers,
            prefetch_factor=self.prefetch_factor,
        )


class _Items:
    """Collates nothing: jobs do that."""

    def __init__(self, transform: Callable[[Any], Any] | None, batched: bool) -> None:
        self._transform = transform
        self._batched = batched

    def __call__(self, items: Any) -> Any:
        transform = self._transform
        if transform is None:
            return items
        return [transform(item) for item in items] if self._batched else transform(items)


class _WorkerInit:
    """Begins as one of PyTorch's workers that ends with its reader, however that ends."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None, reader: int) -> None:
        self._worker_init_fn = worker_init_fn
        self._reader = reader

    def __call__(self, number: int) -> None:
        from coprep._worker import end_with_parent

        end_with_parent(self._reader)
        if self._worker_init_fn is not None:
            self._worker_init_fn(number)


class _Made(NamedTuple):
    """A batch, or what was raised in its place."""

    batch: Any
    error: Exception | None = None


class Reader:
    """Gives the batches of an epoch by their numbers, and iterates the dataset for that.

    Numbers are asked for in ascending order, nearly. Whoever asks for one that was given before, because another reader
    or a job has ended, is given it again: the epoch is iterated from its beginning, and what comes before it is left
    out.

    Args:
        batches: what is iterated.
        seed: with epoch and number it keys the random numbers with which a batch is made.
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
        self._kept: dict[int, _Made] = {}
        """Made, and not given yet."""

    def batch(self, epoch: int, number: int) -> Any:
        """Returns a batch as a list of items; without batching, an item.

        Raises:
            EpochEnds: the epoch has no such batch.
            Exception: what the iteration raised in its place.
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
        # First of all PyTorch's workers end that iterate another epoch.
        self._iterator = None
        self._kept.clear()
        self._epoch, self._next, self._end = epoch, 0, None
        seed_all(self._seed, _EPOCH, epoch)
        try:
            if self._loader is None:
                _leave_workers()
                self._loader = self._batches.loader()
            self._iterator = iter(self._loader)
        except Exception as error:
            # As a loop over PyTorch's loader would: it ends with this.
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
            # Asked once more, the iterator goes on or ends, as it does with PyTorch.
            self._keep(_Made(None, error))

    def end_with_workers(self) -> None:
        """End this process if one of PyTorch's workers has ended.

        The others would go on without what that one had still to give. The next reader iterates the epoch anew.
        """
        for worker in getattr(self._iterator, "_workers", ()):
            # None: it runs.
            if worker.exitcode:
                sys.stderr.write(f"worker {worker.pid} of PyTorch ended ({worker.exitcode}), and its reader with it\n")
                sys.stderr.flush()
                if worker.exitcode < 0:
                    # So that the same is told of this process.
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
