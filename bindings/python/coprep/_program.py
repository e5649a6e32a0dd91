"""The code of a user that worker processes run, as it travels to them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from coprep._packing import unpack


class Program(NamedTuple):
    """The user's code that workers run. It travels once per stream."""

    dataset: Any
    """The dataset, or ``module:factory``."""
    transform: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], None] | None
    whole: bool
    """``True`` if samples travel as they are, because the job collates them."""
    batched: bool
    """``True`` if samples become batches. Then ``__getitems__`` is used if the dataset has it, as PyTorch does."""

    def fetch(self) -> Callable[[int], Any]:
        """Returns the function that makes a sample of the dataset from its id."""
        at_once = getattr(self.dataset, "__getitems__", None) if self.batched else None
        return (lambda sample: at_once([sample])[0]) if at_once else self.dataset.__getitem__


class Delivery(NamedTuple):
    """Head of the file that the job sends to the fork server. The program follows at :data:`PROGRAM`."""

    spawn: bool
    """``True`` if each worker loads the dataset anew, instead of finding it in memory."""
    samples: int | None
    """Number of samples of the dataset, or ``None`` if only the fork server can determine it."""
    argv: list[str]
    """The job's ``sys.argv``."""


PROGRAM = 1 << 16
"""Offset of the program in the file that the job sends. All workers use the program's arrays in place."""


def load_program(data: memoryview) -> Program:
    """Unpacks the program. If its dataset is named by a factory, calls the factory."""
    program: Program = unpack(data)
    if isinstance(program.dataset, str):
        program = program._replace(dataset=call_factory(program.dataset))
    return program


def call_factory(name: str) -> Any:
    """Returns the dataset that ``module:factory`` makes."""
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found()
