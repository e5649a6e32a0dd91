"""Tests that datasets may hold what pickle refuses: functions that remember results, modules, values of threads."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coprep._fingerprint import fingerprint
from coprep._packing import pack, unpack
from waiting import WAIT

SCRIPT = """
import functools, json, math, threading
from typing import TypedDict
import numpy as np
import coprep

@functools.lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@functools.singledispatch
def total(value):
    raise TypeError(type(value))

@total.register
def _(value: int):
    return value

@total.register(list)
def _(value):
    return sum(total(one) for one in value)

class Sample(TypedDict):
    value: int

class Data:
    def __init__(self):
        self.local = threading.local()
        self.local.opened = None
        self.math = math
        self.remembered = functools.lru_cache(maxsize=4)(self.remembered)

    def __len__(self):
        return 12

    def remembered(self, i):
        return 10 * i

    @functools.lru_cache(maxsize=2)
    def offset(self):
        return 1000

    @functools.singledispatchmethod
    def plus(self, value):
        return value + 1

    def __getitem__(self, i) -> Sample:
        if self.local.opened is None:
            self.local.opened = open(__file__)
        value = fibonacci(i) + total([i, [i]]) + self.remembered(i) + self.offset() + self.math.floor(0.5)
        return Sample(value=self.plus(value))

if __name__ == "__main__":
    data = Data()
    streams = []
    with coprep.DataLoader(data, 4, num_workers=2, collate_fn=list, framework="numpy") as loader:
        for _ in range(2):
            given = [sample for batch in loader for sample in batch]
            assert given == [data[i] for i in range(12)], given
            streams.append(loader._native.attached()["stream"])
    print(json.dumps(streams))
"""


@pytest.mark.usefixtures("nothing_is_left")
def test_a_script_with_functions_that_remember_runs_unchanged(socket_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first == second, "using the dataset does not change its identity"


def again(value: Any) -> Any:
    """Returns a value as another process of this script loads it."""
    whole = pack(value)
    data = bytearray(whole.size)
    whole.write_to(memoryview(data))
    return unpack(data)


def square(x: int) -> int:
    return x * x


@functools.lru_cache(maxsize=8)
def cube(x: int) -> int:
    return x**3


def test_a_function_that_remembers_starts_anew_with_its_parameters() -> None:
    squared = functools.lru_cache(maxsize=3, typed=True)(square)
    assert squared(3) == 9
    loaded = again(squared)
    assert loaded.cache_info().currsize == 0 and loaded(4) == 16
    assert loaded.cache_parameters() == {"maxsize": 3, "typed": True}


def test_a_function_without_a_name_may_remember_too() -> None:
    squared = functools.lru_cache(maxsize=2)(functools.partial(pow, exp=2))
    assert again(squared)(3) == 9
    assert fingerprint({"x": squared}) == fingerprint({"x": again(squared)})


def test_a_function_of_a_module_stays_the_same_function() -> None:
    assert again(cube) is cube
    assert again(np) is np


def test_a_dispatcher_counts_the_same_after_it_was_used() -> None:
    @functools.singledispatch
    def kind(value: Any) -> str:
        """Names a value."""
        return "any"

    @kind.register
    def _(value: bool) -> str:
        return f"a bool, {kind(int(value))}"

    before = fingerprint({"x": kind})
    assert kind(True) == "a bool, any"
    assert fingerprint({"x": kind}) == before
    loaded = again(kind)
    assert (loaded(True), loaded.__name__, loaded.__doc__) == ("a bool, any", "kind", "Names a value.")
    kind.register(str, lambda value: "text")
    assert fingerprint({"x": kind}) != before, "what it does is a part of its identity"


def test_thread_locals_keep_what_tells_that_nothing_is_open() -> None:
    local = threading.local()
    local.file, local.number, local.none = sys.stdin, 5, None
    assert vars(again(local)) == {"number": 5, "none": None}
    assert vars(again(threading.local())) == {}
    assert fingerprint({"x": local}) == fingerprint({"x": threading.local()})


def test_a_module_that_cannot_be_imported_is_an_error() -> None:
    with pytest.raises(TypeError, match="module"):
        pack([type(sys)("made_up")])
