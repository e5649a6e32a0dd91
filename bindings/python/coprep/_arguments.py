"""Checks of a loader's arguments, and the order that they describe."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coprep._coprep import MOST_DRAWS, parse_size
from coprep._options import Cohort, Draws

Ids = npt.NDArray[Any]
_START_METHODS = ["fork", "spawn", "forkserver"]
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "order": ("deterministic", "relaxed"),
    "on_error": ("raise", "skip"),
    "cache": ("auto", "off", "encoded", "decoded", "prepared", None),
    "cache_policy": ("no-eviction", "lru"),
    "uploads": ("auto", "own", "shared"),
    "framework": ("torch", "numpy", "dlpack", None),
}
_MOST_RANKS = 4096


class Order(NamedTuple):
    """An order of samples that jobs can share."""

    shuffle: bool
    subset: Ids | None = None
    draws: Draws | None = None
    seed: int | None = None
    rank: int | None = None
    world_size: int | None = None
    batch_size: int | None = None
    drop_last: bool = False

    def differs_from(self, other: Order) -> bool:
        """Returns whether it is another order than ``other``, by whatever seed."""
        # A tuple would ask arrays for the truth value of their comparison.
        ids, others = self.subset, other.subset
        is_same = ids is others if ids is None or others is None else np.array_equal(ids, others)
        return not is_same or self._replace(subset=None, seed=None) != other._replace(subset=None, seed=None)


def is_iterable_dataset(dataset: Any) -> bool:
    """Returns whether PyTorch iterates over a dataset, so that its samples have no ids."""
    data: Any = sys.modules.get("torch.utils.data")
    # Whoever has such a dataset has imported PyTorch already, and nobody else should pay for the import.
    return data is not None and isinstance(dataset, data.IterableDataset)


def order_of(sampler: Any, dataset: Any) -> Order | str:
    """Returns the order that a sampler of PyTorch describes, or the reason why it cannot be shared."""
    if not hasattr(dataset, "__len__"):
        return "the dataset has no length"
    samples = len(dataset)
    data: Any = sys.modules.get("torch.utils.data")
    kind = type(sampler)
    if kind is getattr(sys.modules.get("accelerate.data_loader"), "SeedableRandomSampler", None):
        # Accelerate puts it in the place of each RandomSampler, with a seed that most programs never gave.
        return _random(sampler, samples, None)
    if data is None or kind.__module__.partition(".")[0] != "torch":
        return f"{kind.__qualname__} is an order of its own"
    # The types are compared exactly, because a subclass may give another order.
    if kind is data.SequentialSampler:
        return Order(shuffle=False) if len(sampler) == samples else "it is for another dataset"
    if kind is data.RandomSampler:
        return _random(sampler, samples, seed_of(sampler.generator))
    if kind is data.WeightedRandomSampler:
        return _weighted(sampler, samples)
    if kind is data.SubsetRandomSampler:
        ids = np.asarray(sampler.indices)
        if ids.size == 0 or len(np.unique(ids)) != ids.size:
            return "SubsetRandomSampler has an id twice, or none"
        return Order(shuffle=True, subset=ids, seed=seed_of(sampler.generator))
    if kind is data.BatchSampler:
        inner = order_of(sampler.sampler, dataset)
        if isinstance(inner, str):
            return inner
        return inner._replace(batch_size=sampler.batch_size, drop_last=bool(sampler.drop_last))
    distributed: Any = sys.modules.get("torch.utils.data.distributed")
    if distributed is not None and kind is distributed.DistributedSampler:
        if len(sampler.dataset) != samples:
            return "it is for another dataset"
        return Order(
            shuffle=bool(sampler.shuffle),
            seed=sampler.seed,
            rank=sampler.rank,
            world_size=sampler.num_replicas,
        )
    return f"{kind.__qualname__} is an order of its own"


def _random(sampler: Any, samples: int, seed: int | None) -> Order | str:
    if sampler.replacement:
        if len(sampler.data_source) != samples:
            return "it is for another dataset"
        return _drawn(sampler.num_samples, None, seed)
    if sampler.num_samples != samples:
        return (
            "RandomSampler without replacement gives each sample once, and num_samples is another number than the "
            "dataset has: with replacement=True any number of draws can be shared"
        )
    return Order(shuffle=True, seed=seed)


def _weighted(sampler: Any, samples: int) -> Order | str:
    if not sampler.replacement:
        return (
            "WeightedRandomSampler(replacement=False) draws each sample from those that are left: an order of its own"
        )
    weights = np.zeros(samples)
    given = sampler.weights
    if hasattr(given, "detach"):
        # The weights may be learnt, or lie on a device.
        given = given.detach().cpu()
    given = np.asarray(given, dtype=np.float64)
    if given.ndim != 1 or given.size > samples:
        return f"WeightedRandomSampler has weights of shape {given.shape}, and the dataset {samples} samples"
    # As with PyTorch, samples beyond the last weight are never drawn.
    weights[: given.size] = given
    total = weights.sum()
    if not np.isfinite(weights).all() or (weights < 0).any() or not 0 < total < np.inf:
        return "the weights of WeightedRandomSampler must be finite, not negative, and not all 0"
    return _drawn(sampler.num_samples, weights.tobytes(), seed_of(sampler.generator))


def _drawn(count: int, weights: bytes | None, seed: int | None) -> Order | str:
    if not 0 < count <= MOST_DRAWS:
        return f"an epoch of {count} draws cannot be shared: the most are {MOST_DRAWS}"
    return Order(shuffle=True, draws=Draws(count, weights), seed=seed)


def seed_of(generator: Any) -> int | None:
    """Returns the seed that a ``torch.Generator`` was given, or ``None`` without a generator."""
    if generator is None:
        return None
    if not hasattr(generator, "initial_seed"):
        raise TypeError(f"generator must be a torch.Generator, not {generator!r}")
    return int(generator.initial_seed()) & (2**64 - 1)


def cohort(name: str | None, size: int | None) -> Cohort | None:
    """Returns the cohort as given, or from ``COPREP_COHORT=name:size``, or ``None``."""
    if name is not None and size is not None:
        return Cohort(name, integer("cohort_size", size, 1, 2**31 - 1))
    if name is not None or size is not None:
        raise ValueError("cohort and cohort_size go together: give both or neither")
    setting = os.environ.get("COPREP_COHORT", "")
    if not setting:
        return None
    # The name may have colons too.
    name, colon, number = setting.rpartition(":")
    if not colon or not name or not number.isdecimal():
        raise ValueError(f"COPREP_COHORT is {setting!r}: it must be a name and a number of jobs, such as search:4")
    return Cohort(name, integer("the size in COPREP_COHORT", int(number), 1, 2**31 - 1))


def check_workers(
    num_workers: int | None,
    timeout: float,
    prefetch_factor: int | None,
    persistent_workers: bool,
    multiprocessing_context: Any,
) -> None:
    """Refuses the combinations that PyTorch refuses.

    The messages begin as PyTorch's do, so that a search for them finds answers.
    """
    if num_workers is not None and integer("num_workers", num_workers, -(2**31), 2**31 - 1) < 0:
        raise ValueError(
            f"num_workers option should be non-negative, and it is {num_workers}; 0 makes samples in this process"
        )
    if not isinstance(timeout, Real):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}; 0 means the default")
    # The comparison is negated, because it is false for NaN too.
    if not timeout >= 0:
        raise ValueError(f"timeout option should be non-negative, and it is {timeout}; 0 means the default")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError("prefetch_factor needs workers: num_workers=0 makes samples in this process")
    if prefetch_factor is not None and integer("prefetch_factor", prefetch_factor, -(2**63), 2**63 - 1) < 0:
        raise ValueError(f"prefetch_factor is {prefetch_factor}: it must not be negative")
    if num_workers == 0 and persistent_workers:
        raise ValueError("persistent_workers needs workers: num_workers=0 makes samples in this process")
    if multiprocessing_context is None:
        return
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            "num_workers=0, which makes samples in this process"
        )
    method = multiprocessing_context
    if not isinstance(method, str):
        if not hasattr(method, "get_start_method"):
            raise TypeError(
                "multiprocessing_context option should be a valid context object or a string specifying the start "
                f"method, but got {method!r}"
            )
        method = method.get_start_method()
    if method not in _START_METHODS:
        raise ValueError(
            f"multiprocessing_context option should specify a valid start method in {_START_METHODS}, but got "
            f"multiprocessing_context={method!r}"
        )


def check_exclusive(batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool) -> None:
    """Refuses arguments that determine the same thing twice."""
    if sampler is not None and shuffle:
        raise ValueError(
            "sampler option is mutually exclusive with shuffle: both say in which order samples come. Give one of them"
        )
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError(
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler and drop_last: it says "
            "everything of the batches. Leave the others out"
        )
    if batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last: there is no last "
            "batch to drop"
        )


def check_dataset(dataset: Any) -> None:
    """Refuses an object that is not a dataset."""
    if isinstance(dataset, str):
        if not all(part.isidentifier() for part in dataset.replace(":", ".", 1).split(".")) or ":" not in dataset:
            raise TypeError(
                f"dataset is {dataset!r}: it must be a dataset, or the name of what makes one, 'module:factory'"
            )
        return
    if is_iterable_dataset(dataset):
        return
    if hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"{type(dataset).__name__} can only be iterated over: samples are shared by their ids, so a dataset must "
            "have __len__ and __getitem__. Make it map-style (an index of what it reads), or a "
            "torch.utils.data.IterableDataset, which is shared in a cohort"
        )
    if not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"dataset must be a coprep pipeline such as coprep.ImageFolder(...), or have __len__ and __getitem__: "
            f"{type(dataset).__name__} does not"
        )


def warn_of_many_workers(num_workers: int | None) -> None:
    """Warns, as PyTorch does, of more worker processes than there are processors."""
    processors = len(os.sched_getaffinity(0))
    if num_workers is not None and num_workers > processors:
        warnings.warn(
            f"num_workers is {num_workers}, and this process may use {processors} processors: excessive worker "
            "creation might get DataLoader running slow or even freeze. All jobs that share the stream share its "
            "workers: leave num_workers out to have one for each processor",
            UserWarning,
            stacklevel=3,
        )


def size(name: str, value: object) -> int | None:
    """Returns a number of bytes, which may be given as text such as ``"8G"``, after checking it."""
    if value is None:
        return None
    if not isinstance(value, str):
        return integer(name, value, 0, 2**63 - 1)
    try:
        return parse_size(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def optional(name: str, value: object, kind: type | tuple[type, ...], meaning: str) -> None:
    """Refuses a value that is neither ``None`` nor of this type."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be {meaning}, not {value!r}")


def texts(**given: object) -> None:
    """Refuses values that are neither ``None`` nor text."""
    for name, value in given.items():
        optional(name, value, str, "text")


def functions(**given: object) -> None:
    """Refuses values that are neither ``None`` nor can be called."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be a function, or another object that can be called, not {value!r}")


def check_choices(**given: object) -> None:
    """Refuses values that are not among the allowed ones of their arguments."""
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(map(repr, _CHOICES[name]))}")


def check_rank(rank: int | None, world_size: int | None) -> None:
    """Refuses a rank that is not one of ``world_size`` ranks."""
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size go together: give both or neither")
    if world_size is not None:
        integer("world_size", world_size, 1, _MOST_RANKS)
    if rank is not None:
        integer("rank", rank, 0, (world_size or _MOST_RANKS) - 1)


def shuffle_window(value: Any, is_native: bool) -> int:
    """Returns the number of samples that an order is drawn from at a time, or 0 for all.

    Raises:
        TypeError: the dataset is of Python, or the value is no integer.
        ValueError: it is not positive.
    """
    if value is None:
        return 0
    if not is_native:
        raise TypeError(
            "shuffle_window is for samples that lie together in larger files, such as tar shards: a Python dataset "
            "reads sample by sample"
        )
    return integer("shuffle_window", value, 1, 2**32 - 1)


def reuse(given: int | None, cache: str | None) -> int:
    """Returns the number of uses of a prepared sample, or 0 if it was not given."""
    if given is None:
        return 0
    if cache not in (None, "prepared"):
        raise ValueError(
            f"reuse keeps prepared samples, and cache={cache!r} says something else: leave one of them out"
        )
    return integer("reuse", given, 1, 2**31 - 1)


def integer(name: str, value: object, least: int, most: int) -> int:
    """Returns an integer after checking its type and range."""
    # Integers of NumPy have `__index__`, and no float does. A bool has it too, but is a mistake here.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = int(value.__index__())
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}: it must be from {least} to {most}")
    return number


class Subset(NamedTuple):
    """The samples of a job."""

    ids: bytes
    """Sample ids in the coordinator's format: native-endian, 32 bits each, ascending."""
    mask: int | None = None
    """Length of the boolean mask that named the samples, or ``None``. The dataset must have as many samples."""


def subset(given: Iterable[int] | Ids, samples: Callable[[], int | None] = lambda: None) -> Subset:
    """Returns the samples that the argument ``subset`` names.

    Args:
        samples: returns the length of the dataset, or ``None`` if only the coordinator knows it. Called for a mask
            only.

    Raises:
        ValueError, TypeError: it is neither different sample ids nor a boolean mask of the dataset.
    """
    # NumPy would take a set or a generator for a single object.
    if not hasattr(given, "__array__") and not isinstance(given, list):
        try:
            iter(given)
        except TypeError:
            raise TypeError(f"subset must be sample ids or a boolean mask, not {given!r}") from None
        given = list(given)
    found = np.asarray(given)
    if found.ndim != 1:
        raise TypeError(f"subset must have one dimension, and has {found.ndim}: give sample ids, or a boolean mask")
    if found.dtype == np.bool_:
        return _masked(found, samples())
    if found.size == 0:
        raise ValueError("the subset is empty: give sample ids, or None for all samples")
    if found.dtype.kind not in "iu":
        raise TypeError(f"subset must be sample ids or a boolean mask, and its elements are {found.dtype}")
    if found.min() < 0 or found.max() >= 2**32:
        wrong = found.min() if found.min() < 0 else found.max()
        raise ValueError(f"subset has the id {wrong}: sample ids are from 0 to len(dataset) - 1")
    different, counts = np.unique(found, return_counts=True)
    if different.size != found.size:
        repeated = different[counts.argmax()]
        raise ValueError(
            f"subset has the id {repeated} {counts.max()} times: an epoch gives each sample once. "
            "Give each id once, or repeat samples by the dataset: torch.utils.data.Subset(dataset, ids)"
        )
    return Subset(different.astype(np.uint32).tobytes())


def check_mask(elements: int | None, samples: int | None) -> None:
    """Refuses a mask whose length is not that of the dataset, if both are known."""
    if elements is not None and samples is not None and samples != elements:
        raise ValueError(
            f"subset is a boolean mask of {elements} elements, and the dataset has {samples} samples: "
            "it must have one element for each"
        )


def _masked(mask: Ids, samples: int | None) -> Subset:
    check_mask(mask.size, samples)
    if not mask.any():
        raise ValueError(f"the subset is empty: none of the {mask.size} elements of the mask is True")
    return Subset(np.flatnonzero(mask).astype(np.uint32).tobytes(), mask.size)
