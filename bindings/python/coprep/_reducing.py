"""Pickling of objects of the standard library that pickle refuses, although another process can make them anew.

In a process that PyTorch forks, datasets have them without any pickling.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import typing
from collections.abc import Callable
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from coprep._names import MAINS, is_found_by_name


def reduce(obj: Any) -> Any:
    """Reduces an object of one of these kinds, as ``reducer_override`` of pickle does."""
    kind = type(obj)
    if kind in LOCKS:
        return LOCKS[kind], ()
    if kind is threading.local:
        return _reduce_local(obj)
    if kind is functools._lru_cache_wrapper:
        return _reduce_memoized(obj)
    if kind is ModuleType:
        return _reduce_module(obj)
    return NotImplemented


def reduce_by_value(obj: Any) -> Any:
    """Reduces a function or class that cannot be found by its name, if ``cloudpickle`` cannot do so."""
    if is_dispatcher(obj):
        implementations = list(obj.registry.items())
        return _dispatcher, (obj.__name__,), (obj.__wrapped__, implementations), None, None, _restore_dispatcher
    if typing.is_typeddict(obj):
        return _typed_dict, (obj.__name__, obj.__module__, list(obj.__annotations__), obj.__total__)
    return NotImplemented


# --- locks and values of threads --------------------------------------------------------------------------------


def _new_lock() -> Any:
    return threading.Lock()


def _new_rlock() -> Any:
    return threading.RLock()


LOCKS: dict[type, Callable[[], Any]] = {type(threading.Lock()): _new_lock, type(threading.RLock()): _new_rlock}
"""Functions that make a new lock, by the type of the lock.

Locks keep threads of one process apart, so another process needs one of its own that nobody holds. (A fork copies a
lock as it is, held for ever if a thread of the parent held it.)
"""

_PLAIN = (type(None), bool, int, float, str, bytes)


def _reduce_local(local: Any) -> Any:
    # Other threads of this process find it empty, so users make what is missing. A connection that this thread has
    # opened would be of no use elsewhere, but a value such as None may be what tells that there is none yet.
    values = {name: value for name, value in vars(local).items() if type(value) in _PLAIN}
    return threading.local, (), values or None


# --- functions --------------------------------------------------------------------------------------------------


def _reduce_memoized(function: Any) -> Any:
    """Reduces a function that ``functools.lru_cache`` made, without the results that it remembers.

    Pickle would look for it by its name. Another process does not have that name if the main script defines it, and no
    process has the name of an attribute such as ``self.load = lru_cache(maxsize=8)(self.load)``.
    """
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None or is_found_by_name(function):
        return NotImplemented
    return _memoized, (wrapped, function.cache_parameters())


def _memoized(wrapped: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(wrapped)


def is_dispatcher(obj: Any) -> bool:
    """Returns whether ``functools.singledispatch`` made a function."""
    return (
        isinstance(obj, FunctionType)
        and isinstance(getattr(obj, "registry", None), MappingProxyType)
        and hasattr(obj, "dispatch")
        and hasattr(obj, "__wrapped__")
    )


def _dispatcher(name: str) -> Any:
    # The implementations come later, since they may call the dispatcher.
    def placeholder(*_: Any) -> None:
        raise NotImplementedError

    placeholder.__name__ = name
    return functools.singledispatch(placeholder)


def _restore_dispatcher(dispatcher: Any, state: tuple[Any, list[tuple[type, Any]]]) -> None:
    wrapped, implementations = state
    functools.update_wrapper(dispatcher, wrapped)
    for cls, implementation in implementations:
        dispatcher.register(cls, implementation)


# --- modules and types ------------------------------------------------------------------------------------------


def _reduce_module(module: ModuleType) -> Any:
    if module.__name__ in MAINS or sys.modules.get(module.__name__) is not module:
        return NotImplemented
    return importlib.import_module, (module.__name__,)


def _typed_dict(name: str, module: str, keys: list[str], total: bool) -> Any:
    # Nothing looks at the types of the values when the program runs.
    made: Any = typing.TypedDict(name, dict.fromkeys(keys, Any), total=total)  # type: ignore[misc]
    made.__module__ = module
    return made
