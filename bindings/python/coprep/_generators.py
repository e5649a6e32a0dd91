"""Generators of random numbers that a dataset or its transform holds, and their seeds for each sample.

Each worker has a copy of such a generator, which would give the same numbers in all of them. It is therefore treated as
the global ones are: it is seeded for each sample, and its state does not count for who shares. One that is not found
here keeps its state, and counts with it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import sys
import types
import zlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import PosixPath, PurePosixPath
from typing import Any

import numpy as np

from coprep._coprep import sample_key
from coprep._modules import is_users
from coprep._program import Program
from coprep._seeding import INT64, seed_by

MOST = 4_000
"""Most objects that are looked at."""
ELEMENTS = 64
"""Elements of a long container that are looked at, and of any container before all else has been."""
LONG = 1_000
"""Number of elements from which on a container is long: it holds data."""
_GOLDEN = 0x9E3779B97F4A7C15
"""Spreads 32 bits over 64, so that the seeds of several generators have nothing in common."""
_NO_GENERATORS = frozenset(
    (str, bytes, bytearray, int, float, complex, bool, type(None), range, np.ndarray, PosixPath, PurePosixPath)
)
"""Types of objects that hold no generator."""
_DATA = _NO_GENERATORS | {dict, list, tuple, set, frozenset}
"""Types of the elements of containers that hold data."""
_OF_PYTHON = frozenset(
    (dict, list, tuple, deque, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
    + (functools._lru_cache_wrapper,)
)
"""Types of objects that hold nothing beside their elements or what makes them a function."""

Found = dict[str, Any]
"""Generators by the path to them, which is the same in all processes."""


def generators_of(named: Mapping[str, Any]) -> Found:
    """Returns the generators that objects lead to: by attributes, elements, closures and what their code names."""
    found: Found = {}
    todo, later = deque(named.items()), deque[tuple[str, Any]]()
    seen: dict[int, Any] = {}
    kinds = _kinds()
    while (todo or later) and len(seen) < MOST:
        path, one = (todo or later).popleft()
        if id(one) in seen:
            continue
        # The reference keeps the object alive, so that its id stays unique.
        seen[id(one)] = one
        if issubclass(type(one), kinds):
            found[path] = one
            continue
        # An object may answer for its members in a way of its own, and fail to.
        with contextlib.suppress(Exception):
            for at, (suffix, part) in enumerate(_parts_of(one)):
                if type(part) not in _NO_GENERATORS and id(part) not in seen:
                    (todo if at < ELEMENTS else later).append((path + suffix, part))
    return found


def _kinds() -> tuple[type, ...]:
    torch: Any = sys.modules.get("torch")
    own = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return (*own, torch.Generator) if hasattr(torch, "Generator") else own


def _parts_of(one: Any) -> Iterator[tuple[str, Any]]:
    kind = type(one)
    if issubclass(kind, dict):
        entries = zip(dict.keys(one), _first(dict.values(one)), strict=False)
        yield from ((f"[{key!r}]", part) for key, part in entries if isinstance(key, (str, int)))
    elif issubclass(kind, (list, tuple, deque)):
        yield from ((f"[{i}]", part) for i, part in enumerate(_first(one)))
    elif kind is types.FunctionType:
        yield from _parts_of_function(one)
    elif kind is types.MethodType:
        yield from ((".__self__", one.__self__), (".__func__", one.__func__))
    elif kind is types.BuiltinFunctionType:
        yield ".__self__", one.__self__
    elif kind is functools._lru_cache_wrapper:
        yield ".__wrapped__", one.__wrapped__
    elif kind is functools.partial:
        yield from ((".func", one.func), (".args", one.args), (".keywords", one.keywords))
    elif issubclass(kind, type):
        yield from _parts_of_class(one)
    if kind in _OF_PYTHON or issubclass(kind, (type, types.ModuleType)):
        return
    with contextlib.suppress(AttributeError):
        # Not by `vars`, which would ask the object. Sorted, since equal objects may have set them in any order.
        members: dict[str, Any] = object.__getattribute__(one, "__dict__")
        yield from ((f".{name}", members[name]) for name in sorted(members))
    for base in kind.__mro__[:-1]:
        for name in vars(base).get("__slots__", ()):
            with contextlib.suppress(AttributeError):
                yield f".{name}", object.__getattribute__(one, name)
        yield f".{base.__qualname__}", base


def _parts_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    """Returns the generators that instances of a class share, and its methods if they are the user's."""
    kinds = (*_kinds(), types.FunctionType) if is_users(cls.__module__) else _kinds()
    yield from ((f".{name}", member) for name, member in vars(cls).items() if issubclass(type(member), kinds))


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            yield f".{name}", cell.cell_contents
    yield from ((".__defaults__", function.__defaults__), (".__kwdefaults__", function.__kwdefaults__))
    yield from ((f".{name}", function.__dict__[name]) for name in sorted(function.__dict__))
    scope = function.__globals__
    if not is_users(scope.get("__name__")):
        return
    for name in _names_in(function.__code__):
        member = scope.get(name)
        if isinstance(member, types.ModuleType) and is_users(member.__name__):
            yield from ((f".{name}.{other}", vars(member).get(other)) for other in _names_in(function.__code__))
        else:
            yield f".{name}", member


def _names_in(code: types.CodeType) -> list[str]:
    inner = (_names_in(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return [*code.co_names, *itertools.chain.from_iterable(inner)]


def _first(elements: Collection[Any]) -> Iterator[Any]:
    """Returns the elements of a container to look at: only some of data."""
    some = itertools.islice(elements, ELEMENTS)
    is_data = len(elements) > LONG or all(type(one) in _DATA for one in some)
    return itertools.islice(elements, ELEMENTS if is_data else LONG)


def kind_of(generator: Any) -> str:
    """Returns the kind of a generator: two of one kind give the same numbers for a seed."""
    inner = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", None)
    kinds = type(generator), type(inner)
    return " ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


class SampleSeeder:
    """Seeds all generators that a sample may draw from: the global ones, and those of the program.

    Args:
        looks_again: whether to look for generators after 1, 2, 4, 8, ... samples too, since the program may make one
            when it needs it.
    """

    def __init__(self, program: Program, *, looks_again: bool = True) -> None:
        self._named = {"dataset": program.dataset, "transform": program.transform}
        self._looks_again = looks_again
        self._samples = 0
        self._found: list[tuple[int, Any]] = []

    def seed_all(self, seed: int, sample: int, visit: int) -> None:
        """Seeds the generators for a sample of a stream."""
        self.seed_by(sample_key(seed, sample, visit))

    def seed_by(self, key: int) -> None:
        """Seeds the generators by the key of a sample, which has 64 bits."""
        if self._samples == 0 or (self._looks_again and self._samples & (self._samples - 1) == 0):
            found = generators_of(self._named).items()
            self._found = [(zlib.crc32(path.encode(errors="replace")) * _GOLDEN, one) for path, one in found]
        self._samples += 1
        for salt, generator in self._found:
            # One that a library made in its own way is left as it is.
            with contextlib.suppress(Exception):
                _seed(generator, (key ^ salt) & (2**64 - 1))
        # The global ones come last, since the program may hold one of them too.
        seed_by(key)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.RandomState) and type(generator._bit_generator) is np.random.MT19937:
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif hasattr(generator, "manual_seed"):
        if generator.device.type == "cpu":
            generator.manual_seed(seed & INT64)
    else:
        bits: Any = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)
        bits.state = type(bits)(seed).state
