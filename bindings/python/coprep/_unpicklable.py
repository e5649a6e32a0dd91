"""The part of an object that cannot be pickled, and the error that names it with a remedy."""

from __future__ import annotations

import contextlib
import pickle
import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle

from coprep._caches import without_caches
from coprep._errors import CannotTravel

Named = list[tuple[str, Any]]
"""Parts of a value, by the suffix that their names have beside the value's own name."""

_OTHERWISE = "pass an import string 'module:factory', or num_workers=0 to make samples in this process"
_REMEDY = f"define __getstate__, open the resource lazily in __getitem__, {_OTHERWISE}"


class Holder(NamedTuple):
    """An attribute of a class's instances."""

    cls: type
    suffix: str
    """Name of the attribute as in the name of a part, with a dot before it."""

    def remedy(self) -> str:
        """Returns the code that keeps the attribute from being pickled, as a line to write."""
        name = self.suffix.removeprefix(".").strip("'")
        return (
            f"leave it out of the pickle, by a method of {self.cls.__qualname__} or of a class that derives from it, "
            f'def __getstate__(self): return {{**self.__dict__, "{name}": None}}, and open it where it is used if '
            f"self.{name} is None; or {_OTHERWISE}"
        )


class Culprit(NamedTuple):
    """A part that cannot be pickled and has no part of its own that explains why."""

    suffix: str
    """The suffix that its name has beside the name of the value that was searched."""
    error: Exception
    holder: Holder | None
    """The innermost attribute that leads to it."""


def cannot_travel(name: str, failure: str, error: Exception, holder: Holder | None) -> CannotTravel:
    """Returns the error that says which part cannot be pickled, why, and what to do."""
    reason = " ".join(str(error).split()) or "it cannot be pickled"
    # Pickle's own messages say what is refused. The message of another error may mean nothing without its type.
    if not isinstance(error, (TypeError, pickle.PicklingError)):
        reason = f"{type(error).__name__}: {reason}"
    remedy = _REMEDY if holder is None else holder.remedy()
    return CannotTravel(f"{name} {failure}: {reason}. Remedy: {remedy}")


def culprit_of(
    value: Any,
    error: Exception,
    error_of: Callable[[Any], Exception | None],
    split: Callable[[Any], Named],
) -> Culprit:
    """Returns the innermost part that keeps a value from being pickled.

    Args:
        error: the error that the value raises.
        error_of: returns the error that a part raises, or ``None`` if it can be pickled.
        split: returns the parts of a value that is no list, tuple or dict.
    """
    suffix, holder = "", None
    # An object may lead back to itself.
    seen: set[int] = set()
    while True:
        seen.add(id(value))
        is_container = isinstance(value, (list, tuple, dict))
        parts = _elements(value) if is_container else split(value)
        failed = ((name, part, error_of(part)) for name, part in parts if id(part) not in seen)
        name, part, found = next((one for one in failed if one[2] is not None), ("", None, None))
        if found is None:
            return Culprit(suffix, error, holder)
        if not is_container:
            holder = Holder(type(value), name)
        suffix, value, error = suffix + name, part, found


def attributes_of(value: Any) -> Named | None:
    """Returns the attributes with which an object is pickled, or ``None`` if it is not pickled by its attributes.

    Attributes that are only caches are left out.
    """
    cls = type(value)
    if not _reduces_by_default(cls):
        return None
    # An error is ignored here. It occurs again, and is reported, when the value is pickled as a whole.
    with contextlib.suppress(Exception):
        reduced: Any = object.__reduce_ex__(value, 5)
        make, args, state, *items = reduced
        state = without_caches(cls, state)
        # An object with arguments for its constructor, or with items, has more than attributes.
        plain = getattr(make, "__name__", "") == "__newobj__" and args == (cls,) and items in ([], [None, None])
        if plain and type(state) is dict and all(type(key) is str for key in state):
            return [(_suffix(key), state[key]) for key in sorted(state)]
    return None


def _elements(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Named:
    if isinstance(value, dict):
        return [(f"[{reprlib.repr(key)}]", part) for key, part in value.items()]
    return [(f"[{i}]", part) for i, part in enumerate(value)]


def _reduces_by_default(cls: Any) -> bool:
    default: Any = object
    own = cls.__reduce_ex__ is not default.__reduce_ex__ or cls.__reduce__ is not default.__reduce__
    return not own and cls not in cloudpickle.Pickler.dispatch_table


def _suffix(attribute: str) -> str:
    return f".{attribute}" if attribute.isidentifier() else f".{attribute!r}"
