"""Tests the identity of modules: code of the user counts as it is in memory, libraries by what was changed in them."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coprep import _modules
from coprep._fingerprint import PARTS, Counted, fingerprint
from coprep._modules import is_users, sources_of
from coprep._usercode import UserCode

Parts = dict[str, bytes]

SOURCES = {
    "project_config.py": "SIZE = 3\nLR = 0.1\nNODE = {'a': {'b': 1}}\ndef unused(): return LR\n",
    "project_registry.py": "REGISTRY = {}\ndef register(f):\n  REGISTRY[f.__name__] = f\n  return f\n",
    "project/__init__.py": "VERSION = 1\n",
    "project/tools.py": "def helper(i):\n  return i + 1\ndef other(i):\n  return i\n",
    "project/lazy.py": "from project import later\nimport project_config\n",
    "project/later.py": "x = 1\n",
    "project/data.py": """
import project_config
import project_config as cfg
import project.tools
from project import tools
from project.tools import helper
from project_registry import REGISTRY
import numpy as np

class Base:
    def base(self):
        return helper(1)

class Data(Base):
    scale = 2
    def __getitem__(self, i):
        return i * self.scale

def reads_a_member(): return project_config.SIZE
def reads_all(): return vars(cfg)
def reads_deep(): return project.tools.helper(3)
def reads_within(): return [lambda: tools.helper(i) for i in range(3)]
def reads_a_function(): return helper(3)
def reads_a_registry(): return REGISTRY["a"]
def reads_a_node(): return project_config.NODE["a"]
def imports_a_member():
    from project.tools import helper as h
    return h(1)
def imports_a_module():
    import project_config as c
    return c.SIZE
def imports_later():
    from project import lazy
    return lazy
def imports_what_is_not_there():
    from project_nowhere import x
    return x
def uses_numpy(): return np.load("x")
""",
}
NAMES = ["project_config", "project_registry", "project.tools", "project.data"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's modules, which are imported but for two."""
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    for name in NAMES:
        importlib.import_module(name)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("project")]:
        del sys.modules[name]


def module(name: str) -> Any:
    return sys.modules[name]


def parts(function: str) -> Parts:
    return dict(fingerprint({"f": getattr(module("project.data"), function)}))


def differing(before: Parts, after: Parts) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def patched_helper(i: int) -> int:
    return i + 2


def change(owner: str, path: str, value: Any) -> Callable[[], None]:
    def run() -> None:
        *names, last = path.split(".")
        setattr(functools.reduce(getattr, names, module(owner)), last, value)

    return run


SIZE = change("project_config", "SIZE", 5)
LR = change("project_config", "LR", 0.2)
HELPER = change("project.tools", "helper", patched_helper)
HERE = "code test_modules"

CHANGES: dict[str, tuple[str, Callable[[], Any], list[str]]] = {
    "a member that is read": ("reads_a_member", SIZE, ["project_config.SIZE"]),
    "a member that is not read": ("reads_a_member", LR, []),
    "a module that is used as a whole": ("reads_all", LR, ["project_config.LR"]),
    "a function": ("reads_deep", HELPER, [HERE, "code project.tools"]),
    "a function, in a nested function": ("reads_within", HELPER, [HERE, "code project.tools"]),
    "a function that was imported before": ("reads_a_function", HELPER, []),
    "another function of the module": ("reads_deep", change("project.tools", "other", None), []),
    "an import within a function": ("imports_a_member", HELPER, [HERE, "code project.tools"]),
    "a module imported in a function": ("imports_a_module", SIZE, ["project_config.SIZE"]),
    "another member of it": ("imports_a_module", LR, []),
    "a method": ("Data", change("project.data", "Data.__getitem__", patched_helper), [HERE, "code project.data"]),
    "a method of the base": ("Data", change("project.data", "Base.base", patched_helper), [HERE, "code project.data"]),
    "what a method of the base calls": (
        "Data",
        change("project.tools", "helper.__defaults__", (3,)),
        ["project.tools.helper's default of i"],
    ),
    "a class attribute": ("Data", change("project.data", "Data.scale", 3), ["Data.scale"]),
    "another entry of a registry": (
        "reads_a_registry",
        lambda: module("project_registry").register(patched_helper),
        [],
    ),
    "an entry of a registry": (
        "reads_a_registry",
        lambda: module("project_registry").REGISTRY.update(a=patched_helper),
        ["project.data.REGISTRY['a']"],
    ),
    "a merged configuration": (
        "reads_a_node",
        lambda: module("project_config").NODE["a"].update(b=2),
        ["project_config.NODE['a']"],
    ),
}


@pytest.mark.parametrize(("function", "changed", "expected"), CHANGES.values(), ids=CHANGES)
def test_memory_counts(project: Path, function: str, changed: Callable[[], Any], expected: list[str]) -> None:
    before = parts(function)
    assert parts(function) == before
    changed()
    found = differing(before, parts(function))
    # A function that was replaced has its code where it was defined, and may lead to more there.
    assert set(expected) <= set(found) or (expected == found == [])
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(("function", "changed", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_is_remembered_makes_no_difference(
    project: Path, function: str, changed: Callable[[], Any], expected: list[str]
) -> None:
    counted = Counted({"f": getattr(module("project.data"), function)})
    assert dict(counted.parts([])) == dict(counted.parts([])) == parts(function)
    changed()
    after = parts(function)
    assert dict(counted.parts([])) == dict(counted.parts([])) == after == parts(function)


def make(number: Any) -> Any:
    return lambda: number


def test_every_kind_of_change_of_remembered_code_is_seen(project: Path) -> None:
    data, tools = module("project.data"), module("project.tools")
    data.Data.table, data.Data.closed, data.Data.late = {"a": 1}, make([1]), make(1)
    counted = Counted({"f": data.Data})
    seen = [parts("Data")]

    def look() -> None:
        assert parts("Data") == parts("Data")
        seen.append(parts("Data"))
        assert dict(counted.parts([])) == seen[-1]

    data.Data.table["a"] = 2
    look()
    data.Data.table["a"] = tools.helper
    look()
    del data.Data.table["a"]
    look()
    data.Data.scale = 2.0
    look()
    data.Data.closed.__closure__[0].cell_contents.append(2)
    look()
    data.Data.late.__closure__[0].cell_contents = 1.0
    look()
    tools.helper.__code__ = patched_helper.__code__
    look()
    data.Base.more = 3
    look()
    data.Data.__bases__ = (type("Other", (data.Base,), {"__module__": __name__, "base": make(1)}),)
    look()
    assert [i for i, one in enumerate(seen) if one in seen[:i]] == []
    # What a table no longer leads to does not count.
    data.Data.table["a"] = lambda: module("project_config")
    look()
    del data.Data.table["a"]
    assert parts("Data") == seen[-2]


def test_a_module_that_is_imported_later_counts_from_then_on_as_it_is_in_memory(project: Path) -> None:
    before = parts("imports_later")
    importlib.import_module("project.lazy")
    assert "code project.lazy" in differing(before, parts("imports_later"))
    after = parts("imports_later")
    (project / "project/later.py").write_text("x = 9\n")
    assert parts("imports_later") == after


@pytest.mark.parametrize("function", ["reads_a_member", "reads_all", "reads_deep", "imports_a_member", "Data"])
def test_files_of_imported_modules_do_not_matter(project: Path, function: str) -> None:
    before = parts(function)
    for name in SOURCES:
        if name not in ("project/lazy.py", "project/later.py"):
            (project / name).write_text("raise SystemExit\n")
    assert parts(function) == before
    for name in SOURCES:
        (project / name).unlink()
    assert parts(function) == before


def test_a_module_that_is_not_imported_yet_counts_by_its_file(project: Path) -> None:
    before = parts("imports_later")
    assert {"code project.lazy", "code project.later", "project_config.SIZE"} <= set(before)
    (project / "project/later.py").write_text("x = 2\n")
    assert differing(before, parts("imports_later")) == ["code project.later"]
    SIZE()
    assert differing(before, parts("imports_later")) == ["project_config.SIZE", "code project.later"]
    assert "project.lazy" not in sys.modules and "project.later" not in sys.modules


def test_a_module_that_is_nowhere_counts_by_its_name(project: Path) -> None:
    assert parts("imports_what_is_not_there") == parts("imports_what_is_not_there")


def test_a_module_among_the_data_counts_whole(project: Path) -> None:
    before = dict(fingerprint({"x": [module("project_config")]}))
    assert "code project_config" in before
    LR()
    assert differing(before, dict(fingerprint({"x": [module("project_config")]}))) == ["project_config.LR"]


def test_classes_of_modules_that_cannot_be_found_count_by_their_structure(project: Path) -> None:
    data = module("project.data").Data()
    found = module("project.data")
    del sys.modules["project.data"]
    before = dict(fingerprint({"x": data}))
    found.Data.scale = 7
    assert differing(before, dict(fingerprint({"x": data}))) == ["Data.scale"]


def test_many_globals_become_one_part_for_each_module(project: Path) -> None:
    for i in range(PARTS):
        setattr(module("project_config"), f"N{i}", i)
    before = parts("reads_all")
    assert "project_config" in before
    SIZE()
    assert differing(before, parts("reads_all")) == ["project_config"]


# --- libraries ----------------------------------------------------------------------------------------------------


def own_load(*_: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("numpy.load", own_load),
        ("numpy.load", lambda *_: None),
        ("numpy.load", functools.partial(np.load, allow_pickle=True)),
        ("numpy.poly1d.deriv", own_load),
        ("numpy.poly1d.deriv", staticmethod(own_load)),
        ("numpy.poly1d.deriv", property(own_load)),
        ("numpy.poly1d", type("poly1d", (), {"__module__": __name__})),
        ("builtins.ascii", own_load),
    ],
)
def test_members_of_libraries_that_were_replaced_count(
    project: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: Any
) -> None:
    before = parts("uses_numpy")
    with monkeypatch.context() as patched:
        patched.setattr(path, value)
        assert f"replaced {path}" in "".join(differing(before, parts("uses_numpy")))
    assert parts("uses_numpy") == before
    # A module that reached code does not lead to is not looked at.
    other = parts("reads_a_member")
    monkeypatch.setattr("numpy.load", own_load)
    assert parts("reads_a_member") == other


def test_the_function_that_replaces_another_counts_with_its_code(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numpy.load", module("project.data").reads_a_member)
    before = parts("uses_numpy")
    SIZE()
    assert differing(before, parts("uses_numpy")) == ["project_config.SIZE"]


def test_modules_near_those_that_are_reached_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    from torchvision.datasets.folder import default_loader

    before = dict(fingerprint({"loader": default_loader}))
    monkeypatch.setattr("PIL.Image.open", own_load)
    assert "replaced PIL.Image.open" in differing(before, dict(fingerprint({"loader": default_loader})))


def test_functions_that_a_library_wraps_count(project: Path) -> None:
    torch = pytest.importorskip("torch")
    scope = vars(module("project.tools"))
    exec("def wrapped(i): return helper(i)\n", scope)
    scope["wrapped"] = torch.no_grad()(scope["wrapped"])
    module("project.data").wrapped = scope["wrapped"]
    before = parts("wrapped")
    assert "package torch" in before
    HELPER()
    assert "code project.tools" in differing(before, parts("wrapped"))


# --- factories ----------------------------------------------------------------------------------------------------


def factory() -> Parts:
    return dict(UserCode("project.data:Data", None, None, whole=False, batched=True, context="fork").identity().dataset)


def test_a_factory_counts_by_the_files_that_a_new_process_imports(project: Path) -> None:
    before = factory()
    used = {"project", "project.data", "project.tools", "project_config", "project_registry", "project.lazy"}
    assert {f"code {name}" for name in used | {"project.later"}} | {"package numpy"} <= set(before)
    SIZE()
    assert factory() == before, "memory does not count"
    for name, text in SOURCES.items():
        (project / name).write_text(text + "# edited\n")
        module_name = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert differing(before, factory()) == [f"code {module_name}"]
        (project / name).write_text(text)
    assert factory() == before
    (project / "project/later.py").write_text("import project.new\n")
    assert differing(before, factory()) == ["code project.later"]
    (project / "project/new.py").write_text("x = 1\n")
    assert "code project.new" in factory()
    (project / "project/later.py").write_text("not Python at all\n")
    assert differing(before, factory()) == ["code project.later"]


def test_a_factory_in_a_module_that_is_nowhere_is_an_error(project: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no module 'project_nowhere'"):
        UserCode("project_nowhere:f", None, None, whole=False, batched=True, context="fork").identity()


def test_modules_are_told_apart(project: Path) -> None:
    assert all(map(is_users, ["__main__", "__mp_main__", *NAMES]))
    assert not any(map(is_users, ["numpy", "json", "coprep._fingerprint", "builtins", "nowhere", None]))
    assert sources_of(["project.lazy"], skip_present=True).present == {"project", "project_config"}


def test_the_versions_of_packages_are_those_of_their_distributions() -> None:
    def version_of(name: str) -> str:
        found = importlib.metadata.distribution(name)
        return found.version + (found.read_text("direct_url.json") or "")

    for package, names in importlib.metadata.packages_distributions().items():
        try:
            version = version_of(package)
        except importlib.metadata.PackageNotFoundError:
            version = "\n".join(sorted({f"{name} {version_of(name)}" for name in names}))
        assert _modules._version(package) == version, package
    assert _modules._version("no_such_package") is None
