"""Objects that cannot be compared with those of another process, such as a socket or a generator.

Each gets a digest that no other process has, so that a job whose dataset leads to one shares with no other job. Forks
of this process have the same digests.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from coprep._attributes import attributes_of

MOST = 10_000
"""Most objects that are looked at to find the path to one."""

_PROCESS = os.urandom(16)
_tokens: dict[int, tuple[weakref.ref[Any] | None, int]] = {}
_count = 0


class Private(NamedTuple):
    """An object of a dataset that keeps its job from sharing."""

    path: str
    """Where it was found, as in ``dataset.index.file``."""
    reason: str


_TIED = {
    "multiprocessing.managers": ("BaseProxy", "BaseManager"),
    "multiprocessing.shared_memory": ("SharedMemory",),
    "multiprocessing.connection": ("_ConnectionBase", "Listener"),
    "multiprocessing.process": ("BaseProcess",),
    "multiprocessing.pool": ("Pool",),
    "subprocess": ("Popen",),
    "threading": ("Thread",),
    "concurrent.futures": ("Executor", "Future"),
}
"""Classes whose instances pickle would take for their name or number, which mean something else in another job."""


def reason_of(cls: type) -> str | None:
    """Returns why instances of a class cannot be compared with those of other processes, or ``None`` if they can."""
    for module, names in _TIED.items():
        for name in names:
            if issubclass(cls, getattr(sys.modules.get(module), name, ())):
                return f"a {cls.__name__} of {module} belongs to one process"
    return None


def token_of(obj: Any) -> bytes:
    """Returns bytes that stand for an object as long as it lives, and for no other one in any process."""
    global _count
    kept = _tokens.get(id(obj))
    if kept is None:
        key = id(obj)
        _count += 1
        try:
            # A lambda would look for globals, which are gone when the interpreter ends. The reference is the default.
            reference = weakref.ref(obj, partial(_tokens.pop, key))
        except TypeError:
            # Another object may get the same token once this one has ended.
            reference = None
        kept = _tokens[key] = reference, _count
    return _PROCESS + b"%d" % kept[1]


def tokens_within(value: Any, depth: int = 4) -> bytes:
    """Returns the tokens of the objects in a container, which may have been made for this question alone."""
    if depth and type(value) in (list, tuple):
        return b"(" + b" ".join(tokens_within(part, depth - 1) for part in value[:MOST]) + b")"
    if depth and type(value) is dict:
        return tokens_within(list(value.items()), depth - 1)
    return repr(value).encode() if value is None or isinstance(value, (str, int, float)) else token_of(value)


def path_to(obj: Any, value: Any) -> str:
    """Returns the way from a value to an object within it, such as ``.index.file``; empty if it is not found."""
    todo = deque([("", value)])
    seen: dict[int, Any] = {}
    while todo and len(seen) < MOST:
        path, one = todo.popleft()
        if one is obj:
            return path
        if id(one) not in seen:
            # The reference keeps the object alive, so that its id stays unique.
            seen[id(one)] = one
            todo += ((path + suffix, part) for suffix, part in _parts_of(one))
    return ""


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items() if isinstance(key, (str, int)))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value[:MOST]))
    elif not isinstance(value, (str, bytes, int, float)):
        yield from attributes_of(value) or ()
