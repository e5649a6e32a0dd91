"""The data loader, which puts the parts together. The connection to the coordinator is native."""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal

import numpy.typing as npt

from coprep import _arguments as arguments
from coprep import _coprep, _sharing, _state
from coprep._batches import (
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
from coprep._collation import changed_kinds
from coprep._device import ImageForm, gpu_of, shares_uploads
from coprep._epoch import Epoch, Repeated
from coprep._errors import (
    CacheWarning,
    CoprepError,
    DatasetChanged,
    SampleError,
    SkippedSampleWarning,
    UnsharedWarning,
)
from coprep._folds import Fold, Positions, fold_of, is_part
from coprep._options import JobOptions, ResumeFrom
from coprep._orders import CannotBeShared, OwnOrder
from coprep._program import NotSamplesError
from coprep._ranks import GivenRank
from coprep._servers import JobCode, reap
from coprep._torch_interface import TorchInterface, changed, default_collate, prefetched
from coprep._unshared import level_of_caller

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The default is Any, so that a loader needs no annotation.
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

_TIMEOUT = 600.0
"""Seconds to wait if no ``timeout`` is given."""
_LONGEST = 1e7
"""Longest ``timeout`` in seconds (116 days). A longer one, infinity too, is cut to this."""
_NO_FUNCTIONS = "a native pipeline makes whole batches: it takes no collate_fn, transform or batch_size=None"
_OF_STREAM = frozenset(
    ("dataset", "num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "generator")
    + ("persistent_workers", "transform")
)
"""Settings that are part of the stream: it is left if one of them changes."""
_OF_CONNECTION = frozenset(
    ("_loader", "_code", "_job_code", "_identity", "_fresh_identity", "_positions", "_resume", "_told", "_last_pass")
    + ("_make", "_pin")
)
"""Attributes that a copy of a loader does not have."""
_connected: weakref.WeakSet[DataLoader] = weakref.WeakSet()
"""Loaders that have been connected to the coordinator."""
_to_close: weakref.WeakSet[DataLoader] = weakref.WeakSet()
"""Loaders that are closed when this process ends: of jobs with several ranks, and with batches on a GPU."""


@atexit.register
def _leave_jobs() -> None:
    """Lets the other ranks of this process's jobs know that it ends, while it still can. Ends the use of GPUs."""
    for loader in list(_to_close):
        loader.close()


_told_multiprocessing: set[int] = set()
"""Processes, by id, in which ``multiprocessing`` was told to call :func:`_leave_jobs`."""


def _leave_when_process_ends(loader: DataLoader) -> None:
    """Lets the other ranks of the loader's job know when this process ends in order."""
    _to_close.add(loader)
    # A process that `multiprocessing` has forked runs its functions for the end, and none that `atexit` has.
    module = sys.modules.get("multiprocessing.util")
    if module is not None and os.getpid() not in _told_multiprocessing:
        _told_multiprocessing.add(os.getpid())
        module.Finalize(None, _leave_jobs, exitpriority=0)


class DataLoader(TorchInterface, Generic[T_co]):
    """Iterates over minibatches that are prepared once for all concurrent jobs that need them.

    Takes the arguments of ``torch.utils.data.DataLoader`` with their meaning there, and some more. ``DataLoader[T]``
    annotates a loader of samples of type ``T``, as in PyTorch.

    Each pass is an epoch: every sample of the job's set exactly once. A loader joins a stream when it is first used
    (iteration, ``len``, ...); the first loader starts the coordinator.

    - The batches of a **native pipeline** (``coprep.ImageFolder(...)...``) are ``(images, labels)``: images are uint8,
      or after ``normalize`` float32 (or ``dtype``), of shape (batch, 3, height, width); labels are int64 of shape
      (batch,). Those of ``coprep.Tokens``, and of ``coprep.Arrays`` without labels, are one tensor.
    - The batches of a map-style **Python dataset** are what PyTorch's default collation, or ``collate_fn``, makes of
      its samples. Worker processes that all jobs of the stream share run ``dataset[i]``. They are forked from a job
      that is in the stream, so they know what it has set.
    - An **IterableDataset** is shared in a ``cohort``, whose jobs get the batches of one iteration. Elsewhere it works
      by PyTorch's own loader, and shares nothing (:class:`UnsharedWarning`).

    Attributes that PyTorch lets a program set later, such as ``collate_fn`` or ``num_workers``, count from the next
    pass on, as ``transform`` does. A copy or pickle of a loader is not connected, and begins as this loader did.

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
        shuffle_window: for tar shards, parquet files, tokens and arrays: draw the random order from about so many
            samples at a time, which lie together in parts of their files. One request then reads up to 8 MiB, or a row
            group, and the coordinator holds the parts in memory, 1.5 times the window. ``None``: from all samples, each
            of which is a request unless it is cached; for ``coprep.Parquet``, whose rows can be read by row groups
            only, from a window with 512 MiB of images.
        sampler, batch_sampler: PyTorch's sequential, random, subset-random, batch and distributed samplers are
            shared, as ``shuffle``, ``subset``, ``batch_size`` and ranks are; so are
            ``RandomSampler(replacement=True)`` and ``WeightedRandomSampler``, among jobs with equal weights and
            ``num_samples``. Any other works, but shares nothing (:class:`UnsharedWarning`); in a ``cohort``
            it is shared: all jobs get the samples of the sampler of the first job that begins an epoch.
        num_workers: worker processes of the stream, whose first job decides how many. ``None``: as many as the
            coordinator has processors; none where PyTorch's own loader makes the batches. 0: samples are made in this
            process, in the same order and with the same random numbers, for a debugger. Without effect for a native
            pipeline. For an ``IterableDataset`` in a cohort: PyTorch's workers, each of which iterates it; 0 or
            ``None``: one process iterates it for all jobs.
        collate_fn: makes a batch of a list of samples, in the job.
        pin_memory: batches are copied into pinned memory, if there is an accelerator.
        drop_last: leave out the last batch if it is short.
        timeout: seconds, 0 for 600. A worker that takes longer for a sample is replaced. A job that waits longer for a
            batch (with a Python dataset: three times as long) gets a :class:`TimeoutError` that says who is awaited.
        worker_init_fn: called with its number in each worker that starts. Generators that it seeds have no effect on
            samples: each sample is seeded anew, and so are generators that the dataset and the transform hold. A
            warning says so for the global ones.
        multiprocessing_context: the start method of workers, by default the program's, as in PyTorch: by ``"fork"``
            they are copies of the job; by ``"spawn"`` and ``"forkserver"`` a new interpreter gets the dataset as a
            pickle, and each worker loads it anew.
        generator: its seed is taken where ``seed`` is not given.
        prefetch_factor, in_order, pin_memory_device: accepted as by PyTorch. But the coordinator decides how far ahead
            it prepares, and batches always come in order (``order="relaxed"`` is for what ``in_order=False`` is for).
        persistent_workers: workers stay between epochs, and changes of the dataset are not looked for. Otherwise
            workers end when no job of the stream is in an epoch.
        transform: the random part of the preparation, called with ``dataset[i]``, which is cached.
        seed: keys order and augmentation. ``None`` takes the seed of the jobs that run already, so that trials of a
            search share; a number is shared only with jobs that give the same.
        rank, world_size: number of this process among those of the job, and how many they are. Give both or neither:
            by default ``torch.distributed`` or the launcher's environment says them. All ranks get equally many
            batches. With ``shuffle=False`` rank ``r`` gets the positions ``r``, ``r + world_size``, ...
        group: a name that the ranks of this job have in common, to distinguish jobs of one launch, or to unite ranks
            that were started one by one. Launches are told apart by their environment.
        order: ``"deterministic"``: the seed determines every batch. ``"relaxed"``: a sample that takes longer than
            most may come in a later batch of the same epoch, so that it holds nobody up. With ``shuffle=False`` it
            says that a pass cares for the set of samples and not for their order: jobs at different positions share.
        on_error: ``"raise"`` an error for a sample that cannot be prepared, or ``"skip"`` it: another takes its place
            (in ascending order and in a cohort the batch is shorter by it), ``stats()["skipped"]`` counts it, and the
            first one gives a :class:`SkippedSampleWarning`.
        subset: ids of this job's samples, each once, or a boolean mask with one element for each sample; ``None`` means
            all.
        cohort: name common to ``cohort_size`` jobs that start together, advance together and get the same batches,
            reproducibly. Shares any sampler, and an ``IterableDataset``. By default ``COPREP_COHORT=name:size`` says
            so.
        cohort_size: number of jobs to wait for.
        framework: ``"torch"``, ``"numpy"``, or ``None``: torch if it is installed. ``"dlpack"``, with
            ``device="cuda"``: arrays on the GPU that JAX, CuPy and others take over by ``from_dlpack``.
        device: ``"cuda"``, ``"cuda:1"`` or a ``torch.device``: batches are tensors on that GPU, copied ahead. Images
            are copied as uint8 and normalised there. Ids stay on the host. ``None``, ``"cpu"``: the host.
        dtype: for a native pipeline that ends with ``normalize``: ``torch.float32`` (default), ``torch.float16`` or
            ``torch.bfloat16``.
        memory_format: for a native pipeline: ``torch.contiguous_format`` (default) or ``torch.channels_last``.
        uploads: with ``device="cuda"``: ``"own"``: this job copies its batches to the GPU by itself. ``"shared"``:
            where two or more such jobs of one stream use a GPU, a process of the coordinator copies each minibatch
            there once for all of them. ``"auto"``: as ``"own"`` in this version.
        cache: form in which samples are cached: ``"auto"`` (for each sample the form that saves most time for its
            bytes, or none), ``"off"``, ``"encoded"`` (native pipelines), ``"decoded"`` (of a Python dataset: the value
            of ``dataset[i]``, before ``transform``), ``"prepared"`` (Python datasets: after everything, so that nothing
            random is renewed). ``None``: the coordinator's setting; for a Python dataset without ``transform``: off.
        cache_bytes: most bytes to cache, a number or such as ``"8G"``; ``None``: as many as the dataset needs, within
            the coordinator's budget.
        cache_policy: ``"no-eviction"``, or ``"lru"`` as a baseline.
        reuse: for a Python dataset: number of uses of a prepared sample, random parts and all, before it is made anew.
        check_files: compare each cached sample with its file, by size, times and inode, once before this job is given
            it, and make it anew if the file has changed. ``False`` saves a look at each file where files never change.
        with_index: batches are ``(images, labels, ids)``; of a Python dataset ``(batch, ids)``.
        name: name of the job in ``coprep status``.
        socket: path of the coordinator's socket; by default ``COPREP_SOCKET``, else in the user's runtime directory.

    Raises:
        ValueError, TypeError: an argument is wrong (some are checked at first use).
        RuntimeError: the GPU that ``device`` names cannot be used.
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
        shuffle_window: int | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: str | None = None,
        order: Literal["deterministic", "relaxed"] = "deterministic",
        on_error: Literal["raise", "skip"] = "raise",
        subset: Iterable[int] | npt.NDArray[Any] | None = None,
        cohort: str | None = None,
        cohort_size: int | None = None,
        framework: Literal["torch", "numpy", "dlpack"] | None = None,
        device: Any = None,
        dtype: Any = None,
        memory_format: Any = None,
        uploads: Literal["auto", "own", "shared"] = "auto",
        cache: Literal["auto", "off", "encoded", "decoded", "prepared"] | None = None,
        cache_bytes: int | str | None = None,
        cache_policy: Literal["no-eviction", "lru"] = "no-eviction",
        reuse: int | None = None,
        check_files: bool = True,
        with_index: bool = False,
        name: str | None = None,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        arguments.check_choices(
            order=order, on_error=on_error, cache=cache, cache_policy=cache_policy, framework=framework, uploads=uploads
        )
        arguments.functions(collate_fn=collate_fn, worker_init_fn=worker_init_fn, transform=transform)
        arguments.texts(name=name, group=group, cohort=cohort)
        arguments.optional("socket", socket, (str, bytes, os.PathLike), "a path")
        arguments.check_workers(num_workers, timeout, prefetch_factor, persistent_workers, multiprocessing_context)
        arguments.check_exclusive(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset = dataset
        size = None if batch_size is None else arguments.integer("batch_size", batch_size, 1, sys.maxsize)
        self.batch_size = size if batch_sampler is None else None
        self.num_workers: int | None = num_workers
        self._default_collate = default_collate(size is not None) if collate_fn is None else None
        self.collate_fn = collate_fn if collate_fn is not None else self._default_collate
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = bool(drop_last)
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetched(prefetch_factor, num_workers or 0)
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.transform = transform
        self._shuffle = bool(shuffle)
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self._made_samplers: dict[str, Any] = {}
        self._batched = size is not None
        self._with_index = with_index
        self._framework = framework_of(framework)
        self._private = None
        self._own_order: OwnOrder | None = None
        self._iterated = None
        self._cohort = arguments.cohort(cohort, cohort_size)
        self._names_cohort = cohort is not None
        self._is_native = isinstance(dataset, _coprep.Pipeline)
        self._take_settings()
        if not self._is_native:
            arguments.check_dataset(dataset)
            arguments.warn_of_many_workers(num_workers)
        elif size is None:
            raise TypeError(_NO_FUNCTIONS)
        self._gpu = gpu_of(device, self._framework)
        self._form = ImageForm(dtype, memory_format, dataset if self._is_native else None, self._framework)
        self._device_form = self._form.on_device(shares_uploads(uploads))
        arguments.check_rank(rank, world_size)
        self._given_rank = GivenRank(rank, world_size, group)
        shared_order = self._decide_order(shuffle, subset)
        self._seed = None if seed is None else arguments.integer("seed", seed, 0, 2**64 - 1)
        self._options = JobOptions(
            name=name or _name_of_script(),
            socket=socket,
            timeout=self._job_timeout,
            batch_size=size or 1,
            shuffle=self._shuffle,
            shuffle_window=arguments.shuffle_window(shuffle_window, self._is_native),
            draws=None,
            relaxed=order == "relaxed",
            seed=arguments.seed_of(generator) if seed is None else self._seed,
            drop_last=self.drop_last,
            skip_errors=on_error == "skip",
            subset=None,
            mask_samples=None,
            cohort=self._cohort,
            proposes_order=False,
            cache=cache,
            cache_bytes=arguments.size("cache_bytes", cache_bytes),
            lru=cache_policy == "lru",
            reuse=arguments.reuse(reuse, cache),
            check_files=bool(check_files),
            device=None,
        )
        self._apply(shared_order)
        self._apply_unshared_order()
        if subset is not None:
            self._set_subset(subset)
        self._order = shared_order
        self._disconnect()
        self._build()
        self._finish_init()
        self._settings = self._settings_now()
        self.__initialized = True

    # Interpreting the arguments.

    def _finish_init(self) -> None:
        """Lets a class that derives from this one finish a loader."""

    def _wanted_workers(self) -> int | None:
        """Returns the number of workers that the program has set. A derived class may show another one."""
        return self.num_workers

    def _own_collate(self, collate_fn: Any) -> Any:
        """Returns the user's ``collate_fn``, or ``None`` for the default. A derived class may know better."""
        return None if collate_fn is self._default_collate else collate_fn

    def _inner_sampler(self, sampler: Any) -> Any:
        """Returns the sampler that determines the order. A derived class may find another one behind it."""
        return sampler

    def _take_settings(self) -> None:
        """Takes over what is set on this loader at present.

        Raises:
            ValueError, TypeError: something cannot be used. Then nothing is taken over.
        """
        workers = self._wanted_workers()
        # Settings for workers do no harm without them, as in PyTorch: a program may set `num_workers` to 0 alone.
        context = self.multiprocessing_context if workers != 0 else None
        arguments.check_workers(workers, self.timeout, None, False, context)
        functions = {"collate_fn": self.collate_fn, "worker_init_fn": self.worker_init_fn, "transform": self.transform}
        arguments.functions(**functions)
        collate = self._own_collate(self.collate_fn)
        if self._is_native and (collate is not None or self.transform is not None):
            raise TypeError(_NO_FUNCTIONS)
        self._workers, self._collate = workers, collate
        self._limit = min(float(self.timeout) or _TIMEOUT, _LONGEST)

    @property
    def _job_timeout(self) -> float:
        """Seconds that this job waits for a batch."""
        # Two workers in a row may each spend the limit on a sample before its failure is reported.
        return self._limit if self._is_native else 3 * self._limit

    def _follow_settings(self) -> bool:
        """Lets what the program has set on this loader since its last pass count from the next one on.

        Returns:
            ``True`` if the loader has to leave its stream for that.
        """
        now = self._settings_now()
        names = changed(self._settings, now)
        if not names:
            return False
        was_default = self._collate is None
        self._take_settings()
        seed = self._options.seed
        # Only another generator counts. Samples that are made in this process seed the global one.
        if "generator" in names and self._seed is None:
            found = arguments.seed_of(self.generator)
            seed = self._order.seed if found is None and self._order is not None else found
        self._options = self._options._replace(seed=seed, timeout=self._job_timeout)
        self._settings = now
        if self._replaced is not None and not self._repeats and self._private is None:
            self._share_nothing(f"its samples come in the order of {type(self._replaced).__qualname__}")
        self._set_torchs()
        self._build()
        return bool(names & _OF_STREAM) or was_default != (self._collate is None) or self._iterated is not None

    def _share_nothing(self, why: str, shuffle: bool | None = None) -> None:
        """Lets PyTorch's own loader make the batches from now on."""
        self._private = self._unshared(why, shuffle)
        self._finish_init()
        self._settings = self._settings_now()

    def _disconnect(self) -> None:
        """Sets the attributes of a loader that has not been used."""
        self._loader: _coprep.Loader | None = None
        self._code: Any = None
        self._job_code: JobCode | None = None
        self._identity: Any = None
        self._fresh_identity: Any = None
        self._positions = Positions()
        self._resume: ResumeFrom | None = None
        self._resumes_order = False
        self._is_resuming = False
        """``True`` if a state was loaded, and no pass has begun since."""
        self._closed = False
        self._told: set[str] = set()
        self._iteration = 0
        self._last_pass: Callable[[], Epoch | None] = _no_pass
        self._process = 0
        """Id of the process that the loader is connected in."""

    def _build(self) -> None:
        """Makes the functions that make batches, and the code that workers run, by the present settings."""
        self._make: Make = self._choose_maker()
        gpu = self._gpu
        if gpu is not None:
            # Arrays of the coordinator are copied to the GPU natively. Batches that Python makes are moved later.
            # Rules of the program's own for the collation need samples on the host.
            is_ahead = type(self._make) is Samples and not self._make.whole and not changed_kinds()
            is_native = self._is_native or is_ahead
            self._options = self._options._replace(device=self._device_form if is_native else None)
            if not is_native:
                gpu.check_movable("collate_fn, batch_size=None, num_workers=0 and datasets without ids")
        # Batches that go to a GPU are pinned on their way, if they have to be.
        self._pin = pinner(self.pin_memory and gpu is None, self.pin_memory_device)

    # Copies, which are not connected and begin as this loader did when it was made.

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in _OF_CONNECTION}
        for name in ("_private", "_iterated"):
            if state[name] is not None:
                state[name] = copy.copy(state[name])
                state[name]._iterator = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._disconnect()
        self._build()

    def _decide_order(self, shuffle: bool | None, subset: Any) -> arguments.Order | None:
        """Decides how jobs share the samples. Sets the attributes of an order that needs a cohort, or of unshared ones.

        Returns:
            the order that a sampler of PyTorch describes, or ``None`` if there is no such sampler.
        """
        if arguments.is_iterable_dataset(self.dataset):
            if subset is not None:
                raise ValueError("subset names samples by their ids, and an IterableDataset has none: leave it out")
            why = _sharing.why_not_iterated(
                self.dataset, self._cohort, self._given_rank, self._with_index, self._batches
            )
            if why is None:
                self._iterated = self._torch_loader(shuffle)
            else:
                self._private = self._unshared(why, shuffle=shuffle)
            return None
        if self._sampler is None and self._batch_sampler is None:
            return None
        if isinstance(self.dataset, str):
            raise ValueError(
                "a sampler needs the dataset itself: give shuffle, subset and batch_size with an import string"
            )
        if subset is not None:
            raise ValueError("subset and a sampler both say which samples: give one of them")
        order = _sharing.order_of(self.dataset, self._sampler, self._batch_sampler, self._cohort, self._given_rank)
        if isinstance(order, arguments.Order):
            return order
        if isinstance(order, OwnOrder):
            self._own_order = order
        else:
            self._private = self._unshared(order)
        return None

    def _batches(self) -> Any:
        """Returns an iterable dataset in the form that travels to the process that iterates it."""
        from coprep._iterables import Batches

        return Batches(
            self.dataset,
            self.transform,
            self.worker_init_fn,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            workers=self._workers or 0,
            persistent_workers=self.persistent_workers,
            prefetch_factor=self.prefetch_factor if self._workers else None,
        )

    def _join_as_one_job(self) -> None:
        """Makes this process one member of the cohort, and keeps this loader apart from the program's others."""
        if self._given_rank.world_size is None:
            self._given_rank = GivenRank(0, 1, self._given_rank.group)
        if self._cohort is not None and not self._names_cohort:
            self._options = self._options._replace(cohort=_sharing.numbered(self._cohort))

    def _apply(self, order: arguments.Order | None) -> None:
        if order is None:
            return
        self._options = _sharing.with_order(self._options, order)
        if order.subset is not None:
            self._set_subset(order.subset)
        if self._given_rank.world_size is None:
            self._given_rank = GivenRank(order.rank, order.world_size, self._given_rank.group)

    def _apply_unshared_order(self) -> None:
        """Sets the options of a sampler of the user's own, and of an iterable dataset, which a cohort iterates once."""
        if self._own_order is not None:
            self._options = _sharing.with_own_order(self._options, self._own_order)
            self._join_as_one_job()
        if self._iterated is not None:
            self._options = _sharing.of_iteration(self._options)
            self._join_as_one_job()

    def _set_subset(self, given: Any) -> None:
        subset = arguments.subset(given, self._known_length)
        self._options = self._options._replace(subset=subset.ids, mask_samples=subset.mask)

    def _known_length(self) -> int | None:
        """Returns the number of samples of the dataset, or ``None`` if only the coordinator knows it."""
        return None if self._is_native or isinstance(self.dataset, str) else len(self.dataset)

    def _choose_maker(self) -> Make:
        """Returns the function that makes batches of the coordinator's arrays. Sets the code that workers run."""
        if self._is_native:
            return Images(self._framework, self._with_index, self._form, self._gpu)
        from coprep._usercode import UserCode

        if self._iterated is not None:
            made = Iterated(self._framework, self._collate, self._batched, self._gpu)
            context = self.multiprocessing_context
            self._code = UserCode(self._batches(), None, None, whole=True, batched=self._batched, context=context)
            return made
        samples = Samples(self._framework, self._collate, self._batched, self._with_index, self._gpu, self._positions)
        self._code = UserCode(
            self.dataset,
            self.transform,
            self.worker_init_fn,
            whole=samples.whole,
            batched=samples.batched,
            context=self.multiprocessing_context,
            in_job=self._is_in_job,
            fold=_folds_of(self._options, has_own_order=self._own_order is not None),
        )
        if not self._is_in_job:
            return samples
        uses = self._options.reuse or (0 if self._options.cache == "prepared" else None)
        return InJob(self._code, samples, self._options.skip_errors, uses)

    @property
    def _is_in_job(self) -> bool:
        """Returns whether samples are made in this process."""
        return self._workers == 0 and not self._is_native and self._iterated is None

    # The connection.

    @property
    def _native(self) -> _coprep.Loader:
        """The native loader. It is made at first use: only then the rank and the state of the dataset are known."""
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
        self._follow_settings()
        rank_id = self._given_rank.resolve()
        mask = self._options.mask_samples
        if mask is not None:
            # The dataset may have changed since the loader was made.
            arguments.check_mask(mask, self._known_length())
            arguments.check_mask(mask, None if self._resume is None else self._resume.samples)
        code = None
        pipeline = self.dataset
        if self._code is not None:
            in_job = self._is_in_job
            if self._resume is not None and self._resume.delivered != _state.EMPTY_SET:
                self._code.keeps_positions = not self._resume.of_dataset
            self._identity = self._fresh_identity or self._code.identity()
            self._fresh_identity = None
            identity = self._identity
            self._positions.fold = self._code.fold
            if (
                self._resume is not None
                and self._resume.of_dataset
                and identity.subset is None
                and is_part(self.dataset)
            ):
                raise ValueError(
                    "the state has ids of the dataset that its Subset is a part of, and the samples of this Subset, or "
                    "of this order, can only be told by their positions: resume with the same indices and shuffle"
                )
            if in_job and identity.samples is None:
                # There is no worker that could tell the length of a dataset that a factory makes.
                identity = identity._replace(samples=len(self._code.local().dataset))
            # The transform of an iterable dataset is part of its iteration, so nothing can be cached before it.
            split = self.transform is not None and self._iterated is None
            pipeline = identity.pipeline(self._code.told(), split=split, in_job=in_job)
            code = None if in_job else self._new_job_code(identity.samples)
        self._job_code = code
        options = self._options
        if self._positions.fold is not None:
            options = options._replace(subset=identity.subset)
        if self._is_in_job:
            # The coordinator has no values of this dataset to cache.
            options = options._replace(cache="off", cache_bytes=None, reuse=0)
        # The thread that copies to a GPU must not call the driver while the process ends.
        if rank_id.world_size > 1 or options.device is not None:
            _leave_when_process_ends(self)
        self._process = os.getpid()
        _connected.add(self)
        return _coprep.Loader(
            pipeline,
            options,
            rank_id=rank_id,
            resume=self._resume,
            code=code,
        )

    def _new_job_code(self, samples: int | None) -> JobCode:
        return JobCode(
            self._code.program,
            samples,
            self.multiprocessing_context,
            # One process iterates the dataset for all jobs. PyTorch's workers are started by that process.
            workers=1 if self._iterated is not None else self._workers or 0,
            sample_timeout=self._limit,
            # A process that iterates the dataset by itself keeps it from epoch to epoch, as this process would.
            is_persistent=self.persistent_workers or (self._iterated is not None and not self._workers),
            has_shadows=self._has_shadows(),
            is_current=self._is_current,
            positions=self._positions,
        )

    def _has_shadows(self) -> bool:
        """Returns whether samples of this job are compared with those of others before it shares.

        Ranks, and members of a cohort, have to be in one stream. The batches of an iterable dataset have no ids.
        """
        is_alone = self._given_rank.resolve().world_size == 1 and self._cohort is None
        return is_alone and self._iterated is None and os.environ.get("COPREP_SHADOW") != "0"

    def _is_current(self) -> bool:
        """Returns whether workers that are forked now make the samples of the stream that this loader is in.

        Raises:
            DatasetChanged: they would not, and the loader has to leave the stream.
        """
        if self._code.identity().equals(self._identity):
            return True
        if self.persistent_workers:
            return False
        raise DatasetChanged

    def _move(self) -> _coprep.Loader:
        """Leaves the stream in mid-epoch for one of the dataset as it is now, and goes on with the epoch's rest."""
        if self._given_rank.resolve().world_size > 1 or self._cohort is not None:
            raise CoprepError(
                "the dataset was changed while an epoch was iterated, and new workers are needed. Ranks and members of "
                "a cohort cannot go on with different datasets: change it between epochs, on all of them"
            )
        warnings.warn(
            "the dataset was changed while an epoch was iterated, and its workers have ended: the rest of the epoch "
            "comes from the dataset as it is now, and is not shared with jobs whose dataset differs",
            UnsharedWarning,
            stacklevel=4,
        )
        state = self.state_dict()
        assert self._loader is not None
        before, self._loader = self._loader, None
        self._resume = self._resume_from(state)
        before.close()
        self._native.start_epoch(None)
        self._settle()
        return self._native

    def _settle(self) -> None:
        """Notes that the user's code may run, which may change the dataset."""
        if self._job_code is not None:
            self._job_code.was_just_compared = False

    def _follow_dataset(self, leaves: bool) -> None:
        """Leaves the stream if the dataset has changed since the last epoch, so that the next epoch sees the changes.

        PyTorch's workers see such changes too, since PyTorch starts them for each epoch.

        Args:
            leaves: whether the loader has to leave the stream in any case.
        """
        self._fresh_identity = None
        if self._loader is None:
            return
        if self._code is None or self._identity is None:
            if leaves:
                self._begin_anew(None)
            return
        if self.persistent_workers and not leaves:
            return
        identity = self._code.identity()
        if leaves or not identity.equals(self._identity):
            self._begin_anew(None if self._iterated is not None else identity.samples)
            if self._own_order is None:
                # No code of the user's runs before the loader attaches. A sampler of the user's own would.
                self._fresh_identity = identity
        elif self._job_code is not None:
            self._job_code.was_just_compared = True

    def _follow_sampler(self) -> None:
        """Leaves the stream if the program has changed its sampler since the last epoch: weights, indices, batch size.

        Such changes count in the next epoch with PyTorch's loader too.
        """
        if self._is_native or isinstance(self.dataset, str):
            return
        sampler = self._sampler if self._sampler is not None else self._batch_sampler
        options, before = self._options, self._order
        # PyTorch's batch sampler of the same batches, if the program has asked for it. It leads to the given sampler.
        made = self._made_samplers.get("batch_sampler")
        if made is not None and (sampler is not None or options.subset is None):
            sampler = made
            before = before or arguments.Order(self._shuffle)
            before = before._replace(batch_size=options.batch_size, drop_last=options.drop_last)
        if sampler is None or before is None:
            return
        order = arguments.order_of(self._inner_sampler(sampler), self.dataset)
        if isinstance(order, str):
            self.close()
            self._share_nothing(order)
        elif order.differs_from(before):
            self._order, self._shuffle = order, order.shuffle
            drop_last = order.batch_size is None and self.drop_last
            options = options._replace(subset=None, mask_samples=None, drop_last=drop_last)
            self._options = _sharing.with_order(options, order)
            if order.subset is not None:
                self._set_subset(order.subset)
            self._build()
            self._begin_anew(len(self.dataset))

    def _begin_anew(self, samples: int | None) -> None:
        """Leaves the stream, so that the next epoch attaches to another one.

        Args:
            samples: number of samples of the dataset, or ``None`` if it is that of the stream.
        """
        if self._loader is None:
            return
        epoch = self._loader.epoch()
        attached = self._loader.attached()
        if samples is None:
            samples = int(attached["dataset_samples"])
        # A state that was loaded still says where the next pass begins.
        if not (self._is_resuming and self._resume is not None and self._resume.samples == samples):
            seed = attached["seed"] if self._options.seed is None else self._options.seed
            self._resume = ResumeFrom(epoch, _state.EMPTY_SET, seed, samples, None, [])
        self._loader.close()
        self._loader = None

    # Iteration.

    def __iter__(self) -> Iterator[Any]:
        """Begins an epoch: the next one, or the rest of the epoch whose state was loaded.

        Leaving an epoch early (``break``) gives up its rest; the next pass is a whole epoch.
        """
        return self._get_iterator()

    def _get_iterator(self) -> Iterator[Any]:
        """Begins a pass. Classes with an ``__iter__`` of their own call it by this name, which PyTorch's loader has."""
        leaves = self._follow_settings()
        if self._torchs is None and self._own_order is None:
            self._follow_sampler()
        if self._private is not None:
            return self._unshared_batches()
        if self._repeats:
            return Repeated(lambda: self._begin_epoch(leaves=False))
        return self._begin_epoch(leaves)

    def _begin_epoch(self, leaves: bool) -> Iterator[Any]:
        if not self._is_native and not isinstance(self.dataset, str):
            # A sampler of the user's own has to be iterated before its number of samples is known.
            length = self._length if self._own_order is None else self.dataset.__len__
            # A stream takes the layout of its buffers from a sample, and this dataset has none.
            if self._iterated is None and length() == 0:
                return iter(())
        self._follow_dataset(leaves)
        failed = None
        try:
            order = self._next_order()
        except CannotBeShared as error:
            if self._loader is not None:
                raise
            # The other members of the cohort come to the same decision about their samplers.
            self._share_nothing(str(error))
            return self._unshared_batches()
        reap()
        try:
            if self._is_in_job and self._loader is None and self._may_be_torchs():
                # There is no worker that would find out what the dataset makes.
                self._code.local().first([0, 1][: len(self.dataset)])
            self._native.start_epoch(order)
        except (SampleError, NotSamplesError) as error:
            raised = users_exception(error) if isinstance(error, SampleError) else error
            if isinstance(raised, NotSamplesError) and self._may_be_torchs():
                # Such a dataset makes whole batches, which PyTorch's own loader asks it for.
                self.close()
                self._share_nothing(str(raised), self._shuffle)
                return self._unshared_batches()
            # As with PyTorch, the error of a sample is raised when its batch is asked for, and not here.
            failed = error if isinstance(error, SampleError) else None
        self._is_resuming = False
        self._settle()
        self._iteration += 1
        if failed is None:
            # A failed start leaves no stream that could be asked.
            self._warn_of_stream()
        number = self._iteration
        epoch = Epoch(
            self._native,
            self._make,
            self._pin,
            None if self._options.device is None or self._gpu is None else self._gpu.stream,
            length=self._length,
            is_current=lambda: self._iteration == number,
            move=self._move,
            failed=failed,
            positions=self._positions,
        )
        self._last_pass = weakref.ref(epoch)
        return epoch

    def _may_be_torchs(self) -> bool:
        """Returns whether PyTorch's own loader takes all that this one was given."""
        options, sampler = self._options, self._sampler if self._sampler is not None else self._batch_sampler
        is_whole = sampler is not None or (options.subset is None and self._given_rank.resolve().world_size == 1)
        is_plain = self._framework == "torch" and not self._with_index and self.transform is None
        return is_whole and is_plain and self._cohort is None

    def _unshared_batches(self) -> Iterator[Any]:
        """Returns an iterator over the batches of PyTorch's own loader, on the GPU if they are to be there."""
        batches = iter(self._private)
        return batches if self._gpu is None else map(self._gpu.move, batches)

    def _next_order(self) -> bytes | None:
        """Returns the order that the user's own sampler gives the next epoch."""
        resumes, self._resumes_order = self._resumes_order, False
        if self._own_order is None or resumes:
            # The rest of an epoch keeps the order in which the epoch began.
            return None
        samples = self._native.attached()["dataset_samples"] if self._is_native else len(self.dataset)
        return self._own_order.ids(samples)

    def _warn_of_stream(self) -> None:
        """Warns, on one rank, if other jobs do not share with this one, if it does not use a cache that was warmed, or
        if samples of the dataset are left out.

        A warning is given once. The stream may become another when the loader connects again.
        """
        if self._given_rank.resolve().rank != 0:
            return
        attached = self._native.attached()
        left_out = [] if attached["left_out"] is None else [attached["left_out"]]
        for category, texts in (
            (UnsharedWarning, attached["unshared"]),
            (CacheWarning, attached["notes"]),
            (SkippedSampleWarning, left_out),
        ):
            for text in texts:
                if text not in self._told:
                    self._told.add(text)
                    warnings.warn(text, category, stacklevel=level_of_caller())

    def __len__(self) -> int:
        """Returns the number of batches of this rank in an epoch."""
        return self._length()

    def _length(self) -> int:
        # A class with a length of its own may not be able to tell it before it is made.
        if self._torchs is not None:
            return len(self._torchs)
        if self._own_order is not None:
            return self._own_order.batches(self._options.batch_size, self._options.drop_last)
        if self._is_native or isinstance(self.dataset, str):
            with samples_errors():
                return self._native.batches_per_epoch()
        subset, draws = self._options.subset, self._options.draws
        if draws is not None:
            samples = draws.length
        else:
            samples = len(self.dataset) if subset is None else len(memoryview(subset).cast("I"))
        step = self._options.batch_size * self._given_rank.resolve().world_size
        return int(samples // step if self._options.drop_last else -(-samples // step))

    @property
    def epoch(self) -> int:
        """Number of the epoch that is being iterated, or that begins next, from 0."""
        return self._native.epoch()

    @property
    def seed(self) -> int:
        """The seed in force, whether or not one was given."""
        seed: int = self._native.attached()["seed"]
        return seed

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by label."""
        classes: list[str] = self._native.attached()["classes"]
        return classes

    def state_dict(self) -> dict[str, Any]:
        """Returns the job's position after its last batch: epoch, ids given in it, seed. Can be written as JSON.

        The state of a ``torch.utils.data.Subset`` may hold ids of the dataset that it is a part of. Then it says so.

        Where samples are drawn with replacement, the state holds the numbers of the draws instead of ids, and
        ``draws``, which stands for their weights and their number. With a sampler of your own in a cohort it holds the
        positions of samples in the order of the epoch, and that order, which takes 5.3 bytes for each sample.

        A state that is taken in the loop after the last batch has an empty rest: the loop that resumes it ends at once,
        and the next one is a whole epoch. A state that is taken after the loop has ended is of the next epoch.

        With several ranks, call it on each of them at the same step; each state holds the samples of all ranks.
        """
        return _state.to_dict(self._native.state(), self._options.draws, of_dataset=self._positions.fold is not None)

    def _resume_from(self, state: dict[str, Any]) -> ResumeFrom:
        return _state.from_dict(
            state, seed=self._options.seed, draws=self._options.draws, has_own_order=self._own_order is not None
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on exactly where ``state`` was taken. The next pass is the rest of that epoch.

        Raises:
            ValueError: the state is of another version, of another seed than this loader was given, or of other draws.
        """
        resume = self._resume_from(state)
        for other in _connected - {self}:
            other._leave_if_ended()
        before, resumed_before = self._loader, self._resume
        self._resume = resume
        try:
            self._loader = self._connect()
        except BaseException:
            # The loader is as it was, and may be closed.
            self._resume = resumed_before
            raise
        self._closed = False
        if before is not None:
            # The old one is closed only now, because it stays in use if the new one cannot be made.
            before.close()
        self._resumes_order = resume.order is not None
        self._is_resuming = True
        # Passes that began before must end, since they would give samples from the new position on.
        self._iteration += 1

    def _leave_if_ended(self) -> None:
        """Leaves the stream if no pass is under way. The next one joins it again, and goes on where this one was.

        A loader that has ended is no job to share with: the order of another one does not depend on it. Ranks and
        members of a cohort stay, since the others wait for them.
        """
        is_alone = self._given_rank.world_size in (None, 1) and self._cohort is None
        last = self._last_pass()
        is_here = self._process == os.getpid() and self._loader is not None and self._loader.is_attached()
        if is_alone and not self._closed and is_here and (last is None or last.is_over):
            # It may have lost its coordinator, which it tells when it is used, and to nobody else.
            with contextlib.suppress(Exception):
                self._begin_anew(None)

    def stats(self, slow: int = 0) -> dict[str, Any]:
        """Returns counts since the loader was made.

        The keys are ``batches``, ``samples``, ``copies`` (batches that were copied), ``copied_bytes``, ``errors`` and
        ``reconnects``; ``skipped``, the samples that are left out of the epochs because they failed, each counted once;
        and the seconds that the job waited, ``wait_s``. ``fetch_stall_s``, ``prep_stall_s`` and ``others_stall_s``
        split these seconds by their cause: storage, processors, or other jobs.

        With ``device="cuda"``: ``uploads``, the copies to the GPU that this job made, those ahead too;
        ``uploaded_bytes``; ``shared_uploads``, the parts of batches that were copied for several jobs;
        ``upload_wait_s``, the seconds that the job waited for the GPU, which are no part of ``wait_s``; and, only where
        copies go through pinned buffers, the reason as ``not_pinned``; and why a job that would share copies does not,
        as ``not_shared``.

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
            status = json.loads(_coprep.status(self._options.socket, count))
        except CoprepError:
            # The coordinator has just ended, and its figures with it.
            return []
        found = (s["costs"]["slowest"] for s in status["streams"] if s["id"] == stream)
        slowest: list[dict[str, Any]] = next(found, [])
        return [slow | {"id": self._positions.of(slow["id"])} for slow in slowest if self._positions.has(slow["id"])]

    def __repr__(self) -> str:
        dataset = (
            repr(self.dataset) if self._is_native or isinstance(self.dataset, str) else type(self.dataset).__name__
        )
        if self._private is not None:
            parts = ["shares nothing"]
        else:
            options = self._options
            size = self.batch_size if self._iterated is not None else options.batch_size
            parts = [f"batch_size={size if self._batched else None}"]
            if self._iterated is not None:
                parts.append("in the order of its iteration")
            elif self._own_order is not None:
                parts.append(f"the order of {type(self._own_order.sampler).__qualname__}")
            else:
                parts.append(f"shuffle={options.shuffle}")
            parts += [f"seed={options.seed}"] if options.seed is not None else []
            parts += [f"{options.draws.length} draws with replacement"] if options.draws is not None else []
            parts += ["a subset"] if options.subset is not None else []
            parts += [f"on {self._gpu}"] if self._gpu is not None else []
            parts.append("samples made in this process" if self._is_in_job else "shared")
        return f"<coprep.DataLoader of {dataset}: {', '.join(parts)}>"

    def close(self) -> None:
        """Leaves the coordinator. Batches that are held stay valid."""
        self._closed = True
        if self._loader is not None:
            self._loader.close()
            reap()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _no_pass() -> None:
    """Returns nothing, as a reference to a pass does that is gone."""


def _folds_of(options: JobOptions, *, has_own_order: bool) -> Callable[[Any], Fold | None]:
    """Returns what tells the samples of a part of a dataset by the ids of that dataset.

    That is of use where the options say nothing else of the samples.
    """
    if options.subset is not None or options.draws is not None or has_own_order:
        return lambda _: None
    return lambda dataset: fold_of(dataset, is_shuffled=options.shuffle)


def _name_of_script() -> str:
    """Returns the name of the script that runs, for people. A path need not be text."""
    script = os.path.basename(sys.argv[0]) if sys.argv else ""
    return script.encode(errors="replace").decode() or "python"
