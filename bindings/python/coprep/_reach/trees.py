"""Syntax trees of the code that is in memory.

A file may have been edited since it was imported, so a tree counts as that of a code object only if it compiles to it.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import weakref
from collections import defaultdict
from functools import partial
from types import CodeType
from typing import NamedTuple

from coprep._codes import digest_of_code

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Place = tuple[int, str]
"""The line at which a function begins, with its decorators, and its name."""


class _File(NamedTuple):
    """The functions of a file, of a cell of a notebook, or of the text after ``python -c``."""

    version: tuple[float | None, int]
    functions: dict[Place, list[Function]]
    codes: dict[Place, list[CodeType]]

    def moved(self, code: CodeType) -> Place | None:
        """Returns where a function stands now, if lines before it were edited since it was compiled."""
        digest = digest_of_code(code)
        named = (place for place in self.codes if place[1] == code.co_name)
        return next((place for place in named if any(digest_of_code(one) == digest for one in self.codes[place])), None)


_files: dict[str, _File] = {}


_trees: dict[int, tuple[weakref.ref[CodeType], list[Function]]] = {}
"""Trees that were found, by the id of their code, as long as that lives. They stay right after their file is edited."""


def trees_of(code: CodeType) -> list[Function]:
    """Returns the trees that a code object may come from: several lambdas can share a line.

    Returns none if its source is not known, or has become another one.
    """
    key = id(code)
    known = _trees.get(key)
    if known is not None and known[0]() is code:
        return known[1]
    found = _found(code)
    if found:
        # A lambda would look for globals, which are gone when the interpreter ends. The reference is the default.
        _trees[key] = weakref.ref(code, partial(_trees.pop, key)), found
    return found


def _found(code: CodeType) -> list[Function]:
    file = _file(code.co_filename)
    place: Place | None = (code.co_firstlineno, code.co_name)
    if code not in file.codes.get((code.co_firstlineno, code.co_name), ()):
        place = file.moved(code)
    if place is None:
        return []
    names = list(code.co_varnames[: code.co_argcount])
    return [tree for tree in file.functions[place] if [arg.arg for arg in positional(tree)] == names]


def positional(tree: Function) -> list[ast.arg]:
    return tree.args.posonlyargs + tree.args.args


_PRIVATE_NAME = re.compile(r"\b__\w+(?<!__)\b")
"""A name that begins with two underscores and does not end with two."""


def _file(name: str) -> _File:
    linecache.checkcache(name)
    text = "".join(linecache.getlines(name))
    if not text and name == "<string>" and "-c" in sys.orig_argv:
        text = sys.orig_argv[sys.orig_argv.index("-c") + 1]
    entry = linecache.cache.get(name)
    version = (entry[1], entry[0]) if entry is not None and len(entry) > 1 else (None, hash(text))
    known = _files.get(name)
    if known is None or known.version != version:
        known = _files[name] = _parse(name, text, version)
    return known


def _parse(name: str, text: str, version: tuple[float | None, int]) -> _File:
    file = _File(version, defaultdict(list), defaultdict(list))
    try:
        tree = ast.parse(text)
        codes = [compile(tree, name, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return file
    for node in ast.walk(tree):
        if isinstance(node, Function):
            decorators = getattr(node, "decorator_list", [])
            line = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            file.functions[line, getattr(node, "name", "<lambda>")].append(node)
    # A code object has the name of the source.
    if _PRIVATE_NAME.search(text):
        _mangle(tree, None)
    for code in codes:
        file.codes[code.co_firstlineno, code.co_name].append(code)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return file


def _mangle(node: ast.AST, cls: str | None) -> None:
    """Gives private names of a class the form that they have in memory: the compiler does so after the tree is made."""
    inner = node.name if isinstance(node, ast.ClassDef) else cls
    if cls is not None:
        for field in ("id", "attr", "name", "asname", "arg", "rest"):
            if isinstance(name := getattr(node, field, None), str):
                setattr(node, field, _private(name, cls))
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = [_private(name, cls) for name in node.names]
    for child in ast.iter_child_nodes(node):
        _mangle(child, inner)


def _private(name: str, cls: str) -> str:
    is_private = name.startswith("__") and not name.endswith("__") and "." not in name
    return f"_{cls.lstrip('_')}{name}" if is_private else name
