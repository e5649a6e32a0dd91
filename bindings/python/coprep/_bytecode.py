"""The names that a code object reads: globals with the attributes that follow them, and imports.

Digests of code are computed for each loader and epoch, so each code object is looked at once, in one pass over its
instructions. The standard library's ``dis`` takes ten times as long.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

Path = tuple[str, ...]
"""A name, and the attributes that are read from it one after another: ``("config", "SIZE")`` for ``config.SIZE``."""


class Import(NamedTuple):
    """An import within a function."""

    module: str
    level: int
    """Number of dots before the name."""
    members: tuple[str, ...]
    """Names after ``from MODULE import``. Empty for ``import MODULE``, which gives the package at its beginning."""
    reads: tuple[Path, ...]
    """Names that the code reads from what it imports. An empty path stands for all of it."""


class Uses(NamedTuple):
    """All that code reads from outside, including the code nested in it, each once and sorted."""

    names: tuple[Path, ...]
    """Globals with their attributes."""
    imports: tuple[Import, ...]
    strings: tuple[str, ...]
    """Constants that may be paths."""


_SINCE_311 = sys.version_info >= (3, 11)
_SINCE_312 = sys.version_info >= (3, 12)


def _codes(*names: str) -> frozenset[int]:
    # No version of Python has all of these instructions.
    return frozenset(dis.opmap[name] for name in names if name in dis.opmap)


_EXTENDED = dis.EXTENDED_ARG
_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_GLOBALS = _codes("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTE = dis.opmap["LOAD_ATTR"]
# Code that changes a member of a module counts as if it read this member.
_ATTRIBUTES = _codes("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
_SET_ATTRIBUTE = dis.opmap["STORE_ATTR"]
_LOCAL, _STORE = dis.opmap["LOAD_FAST"], dis.opmap["STORE_FAST"]
_LOCALS = _codes("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_AND_CLEAR")
_IMPORT, _FROM = dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"]
_BETWEEN = _codes("SWAP", "ROT_TWO", "POP_TOP")
_CONSTANT = dis.opmap["LOAD_CONST"]
_SMALL = dis.opmap.get("LOAD_SMALL_INT", -1)
_PAIRS = {
    dis.opmap[name]: pair
    for name, pair in {
        "LOAD_FAST_LOAD_FAST": (_LOCAL, _LOCAL),
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": (_LOCAL, _LOCAL),
        "STORE_FAST_LOAD_FAST": (_STORE, _LOCAL),
        "STORE_FAST_STORE_FAST": (_STORE, _STORE),
    }.items()
    if name in dis.opmap
}
"""Instructions of Python 3.13 and later that stand for two, whose arguments have four bits each."""

Steps = list[tuple[int, int]]


def uses_of(code: CodeType) -> Uses:
    """Returns what code reads from outside."""
    names: set[Path] = set()
    imports: set[Import] = set()
    strings: set[str] = set()
    todo = [code]
    while todo:
        one = todo.pop()
        _Scan(one, names, imports).run()
        for constant in one.co_consts[_has_docstring(one) :]:
            if isinstance(constant, CodeType):
                todo.append(constant)
            # "." and ".." stand for a folder less often than they separate words.
            elif isinstance(constant, str) and constant not in (".", ".."):
                strings.add(constant)
    return Uses(tuple(sorted(names)), tuple(sorted(imports)), tuple(sorted(strings)))


def _has_docstring(code: CodeType) -> bool:
    if sys.version_info >= (3, 14):
        return bool(code.co_flags & 0x4000000)  # CO_HAS_DOCSTRING
    # Functions without one have no string in its place. Lambdas and comprehensions have a name in "<>".
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
    return is_function and isinstance(next(iter(code.co_consts), None), str)


def attributes_set_by(code: CodeType) -> set[str]:
    """Returns the names of the attributes that code assigns to any object."""
    return {code.co_names[argument] for op, argument in _steps(code) if op == _SET_ATTRIBUTE}


def _steps(code: CodeType) -> Iterator[tuple[int, int]]:
    """Yields the instructions of code with their arguments."""
    raw = code.co_code
    extended = 0
    for op, argument in zip(raw[::2], raw[1::2], strict=True):
        if op == 0:  # a cache of the interpreter
            continue
        if op == _EXTENDED:
            extended = (extended | argument) << 8
            continue
        argument |= extended
        extended = 0
        pair = _PAIRS.get(op)
        if pair is None:
            yield op, argument
        else:
            yield pair[0], argument >> 4
            yield pair[1], argument & 15


class _Scan:
    """Collects what one code object reads, without the code nested in it."""

    def __init__(self, code: CodeType, names: set[Path], imports: set[Import]) -> None:
        self._code = code
        self._steps: Steps = list(_steps(code))
        self._names = names
        self._imports = imports

    def run(self) -> None:
        for i, (op, argument) in enumerate(self._steps):
            if op in _GLOBALS:
                # The lowest bit of these arguments says something about the call that follows.
                index = argument >> 1 if op == _GLOBAL and _SINCE_311 else argument
                self._names.add((self._code.co_names[index], *self._attributes(i + 1)))
            elif op == _IMPORT:
                self._imports.add(self._import(i, self._code.co_names[argument]))

    def _attributes(self, i: int) -> Path:
        """Returns the attributes that are read from the value that the instruction before ``i`` has loaded."""
        found = []
        while i < len(self._steps) and self._steps[i][0] in _ATTRIBUTES:
            op, argument = self._steps[i]
            found.append(self._code.co_names[argument >> 1 if op == _ATTRIBUTE and _SINCE_312 else argument])
            i += 1
        return tuple(found)

    def _import(self, i: int, module: str) -> Import:
        level, members = self._constant(i - 2), self._constant(i - 1)
        if members is None:
            return Import(module, level, (), tuple(self._reads(i + 1, ())))
        reads: list[Path] = []
        i += 1
        while i < len(self._steps) and self._steps[i][0] == _FROM:
            name = self._code.co_names[self._steps[i][1]]
            reads += self._reads(i + 1, (name,))
            # The instruction between two members stores the first of them.
            i += 2
        return Import(module, level, tuple(members), tuple(sorted(reads)) or tuple((name,) for name in members))

    def _constant(self, i: int) -> Any:
        op, argument = self._steps[i]
        return argument if op == _SMALL else self._code.co_consts[argument]

    def _reads(self, i: int, path: Path) -> list[Path]:
        """Returns what is read from a value that is stored in a variable at instruction ``i``."""
        is_whole_import = not path
        while is_whole_import and self._steps[i][0] == _FROM:
            # ``import a.b as c`` takes each part from the one before it.
            path += (self._code.co_names[self._steps[i][1]],)
            i += 1
            while self._steps[i][0] in _BETWEEN:
                i += 1
        if self._steps[i][0] != _STORE:
            return [path]
        variable = self._steps[i][1]
        found = {
            path + self._attributes(j + 1)
            for j, (op, argument) in enumerate(self._steps)
            if op in _LOCALS and argument == variable
        }
        return sorted(found)
