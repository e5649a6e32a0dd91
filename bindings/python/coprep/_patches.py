"""Members of libraries that a program has replaced by code of its own, as in ``np.load = mine``.

Libraries count by their version, so such members must be found. All members of a module are looked at once, and again
only after one of them has changed.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
"""The flag of a class that was made at runtime, and so is not built in."""
_HOOKS = frozenset(("excepthook", "displayhook", "unraisablehook", "breakpointhook"))
"""Members that are there to be replaced, and change no sample."""


_METHODS = (types.MethodType, staticmethod, classmethod)
_CODE = frozenset((types.FunctionType, property, functools._lru_cache_wrapper, functools.partial, *_METHODS))
"""Types of members that may be code of the user's, beside classes."""
_DATA = frozenset(
    (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset, types.ModuleType)
    + (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
    + (types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)
)
"""Types of most members. Their values are no code of the user's."""


class _Scanned(NamedTuple):
    """A module as it was when it was looked at. Comparing it with the present one takes a hundredth of the time."""

    module: Any
    members: dict[str, Any]
    classes: list[type]
    members_of_classes: list[dict[str, Any]]
    modules: list[str]
    found: dict[str, Any]
    """Members that the user has replaced, by their full name."""

    def is_present(self, module: Any) -> bool:
        """Returns whether nothing has changed since then."""
        try:
            is_same = self.module is module and self.members == vars(module)
            return is_same and self.members_of_classes == list(map(vars, self.classes))
        except Exception:
            # Some objects, such as arrays, answer a comparison in their own way. It is made only with another object.
            return False


_scanned: dict[str, _Scanned] = {}


_NOTHING = _Scanned(None, {}, [], [], [], {})


class Patches:
    """The user's code in modules of libraries, each of which is looked at once.

    Args:
        is_users: returns whether a module is the user's.
    """

    def __init__(self, is_users: Callable[[Any], bool]) -> None:
        self._is_users = is_users
        self._looked_at: dict[str, _Scanned] = {}

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns the user's code in imported modules, in their classes, and in modules that they have imported."""
        near = set(names)
        for name in list(near):
            near.update(self._scanned(name).modules)
        found: dict[str, Any] = {}
        for name in sorted(near):
            found.update(self._scanned(name).found)
        return found

    def _scanned(self, name: str) -> _Scanned:
        known = self._looked_at.get(name)
        if known is None:
            module = sys.modules.get(name)
            known = _NOTHING if module is None or self._is_users(name) else self._present(name, module)
            self._looked_at[name] = known
        return known

    def _present(self, name: str, module: Any) -> _Scanned:
        kept = _scanned.get(name)
        if kept is None or not kept.is_present(module):
            kept = _scanned[name] = self._anew(name, module)
        return kept

    def _anew(self, name: str, module: Any) -> _Scanned:
        members = dict(vars(module))
        top = name.partition(".")[0]
        classes = [value for value in members.values() if _is_heap_class(value) and _top(value) == top]
        members_of_classes = [dict(vars(cls)) for cls in classes]
        home = vars(module)
        found = {f"{name}.{member}": members[member] for member in self._own(members, home)}
        for cls, inner in zip(classes, members_of_classes, strict=True):
            at = f"{cls.__module__}.{cls.__qualname__}"
            found |= {f"{at}.{member}": inner[member] for member in self._own(inner, home)}
        modules = [value.__name__ for value in members.values() if type(value) is types.ModuleType]
        return _Scanned(module, members, classes, members_of_classes, modules, found)

    def _own(self, members: dict[str, Any], home: dict[str, Any]) -> Iterator[str]:
        """Yields the names of the members that are code of the user's. Functions of the module itself are not."""
        for name, value in members.items():
            kind = type(value)
            if kind in _DATA or (kind is types.FunctionType and value.__globals__ is home):
                continue
            is_code = kind in _CODE or issubclass(kind, type) or _is_accessor(value)
            if is_code and name not in _HOOKS and any(self._is_own(code, name, members) for code in _codes_of(value)):
                yield name

    def _is_own(self, code: Any, name: str, members: Mapping[str, Any]) -> bool:
        kind = type(code)
        if kind is types.FunctionType:
            return self._is_users(code.__globals__.get("__name__"))
        if kind is functools.partial:
            is_same = getattr(code.func, "__name__", None) == name and not _is_written(code, name, members)
            return is_same or self._is_own(code.func, name, members)
        return _is_heap_class(code) and isinstance(code.__module__, str) and self._is_users(code.__module__)


def _is_heap_class(value: Any) -> bool:
    # Other classes cannot be changed. The type is compared, because some objects answer `isinstance` with a warning.
    return issubclass(type(value), type) and bool(value.__flags__ & HEAP_TYPE)


def _is_accessor(value: Any) -> bool:
    """Returns whether a member makes a value of code that it holds, as `functools.cached_property` does."""
    return hasattr(type(value), "__get__") and hasattr(value, "__dict__")


def _is_written(partial: Any, name: str, members: Mapping[str, Any]) -> bool:
    """Returns whether a library itself assigns a partial function to a name, in this or another of its modules."""
    library = str(members.get("__name__")).partition(".")[0]
    modules = [module for path, module in list(sys.modules.items()) if path.partition(".")[0] == library]
    files = {vars(module).get("__file__") for module in modules if vars(module).get(name) is partial}
    pattern = re.compile(rf"^{name}\s*=\s*(functools\.)?partial\(", re.MULTILINE)
    return any(pattern.search("".join(linecache.getlines(str(file)))) for file in files)


def _top(cls: type) -> str:
    return cls.__module__.partition(".")[0] if isinstance(cls.__module__, str) else ""


def _codes_of(value: Any) -> Iterator[Any]:
    kind = type(value)
    if kind in _METHODS:
        yield value.__func__
    elif kind is property:
        yield from (value.fget, value.fset)
    elif kind is functools._lru_cache_wrapper:
        yield value.__wrapped__
    elif kind not in _CODE and not issubclass(kind, type):
        yield from vars(value).values()
    else:
        yield value
