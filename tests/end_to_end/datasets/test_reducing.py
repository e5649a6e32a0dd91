"""Tests datasets that hold what pickle refuses: functions that remember results, modules, values of threads."""

from __future__ import annotations

import functools
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from coprep._fingerprint import fingerprint
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
    kind.register(str, lambda value: "text")
    assert fingerprint({"x": kind}) != before, "what it does is a part of its identity"


def test_values_of_a_thread_count_without_handles() -> None:
    local, other = threading.local(), threading.local()
    with open(__file__) as local.file, sqlite3.connect(":memory:") as local.database:
        local.none = None
        assert fingerprint({"x": local}) == fingerprint({"x": other})
        local.number = 5
        assert fingerprint({"x": local}) != fingerprint({"x": other})
        other.number = 5
        assert fingerprint({"x": local}) == fingerprint({"x": other})
        local.both = {"size": 5, "database": local.database}
        assert fingerprint({"x": local}) != fingerprint({"x": other}), "a setting beside a handle counts"


def test_locks_count_by_their_kind() -> None:
    held = threading.Lock()
    with held:
        assert fingerprint({"x": held}) == fingerprint({"x": threading.Lock()})
