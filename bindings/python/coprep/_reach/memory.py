"""Objects in memory, read without running code of theirs, and what of them counts."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import itertools
import logging
import os
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from coprep._modules import is_users

SCALARS = frozenset((int, float, complex, bool, bytes, type(None), type(...), slice, range))
"""Types of values that hold nothing to follow. Strings are followed, since they may be names."""
CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, types.ModuleType, functools.partial)
IGNORED = (logging.Logger, logging.Handler, type(threading.Lock()), type(threading.RLock()))
"""Types of objects on which samples do not depend."""
_CONFIGURATIONS = frozenset(("omegaconf", "yacs", "easydict", "ml_collections", "addict", "mmengine", "munch", "box"))
"""Libraries of configurations, whose objects are read member by member by their own code."""
_MAPPINGS = ("DictConfig", "ConfigDict")
"""Names of their mappings that are no ``dict``."""
_NESTED = 6
"""Levels of containers that are looked at for something to follow."""

_COMPARED = ("keys", "length", "truth", "presence")
ABSENT = "is absent"
"""Stands for a member that is not there."""
Again = tuple[Any, ...]
"""A function and its arguments, which give a member anew."""


class Read(NamedTuple):
    """Something in memory that samples depend on."""

    path: str
    how: str
    """The part of it that counts: its ``value``, ``type``, ``content`` or ``code``, its ``keys``, ``length``, ``truth``
    or ``presence``."""
    value: Any
    line: str
    """The line that reads it, such as ``data.py:41 (augment)``."""
    again: Again
    about: Any = None
    """The class of an object, or the code of a function, with the path at which it was met first."""
    why: str = ""
    """Why all of it counts, if something else than a single member does."""

    def now(self) -> Read | None:
        """Returns it with its present value, or ``None`` if code that is reached may be other code now."""
        try:
            value = self.again[0](*self.again[1:])
        except Exception:
            return None
        if value is not self.value:
            is_equal = self.how in _COMPARED and value == self.value
            # A string may be the name of what else is read.
            is_scalar = self.how == "value" and type(value) is type(self.value) and type(value) in SCALARS
            return self._replace(value=value) if is_equal or is_scalar else None
        if self.how == "type":
            return self if type(value) is self.about[0] else None
        if self.how == "code":
            return self if getattr(value, "__code__", None) is self.about[0] else None
        return self


# --- what objects are ----------------------------------------------------------------------------------------------


def members_of(obj: Any) -> dict[str, Any]:
    """Returns the attributes that an object itself holds, without running any code of its class."""
    try:
        own = obj.__dict__ if type(obj) is threading.local else object.__getattribute__(obj, "__dict__")
        found = dict(own)
    except (AttributeError, TypeError):
        found = {}
    for cls in () if is_a(obj, type) else type(obj).__mro__:
        for name, member in cls.__dict__.items() if "__slots__" in cls.__dict__ else ():
            if type(member) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):
                    found[name] = member.__get__(obj)
    return found


def in_class(cls: type, name: str) -> Any:
    """Returns the member of a class, as it is written there, or ``None``."""
    return next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), None)


def library_of(obj: Any) -> str:
    return str(type(obj).__module__ or "").partition(".")[0]


def is_configuration(cls: type) -> bool:
    return any(str(base.__module__ or "").partition(".")[0] in _CONFIGURATIONS for base in cls.__mro__)


def is_a(obj: Any, kinds: Any) -> bool:
    """``isinstance`` that runs no code of the object's."""
    return issubclass(type(obj), kinds)


def is_mapping(obj: Any) -> bool:
    return is_a(obj, dict) or type(obj) is os._Environ or type(obj).__name__ in _MAPPINGS


_SEQUENCES = (list, tuple, set, frozenset)


def is_sequence(obj: Any) -> bool:
    return is_a(obj, _SEQUENCES)


def _sequence_of(obj: Any) -> Any:
    """Returns the built-in class of a sequence, whose methods run no code of the user's."""
    return next(kind for kind in _SEQUENCES if is_a(obj, kind))


def elements_of(sequence: Any) -> Iterator[Any]:
    found: Iterator[Any] = _sequence_of(sequence).__iter__(sequence)
    return found


def length(container: Any) -> int:
    kind = dict if is_a(container, dict) else _sequence_of(container) if is_sequence(container) else type(container)
    found: int = kind.__len__(container)
    return found


def factory_of(mapping: Any) -> Any:
    """Returns the function that gives the missing entries of a ``defaultdict``, or ``None``."""
    kind = collections.defaultdict
    return kind.__dict__["default_factory"].__get__(mapping) if is_a(mapping, kind) else None


def keys_of(mapping: Any) -> list[Any]:
    if is_a(mapping, dict):
        return list(dict.keys(mapping))
    if type(mapping).__name__ == "DictConfig" and (mapping._is_none() or mapping._is_missing()):
        return []
    return list(mapping.keys())


def wrapped(obj: Any) -> Any:
    """Returns the function that another one stands for, as ``functools.wraps`` notes it."""
    return members_of(obj).get("__wrapped__")


def is_users_code(function: Any) -> bool:
    if type(function) is not types.FunctionType:
        return False
    home: Any = function.__globals__.get("__name__")
    return is_users(home) or (home not in sys.modules and home not in (None, "builtins"))


def is_users_class(cls: Any) -> bool:
    module = getattr(cls, "__module__", None)
    return is_users(module) or (isinstance(module, str) and module not in sys.modules)


def method_of(cls: type | None, name: str) -> types.FunctionType | None:
    """Returns a method of a class if it is code of the user's."""
    found: types.FunctionType | None = None if cls is None else in_class(cls, name)
    return found if is_users_code(found) else None


def is_plain(obj: Any, level: int = 0) -> bool:
    """Returns whether an object holds nothing to follow: an array, a list of numbers, a tensor."""
    kind = type(obj)
    if kind in SCALARS or kind is str or is_a(obj, IGNORED):
        return True
    if is_a(obj, CODE) or level > _NESTED:
        return False
    if kind in (list, tuple, set, frozenset):
        return _are_plain(obj, level)
    if kind is dict:
        return level > 0 and _are_plain(obj.values(), level)
    if library_of(obj) == "numpy":
        dtype = getattr(obj, "dtype", None)
        return dtype is not None and not dtype.hasobject
    # Tensors, their types and devices. Datasets and models of it lie in other modules.
    return kind.__module__ == "torch"


def _are_plain(elements: Iterable[Any], level: int) -> bool:
    kinds = set(map(type, elements))
    if kinds <= SCALARS | {str}:
        return True
    if kinds <= {list, tuple} | SCALARS | {str}:
        # Such as a list of pairs. This takes a tenth of the time of a call for each.
        nested = (element for element in elements if type(element) in (list, tuple))
        if set(map(type, itertools.chain.from_iterable(nested))) <= SCALARS | {str}:
            return True
    return all(is_plain(element, level + 1) for element in elements)


# --- reading a member once more ------------------------------------------------------------------------------------


def entry(mapping: Mapping[str, Any], key: Any) -> Any:
    return mapping.get(key, ABSENT)


def element(sequence: Any, index: int) -> Any:
    return _sequence_of(sequence).__getitem__(sequence, index) if index < length(sequence) else ABSENT


def slot(obj: Any, descriptor: Any) -> Any:
    """Returns a member that is stored in C."""
    try:
        return ABSENT if obj is None else descriptor.__get__(obj, type(obj))
    except (AttributeError, TypeError):
        return ABSENT


def cell(holder: types.CellType) -> Any:
    try:
        return holder.cell_contents
    except ValueError:
        return ABSENT


def member(obj: Any, name: str) -> Any:
    return members_of(obj).get(name, ABSENT)


def item(mapping: Any, key: Any) -> Any:
    if is_a(mapping, dict):
        return dict.get(mapping, key, ABSENT)
    return mapping[key] if key in keys_of(mapping) else ABSENT


def class_member(cls: type, name: str) -> Any:
    found = in_class(cls, name)
    return ABSENT if found is None else found


def contents(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return ABSENT


def same(value: Any) -> Any:
    """Returns a value that no member holds."""
    return value


def entry_suffix(key: Any) -> str:
    if type(key) in SCALARS or type(key) is str:
        return f"[{key!r}]"
    # The text of another key may be an address, and code of the user's may make it.
    name = getattr(key, "__qualname__", None) if is_a(key, CODE) else None
    return f"[<{name if isinstance(name, str) else type(key).__qualname__}>]"


def suffixes_of(mapping: Any) -> list[str]:
    return list(map(entry_suffix, keys_of(mapping)))


def names_of(obj: Any) -> list[str]:
    return list(members_of(obj))


def is_filled(container: Any) -> bool:
    return length(container) > 0


def has_truth(cls: type) -> bool:
    """Returns whether a class decides what of its instances is true."""
    return any(in_class(cls, name) is not None for name in ("__bool__", "__len__"))


def holds_names(obj: Any) -> bool:
    """Returns whether ``in`` looks for a name of its members."""
    return is_mapping(obj) or type(obj).__name__ == "Namespace"


def has_name(obj: Any, name: str) -> bool:
    return name in (keys_of(obj) if is_mapping(obj) else obj.__dict__)
