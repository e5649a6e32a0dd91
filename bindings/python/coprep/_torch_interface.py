"""The attributes of PyTorch's loader that programs read and set, and PyTorch's own loader where nothing is shared."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from coprep import _arguments as arguments
from coprep._structure import Framework
from coprep._unshared import Transformed, TransformedBatch, torch_loader, warn_unshared

_FIXED = ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers")
"""Attributes that cannot be set after the loader was made, as with PyTorch."""


def default_collate(batch_size: int | None) -> Any:
    """Returns the function that PyTorch's loader has as its ``collate_fn`` where none is given."""
    data: Any = sys.modules.get("torch.utils.data")
    return data and (data.default_convert if batch_size is None else data.default_collate)


class TorchInterface:
    """The part of a loader that looks like PyTorch's, whether or not PyTorch's own loader makes the batches."""

    dataset: Any
    batch_size: int | None
    collate_fn: Any
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    transform: Callable[[Any], Any] | None

    _shuffle: bool
    _sampler: Any
    _batch_sampler: Any
    _collate: Any
    """The user's ``collate_fn``, or ``None`` for the default."""
    _batched: bool
    """``True`` if samples become batches."""
    _with_index: bool
    _framework: Framework
    _is_native: bool
    """``True`` if the dataset is a native pipeline."""
    _given_workers: int | None
    """``num_workers`` as it was given, while the public attribute may be set later."""
    _private: Any
    """PyTorch's own loader, if this loader shares nothing. It makes the batches."""
    _iterated: Any
    """PyTorch's own loader of an iterable dataset that is shared. This process never iterates it: it only looks at it
    for attributes and the length.
    """

    def _unshared(self, why: str, shuffle: bool | None = None) -> Any:
        """Returns PyTorch's own loader of this dataset, and warns that it shares nothing."""
        if self._is_native:
            raise ValueError(f"a native pipeline cannot have this order ({why}): use shuffle, subset and batch_size")
        if self._with_index or self._framework != "torch":
            raise ValueError(
                f"this loader cannot share ({why}): with_index, framework='numpy' and 'dlpack' need one that can"
            )
        warn_unshared(why)
        return self._torch_loader(shuffle)

    def _torch_loader(self, shuffle: bool | None) -> Any:
        """Returns PyTorch's own loader of this dataset."""
        is_iterable = arguments.is_iterable_dataset(self.dataset)
        # Each worker iterates over all of an iterable dataset: a second one would repeat every sample.
        default = 0 if is_iterable else len(os.sched_getaffinity(0))
        workers = default if self._given_workers is None else self._given_workers
        batching: dict[str, Any] = {"batch_sampler": self._batch_sampler}
        if self._batch_sampler is None:
            batching = {"batch_size": self.batch_size, "sampler": self._sampler, "drop_last": self.drop_last}
            batching["shuffle"] = shuffle
        dataset, collate = self.dataset, self._collate
        if self.transform is not None and is_iterable:
            collate = TransformedBatch(self.transform, collate, self._batched)
        elif self.transform is not None:
            dataset = Transformed(dataset, self.transform)
        return torch_loader(
            dataset,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=self.pin_memory,
            # PyTorch takes a timeout for worker processes only.
            timeout=self.timeout if workers else 0,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            in_order=self.in_order,
            **batching,
        )

    @property
    def _torchs(self) -> Any:
        """PyTorch's own loader, if the dataset is iterable or cannot be shared."""
        return self._private if self._private is not None else self._iterated

    @property
    def sampler(self) -> Any:
        """The sampler that was given, else PyTorch's sampler of the same order."""
        if self._sampler is not None:
            return self._sampler
        if self._torchs is not None:
            return self._torchs.sampler
        import torch.utils.data as data

        return data.RandomSampler(self.dataset) if self._shuffle else data.SequentialSampler(self.dataset)

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler that was given, else PyTorch's batch sampler of the same batches."""
        if self._batch_sampler is not None or self.batch_size is None:
            return self._batch_sampler
        if self._torchs is not None:
            return self._torchs.batch_sampler
        import torch.utils.data as data

        return data.BatchSampler(self.sampler, self.batch_size, self.drop_last)

    # Private attributes of PyTorch's loader that programs and libraries read nonetheless.

    @property
    def _auto_collation(self) -> bool:
        """Returns whether batches are made of samples."""
        return self._batch_sampler is not None or self.batch_size is not None

    @property
    def _index_sampler(self) -> Any:
        """Returns the sampler of batches, or without batching the sampler of samples."""
        return self.batch_sampler if self._auto_collation else self.sampler

    @property
    def _dataset_kind(self) -> Any:
        from torch.utils.data import dataloader

        return dataloader._DatasetKind.Map if self._torchs is None else self._torchs._dataset_kind

    @property
    def _iterator(self) -> Any:
        """The iterator that PyTorch's own loader keeps for persistent workers. A shared loader keeps none."""
        return None if self._private is None else self._private._iterator

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        if self._private is not None:
            self._private._iterator = iterator

    def __setattr__(self, name: str, value: Any) -> None:
        # `_iteration` is the last attribute that the constructor sets.
        if name in _FIXED and "_iteration" in self.__dict__:
            raise ValueError(f"{name} cannot be set after the loader was made: make another loader")
        super().__setattr__(name, value)
