"""Modules: which are the user's own, the versions of all others, and the files of those that are not imported yet."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from coprep._names import MAINS

Part = tuple[str, bytes]

_WITH_PYTHON = frozenset((*sys.stdlib_module_names, "coprep"))
"""Modules that count with the version of the interpreter, or that serve every job."""


def digest_of(*parts: bytes | memoryview) -> bytes:
    """Returns the digest of byte strings, each delimited."""
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        result.update(len(part).to_bytes(8, "little"))
        result.update(part)
    return result.digest()


# --- imported modules ---------------------------------------------------------------------------------------------


def is_users(name: object) -> bool:
    """Returns whether an imported module is the user's own: not of Python, of an installed package, or of coprep."""
    if name in MAINS:
        return True
    if not isinstance(name, str) or name.partition(".")[0] in _WITH_PYTHON:
        return False
    module = sys.modules.get(name)
    if module is None:
        return False
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if isinstance(place, str):
        return _is_users_file(place)
    # A module without a file was made by its package, or by a program.
    parent = name.rpartition(".")[0]
    return is_users(parent) if parent in sys.modules else name not in sys.builtin_module_names


def parts_of(names: Iterable[str]) -> list[Part]:
    """Returns the identity of modules whose code is not looked at: versions of packages, and compiled files."""
    found: dict[str, bytes] = {}
    for name in names:
        top = name.partition(".")[0]
        if top in MAINS or top in _WITH_PYTHON:
            continue
        if not is_users(name):
            version = _version(top) if top in sys.modules or _spec(top) is not None else None
            if version is not None:
                found[f"package {top}"] = digest_of(version.encode())
            continue
        file = getattr(sys.modules[name], "__file__", None) or ""
        if is_compiled(file):
            found[f"code {name}"] = _source(file, _stamp(file)).digest
    return sorted(found.items())


_remembered: dict[str, bytes] = {}
"""Digests of the files of the user's modules, as they were when the first loader saw them in this process."""


def remember_files() -> None:
    """Remembers the files of the user's modules, so that :func:`edited_files` knows which were edited later."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file not in _remembered and is_users(name):
            _remembered[file] = _source(file, _stamp(file)).digest


def edited_files() -> list[str]:
    """Returns the remembered files that have other contents now."""
    return sorted(file for file, digest in _remembered.items() if _source(file, _stamp(file)).digest != digest)


# --- modules that will be imported --------------------------------------------------------------------------------


class Import(NamedTuple):
    """An import, as it is written."""

    module: str
    level: int
    """Number of dots before the name."""
    members: tuple[str, ...]
    """Names after ``from MODULE import``."""


class Source(NamedTuple):
    """The file of a module, as far as it counts for an identity."""

    digest: bytes
    imports: tuple[Import, ...]
    names_environment: bool
    """``True`` if its import may read variables of the environment."""


class Sources(NamedTuple):
    """The modules that an import leads to."""

    parts: list[Part]
    libraries: set[str]
    """Modules of installed packages."""
    present: set[str]
    """Modules that were left out because this process has them already."""
    names_environment: bool


def sources_of(names: Iterable[str], skip_present: bool) -> Sources:
    """Returns the files of modules that another process will import, and of the user's modules that these import.

    Nothing is imported. With ``skip_present``, modules that this process has imported are left out.
    """
    found: dict[str, bytes] = {}
    libraries: set[str] = set()
    present: set[str] = set()
    names_environment = False
    todo, seen = list(names), set(MAINS)
    while todo:
        name = todo.pop()
        parent = name.rpartition(".")[0]
        if name in seen or name.partition(".")[0] in _WITH_PYTHON:
            continue
        seen.add(name)
        if skip_present and name in sys.modules:
            present.add(name)
            continue
        if parent:
            todo.append(parent)
        spec = _spec(name)
        file = spec.origin if spec is not None and spec.has_location else None
        if spec is None or file is None:
            continue  # It is a member of a module, a folder, or is not there at all.
        if not _is_users_file(file):
            libraries.add(name)
            continue
        source = _source(file, _stamp(file))
        found[f"code {name}"] = source.digest
        names_environment |= source.names_environment
        package = name if spec.submodule_search_locations is not None else parent
        for used in source.imports:
            with contextlib.suppress(ImportError):
                base = full_name(used, package)
                todo += [base, *(f"{base}.{member}" for member in used.members)]
    return Sources(sorted(found.items()), libraries, present, names_environment)


def full_name(used: Import, package: str | None) -> str:
    """Returns the name of the module that an import gives in a package.

    Raises:
        ImportError: it is relative, and leads out of the package.
    """
    return importlib.util.resolve_name("." * used.level + used.module, package)


Stamp = tuple[int, ...]


def _stamp(path: str) -> Stamp:
    """Returns a value that differs after each change of a file."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    # The second time changes even if somebody sets the first one back.
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino, about.st_dev


@functools.lru_cache(maxsize=4096)
def _source(file: str, _: Stamp) -> Source:
    try:
        with open(file, "rb") as opened:
            content = opened.read()
    except OSError:  # It lies in an archive.
        return Source(digest_of(os.fsencode(file)), (), True)
    imports: tuple[Import, ...] = ()
    if file.endswith(".py"):
        # Only Python source has imports to find. The bytes of other files, and of broken source, still count.
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            imports = tuple(_imports_in(ast.parse(content, file)))
    return Source(digest_of(content), imports, b"environ" in content or b"getenv" in content)


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


def _imports_in(tree: ast.AST) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, 0, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", node.level, tuple(alias.name for alias in node.names))


def is_compiled(file: str) -> bool:
    """Returns whether a module's file holds machine code, such as one that Cython made."""
    return file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


# --- installed packages -------------------------------------------------------------------------------------------


@functools.cache
def _installed() -> tuple[str, ...]:
    """Returns the folders of the standard library and of installed packages."""
    folders = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(os.path.abspath(__file__))]
    return tuple(os.path.join(form(folder), "") for folder in folders for form in (os.path.abspath, os.path.realpath))


@functools.cache
def _is_users_file(file: str) -> bool:
    path, real = os.path.abspath(file), os.path.realpath(file)
    is_installed = path.startswith(_installed()) or real.startswith(_installed())
    if not is_installed and not {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return True
    return real in _of_projects() and not real.startswith(os.path.join(os.path.dirname(os.path.realpath(__file__)), ""))


@functools.cache
def _of_projects() -> frozenset[str]:
    """Returns the files of packages that were installed from a folder, as by ``pip install .`` (PEP 610).

    Packages of conda are left out, since nearly all of them were built so.
    """
    found: set[str] = set()
    for one in importlib.metadata.distributions():
        origin = one.read_text("direct_url.json") or ""
        if '"dir_info"' in origin and (one.read_text("INSTALLER") or "").strip() != "conda":
            found.update(os.path.realpath(str(one.locate_file(file))) for file in one.files or ())
    return frozenset(found)


@functools.cache
def _version(package: str) -> str | None:
    try:
        return _version_of(importlib.metadata.distribution(package))
    except importlib.metadata.PackageNotFoundError:
        # The distribution has another name, as Pillow's has. The result must not depend on whether the package is
        # imported.
        found = filter(_has(package), importlib.metadata.distributions())
        versions = sorted({f"{one.metadata['Name']} {_version_of(one)}" for one in found})
        return "\n".join(versions) or None


def _version_of(distribution: importlib.metadata.Distribution) -> str:
    # The file says from which commit or archive it was installed, if not from an index.
    return distribution.version + (distribution.read_text("direct_url.json") or "")


def _has(package: str) -> Callable[[importlib.metadata.Distribution], bool]:
    """Returns what tells whether a distribution has a package, without reading the rest of its metadata."""
    endings = "|".join(map(re.escape, importlib.machinery.all_suffixes()))
    listed = re.compile(rf"^{re.escape(package)}(/|({endings}),)", re.MULTILINE)

    def has(distribution: importlib.metadata.Distribution) -> bool:
        declared = (distribution.read_text("top_level.txt") or "").split()
        if declared:
            return package in declared
        return listed.search(distribution.read_text("RECORD") or "") is not None

    return has
