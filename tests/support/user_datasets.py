"""Datasets for the tests of user code. They need no torch, so that workers start quickly."""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


def note(log: str | None, line: object) -> None:
    """Appends a line to a file that many processes write."""
    if log is None:
        return
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # A single system call, so that the lines of several processes do not mix.
    os.write(file, f"{line}\n".encode())
    os.close(file)


def noted(log: str | Path) -> list[str]:
    return Path(log).read_text().split() if Path(log).exists() else []


class Numbers:
    """Sample i is an array full of i, and i."""

    def __init__(
        self,
        size: int = 48,
        *,
        root: str = "",
        pause: float = 0.0,
        slow: dict[int, float] | None = None,
        log: str | None = None,
    ) -> None:
        self.size = size
        self.root = root
        self.pause = pause
        self.slow = slow or {}
        self.log = log

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Any:
        wait(self.slow.get(i, self.pause))
        note(self.log, f"dataset:{i}")
        return np.full(64, i, np.int64), i


class Raising(Numbers):
    """A dataset with samples that raise. Each has a kind of exception, whose text may be long."""

    def __init__(self, size: int, bad: dict[int, str], length: int = 0, **arguments: Any) -> None:
        super().__init__(size, **arguments)
        self.bad = bad
        self.length = length

    def __getitem__(self, i: int) -> Any:
        kind = self.bad.get(i)
        if kind == "bytes":
            (b"x" * self.length + b"\xff").decode()
        if kind == "json":
            json.loads("x" * self.length)
        if kind == "text":
            raise ValueError(f"sample {i} " + "x" * self.length + " to the end")
        if kind == "file":
            os.stat(f"/nowhere/{i}\udcff.jpg")
        return super().__getitem__(i)


def wait(seconds: float) -> None:
    """Sleeps for this long. With 0 it keeps the processor, which even an empty sleep could give up."""
    if seconds:
        time.sleep(seconds)


class Turning(Numbers):
    """A dataset whose slow samples are slow only while a file exists."""

    def __init__(self, size: int, flag: str, **arguments: Any) -> None:
        super().__init__(size, **arguments)
        self.flag = flag

    def __getitem__(self, i: int) -> Any:
        if i in self.slow and not Path(self.flag).exists():
            wait(self.pause)
            note(self.log, f"dataset:{i}")
            return np.full(64, i, np.int64), i
        return super().__getitem__(i)


class Gated(Numbers):
    """A dataset whose sample ``gated`` is made only once a file exists."""

    def __init__(self, size: int, gated: int, gate: str, **arguments: Any) -> None:
        super().__init__(size, **arguments)
        self.gated, self.gate = gated, gate

    def __getitem__(self, i: int) -> Any:
        while i == self.gated and not Path(self.gate).exists():
            time.sleep(0.01)
        return super().__getitem__(i)


class Noisy(Numbers):
    """A dataset with random numbers in its samples, like a random augmentation in the dataset itself."""

    def __getitem__(self, i: int) -> Any:
        values, label = super().__getitem__(i)
        return values + np.random.rand(64), label, random.random()


class Scaled:
    """A random transform that works in place."""

    def __init__(self, by: float = 2.0, log: str | None = None) -> None:
        self.by = by
        self.log = log

    def __call__(self, sample: Any) -> Any:
        values, label = sample
        note(self.log, f"transform:{label}")
        values *= int(self.by)
        values += np.random.randint(1000)
        return values, label, random.random()


def negated(sample: Any) -> Any:
    """A second transform, which also works in place."""
    values, label = sample
    np.negative(values, out=values)
    return values, label


class Words(Numbers):
    """A dataset with text and bytes of different lengths."""

    def __getitem__(self, i: int) -> Any:
        return {"text": "é" * i, "raw": bytes([i]) * i, "label": i}


class Lines(Numbers):
    """A dataset with texts of the given lengths."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(len(lengths))
        self.lengths = lengths

    def __getitem__(self, i: int) -> Any:
        return {"text": "x" * self.lengths[i], "id": i}


class Pictures(Numbers):
    """A dataset of PIL images."""

    def __getitem__(self, i: int) -> Any:
        from PIL import Image

        return Image.new("RGB", (6, 4), (i, 2 * i, 3 * i)), i


@dataclasses.dataclass
class Record:
    values: Any
    label: int


class Records(Numbers):
    def __getitem__(self, i: int) -> Any:
        return Record(np.full(3, i), i)


class Pair(NamedTuple):
    values: Any
    label: int


class Pairs(Numbers):
    def __getitem__(self, i: int) -> Any:
        return Pair(np.full(3, i), i)


class Ragged(Numbers):
    """A dataset whose sample i has i numbers."""

    def __getitem__(self, i: int) -> Any:
        return np.arange(i), i


class Growing(Numbers):
    """A dataset whose first half says nothing about the size of the second."""

    def __getitem__(self, i: int) -> Any:
        size = 100 if i < self.size // 2 else 1_000_000
        return np.full(size, i % 251, np.uint8), i


class Uneven(Numbers):
    """Sample i is ``small`` bytes of a value that identifies it; some samples have another size."""

    def __init__(self, size: int, large: dict[int, int], small: int = 2000, **arguments: Any) -> None:
        super().__init__(size, **arguments)
        self.large = large
        self.small = small

    def __getitem__(self, i: int) -> Any:
        wait(self.slow.get(i, self.pause))
        note(self.log, f"dataset:{i}")
        return np.full(self.large.get(i, self.small), i % 251, np.uint8), i


class DyingInTheMiddle(Uneven):
    """A dataset with a victim: the first worker that writes it dies halfway, and the next one does not."""

    def __init__(self, size: int, large: dict[int, int], victim: int, mark: str) -> None:
        super().__init__(size, large)
        self.victim = victim
        self.mark = mark

    def __getitem__(self, i: int) -> Any:
        if i == self.victim and not Path(self.mark).exists():
            from coprep import _packing

            def half(packed: Any, view: memoryview) -> int:
                Path(self.mark).touch()
                # Half of the sample is rubbish, which must never reach a job.
                view.cast("B")[: packed.size // 2] = b"\xee" * (packed.size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
                return 0

            _packing.Packed.write_to = half  # type: ignore[method-assign, unused-ignore]
        return super().__getitem__(i)


class Churning(Numbers):
    """A dataset that allocates 9 MB for each sample, like a large image, and counts the pages that the kernel
    provides.
    """

    def __getitem__(self, i: int) -> Any:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for taken in [np.empty(3_000_000, np.uint8) for _ in range(3)]:
            taken.fill(i)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, i


class Place(Numbers):
    """A dataset whose samples describe the process that makes them."""

    def __getitem__(self, i: int) -> Any:
        return {
            "cwd": os.getcwd(),
            "path": "\n".join(sys.path),
            "variable": os.environ.get("MARK", ""),
            "argv": "\n".join(sys.argv),
            "id": i,
        }


class Loaded(Numbers):
    """A dataset that knows the process that loaded it."""

    loaded_by = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.loaded_by = os.getpid()

    def __getitem__(self, i: int) -> Any:
        time.sleep(self.pause)
        return self.loaded_by, os.getpid(), i


class Settings(Numbers):
    """A dataset whose samples are a setting of its class."""

    setting = 0

    def __getitem__(self, i: int) -> Any:
        return self.setting, i


class Handles(Numbers):
    """A dataset with an open file and an open database, which it has read before."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(size)
        self.file = open(path, "rb")  # noqa: SIM115 - that it stays open is the point
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table numbers (number)")
        self.connection.executemany("insert into numbers values (?)", [(i,) for i in range(size)])

    def __getitem__(self, i: int) -> Any:
        # Processes that inherit a file share its position.
        (read,) = os.pread(self.file.fileno(), 1, i)
        ((stored,),) = self.connection.execute("select number from numbers where number = ?", (i,)).fetchall()
        assert read == stored
        return read, i


class Counted(Numbers):
    """A dataset that counts its samples in objects that processes share."""

    def __init__(self, size: int, counted: Any, noted: Any, queue: Any) -> None:
        super().__init__(size)
        self.counted, self.noted, self.queue = counted, noted, queue

    def __getitem__(self, i: int) -> Any:
        if i not in self.noted:
            with self.counted.get_lock():
                self.counted.value += 1
            self.noted[i] = os.getpid()
            self.queue.put(i)
        return super().__getitem__(i)


class Processes(Numbers):
    """A dataset whose samples tell what ``multiprocessing`` knows of the process."""

    def __getitem__(self, i: int) -> Any:
        process = multiprocessing.current_process()
        return (multiprocessing.parent_process() is not None, process.name, process.pid), i


class Printing(Numbers):
    def __getitem__(self, i: int) -> Any:
        # One write each, for the lines of several workers must not mix where output is not buffered.
        sys.stdout.write(f"sample {i}\n")
        sys.stderr.write(f"warning of sample {i}\n")
        return super().__getitem__(i)


class Freed(Numbers):
    """A dataset that notes the process that frees it."""

    def __del__(self) -> None:
        note(self.log, os.getpid())

    def __getitem__(self, i: int) -> Any:
        wait(self.pause)
        return i, i


# --- faults --------------------------------------------------------------------------------------------------


class Broken(Exception):
    """An exception that cannot be made from its ``args``."""

    def __init__(self, id: int, *, why: str = "broken") -> None:
        super().__init__(f"sample {id} is {why}")
        self.id = id


def fail(i: int) -> None:
    raise Broken(i)


def kill(i: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(i: int) -> None:
    sys.exit(5)


def leave_at_once(i: int) -> None:
    os._exit(5)


def crash(i: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def interrupt(i: int) -> None:
    raise KeyboardInterrupt


def stop(i: int) -> None:
    raise StopIteration


def hang(i: int) -> None:
    # Longer than the runner lets a test take, so that only the coordinator can end it.
    time.sleep(600)


class Faulty(Numbers):
    """A dataset with samples that misbehave."""

    def __init__(self, size: int, bad: list[int], what: Any, **arguments: Any) -> None:
        super().__init__(size, **arguments)
        self.bad = bad
        self.what = what

    def __getitem__(self, i: int) -> Any:
        sample = super().__getitem__(i)
        if i in self.bad:
            self.what(i)
        return sample


class FaultyTransform:
    """A transform that misbehaves at some samples."""

    def __init__(self, bad: list[int], what: Any) -> None:
        self.bad = bad
        self.what = what

    def __call__(self, sample: Any) -> Any:
        if sample[1] in self.bad:
            self.what(sample[1])
        return sample


class Odd(Numbers):
    """A dataset with one sample that differs from the others in kind."""

    def __init__(self, size: int, bad: int, sample: Any) -> None:
        super().__init__(size)
        self.bad = bad
        self.sample = sample

    def __getitem__(self, i: int) -> Any:
        return self.sample if i == self.bad else super().__getitem__(i)


class Locked(Numbers):
    def __init__(self, size: int = 8) -> None:
        super().__init__(size)
        self.lock = threading.Lock()
        self.again = threading.RLock()

    def __getitem__(self, i: int) -> Any:
        with self.lock, self.again:
            return super().__getitem__(i)


class Connected(Numbers):
    def __init__(self, size: int = 8) -> None:
        super().__init__(size)
        self.connection = sqlite3.connect(":memory:")


class OpenFile(Numbers):
    def __init__(self, path: str | Path, size: int = 8) -> None:
        super().__init__(size)
        self.file = open(path, "rb")  # noqa: SIM115 - that it stays open is the point


class Reopening(Numbers):
    """A dataset that opens a binary file, a text file and a database when it is first used. All hold the samples.

    Lines of the text are longer in bytes than in characters, so that positions in a copy of the text are others.
    """

    LINE = "é{:03}\n"

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(size)
        self.folder = folder
        self.line = len(self.LINE.format(0).encode())
        (folder / "bytes").write_bytes(bytes(range(size)))
        (folder / "text").write_text("".join(map(self.LINE.format, range(size))), encoding="utf-8")
        with sqlite3.connect(folder / "database") as made:
            made.execute("create table numbers (number)")
            made.executemany("insert into numbers values (?)", [(i,) for i in range(size)])

    @functools.cached_property
    def binary(self) -> Any:
        return open(self.folder / "bytes", "rb")  # noqa: SIM115 - that it stays open is the point

    @functools.cached_property
    def text(self) -> Any:
        return open(self.folder / "text", encoding="utf-8")  # noqa: SIM115

    @functools.cached_property
    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "database")

    def __getitem__(self, i: int) -> Any:
        self.binary.seek(i)
        self.text.seek(i * self.line)
        (stored,) = self.database.execute("select number from numbers where number = ?", (i,)).fetchone()
        (read,) = self.binary.read(1)
        assert read == stored == int(self.text.readline()[1:])
        return super().__getitem__(read)


class Identified(Numbers):
    """A dataset that says what identifies it, and holds something that does not count, deep within."""

    def __init__(self, held: Any, size: int = 8) -> None:
        super().__init__(size)
        self.tables = {"a": [1, held]}

    def __coprep_identity__(self) -> int:
        return self.size


class Loud(Numbers):
    """A dataset whose samples print more than a pipe holds."""

    def __getitem__(self, i: int) -> Any:
        print("out " * 5000)
        print("err " * 5000, file=sys.stderr)
        return super().__getitem__(i)


def raising_init(worker: int) -> None:
    raise Broken(worker, why="not a good number")


def make() -> Numbers:
    """A factory of a dataset, named by an import string."""
    return Numbers(48)


def slow_to_load() -> Numbers:
    """A factory that takes as many seconds as the environment says."""
    time.sleep(float(os.environ["LOADS_S"]))
    return Numbers(24)


def killed_at_load() -> Numbers:
    """A factory that kills the first processes that call it. The environment says how many, and where they note it."""
    log = os.environ["LOADS_LOG"]
    note(log, os.getpid())
    if len(noted(log)) <= int(os.environ["LOADS_KILLED"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return Numbers(24)


def as_they_are(samples: list[Any]) -> list[Any]:
    """A collate_fn that returns the samples as a list."""
    return samples


def same(sample: Any) -> Any:
    """A transform that changes nothing."""
    return sample


class KilledAtLook(Numbers):
    """A dataset whose first ``workers`` inspecting workers kill themselves. The next ``times`` kill their fork
    servers.
    """

    def __init__(self, size: int, times: int, log: str, workers: int = 0) -> None:
        super().__init__(size)
        self.workers = workers
        self.times = times
        self.look_log = log

    def __getitem__(self, i: int) -> Any:
        note(self.look_log, os.getpid())
        looks = len(noted(self.look_log))
        if looks <= self.workers:
            os.kill(os.getpid(), signal.SIGKILL)
        if looks <= self.workers + self.times:
            os.kill(os.getppid(), signal.SIGKILL)
            # The worker ends with its fork server. It must not make the sample before that.
            time.sleep(60)
        return super().__getitem__(i)
