"""Tells objects apart that change by being used.

Two equal objects must count as equal although one of them has been used: what an object holds only to save work, or of
its last call, is no part of its identity.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from coprep._modules import MAINS, digest_of
from coprep._packing import LOCKS

HOOK = "__coprep_identity__"
"""Method of a class that says what identifies its instances."""

Reducer = Callable[[Any], tuple[Any, ...]]

_TOKENIZER = frozenset(("deprecation_warnings", "cache", "_in_target_context_manager"))
"""Attributes in which tokenizers of transformers keep what they warned of, what they looked up, and where they are."""
_ALBUMENTATIONS = frozenset(("random_generator", "py_random", "params", "_images_was_list", "_masks_was_list"))
"""Attributes in which albumentations keeps its last call and its generators, made of its ``seed`` or anew each time."""


def reducer_of(cls: Any) -> Reducer | None:
    """Returns what reduces the instances of a class to their identity; ``None``: pickle does it."""
    if hasattr(cls, HOOK):
        return lambda obj: (identified, (cls, getattr(obj, HOOK)()))
    if cls in LOCKS:
        # Each process has its own: which one it is changes no sample.
        return lambda lock: (identified, (object, "lock"))
    if issubclass(cls, logging.Logger):
        # A script's logger is named after its module, which has another name in a process that it spawned.
        return lambda logger: (identified, (cls, MAINS[0] if logger.name in MAINS else logger.name))
    if caches_of(cls) or _is_tokenizer(cls):
        return _reduce_without_caches
    return None


def identified(cls: type, identity: Any) -> Any:
    """Stand for an object in a pickle that nobody loads."""
    raise NotImplementedError(f"of {cls} only its identity was pickled")


@functools.lru_cache(maxsize=1024)
def caches_of(cls: Any) -> frozenset[str]:
    """Returns the names of the attributes of a class's instances that hold what can be had again without them."""
    found: set[str] = set()
    for base in cls.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, functools.cached_property):
                found.add(member.attrname or name)
        if base.__module__.partition(".")[0] == "albumentations":
            found |= _ALBUMENTATIONS
    return frozenset(found)


def without_caches(cls: type, state: Any) -> Any:
    """Returns the state of an object, as pickle has it, without what is only a cache."""
    if type(state) is tuple and len(state) == 2:
        # The second half are slots.
        return without_caches(cls, state[0]), state[1]
    if type(state) is not dict:
        return state
    caches = caches_of(cls)
    kept = {name: value for name, value in state.items() if name not in caches}
    if _is_tokenizer(cls):
        kept = {
            name: _without_last_call(value) if _is_backend(value) else value
            for name, value in kept.items()
            if name not in _TOKENIZER
        }
    # Pickle gives None for an object that has no attributes.
    return kept or None


def _reduce_without_caches(obj: Any) -> tuple[Any, ...]:
    make, args, *more = obj.__reduce_ex__(5)
    return (make, args, *(without_caches(type(obj), state) for state in more[:1]), *more[1:])


def _is_tokenizer(cls: type) -> bool:
    transformers: Any = sys.modules.get("transformers.tokenization_utils_base")
    return transformers is not None and issubclass(cls, transformers.PreTrainedTokenizerBase)


def _is_backend(value: Any) -> bool:
    tokenizers: Any = sys.modules.get("tokenizers")
    return tokenizers is not None and isinstance(value, tokenizers.Tokenizer)


def _without_last_call(backend: Any) -> bytes:
    """Returns the digest of a fast tokenizer without how its last call truncated and padded.

    Each call of a tokenizer of transformers sets both by its own arguments.
    """
    text: str = backend.to_str()
    head, key, rest = text.partition(',"added_tokens":')
    try:
        # The rest is megabytes.
        about = json.loads(head + "}")
    except ValueError:
        return digest_of(text.encode())
    about.pop("truncation", None)
    about.pop("padding", None)
    return digest_of(json.dumps(about, sort_keys=True).encode(), (key + rest).encode())
