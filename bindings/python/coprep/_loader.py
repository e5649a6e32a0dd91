"""The data loader: what needs no coordinator. The rest is native."""

from __future__ import annotations

import atexit
import base64
import contextlib
import itertools
import json
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn

import numpy.typing as npt

from coprep import _arguments as arguments
from coprep import _coprep
from coprep._batches import (
    NOTHING,
    Images,
    InJob,
    Iterated,
    Make,
    Samples,
    framework_of,
    pinner,
    samples_errors,
    users_exception,
)
from coprep._errors import CacheWarning, CoprepError, SampleError
from coprep._orders import CannotBeShared, OwnOrder, own_order
from coprep._unshared import Transformed, TransformedBatch, torch_loader, warn_unshared

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The default is Any, so that a loader needs no annotation.
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

STATE_VERSION = 2
"""Version 1 had bytes where version 2 has text; both can be loaded."""
_TIMEOUT = 600.0
"""Seconds that nothing takes, unless ``timeout`` says otherwise."""
_LONGEST = 1e7
"""Seconds; a longer ``timeout``, infinity too, is as good as this."""
_EMPTY_SET = b"\x3a\x30\x00\x00\x00\x00\x00\x00"
"""A Roaring bitmap of nothing, in its portable format."""

_preparations: weakref.WeakKeyDictionary[DataLoader[Any], _coprep.Preparation] = weakref.WeakKeyDictionary()
"""Of loaders that are not connected yet. Not attributes, since such a loader can be pickled."""
_own_orders = itertools.count()
"""Counts the loaders with samplers of their own that ``COPREP_COHORT`` makes members of a cohort."""
_ranks: weakref.WeakSet[DataLoader] = weakref.WeakSet()
"""Loaders of jobs with several ranks."""


@atexit.register
def _leave_jobs() -> None:
    """The process ends. While it still can, it says so to the other ranks of its jobs."""
    for loader in list(_ranks):
        loader.close()


_FIXED = ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers")


class DataLoader(Generic[T_co]):
    """Iterates over minibatches that are prepared once for all concurrent jobs that need them.

    Takes the arguments of ``torch.utils.data.DataLoader`` with their meaning there, and some more. ``DataLoader[T]``
    annotates a loader of samples of type ``T``, as in PyTorch.

    Each pass is an epoch: every sample of the job's set exactly once. A loader joins a stream when it is first used
    (iteration, ``len``, ...); the first loader starts the coordinator. The coordinator begins to import what a Python
    dataset needs as soon as its loader is made, in the background, so that the first batch need not wait for that.

    - The batches of a **native pipeline** (``coprep.ImageFolder(...)...``) are ``(images, labels)``: images are uint8,
      or float32 after ``normalize``, of shape (batch, 3, height, width); labels are int64 of shape (batch,).
    - The batches of a map-style **Python dataset** are what PyTorch's default collation, or ``collate_fn``, makes of
      its samples. Worker processes that all jobs of the stream share run ``dataset[i]``.
    - An **IterableDataset** is shared in a ``cohort``, whose jobs get the batches of one iteration. Elsewhere it works
      by PyTorch's own loader, and shares nothing (:class:`UnsharedWarning`).

    Batches lie in shared memory and were not copied. You may write to them in place, and no other job sees it. They
    stay valid as long as you hold anything of them.

    Jobs share when their dataset, transform, ``shuffle`` and cache form are the same, and ``seed`` too where it is
    given. ``coprep status`` says in what two streams differ that look alike. A class of yours may say by a method
    ``__coprep_identity__()`` what identifies its instances; otherwise their attributes do.

    Args:
        dataset: a native pipeline; or any object with ``__len__`` and ``__getitem__``; or ``"module:factory"``, a
            function that makes the dataset in each process that needs it.
        batch_size: number of samples in a batch, per rank. ``None``: no batches, one sample at a time.
        shuffle: random order, a new one each epoch. Otherwise ids ascend, whichever other jobs share the stream; with
            ``order="relaxed"`` they may come in another order beside other jobs.
        sampler, batch_sampler: PyTorch's sequential, random, subset-random, batch and distributed samplers are
            shared, as ``shuffle``, ``subset``, ``batch_size`` and ranks are; so are
            ``RandomSampler(replacement=True)`` and ``WeightedRandomSampler``, among jobs with equal weights and
            ``num_samples``. Any other works, but shares nothing (:class:`UnsharedWarning`); in a ``cohort``
            it is shared: all jobs get the samples of the sampler of the first job that begins an epoch.
        num_workers: worker processes of the stream, whose first job decides how many. ``None``: as many as the
            coordinator has processors. 0: samples are made in this process, in the same order and with the same random
            numbers, for a debugger. Without effect for a native pipeline. For an ``IterableDataset`` in a cohort:
            PyTorch's workers, each of which iterates it; 0 or ``None``: one process iterates it for all jobs.
        collate_fn: makes a batch of a list of samples, in the job.
        pin_memory: batches are copied into pinned memory, if there is an accelerator.
        drop_last: leave out the last batch if it is short.
        timeout: seconds, 0 for 600. A worker that takes longer for a sample is replaced. A job that waits longer for a
            batch (with a Python dataset: three times as long) gets a :class:`TimeoutError` that says who is awaited.
        worker_init_fn: called with its number in each worker that starts. Generators that it seeds have no effect on
            samples, and a warning says so: each sample is seeded anew.
        multiprocessing_context: with ``"spawn"`` (or ``"forkserver"``) each worker loads the dataset anew; else it is
            loaded once per stream, and workers are forked from there.
        generator: its seed is taken where ``seed`` is not given.
        prefetch_factor, in_order, pin_memory_device: accepted as by PyTorch. But the coordinator decides how far ahead
            it prepares, and batches always come in order (``order="relaxed"`` is for what ``in_order=False`` is for).
        persistent_workers: do not look for changes of the dataset between epochs.
        transform: the random part of the preparation, called with ``dataset[i]``, which is cached.
        seed: keys order and augmentation. ``None`` takes the seed of the jobs that run already, so that trials of a
            search share; a number is shared only with jobs that give the same.
        rank, world_size: number of this process among those of the job, and how many they are; by default as
            ``torch.distributed`` or the launcher's environment says. All ranks get equally many batches.
        group: a name that the ranks of this job have in common and no other job has; by default taken from the
            launcher's environment.
        order: ``"deterministic"``: a seed says what is in every batch. ``"relaxed"``: a sample that takes longer than
            most may come in a later batch of the same epoch, so that it holds nobody up. With ``shuffle=False`` it
            says that a pass cares for the set of samples and not for their order: jobs at different places then share.
        on_error: ``"raise"`` an error for a sample that cannot be prepared, or ``"skip"`` it: another takes its place
            (in ascending order and in a cohort the batch is shorter by it), ``stats()["skipped"]`` counts it, and the
            first one gives a :class:`SkippedSampleWarning`.
        subset: ids of this job's samples, each once, or a boolean mask with one element for each sample; ``None`` means
            all.
        cohort: name common to ``cohort_size`` jobs that start together, advance together and get the same batches,
            reproducibly. Shares any sampler, and an ``IterableDataset``. By default ``COPREP_COHORT=name:size`` says
            so.
        cohort_size: number of jobs to wait for.
        framework: ``"torch"``, ``"numpy"``, or ``None``: torch if it is installed.
        cache: form in which samples are cached: ``"auto"`` (for each sample the form that saves most time for its
            bytes, or none), ``"off"``, ``"encoded"`` (native pipelines), ``"decoded"`` (of a Python dataset: the value
            of ``dataset[i]``, before ``transform``), ``"prepared"`` (Python datasets: after everything, so that nothing
            random is renewed). ``None``: the coordinator's setting; for a Python dataset without ``transform``: off.
        cache_bytes: most bytes to cache, a number or such as ``"8G"``; ``None``: what the dataset needs, within the
            coordinator's budget.
        cache_policy: ``"no-eviction"``, or ``"lru"`` as a baseline.
        reuse: for a Python dataset: number of uses of a prepared sample, random parts and all, before it is made anew.
        with_index: batches are ``(images, labels, ids)``; of a Python dataset ``(batch, ids)``.
        name: name of the job in ``coprep status``.
        socket: path of the coordinator's socket; by default ``COPREP_SOCKET``, else in the user's runtime directory.

    Raises:
        ValueError, TypeError: an argument is wrong (some are checked at first use).
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transform: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: str | None = None,
        order: Literal["deterministic", "relaxed"] = "deterministic",
        on_error: Literal["raise", "skip"] = "raise",
        subset: Iterable[int] | npt.NDArray[Any] | None = None,
        cohort: str | None = None,
        cohort_size: int | None = None,
        framework: Literal["torch", "numpy"] | None = None,
        cache: Literal["auto", "off", "encoded", "decoded", "prepared"] | None = None,
        cache_bytes: int | str | None = None,
        cache_policy: Literal["no-eviction", "lru"] = "no-eviction",
        reuse: int | None = None,
        with_index: bool = False,
        name: str | None = None,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        arguments.one_of("order", order, ("deterministic", "relaxed"))
        arguments.one_of("on_error", on_error, ("raise", "skip"))
        arguments.one_of("cache", cache, ("auto", "off", "encoded", "decoded", "prepared", None))
        arguments.one_of("cache_policy", cache_policy, ("no-eviction", "lru"))
        arguments.one_of("framework", framework, ("torch", "numpy", None))
        spawn = arguments.check_workers(
            num_workers, timeout, prefetch_factor, persistent_workers, multiprocessing_context
        )
        arguments.check_exclusive(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if reuse is not None and cache not in (None, "prepared"):
            raise ValueError(
                f"reuse keeps prepared samples, and cache={cache!r} says something else: leave one of them out"
            )
        self.dataset = dataset
        size = None if batch_size is None else arguments.integer("batch_size", batch_size, 1, 2**31 - 1)
        self.batch_size = size if batch_sampler is None else None
        self.num_workers: int | None = num_workers
        self._given_workers = num_workers
        self.collate_fn = collate_fn if collate_fn is not None else _default_collate(size)
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = bool(drop_last)
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.transform = transform
        self._shuffle = bool(shuffle)
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self._collate = self._own_collate(collate_fn)
        self._batched = size is not None
        self._with_index = with_index
        self._framework = framework_of(framework)
        self._private: Any = None
        self._own_order: OwnOrder | None = None
        self._iterated: Any = None
        """PyTorch's loader of a dataset that can only be iterated and is shared. Is never iterated here."""
        self._cohort = arguments.cohort(cohort, cohort_size)
        self._names_cohort = cohort is not None
        self._is_native = isinstance(dataset, _coprep.Pipeline)
        if not self._is_native:
            arguments.check_dataset(dataset)
            arguments.warn_of_many_workers(num_workers)
        elif collate_fn is not None or transform is not None or size is None:
            raise TypeError(
                "a native pipeline makes whole batches: it takes no collate_fn, transform or batch_size=None"
            )
        self._limit = min(float(timeout) or _TIMEOUT, _LONGEST)
        if world_size is not None:
            arguments.integer("world_size", world_size, 1, 4096)
        if rank is not None:
            arguments.integer("rank", rank, 0, (world_size or 4096) - 1)
        self._place = (rank, world_size, group)
        one_order = self._one_order(shuffle, subset)
        self._options: dict[str, Any] = {
            "name": name or os.path.basename(sys.argv[0] or "python"),
            "socket": socket,
            # A sample may be given to two workers for so long each, before it is reported.
            "timeout": self._limit if self._is_native else 3 * self._limit,
            "batch_size": size or 1,
            "shuffle": self._shuffle,
            "draws": None,
            "relaxed": order == "relaxed",
            "seed": arguments.seed_of(generator) if seed is None else arguments.integer("seed", seed, 0, 2**64 - 1),
            "drop_last": self.drop_last,
            "skip_errors": on_error == "skip",
            "subset": None,
            "mask_samples": None,
            "cohort": self._cohort,
            "is_told": self._own_order is not None,
            "cache": cache,
            "cache_bytes": _coprep.parse_size(cache_bytes) if isinstance(cache_bytes, str) else cache_bytes,
            "lru": cache_policy == "lru",
            "reuse": 0 if reuse is None else arguments.integer("reuse", reuse, 1, 2**31 - 1),
        }
        self._apply(one_order)
        if self._own_order is not None:
            self._set_own_order(self._own_order)
        if self._iterated is not None:
            self._set_iterated()
        if subset is not None:
            self._set_subset(subset)
        self._code: Any = None
        self._identity: Any = None
        self._make: Make = self._maker(spawn, on_error == "skip")
        self._pin = pinner(pin_memory, pin_memory_device)
        self._loader: _coprep.Loader | None = None
        self._resume: tuple[int, bytes, int, int, bytes | None] | None = None
        self._resumes_order = False
        self._closed = False
        self._has_warned = False
        self._made()
        self._iteration = 0
        self._prepare()

    # What the arguments come to.

    def _made(self) -> None:
        """Let a class that derives from this one finish a loader."""

    def _own_collate(self, collate_fn: Any) -> Any:
        return collate_fn

    def _one_order(self, shuffle: bool | None, subset: Any) -> arguments.Order | None:
        if arguments.is_iterable_dataset(self.dataset):
            if subset is not None:
                raise ValueError("subset names samples by their ids, and an IterableDataset has none: leave it out")
            why = self._why_not_iterated()
            if why is None:
                self._iterated = self._torch_loader(shuffle)
            else:
                self._private = self._unshared(why, shuffle=shuffle)
            return None
        sampler = self._sampler if self._sampler is not None else self._batch_sampler
        if sampler is None:
            return None
        if isinstance(self.dataset, str):
            raise ValueError(
                "a sampler needs the dataset itself: give shuffle, subset and batch_size with an import string"
            )
        if subset is not None:
            raise ValueError("subset and a sampler both say which samples: give one of them")
        order = arguments.order_of(sampler, self.dataset)
        if isinstance(order, arguments.Order) and order.batch_size is not None and self._sampler is not None:
            order = "it gives lists of ids, of which the dataset makes batches"
        if isinstance(order, arguments.Order):
            return order
        own = self._order_of_cohort(order)
        if isinstance(own, OwnOrder):
            self._own_order = own
        else:
            self._private = self._unshared(own)
        return None

    def _why_not_iterated(self) -> str | None:
        """Returns why a dataset that can only be iterated is not shared; ``None``: its cohort shares it."""
        why = f"{type(self.dataset).__name__} is an IterableDataset, whose samples have no ids"
        if self._cohort is None:
            return f"{why}, so that only a cohort can share it"
        if arguments.has_other_ranks(*self._place):
            return f"{why}, and each rank has its own"
        if self._with_index:
            return why
        from coprep._usercode import UserCode

        try:
            UserCode(self._batches(), None, None, whole=True, batched=True, spawn=False).identity()
        except TypeError as error:
            # PyTorch's own loader need not pickle it.
            return str(error)
        return None

    def _batches(self) -> Any:
        from coprep._iterables import Batches

        return Batches(
            self.dataset,
            self.transform,
            self.worker_init_fn,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            workers=self._given_workers or 0,
            persistent_workers=self.persistent_workers,
            prefetch_factor=self.prefetch_factor,
        )

    def _set_iterated(self) -> None:
        options = self._options
        if options["cache"] not in (None, "auto", "off") or options["reuse"]:
            raise ValueError(
                "the batches of an IterableDataset have no ids, so that none can be cached: leave cache and reuse out"
            )
        # The coordinator counts batches, each of which is one sample to it.
        options.update(batch_size=1, drop_last=False, relaxed=False, cache="off", cache_bytes=None)
        self._join_alone()

    def _order_of_cohort(self, why: str) -> OwnOrder | str:
        """Returns the order of a sampler that is shared in a cohort, or why it is not: outside of one it is ``why``."""
        if self._cohort is None or not (self._is_native or hasattr(self.dataset, "__len__")):
            return why
        if arguments.has_other_ranks(*self._place):
            return f"{why}, and each rank has its own"
        return own_order(self._sampler, self._batch_sampler)

    def _set_own_order(self, order: OwnOrder) -> None:
        self._refuse_reuse()
        if order.batch_size is not None:
            self._options["batch_size"] = order.batch_size
        self._join_alone()

    def _join_alone(self) -> None:
        """Makes this process a member of the cohort, apart from its other loaders whose epochs are their own."""
        rank, world_size, group = self._place
        if world_size is None:
            self._place = (0, 1, group)
        if self._cohort is not None and not self._names_cohort:
            # One name is for all loaders of the program. Those that have samplers of their own, or iterable datasets,
            # are told apart by the order in which they are made, since two on one dataset would be taken for two jobs.
            name, size = self._cohort
            number = next(_own_orders)
            self._options["cohort"] = (f"{name}, loader {number + 1}" if number else name, size)

    def _refuse_reuse(self) -> None:
        if self._options["reuse"]:
            raise ValueError(
                "reuse counts the epochs that a prepared sample is used for, and this sampler may give a sample many "
                "times in one, or not at all: leave reuse out, or give cache='prepared'"
            )

    def _apply(self, order: arguments.Order | None) -> None:
        if order is None:
            return
        options = self._options
        options["shuffle"] = order.shuffle
        options["draws"] = order.draws
        if order.draws is not None:
            self._refuse_reuse()
        if order.subset is not None:
            self._set_subset(order.subset)
        if options["seed"] is None:
            options["seed"] = order.seed
        if order.batch_size is not None:
            options["batch_size"] = order.batch_size
        if order.drop_last:
            options["drop_last"] = True
        rank, world_size, group = self._place
        if world_size is None:
            self._place = (order.rank, order.world_size, group)

    def _set_subset(self, given: Any) -> None:
        subset = arguments.subset(given, self._known_length)
        self._options["subset"], self._options["mask_samples"] = subset

    def _known_length(self) -> int | None:
        """Samples of the dataset, if the coordinator need not be asked."""
        return None if self._is_native or isinstance(self.dataset, str) else len(self.dataset)

    def _maker(self, spawn: bool, skip_errors: bool) -> Make:
        if self._is_native:
            return Images(self._framework, self._with_index)
        from coprep._usercode import UserCode

        if self._iterated is not None:
            made = Iterated(self._framework, self._collate, self._batched)
            self._code = UserCode(self._batches(), None, None, whole=True, batched=self._batched, spawn=spawn)
            return made
        samples = Samples(self._framework, self._collate, self._batched, self._with_index)
        self._code = UserCode(
            self.dataset,
            self.transform,
            self.worker_init_fn,
            whole=samples.whole,
            batched=samples.batched,
            spawn=spawn,
            in_job=self._is_in_job,
        )
        if not self._is_in_job:
            return samples
        uses = self._options["reuse"] or (0 if self._options["cache"] == "prepared" else None)
        return InJob(self._code, samples, skip_errors, uses)

    def _unshared(self, why: str, shuffle: bool | None = None) -> Any:
        """Returns PyTorch's own loader, for what cannot be shared."""
        if self._is_native:
            raise ValueError(f"a native pipeline cannot have this order ({why}): use shuffle, subset and batch_size")
        if self._with_index or self._framework == "numpy":
            raise ValueError(f"this loader cannot share ({why}): with_index and framework='numpy' need one that can")
        warn_unshared(why)
        return self._torch_loader(shuffle)

    def _torch_loader(self, shuffle: bool | None) -> Any:
        is_iterable = arguments.is_iterable_dataset(self.dataset)
        # Each worker iterates over all of an iterable dataset, so that nobody has more than one unasked.
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
        """PyTorch's own loader of what has no ids, or cannot be shared."""
        return self._private if self._private is not None else self._iterated

    @property
    def _is_in_job(self) -> bool:
        """Returns whether samples are made in this process."""
        return self._given_workers == 0 and not self._is_native and self._iterated is None

    @property
    def sampler(self) -> Any:
        """As it was given; else PyTorch's, of the same order."""
        if self._sampler is not None:
            return self._sampler
        if self._torchs is not None:
            return self._torchs.sampler
        import torch.utils.data as data

        return data.RandomSampler(self.dataset) if self._shuffle else data.SequentialSampler(self.dataset)

    @property
    def batch_sampler(self) -> Any:
        """As it was given; else PyTorch's, of the same batches."""
        if self._batch_sampler is not None or self.batch_size is None:
            return self._batch_sampler
        if self._torchs is not None:
            return self._torchs.batch_sampler
        import torch.utils.data as data

        return data.BatchSampler(self.sampler, self.batch_size, self.drop_last)

    # Attributes that PyTorch keeps to itself, and that programs and libraries look at nonetheless.

    @property
    def _auto_collation(self) -> bool:
        """Returns whether batches are made of samples."""
        return self._batch_sampler is not None or self.batch_size is not None

    @property
    def _index_sampler(self) -> Any:
        """Returns the sampler of batches; without batching, that of samples."""
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
        if name in _FIXED and "_iteration" in self.__dict__:
            raise ValueError(f"{name} cannot be set after the loader was made: make another loader")
        super().__setattr__(name, value)

    # The connection.

    @property
    def _native(self) -> _coprep.Loader:
        """Made at first use: only then it is known which rank this is, and what the dataset is like."""
        if self._private is not None:
            raise CoprepError(
                "this loader shares nothing with other jobs: PyTorch's own loader makes its batches, and there is no "
                "coordinator to ask for its state, seed or counts. For checkpoints in mid-epoch give it an order that "
                "can be shared (shuffle, subset), or use torchdata's StatefulDataLoader"
            )
        if self._loader is None:
            if self._closed:
                raise CoprepError("the loader is closed")
            self._loader = self._connect()
        return self._loader

    def _connect(self) -> _coprep.Loader:
        place = arguments.place(*self._place)
        mask = self._options["mask_samples"]
        if mask is not None:
            # The dataset may have changed since the loader was made.
            arguments.check_mask(mask, self._known_length())
            arguments.check_mask(mask, self._resume and self._resume[3])
        code = None
        pipeline = self.dataset
        if self._code is not None:
            in_job = self._is_in_job
            self._identity = self._code.identity()
            identity = self._identity
            if in_job and identity.samples is None:
                identity = identity._replace(samples=len(self._code.local().dataset))
            split = self.transform is not None and self._iterated is None
            pipeline = identity.pipeline(split=split, in_job=in_job)
            code = None if in_job else (self._launch(), self._code.packed)
        options = dict(self._options)
        if self._is_in_job:
            options.update(cache="off", cache_bytes=None, reuse=0)
        if place.world_size > 1:
            _ranks.add(self)
        return _coprep.Loader(
            pipeline,
            rank=place.rank,
            world_size=place.world_size,
            group=place.group,
            resume=self._resume,
            code=code,
            preparation=_preparations.pop(self, None),
            **options,
        )

    def _launch(self) -> Any:
        workers = 1 if self._iterated is not None else self._given_workers or 0
        return self._code.launch(workers, self._limit)

    def _prepare(self) -> None:
        """Let the coordinator import, while this job does something else, what the dataset needs."""
        if self._private is not None or self._code is None or not self._code.is_preloaded or self._is_in_job:
            return
        # It is an error when the loader is used, if it is one.
        with contextlib.suppress(Exception):
            name, socket = self._options["name"], self._options["socket"]
            _preparations[self] = _coprep.Preparation(self._launch(), dataset=self._code.name, name=name, socket=socket)

    def _follow_dataset(self) -> None:
        """Changes of the dataset since the last epoch are seen, as by workers that PyTorch starts for each epoch."""
        if self._code is None or self._loader is None or self.persistent_workers or self._identity is None:
            return
        if self._code.identity() != self._identity:
            self._begin_anew()

    def _follow_weights(self) -> None:
        """Weights that were changed since the last epoch count in the next one, as with PyTorch's sampler."""
        sampler = self._sampler if self._sampler is not None else self._batch_sampler
        if self._options["draws"] is None or sampler is None:
            return
        order = arguments.order_of(sampler, self.dataset)
        if isinstance(order, str):
            raise ValueError(f"the sampler was changed, and its draws can no longer be shared: {order}")
        if order.draws != self._options["draws"]:
            self._options["draws"] = order.draws
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Let the next epoch be of another stream."""
        if self._loader is None:
            return
        epoch = self._loader.epoch()
        attached = self._loader.attached()
        samples = attached["dataset_samples"] if self._iterated is not None else _samples(self.dataset, attached)
        self._resume = (epoch, _EMPTY_SET, attached["seed"], samples, None)
        self._loader.close()
        self._loader = None

    # Iteration.

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch: the next one, or the rest of the epoch whose state was loaded.

        Leaving an epoch early (``break``) gives up its rest; the next pass is a whole epoch.
        """
        if self._private is not None:
            return iter(self._private)
        if not self._is_native and not isinstance(self.dataset, str):
            # A sampler of the user's own has to be iterated before its number of samples is known.
            sized = self if self._own_order is None else self.dataset
            if self._iterated is None and len(sized) == 0:
                return iter(())
        self._follow_dataset()
        self._follow_weights()
        failed = None
        try:
            order = self._next_order()
        except CannotBeShared as error:
            if self._loader is not None:
                raise
            # The other members of the cohort find the same of theirs.
            self._private = self._unshared(str(error))
            return iter(self._private)
        try:
            self._native.start_epoch(order)
        except SampleError as error:
            # As with PyTorch, what a sample raises is raised where its batch is asked for.
            failed = error
        self._iteration += 1
        if failed is None:
            # Else there is nobody to ask.
            self._warn_of_cold_cache()
        return _Epoch(self, self._iteration, failed)

    def _next_order(self) -> bytes | None:
        """Returns the order that the user's own sampler gives the next epoch."""
        resumes, self._resumes_order = self._resumes_order, False
        if self._own_order is None or resumes:
            # The rest of an epoch is of the order that it was begun in.
            return None
        samples = self._native.attached()["dataset_samples"] if self._is_native else len(self.dataset)
        return self._own_order.ids(samples)

    def _warn_of_cold_cache(self) -> None:
        """Say once, on one rank, that somebody warmed a cache for such jobs and that this job does not use it."""
        if self._has_warned or arguments.place(*self._place).rank != 0:
            return
        self._has_warned = True
        for note in self._native.attached()["notes"]:
            warnings.warn(note, CacheWarning, stacklevel=3)

    def __len__(self) -> int:
        """Returns the number of batches of this rank in an epoch."""
        if self._torchs is not None:
            return len(self._torchs)
        if self._own_order is not None:
            return self._own_order.batches(self._options["batch_size"], self._options["drop_last"])
        if self._is_native or isinstance(self.dataset, str):
            with samples_errors():
                return self._native.batches_per_epoch()
        subset, draws = self._options["subset"], self._options["draws"]
        if draws is not None:
            samples = draws.length
        else:
            samples = len(self.dataset) if subset is None else len(memoryview(subset).cast("I"))
        step = self._options["batch_size"] * arguments.place(*self._place).world_size
        return int(samples // step if self._options["drop_last"] else -(-samples // step))

    @property
    def epoch(self) -> int:
        """Number of the epoch that is being iterated, or that begins next, from 0."""
        return self._native.epoch()

    @property
    def seed(self) -> int:
        """The seed in force."""
        seed: int = self._native.attached()["seed"]
        return seed

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by label."""
        classes: list[str] = self._native.attached()["classes"]
        return classes

    def state_dict(self) -> dict[str, Any]:
        """Returns the job's position after its last batch: epoch, ids given in it, seed. Can be written as JSON.

        Where samples are drawn with replacement, the state holds the numbers of the draws instead of ids, and
        ``draws``, which stands for their weights and their number. With a sampler of your own in a cohort it holds the
        places of samples in the order of the epoch, and that order, which takes 5.3 bytes for each sample.

        A state that is taken in the loop after the last batch has an empty rest: the loop that resumes it ends at once,
        and the next one is a whole epoch. A state that is taken after the loop has ended is of the next epoch.

        With several ranks, call it on each of them at the same step; each state holds the samples of all ranks.
        """
        epoch, delivered, seed, samples, order, all_ranks = self._native.state()
        draws = self._options["draws"]
        state = {
            "version": STATE_VERSION,
            "epoch": epoch,
            "delivered": base64.b64encode(delivered).decode(),
            "seed": seed,
            "samples": samples,
            "all_ranks": all_ranks,
        }
        if draws is not None:
            state["draws"] = draws.identity
        if order is not None:
            state["order"] = base64.b64encode(order).decode()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where ``state`` was taken. The next pass is the rest of that epoch.

        Raises:
            ValueError: the state is of another version, of another seed than this loader was given, or of other draws.
        """
        if state.get("version") not in (1, STATE_VERSION):
            raise ValueError(f"not a state of this version of coprep: version {state.get('version')!r}")
        seed = self._options["seed"]
        if seed is not None and seed != state["seed"]:
            raise ValueError(f"the state was taken with seed {state['seed']}, and this loader has seed {seed}")
        draws = self._options["draws"]
        if state.get("draws") != (draws and draws.identity):
            raise ValueError(
                "the state was taken of other draws than this loader's: give the sampler the weights and num_samples "
                "that it had, or leave it out if there was none"
            )
        delivered, order = _ids_given(state["delivered"]), state.get("order")
        if delivered != _EMPTY_SET and (order is not None) != (self._own_order is not None):
            raise ValueError(
                "the state was taken with another kind of sampler: a sampler of its own in a cohort goes on with the "
                "same only"
            )
        before, self._closed = self._loader, False
        order = None if order is None else _decoded("order", order)
        self._resume = (state["epoch"], delivered, state["seed"], state["samples"], order)
        self._loader = self._connect()
        if before is not None:
            before.close()
        self._resumes_order = order is not None
        self._iteration += 1

    def stats(self, slow: int = 0) -> dict[str, Any]:
        """Returns counts since the loader was made.

        The keys are ``batches``, ``samples``, ``copies`` (batches that were copied), ``errors`` and ``reconnects``;
        ``skipped``, the samples that are left out of the epochs because they failed, each counted once; and the seconds
        that the job waited, ``wait_s``. ``fetch_stall_s``, ``prep_stall_s`` and ``others_stall_s`` split these seconds
        by what the coordinator lacked: storage, processors, or other jobs.

        Args:
            slow: number of the most expensive samples of the stream to add as ``slow``, each with ``id``, ``path``, and
                seconds by stage. The coordinator is asked for them, which takes some milliseconds.
        """
        stats: dict[str, Any] = self._native.stats()
        if isinstance(self._make, InJob):
            stats["skipped"] = self._make.skipped
        if slow:
            stats["slow"] = self._slowest(slow)
        return stats

    def _slowest(self, count: int) -> list[dict[str, Any]]:
        stream = self._native.attached()["stream"]
        try:
            status = json.loads(_coprep.status(self._options["socket"], count))
        except CoprepError:
            # The coordinator has just ended.
            return []
        found = (s["costs"]["slowest"] for s in status["streams"] if s["id"] == stream)
        return next(found, [])

    def __repr__(self) -> str:
        dataset = (
            repr(self.dataset) if self._is_native or isinstance(self.dataset, str) else type(self.dataset).__name__
        )
        if self._private is not None:
            parts = ["shares nothing"]
        else:
            size = self.batch_size if self._iterated is not None else self._options["batch_size"]
            parts = [f"batch_size={size if self._batched else None}"]
            if self._iterated is not None:
                parts.append("in the order of its iteration")
            elif self._own_order is not None:
                parts.append(f"the order of {type(self._own_order.sampler).__qualname__}")
            else:
                parts.append(f"shuffle={self._options['shuffle']}")
            parts += [f"seed={self._options['seed']}"] if self._options["seed"] is not None else []
            draws = self._options["draws"]
            parts += [f"{draws.length} draws with replacement"] if draws is not None else []
            parts += ["a subset"] if self._options["subset"] is not None else []
            parts.append("samples made in this process" if self._is_in_job else "shared")
        return f"<coprep.DataLoader of {dataset}: {', '.join(parts)}>"

    def close(self) -> None:
        """Let go of the coordinator. Batches that are held stay valid."""
        self._closed = True
        _preparations.pop(self, None)
        if self._loader is not None:
            self._loader.close()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Epoch(Iterator[Any]):
    """One pass."""

    def __init__(self, loader: DataLoader[Any], number: int, failed: SampleError | None) -> None:
        self._loader = loader
        self._native = loader._native
        self._number = number
        self._over = False
        self._failed = failed
        self._failures = 0

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def _workers(self) -> list[Any]:
        """Worker processes of this job, as PyTorch's iterator has them: workers belong to the coordinator."""
        return []

    def _shutdown_workers(self) -> None:
        """End the pass. Programs call this on PyTorch's iterator to be rid of its workers."""
        self._over = True

    def __next__(self) -> Any:
        loader = self._loader
        while not self._over:
            if self._number != loader._iteration:
                raise RuntimeError("this iterator is over: a newer one of the same loader has begun")
            if self._failed is not None:
                self._fail(self._failed)
            try:
                arrays = self._native.next()
            except SampleError as error:
                raised = users_exception(error)
                raise raised from raised.__cause__
            if arrays is None:
                break
            batch = loader._make(arrays, self._native)
            if batch is not NOTHING:
                return batch if loader._pin is None else loader._pin(batch)
        self._over = True
        raise StopIteration

    def _fail(self, error: SampleError) -> NoReturn:
        """Raise the error of the first samples, once for each batch: none could be made to see what they are like."""
        self._failures += 1
        self._over = self._failures >= self._batches()
        raised = users_exception(error)
        raise raised from raised.__cause__

    def _batches(self) -> int:
        try:
            return len(self._loader)
        except Exception:
            # Nobody knows: the dataset is made in workers only.
            return 1


def _ids_given(delivered: bytes | str) -> bytes:
    """The ids of a state, which are text since version 2."""
    return delivered if isinstance(delivered, bytes) else _decoded("delivered", delivered)


def _decoded(what: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"not a state of a loader: {what!r} is damaged") from None


def _default_collate(batch_size: int | None) -> Any:
    """What PyTorch shows where no ``collate_fn`` is given."""
    data: Any = sys.modules.get("torch.utils.data")
    return data and (data.default_convert if batch_size is None else data.default_collate)


def _samples(dataset: Any, attached: dict[str, Any]) -> int:
    return int(attached["dataset_samples"]) if isinstance(dataset, str) else len(dataset)
