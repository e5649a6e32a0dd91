"""Modules that unpickling a dataset will import, found without pickling it."""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from coprep._names import MAINS

MOST = 500
"""Most objects that are looked at. A loader must be made at once, however large its dataset."""
ELEMENTS = 16
"""Most elements of a container that are looked at. Usually all of them are alike."""

_METHODS = (staticmethod, classmethod)


def modules_of(*objects: Any) -> list[str]:
    """Returns names of modules that a process imports when it unpickles these objects.

    Some may be missing. A name too many would cost the time of an unnecessary import, so objects that determine their
    own pickling are not looked into.
    """
    found: dict[str, None] = {}
    todo: deque[Any] = deque(objects)
    seen: dict[int, Any] = {}
    while todo and len(seen) < MOST:
        one = todo.popleft()
        if id(one) in seen:
            continue
        # The reference keeps the object alive, so that its id stays unique.
        seen[id(one)] = one
        name = _module_of(one)
        if name is None:
            todo.extend(_within(one))
        elif _can_be_imported(name):
            found[name] = None
    return list(found)


def _module_of(one: Any) -> str | None:
    """Returns the module by whose name an object is pickled, or ``None`` if it is pickled by value."""
    if isinstance(one, types.ModuleType):
        return one.__name__
    if not isinstance(one, (type, types.FunctionType, types.BuiltinFunctionType)):
        return None
    module: Any = getattr(one, "__module__", None)
    # A "<" marks a lambda or a local function, which has no name in its module.
    is_by_value = module in MAINS or "<" in one.__qualname__
    return None if is_by_value or not isinstance(module, str) else module


def _can_be_imported(name: str) -> bool:
    return name not in MAINS and getattr(sys.modules.get(name), "__spec__", None) is not None


def _within(one: Any) -> Iterator[Any]:
    """Yields the objects that are pickled together with an object."""
    if isinstance(one, type):
        yield from one.__bases__
        for value in list(vars(one).values()):
            value = value.__func__ if isinstance(value, _METHODS) else value
            yield from (value.fget, value.fset) if isinstance(value, property) else (value,)
    elif isinstance(one, types.FunctionType):
        yield from _used_by(one)
    elif isinstance(one, types.MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, (list, tuple, set, frozenset, deque)):
        yield type(one)
        yield from _some(one)
    elif isinstance(one, dict):
        yield type(one)
        yield from _some(one.values())
    elif isinstance(one, partial):
        yield from (one.func, *one.args, *one.keywords.values())
    else:
        yield type(one)
        if _is_pickled_by_default(type(one)):
            yield from _attributes(one)


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yields the globals that a function of the main script uses, its defaults, and the values of its closure."""
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    values = function.__globals__
    yield from (values[name] for name in sorted(names) if name in values)
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # It is empty.
            continue


def _some(values: Iterable[Any]) -> Iterator[Any]:
    for _, value in zip(range(ELEMENTS), values):  # noqa: B905
        yield value


def _is_pickled_by_default(cls: Any) -> bool:
    default: Any = object
    own_state = getattr(cls, "__getstate__", None) is not getattr(default, "__getstate__", None)
    return not own_state and cls.__reduce_ex__ is default.__reduce_ex__ and cls.__reduce__ is default.__reduce__


def _attributes(one: Any) -> Iterator[Any]:
    try:
        # This runs no code of the class, unlike getattr().
        attributes: dict[str, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return
    yield from list(attributes.values())
