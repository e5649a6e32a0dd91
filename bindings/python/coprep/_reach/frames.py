"""Functions that are evaluated."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any

from coprep._reach.trees import Function, positional
from coprep._reach.values import Values

CONTEXTS = 4
"""Most combinations of arguments with which a function is evaluated. Further ones are evaluated together."""


class Frame:
    """A call of a function with one combination of arguments; or a comprehension or class body within one."""

    def __init__(self, node: Any, parent: Frame | None, function: Context) -> None:
        self.node = node
        self.parent = parent
        self.scope = function.scope
        self.cells = function.cells
        self.name = function.name
        self.file = function.file
        self.is_function = isinstance(node, Function)
        self.first: str | None = None
        self.locals: set[str] = set()
        if isinstance(node, Function):
            self.first = next((arg.arg for arg in positional(node)), None)
            self.locals.update(arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg))
        self.variables: dict[str, Values] = {}
        self.returned: Values = 0
        self.readers: set[Frame] = set()
        """Functions whose evaluation has read one of its variables."""
        self.callers: set[Frame] = set()
        """Functions whose evaluation has read what it returns."""
        self.is_due = True
        """``True`` if something that its evaluation has read was changed since."""
        self.seen = 0
        """The number of changes that concern all functions, when it was last evaluated."""
        self.is_whole = False
        """``True`` if what it returns counts whole."""
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.is_generator = False
        for inner in _own_nodes(node):
            if isinstance(inner, ast.Global):
                self.globals.update(inner.names)
            elif isinstance(inner, ast.Nonlocal):
                self.nonlocals.update(inner.names)
            elif isinstance(inner, (ast.Yield, ast.YieldFrom)):
                self.is_generator = True
            elif isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                self.locals.add(inner.id)
            elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
                self.locals.add(inner.name or "")
            elif isinstance(inner, ast.alias):
                self.locals.add(inner.asname or inner.name.partition(".")[0])
        self.locals -= self.globals | self.nonlocals

    @property
    def function(self) -> Frame:
        """The frame of the function that a comprehension or class body is in."""
        return self if self.is_function or self.parent is None else self.parent.function


class Context:
    """Where a function was defined: its global variables, the cells of its closure, its name and file."""

    def __init__(self, scope: dict[str, Any], cells: dict[str, types.CellType], name: str, file: str) -> None:
        self.scope = scope
        self.cells = cells
        self.name = name
        self.file = file

    @classmethod
    def of(cls, frame: Frame) -> Context:
        return cls(frame.scope, frame.cells, frame.name, frame.file)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function without those in functions and classes within it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own_nodes(child)
