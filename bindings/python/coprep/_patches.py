"""Members of libraries that a program has replaced by code of its own, as in ``np.load = mine``.

Libraries count by their version, so such members must be found. All members of a module are looked at once, and again
only after one of them has changed.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from coprep._modules import is_users

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_HOOKS = frozenset(("excepthook", "displayhook", "unraisablehook", "breakpointhook"))
"""Members that are there to be replaced, and change no sample."""


_METHODS = (types.MethodType, staticmethod, classmethod)
_CODE = frozenset((types.FunctionType, property, functools._lru_cache_wrapper, functools.partial, *_METHODS))
"""Types of members that may be code of the user's, beside classes."""


class _Scanned(NamedTuple):
    members: dict[str, Any]
    """The members as they were. Comparing them with the present ones takes a hundredth of the time of a scan."""
    own: list[Any]
    """Those that the user has replaced, by name."""
    classes: list[type]
    modules: list[str]


_scanned: dict[int, tuple[Any, _Scanned]] = {}
"""What was found, by the id of the module or class, which is kept beside it."""


def patches(names: Iterable[str]) -> dict[str, Any]:
    """Returns the user's code in imported library modules, in their classes, and in modules that they have imported."""
    found: dict[str, Any] = {}
    near = set(names)
    for name in list(near):
        module = sys.modules.get(name)
        if module is not None and not is_users(name):
            near.update(_scan(module).modules)
    for name in sorted(near):
        module = sys.modules.get(name)
        if module is None or is_users(name):
            continue
        scanned = _scan(module)
        found.update((f"{name}.{member}", scanned.members[member]) for member in scanned.own)
        for cls in scanned.classes:
            inner = _scan(cls)
            for member in inner.own:
                found[f"{cls.__module__}.{cls.__qualname__}.{member}"] = inner.members[member]
    return found


def _scan(holder: Any) -> _Scanned:
    members = vars(holder)
    kept = _scanned.get(id(holder))
    if kept is not None and _are_same(kept[1].members, members):
        return kept[1]
    copy = dict(members)
    is_module = isinstance(holder, types.ModuleType)
    top = (holder.__name__ if is_module else holder.__module__).partition(".")[0]
    own, classes, modules = [], [], []
    for name, value in copy.items():
        kind = type(value)
        if issubclass(kind, type):
            if is_module and _is_class_of(value, top):
                classes.append(value)
        elif is_module and kind is types.ModuleType:
            modules.append(value.__name__)
        elif kind not in _CODE:
            continue
        if name not in _HOOKS and any(_is_own(code, name, copy) for code in _codes_of(value)):
            own.append(name)
    scanned = _Scanned(copy, own, classes, modules)
    _scanned[id(holder)] = holder, scanned
    return scanned


def _are_same(before: dict[str, Any], now: Mapping[str, Any]) -> bool:
    try:
        return bool(before == now)
    except Exception:
        # Some objects, such as arrays, answer a comparison in their own way. It is made only if the object is another.
        return False


def _is_class_of(value: Any, top: str) -> bool:
    # Other classes cannot be changed.
    if not _is_heap_class(value):
        return False
    return isinstance(value.__module__, str) and value.__module__.partition(".")[0] == top


def _is_heap_class(value: Any) -> bool:
    # The type is compared, because some objects of libraries answer `isinstance` with a warning.
    return issubclass(type(value), type) and bool(value.__flags__ & _HEAP_TYPE)


def _codes_of(value: Any) -> Iterator[Any]:
    kind = type(value)
    if kind in _METHODS:
        yield value.__func__
    elif kind is property:
        yield from (value.fget, value.fset)
    elif kind is functools._lru_cache_wrapper:
        yield value.__wrapped__
    else:
        yield value


def _is_own(code: Any, name: str, members: Mapping[str, Any]) -> bool:
    kind = type(code)
    if kind is types.FunctionType:
        return code.__globals__ is not members and is_users(code.__globals__.get("__name__"))
    if kind is functools.partial:
        # A library has no reason to wrap a function of its own under the same name.
        return getattr(code.func, "__name__", None) == name or _is_own(code.func, name, members)
    return _is_heap_class(code) and is_users(code.__module__)
