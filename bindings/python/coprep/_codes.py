"""Digests of code objects."""

from __future__ import annotations

import weakref
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

from coprep._modules import digest_of


class _Known(NamedTuple):
    reference: weakref.ref[CodeType]
    digest: bytes


_known: dict[int, _Known] = {}
"""Digests of code objects, by their id, as long as they live."""


def digest_of_code(code: CodeType) -> bytes:
    """Returns the digest of what code does.

    File names and line numbers are left out, since code that was moved prepares the same samples.
    """
    known = _known.get(id(code))
    if known is None or known.reference() is not code:
        key = id(code)
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_name)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        handled: bytes = getattr(code, "co_exceptiontable", b"")
        constants = digest_of_constant(code.co_consts)
        digest = digest_of(repr(shape).encode(), repr(names).encode(), code.co_code, handled, constants)
        # A lambda would look for globals, which are gone when the interpreter ends. The reference is the default.
        known = _known[key] = _Known(weakref.ref(code, partial(_known.pop, key)), digest)
    return known.digest


def digest_of_constant(value: Any) -> bytes:
    """Returns the digest of a constant of a code object."""
    if isinstance(value, CodeType):
        return digest_of_code(value)
    if isinstance(value, tuple):
        return digest_of(b"tuple", *map(digest_of_constant, value))
    if isinstance(value, frozenset):
        return digest_of(b"frozenset", *sorted(map(digest_of_constant, value)))
    return f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass")
