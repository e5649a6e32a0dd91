"""A user's dataset as a job describes it to the coordinator: its identity, and the code that its workers run."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from coprep import _coprep
from coprep._errors import CannotTravel
from coprep._fingerprint import fingerprint
from coprep._iterables import Batches
from coprep._modules import Modules
from coprep._names import MAINS
from coprep._program import Program
from coprep._servers import start_method

Part = tuple[str, bytes]

_PROCESS = os.urandom(16).hex()
"""Random text that this process and its forks share with no other process."""


class Identity(NamedTuple):
    """The properties that two jobs must have in common to share."""

    name: str
    samples: int | None
    dataset: list[Part]
    rest: list[Part]
    is_iterated: bool = False

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

    def local(self) -> Program:
        """Returns the program with the dataset itself in place of its factory's name."""
        if self._loaded is None:
            self._loaded = self.program.loaded()
        return self._loaded

    def identity(self) -> Identity:
        """Returns the identity of the dataset in its present state.

        Raises:
            TypeError: some part of it cannot be pickled. The message names the part and the remedy.
        """
        dataset, transform, init, whole, batched = self.program
        interpreter = [("interpreter", _digest(f"{sys.executable}\n{sys.version}"))]
        rest = [("collation", _digest(f"{whole}, {batched}"))]
        if not self._in_job:
            rest.append(("start method", _digest(start_method(self._context))))
        further = {"transform": transform, "worker_init_fn": init}
        modules = Modules()
        rest += self._parts({name: value for name, value in further.items() if value is not None}, modules)
        if isinstance(dataset, str):
            return Identity(dataset, None, interpreter + _factory_parts(dataset, modules), rest)
        parts = interpreter + self._parts({"dataset": dataset}, modules)
        return Identity(_name(dataset), _length(dataset), parts, rest, isinstance(dataset, Batches))

    def _parts(self, named: dict[str, Any], modules: Modules) -> list[Part]:
        try:
            return fingerprint(named, modules)
        except CannotTravel:
            # Jobs that make samples themselves share only the order. The name of the class is enough for that.
            only_here = "" if self._in_job else _PROCESS
            return [(name, _digest(_name(value) + only_here)) for name, value in named.items()]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _factory_parts(name: str, modules: Modules) -> list[Part]:
    """Returns the identity of a factory: its name, and the code that it uses."""
    module = name.partition(":")[0]
    # The module is looked for and not imported: only workers need the dataset.
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"the dataset is to be made by {name!r}, and there is no module {module!r}")
    return [("dataset", _digest(name)), *modules.parts([module])]


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
