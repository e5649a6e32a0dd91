"""Tests that jobs whose samples differ have other identities, however the difference is held and read.

Each case makes what a dataset holds, by an option of 1 or 2, and reads it.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import enum
import functools
import os
import pathlib
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from coprep._fingerprint import fingerprint

OPTIONS = types.SimpleNamespace(size=0)


class Reads:
    """A dataset whose sample is what a function reads of what it holds."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        self.held = held
        self.read = read

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> Any:
        return self.read(self.held)


def plus(x: int) -> int:
    return x + 1


def times(x: int) -> int:
    return x * 10


def by_options(x: int) -> int:
    return x * int(OPTIONS.size)


def with_defaults(x: int, flip: bool = True, grey: bool = False, jitter: bool = True) -> Any:
    return x, flip, grey, jitter


def with_other_defaults(*defaults: Any) -> Any:
    made = types.FunctionType(with_defaults.__code__, globals(), with_defaults.__name__)
    made.__module__, made.__qualname__, made.__defaults__ = __name__, with_defaults.__qualname__, defaults
    return made


def by_keyword(x: int, *, low: int = 2, high: int = 2) -> Any:
    return x, low, high


class Scale:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, x: int) -> int:
        return x * self.size

    def up(self, x: int) -> int:
        return x + self.size

    def down(self, x: int) -> int:
        return x - self.size


class Attributes(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        return dict.__getitem__(self, name)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Speed(enum.Enum):
    FAST = 1
    SLOW = 2

    def scaled(self) -> int:
        return self.value * 7


class Point(NamedTuple):
    x: int

    def __mul__(self, other: Any) -> Any:
        return other * OPTIONS.size

    def __lt__(self, other: Any) -> bool:
        return (self.x < other.x) == (OPTIONS.size == 1)


class PerClass(type):
    def __iter__(cls) -> Iterator[int]:
        return iter([OPTIONS.size])

    @property
    def width(cls) -> int:
        return int(OPTIONS.size)


class OfMeta(metaclass=PerClass):
    pass


class OfClass:
    """A descriptor of the class."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function(owner)


class Described:
    size = 0

    @OfClass
    def width(cls) -> Any:  # noqa: N805
        return cls.size

    @property
    @functools.lru_cache  # noqa: B019
    def cached(self) -> int:
        return int(OPTIONS.size)

    def __init__(self, size: int) -> None:
        self.__dict__["held"] = Scale(size)

    @property
    def fails(self) -> Any:
        raise AttributeError("fails")

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["held"].size


class WithSize(Described):
    def __init_subclass__(cls, size: int = 0) -> None:
        cls.size = size


def described(size: int) -> Any:
    made = type("Made", (Described,), {"size": size, "__module__": __name__})
    return made(0)


class Single:
    """A class of one instance."""

    size = 0
    _one: Any = None

    def __new__(cls) -> Any:
        cls._one = cls._one or super().__new__(cls)
        return cls._one


class Kept(random.Random):
    scale = 1


class Slotted:
    __slots__ = ("size",)


def with_attribute(one: Any, **more: Any) -> Any:
    for name, value in more.items():
        setattr(one, name, value)
    return one


def in_options(size: int) -> None:
    OPTIONS.size = size


def adding(size: int) -> Any:
    return lambda x: x + size


def executed(size: int) -> Any:
    space: dict[str, Any] = {"size": size}
    exec("def f(x):\n    return x * size\n", space)
    return space["f"]


def all_of(steps: Any, x: int = 3) -> Any:
    for step in steps:
        x = step(x)
    return x


def without_end(rows: list[int], end: int) -> list[int]:
    rows = list(rows)
    del rows[end:]
    return rows


def caught(errors: Any) -> str:
    try:
        raise ValueError
    except errors:
        return "caught"
    except ValueError:
        return "not caught"


def parsed() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="")
    return parser.parse_known_args()[0].size


def settings_of_environment(option: int) -> Any:
    base = pytest.importorskip("pydantic_settings").BaseSettings
    os.environ["OWN_FOLDER"] = f"/data/{option}"
    return type("Settings", (base,), {"__module__": __name__, "__annotations__": {"own_folder": str}})


Case = tuple[Callable[[int], Any], Callable[[Any], Any]]


def two(first: Any, second: Any) -> Callable[[int], Any]:
    """Returns what makes the first for option 1, and the second for option 2."""
    return lambda option: first if option == 1 else second


CASES: dict[str, Case] = {
    "order of functions": (two([plus, times], [times, plus]), all_of),
    "functions in two roles": (two((plus, times), (times, plus)), lambda held: (held[0](3), held[1](3))),
    "functions by name": (
        two({"a": plus, "b": times}, {"a": times, "b": plus}),
        lambda held: (held["a"](3), held["b"](3)),
    ),
    "order of lambdas": (
        lambda n: [lambda x: x + 1, lambda x: x * 10][:: 1 if n == 1 else -1],
        all_of,
    ),
    "order of closures": (lambda n: [adding(n), adding(3 - n)], lambda held: (held[0](3), held[1](3))),
    "closures that come again": (
        lambda n: (lambda once, twice: [once, twice, (once, twice)[n - 1]])(adding(1), adding(2)),
        lambda held: functools.reduce(lambda x, function: function(x), held, 3),
    ),
    "methods of one object": (
        lambda n: (lambda s: [s.up, s.down] if n == 1 else [s.down, s.up])(Scale(2)),
        lambda held: (held[0](3), held[1](3)),
    ),
    "order of partials": (
        two([functools.partial(plus), functools.partial(times)], [functools.partial(times), functools.partial(plus)]),
        all_of,
    ),
    "keys that are tuples": (two({("a", 1): 1}, {("a", 2): 1}), lambda held: [key[1] for key in held]),
    "look-up by tuples": (two({(0, 0): "a", (1, 0): "b"}, {(1, 0): "a", (0, 0): "b"}), lambda held: held[1, 0]),
    "keys of NumPy": (
        two({np.int64(0): 1, np.int64(1): 2}, {np.int64(1): 1, np.int64(0): 2}),
        lambda held: held[np.int64(0)],
    ),
    "keys that are paths": (two({pathlib.Path("a"): 1}, {pathlib.Path("b"): 1}), lambda held: [str(k) for k in held]),
    "keys that are numbers of decimals": (
        two({decimal.Decimal("1.5"): 1}, {decimal.Decimal("2.5"): 1}),
        lambda held: [float(k) for k in held],
    ),
    "keys that are dates": (
        two({datetime.date(2026, 1, 1): 1}, {datetime.date(2026, 1, 2): 1}),
        lambda held: [k.day for k in held],
    ),
    "keys that are sets": (two({frozenset([1]): 1}, {frozenset([2]): 1}), lambda held: [sum(k) for k in held]),
    "functions as keys": (lambda n: in_options(n) or {by_options: 5}, lambda held: [f(3) + w for f, w in held.items()]),
    "objects as keys": (lambda n: {Scale(n): 5}, lambda held: [f(3) + w for f, w in held.items()]),
    "keys of inner dicts": (two({"a": {("x", 1): 1}}, {"a": {("x", 2): 1}}), lambda held: [*held["a"]][0][1]),
    "dict.__getitem__": (lambda n: Attributes(size=n), lambda held: held.size),
    "list.__getitem__": (lambda n: [Scale(n)], lambda held: list.__getitem__(held, 0).size),
    "defaults": (
        two(with_other_defaults(True, False, True), with_other_defaults(True, False, False)),
        lambda held: held(3),
    ),
    "defaults of a lambda": (
        lambda n: lambda x, h=4, w=8, s=4 * n: (x, h, w, s),
        lambda held: held(3),
    ),
    "defaults by keyword": (
        lambda n: with_attribute(by_keyword, __kwdefaults__={"low": 2, "high": 2 * n}),
        lambda held: held(3),
    ),
    "eval in a namespace": (lambda n: eval("lambda x: x * size", {"size": n}), lambda held: held(3)),
    "exec in a namespace": (executed, lambda held: held(3)),
    "end of a deletion": (lambda n: n, lambda held: without_end([1, 2, 3], held)),
    "bounds by a member of an enumeration": (lambda n: Level(n), lambda held: [1, 2, 3][:held]),
    "classes of isinstance": (two((int, str), (float, str)), lambda held: isinstance(3, held)),
    "classes of except": (two((ValueError, KeyError), (KeyError, KeyError)), caught),
    "a formatted tuple": (lambda n: Scale(n), lambda held: "1" in "%s %s" % (0, vars(held))),  # noqa: UP031
    "a computed name": (
        two(datetime.date(2026, 1, 2), datetime.date(2026, 3, 2)),
        lambda held: [getattr(held, name) for name in ("year", "month", "day")],
    ),
    "a computed column": (
        lambda n: pytest.importorskip("pandas").DataFrame({"a": [1, 2], "b": [n, 4]}),
        lambda held: float(getattr(held, "B".lower()).mean()),
    ),
    "defaults of a pydantic model": (
        lambda n: pytest.importorskip("pydantic").create_model("Options", __module__=__name__, size=(int, n)),
        lambda held: held().size,
    ),
    "settings of the environment": (settings_of_environment, lambda held: held().own_folder),
    "a slotted object of a thread": (
        lambda n: with_attribute(threading.local(), own=with_attribute(Slotted(), size=n)),
        lambda held: held.own.size,
    ),
    "operators of a named tuple": (lambda n: in_options(n) or Point(3), lambda held: held * 2),
    "order of named tuples": (
        lambda n: in_options(n) or [Point(1), Point(2)],
        lambda held: [p.x for p in sorted(held)],
    ),
    "iteration over a class": (lambda n: in_options(n) or OfMeta, lambda held: list(held)),
    "property of a metaclass": (lambda n: in_options(n) or OfMeta, lambda held: held.width),
    "a descriptor of the class": (described, lambda held: held.width),
    "a cached property in C": (lambda n: in_options(n) or Described(n), lambda held: held.cached),
    "a property that fails": (Described, lambda held: held.fails),
    "attribute of a subclass of random.Random": (
        lambda n: with_attribute(Kept(1), scale=n),
        lambda held: held.scale,
    ),
    "kinds of random bits": (
        two(np.random.Generator(np.random.PCG64(1)), np.random.Generator(np.random.Philox(1))),
        lambda held: type(held.bit_generator).__name__,
    ),
    "the one instance": (lambda n: with_attribute(Single(), size=n), lambda _: Single().size),
    "the object of a method": (lambda n: Scale(n).up, lambda held: held.__self__.size),
    "member of an enumeration by name": (two("FAST", "SLOW"), lambda held: Speed[held].scaled()),
    "arguments of the program": (
        lambda n: setattr(sys, "argv", ["train.py", f"--size={n}"]),  # type: ignore[func-returns-value]
        lambda _: parsed(),
    ),
    "variables in a path": (
        lambda n: os.environ.update(OWN_FOLDER=f"/data/{n}"),  # type: ignore[func-returns-value]
        lambda _: os.path.expandvars("$OWN_FOLDER/x"),
    ),
    "working directory": (lambda n: os.chdir(("/", "/tmp")[n - 1]), lambda _: os.getcwd()),  # type: ignore[func-returns-value]
}


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("OWN_FOLDER", "")
    monkeypatch.chdir(pathlib.Path.cwd())


@pytest.mark.parametrize("case", CASES)
def test_samples_that_differ_have_other_identities(case: str) -> None:
    make, read = CASES[case]
    found, samples = [], []
    for option in (1, 2, 1):
        dataset = Reads(make(option), read)
        found.append(fingerprint({"dataset": dataset}))
        samples.append(repr(dataset[0]))
    assert samples[0] != samples[1]
    assert found[0] != found[1]
    assert found[0] == found[2]


class Passing:
    """A wrapper that has of a dataset what it does not have itself."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["dataset"], name)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i]


class Together:
    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, i: int) -> int:
        return i

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [i * self.size for i in indices]


def test_what_workers_ask_an_instance_for_counts() -> None:
    assert fingerprint({"dataset": Passing(Together(1))}) != fingerprint({"dataset": Passing(Together(2))})


def resolved(size: int) -> Any:
    """Returns a dataset that reads a part of a configuration, whose values lie elsewhere."""
    omegaconf = pytest.importorskip("omegaconf")
    os.environ["OWN_SIZE"] = str(size)
    config = {"lr": size, "size": 10 * size, "data": {"size": "${size}", "crop": "${oc.env:OWN_SIZE}"}}
    return omegaconf.OmegaConf.create(config).data


def test_a_part_of_a_configuration_counts_by_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    monkeypatch.setenv("OWN_SIZE", "")
    equal = []
    for key, value in {"lr": 7, "size": 8}.items():
        first, second = resolved(1), resolved(1)
        second._get_root()[key] = value
        datasets = [Reads(held, omegaconf.OmegaConf.to_container) for held in (first, second)]
        equal.append((key, fingerprint({"dataset": datasets[0]}) == fingerprint({"dataset": datasets[1]})))
    assert equal == [("lr", True), ("size", False)]
    parts = []
    for variable in ("1", "2"):
        held = resolved(1)
        os.environ["OWN_SIZE"] = variable
        parts.append(fingerprint({"dataset": Reads(held, omegaconf.OmegaConf.to_container)}))
    assert parts[0] != parts[1]
