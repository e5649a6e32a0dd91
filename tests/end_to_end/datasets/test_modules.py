"""Tests the identity of modules: imports are found, changed files are noticed at once, unchanged ones are read once."""

from __future__ import annotations

import ast
import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import coprep._modules as modules
import pytest
from coprep._imports import imports_of
from coprep._modules import Modules, _Memory

Found = set[tuple[str, int, str]]


def parsed(source: bytes) -> Found:
    """Returns the imports that Python's parser finds. The member is empty for ``import x``."""
    found: Found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, 0, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", node.level, alias.name) for alias in node.names}
    return found


def scanned(source: bytes) -> Found:
    return {(name, level, member) for name, level, members in imports_of(source) for member in (members or ("",))}


SOURCES = {
    "plain": "import a\nimport a.b as c, d\nimport\te . f\n",
    "from": "from a import b\nfrom a.b import c as d, e\nfrom . import f\nfrom ..g.h import i\nfrom . .j import k\n",
    "without space": "from.import a\nfrom..b import(c)\nfrom d import*\nif 1:import e;import f\n",
    "in parentheses": "from a import (  # of (all)\n  b,  # one) more\n\n  c as d,\n)\nfrom e import (\\\n f)\n",
    "continued": "from \\\n a \\\n import \\\n b, \\\n c\nimport d, \\\n e\nimport f\\\n.g\n",
    "after another from": "def f(x):\n  yield from x\n  import a\n  raise y from x; import b\nfrom c import d\n",
    "after a comment": "# this is from \\\nimport a\n# taken from b \\\nimport c\n# from \\\nfrom d import e\n",
    "after a text": "'''(we import (and from\n'''\nimport a\n'from '; from b import c\nx = 'import ('\nimport d\n",
    "nested": "class A:\n  def f(self):\n    try: import a\n    except ImportError: from b import c\n",
    "form feed": "\x0cimport a\nfrom\x0cb\x0cimport\x0cc\n",
    "line ends": "import a\r\nfrom b import (c,\r\n d)\r\nimport e, \\\r\n f\r\n",
    "old line ends": "import a\rfrom b import c\r",
    "names that are not ASCII": "import ﬁle, größe\nfrom ｍ import ℌ\n",
    "names that contain keywords": "import importlib_x, from_y\nfrom import_z import from_a\n",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_import_is_found(source: str) -> None:
    expected = parsed(source.encode())
    assert expected
    assert expected <= scanned(source.encode())


def test_an_encoding_is_heeded() -> None:
    source = "# -*- coding: latin-1 -*-\nimport größe\n".encode("latin-1")
    assert ("größe", 0, "") in parsed(source) & scanned(source)


def test_every_import_of_the_standard_library_is_found() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    assert len(files) > 100
    for file in files:
        source = file.read_bytes()
        assert parsed(source) <= scanned(source), file


def test_little_else_is_taken_for_an_import() -> None:
    source = b"from a import b  # as c\nimport d  # of e\nx = important, y.from_, importlib\n"
    assert scanned(source) == {("a", 0, "b"), ("d", 0, "")}


# --- the memory of read files ------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of ten modules, each of which imports the next. Its files count as old at once."""
    folder = tmp_path / "remembered_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("from remembered_pkg import part0\n")
    for i in range(10):
        (folder / f"part{i}.py").write_text(f"from . import part{i + 1}\n" if i < 9 else "x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(modules, "RECENT_NS", 0)
    importlib.import_module("remembered_pkg")
    yield folder
    for name in [name for name in sys.modules if name.startswith("remembered_pkg")]:
        del sys.modules[name]


def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that receives the names of the modules that are read from now on."""
    names: list[str] = []
    original = modules._read

    def noting(name: str, file: str) -> bytes:
        names.append(name)
        return original(name, file)

    monkeypatch.setattr(modules, "_read", noting)
    return names


def parts() -> dict[str, bytes]:
    return dict(Modules().parts(["remembered_pkg"]))


def test_a_file_is_read_once_until_it_changes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = read(monkeypatch)
    before = parts()
    assert len(before) == len(names) == 11
    for _ in range(3):
        assert parts() == before
    assert len(names) == 11

    names.clear()
    (package / "part4.py").write_text("from . import part5 as other\n")
    after = parts()
    assert names == ["remembered_pkg.part4"]
    assert [name for name in before if before[name] != after[name]] == ["code remembered_pkg.part4"]


def test_a_change_that_sets_the_time_back_is_seen(package: Path) -> None:
    file = package / "part9.py"
    before, times = parts(), file.stat()
    file.write_text("x = 2\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size
    assert parts()["code remembered_pkg.part9"] != before["code remembered_pkg.part9"]


def test_a_file_that_has_just_changed_is_read_again(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Clocks of file systems are coarse, so a file may change again without a new time.
    monkeypatch.setattr(modules, "RECENT_NS", 3600 * 10**9)
    names = read(monkeypatch)
    assert parts() == parts()
    assert len(names) == 22


def test_imports_that_a_change_adds_are_followed(package: Path) -> None:
    (package / "late.py").write_text("x = 1\n")
    assert "code remembered_pkg.late" not in parts()
    (package / "part9.py").write_text("def f():\n  from remembered_pkg import late\n")
    assert "code remembered_pkg.late" in parts()


def test_a_module_that_appears_is_seen(package: Path) -> None:
    (package / "part9.py").write_text("def f():\n  from remembered_pkg import later\n")
    assert "code remembered_pkg.later" not in parts()
    (package / "later.py").write_text("x = 1\n")
    assert "code remembered_pkg.later" in parts()


def test_modules_that_globals_lead_to_are_seen(package: Path) -> None:
    (package / "plugin.py").write_text("class Plugin: pass\n")
    assert "code remembered_pkg.plugin" not in parts()
    plugin = importlib.import_module("remembered_pkg.plugin")
    sys.modules["remembered_pkg.part9"].x = plugin.Plugin  # type: ignore[attr-defined]
    assert "code remembered_pkg.plugin" in parts()


def test_globals_that_answer_in_their_own_way_do_no_harm(package: Path) -> None:
    class Odd:
        def __getattribute__(self, name: str) -> object:
            if name == "__module__":
                raise RuntimeError("not now")
            return super().__getattribute__(name)

    class Unhashable:
        __module__ = []  # type: ignore[assignment]

    for value in (Odd(), Unhashable()):
        sys.modules["remembered_pkg.part9"].x = value  # type: ignore[attr-defined]
        assert len(parts()) >= 11
    del sys.modules["remembered_pkg.part9"].x  # type: ignore[attr-defined]


def test_what_is_remembered_is_bounded(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "REMEMBERED", 4)
    memory: _Memory[int] = _Memory()
    file = str(package / "part0.py")
    for key in range(10):
        assert memory.get(key, file, lambda key=key: key) == key  # type: ignore[misc]
    assert len(memory._kept) == 4
    assert memory.get(6, file, lambda: -1) == 6
    # Key 7 is now the one that was used least recently.
    memory.get(10, file, lambda: 10)
    assert memory.get(6, file, lambda: -1) == 6
    assert memory.get(9, file, lambda: -1) == 9
    assert memory.get(0, file, lambda: 0) == 0
