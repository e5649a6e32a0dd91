"""Identity of modules: the files of the user's own modules, and the versions of all other packages.

The process remembers the digest and the imports of a file until the file changes, because a package has hundreds of
files and a loader asks in every epoch.
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
from coprep._names import MAINS

RECENT_NS = 2_000_000_000
"""Age below which a file's digest is not remembered yet. A younger file may change again without a new time."""
REMEMBERED = 20_000
"""Most files and most folders that are remembered. The least recently used ones are dropped."""

_ELSEWHERE = frozenset((*sys.stdlib_module_names, *MAINS, "coprep"))
"""Modules that are not hashed as files: they come with Python or coprep, or are hashed by their structure."""

T = TypeVar("T")
Stamp = tuple[int, ...]


class Source(NamedTuple):
    """The file of a module, as far as it counts for an identity."""

    digest: bytes
    uses: frozenset[str]
    """Full names of the modules that it imports."""
    members: Mapping[str, frozenset[str]]
    """Names that it imports from modules, by module. If the module is a package, these may be modules too."""


class Module(NamedTuple):
    """A module, as far as it counts for an identity."""

    part: str
    """Name of the module's part of an identity. Empty if it has none."""
    digest: bytes
    uses: Set[str]


_PLAIN = frozenset((str, bytes, int, float, bool, dict, list, tuple, type(None)))
"""Types of globals that are not defined by a module."""
_NONE = Module("", b"", frozenset())


class Modules:
    """The modules of this process, each in its state when it was first looked up."""

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
        # Sorting puts the parts of code first.
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


# --- memory of files and folders ------------------------------------------------------------------------------


class _Memory(Generic[T]):
    """Values computed from files or folders, each kept until the file or folder changes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Stamp, T]] = OrderedDict()

    def get(self, key: Hashable, path: str, make: Callable[[], T]) -> T:
        """Returns the value of ``make``, which is called only if the file or folder at ``path`` has changed."""
        now = time.time_ns()
        stamp = _stamp(path)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == stamp:
            self._kept.move_to_end(key)
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
    """Returns a value that differs after each change of a file, or ``None`` if there is no such file."""
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
        # Only Python source has imports to find. The bytes of other files, and of broken source, still count.
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
    """Returns the modules among a module's globals, and the modules in which the other globals are defined."""
    found = set()
    own = f"{name}."
    for value in list(getattr(sys.modules.get(name), "__dict__", {}).values()):
        # The type is compared, because isinstance takes several times as long and a package has ten thousand globals.
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is types.ModuleType or issubclass(kind, types.ModuleType):
            # A module of this package is among the globals if any code imported it. This module's own imports are in
            # its source.
            if not value.__name__.startswith(own):
                found.add(value.__name__)
            continue
        try:
            module = value.__module__
        except Exception:
            # Some objects answer attribute access in their own way.
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
    """Returns whether a package may contain a module of this name.

    This spares the import system's own search, which takes long: most names are not modules.
    """
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
    """Returns the first parts of the names in a folder, or ``None`` if it is not a folder, such as an archive."""
    try:
        return frozenset(entry.partition(".")[0] for entry in os.listdir(folder))
    except OSError:
        return None


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of a module without importing anything."""
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
    """Returns the folders of the standard library and of installed packages."""
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
        # The distribution has another name, as Pillow's has. The result must not depend on whether the package is
        # imported.
        names = _distributions().get(package, [])
        versions = sorted(f"{name} {importlib.metadata.version(name)}" for name in names)
        return "\n".join(versions) or None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Returns the distributions of each package. This takes a while, since it reads all that are installed."""
    return importlib.metadata.packages_distributions()
