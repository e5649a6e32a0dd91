"""Measures the identity of a dataset that calls a function of each file of a large package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.drop_in.case import Case, Once, Setting, column
from tests.benchmarks.drop_in.figures import Figure
from tests.benchmarks.drop_in.running import job_that_says

NAME = "identity"
FILES = 300
QUICK_FILES = 60
FIRST_S, LATER_S = 0.5, 0.005

MODULE = '''
"""Part {number} of a package that was written by a program."""
from __future__ import annotations
import functools
import math
from typing import Any
import torch
from torch import nn
from drop_in_package import part_{before:03d}
from drop_in_package.part_{before:03d} import Block as Before

WIDTH = {number}
NAMES = ("first", "second", "part {number}")


class Block(nn.Module):
    """Some layers."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.width = width
        self.names = list(NAMES)

    def forward(self, values: Any) -> Any:
        if isinstance(values, torch.Tensor):
            return torch.relu(values) + math.sqrt(self.width) + scaled(self.width)
        return [self.forward(value) for value in values]


@functools.lru_cache(maxsize=8)
def scaled(width: int) -> float:
    return math.log1p(width + part_{before:03d}.WIDTH) if width < 0 else part_{before:03d}.scaled(width - 1)


def steps(count: int) -> list[float]:
    """A few numbers."""
    found = []
    for number in range(count):
        if number % 2:
            found.append(scaled(number))
        else:
            found.append(scaled(number + 1) * 0.5)
    return found
'''
DATASET = '''
"""A dataset that uses the package."""
import torch
from drop_in_package.part_{last:03d} import Block


class Packaged(torch.utils.data.Dataset):
    def __init__(self):
        self.block = Block()

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.block(torch.full((4,), float(index)))
'''
INIT = '''
"""A package of {files} files."""
import importlib

parts = [importlib.import_module(f"drop_in_package.part_{{number:03d}}") for number in range({parts})]
'''


def write_package(folder: Path, files: int) -> None:
    """Writes `drop_in_package` with this many files. Each file imports the one before it."""
    package = folder / "drop_in_package"
    package.mkdir()
    parts = files - 2
    for number in range(parts):
        text = MODULE.format(number=number, before=max(number - 1, 0))
        if number == 0:
            # The first file has no predecessor to import.
            text = text.replace("from drop_in_package.part_000 import Block as Before\n", "")
            text = text.replace("from drop_in_package import part_000\n", "")
            text = text.replace("(width + part_000.WIDTH) if width < 0 else part_000.scaled(width - 1)", "(width + 1)")
        (package / f"part_{number:03d}.py").write_text(text)
    (package / "dataset.py").write_text(DATASET.format(last=parts - 1))
    (package / "__init__.py").write_text(INIT.format(files=files, parts=parts))


def prepare(setting: Setting) -> None:
    write_package(setting.folder, QUICK_FILES if setting.quick else FILES)


def once(setting: Setting) -> Once:
    with job_that_says("tests.benchmarks.drop_in.job_identity", [], setting.folder) as (_, message):
        del message["event"]
        return Once(message, [])


def figures(runs: Sequence[Once]) -> list[Figure]:
    return [
        Figure(NAME, "making a loader and its identity, the first time", "s", column(runs, "first"), FIRST_S),
        Figure(NAME, "the same, after that", "s", column(runs, "later"), LATER_S),
        Figure(NAME, "the first time, processor seconds", "s", column(runs, "first_cpu")),
        Figure(NAME, "after that, processor seconds", "s", column(runs, "later_cpu")),
    ]


CASE = Case(NAME, "a dataset that uses a package of 300 source files from its source tree", prepare, once, figures)
