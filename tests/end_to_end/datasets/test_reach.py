"""Tests that each way to read an option is found: exactly, or by an object that counts whole."""

from __future__ import annotations

import contextvars
import copyreg
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import ways_of_reading
from coprep._codes import digest_of_code
from coprep._reach import reach
from coprep._reach.frames import Frame
from coprep._reach.memory import SCALARS, Read, contents, members_of
from ways_of_reading import ENVIRONMENT, WAYS, Way, dataset_of

Found = dict[tuple[str, str], Any]

SUPPORT = Path(ways_of_reading.__file__).parent


def name_of(code: Any) -> tuple[str, str]:
    return str(getattr(code, "__module__", None)), getattr(code, "__qualname__", None) or code.__name__


class Contents:
    """Contents of objects, as nested tuples that can be compared."""

    def __init__(self) -> None:
        self.met: dict[int, tuple[int, Any]] = {}
        """The number of each object that was met, which shows cycles, and the object, so that it lives."""

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in SCALARS or kind is str:
            return kind.__name__, repr(value)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            return name_of(value)
        if id(value) in self.met:
            return "met", self.met[id(value)][0]
        self.met[id(value)] = len(self.met), value
        return name_of(kind), self._elements_of(value), self._attributes_of(value)

    def _attributes_of(self, value: Any) -> Any:
        return [(name, self.of(one)) for name, one in members_of(value).items()]

    def _elements_of(self, value: Any) -> Any:
        if isinstance(value, dict):
            return [(self.of(key), self.of(dict.__getitem__(value, key))) for key in dict.keys(value)]
        if isinstance(value, (set, frozenset)):
            return sorted(map(repr, map(self.of, value)))
        if isinstance(value, list):
            return [self.of(one) for one in list.__iter__(value)]
        if isinstance(value, tuple):
            return [self.of(one) for one in tuple.__iter__(value)]
        if isinstance(value, types.MethodType):
            return name_of(value.__func__), self.of(value.__self__)
        if isinstance(value, weakref.ref):
            return self.of(value())
        if isinstance(value, contextvars.ContextVar):
            return self.of(contents(value))
        if members_of(value):
            return None
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            _, *state = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except TypeError:
            return None
        return [[*map(self.of, one)] if hasattr(type(one), "__next__") else self.of(one) for one in state]


def comparable(read: Read) -> Any:
    """Returns what counts of a member, in a form that is equal where nothing that counts differs."""
    if read.how == "type":
        cls, first_path = read.about or (type(read.value), "")
        return name_of(read.value if isinstance(read.value, type) else cls), first_path
    if read.how == "code":
        is_known = isinstance(read.value, types.FunctionType)
        return digest_of_code(read.value.__code__) if is_known else name_of(read.value), read.about and read.about[1]
    return Contents().of(read.value)


def found(way: Way, size: int, lr: int) -> Found:
    """Returns what samples are found to depend on, with these options."""
    return {place: comparable(read) for place, read in reach({"dataset": dataset_of(way, size, lr)}, {}).reads.items()}


MISSED = {name: way.why for name, way in WAYS.items() if way.found == "missed"}


def ways(failing: dict[str, str]) -> list[Any]:
    """Returns the parameters of a test of each way. The failing ones are expected to fail, with the reason."""
    marks = {name: pytest.mark.xfail(reason=why, strict=True) for name, why in failing.items()}
    return [pytest.param(way, id=name, marks=marks.get(name, ())) for name, way in WAYS.items()]


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the variable that datasets set."""
    monkeypatch.setenv(ENVIRONMENT, "")


@pytest.mark.parametrize("way", ways(MISSED))
def test_a_way_to_read_an_option_is_found(way: Way) -> None:
    first = found(way, size=4, lr=1)
    assert first != found(way, size=5, lr=1)
    if way.found == "exactly":
        assert first == found(way, size=4, lr=2)


@pytest.mark.parametrize("way", ways({}))
def test_samples_depend_on_what_a_way_reads(way: Way) -> None:
    first, larger, faster = (dataset_of(way, size, lr)[0] for size, lr in ((4, 1), (5, 1), (4, 2)))
    assert first != larger
    assert first == faster


@pytest.mark.parametrize("way", ways({}))
def test_functions_that_are_not_evaluated_again_would_add_nothing(way: Way) -> None:
    quickly = found(way, size=4, lr=1)
    # Not by `monkeypatch`, which some ways reach.
    Frame.is_due = property(lambda _: True, lambda _, value: None)  # type: ignore[assignment]
    try:
        assert found(way, size=4, lr=1) == quickly
    finally:
        del Frame.is_due


SCRIPT = """
import contextlib
from coprep._reach import reach
from coprep._reach.frames import Frame
from ways_of_reading import WAYS, dataset_of

for name, way in WAYS.items():
    # A way that is missed may raise.
    with contextlib.suppress(Exception):
        for path, how in reach({"dataset": dataset_of(way, 4, 1)}, {}).reads:
            print(name, path, how)
"""


@pytest.fixture(scope="module")
def printed() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What two processes with different hash seeds find of each way, in order."""
    both: tuple[dict[str, list[str]], dict[str, list[str]]] = {}, {}
    for seed, lines in enumerate(both, start=1):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(SUPPORT)}
        text = subprocess.check_output([sys.executable, "-c", SCRIPT], text=True, env=environment, timeout=120)
        for line in text.splitlines():
            lines.setdefault(line.partition(" ")[0], []).append(line)
    return both


@pytest.mark.parametrize("way", ways({}))
def test_what_is_found_and_its_order_are_the_same_in_all_processes(
    way: Way, printed: tuple[dict[str, list[str]], dict[str, list[str]]]
) -> None:
    first, second = (lines.get(way.read.__name__, []) for lines in printed)
    assert first == second
    assert first or way.found == "missed"
