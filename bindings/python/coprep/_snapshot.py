"""Code as it was when it was looked at, to see at once whether any of it has changed since then."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import chain
from types import CellType, FunctionType
from typing import Any

_state = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__", "__closure__")
_values = operator.methodcaller("values")


class Snapshot:
    """The members of modules and classes, and the state of functions. All are compared by identity, without a loop."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._members: list[Mapping[str, Any]] = []
        self._names: list[str] = []
        self._objects: list[Any] = []
        self._functions: list[FunctionType] = []
        self._states: list[Any] = []
        self._cells: list[tuple[CellType, Any]] = []

    def add_members(self, holder: Any) -> None:
        """Adds the members of a module, a class, or anything else that has a ``__dict__``."""
        if id(holder) not in self._seen:
            self._seen.add(id(holder))
            self.add_scope(vars(holder))

    def add_scope(self, members: Mapping[str, Any]) -> None:
        """Adds the global variables of a function."""
        # `vars` returns a new proxy of a class at each call, so `add_members` notes the id of the class instead.
        if type(members) is dict:
            if id(members) in self._seen:
                return
            self._seen.add(id(members))
        self._members.append(members)
        self._names += members
        self._objects += members.values()

    def add_function(self, function: FunctionType) -> None:
        """Adds the state of a function."""
        self._functions.append(function)
        self._states += _state(function)
        self._cells += [(cell, contents_of(cell)) for cell in function.__closure__ or ()]
        if vars(function):
            self.add_scope(vars(function))

    def is_present(self) -> bool:
        """Returns whether all is as it was."""
        try:
            return (
                list(chain.from_iterable(self._members)) == self._names
                and all(map(operator.is_, chain.from_iterable(map(_values, self._members)), self._objects))
                and all(map(operator.is_, chain.from_iterable(map(_state, self._functions)), self._states))
                and all(contents_of(cell) is contents for cell, contents in self._cells)
            )
        except RuntimeError:
            return False  # Another thread changes it at this moment.


def contents_of(cell: CellType) -> Any:
    """Returns what a cell holds, or the type of cells if it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return CellType
