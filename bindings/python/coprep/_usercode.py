"""A user's dataset as a job describes it to the coordinator: its identity, and the code that its workers run."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from coprep import _coprep
from coprep._fingerprint import Counted
from coprep._folds import Fold
from coprep._iterables import Batches
from coprep._modules import parts_of, remember_files, sources_of
from coprep._names import MAINS
from coprep._private import Private
from coprep._program import Program
from coprep._servers import check_may_spawn, start_method
from coprep._told import NOTHING, Told

Part = tuple[str, bytes]
MOST_SAMPLES = 2**32 - 1
"""Ids have 32 bits, and a count of samples too."""


class Identity(NamedTuple):
    """The properties that two jobs must have in common to share."""

    name: str
    samples: int | None
    dataset: list[Part]
    rest: list[Part]
    is_iterated: bool = False
    private: tuple[Private, ...] = ()
    """Objects that cannot be compared with those of other jobs, so that this job shares with none."""
    directory: tuple[bytes, bool] = (b"", False)
    """Digest of the working directory, and whether a relative path leads to something there."""
    subset: bytes | None = None
    """The ids of the job's samples, if its dataset is a part of another, which these properties are of."""

    def equals(self, other: Identity) -> bool:
        """Returns whether samples of both are the same. A file may have appeared where a relative path leads."""
        where, is_used = self.directory
        same_place = where == other.directory[0] or not (is_used or other.directory[1])
        return same_place and self._replace(directory=other.directory) == other

    def pipeline(self, told: Callable[[str], Told], *, split: bool, in_job: bool) -> _coprep.Pipeline:
        """Returns the pipeline that stands for this dataset in messages to the coordinator.

        Args:
            told: describes a part by its name.
        """
        dataset, rest = ([(*part, *told(part[0])) for part in parts] for parts in (self.dataset, self.rest))
        return _coprep.user_dataset(self, dataset, rest, split=split, in_job=in_job)


class UserCode:
    """A dataset, together with the functions that are applied to its samples.

    Args:
        dataset: map-style, :class:`Batches`, or ``module:factory``.
        transform: the random part of the preparation, if it is separate.
        worker_init_fn: called in each worker with its number.
        whole: whether samples travel whole, since the job's ``collate_fn`` makes batches of them.
        batched: whether samples become batches, of one sample or more.
        context: the loader's ``multiprocessing_context``.
        in_job: whether samples are made in this process.
        fold: returns a dataset's samples as ids of another, or ``None`` if the dataset is no part of one.
    """

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        *,
        whole: bool,
        batched: bool,
        context: Any,
        in_job: bool = False,
        fold: Callable[[Any], Fold | None] = lambda _: None,
    ) -> None:
        self._given = Program(dataset, transform, worker_init_fn, whole, batched)
        self.program = self._given
        """The code of the workers of the stream that :meth:`identity` describes."""
        self.fold: Fold | None = None
        """The samples of the job, if its dataset is a part of the stream's."""
        self.keeps_positions = False
        """``True`` if the samples of such a dataset are to be numbered by their positions in it."""
        self._fold_of = fold
        self._context = context
        self._in_job = in_job
        self._loaded: Program | None = None
        further = {"transform": transform, "worker_init_fn": worker_init_fn}
        self._further = Counted({name: value for name, value in further.items() if value is not None}, dataset)
        self._dataset = Counted(dataset.code() if isinstance(dataset, Batches) else {"dataset": dataset})
        self._counted = self._dataset
        if start_method(context) != "fork":
            remember_files()

    def local(self) -> Program:
        """Returns the program with the dataset itself in place of its factory's name."""
        if not isinstance(self.program.dataset, str):
            return self.program
        if self._loaded is None:
            self._loaded = self.program.loaded()
        return self._loaded

    def identity(self) -> Identity:
        """Returns the identity of the dataset in its present state, as this process has it in memory."""
        self.fold = None if self.keeps_positions else self._fold_of(self._given.dataset)
        if self.fold is not None:
            found = self._of_fold(self.fold)
            if found is not None:
                return found
            # It is not tried again, since finding what counts takes a while.
            self._fold_of = lambda _: None
        self.fold, self.program, self._counted = None, self._given, self._dataset
        return self._identity()

    def _of_fold(self, fold: Fold) -> Identity | None:
        """Returns the identity of the dataset that the job has a part of. ``None`` if workers have to know the part."""
        if self._counted.named.get("dataset") is not fold.dataset:
            self._counted = Counted({"dataset": fold.dataset})
        self.program = self._given._replace(dataset=fold.dataset, as_index=fold.as_index)
        found = self._identity()
        if self._counted.may_read_worker_info or self._further.may_read_worker_info:
            return None
        return found._replace(subset=fold.subset)

    def _identity(self) -> Identity:
        dataset, _, init, whole, batched, index = self.program
        private: list[Private] = []
        rest = [("collation", _digest(f"{whole}, {batched}"))]
        if not self._in_job:
            method = start_method(self._context)
            if method != "fork":
                check_may_spawn()
            rest.append(("start method", _digest(method)))
        if init is not None:
            # What it does counts by its parts. Whether there is one has a name of its own.
            rest.append(("worker_init_fn", _digest(getattr(init, "__qualname__", type(init).__qualname__))))
        rest += self._parts(self._further, private)
        if isinstance(dataset, str):
            parts = [_interpreter(), *_factory_parts(dataset)]
            directory = _directory(self._further.uses_directory)
            return Identity(dataset, None, parts, rest, private=tuple(private), directory=directory)
        parts = [_interpreter(), *self._parts(self._counted, private)]
        if index is not int:
            parts.append(("type of index", _digest(repr(index))))
        is_iterated = isinstance(dataset, Batches)
        if is_iterated:
            rest.append(("batches", _digest(repr(dataset.options()))))
        directory = _directory(self._counted.uses_directory or self._further.uses_directory)
        return Identity(_name(dataset), _length(dataset), parts, rest, is_iterated, tuple(private), directory)

    def told(self) -> Callable[[str], Told]:
        """Returns a function that describes a part of the identity by its name, for people."""
        both = self._counted.told(), self._further.told()
        return lambda name: next(filter(any, (described.part(name) for described in both)), NOTHING)

    def _parts(self, counted: Counted, private: list[Private]) -> list[Part]:
        found: list[Private] = []
        parts = counted.parts(found)
        if found and self._in_job:
            # Jobs that make samples themselves share only the order. The name of the class is enough for that.
            return [(name, _digest(_name(value))) for name, value in counted.named.items()]
        private += found
        return parts


def _directory(is_used: bool) -> tuple[bytes, bool]:
    return _digest(os.getcwd()), is_used


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _interpreter() -> Part:
    # Its options count as far as they change what code does. The environment may be named in several ways.
    flags = sys.flags.optimize, sys.flags.utf8_mode, sys.flags.bytes_warning
    return "interpreter", _digest(f"{os.path.realpath(sys.prefix)}\n{sys.implementation.name} {sys.version}\n{flags}")


def _factory_parts(name: str) -> list[Part]:
    """Returns the identity of a factory: its name, and the files of the code that another process will import."""
    module = name.partition(":")[0]
    # The module is looked for and not imported: only workers need the dataset.
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"the dataset is to be made by {name!r}, and there is no module {module!r}")
    sources = sources_of([module], skip_present=False)
    return [("dataset", _digest(name)), *sources.parts, *parts_of(sources.libraries)]


def _name(dataset: Any) -> str:
    if isinstance(dataset, Batches):
        dataset = dataset.dataset
    kind = type(dataset)
    # The main script has another module name in processes that it spawned. Its datasets keep the same name there.
    module = MAINS[0] if kind.__module__ in MAINS else kind.__module__
    return f"{kind.__qualname__} ({module})"


def _length(dataset: Any) -> int:
    try:
        samples = len(dataset)
    except TypeError:
        raise TypeError(
            f"{_name(dataset)} has no length: samples are shared by their ids, 0 to len(dataset) - 1, so define __len__"
        ) from None
    if samples > MOST_SAMPLES:
        raise ValueError(
            f"{_name(dataset)} has {samples:,} samples, and at most {MOST_SAMPLES:,} are shared by their ids: let "
            "__len__ give the samples of an epoch, or make it a torch.utils.data.IterableDataset"
        )
    return samples
