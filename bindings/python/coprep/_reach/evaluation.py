"""The evaluation of reached code over the objects in memory, to find what of these it reads.

Syntax trees are evaluated without the values of numbers and arrays: all branches are taken, and functions are evaluated
until nothing is added. One rule keeps the result sound. A value is either followed exactly, or it escapes, and what
escapes counts whole. Syntax, calls and objects that are not named here escape, so that a new version of Python can only
make more count.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from coprep._names import MAINS, main_name
from coprep._reach import memory
from coprep._reach.calls import Calls
from coprep._reach.frames import Context, Frame
from coprep._reach.memory import IGNORED, SCALARS, Again, Read
from coprep._reach.objects import Objects
from coprep._reach.syntax import Syntax
from coprep._reach.values import ITEMS, UNKNOWN, Bound, Bounds, Box, Live, Made, Method, Table, Text, Value, Values
from coprep._reach.watched import Watched
from coprep._reach.whole import Whole

ROUNDS = 60
"""Most times that all reached functions are evaluated."""
READS = 20_000
"""Most members that count by themselves. A dataset that reads more of them counts whole."""


class Evaluation:
    """Evaluates reached code function by function, and collects the members that it reads."""

    def __init__(self, dataset: Any) -> None:
        self.worker_info = types.SimpleNamespace(dataset=dataset)
        """Stands for what ``torch.utils.data.get_worker_info()`` gives in a worker."""
        self.reads_worker_info = False
        self.reads: dict[tuple[str, str], Read] = {}
        self._counted: set[tuple[Any, ...]] = set()
        self._plain: dict[int, Any] = {}
        """Objects that hold nothing to follow, by their id. To find this out takes long for a list of all paths."""
        self._paths: Counter[tuple[str, str]] = Counter()
        self.followed: set[str] = set()
        """Paths of objects that count whole and hold something to follow."""
        self.modules: dict[str, None] = {}
        """Modules of libraries that reached code names."""
        self.imports: dict[str, None] = {}
        """Modules that reached code imports and that are not imported yet."""
        self.strings: dict[str, None] = {}
        """Constants of reached code, which may be relative paths."""
        self.codes: dict[tuple[str, str], dict[types.CodeType, None]] = {}
        """Reached code, by module and name."""
        self.functions: dict[int, types.FunctionType] = {}
        """Reached functions by their id."""
        self.watched = Watched()
        """The code from which objects have their members, and which is evaluated."""
        self._classes: set[type] = set()
        self.opaque: dict[str, str] = {}
        """Why code counts with all that it names, by its path."""
        self.table = Table()
        self.unmet: defaultdict[int, set[Frame]] = defaultdict(set)
        """Functions whose evaluation has read what is stored in a class that was not met, by its id."""
        self.frames: dict[tuple[Any, ...], Frame] = {}
        self._within: dict[tuple[ast.AST, Frame], Frame] = {}
        self.contexts: defaultdict[ast.AST, int] = defaultdict(int)
        self.is_changed = False
        self._changes = 0
        """Number of changes that may concern any function."""
        self.frame: Frame | None = None
        self.node: ast.AST | None = None
        self.objects = Objects(self)
        self.whole = Whole(self)
        self.calls = Calls(self)
        self.syntax = Syntax(self)

    def run(self, start: Callable[[], Any]) -> None:
        """Evaluates what ``start`` calls, and what that reaches, until nothing is added.

        Raises:
            Bounds: that is too much.
        """
        for number in range(ROUNDS):
            self.is_changed = False
            start()
            known = list(self.frames.values())
            # Arguments go from callers to the functions that they call, and results the other way.
            self._evaluate(known if number % 2 == 0 else reversed(known))
            while len(known) < len(self.frames):
                new = list(self.frames.values())[len(known) :]
                known += new
                self._evaluate(new)
            if not self.is_changed:
                return
        raise Bounds("the code that makes samples is too intricate")

    def _evaluate(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            if not frame.is_due and frame.seen == self._changes:
                continue
            frame.is_due, frame.seen = False, self._changes
            self.frame = frame
            if isinstance(frame.node, ast.Lambda):
                self.syntax.give_back(frame, self.syntax.value(frame.node.body, frame))
            else:
                self.syntax.block(frame.node.body, frame)
        self.frame = None

    def change(self) -> None:
        """Has all functions evaluated again: something has changed that any of them may have read."""
        self.is_changed = True
        self._changes += 1

    def change_for(self, readers: Iterable[Frame]) -> None:
        """Has functions evaluated again that have read what has changed."""
        self.is_changed = True
        for frame in readers:
            frame.is_due = True

    def note_reader(self, readers: set[Frame]) -> None:
        """Notes that the evaluation of the present function depends on something."""
        if self.frame is not None:
            readers.add(self.frame)

    def stored(self, value: Value, name: str) -> Values:
        """Returns what reached code has stored in a value under a name."""
        self.note_reader(value.readers)
        return value.stored.get(name, 0)

    def all_stored(self, value: Value) -> Values:
        """Returns all that reached code has stored in a value."""
        self.note_reader(value.readers)
        return functools.reduce(int.__or__, value.stored.values(), 0)

    def count(self, path: str, how: str, value: Any, again: Again, why: str = "", first: str = "") -> None:
        """Counts a member, once. Members of different objects may have one path, and get numbers.

        Args:
            first: the path at which it was met first.
        """
        member = (path, how, *map(id, again[1:2]), *again[2:])
        if member in self._counted:
            return
        if len(self.reads) >= READS:
            raise Bounds(f"the code that makes samples reads more than {READS} members")
        self._counted.add(member)
        self._paths[path, how] += 1
        if self._paths[path, how] > 1:
            path = f"{path} ({self._paths[path, how]})"
        about = memory.about(how, value), first or path
        self.reads[path, how] = Read(path, how, value, self._line(), again, about, why)
        self.is_changed = True

    def _line(self) -> str:
        if self.frame is None:
            return ""
        line = getattr(self.node, "lineno", self.frame.node.lineno)
        return f"{self.frame.file.rpartition('/')[2]}:{line} ({self.frame.name})"

    def live(self, obj: Any, path: str) -> Values:
        return self._live(obj, path).bit

    def _live(self, obj: Any, path: str) -> Live:
        live: Live = self.table.one(Live, id(obj), make=(obj, path))
        live.readers |= self.unmet.pop(id(obj), set())
        self.watch(obj if memory.is_a(obj, type) else type(obj))
        live.is_whole = live.is_whole or self.whole.is_whole(obj)
        return live

    def watch(self, cls: type) -> None:
        """Notes the classes from which objects have their members."""
        if cls not in self._classes:
            self._classes.add(cls)
            for base in filter(memory.is_users_class, cls.__mro__):
                self.watched.add_class(base)
                self.whole.of_compiled(base.__module__)

    def value(self, obj: Any, path: str) -> Value:
        return self._live(obj, path)

    def lives(self) -> list[Live]:
        """Returns the objects in memory that were met."""
        return self.table.of(Live)

    def text(self, text: str) -> Values:
        bit: Values = self.table.one(Text, text).bit
        return bit

    def read(self, obj: Any, path: str, again: Again) -> Values:
        """Counts a member that reached code reads, and returns what it may be."""
        kind = type(obj)
        if kind is str:
            self.count(path, "value", obj, again)
            return self.text(obj)
        if kind in SCALARS:
            self.count(path, "value", obj, again)
            return UNKNOWN
        if issubclass(kind, IGNORED) or memory.is_global_generator(obj):
            return UNKNOWN
        if memory.is_seeded(obj):
            self.count(path, "type", obj, again, first=path)
            return self.live(obj, path) if memory.is_users_class(kind) else UNKNOWN
        if issubclass(kind, types.ModuleType):
            self.note(obj.__name__)
            return self.live(obj, main_name(obj.__name__))
        if id(obj) in self._plain or memory.is_plain(obj):
            self._plain[id(obj)] = obj
            self.count(path, "content", obj, again)
            return UNKNOWN
        live = self._live(obj, path)
        # Where it was met first tells which of several objects it is.
        if kind in (types.FunctionType, types.BuiltinFunctionType):
            self.count(path, "code", obj, again, first=live.path)
        else:
            self.count(path, "type", obj, again, first=live.path)
        return live.bit

    def note(self, module: Any) -> None:
        if isinstance(module, str) and module not in MAINS:
            self.modules[module] = None
            if not memory.READ_ENVIRONMENT.isdisjoint((module, module.partition(".")[0])):
                self.whole.escape(self.live(os.environ, memory.ENVIRONMENT), f"{module} reads it")

    def put(self, holder: Value, name: str, values: Values) -> None:
        """Stores values in an attribute, or in a container under ``ITEMS``."""
        before = holder.stored.get(name, 0)
        if values & ~before:
            holder.stored[name] = before | values
            self.change_for(holder.readers)
            if holder.is_whole:
                self.whole.escape(values, "stored in what counts whole")

    def box(self, place: Any, values: Values) -> Values:
        found = self.table.one(Box, place, make=())
        self.put(found, ITEMS, values)
        bit: Values = found.bit
        return bit

    def bound(self, function: Any, path: str, first: Values) -> Values:
        (value,) = self.table.each(self.live(function, path))
        bit: Values = self.table.one(Bound, value, first).bit
        return bit

    def method(self, name: str, owner: Value) -> Values:
        bit: Values = self.table.one(Method, name, owner).bit
        return bit

    def class_of(self, value: Value) -> type | None:
        """Returns the class of an object, or ``None`` for a value whose class is not followed."""
        if isinstance(value, Made):
            return value.cls
        return type(value.obj) if isinstance(value, Live) and not isinstance(value.obj, type) else None

    def bind(self, frame: Frame, name: str, values: Values) -> None:
        if name in frame.globals:
            self.put(self.scope(frame), name, values)
            return
        if name in frame.nonlocals:
            at = frame
            while at.parent is not None and name not in at.locals:
                at = at.parent
            if name in at.locals:
                self.bind(at, name, values)
            elif name in at.cells:
                # Other closures in memory may have the same cell.
                self.put(self.cell(at.cells[name]), name, values)
            return
        before = frame.variables.setdefault(name, 0)
        if values & ~before:
            frame.variables[name] = before | values
            self.change_for(frame.readers)
            if self.whole.has_given_up:
                self.whole.escape(values, self.whole.has_given_up)

    def within(self, node: ast.AST, frame: Frame) -> Frame:
        """Returns the frame of a comprehension or class body."""
        found = self._within.get((node, frame))
        if found is None:
            found = self._within[node, frame] = Frame(node, frame, Context.of(frame))
        return found

    def cell(self, cell: types.CellType) -> Value:
        """Returns the value that keeps what reached code has stored in a variable of a closure."""
        found: Value = self.table.one(Live, id(cell), make=(cell, "a closure"))
        return found

    def scope(self, frame: Frame) -> Value:
        """Returns the value that keeps what reached code has stored in global variables."""
        name = main_name(str(frame.scope.get("__name__")))
        module = sys.modules.get(str(frame.scope.get("__name__")))
        if module is not None and vars(module) is frame.scope:
            kept: Value = self.table.one(Live, id(module), make=(module, name))
            return kept
        scope: Value = self.table.one(Live, id(frame.scope), make=(frame.scope, name))
        return scope

    def imported(self, name: str) -> Values:
        """Returns the module of a name, and notes one that is not imported yet."""
        module = sys.modules.get(name)
        if module is None:
            self.imports[name] = None
            return UNKNOWN
        self.note(name)
        return self.live(module, main_name(name))
