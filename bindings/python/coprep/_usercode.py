"""A user's dataset as a job describes it to the coordinator: its identity, and the code that its workers run."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from coprep import _coprep
from coprep._fingerprint import fingerprint
from coprep._iterables import Batches
from coprep._modules import parts_of, remember_files, sources_of
from coprep._names import MAINS
from coprep._private import Private
from coprep._program import Program
from coprep._servers import start_method

Part = tuple[str, bytes]


class Identity(NamedTuple):
    """The properties that two jobs must have in common to share."""

    name: str
    samples: int | None
    dataset: list[Part]
    rest: list[Part]
    is_iterated: bool = False
    private: tuple[Private, ...] = ()
    """Objects that cannot be compared with those of other jobs, so that this job shares with none."""

    def pipeline(self, *, split: bool, in_job: bool) -> _coprep.Pipeline:
        """Returns the pipeline that stands for this dataset in messages to the coordinator."""
        return _coprep.user_dataset(
            self.name,
            self.samples,
            self.dataset,
            self.rest,
            split=split,
            in_job=in_job,
            is_iterated=self.is_iterated,
        )


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
    ) -> None:
        self.program = Program(dataset, transform, worker_init_fn, whole, batched)
        self._context = context
        self._in_job = in_job
        self._loaded: Program | None = None
        if start_method(context) != "fork":
            remember_files()

    def local(self) -> Program:
        """Returns the program with the dataset itself in place of its factory's name."""
        if self._loaded is None:
            self._loaded = self.program.loaded()
        return self._loaded

    def identity(self) -> Identity:
        """Returns the identity of the dataset in its present state, as this process has it in memory."""
        dataset, transform, init, whole, batched = self.program
        private: list[Private] = []
        rest = [("collation", _digest(f"{whole}, {batched}"))]
        if not self._in_job:
            rest.append(("start method", _digest(start_method(self._context))))
        further = {"transform": transform, "worker_init_fn": init}
        rest += self._parts({name: value for name, value in further.items() if value is not None}, private)
        if isinstance(dataset, str):
            parts = [_interpreter(), *_factory_parts(dataset)]
            return Identity(dataset, None, parts, rest, private=tuple(private))
        parts = [_interpreter(), *self._parts({"dataset": dataset}, private)]
        is_iterated = isinstance(dataset, Batches)
        return Identity(_name(dataset), _length(dataset), parts, rest, is_iterated, tuple(private))

    def _parts(self, named: dict[str, Any], private: list[Private]) -> list[Part]:
        found: list[Private] = []
        parts = fingerprint(named, found)
        if found and self._in_job:
            # Jobs that make samples themselves share only the order. The name of the class is enough for that.
            return [(name, _digest(_name(value))) for name, value in named.items()]
        private += found
        return parts


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
        return len(dataset)
    except TypeError:
        raise TypeError(
            f"{_name(dataset)} has no length: samples are shared by their ids, 0 to len(dataset) - 1, so define __len__"
        ) from None
