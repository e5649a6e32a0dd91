"""Identity of modules: the files of the user's own, and of all others the version of their package.

The process remembers the digest and the imports of a file until the file changes: a package has hundreds of files, and
a loader asks in every epoch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from typing import Any, Generic, NamedTuple, TypeVar

from coprep._imports import Import, imports_of, resolved

MAINS = ("__main__", "__mp_main__")
"""Names of the main script's module: in the process that was started, and in those that ``multiprocessing`` spawns."""
RECENT_NS = 2_000_000_000
"""A file that changed so recently may change again without another time: what it says is not remembered yet."""
REMEMBERED = 20_000
"""Most files and most folders that are remembered; those that were used last stay."""

_ELSEWHERE = frozenset((*sys.stdlib_module_names, *MAINS, "coprep"))
"""Modules that come with the interpreter or with this package, or that are hashed by their structure."""

T = TypeVar("T")
Stamp = tuple[int, ...]


class Source(NamedTuple):
    """A module's file, as far as it counts for an identity."""

    digest: bytes
    uses: frozenset[str]
    """Modules that it imports, by their full names."""
    members: Mapping[str, frozenset[str]]
    """Names that it imports from modules, by the module. If that is a package, these may be modules too."""


class Module(NamedTuple):
    """A module, as far as it counts for an identity."""

    part: str
    """Name of its part of an identity; empty: it has none."""
    digest: bytes
    uses: Set[str]


_PLAIN = frozenset((str, bytes, int, float, bool, dict, list, tuple, type(None)))
"""Types of globals that no module defines."""
_NONE = Module("", b"", frozenset())


class Modules:
    """The modules of this process, each as it was when it was first asked for."""

    def __init__(self) -> None:
        self._seen: dict[str, Module] = {}

    def parts(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """Returns the identity of modules, of the user's own modules that they use, and of packages, in named parts."""
        found: dict[str, bytes] = {}
        met = set(names)
        todo = list(met)
        while todo:
            name = todo.pop()
            module = self._seen.get(name)
            if module is None:
                module = self._seen[name] = _look_at(name)
            if module.part:
                found[module.part] = module.digest
            new = module.uses - met
            met |= new
            todo += new
        # Code comes first.
        return sorted(found.items())


def _look_at(name: str) -> Module:
    parent, _, _ = name.rpartition(".")
    top = name[: name.index(".")] if parent else name
    if top in _ELSEWHERE:
        return _NONE
    above = frozenset((parent,)) if parent else frozenset()
    file = _file(name, parent)
    if file is None:
        return Module("", b"", above)
    if not _is_users(file):
        version = _version(top)
        return (
            Module("", b"", above) if version is None else Module(f"package {top}", digest_of(version.encode()), above)
        )
    source = _source(name, file)
    uses = _in_globals(name)
    uses.update(above, source.uses)
    for package, members in source.members.items():
        if _is_package(package):
            uses |= members
    return Module(f"code {name}", source.digest, uses)


def _is_package(name: str) -> bool:
    module = sys.modules.get(name)
    return module is None or "__path__" in vars(module)


def digest_of(*parts: bytes | memoryview) -> bytes:
    """Returns the digest of byte strings, each delimited."""
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        result.update(len(part).to_bytes(8, "little"))
        result.update(part)
    return result.digest()


# --- what is remembered ---------------------------------------------------------------------------------------


class _Memory(Generic[T]):
    """Values made of what files or folders hold, each kept until that changes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Stamp, T]] = OrderedDict()

    def get(self, key: Hashable, path: str, make: Callable[[], T]) -> T:
        """Returns what ``make`` returned since the file or folder at ``path`` last changed."""
        now = time.time_ns()
        stamp = _stamp(path)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        value = make()
        if stamp is None or max(stamp[:2]) > now - RECENT_NS:
            self._kept.pop(key, None)
        else:
            self._kept[key] = (stamp, value)
            self._kept.move_to_end(key)
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
        return value


def _stamp(path: str) -> Stamp | None:
    """Returns what is different after a change: times, size and place; ``None`` if there is no such file."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    # The second time changes even if somebody sets the first one back.
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino, about.st_dev


_sources: _Memory[Source] = _Memory()
_listings: _Memory[frozenset[str] | None] = _Memory()


def _source(name: str, file: str) -> Source:
    return _sources.get((file, name), file, lambda: _read_source(name, file))


def _read_source(name: str, file: str) -> Source:
    package = name if os.path.basename(file).startswith("__init__.") else name.rpartition(".")[0]
    content = _read(name, file)
    imports: list[Import] = []
    if file.endswith(".py"):
        # Else, or if it cannot be read as Python, its bytes count all the same.
        with contextlib.suppress(SyntaxError, ValueError):
            imports = imports_of(content)
    members: dict[str, set[str]] = {}
    for base, names in resolved(imports, package):
        if base.partition(".")[0] in _ELSEWHERE:
            continue
        members.setdefault(base, set()).update(f"{base}.{name}" for name in names)
    found = {base: frozenset(names) for base, names in members.items() if names}
    return Source(digest_of(content), frozenset(members), found)


def _read(name: str, file: str) -> bytes:
    try:
        with open(file, "rb") as source:
            return source.read()
    except OSError:  # It may lie in an archive.
        try:
            loader: Any = sys.modules[name].__loader__
            content: bytes = loader.get_data(file)
            return content
        except Exception:
            return os.fsencode(file)


def _in_globals(name: str) -> set[str]:
    """Returns the modules that are among a module's globals, and those that define what is."""
    found = set()
    own = f"{name}."
    for value in list(getattr(sys.modules.get(name), "__dict__", {}).values()):
        # Asked by type: isinstance takes several times as long, and a package has ten thousand globals.
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is types.ModuleType or issubclass(kind, types.ModuleType):
            # A module within this package is here if anyone imported it. This one's imports are found in its source.
            if not value.__name__.startswith(own):
                found.add(value.__name__)
            continue
        try:
            module = value.__module__
        except Exception:
            # Some objects answer in their own way.
            continue
        if type(module) is str:
            found.add(module)
    return found


# --- where modules are ----------------------------------------------------------------------------------------


def _file(name: str, parent: str) -> str | None:
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return file if isinstance(file, str) else None
    if parent and not _may_hold(sys.modules.get(parent), name[len(parent) + 1 :]):
        return None
    spec = _spec(name)
    file = spec.origin if spec and spec.has_location else None
    return file if isinstance(file, str) else None


def _may_hold(package: Any, name: str) -> bool:
    """Returns whether a module of this name may lie in a package. Looking for it takes long, and few names are one."""
    if package is None:
        return True
    try:
        folders = list(package.__path__)
    except (AttributeError, TypeError):
        return False  # It is no package.
    for folder in folders:
        names = _listings.get(folder, folder, functools.partial(_modules_in, folder))
        if names is None or name in names:
            return True
    return False


def _modules_in(folder: str) -> frozenset[str] | None:
    """Returns the first parts of the names in a folder; ``None`` if it is none, such as an archive."""
    try:
        return frozenset(entry.partition(".")[0] for entry in os.listdir(folder))
    except OSError:
        return None


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where a module is, without importing anything."""
    parent, _, _ = name.rpartition(".")
    try:
        if not parent:
            return importlib.util.find_spec(name)
        package = _spec(parent)
        path = package and package.submodule_search_locations
        return importlib.machinery.PathFinder.find_spec(name, path) if path else None
    except (ImportError, ValueError, AttributeError):
        return None


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders of the standard library and of packages."""
    folders = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(os.path.abspath(__file__))]
    return tuple(os.path.join(form(folder), "") for folder in folders for form in (os.path.abspath, os.path.realpath))


@functools.cache
def _is_users(file: str) -> bool:
    path = os.path.abspath(file)
    if path.startswith(_installed()) or os.path.realpath(path).startswith(_installed()):
        return False
    return not {"site-packages", "dist-packages"} & set(path.split(os.sep))


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # The distribution has another name, as Pillow has. Whether the package is imported yet must not matter.
        names = _distributions().get(package, [])
        versions = sorted(f"{name} {importlib.metadata.version(name)}" for name in names)
        return "\n".join(versions) or None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """By package. Takes a while: every installed distribution is looked at."""
    return importlib.metadata.packages_distributions()
