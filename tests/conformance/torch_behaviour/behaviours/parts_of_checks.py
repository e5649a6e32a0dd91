"""Helpers and datasets that the checks of several sections share."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data


class raises:  # noqa: N801 - used as a verb
    """Asserts that the block raises one of ``kinds``, and that each of ``texts`` is in the traceback or its causes."""

    error: BaseException

    def __init__(self, *kinds: type[BaseException], texts: tuple[str, ...] = ()) -> None:
        self.kinds = kinds
        self.texts = texts

    def __enter__(self) -> raises:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        names = " or ".join(k.__name__ for k in self.kinds)
        assert error is not None, f"nothing was raised: {names} should be"
        if not isinstance(error, self.kinds):
            return False
        # The check's own lines are left out, since they may contain the text as well.
        story = "".join(traceback.format_exception(kind, error, trace and trace.tb_next))
        for text in self.texts:
            assert text in story, f"{text!r} is not in: {story}"
        # The frames hold the iterator in a cycle. If only the garbage collector finds it, PyTorch's iterator takes 5 s
        # per worker to end.
        traceback.clear_frames(trace)
        self.error = error.with_traceback(None)
        return True


def same(a: Any, b: Any) -> bool:
    """Returns whether both are equal in types, dtypes, shapes and values, in all nested containers."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def ints(loader: Any) -> list[int]:
    """Returns all samples of an epoch as integers."""
    return [int(x) for batch in loader for x in (batch if hasattr(batch, "__len__") and len(batch) else [batch])]


def script(DataLoader: Any, code: str) -> str:
    """Returns the output of a program that defines its datasets in ``__main__``."""
    source = f"from {DataLoader.__module__} import DataLoader\n" + textwrap.dedent(code)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.py"
        path.write_text(source)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Numbers:
    """The numbers 0, 1, 2, ... shifted by ``offset``. The class has no base class, as map-style datasets may."""

    def __init__(self, count: int, offset: int = 0) -> None:
        self.count = count
        self.offset = offset

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return int(index) + self.offset


class Pictures(torch_data.Dataset[tuple[torch.Tensor, int]]):
    """Pairs of a picture and a label; the picture is filled with the label."""

    def __init__(self, count: int, size: int = 4) -> None:
        self.count = count
        self.size = size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, self.size, self.size), float(index)), index


class Process(Numbers):
    """A dataset whose samples are the id of the process that made them."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.005)
        return os.getpid()


class Slow(Numbers):
    """A dataset whose first sample takes long."""

    def __getitem__(self, index: int) -> int:
        if index == 0:
            time.sleep(0.3)
        return index


class Failing(Numbers):
    """A dataset that calls ``fail``, which raises, at sample 3."""

    def __init__(self, count: int, fail: Callable[[], Any]) -> None:
        super().__init__(count)
        self.fail = fail

    def __getitem__(self, index: int) -> int:
        if index == 3:
            self.fail()
        return index


class Own(Exception):  # noqa: N818 - the name of the class is not the point
    """An exception class of the user's own."""


class Point(NamedTuple):
    x: Any
    y: Any


class Backwards(torch_data.Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count - 1, -1, -1))

    def __len__(self) -> int:
        return self.count


def identity(samples: Any) -> Any:
    return samples
