"""Names by which another process finds a class or function.

A worker receives the classes of the main script by value and cannot import them by name, while each job has its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import pickle
import sys
from collections.abc import Iterator
from typing import Any

MAINS = ("__main__", "__mp_main__")
"""Names of the main script's module: in a process started normally, and in one that ``multiprocessing`` spawned."""


@functools.lru_cache(maxsize=256)
def path_of(cls: type) -> str | None:
    """Returns the path of a class within its module, if it differs from the class's name.

    Pickle finds a class by its name. A named tuple that is made in the body of a class, or assigned to a name other
    than its own, lies elsewhere. So does one that a class of its name derives from. Returns ``None`` if the name is
    right, or if the class is not found.
    """
    module: Any = sys.modules.get(cls.__module__)
    if member_at(module, cls.__qualname__) is cls:
        return None
    members = dict(vars(module)) if module is not None else {}
    for owner in _classes(members):
        if owner.__module__ == cls.__module__ and "<locals>" not in owner.__qualname__:
            members |= {f"{owner.__qualname__}.{name}": value for name, value in vars(owner).items()}
    return next((path for path, value in (*members.items(), *_bases(members)) if value is cls), None)


def _bases(members: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Returns the bases of classes with their paths. Others may have their names."""
    for path, value in members.items():
        while isinstance(value, type) and value.__base__ is not None:
            path, value = f"{path}.__base__", value.__base__
            yield path, value


def _classes(members: dict[str, Any]) -> list[Any]:
    """Returns the classes among a module's members, and all that came to this process by value.

    A worker has the main script's classes by value only.
    """
    cloudpickle: Any = sys.modules.get("cloudpickle.cloudpickle")
    tracked = list(getattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", ()))
    return [value for value in (*members.values(), *tracked) if isinstance(value, type)]


def class_at(module: str, path: str) -> Any:
    """Returns, in another process, the class that :func:`path_of` found."""
    return operator.attrgetter(path)(importlib.import_module(module))


def member_at(holder: Any, path: str) -> Any:
    """Returns the member of a module or class with this path, or ``None``."""
    for name in path.split("."):
        holder = getattr(holder, name, None)
    return holder


def find_in_main(qualified_name: str) -> Any:
    """Returns a class of the main script: the script's own in a job, the one that came by value in a worker."""
    main = sys.modules["__main__"]
    found = member_at(main, qualified_name)
    if found is not None:
        return found
    for kind in _classes(vars(main)):
        if kind.__module__ not in MAINS:
            continue
        name = kind.__qualname__
        if name == qualified_name:
            return kind
        found = (
            member_at(kind, qualified_name.removeprefix(f"{name}.")) if qualified_name.startswith(f"{name}.") else None
        )
        if found is not None:
            return found
    raise pickle.UnpicklingError(f"{qualified_name} is not defined in the main script: move it to a module")


@functools.lru_cache(maxsize=256)
def name_in_main(cls: type) -> str | None:
    """Returns the name of a class of the main script in another process, or ``None`` if it is that of another class."""
    name = path_of(cls) or cls.__qualname__
    with contextlib.suppress(pickle.UnpicklingError):
        return name if find_in_main(name) is cls else None
    # Another process may have it.
    return name


def main_name(module: str) -> str:
    """Returns the name of a module that is the same in processes that the script spawned."""
    return MAINS[0] if module in MAINS else module


def path_in(module: str, name: str) -> str:
    """Returns the path of a member of a module, as people write it."""
    return name if module in MAINS else f"{module}.{name}"
