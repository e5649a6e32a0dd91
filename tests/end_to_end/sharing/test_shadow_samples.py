"""Tests shadow samples: whoever joins a stream makes a few samples himself, and shares only if they are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.usefixtures("nothing_is_left")

BEGIN = """
import functools, itertools, json, os, random, sys, threading, time, warnings
import numpy as np
import coprep

OPTION = int(sys.argv[1])


class Hidden:
    "An object whose attributes count as equal in all jobs, whatever they are."

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __coprep_identity__(self):
        return "hidden"


class Data:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return np.array([i, self.value(i)])


transform = init = None
EPOCHS = 3
"""
END = """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    loader = coprep.DataLoader(
        data, 4, shuffle=True, seed=1, num_workers=2, framework="numpy", transform=transform, worker_init_fn=init
    )
    with loader:
        found = []
        for epoch in range(EPOCHS):
            for batch in loader:
                if not found:
                    print(json.dumps({"stream": loader._native.attached()["stream"]}), flush=True)
                    sys.stdin.readline()
                found.append([str(part) for part in batch])
        stream = loader._native.attached()["stream"]
        told = [str(one.message) for one in told]
        print(json.dumps({"found": found[:16], "told": told, "stream": stream}), flush=True)
        sys.stdin.readline()
"""
MISSES = {
    "an attribute": """
        class D(Data):
            def value(self, i): return self.hidden.option
        data = D(hidden=Hidden(option=OPTION))
    """,
    "a global": """
        HIDDEN = Hidden(option=OPTION)
        class D(Data):
            def value(self, i): return HIDDEN.option
        data = D()
    """,
    "a class attribute": """
        class D(Data):
            hidden = Hidden(option=OPTION)
            def value(self, i): return self.hidden.option
        data = D()
    """,
    "a closure": """
        def with_option(hidden):
            def value(i): return hidden.option
            return value
        class D(Data):
            def value(self, i): return with_option(self.hidden)(i)
        data = D(hidden=Hidden(option=OPTION))
    """,
    "a default argument": """
        class D(Data):
            def value(self, i, hidden=Hidden(option=OPTION)): return hidden.option
        data = D()
    """,
    "a method": """
        class Options(Hidden):
            def get(self): return self.option
        class D(Data):
            def value(self, i): return self.hidden.get()
        data = D(hidden=Options(option=OPTION))
    """,
    "a property": """
        class Options(Hidden):
            @property
            def size(self): return self.option
        class D(Data):
            def value(self, i): return self.hidden.size
        data = D(hidden=Options(option=OPTION))
    """,
    "an item": """
        class D(Data):
            def value(self, i): return self.hidden.options["size"]
        data = D(hidden=Hidden(options={"size": OPTION}))
    """,
    "an array": """
        class D(Data):
            def value(self, i): return self.hidden.array[i % 3]
        data = D(hidden=Hidden(array=np.full(3, OPTION)))
    """,
    "the length of a list": """
        class D(Data):
            def value(self, i): return len(self.hidden.items)
        data = D(hidden=Hidden(items=[0] * OPTION))
    """,
    "whether an attribute is there": """
        class D(Data):
            def value(self, i): return hasattr(self.hidden, "option1")
        data = D(hidden=Hidden(**{f"option{OPTION}": True}))
    """,
    "a function": """
        class D(Data):
            def value(self, i): return self.hidden.function(i)
        data = D(hidden=Hidden(function=(lambda i: i + 1) if OPTION == 1 else (lambda i: i + 2)))
    """,
    "the shape of samples": """
        class D(Data):
            def __getitem__(self, i): return np.full(self.hidden.option, i)
        data = D(hidden=Hidden(option=OPTION))
    """,
    "the type of samples": """
        class D(Data):
            def __getitem__(self, i): return np.full(3, i, self.hidden.dtype)
        data = D(hidden=Hidden(dtype="int32" if OPTION == 1 else "float64"))
    """,
    "texts": """
        class D(Data):
            def __getitem__(self, i): return f"{self.hidden.prefix} {i}"
        data = D(hidden=Hidden(prefix="a" * OPTION))
    """,
    "a probability": """
        class D(Data):
            def value(self, i): return sum(random.random() < self.hidden.p for _ in range(1000))
        data = D(hidden=Hidden(p=0.1 * OPTION))
    """,
    "a transform": """
        class T:
            def __init__(self, hidden): self.hidden = hidden
            def __call__(self, x): return x * self.hidden.option
        class D(Data):
            def value(self, i): return 1
        data, transform = D(), T(Hidden(option=OPTION))
    """,
    "what worker_init_fn sets": """
        SET = Hidden(option=0)
        class Init:
            def __init__(self, hidden): self.hidden = hidden
            def __call__(self, number): SET.option = self.hidden.option
        class D(Data):
            def value(self, i): return SET.option
        data, init = D(), Init(Hidden(option=OPTION))
    """,
    "a seed of its own": """
        class D(Data):
            def value(self, i): return random.Random(self.hidden.seed + i).randrange(1 << 30)
        data = D(hidden=Hidden(seed=OPTION))
    """,
    "what is made when it is first needed": """
        class D(Data):
            def value(self, i):
                if self.hidden.table is None:
                    self.hidden.table = [self.hidden.option] * 5
                return self.hidden.table[i % 5]
        data = D(hidden=Hidden(table=None, option=OPTION))
    """,
}
"""Datasets whose samples depend on an option that the identity does not show."""
MEMORIES = {
    "the first random numbers of each sample are kept": """
        class D(Data):
            def value(self, i):
                return self.hidden.kept.setdefault(i, random.random())
        data = D(hidden=Hidden(kept={}))
    """,
    "a counter": """
        class D(Data):
            def value(self, i):
                self.hidden.calls += 1
                return self.hidden.calls
        data = D(hidden=Hidden(calls=0))
    """,
    "a counter that runs in the job": """
        class D(Data):
            def value(self, i):
                self.hidden.calls += 1
                return self.hidden.calls
        data = D(hidden=Hidden(calls=0))
        for i in range(OPTION): data[i]
    """,
    "a table made when it is first needed": """
        class D(Data):
            def value(self, i):
                if self.hidden.table is None:
                    self.hidden.table = list(range(100))
                return self.hidden.table[i]
        data = D(hidden=Hidden(table=None))
        if OPTION == 2: data[0]
    """,
    "a file opened when it is first needed": """
        with open("numbers", "w") as file: file.write("".join(f"{i:04}" for i in range(64)))
        class D(Data):
            def value(self, i):
                if self.hidden.file is None:
                    self.hidden.file = open("numbers")
                self.hidden.file.seek(4 * i)
                return int(self.hidden.file.read(4))
        data = D(hidden=Hidden(file=None))
    """,
    "the order of a set": """
        class D(Data):
            def __getitem__(self, i): return {"names": list({"a", "b", "c", "d", str(i)})}
        data = D()
    """,
    "the time": """
        class D(Data):
            def value(self, i): return time.time()
        data = D()
    """,
    "the process": """
        class D(Data):
            def value(self, i): return os.getpid()
        data = D()
    """,
    "the memory's addresses": """
        class D(Data):
            def value(self, i): return id(object()) + id([i])
        data = D()
    """,
    "a generator of its own": """
        class D(Data):
            def value(self, i): return self.hidden.generator.integers(1 << 30)
        data = D(hidden=Hidden(generator=np.random.default_rng()))
    """,
    "a generator of its own, equal in all": """
        class D(Data):
            def value(self, i): return self.hidden.generator.integers(1 << 30)
        data = D(hidden=Hidden(generator=np.random.default_rng(3)))
    """,
    "random numbers": """
        class D(Data):
            def value(self, i): return random.random() + np.random.rand()
        data = D()
    """,
    "the number of the worker": """
        SET = Hidden(number=0)
        def init(number): SET.number = number
        class D(Data):
            def value(self, i): return SET.number
        data = D()
    """,
    "an lru_cache": """
        @functools.lru_cache
        def load(i): return random.random()
        class D(Data):
            def value(self, i): return load(i)
        data = D()
    """,
    "errors": """
        class D(Data):
            def value(self, i):
                if i % 2 and self.hidden.option == 2: raise ValueError(i)
                return i
        data = D(hidden=Hidden(option=OPTION))
    """,
    "a thread": """
        class D(Data):
            def value(self, i):
                found = []
                thread = threading.Thread(target=lambda: found.append(i))
                thread.start()
                thread.join()
                return found[0]
        data = D()
    """,
    "options that are not read": """
        class D(Data):
            def value(self, i): return i
        data = D(lr=OPTION, hidden=Hidden(lr=OPTION))
    """,
    "a cached property": """
        class D(Data):
            @functools.cached_property
            def table(self): return list(range(64))
            def value(self, i): return self.table[i]
        data = D()
    """,
    "a counter of the class": """
        class D(Data):
            calls = Hidden(count=0)
            def value(self, i):
                type(self).calls.count += 1
                return self.calls.count
        data = D()
    """,
    "a number that counts": """
        NUMBERS = Hidden(count=itertools.count())
        class D(Data):
            def value(self, i): return next(NUMBERS.count)
        data = D()
    """,
    "values of a thread": """
        class D(Data):
            def value(self, i):
                if not hasattr(LOCAL, "kept"): LOCAL.kept = 7
                return LOCAL.kept
        LOCAL = threading.local()
        data = D()
    """,
    "the last few samples": """
        class D(Data):
            def value(self, i):
                self.hidden.last = [*self.hidden.last[-3:], i]
                return len(self.hidden.last)
        data = D(hidden=Hidden(last=[]))
    """,
    "a database opened when it is first needed": """
        import sqlite3
        class D(Data):
            def value(self, i):
                if self.hidden.connection is None:
                    self.hidden.connection = sqlite3.connect(":memory:")
                return self.hidden.connection.execute("select 3").fetchone()[0]
        data = D(hidden=Hidden(connection=None))
    """,
    "a mapped file": """
        np.arange(64).tofile("mapped")
        class D(Data):
            def value(self, i):
                if self.hidden.array is None:
                    self.hidden.array = np.memmap("mapped", np.int64, "r")
                return self.hidden.array[i]
        data = D(hidden=Hidden(array=None))
    """,
    "random bytes of the system": """
        class D(Data):
            def value(self, i): return int.from_bytes(os.urandom(4), "little")
        data = D()
    """,
    "files that it writes": """
        class D(Data):
            def value(self, i):
                with open(f"written{os.getpid()}", "a") as file:
                    file.write("x")
                    return file.tell()
        data = D()
    """,
    "the order of requests": """
        class D(Data):
            def value(self, i):
                before, self.hidden.before = self.hidden.before, i
                return before
        data = D(hidden=Hidden(before=-1))
    """,
    "a buffer that is used again": """
        class D(Data):
            def __getitem__(self, i):
                self.hidden.buffer[:] = i
                return self.hidden.buffer
        data = D(hidden=Hidden(buffer=np.zeros(3)))
        if OPTION == 2: data[1]
    """,
    "a transform that remembers": """
        class T:
            def __init__(self): self.hidden = Hidden(last=None)
            def __call__(self, x):
                before, self.hidden.last = self.hidden.last, x
                return x if before is None else x + before[1] * 0
        class D(Data):
            def value(self, i): return i
        data, transform = D(), T()
    """,
    "nothing": """
        class D(Data):
            def value(self, i): return i
        data = D()
    """,
}
"""Datasets with a memory of their own, whose jobs share."""


class Job(NamedTuple):
    process: subprocess.Popen[str]
    stream: int

    def goes_on(self) -> dict[str, Any]:
        """Lets the job take all its batches."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        result: dict[str, Any] = json.loads(self.process.stdout.readline())
        return result


Start = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path, socket_path: Path) -> Iterator[Start]:
    """Starts jobs of one script, which have their first batch, and stay until the test ends."""
    processes: list[subprocess.Popen[str]] = []

    def job(code: str, option: int, **environment: str) -> Job:
        script = tmp_path / "train.py"
        script.write_text(BEGIN + textwrap.dedent(code) + END)
        process = subprocess.Popen(
            [sys.executable, str(script), str(option)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )
        processes.append(process)
        assert process.stdout is not None
        return Job(process, json.loads(process.stdout.readline())["stream"])

    yield job
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", MISSES)
def test_a_job_whose_samples_differ_does_not_share(job: Start, name: str) -> None:
    first, second = job(MISSES[name], 1), job(MISSES[name], 2)
    assert first.stream != second.stream
    one, two = first.goes_on(), second.goes_on()
    assert one["found"] != two["found"]
    assert one["told"] == []
    (told,) = two["told"]
    assert (
        told.startswith(f"not shared with train.py (pid {first.process.pid}): sample ")
        and "__coprep_identity__" in told
    )


@pytest.mark.parametrize("name", MEMORIES)
def test_a_dataset_with_a_memory_of_its_own_raises_no_alarm(job: Start, name: str) -> None:
    first, second = job(MEMORIES[name], 1), job(MEMORIES[name], 2)
    assert first.stream == second.stream
    two = second.goes_on()
    assert (two["stream"], two["told"]) == (first.stream, [])


def test_a_slow_sample_is_compared_when_it_is_ready(job: Start) -> None:
    """The job gets its first batches from the stream, and then goes on alone, with the rest of its samples."""
    slow = """
        class D(Data):
            def value(self, i):
                time.sleep(0.3)
                return self.hidden.option
            def __len__(self): return 16
        data = D(hidden=Hidden(option=OPTION))
    """
    first, second = job(slow, 1), job(slow, 2)
    two = second.goes_on()
    assert two["stream"] != first.stream
    values = [part.split()[-1] for batch in two["found"] for part in batch]
    assert set(values) == {"1]", "2]"} and values == sorted(values)
    assert len(two["told"]) == 1 and "__coprep_identity__" in two["told"][0]


def test_samples_are_compared_again_now_and_then(job: Start) -> None:
    """What a job changes later on, in what the identity does not show, is found within some 10,000 samples."""
    changing = """
        class D(Data):
            def value(self, i): return self.hidden.option
            def __len__(self): return 8000
        data, EPOCHS = D(hidden=Hidden(option=1)), 8
        class Loader(coprep.DataLoader):
            def __init__(self, data, size, **options): super().__init__(data, 500, **options)
            def __iter__(self):
                if OPTION == 2 and self._loader is not None: data.hidden.option = 2
                return super().__iter__()
        coprep.DataLoader = Loader
    """
    first, second = job(changing, 1), job(changing, 2)
    assert first.stream == second.stream
    assert second.goes_on()["stream"] != first.stream


def test_a_job_that_could_not_be_compared_is_compared_in_its_next_epoch(job: Start) -> None:
    ends_once = """
        class D(Data):
            def value(self, i):
                if self.hidden.option == 2 and not os.path.exists("has_ended"):
                    open("has_ended", "w").close()
                    os._exit(1)
                time.sleep(0.005)
                return self.hidden.option
        data, EPOCHS = D(hidden=Hidden(option=OPTION)), 8
    """
    first, second = job(ends_once, 1), job(ends_once, 2)
    assert first.stream == second.stream
    assert second.goes_on()["stream"] != first.stream


def test_a_job_that_comes_between_epochs_is_compared_with_those_that_were_there(job: Start) -> None:
    """The stream has no fork server then, and the job that comes gives the next one."""
    pausing = """
        class D(Data):
            def value(self, i):
                time.sleep(0.005)
                return self.hidden.option
        data, EPOCHS = D(hidden=Hidden(option=OPTION)), 8
        class Loader(coprep.DataLoader):
            passes = 0
            def __iter__(self):
                if OPTION == 1 and self.passes == 1:
                    print(flush=True)
                    sys.stdin.readline()
                self.passes += 1
                return super().__iter__()
        coprep.DataLoader = Loader
    """
    first = job(pausing, 1)
    assert first.process.stdin is not None and first.process.stdout is not None
    first.process.stdin.write("\n")
    first.process.stdin.flush()
    assert first.process.stdout.readline() == "\n"
    second = job(pausing, 2)
    assert second.stream == first.stream
    assert first.goes_on()["stream"] != second.stream


def test_shadow_samples_can_be_turned_off(job: Start) -> None:
    first = job(MISSES["an attribute"], 1)
    second = job(MISSES["an attribute"], 2, COPREP_SHADOW="0")
    assert first.stream == second.stream
