"""Functions and classes as they were when they were looked at, to see at once whether any of them has changed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import chain
from types import FunctionType
from typing import Any

_state = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__", "__closure__")


_CACHES = ("__slotnames__", "__annotations__", "__annotations_cache__", "__signature__")
"""Members of classes that the interpreter, pickle and libraries add when they first need them."""


def _names(cls: type) -> list[str]:
    return [name for name in cls.__dict__ if name not in _CACHES]


def _members(cls: type) -> list[Any]:
    return [cls.__bases__, *map(cls.__dict__.__getitem__, _names(cls))]


class Watched:
    """Functions and classes of the user's. All are compared by identity, without a loop."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._functions: list[FunctionType] = []
        self._states: list[Any] = []
        self._classes: list[type] = []
        self._names: list[str] = []
        self._values: list[Any] = []
        self._absent: dict[tuple[int, str], dict[str, Any]] = {}
        """The scopes in which global variables were not found, by id and name."""

    def add_function(self, function: FunctionType) -> None:
        if id(function) not in self._seen:
            self._seen.add(id(function))
            self._functions.append(function)
            self._states += _state(function)

    def add_class(self, cls: type) -> None:
        if id(cls) not in self._seen:
            self._seen.add(id(cls))
            self._classes.append(cls)
            self._names += _names(cls)
            self._values += _members(cls)

    def add_absent(self, scope: dict[str, Any], name: str) -> None:
        """Notes that a global variable is not defined, or is a built-in one."""
        self._absent[id(scope), name] = scope

    def are_present(self) -> bool:
        """Returns whether all are as they were."""
        try:
            return (
                not any(name in scope for (_, name), scope in self._absent.items())
                and list(chain.from_iterable(map(_names, self._classes))) == self._names
                and _are_same(_members, self._classes, self._values)
                and _are_same(_state, self._functions, self._states)
            )
        except RuntimeError:
            return False  # Another thread changes it at this moment.


def _are_same(of: Callable[[Any], Any], objects: list[Any], known: list[Any]) -> bool:
    return all(map(operator.is_, chain.from_iterable(map(of, objects)), known))
