"""Objects of the standard library that pickle refuses, or that it knows by more than what they do."""

from __future__ import annotations

import threading
from types import FunctionType, MappingProxyType
from typing import Any

LOCKS: frozenset[type] = frozenset((type(threading.Lock()), type(threading.RLock())))
"""Types of locks."""


def is_dispatcher(obj: Any) -> bool:
    """Returns whether ``functools.singledispatch`` made a function."""
    return (
        isinstance(obj, FunctionType)
        and isinstance(getattr(obj, "registry", None), MappingProxyType)
        and hasattr(obj, "dispatch")
        and hasattr(obj, "__wrapped__")
    )
