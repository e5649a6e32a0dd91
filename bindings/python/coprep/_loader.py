"""The data loader: what needs no coordinator. The rest is native."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coprep import _coprep

Batch = tuple[Any, ...]
Convert = Callable[[list[_coprep.Array]], Batch]

STATE_VERSION = 1


class DataLoader:
    """Iterates over minibatches that are prepared once for all concurrent jobs that need them.

    Each pass (``for images, labels in loader``) is an epoch: every sample of the job's set exactly once. A batch is
    ``(images, labels)``: images are uint8, or float32 after ``normalize``, of shape (batch, 3, height, width); labels
    are int64 of shape (batch,). It lies in shared memory without having been copied, may be written to in place (nobody
    else sees it), and stays valid as long as anything of it is held.

    Jobs share when their pipeline, ``shuffle`` and cache form are the same, and ``seed`` too where it is given. The
    first loader starts the coordinator. Nothing is connected before the first use (iteration, ``len``, ...).

    Args:
        dataset: what to load.
        batch_size: samples of a batch, of one rank.
        shuffle: random order, a new one each epoch; else ids ascend.
        seed: keys order and augmentation. ``None`` takes that of the jobs that run already, so that trials of a search
            share; a number is shared only with jobs that give the same.
        drop_last: leave out the last batch if it is short.
        rank: which of the job's ``world_size`` processes this is. All ranks get equally many batches.
        world_size: number of processes of this job.
        group: what the ranks of this job have in common and no other job has; by default taken from the launcher's
            environment.
        order: ``"deterministic"``.
        on_error: ``"raise"`` a :class:`SampleError` for a sample that cannot be prepared, or ``"skip"`` it (it is
            counted, logged once, and another takes its place).
        subset: ids of this job's samples, or a boolean mask; ``None`` means all.
        cohort: name common to ``cohort_size`` jobs that start together, advance together and get the same batches,
            reproducibly.
        cohort_size: number of jobs to wait for.
        framework: ``"torch"``, ``"numpy"``, or ``None``: torch if it is installed.
        cache: form in which samples are cached: ``"off"``, ``"encoded"``, ``"decoded"``, or ``None`` for the
            coordinator's setting.
        cache_bytes: most bytes to cache, a number or such as ``"8G"``; ``None``: what the dataset needs, within the
            coordinator's budget.
        cache_policy: ``"no-eviction"``, or ``"lru"`` as a baseline.
        with_index: batches are ``(images, labels, ids)``.
        timeout: seconds to wait for a batch before :class:`TimeoutError` says who is awaited.
        name: what the job is called in ``coprep status``.
        socket: the coordinator's; by default ``COPREP_SOCKET``, else in the user's runtime directory.

    Raises:
        ValueError, TypeError: an argument is wrong (some are checked at first use).
    """

    def __init__(
        self,
        dataset: _coprep.Pipeline,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        group: str | None = None,
        order: Literal["deterministic"] = "deterministic",
        on_error: Literal["raise", "skip"] = "raise",
        subset: Iterable[int] | npt.NDArray[Any] | None = None,
        cohort: str | None = None,
        cohort_size: int | None = None,
        framework: Literal["torch", "numpy"] | None = None,
        cache: Literal["off", "encoded", "decoded"] | None = None,
        cache_bytes: int | str | None = None,
        cache_policy: Literal["no-eviction", "lru"] = "no-eviction",
        with_index: bool = False,
        timeout: float = 600.0,
        name: str | None = None,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(dataset, _coprep.Pipeline):
            raise TypeError(f"dataset must be a coprep pipeline such as coprep.ImageFolder(...), not {type(dataset)}")
        _one_of("order", order, ("deterministic",))
        _one_of("on_error", on_error, ("raise", "skip"))
        _one_of("cache", cache, ("off", "encoded", "decoded", None))
        _one_of("cache_policy", cache_policy, ("no-eviction", "lru"))
        _one_of("framework", framework, ("torch", "numpy", None))
        if (cohort is None) != (cohort_size is None):
            raise ValueError("cohort and cohort_size go together: give both or neither")
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}: it must be more than 0 seconds")
        self.dataset = dataset
        self.batch_size = _integer("batch_size", batch_size, 1, 2**31 - 1)
        self.drop_last = bool(drop_last)
        self._options: dict[str, Any] = {
            "name": name or os.path.basename(sys.argv[0] or "python"),
            "socket": socket,
            "timeout": float(timeout),
            "batch_size": self.batch_size,
            "shuffle": bool(shuffle),
            "seed": None if seed is None else _integer("seed", seed, 0, 2**64 - 1),
            "drop_last": self.drop_last,
            "world_size": _integer("world_size", world_size, 1, 4096),
            "rank": _integer("rank", rank, 0, world_size - 1),
            "group": group if group is not None else _launch(),
            "skip_errors": on_error == "skip",
            "subset": None if subset is None else _ids(subset),
            "cohort": None if cohort is None else (cohort, _integer("cohort_size", cohort_size, 1, 2**31 - 1)),
            "cache": cache,
            "cache_bytes": _coprep.parse_size(cache_bytes) if isinstance(cache_bytes, str) else cache_bytes,
            "lru": cache_policy == "lru",
        }
        self._fields = 3 if with_index else 2
        self._convert = _converter(framework)
        self._native = _coprep.Loader(dataset, resume=None, **self._options)
        self._iteration = 0

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch: the next one, or the rest of the one a state was loaded of.

        Leaving an epoch early (``break``) gives up its rest; the next pass is a whole epoch.
        """
        self._native.start_epoch()
        self._iteration += 1
        return _Epoch(self, self._iteration)

    def __len__(self) -> int:
        """Batches of this rank in an epoch."""
        return self._native.batches_per_epoch()

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or that begins next; counted from 0."""
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
        """Where the job is, after the last batch it was given: epoch, ids given in it, seed.

        With several ranks, call it on each of them at the same step; each state holds what all ranks were given.
        """
        epoch, delivered, seed, samples, all_ranks = self._native.state()
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "delivered": delivered,
            "seed": seed,
            "samples": samples,
            "all_ranks": all_ranks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where ``state`` was taken. The next pass is the rest of that epoch.

        Raises:
            ValueError: the state is of another version, or of another seed than this loader was given.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"not a state of this version of coprep: version {state.get('version')!r}")
        seed = self._options["seed"]
        if seed is not None and seed != state["seed"]:
            raise ValueError(f"the state was taken with seed {state['seed']}, and this loader has seed {seed}")
        resume = (state["epoch"], state["delivered"], state["seed"], state["samples"])
        native = _coprep.Loader(self.dataset, resume=resume, **self._options)
        self._native.close()
        self._native = native
        self._iteration += 1

    def stats(self) -> dict[str, Any]:
        """Counts since the loader was made.

        ``batches``, ``samples``, ``copies`` (batches that were copied), ``errors``, ``reconnects``; and the stall, the
        seconds spent in waiting: ``wait_s``, of which ``fetch_stall_s`` and ``prep_stall_s`` by what was waited for.
        """
        return self._native.stats()

    def close(self) -> None:
        """Let go of the coordinator. Batches that are held stay valid."""
        self._native.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Epoch(Iterator[Batch]):
    """One pass."""

    def __init__(self, loader: DataLoader, number: int) -> None:
        self._loader = loader
        self._native = loader._native
        self._number = number
        self._over = False

    def __next__(self) -> Batch:
        loader = self._loader
        if self._over:
            raise StopIteration
        if self._number != loader._iteration:
            raise RuntimeError("this iterator is over: a newer one of the same loader has begun")
        arrays = self._native.next()
        if arrays is None:
            self._over = True
            raise StopIteration
        return loader._convert(arrays[: loader._fields])


def _numpy(arrays: list[_coprep.Array]) -> Batch:
    return tuple(np.asarray(array) for array in arrays)


def _torch(arrays: list[_coprep.Array]) -> Batch:
    import torch

    return tuple(torch.from_numpy(np.asarray(array)) for array in arrays)


def _converter(framework: str | None) -> Convert:
    if framework is None:
        framework = "torch" if importlib.util.find_spec("torch") else "numpy"
    if framework == "torch":
        import torch  # noqa: F401 - if it is missing, that is said here
    return _torch if framework == "torch" else _numpy


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(map(repr, allowed))}")


def _integer(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = int(value.__index__())
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}: it must be from {least} to {most}")
    return number


def _ids(subset: Iterable[int] | npt.NDArray[Any]) -> bytes:
    ids = subset if isinstance(subset, np.ndarray) else np.asarray(list(subset))
    if ids.dtype == np.bool_:
        ids = np.flatnonzero(ids)
    if ids.size == 0:
        raise ValueError("the subset is empty")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError("subset must be sample ids, or a boolean mask")
    if ids.min() < 0 or ids.max() >= 2**32:
        raise ValueError(f"subset has an id that cannot be one: {ids.min() if ids.min() < 0 else ids.max()}")
    return np.ascontiguousarray(ids, dtype=np.uint32).tobytes()


def _launch() -> str:
    """What the processes of one launch have in common."""
    env = os.environ
    for variable in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE"):
        if env.get(variable, "none") != "none":
            return f"{variable}={env[variable]}"
    if "MASTER_PORT" in env:
        return f"{env.get('MASTER_ADDR', '')}:{env['MASTER_PORT']}"
    return f"parent={os.getppid()}"
