"""The attributes of an object, as far as they are its identity."""

from __future__ import annotations

import contextlib
from typing import Any

import cloudpickle

from coprep._caches import without_caches

Named = list[tuple[str, Any]]
"""Parts of a value, by the suffix that their names have beside the value's own name."""


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


def _reduces_by_default(cls: Any) -> bool:
    default: Any = object
    own = cls.__reduce_ex__ is not default.__reduce_ex__ or cls.__reduce__ is not default.__reduce__
    return not own and cls not in cloudpickle.Pickler.dispatch_table


def _suffix(attribute: str) -> str:
    return f".{attribute}" if attribute.isidentifier() else f".{attribute!r}"
