"""A user's dataset as a job describes it to the coordinator: its identity, and the start and program of its workers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from coprep import _coprep
from coprep._caches import reduce_without_handles
from coprep._errors import CannotTravel
from coprep._fingerprint import fingerprint
from coprep._iterables import Batches
from coprep._modules import parts_of, sources_of
from coprep._names import MAINS
from coprep._packing import Packed, pack, packing_error
from coprep._preloading import modules_of
from coprep._private import Private
from coprep._program import PROGRAM, Delivery, Program, call_factory
from coprep._unpicklable import attributes_of, cannot_travel, culprit_of

Part = tuple[str, bytes]

_START = "import sys; sys.path[:] = {path!r}; from coprep._zygote import main; main()"
_PROCESS = os.urandom(16).hex()
"""Random name that this process and its forks share with no other process."""


class Launch(NamedTuple):
    """The start of worker processes: program, environment, and limits."""

    command: list[bytes]
    environment: list[tuple[bytes, bytes]]
    directory: bytes
    workers: int
    sample_timeout_ms: int
    process: str
    """Name of the process that asks for the workers. Modules that are imported for it serve no other process."""
    prelude: str
    """The ``sys.argv`` and the modules to import before the dataset is loaded, as JSON that ``_zygote.py`` reads."""


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
        spawn: whether each worker loads the dataset anew.
        in_job: whether samples are made in this process, so that the dataset need not be pickled.
    """

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        *,
        whole: bool,
        batched: bool,
        spawn: bool,
        in_job: bool = False,
    ) -> None:
        self.program = Program(dataset, transform, worker_init_fn, whole, batched)
        self._spawn = spawn
        self._in_job = in_job
        self._loaded: Any = None

    def local(self) -> Program:
        """Returns the program with the dataset itself in place of its factory's name."""
        dataset = self.program.dataset
        if not isinstance(dataset, str):
            return self.program
        if self._loaded is None:
            self._loaded = call_factory(dataset)
        return self.program._replace(dataset=self._loaded)

    def identity(self) -> Identity:
        """Returns the identity of the dataset in its present state, as this process has it in memory."""
        dataset, transform, init, whole, batched = self.program
        private: list[Private] = []
        rest = [("collation", _digest(f"{whole}, {batched}"))]
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

    @property
    def name(self) -> str:
        """Name of the dataset, the same as in its identity."""
        dataset = self.program.dataset
        return dataset if isinstance(dataset, str) else _name(dataset)

    @property
    def is_preloaded(self) -> bool:
        """``True`` if modules are imported before the dataset is loaded. No, if each worker loads the dataset anew."""
        return not self._spawn

    def launch(self, workers: int, sample_timeout: float) -> Launch:
        """Returns the start of worker processes.

        Args:
            workers: their number; 0 leaves it to the coordinator.
            sample_timeout: seconds that a worker may take for a sample.

        Raises:
            RuntimeError: ``sys.executable`` is empty.
        """
        if not sys.executable:
            raise RuntimeError(
                "this Python does not say which program it is (sys.executable is empty): use num_workers=0"
            )
        start = _START.format(path=sys.path)
        # Options of the interpreter, such as -O, change what code does, so workers get those of the job.
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return Launch(
            command=[os.fsencode(argument) for argument in (sys.executable, *flags, "-c", start)],
            environment=list(os.environb.items()),
            directory=os.fsencode(os.getcwd()),
            workers=workers,
            sample_timeout_ms=int(sample_timeout * 1000),
            process=f"{_PROCESS}-{os.getpid()}",
            prelude=json.dumps({"argv": sys.argv, "imports": self._imports() if self.is_preloaded else []}),
        )

    def _imports(self) -> list[str]:
        dataset, transform, init, *_ = self.program
        if isinstance(dataset, str):
            return [dataset.partition(":")[0], *modules_of(transform, init)]
        return modules_of(dataset, transform, init)

    def packed(self) -> bytearray:
        """Returns the bytes that workers load: a :class:`Delivery`, then the program at :data:`PROGRAM`.

        Raises:
            TypeError: some part cannot be pickled. The message names the part and the remedy.
        """
        dataset = self.program.dataset
        samples = None if isinstance(dataset, str) else _length(dataset)
        head = pickle.dumps(tuple(Delivery(self._spawn, samples, list(sys.argv))))
        program = self._packed_program()
        data = bytearray(PROGRAM + program.size)
        data[: len(head)] = head
        program.write_to(memoryview(data)[PROGRAM:])
        return data

    def _packed_program(self) -> Packed:
        try:
            return pack(self.program, by_file=True)
        except Exception:
            # Few datasets come here, so the others need not pickle the value of each cached property on its own.
            try:
                return pack(self.program, by_file=True, reducer=reduce_without_handles)
            except Exception as error:
                raise self._cannot_travel(error) from error

    def _cannot_travel(self, error: Exception) -> CannotTravel:
        """Returns the error that names the part of the program that cannot be pickled."""

        def error_of(value: Any) -> Exception | None:
            return packing_error(value, reduce_without_handles)

        dataset, transform, init, *_ = self.program
        named = {"dataset": dataset, "transform": transform, "worker_init_fn": init}
        failed = ((name, value, error_of(value)) for name, value in named.items())
        name, value, first = next((part for part in failed if part[2] is not None), ("dataset", dataset, error))
        found = culprit_of(value, first or error, error_of, lambda part: attributes_of(part) or [])
        return cannot_travel(name + found.suffix, "cannot be sent to the workers", found.error, found.holder)


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
