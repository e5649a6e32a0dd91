"""What the checks of several sections are made of."""

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
    """The block raises one of ``kinds``, and somewhere in its traceback, causes included, each of ``texts`` stands."""

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
        # Without the check's own lines, which may have the text as well.
        story = "".join(traceback.format_exception(kind, error, trace and trace.tb_next))
        for text in self.texts:
            assert text in story, f"{text!r} is not in: {story}"
        # The frames hold the iterator in a cycle. Found by the collector, PyTorch's takes 5 s per worker to end.
        traceback.clear_frames(trace)
        self.error = error.with_traceback(None)
        return True


def same(a: Any, b: Any) -> bool:
    """Equal in types, dtypes, shapes and values, all the way down."""
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
    """All samples of an epoch, which are numbers."""
    return [int(x) for batch in loader for x in (batch if hasattr(batch, "__len__") and len(batch) else [batch])]


def script(DataLoader: Any, code: str) -> str:
    """What a program prints that has its datasets in ``__main__``."""
    source = f"from {DataLoader.__module__} import DataLoader\n" + textwrap.dedent(code)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.py"
        path.write_text(source)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Numbers:
    """0, 1, 2, ... from ``offset`` on. No subclass of anything."""

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
    """(picture, label) pairs; the picture is filled with the label."""

    def __init__(self, count: int, size: int = 4) -> None:
        self.count = count
        self.size = size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, self.size, self.size), float(index)), index


class Process(Numbers):
    """The process each sample was made in."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.005)
        return os.getpid()


class Slow(Numbers):
    """The first sample takes long."""

    def __getitem__(self, index: int) -> int:
        if index == 0:
            time.sleep(0.3)
        return index


class Failing(Numbers):
    """``fail`` raises at sample 3."""

    def __init__(self, count: int, fail: Callable[[], Any]) -> None:
        super().__init__(count)
        self.fail = fail

    def __getitem__(self, index: int) -> int:
        if index == 3:
            self.fail()
        return index


class Own(Exception):  # noqa: N818 - the name of the class is not the point
    """Of the user's own."""


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
