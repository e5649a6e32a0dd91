"""Identity of objects that change by being used.

Two equal objects must count as equal although one of them has been used. Attributes that only save work, or that
describe the last call, are therefore not part of an object's identity.
"""

from __future__ import annotations

import dis
import functools
import json
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from coprep._modules import digest_of
from coprep._reducing import LOCKS

HOOK = "__coprep_identity__"
"""Name of a class's method that returns the identity of an instance."""

Reducer = Callable[[Any], Any]

_TOKENIZER = frozenset(("deprecation_warnings", "cache", "_in_target_context_manager"))
"""Attributes of transformers' tokenizers that change by use: past warnings, looked-up tokens, and the present mode."""
_OF_LIBRARIES = {
    # The last call, and tables by name in the order of a set.
    "albumentations": ("params", "_images_was_list", "_masks_was_list", "_key2func", "is_sequence_input")
    + ("label_manager",),
    # The last call.
    "kornia": ("_params", "_transform_matrix", "_transform_matrices", "_transform_matrix_params")
    + ("_transform_matrix_params_snapshot", "_lazy_matrix_args", "input_dtype"),
    # Properties that are computed when they are first asked for.
    "scipy": ("_has_sorted_indices", "_has_canonical_format"),
    "xarray": ("_cache", "_close"),
}
"""Attributes that change by use, or differ between processes, by the library whose classes have them."""
_MADE_WHEN_ASKED_FOR = {"xarray": ("_attrs", "_encoding")}
"""Attributes that are nothing until somebody asks for them, and then empty."""


def reducer_of(cls: Any) -> Reducer | None:
    """Returns the function that reduces instances of a class to their identity, or ``None`` if pickle does it."""
    if hasattr(cls, HOOK):
        return lambda obj: (identified, (cls, getattr(obj, HOOK)()))
    if cls in LOCKS or cls is threading.local or _is_of(cls, "multiprocessing.synchronize", "Lock", "RLock"):
        # Each process or thread has its own. No sample depends on them.
        return lambda lock: (identified, (object, "lock"))
    if issubclass(cls, logging.Handler):
        return lambda handler: (identified, (cls, "handler"))
    if _is_of(cls, "lmdb", "Environment"):
        return lambda environment: (identified, (cls, (environment.path(), environment.flags())))
    if issubclass(cls, weakref.ref):
        return lambda reference: (identified, (cls, reference()))
    if issubclass(cls, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
        return lambda entries: (identified, (cls, dict(entries)))
    if issubclass(cls, logging.Logger):
        return lambda logger: (identified, (logging.Logger, "logger"))
    if caches_of(cls) or _is_tokenizer(cls):
        return _reduce_without_caches
    return None


def _is_of(cls: type, module: str, *names: str) -> bool:
    """Returns whether a class is one of a module's, or derives from one, if the module is imported."""
    found = sys.modules.get(module)
    return any(issubclass(cls, getattr(found, name, ())) for name in names)


def identified(cls: type, identity: Any) -> Any:
    """Stands for an object in a pickle that is hashed but never loaded."""
    raise NotImplementedError(f"of {cls} only its identity was pickled")


@functools.lru_cache(maxsize=1024)
def caches_of(cls: Any) -> frozenset[str]:
    """Returns the names of the attributes, of a class's instances, that are no part of their identity."""
    libraries = _libraries_of(cls)
    found = {name for library in libraries for name in _OF_LIBRARIES.get(library, ())}
    if "monai" in libraries:
        # These attributes hold the last use of its generator.
        found |= _randomized(cls)
    if _is_of(cls, "datasets.arrow_dataset", "Dataset"):
        # It stands for the data, which counts itself. After steps that have no name in all processes, it is random.
        found.add("_fingerprint")
    return _cached_properties(cls) | found


def _libraries_of(cls: type) -> set[str]:
    return {base.__module__.partition(".")[0] for base in cls.__mro__}


def _randomized(cls: type) -> set[str]:
    """Returns the attributes that a random transform sets in each call, by its method ``randomize``."""
    methods: list[Any] = [vars(base).get("randomize") for base in cls.__mro__]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    return {step.argval for code in codes for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}


@functools.lru_cache(maxsize=1024)
def _cached_properties(cls: Any) -> frozenset[str]:
    """Returns the names of the attributes, of a class's instances, that are computed again where they are missing."""
    return frozenset(
        member.attrname or name
        for base in cls.__mro__
        for name, member in vars(base).items()
        if isinstance(member, functools.cached_property)
    )


def without_caches(cls: type, state: Any) -> Any:
    """Returns the state of an object, in pickle's form, without the attributes that are only caches."""
    caches = caches_of(cls)
    empty = {name for library in _libraries_of(cls) for name in _MADE_WHEN_ASKED_FOR.get(library, ())}

    def kept(attributes: dict[str, Any]) -> dict[str, Any] | None:
        rest = {
            name: value for name, value in attributes.items() if name not in caches and (name not in empty or value)
        }
        if _is_tokenizer(cls):
            rest = {
                name: _without_last_call(value) if _is_backend(value) else value
                for name, value in rest.items()
                if name not in _TOKENIZER
            }
        # Pickle gives None for an object that has no attributes.
        return rest or None

    return _with_attributes(state, kept)


def _reduce_without_caches(obj: Any) -> Any:
    """Returns how pickle reduces an object, without the attributes that are only caches."""
    reduced: Any = obj.__reduce_ex__(5)
    if isinstance(reduced, str) or len(reduced) < 3:
        # It is pickled by the name of a global variable, or has no state.
        return reduced
    make, args, state, *items = reduced
    return make, args, without_caches(type(obj), state), *items


def _with_attributes(state: Any, kept: Callable[[dict[str, Any]], Any]) -> Any:
    """Returns the state of an object, in pickle's form, with only those attributes that are kept."""
    if type(state) is tuple and len(state) == 2:
        # The second half has the slots.
        return _with_attributes(state[0], kept), _with_attributes(state[1], kept)
    return kept(state) if type(state) is dict else state


def _is_tokenizer(cls: type) -> bool:
    transformers: Any = sys.modules.get("transformers.tokenization_utils_base")
    return transformers is not None and issubclass(cls, transformers.PreTrainedTokenizerBase)


def _is_backend(value: Any) -> bool:
    tokenizers: Any = sys.modules.get("tokenizers")
    return tokenizers is not None and isinstance(value, tokenizers.Tokenizer)


def _without_last_call(backend: Any) -> bytes:
    """Returns the digest of a fast tokenizer without its last truncation and padding.

    Each call of a transformers tokenizer sets both by its own arguments.
    """
    text: str = backend.to_str()
    head, key, rest = text.partition(',"added_tokens":')
    try:
        # Only the head is parsed, since the rest is megabytes.
        about = json.loads(head + "}")
    except ValueError:
        return digest_of(text.encode())
    about.pop("truncation", None)
    about.pop("padding", None)
    return digest_of(json.dumps(about, sort_keys=True).encode(), (key + rest).encode())
