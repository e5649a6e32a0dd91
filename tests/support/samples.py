"""Samples of many kinds, and a comparison of two samples."""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")


class Point(NamedTuple):
    x: Any
    y: Any


class Picture(torch.Tensor):
    """A tensor of a class of one's own, as libraries have them for images."""


def picture(seed: int, *shape: int, **attributes: Any) -> Picture:
    made: Picture = rand(seed, *shape).as_subclass(Picture)
    made.__dict__.update(attributes)
    return made


class Graph:
    """A type that PyTorch's collation has no rule for."""

    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes


@dataclasses.dataclass(frozen=True)
class Item:
    image: Any
    label: int
    name: str

    def __post_init__(self) -> None:
        assert isinstance(self.label, int), "made of a sample only"


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a", "b")
    a: Any
    b: Any


class Frozen(Mapping[str, Any]):
    def __init__(self, items: Mapping[str, Any]) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Settled(MutableMapping[str, Any]):
    """A mapping with a property of its own, which keeps its items in an attribute."""

    def __init__(self, origin: str, **items: Any) -> None:
        self.origin = origin
        self.items_ = items

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Unmade(Frozen):
    """A mapping that cannot be made from a dict."""

    def __init__(self, origin: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)


class Tagged(list):  # type: ignore[type-arg]
    tag = "none"


class Twins(tuple):  # type: ignore[type-arg]
    pass


class Fixed(Sequence[Any]):
    def __init__(self, items: Sequence[Any]) -> None:
        self.items_ = list(items)

    def __getitem__(self, i: Any) -> Any:
        return self.items_[i]

    def __len__(self) -> int:
        return len(self.items_)


class Colour(enum.IntEnum):
    RED = 3


def tagged(i: int) -> Tagged:
    sample = Tagged([i, torch.ones(2) * i])
    sample.tag = "own"
    return sample


def image(i: int, mode: str = "RGB", size: tuple[int, int] = (7, 5)) -> Image.Image:
    pixels = np.random.default_rng(i).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def rand(i: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(i))


def same(a: Any, b: Any) -> bool:
    """Returns whether both are equal in structure, types, dtypes, shapes and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        equal = a.dtype == b.dtype and a.shape == b.shape
        return equal and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, (str, bytes, int, float, complex, type, np.generic)):
        # A NaN counts as equal to itself.
        return bool(a == b or (a != a and b != b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a) and own(a) == own(b)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return len(a) == len(b) and all(map(same, a, b)) and own(a) == own(b)


def own(value: Any) -> Any:
    """Returns the properties that a container has besides its items."""
    return [getattr(value, name, None) for name in ("default_factory", "origin", "tag", "maxlen")]


def python(code: str, given: bytes = b"", *paths: Path) -> bytes:
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], input=given, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
