"""The attributes of PyTorch's loader that programs read and set, and PyTorch's own loader where nothing is shared."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from coprep import _arguments as arguments
from coprep._orders import repeats
from coprep._structure import Framework
from coprep._unshared import Transformed, TransformedBatch, torch_loader, warn_unshared

_FIXED = ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers")
"""Attributes that cannot be set after the loader was made, as with PyTorch."""
_INITIALISED = "_DataLoader__initialized"
"""PyTorch's name for the attribute that says so. A class may clear it to replace such an attribute nonetheless."""
_OWN = ("transform",)
"""Attributes that may be set later and that PyTorch's loader does not have."""
_SETTINGS = ("dataset", "num_workers", "collate_fn", "pin_memory", "pin_memory_device", "timeout", "worker_init_fn") + (
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""Attributes that PyTorch's loader reads when a pass begins. Those of the order are in its samplers."""
_PREFETCHED = 2
"""Batches that each worker of PyTorch's loader prepares ahead by default."""


def default_collate(batched: bool) -> Any:
    """Returns the function that PyTorch's loader has as its ``collate_fn`` where none is given."""
    data: Any = sys.modules.get("torch.utils.data")
    return data and (data.default_collate if batched else data.default_convert)


class TorchInterface:
    """The part of a loader that looks like PyTorch's, whether or not PyTorch's own loader makes the batches."""

    dataset: Any
    batch_size: int | None
    collate_fn: Any
    pin_memory: bool
    pin_memory_device: str
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
    _made_samplers: dict[str, Any]
    """The loader's own ``sampler`` and ``batch_sampler``, once they were asked for."""
    _with_index: bool
    _framework: Framework
    _is_native: bool
    """``True`` if the dataset is a native pipeline."""
    _workers: int | None
    """Number of workers that the program wants, or ``None`` if it leaves that to the coordinator."""
    _default_collate: Any
    """The ``collate_fn`` that stands for the default, or ``None`` if the program gave another one."""
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
        return torch_loader(**self._torch_settings(), **self._batching(shuffle))

    def _batching(self, shuffle: bool | None) -> dict[str, Any]:
        """Returns the arguments of PyTorch's loader that say which samples make a batch."""
        if self._batch_sampler is not None:
            return {"batch_sampler": self._batch_sampler}
        sampler = self._sampler
        return {"batch_size": self.batch_size, "sampler": sampler, "drop_last": self.drop_last, "shuffle": shuffle}

    def _torch_settings(self) -> dict[str, Any]:
        """Returns the other arguments of PyTorch's loader, as they are set at present."""
        dataset, collate = self.dataset, self._collate
        if self.transform is not None and arguments.is_iterable_dataset(dataset):
            collate = TransformedBatch(self.transform, collate, self._batched)
        elif self.transform is not None:
            dataset = Transformed(dataset, self.transform)
        # The default is PyTorch's. More workers than that would take a dataset that keeps something to other processes,
        # and each of them would iterate over all of an iterable dataset.
        workers = self._workers or 0
        return {
            "dataset": dataset,
            "num_workers": workers,
            "collate_fn": default_collate(self._batched) if collate is None else collate,
            "pin_memory": self.pin_memory,
            "pin_memory_device": self.pin_memory_device,
            # PyTorch takes these for worker processes only.
            "timeout": self.timeout if workers else 0,
            "multiprocessing_context": self.multiprocessing_context if workers else None,
            "prefetch_factor": prefetched(self.prefetch_factor, workers) if workers else None,
            "persistent_workers": self.persistent_workers and workers > 0,
            "worker_init_fn": self.worker_init_fn,
            "generator": self.generator,
            "in_order": self.in_order,
        }

    def _set_torchs(self) -> None:
        """Lets PyTorch's own loader have the attributes that this loader has at present."""
        loader = self._torchs
        if loader is None:
            return
        for name, value in self._torch_settings().items():
            # PyTorch's class refuses to set some of them.
            object.__setattr__(loader, name, value)
        replaced = self._replaced
        if replaced is not None:
            object.__setattr__(loader, "batch_sampler" if self._auto_collation else "sampler", replaced)
        # Persistent workers of former passes have the former settings.
        loader._iterator = None

    def _settings_now(self) -> dict[str, Any]:
        """Returns the attributes that count from the next pass on, as they are set at present."""
        return {name: getattr(self, name) for name in (*_SETTINGS, *_OWN)} | {"sampler": self._replaced}

    @property
    def _replaced(self) -> Any:
        """The sampler that a class has put in the place of the loader's, or ``None``.

        It gives batches, or without batching samples.
        """
        name = "batch_sampler" if self._auto_collation else "sampler"
        found = vars(self).get(name)
        return None if found is self._made_samplers.get(name) else found

    @property
    def _repeats(self) -> bool:
        """Returns whether that sampler gives the loader's batches again and again, so that one pass never ends."""
        name = "batch_sampler" if self._auto_collation else "sampler"
        return self._replaced is not None and repeats(self._replaced, self._made_samplers.get(name))

    @property
    def _torchs(self) -> Any:
        """PyTorch's own loader, if the dataset is iterable or cannot be shared."""
        return self._private if self._private is not None else self._iterated

    # These two are in the instance's `__dict__` once they were read, as in PyTorch's. A class may replace them there.

    @functools.cached_property
    def sampler(self) -> Any:
        """The sampler that was given, else PyTorch's sampler of the same order."""
        return self._made("sampler", self._make_sampler())

    @functools.cached_property
    def batch_sampler(self) -> Any:
        """The batch sampler that was given, else PyTorch's batch sampler of the same batches."""
        return self._made("batch_sampler", self._make_batch_sampler())

    def _made(self, name: str, sampler: Any) -> Any:
        self._made_samplers[name] = sampler
        return sampler

    def _make_sampler(self) -> Any:
        if self._sampler is not None:
            return self._sampler
        if self._torchs is not None:
            return self._torchs.sampler
        import torch.utils.data as data

        if self._shuffle:
            return data.RandomSampler(self.dataset, generator=self.generator)
        return data.SequentialSampler(self.dataset)

    def _make_batch_sampler(self) -> Any:
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
        if name in _FIXED and vars(self).get(_INITIALISED):
            raise ValueError(f"{name} cannot be set after the loader was made: make another loader")
        super().__setattr__(name, value)


def prefetched(prefetch_factor: int | None, workers: int) -> int | None:
    """Returns the ``prefetch_factor`` that is given, else that of PyTorch's loader with so many workers."""
    return _PREFETCHED if prefetch_factor is None and workers else prefetch_factor


def changed(before: dict[str, Any], now: dict[str, Any]) -> set[str]:
    """Returns the names of the settings that are others than before."""
    return {name for name, value in now.items() if not _is_same(value, before[name])}


def _is_same(one: Any, other: Any) -> bool:
    # Objects of the user's may be equal to others in a way of their own. A bound method is made anew each time.
    is_value = type(one) is type(other) and isinstance(one, (int, float, str, MethodType))
    return one is other or (is_value and bool(one == other))
