"""Objects in memory, read without running code of theirs, and what of them counts."""

from __future__ import annotations

import argparse
import collections
import contextlib
import contextvars
import enum
import functools
import gc
import io
import itertools
import logging
import operator
import os
import random
import re
import sys
import threading
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from coprep._caches import HOOK
from coprep._content import MOST_ELEMENTS
from coprep._modules import is_users

SCALARS = frozenset((int, float, complex, bool, bytes, type(None), type(...), slice, range))
"""Types of values that hold nothing to follow. Strings are followed, since they may be names."""
_FLAT = SCALARS | {str}
_PLAIN_KEYS = _FLAT | {np.int64, np.int32, np.str_}
"""Types of the keys of dicts that hold nothing to follow."""
_COMPILED = frozenset(("cython_function_or_method", "fused_cython_function", "ufunc", "nb_func", "instancemethod"))
"""Names of the types of functions that were compiled by Cython and others."""
CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, types.ModuleType, functools.partial)
IGNORED = (logging.Logger, logging.Handler, type(threading.Lock()), type(threading.RLock()))
"""Types of objects on which samples do not depend."""
_SEEDED = {id(random._inst), id(np.random.mtrand._rand)}
"""The global generators, which are seeded for each sample, by their id."""
_own: contextvars.ContextVar[dict[int, Any]] = contextvars.ContextVar("coprep_own_generators", default={})  # noqa: B039
"""Further generators that are seeded for each sample, by their id."""
FRAMES = (
    types.FrameType,
    types.TracebackType,
    types.GeneratorType,
    types.AsyncGeneratorType,
    types.CoroutineType,
)
"""Types of what leads to a function's frame, and so by its callers to the whole program."""
ENVIRONMENT = "environment"
"""The path of the environment."""
READ_ENVIRONMENT = frozenset(
    ("pydantic_settings", "pydantic.env_settings", "environs", "decouple", "dotenv", "dynaconf")
)
"""Libraries whose objects and functions take their values from the environment."""
_REMEMBERS = type(functools.lru_cache(abs))
"""The type of functions that remember their results."""
_CONFIGURATIONS = frozenset(("omegaconf", "yacs", "easydict", "ml_collections", "addict", "mmengine", "munch", "box"))
"""Libraries of configurations, whose objects are read member by member by their own code."""
_MAPPINGS = ("DictConfig", "ConfigDict")
"""Names of their mappings that are no ``dict``."""
_WITH_TEXT = ("datetime", "decimal", "fractions", "uuid", "ipaddress")
"""Modules whose objects have a text that says all of them."""
_NESTED = 6
"""Levels of containers that are looked at for something to follow."""

_HOLDERS = frozenset(
    ("torch.utils.data.dataset", "torchvision.datasets.folder", "torchvision.datasets.vision")
    + ("torchvision.transforms.transforms", "torchvision.transforms.v2._container")
)
"""Modules of libraries that are followed as the user's are: subsets, concatenations, chains of transforms."""
_COMPARED = ("keys", "length", "truth", "presence", "subclasses")
ABSENT = "is absent"
"""Stands for a member that is not there."""
Again = tuple[Any, ...]
"""A function and its arguments, which give a member anew."""


class Read(NamedTuple):
    """Something in memory that samples depend on."""

    path: str
    how: str
    """The part of it that counts: its ``value``, ``type``, ``content``, ``code``, ``keys``, ``length``, ``truth``,
    ``presence`` or ``subclasses``."""
    value: Any
    line: str
    """The line that reads it, such as ``data.py:41 (augment)``."""
    again: Again
    about: tuple[Any, str]
    """The result of :func:`about`, and the path at which it was met first."""
    why: str = ""
    """Why all of it counts, if something else than a single member does."""

    def now(self) -> Read | None:
        """Returns it with its present value, or ``None`` if code that is reached may be other code now."""
        try:
            value = self.again[0](*self.again[1:])
        except Exception:
            return None
        if value is not self.value:
            is_text = type(value) is str and type(self.value) is str
            is_equal = (self.how in _COMPARED or is_text) and value == self.value
            # A string may be the name of what else is read.
            is_scalar = self.how == "value" and type(value) is type(self.value) and type(value) in SCALARS
            return self._replace(value=value) if is_equal or is_scalar else None
        return self if about(self.how, value) is self.about[0] else None


def about(how: str, value: Any) -> Any:
    """Returns the class of an object or the code of a function, which may change while it stays the same one."""
    if how == "type":
        return type(value)
    return getattr(value, "__code__", None) if how == "code" else None


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


def in_class(cls: type, name: str, default: Any = None) -> Any:
    """Returns the member of a class, as it is written there."""
    return next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), default)


def library_of(obj: Any) -> str:
    return str(type(obj).__module__ or "").partition(".")[0]


def is_configuration(cls: type) -> bool:
    # A class of the user's that derives from one has attributes of its own.
    of_library = not is_users_class(cls)
    return of_library and any(str(base.__module__ or "").partition(".")[0] in _CONFIGURATIONS for base in cls.__mro__)


def is_a(obj: Any, kinds: Any) -> bool:
    """``isinstance`` that runs no code of the object's."""
    return issubclass(type(obj), kinds)


def is_mapping(obj: Any) -> bool:
    return is_a(obj, dict) or type(obj) is os._Environ or type(obj).__name__ in _MAPPINGS


_SEQUENCES = (list, tuple, set, frozenset)


def is_namespace(obj: Any) -> bool:
    """Returns whether an object is a class whose instances hold the keywords that they were made with."""
    return obj is argparse.Namespace or obj is types.SimpleNamespace


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


def remembered(function: Any) -> Any:
    """Returns what a function of ``functools.lru_cache`` remembers of a call without arguments, or ``ABSENT``.

    The program may have changed it since, as in ``options().size = 3``.
    """
    known = gc.get_referents(function) if type(function) is _REMEMBERS else []
    if not any(type(part) is dict and () in part for part in known):
        return ABSENT
    # Its code does not run.
    value = function()
    return ABSENT if type(value) in _FLAT else value


def is_followed_code(function: Any) -> bool:
    """Returns whether a function is code of the user's, or of a library's class that holds the user's objects."""
    if type(function) is not types.FunctionType:
        return False
    home: Any = function.__globals__.get("__name__")
    # Code that a program has executed in a namespace of its own has no module.
    return is_users(home) or home in _HOLDERS or home not in sys.modules


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def calls_forward(obj: Any) -> bool:
    """Returns whether an object is a module of PyTorch whose call is that of its ``forward``, and nothing else."""
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    if module is None or not is_a(obj, module) or in_class(type(obj), "__call__") is not module.__dict__["__call__"]:
        return False
    held = members_of(obj)
    return "_compiled_call_impl" not in held and not any(held.get(name) for name in _HOOKS)


def is_compiled(function: Any) -> bool:
    """Returns whether a function was compiled by other means than Python's own functions."""
    return type(function).__name__ in _COMPILED and not calls_python(function)


def calls_python(function: Any) -> bool:
    """Returns whether a function is a ufunc that `numpy.frompyfunc` made: it takes objects only."""
    return is_a(function, np.ufunc) and all(set(types) <= set("O->") for types in function.types)


def is_users_class(cls: Any) -> bool:
    module = getattr(cls, "__module__", None)
    return is_users(module) or (isinstance(module, str) and module not in sys.modules)


def method_of(cls: type | None, name: str) -> types.FunctionType | None:
    """Returns a method of a class if it is code of the user's."""
    found: Any = None if cls is None else in_class(cls, name)
    if library_of(found) == "functools" and wrapped(found) is not None:
        found = wrapped(found)
    return found if is_followed_code(found) else None


def is_seeded(obj: Any) -> bool:
    """Returns whether an object is a generator that is seeded for each sample, so that its state does not count."""
    return id(obj) in _SEEDED or id(obj) in _own.get()


def is_global_generator(obj: Any) -> bool:
    """Returns whether an object is a generator that every program has."""
    return id(obj) in _SEEDED


@contextlib.contextmanager
def seeded(generators: Iterable[Any]) -> Iterator[None]:
    """Lets further generators count as seeded within the block."""
    token = _own.set({id(generator): generator for generator in generators})
    try:
        yield
    finally:
        _own.reset(token)


def subclasses(cls: type) -> list[str]:
    """Returns the names of the classes that derive from a class at present."""
    derived: list[type] = type.__subclasses__(cls)
    return [f"{one.__module__}.{one.__qualname__}" for one in derived]


def is_identified(cls: type) -> bool:
    """Returns whether a class says itself what counts of its instances."""
    return in_class(cls, HOOK) is not None


def may_hold_code(obj: Any) -> bool:
    """Returns whether an object that another one leads to in C may be, or hold, code of the user's."""
    if is_a(obj, (dict, list, tuple)):
        return bool(obj)
    # An iterator in C holds the container that it goes through.
    iterates = in_class(type(obj), "__next__") is not None and not is_a(obj, FRAMES)
    return not is_a(obj, type) and (is_a(obj, CODE) or is_users_class(type(obj)) or iterates)


def is_plain(obj: Any, level: int = 0) -> bool:
    """Returns whether an object holds nothing to follow: an array, a list of numbers, a tensor."""
    kind = type(obj)
    if kind in SCALARS or kind is str or is_a(obj, IGNORED) or is_seeded(obj):
        return True
    if is_a(obj, CODE) or level > _NESTED:
        return False
    if kind in (list, tuple, set, frozenset):
        return _are_plain(obj, level)
    if kind is dict:
        return level > 0 and set(map(type, obj)) <= _PLAIN_KEYS and _are_plain(obj.values(), level)
    if library_of(obj) == "numpy":
        dtype = getattr(obj, "dtype", None)
        return dtype is not None and not dtype.hasobject
    # Tensors, their types and devices. Datasets and models of it lie in other modules.
    return kind.__module__ == "torch"


def is_handle(obj: Any) -> bool:
    """Returns whether an object of a thread has no settings, so that a program opens another one when it needs it."""
    if obj is None or is_a(obj, io.IOBase):
        return True
    is_setting = is_users_class(type(obj)) or isinstance(obj, (Iterable, PurePath, re.Pattern))
    return not (is_plain(obj) or hasattr(obj, "__dict__") or is_setting)


def _are_plain(elements: Iterable[Any], level: int) -> bool:
    # Level by level, which takes a tenth of the time of a call for each.
    for deeper in range(level, _NESTED + 1):
        kinds = set(map(type, elements))
        if kinds <= _FLAT:
            return True
        if not kinds <= _FLAT | {list, tuple, dict}:
            return all(is_plain(element, deeper + 1) for element in elements)
        if not set(map(type, itertools.chain.from_iterable(p for p in elements if type(p) is dict))) <= _PLAIN_KEYS:
            return False
        parts = [part.values() if type(part) is dict else part for part in elements if type(part) not in _FLAT]
        if sum(map(len, parts)) > MOST_ELEMENTS:
            return False
        elements = list(itertools.chain.from_iterable(parts))
    return False


def records(elements: Collection[Any]) -> Sequence[Any] | None:
    """Returns the members of instances of one class of the user's, which are no more than these: dicts or tuples.

    Returns ``None`` if elements are of several classes, or of one that has members elsewhere.
    """
    kinds = set(map(type, elements))
    cls = kinds.pop() if len(kinds) == 1 else object
    own = [base for base in cls.__mro__ if base not in (tuple, object)]
    if not own or not all(map(is_users_class, own)) or is_identified(cls):
        return None
    slots = [name for base in own for name, one in base.__dict__.items() if type(one) is types.MemberDescriptorType]
    if issubclass(cls, tuple):
        return list(map(tuple, elements)) if cls.__iter__ is tuple.__iter__ and not cls.__dictoffset__ else None
    if cls.__getattribute__ is not object.__getattribute__ or bool(slots) == bool(cls.__dictoffset__):
        return None
    try:
        # The getter returns a tuple only if it has two names or more.
        return list(map(operator.attrgetter(*slots, slots[0]) if slots else vars, elements))
    except AttributeError:
        return None


def are_plain_records(elements: Collection[Any]) -> bool:
    """Returns whether elements are such instances, and hold nothing to follow."""
    rows = records(elements)
    return rows is not None and _are_plain(rows, 0)


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


def of_thread(local: threading.local, name: str) -> Any:
    """Returns a value of this thread, of which another thread may have none yet if it is a handle."""
    found = member(local, name)
    return ABSENT if is_handle(found) else found


def item(mapping: Any, key: Any) -> Any:
    if is_a(mapping, dict):
        return dict.get(mapping, key, ABSENT)
    return mapping[key] if key in keys_of(mapping) else ABSENT


def class_member(cls: type, name: str) -> Any:
    return in_class(cls, name, ABSENT)


def attribute(obj: Any, cls: type, name: str) -> Any:
    """Returns an attribute of an object, or of its class: the function there, if it is one.

    Args:
        obj: the object, or ``None`` for one that is not in memory.
    """
    found = in_class(cls, name, ABSENT)
    if not (obj is None or is_a(obj, type) or is_data_descriptor(found)):
        found = members_of(obj).get(name, found)
    return function_in(found)


def is_data_descriptor(found: Any) -> bool:
    """Returns whether a member of a class comes before an attribute of an instance."""
    return is_a(found, (property, types.MemberDescriptorType)) or hasattr(type(found), "__set__")


def function_in(found: Any) -> Any:
    """Returns the function of a member of a class, or the member itself if it holds none."""
    if is_a(found, property):
        return found.fget
    if is_a(found, functools.cached_property):
        return found.func
    if is_a(found, (staticmethod, classmethod)):
        return found.__func__
    return found if is_a(found, CODE) else wrapped(found) or found


def contents(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return ABSENT


def dispatched(function: Any, cls: type) -> Any:
    """Returns the function that a function of ``functools.singledispatch`` calls for a class."""
    return function.registry.get(cls, ABSENT)


def same(value: Any) -> Any:
    """Returns a value that no member holds."""
    return value


def entry_suffix(key: Any) -> str:
    return f"[{_text_of(key)}]"


def _text_of(key: Any) -> str:
    """Returns the text of a key of a mapping, which is the same in all processes."""
    kind = type(key)
    if kind in _FLAT or kind.__module__ in _WITH_TEXT or issubclass(kind, (np.generic, PurePath)):
        return repr(key)
    if kind is tuple:
        return f"({', '.join(map(_text_of, key))})"
    if kind is frozenset:
        return f"{{{', '.join(sorted(map(_text_of, key)))}}}"
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__}.{members_of(key).get('_name_')}"
    # The text of another key may be an address, and code of the user's may make it.
    name = getattr(key, "__qualname__", None) if is_a(key, CODE) else None
    return f"<{name if isinstance(name, str) else kind.__qualname__}>"


def classes_of(function: Any) -> list[str]:
    """Returns the names of the classes for which a function of ``functools.singledispatch`` calls others."""
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in function.registry]


def suffixes_of(mapping: Any) -> list[str]:
    return list(map(entry_suffix, keys_of(mapping)))


def suffixes_within(obj: Any) -> list[str]:
    """Returns what follows the path of an object in those of its members."""
    if is_a(obj, (type, types.ModuleType)):
        return []
    return suffixes_of(obj) if is_mapping(obj) else [f".{name}" for name in members_of(obj)]


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
