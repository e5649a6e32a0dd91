"""Tests fingerprints: equal across processes despite random differences, and different where samples would differ."""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coprep._fingerprint import PARTS, Counted, fingerprint
from coprep._hashing import Hasher
from coprep._modules import digest_of
from coprep._patches import Patches
from coprep._private import Private

Parts = dict[str, str]

END = """
import json, os
from coprep._hashing import Hasher
from coprep._fingerprint import Counted
counted = Counted(named)
parts = [(name, digest.hex()) for name, digest in counted.parts([])]
print(json.dumps(parts + [("working directory", os.getcwd())] * counted.uses_directory))
"""


def printed(folder: Path, script: str, seed: int = 0, cwd: Path | None = None, path: Path | None = None) -> Parts:
    """Returns the parts that a script prints when it sets ``named``, with the given hash seed."""
    file = folder / f"script{seed}.py"
    file.write_text(textwrap.dedent(script) + END)
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(seed),
        "PYTHONPATH": str(path or ""),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, str(file)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd or folder, timeout=120)
    assert run.returncode == 0, run.stderr
    parts = json.loads(run.stdout)
    assert len(dict(parts)) == len(parts), "names are unique"
    return dict(parts)


def same_but(a: Iterable[tuple[str, Any]], b: Iterable[tuple[str, Any]]) -> list[str]:
    """Returns the names of the parts in which two fingerprints differ, including parts that only one of them has."""
    left, right = dict(a), dict(b)
    return [name for name in {**left, **right} if left.get(name) != right.get(name)]


def differing(a: Parts, b: Parts) -> list[str]:
    return same_but(a.items(), b.items())


OTHER = ("code ", "package ", "global ", "globals ", "switch ", "replaced ")
"""Beginnings of the names of parts that belong to no object of its own."""


def own(parts: Iterable[tuple[str, Any]]) -> list[str]:
    """Returns the names of the parts that belong to the objects themselves."""
    return [name for name, _ in parts if not name.startswith(OTHER)]


def here(value: Any) -> bytes:
    """Returns the digest of a value as a whole."""
    return fingerprint({"x": {"whole": value}})[0][1]


MAIN_CLASS = """
import math
class Base:
    def __init__(self, root):
        self.root = root
class Data(Base):
    scale = 2
    def __init__(self, root):
        super().__init__(root)
        self.transform = lambda x: x * SCALE + 1
    def __getitem__(self, i):
        return even(i), self.transform(math.sqrt(i)), i in {"a", "b", "c", "d", "e"}
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)
SCALE = 3
named = {"dataset": Data("/data")}
"""

PORTABLE = {
    "a class of the main script": MAIN_CLASS,
    "lambdas": "named = {'t': [lambda x: x + 1, lambda x, y=2: [x for _ in range(y)]]}",
    "sets": """
        words = [f"word{i}" for i in range(50)]
        class Data:
            kept = {"x", ("y", 1), None, frozenset(words)}
        d = Data()
        d.words = set(words)
        d.pairs = {(w, 1) for w in words}
        d.mixed = {*words, *range(9), frozenset(words)}
        d.code = {len, min, max}
        named = {"dataset": d, "nested": {"deep": {"deeper": {"set": set(words)}}}}
    """,
    "sets of functions that refer to the set": """
        def a(): return table, b
        def b(): return table, a, "b"
        def c(): return table, a, b, "c"
        table = {a, b, c, "x", "y"}
        pairs = {("a", a), ("b", b), ("c", c), ("d", lambda: 1), ("e", lambda: 2), ("f", lambda: pairs)}
        named = {"all": table, "one": b, "pairs": pairs, "then": [[[[pairs, a, b]]]]}
    """,
    "set constants in code": """
        def f(x):
            return x in {"red", "green", "blue", "white"} or [y in {"one", "two", "three"} for y in x]
        named = {"f": f, "g": lambda s: s in {"red", "green", "blue"}}
    """,
    "many possible paths in a set": """
        words = {f"word{i}" for i in range(3000)}
        named = {"words": words, "pairs": {(w, 1) for w in words}}
    """,
    "arrays": """
        import numpy as np
        a = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        objects = np.array(["x", {"k"}, None], dtype=object)
        named = {"arrays": [a, a[::2], a.T, np.datetime64("2020-01-01") + np.arange(3), np.array(1), objects, a[:0]]}
    """,
    "dataclasses": """
        from dataclasses import dataclass, field
        @dataclass
        class Inner:
            size: int = 3
            tags: set = field(default_factory=lambda: {"a", "b", "c"})
        @dataclass(frozen=True)
        class Outer:
            inner: Inner
            name: str = "x"
        named = {"config": Outer(Inner()), "nested": [[[[[Outer(Inner(5))]]]]]}
    """,
    "partial functions and bound methods": """
        import functools, operator
        class Crop:
            def __call__(self, x, size): return x[:size]
            def apply(self, x): return self(x, 3)
        def resize(x, size): return x[:size]
        t = [functools.partial(resize, size=3), functools.partial(max, 1), Crop().apply, operator.itemgetter(1)]
        named = {"t": t, "c": functools.lru_cache(resize)}
    """,
    "enumerations": """
        import enum, re
        class Mode(enum.Enum):
            TRAIN = "train"
            TEST = "test"
            @property
            def short(self): return self.value[0]
        class Flags(enum.IntFlag):
            A = 1
            B = 2
        named = {"mode": Mode.TRAIN, "flags": Flags.A | Flags.B, "std": re.I, "used": lambda: Mode.TEST, "class": Mode}
    """,
    "generics, abstract classes, slots, named tuples": """
        import abc, collections, functools, typing
        T = typing.TypeVar("T")
        class Base(abc.ABC, typing.Generic[T]):
            __slots__ = ("a", "b")
            @abc.abstractmethod
            def get(self) -> T: ...
        class Data(Base[int]):
            @functools.cached_property
            def size(self): return T
            @staticmethod
            def s(): return 1
            @classmethod
            def c(cls): return cls
            @property
            def p(self): return __class__
            def get(self): return self.p
        Point = collections.namedtuple("Point", "x y")
        class Typed(typing.NamedTuple):
            x: int = 1
        d = Data()
        d.a = Point(1, 2)
        named = {"dataset": d, "p": Typed(), "type": T}
    """,
    "cycles": """
        class Node: pass
        a, b = Node(), Node()
        a.other, b.other, a.me = b, [b, a, "x" * 3], lambda: a
        deep = []
        for _ in range(30): deep = [deep]
        deep.append(deep)
        bound = Node()
        Node.method = lambda self: self
        bound.m = bound.method
        named = {"node": a, "list": deep, "whole": {"b": b}, "bound": bound}
    """,
    "many functions": """
        calls = " + ".join(f"f{i}()" for i in range(400))
        for i in range(400): exec(f"def f{i}(): return f{i + 1 if i < 399 else 0}(), {i}")
        exec(f"def all_of_them(): return {calls}")
        named = {"f": f0, "all": all_of_them}
    """,
    "dynamic modules": """
        import types
        m = types.ModuleType("made")
        exec("def f(x): return g(x)\\ndef g(x): return f(x), {'a', 'b', 'c'}", m.__dict__)
        named = {"f": m.f, "m": m, "use": lambda: m}
    """,
}


@pytest.mark.parametrize("script", PORTABLE.values(), ids=PORTABLE)
def test_processes_agree(tmp_path: Path, script: str) -> None:
    first, other = tmp_path / "first", tmp_path / "other" / "folder"
    first.mkdir()
    other.mkdir(parents=True)
    expected = printed(first, script, 1)
    for seed in (2, 3):
        assert differing(expected, printed(other, "\n\nimport decimal\n" + textwrap.dedent(script), seed)) == []


TORCH = """
import torch
class Data(torch.utils.data.Dataset[int]):
    def __init__(self):
        super().__init__()
        self.data = torch.arange(12).reshape(3, 4)
        self.half = torch.ones(3, dtype=torch.bfloat16)
        self.turned = self.data.t()
        self.sparse = torch.eye(3).to_sparse()
        self.empty = torch.empty(0, 3)
        self.generator = torch.Generator().manual_seed(3)
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.layer.weight, 2.0)
        self.storage = self.half.untyped_storage()
    def __getitem__(self, i):
        held = self.data, self.half, self.turned, self.sparse, self.empty, self.generator, self.layer, self.storage
        return held
named = {"dataset": Data(), "subset": torch.utils.data.Subset(Data(), [1, 2])}
"""


def test_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    expected = printed(tmp_path, TORCH, 1)
    assert differing(expected, printed(tmp_path, TORCH, 2)) == []
    for old, new, part in [
        ("arange(12)", "arange(1, 13)", "data"),
        ("bfloat16", "float16", "half"),
        ("weight, 2.0", "weight, 2.5", "layer"),
        ("torch.eye(3)", "torch.ones(3, 3)", "sparse"),
        ("empty(0, 3)", "empty(0, 4)", "empty"),
    ]:
        changed = printed(tmp_path, TORCH.replace(old, new), 1)
        names = [name for name in differing(expected, changed) if name.startswith("dataset.")]
        assert names
        # The dataset's class includes the main script's code. Apart from that, only the attribute differs.
        assert {name.split(".")[1] for name in names} <= {part, "turned" if part == "data" else part, "storage"}
        assert any(name.startswith(f"dataset.{part}") for name in names)


def test_nested_tensors() -> None:
    torch = pytest.importorskip("torch")

    def nested(layout: Any, *lengths: int, start: float = 0) -> Any:
        return torch.nested.nested_tensor([torch.arange(n) + start for n in lengths], layout=layout)

    digests = set()
    for layout in (torch.strided, torch.jagged):
        assert here([nested(layout, 5, 3)]) == here([nested(layout, 5, 3)])
        digests |= {here([t]) for t in (nested(layout, 5, 3), nested(layout, 3, 5), nested(layout, 5, 3, start=0.5))}
    assert len(digests) == 6


def test_torchvision(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    script = """
    import torch
    from torchvision.transforms import v2
    named = {"transform": v2.Compose([v2.RandomResizedCrop(224), v2.ToDtype(torch.float32, scale=True)])}
    """
    parts = printed(tmp_path, script, 1)
    assert differing(parts, printed(tmp_path, script, 2)) == []
    assert {"package torch", "package torchvision"} <= set(parts)
    assert differing(parts, printed(tmp_path, script.replace("224", "225"), 1)) == [
        f"transform.transforms[0].size[{i}]" for i in (0, 1)
    ]


CHANGES = {
    "default": ("def f(x, size=3): return x[:size]\nnamed = {'f': f}", "size=3", "size=4"),
    "keyword default": ("def f(x, *, size=3): return x[:size]\nnamed = {'f': f}", "size=3", "size=4"),
    "constant": ("named = {'f': lambda x: x * 3}", "x * 3", "x * 4"),
    "constant's type": ("named = {'f': lambda x: x * 1}", "x * 1", "x * 1.0"),
    "nested constant": ("named = {'f': lambda x: [(lambda y: y * 3)(z) for z in x]}", "y * 3", "y * 4"),
    "set constant": ("named = {'f': lambda x: x in {'a', 'b'}}", "'b'", "'c'"),
    "operator": ("named = {'f': lambda x: x * 3}", "x * 3", "x + 3"),
    "method called": ("named = {'f': lambda x: x.mean()}", "mean", "sum"),
    "global": ("N = 3\ndef g(x): return x * N\ndef f(x): return g(x)\nnamed = {'f': f}", "N = 3", "N = 4"),
    "function called": ("def g(x): return x * 3\ndef f(x): return g(x)\nnamed = {'f': f}", "x * 3", "x - 3"),
    "recursive": ("def g(x): return f(x)\ndef f(x): return g(x) or 3\nnamed = {'f': f}", "or 3", "or 4"),
    "closure": ("def make(n):\n  return lambda x: x * n\nnamed = {'f': make(3)}", "make(3)", "make(4)"),
    "function attribute": ("def f(): return f.size\nf.size = 3\nnamed = {'f': f}", "f.size = 3", "f.size = 4"),
    "method": ("class A:\n  def f(self): return 3\nnamed = {'a': A()}", "return 3", "return 4"),
    "base": ("class B:\n  def f(self): return 3\nclass A(B): pass\nnamed = {'a': A()}", "return 3", "return 4"),
    "class attribute": ("class A:\n  n = 3\nnamed = {'a': [[[[A()]]]]}", "n = 3", "n = 4"),
    "property": ("class A:\n  @property\n  def n(self): return 3\nnamed = {'a': A()}", "return 3", "return 4"),
    "enum": ("import enum\nclass E(enum.Enum):\n  A = 3\nnamed = {'e': E.A}", "A = 3", "A = 4"),
    "enum elsewhere": ("import enum\nclass E(enum.Enum):\n  A = 1\n  B = 3\nnamed = {'e': E.A}", "B = 3", "B = 4"),
    "cached": ("import functools\n@functools.cache\ndef f(): return 3\nnamed = {'f': f}", "return 3", "return 4"),
    "partial": ("import functools\nnamed = {'f': functools.partial(max, 3)}", "max, 3", "max, 4"),
    "in a set": ("named = {'f': {lambda: 3, 'x'}}", "lambda: 3", "lambda: 4"),
    "dynamic module": (
        "import types\nm = types.ModuleType('m')\nexec('def f(): return 3', m.__dict__)\nnamed = {'f': lambda: m.f()}",
        "return 3",
        "return 4",
    ),
}


@pytest.mark.parametrize(("script", "old", "new"), CHANGES.values(), ids=CHANGES)
def test_changed_code(tmp_path: Path, script: str, old: str, new: str) -> None:
    assert script.count(old) == 1
    before, after = printed(tmp_path, script), printed(tmp_path, script.replace(old, new))
    assert differing(before, printed(tmp_path, "# moved\n\n" + script)) == []
    assert differing(before, after) != []


def test_global_data_is_named(tmp_path: Path) -> None:
    script = (
        "class A:\n  def get(self): return self.other * args['lr']\nargs = {'lr': 1}\nother = 5\nnamed = {'a': A()}"
    )
    before = printed(tmp_path, script)
    assert differing(before, printed(tmp_path, script.replace("'lr': 1", "'lr': 2"))) == ["args['lr']"]
    # An attribute with the name of a global is not that global.
    assert differing(before, printed(tmp_path, script.replace("other = 5", "other = 6"))) == []


# --- data in this process -------------------------------------------------------------------------------------


def test_sharing_does_not_matter() -> None:
    text = "some text"
    equal = "".join(["some ", "text"])
    assert text is not equal
    numbers, more = [1, 2], [1, 2]
    assert here([text, text, numbers, numbers]) == here([text, equal, numbers, more])
    # The nesting is deep, and leads back to itself.
    cyclic: list[Any] = [text, text]
    for _ in range(60):
        cyclic = [cyclic]
    cyclic[0][0].append(cyclic)
    other: list[Any] = [text, equal]
    for _ in range(60):
        other = [other]
    other[0][0].append(other)
    assert here(cyclic) == here(other) != here(text)


class Made:
    """An object whose state is a function that is made anew each time, and that leads to the next such object."""

    def __init__(self, last: int, left: int = 30) -> None:
        self.last = last
        self.left = left

    def __getstate__(self) -> dict[str, Any]:
        following = Made(self.last, self.left - 1) if self.left else self.last
        return {"f": lambda: following}


def test_objects_made_while_hashing() -> None:
    assert here(Made(1)) == here(Made(1)) != here(Made(2))


def test_what_is_hashed_together_is_delimited() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")


def test_repeated_objects_are_not_written_out_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coprep._hashing.STREAM", 1 << 20)
    value: list[Any] = ["x"]
    for _ in range(60):
        value = [value, value]
    # Written out, this has 2**60 strings, with which the test would not end before the runner ends it.
    assert here(value) != here([])


def test_arrays() -> None:
    array = np.arange(3_000_000, dtype=np.int32).reshape(1000, 3000)
    changed = array.copy()
    changed[-1, -1] += 1
    assert here(array) == here(array.copy())
    assert here(array[:, ::2]) == here(array[:, ::2].copy())
    assert here(array.T) == here(array.T.copy())
    distinct = [array, changed, array.T, array.astype(np.uint32), array.reshape(3000, 1000), array[:, ::2]]
    distinct += [changed[:, 1::2], changed.T, array[:0], array[:, :0]]
    assert len({here(a) for a in distinct}) == len(distinct)
    changed_object = np.array([[1], "x"], dtype=object)
    assert here(np.array([[2], "x"], dtype=object)) != here(changed_object)
    assert here([array, changed]) != here([changed, array])
    assert here([b"ab", b"c"]) != here([b"a", b"bc"])
    assert here(bytearray(b"x" * 100)) != here(bytearray(b"y" * 100))


def test_undefined_bytes_of_records() -> None:
    layout = np.dtype([("a", "u1"), ("b", "i8")], align=True)
    # copy() need not copy the bytes between fields, so the arrays are made from bytes.
    first, second = np.frombuffer(b"\0" * 32, layout), np.frombuffer(bytearray(b"\xff" * 32), layout)
    second["a"], second["b"] = 0, 0
    assert first.tobytes() != second.tobytes()
    assert here(first) == here(second)
    second["b"][1] = 1
    assert here(first) != here(second)


def test_mapped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mapped(name: str = "a", **options: Any) -> Any:
        return np.memmap(tmp_path / name, dtype=np.uint8, mode=options.pop("mode", "r"), **options)

    for name in "ab":
        np.arange(100, dtype=np.uint8).tofile(tmp_path / name)
        os.utime(tmp_path / name, (1, 1))
    expected = here(mapped())
    assert here(mapped()) == expected
    whole = mapped()
    distinct = [
        whole,
        mapped("b"),
        whole[10:20],
        whole[20:30],
        whole[10:30:2],
        np.asarray(whole)[:10],
        mapped(offset=8),
    ]
    private = mapped(mode="c")
    unwritten = here(private)
    private[0] = 99
    assert len({here(a) for a in distinct} | {unwritten, here(private)}) == len(distinct) + 2
    with monkeypatch.context() as patched:
        patched.setattr("coprep._hashing.array_digest", None)  # The content must not be read.
        assert here(mapped()) == expected
    os.utime(tmp_path / "a", (2, 2))
    assert here(mapped()) != expected


@dataclass
class Config:
    size: int
    child: Any = None


def test_parts() -> None:
    value = Config(1, Config(2, Config(3, Config(4))))
    found = fingerprint({"c": value, "l": [1, (2,)], "d": {"x": 1}})
    assert f"code {__name__}" in dict(found)
    names = [name for name in own(found) if not name.endswith(" (code)")]
    nested = ["c", "c.child", "c.child.child", "c.child.child.child", "c.child.child.size", "c.child.size", "c.size"]
    assert names == [*nested, "Config.child", "l", "l[0]", "l[1]", "l[1][0]", "d"]
    deeper = Config(1, Config(2, Config(3, Config(5))))
    assert same_but(fingerprint({"c": value}), fingerprint({"c": deeper})) == ["c.child.child.child"]
    assert same_but(fingerprint({"a": 1, "b": 1}), fingerprint({"b": 2, "c": 1})) == ["a", "b", "c"]


def test_a_long_container_does_not_hide_which_option_differs() -> None:
    def parts(size: int) -> dict[str, bytes]:
        return dict(fingerprint({"d": {str(key): Config(key) for key in range(2 * PARTS)}, "options": Config(size)}))

    assert len(parts(1)) <= PARTS
    assert [name for name in parts(1) if parts(1)[name] != parts(2)[name]] == ["options.size"]


def test_number_of_parts_is_bounded() -> None:
    before, after = (
        Config(1, [[[[0]] * 16] * 16] * 16),
        Config(1, [[[[0]] * 16] * 16] * 15 + [[[[0]] * 15 + [[1]]] * 16]),
    )
    names = own(fingerprint({"a": before, "b": before}))
    assert 20 < len(names) <= PARTS
    assert same_but(fingerprint({"a": before}), fingerprint({"a": after})) != []
    assert own(fingerprint({"x": [0] * 17})) == ["x"]
    assert here([0] * 17) != here([0] * 16)


def test_names_are_unique() -> None:
    names = [name for name, _ in fingerprint({"a": Config(1), "a.size": 2})]
    assert len(set(names)) == len(names)


class Stateful:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size = 3

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size}


class SetOfMine(set[str]):
    pass


def test_own_state() -> None:
    assert "x.size" in dict(fingerprint({"x": Stateful()}))
    assert here(SetOfMine("ab")) != here({"a", "b"})
    assert here(SetOfMine("ab")) != here(SetOfMine("ac"))


class Holder:
    def __init__(self, handle: Any) -> None:
        self._handle = handle


# --- what cannot be compared ----------------------------------------------------------------------------------


def private(value: Any) -> dict[str, str]:
    """Returns where a value holds what cannot be compared, with the reasons."""
    found: list[Private] = []
    fingerprint({"x": value}, found)
    return {one.path: one.reason for one in found}


def incomparable(tmp_path: Path) -> dict[str, Any]:
    """Returns objects of which no other process can have an equal one."""
    manager = multiprocessing.Manager()
    reader, writer = os.pipe()
    pipe = os.fdopen(reader, "rb")
    pipe.writer = writer  # type: ignore[attr-defined]
    return {
        "generator": (x for x in "ab"),
        "socket": socket.socket(),
        "database": sqlite3.connect(tmp_path / "db"),
        "pipe": pipe,
        "value": multiprocessing.Value("i", 3),
        "raw array": multiprocessing.RawArray("i", 3),
        "queue": multiprocessing.Queue(),
        "event": multiprocessing.Event(),
        "connection": multiprocessing.Pipe()[0],
        "proxy": manager.dict(),
        "thread": threading.Thread(),
        "memory": shared_memory.SharedMemory(create=True, size=100),
        "anonymous map": mmap.mmap(-1, 100),
        "frame": sys._getframe(),
    }


def test_what_cannot_be_compared_equals_itself_alone(tmp_path: Path) -> None:
    first, second = incomparable(tmp_path), incomparable(tmp_path)
    try:
        for name, value in first.items():
            assert here(value) == here(value), name
            assert here(value) != here(second[name]), name
            for wrapped in (value, [1, {"a": value}], Config(1, Config(2, value)), lambda _, value=value: value):
                found = private(wrapped)
                assert len(found) >= 1 and all(reason and "\n" not in reason for reason in found.values()), name
    finally:
        for values in (first, second):
            values["memory"].close()
            values["memory"].unlink()


def test_a_fork_has_the_same_digests() -> None:
    value = {"generator": (x for x in "ab")}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, here(value))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == here(value)
    os.close(reader)
    os.close(writer)


def test_another_process_has_other_digests(tmp_path: Path) -> None:
    script = "import socket\nnamed = {'x': [1, socket.socket()], 'y': 2}"
    assert differing(printed(tmp_path, script), printed(tmp_path, script)) == ["x[1]"]


def test_the_place_of_what_cannot_be_compared_is_named() -> None:
    one: Any = (x for x in "ab")
    deep = Config(1, Config(2, Config(3, Config(4, [{"a": (0, one)}]))))
    assert private(deep) == {"x.child.child.child.child[0]['a'][1]": "cannot pickle 'generator' object"}
    assert list(private([*range(50), one])) == ["x[50]"]
    assert list(private(one)) == ["x"]
    cyclic = Holder([one])
    cyclic.up = [cyclic]  # type: ignore[attr-defined]
    assert list(private([[[[cyclic]]]])) == ["x[0][0][0][0]._handle[0]"]
    scope: dict[str, Any] = {"__name__": "__main__", "lines": one}
    exec("def f(): return g()\ndef g(): return lines", scope)
    assert list(private(scope["f"])) == ["lines"]


def test_functions_that_hold_each_other_are_hashed_once() -> None:
    def digest(number: int) -> bytes:
        def function(number: int, all_of_them: list[Any]) -> Callable[[], Any]:
            return lambda: (number, all_of_them)

        functions: list[Any] = []
        functions += [function(each, functions) for each in (*range(40), number)]
        found: list[Private] = []
        result = Hasher(found).named("x", functions)
        assert found == []
        return result

    assert digest(1) == digest(1) != digest(2)


def test_sets_that_hold_each_other_in_many_ways_cannot_be_compared() -> None:
    class Node:
        def __init__(self) -> None:
            self.others: set[Node] = set()

    nodes = [Node() for _ in range(30)]
    for node in nodes:
        node.others.update(nodes)
    assert private(nodes) == {"x": "RecursionError: sets and functions in it hold each other in too many ways"}


def test_an_object_that_fails_to_say_what_it_is_cannot_be_compared() -> None:
    class Broken:
        def __reduce__(self) -> Any:
            raise ValueError("not now")

    class Deep:
        def __init__(self, below: Any) -> None:
            self.below = below

    assert private([Broken()]) == {"x[0]": "ValueError: not now"}
    chain: Any = None
    for _ in range(100_000):
        chain = Deep(chain)
    assert ["RecursionError" in reason for reason in private([chain]).values()] == [True]
    assert here(chain) == here(chain)
    while chain is not None:  # Freed at once, so long a chain is too deep as well.
        chain = chain.below


def test_open_files_count_by_name_mode_and_position(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("text")
    with contextlib.ExitStack() as stack:

        def opened(name: str = "a", mode: str = "r") -> Any:
            return stack.enter_context(open(tmp_path / name, mode))

        digests = {here(opened()), here(opened("b")), here(opened(mode="rb")), here(opened(mode="r+"))}
        moved = opened()
        moved.seek(2)
        closed = opened()
        closed.close()
        assert len(digests | {here(moved), here(closed)}) == 6
        assert here(opened()) == here(opened()) and here(opened(mode="rb")) in digests
        assert here(sys.stdout) != here(sys.stderr)
    assert private([opened(), sys.stdout, sys.stderr, sys.__stdin__]) == {}


def test_a_lock_between_processes_counts_as_any_lock() -> None:
    assert here(multiprocessing.Lock()) == here(threading.Lock()) == here(multiprocessing.RLock())


def test_memory_that_processes_share(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    memory = mmap.mmap(-1, 4096)
    arrays = [np.frombuffer(memory, np.uint8), np.frombuffer(memory, np.uint8)[10:20].reshape(2, 5)]
    tensors = [torch.ones(3).share_memory_(), torch.from_numpy(arrays[0]), torch.ones(9).share_memory_()[2:4]]
    for shared in (memory, *arrays, *tensors, torch.nn.Linear(2, 2).share_memory()):
        assert private(shared), shared
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    with open(tmp_path / "file", "r+b") as file:
        maps = [mmap.mmap(file.fileno(), 0, access=access) for access in (mmap.ACCESS_READ, mmap.ACCESS_COPY)]
        again = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    torch.save(torch.ones(5000), tmp_path / "tensor")
    loaded = torch.load(tmp_path / "tensor", mmap=True)
    own = [*maps, np.frombuffer(maps[0], np.uint8), np.arange(9)[2:5], np.frombuffer(b"ab", np.uint8), loaded]
    own += [torch.ones(3), torch.from_numpy(np.ones(3)), torch.ones(2).numpy()]
    for value in own:
        assert private(value) == {}, value
    before = here(maps[0])
    assert before == here(again) and here(maps[1]) != before
    os.utime(tmp_path / "file", (2, 2))
    assert here(maps[0]) != before
    copied = here(maps[1])
    maps[1][0] = 1
    assert here(maps[1]) != copied


def calls_for(samples: int) -> int:
    """Returns the number of function calls that the fingerprint of a list of samples takes."""
    listed = [(f"/data/train/{i // 1000:05}/{i:08}.jpeg", i // 1000) for i in range(samples)]
    calls = Counter[str]()
    sys.setprofile(lambda _frame, event, _arg: calls.update((event,)))
    try:
        fingerprint({"samples": listed})
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


def test_the_work_for_a_list_grows_no_faster_than_the_list() -> None:
    # The work that does not depend on the list counts twice on the right, and so leaves no room for a quadratic part.
    assert calls_for(20_000) <= 2 * calls_for(10_000)


# --- modules, paths -------------------------------------------------------------------------------------------

MODULES = {
    "mine/__init__.py": "",
    "mine/data.py": "from .tools import helper\nclass Data:\n  def get(self, i): return helper(i)\n",
    "mine/tools.py": "def helper(i):\n  import mine_lazy\n  return i\n",
    "mine/unused.py": "x = 1\n",
    "mine_lazy.py": "import numpy\n",
}
USE = "from mine.data import Data\nnamed = {'dataset': Data()}"


def write_modules(folder: Path) -> Path:
    for name, text in MODULES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_user_modules(tmp_path: Path) -> None:
    modules = write_modules(tmp_path / "modules")
    parts = printed(tmp_path, USE, path=modules)
    code = {f"code {name}" for name in ("mine.data", "mine.tools", "mine_lazy")}
    assert {name for name in parts if not name.startswith("switch ")} == {
        *("dataset", "package numpy", "mine.data.helper (code)"),
        *code,
    }
    (modules / "mine/tools.py").write_text("# moved\n\n" + MODULES["mine/tools.py"])
    assert differing(parts, printed(tmp_path, USE, path=modules)) == []
    (modules / "mine/tools.py").write_text(MODULES["mine/tools.py"].replace("return i", "return i + 1"))
    assert differing(parts, printed(tmp_path, USE, path=modules)) == ["code mine.tools"]


def test_code_of_the_script_is_named(tmp_path: Path) -> None:
    script = "class A:\n  def get(self): return 3\nnamed = {'a': A()}"
    assert differing(printed(tmp_path, script), printed(tmp_path, script.replace("3", "4"))) == ["code __main__"]


def test_scripts_that_differ_agree_on_the_same_dataset(tmp_path: Path) -> None:
    modules = write_modules(tmp_path / "modules")
    other = f"import mine.unused, decimal, csv, logging\nrate = 0.1\n{USE}"
    assert differing(printed(tmp_path, USE, 1, path=modules), printed(tmp_path, other, 2, path=modules)) == []


@pytest.mark.parametrize(
    "value", ["'data'", "Path('data')", "np.array(['x', 'data'])", "{'a': [('data', 1)]}", "lambda: open('data')"]
)
def test_relative_paths(tmp_path: Path, value: str) -> None:
    here, there, nowhere = tmp_path / "here", tmp_path / "there", tmp_path / "nowhere"
    for folder in (here, there, nowhere):
        folder.mkdir()
    (here / "data").touch()
    (there / "data").touch()
    script = f"import numpy as np\nfrom pathlib import Path\nnamed = {{'root': {value}}}"
    first = printed(tmp_path, script, cwd=here)
    assert differing(first, printed(tmp_path, script, cwd=there)) == ["working directory"]
    assert differing(first, printed(tmp_path, script, cwd=here, seed=1)) == []
    assert "working directory" not in printed(tmp_path, script, cwd=nowhere)
    absolute = script.replace("data", str(here / "data"))
    assert differing(printed(tmp_path, absolute, cwd=here), printed(tmp_path, absolute, cwd=there)) == []


def test_the_first_thousand_strings_may_be_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").touch()
    few, many = [f"word{i}" for i in range(900)], [f"word{i}" for i in range(1100)]
    found = []
    for words in few, many:
        counted = Counted({"x": [[*words, "data"]]})
        counted.parts([])
        found.append(counted.uses_directory)
    assert found == [True, False]


def test_what_is_read_of_the_dataset_in_a_worker_counts() -> None:
    data = pytest.importorskip("torch.utils.data")

    def add(sample: int) -> int:
        info = data.get_worker_info()
        return sample + info.dataset.size + info.id

    def of(size: int) -> Any:
        return Counted({"transform": add}, Config(size, size)).parts([])

    assert of(1) == of(1)
    assert same_but(of(1), of(2)) == ["get_worker_info().dataset.size"]


def test_functions_of_packages() -> None:
    assert "package numpy" in dict(fingerprint({"f": functools.partial(np.clip, a_min=0)}))


def test_a_package_counts_the_same_before_it_is_imported(tmp_path: Path) -> None:
    # The name of Pillow's distribution differs from that of the package that it installs.
    lazy = "def f():\n  from PIL import Image\n  return Image\nnamed = {'f': f}"
    parts = printed(tmp_path, lazy, 1)
    assert "package PIL" in parts
    assert differing(parts, printed(tmp_path, f"import PIL.Image\n{lazy}", 2)) == []


def test_a_module_that_is_imported_later_counts_with_the_environment_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.py").write_text("import os\nSIZE = int(os.environ['OWN_SIZE'])\n")
    (tmp_path / "plain.py").write_text("SIZE = 3\n")

    def parts(module: str, size: int) -> Parts:
        monkeypatch.setenv("OWN_SIZE", str(size))
        return printed(tmp_path, f"def f():\n  import {module}\n  return {module}.SIZE\nnamed = {{'f': f}}")

    assert differing(parts("settings", 1), parts("settings", 2)) == ["environment"]
    assert differing(parts("plain", 1), parts("plain", 2)) == []


def installed(tmp_path: Path, origin: str, installer: str = "pip", size: int = 1, code: str = "") -> Parts:
    """Returns the identity of a dataset of an installed package whose setting the program has set."""
    folder = tmp_path / "site-packages"
    metadata = folder / "my_project-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (folder / "my_project.py").write_text(
        "import types\nCFG = types.SimpleNamespace(size=0)\n"
        f"class Data:\n def __getitem__(self, i):\n  return i * CFG.size{code}\n"
    )
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_project\nVersion: 1.0\n")
    (metadata / "RECORD").write_text("my_project.py,,\n")
    (metadata / "INSTALLER").write_text(f"{installer}\n")
    (metadata / "direct_url.json").write_text(origin)
    script = f"import my_project\nmy_project.CFG.size = {size}\nnamed = {{'dataset': my_project.Data()}}"
    return printed(tmp_path, script, path=folder)


def test_a_package_that_was_installed_from_a_folder_is_the_users(tmp_path: Path) -> None:
    folder = '{"url": "file:///home/me/project", "dir_info": {}}'
    assert differing(installed(tmp_path, folder), installed(tmp_path, folder)) == []
    assert differing(installed(tmp_path, folder), installed(tmp_path, folder, size=2)) == ["my_project.CFG.size"]
    changed = differing(installed(tmp_path, folder), installed(tmp_path, folder, code=" + 1"))
    assert "code my_project" in changed
    assert "package my_project" in installed(tmp_path, folder, installer="conda")


def test_a_package_counts_by_the_commit_or_archive_that_it_was_installed_from(tmp_path: Path) -> None:
    def commit(number: int) -> Parts:
        return installed(tmp_path, f'{{"url": "ssh://host", "vcs_info": {{"vcs": "git", "commit_id": "{number}"}}}}')

    assert differing(commit(1), commit(1)) == []
    assert differing(commit(1), commit(2)) == ["package my_project"]


def test_long_lists_are_hashed_by_columns() -> None:
    def digest(value: Any) -> bytes:
        return Hasher([]).named("value", value)

    n = 100
    one: list[Any] = ["a", 1, 1.0, True, None, b"a", 2**80, -1, 0.0, -0.0, "\ud800", ["a"], ()]
    rows: list[Any] = [("a", 1), ("a", 1.0), ("a", 1, 2), ("a",), ("a\0b", 1), ("a", "b\0")]
    lists = [[element] * n for element in one + rows]
    lists += [["a"] * (n + 1), ["a\0a"] + ["a"] * (n - 2), ["a"] * n + [1], [[1] * n] * 2, [[1] * n, [2] * n]]
    digests = [digest(value) for value in [*lists, tuple(lists[0]), {"a": lists[0]}, {"a": lists[1]}]]
    assert len(set(digests)) == len(digests)
    numbers = [str(number) for number in range(n)]
    assert digest([numbers, numbers]) == digest([numbers, list(numbers)])
    assert digest(numbers) != digest(type("List", (list,), {})(numbers))
    cyclic: list[Any] = [1] * n
    cyclic.append(cyclic)
    digest(cyclic)
    hasher = Hasher([])
    hasher.named("value", [("images/1.png", 1)] * n)
    assert hasher.strings == {"images/1.png"}


def test_functions_that_were_compiled() -> None:
    def parts(function: Any) -> tuple[list[Any], list[Private]]:
        class Data:
            def __len__(self) -> int:
                return 2

            def __getitem__(self, i: int) -> Any:
                return function(np.full(3, i))

        private: list[Private] = []
        return Counted({"dataset": Data()}).parts(private), private

    functions = [np.sin]
    with contextlib.suppress(ImportError):
        # Ufuncs of NumPy have a module, and those of others have none.
        from scipy import special  # type: ignore[import-untyped]

        functions.append(special.j1)
    for function in functions:
        found, private = parts(function)
        assert private == [] and found == parts(function)[0]
    _, private = parts(np.frompyfunc(lambda x: 2 * x, 1, 1))
    assert "numpy.frompyfunc" in private[0].reason


def test_partial_functions_that_libraries_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may import such a function from another of its modules, and a program may replace it."""
    package = tmp_path / "site-packages" / "some_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from some_library.shared import warn\n")
    (package / "shared.py").write_text(
        "import functools, warnings\nwarn = functools.partial(warnings.warn, stacklevel=2)\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    import some_library  # type: ignore[import-not-found]

    patches = Patches(lambda module: module == __name__)
    assert patches.of(["some_library", "some_library.shared"]) == {}
    some_library.warn = functools.partial(some_library.warn.func, stacklevel=3)
    assert list(Patches(lambda module: module == __name__).of(["some_library"])) == ["some_library.warn"]
