"""The form of a kind of state: a dataset whose samples show the state, and how a program sets it."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

PROGRAM = Path(__file__).parent / "program"
"""Modules and files of the program whose state is set."""
FOLDERS = {3: PROGRAM / "three", 5: PROGRAM / "five"}
"""Folders with equal names of files and different content."""


class Kind:
    """A dataset of four samples that show one kind of state.

    A derived class has in its docstring what the program does, in :meth:`set` how it does it, and in ``__getitem__``
    what shows it. A job makes one instance, and a loader of :meth:`dataset`; it calls :meth:`set` before or after it
    makes the loader. It takes :meth:`set` away from the class, since programs set their state by other code.
    """

    values: ClassVar[tuple[Any, Any]] = (3, 5)
    """Two values of the state. Neither is the default, as far as there is another."""
    counts: ClassVar[bool | None] = True
    """The state is in the samples, so jobs that differ in it may not share. With ``None`` jobs may do either, since a
    loader is free to choose where it collates batches."""
    shares: ClassVar[bool] = True
    """Jobs that agree in the state must share. A kind with content that cannot be compared sets it to ``False``."""
    unseen: ClassVar[str] = ""
    """Why jobs that differ in the state share nevertheless, where it cannot be seen from outside."""
    alone: ClassVar[bool] = False
    """Whether a job by spawn or forkserver shows this kind only: its dataset cannot be pickled or loaded, or its state
    changes what the job does with other kinds."""
    loads: ClassVar[bool] = True
    """Whether a new interpreter can load a dataset that was pickled. PyTorch notices a worker that cannot only by its
    end, after some seconds."""
    fails: ClassVar[bool] = False
    """Whether PyTorch's loader itself fails by every start method, so that coprep may do so or not."""
    refused: ClassVar[frozenset[str]] = frozenset()
    """Start methods by which coprep refuses the dataset, with an error, although PyTorch's loader works."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def set(self, value: Any) -> None:
        raise NotImplementedError

    def dataset(self) -> Any:
        """Returns what the loader is made for."""
        return self

    def check(self) -> None:
        """Raises an error if what the job has set was harmed, once the workers have ended."""


def attempt(function: Callable[..., Any], *args: Any) -> str:
    """Returns the result of a call as text, or its error."""
    try:
        return repr(function(*args))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def kinds_of(module: types.ModuleType) -> list[type[Kind]]:
    """Returns the kinds that a module defines."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Kind) and value.__module__ == module.__name__
    ]
