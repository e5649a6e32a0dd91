"""Values that are not followed exactly. They count whole, with all that their methods read."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import io
import sys
import threading
import types
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import numpy as np

from coprep._attributes import attributes_of
from coprep._modules import is_compiled, is_users
from coprep._names import main_name, path_in
from coprep._reach import memory
from coprep._reach.frames import CONTEXTS, Frame
from coprep._reach.memory import ABSENT, IGNORED, SCALARS
from coprep._reach.values import UNKNOWN, Bound, Bounds, Closure, Live, Made, Method, Partial, Super, Values
from coprep._reducing import is_dispatcher

if TYPE_CHECKING:
    from coprep._reach.calls import Arguments, Named
    from coprep._reach.evaluation import Evaluation


LONG = 64
"""Shortest list whose elements are not looked at one by one, if they are records that are alike."""
OBJECTS = 500_000
"""Most objects that count whole and are looked at one by one."""
_OF_CREATION = frozenset(("__init__", "__new__", "__post_init__", "__init_subclass__", "__annotate_func__"))
"""Methods that have run for an object in memory, or tell annotations."""
_KNOWN = (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)
"""Types of members of classes whose functions are called."""


class Whole:
    """Counts values whole."""

    def __init__(self, run: Evaluation) -> None:
        self._run = run
        self.has_given_up = ""
        """Why everything counts whole, if it does."""
        self._has_all_modules = False
        self._objects: dict[int, Any] = {}
        """Objects in memory that count whole, by their id."""
        self._todo: deque[tuple[Any, str, str, bool | None]] = deque()
        self._instances: Counter[type] = Counter()
        self._alike: dict[int, Any] = {}
        """Further objects that count whole and are like others, by their id."""
        """Numbers of the objects of each class that count whole."""

    def escape(self, values: Values, why: str) -> None:
        """Counts values whole, and takes all their methods for called."""
        for value in self._run.table.each(values):
            if isinstance(value, Live):
                self.object(value.obj, value.path, why, is_outermost=True)
            elif isinstance(value, Method):
                self.escape(value.owner.bit, why)
            elif isinstance(value, Super):
                self.escape(value.first, why)
            elif not value.is_whole and value.bit != UNKNOWN:
                value.is_whole = True
                self._run.is_changed = True
                self.escape(functools.reduce(int.__or__, value.stored.values(), 0), why)
                if isinstance(value, Made):
                    self.methods(value.cls, value.bit)
                elif isinstance(value, (Bound, Closure, Partial)):
                    self._run.calls.by_library(value, [])

    def escape_arguments(self, arguments: Arguments, named: Named, star: Values, why: str) -> Values:
        for values in (*arguments, *named.values(), star):
            self.escape(values, why)
        return UNKNOWN

    def object(self, obj: Any, path: str, why: str, *, is_outermost: bool | None) -> None:
        """Counts an object whole. Its content counts with that of the outermost one, which holds it.

        Args:
            is_outermost: ``None`` if the outer one holds it in C, so that its content may leave this one out. Then it
                counts if it is an instance of a class of the user's.
        """
        self._todo.append((obj, path, why, is_outermost))
        if len(self._todo) > 1:
            return  # A call of this function is at work already.
        while self._todo:
            self._next(*self._todo[0])
            self._todo.popleft()

    def cell(self, cell: types.CellType, path: str, why: str) -> None:
        """Counts what a variable of a closure holds whole."""
        contents = memory.cell(cell)
        if contents is not ABSENT:
            self.escape(self._run.read(contents, path, (memory.cell, cell)), why)

    def is_whole(self, obj: Any) -> bool:
        return id(obj) in self._objects or id(obj) in self._alike

    def _next(self, obj: Any, path: str, why: str, is_outermost: bool | None) -> None:
        kind = type(obj)
        is_ignored = issubclass(kind, IGNORED) or memory.is_seeded(obj)
        if kind in SCALARS or kind is str or is_ignored or id(obj) in self._objects:
            return
        if len(self._objects) >= OBJECTS:
            raise Bounds(f"more than {OBJECTS} objects count whole")
        self._objects[id(obj)] = obj
        self._run.is_changed = True
        known = self._run.table.known(Live, id(obj))
        if known is not None:
            known.is_whole = True
            self.escape(functools.reduce(int.__or__, known.stored.values(), 0), why)
        if issubclass(kind, types.FunctionType):
            self._whole_function(obj, path, why)
        elif issubclass(kind, types.MethodType):
            self._whole_method(obj, path, why, is_outermost)
        elif issubclass(kind, type):
            self._run.note(obj.__module__)
            if memory.is_users_class(obj):
                self._run.count(path, "type", obj, (memory.same, obj))
                # A library may make instances of it.
                self.escape(self._run.calls.instance(obj, [], {}, UNKNOWN), why)
            if memory.is_users_class(kind):
                self.methods(kind, self._run.live(obj, path))
        elif issubclass(kind, types.ModuleType):
            self._whole_module(obj, why)
        elif issubclass(kind, types.BuiltinFunctionType):
            self.object(obj.__self__, f"{path}.__self__", why, is_outermost=is_outermost)
        else:
            self._whole_object(obj, path, why, is_outermost)

    def _whole_function(self, function: Any, path: str, why: str) -> None:
        self._run.count(path, "code", function, (memory.same, function))
        if memory.is_followed_code(function):
            self._run.calls.by_library(self._run.value(function, path), [])
            return
        self._run.note(function.__globals__.get("__name__"))
        if is_dispatcher(function):
            self._whole_dispatcher(function, path, why)
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self.cell(cell, f"{path}<{name}>", why)
        inner = memory.wrapped(function)
        if inner is not None:
            self.object(inner, path, why, is_outermost=False)

    def _whole_dispatcher(self, function: Any, path: str, why: str) -> None:
        # Its closure holds a cache, which changes by use.
        self._run.count(path, "keys", memory.classes_of(function), (memory.classes_of, function))
        for cls, one in function.registry.items():
            at = f"{path}.registry{memory.entry_suffix(cls)}"
            self.escape(self._run.read(one, at, (memory.dispatched, function, cls)), why)

    def _whole_method(self, method: Any, path: str, why: str, is_outermost: bool | None) -> None:
        if memory.is_followed_code(method.__func__):
            owner = self._run.live(method.__self__, f"{path}.__self__")
            self._run.calls.by_library(self._run.value(method.__func__, path), [owner])
        else:
            self.object(method.__self__, path, why, is_outermost=is_outermost)

    def _whole_module(self, module: types.ModuleType, why: str) -> None:
        self._run.note(module.__name__)
        if not is_users(module.__name__):
            return
        for name, value in list(vars(module).items()):
            if not (name.startswith("__") and name.endswith("__")):
                at = path_in(module.__name__, name)
                self.escape(self._run.read(value, at, (memory.entry, vars(module), name)), why)

    def of_compiled(self, name: str | None) -> None:
        """Counts a module of the user's whole if it is compiled, since nothing tells what its code reads."""
        module = sys.modules.get(name or "")
        if module is not None and is_compiled(getattr(module, "__file__", None) or "") and is_users(name):
            self.object(module, str(name), f"{name} is compiled", is_outermost=False)

    def _whole_object(self, obj: Any, path: str, why: str, is_outermost: bool | None) -> None:
        counts = memory.is_users_class(type(obj)) if is_outermost is None else is_outermost
        if counts:
            self._run.followed.add(path)
            self._run.count(path, "content", obj, (memory.same, obj), why)
        if memory.is_a(obj, (weakref.ProxyType, weakref.CallableProxyType)):
            with contextlib.suppress(ReferenceError):
                self.methods(obj.__class__, UNKNOWN)
            return
        if memory.is_identified(type(obj)):
            self.methods(type(obj), UNKNOWN)
            return
        held = memory.members_of(obj)
        is_of_thread = memory.is_a(obj, threading.local)
        if memory.is_mapping(obj):
            inner = [(memory.entry_suffix(name), memory.item(obj, name)) for name in memory.keys_of(obj)]
        elif memory.is_sequence(obj):
            # The order of a set is not that of another process.
            is_ordered = memory.is_a(obj, (list, tuple))
            elements = self._without_alike(list(memory.elements_of(obj)), why)
            inner = [(f"[{index}]" if is_ordered else "{}", one) for index, one in enumerate(elements)]
        elif issubclass(type(obj), functools.partial):
            inner = [(".func", obj.func), (".args", obj.args), (".keywords", obj.keywords)]
        elif type(obj) is np.ndarray and obj.dtype.hasobject:
            inner = [(f"[{index}]", one) for index, one in enumerate(obj.ravel().tolist())]
        else:
            inner = []
        if not memory.is_configuration(type(obj)):
            inner += [(f".{name}", one) for name, one in held.items()]
        if memory.is_a(obj, weakref.ref):
            inner.append(("()", obj()))
        elif memory.is_a(obj, contextvars.ContextVar):
            inner.append((".get()", memory.contents(obj)))
        is_seen = memory.is_mapping(obj) or memory.is_sequence(obj) or bool(held)
        is_left_out = not is_seen or (is_outermost is None and not counts)
        if (
            not inner
            and not is_of_thread
            and not memory.is_plain(obj)
            and not memory.is_a(obj, (io.IOBase, *memory.FRAMES))
            and attributes_of(obj) is None
        ):
            referents = filter(memory.may_hold_code, gc.get_referents(obj))
            inner = [(f"({index})", one) for index, one in enumerate(referents)]
        for suffix, one in inner:
            if self.is_whole(one) or memory.is_plain(one) or (is_of_thread and memory.is_handle(one)):
                continue
            self.object(one, path + suffix, why, is_outermost=None if is_left_out else False)
        if memory.is_users_class(type(obj)):
            self._instances[type(obj)] += 1
            self._run.watch(type(obj))
            # What is stored in further ones counts whole anyway.
            further = self._instances[type(obj)] - CONTEXTS
            if further <= 1:
                self.methods(type(obj), UNKNOWN if further == 1 else self._run.live(obj, path))

    def _without_alike(self, elements: list[Any], why: str) -> list[Any]:
        """Returns the elements that have to be looked at one by one: of records that are alike, the first ones."""
        if len(elements) < LONG or not memory.are_plain_records(elements):
            return elements
        first, further = elements[: CONTEXTS + 1], elements[CONTEXTS + 1 :]
        self._alike.update(zip(map(id, further), further, strict=True))
        for live in self._run.lives():
            if id(live.obj) in self._alike and not live.is_whole:
                live.is_whole = self._run.is_changed = True
                self.escape(functools.reduce(int.__or__, live.stored.values(), 0), why)
        return first

    def methods(self, cls: type, me: Values) -> None:
        """Takes all methods of the user's for called with arguments that are not known."""
        for base in cls.__mro__:
            for name, member in list(base.__dict__.items()) if memory.is_users_class(base) else ():
                if name in _OF_CREATION:
                    continue
                first = [me]
                if isinstance(member, staticmethod):
                    first = []
                elif isinstance(member, classmethod):
                    first = [self._run.live(cls, cls.__qualname__)]
                self._plain_member(base, name, member)
                for function in _functions_of(member):
                    if memory.is_followed_code(function):
                        self._run.count(f"{base.__qualname__}.{name}", "code", function, (memory.same, function))
                        self._run.calls.by_library(self._run.value(function, f"{base.__qualname__}.{name}"), first)

    def _plain_member(self, cls: type, name: str, member: Any) -> None:
        """Counts a member of a class that is no code, such as a constant."""
        is_special = name.startswith("__") and name.endswith("__")
        # Python calls what stands under such a name, whatever it is.
        is_called = memory.is_a(member, functools.partialmethod) or (callable(member) and not memory.is_a(member, type))
        is_written = is_called if is_special else name != "_abc_impl"
        if is_written and not hasattr(type(member), "__get__"):
            path = f"{cls.__qualname__}.{name}"
            why = "a member of a class that counts whole"
            self.escape(self._run.read(member, path, (memory.class_member, cls, name)), why)
        elif is_written and not memory.is_a(member, _KNOWN):
            # Such as a `functools.singledispatchmethod`, which holds functions.
            self.object(
                member, f"{cls.__qualname__}.{name}", "a member of a class that counts whole", is_outermost=False
            )

    def give_up(self, why: str, *, imports: bool = False) -> Values:
        """Counts everything that reached code can reach whole, because some of it may find anything.

        Args:
            imports: it may find all modules, too.
        """
        if not self.has_given_up:
            self.has_given_up = why
            for frame in list(self._run.frames.values()):
                self.frame(frame)
        if imports and not self._has_all_modules:
            self._has_all_modules = True
            for name in sorted(filter(is_users, list(sys.modules))):
                self.object(sys.modules[name], main_name(name), why, is_outermost=True)
        return UNKNOWN

    def frame(self, frame: Frame) -> None:
        """Counts all that a function can reach whole."""
        for values in list(frame.variables.values()):
            self.escape(values, self.has_given_up)
        for name, cell in frame.cells.items():
            self.cell(cell, f"{frame.name}<{name}>", self.has_given_up)
        module = sys.modules.get(frame.scope.get("__name__", ""))
        if module is not None:
            self.object(module, main_name(module.__name__), self.has_given_up, is_outermost=True)


def _functions_of(member: Any) -> list[Any]:
    """Returns the functions of a member of a class."""
    found = [member]
    if isinstance(member, property):
        found = [member.fget, member.fset]
    elif isinstance(member, (staticmethod, classmethod)):
        found = [member.__func__]
    elif isinstance(member, (functools.cached_property, functools.partialmethod)):
        found = [member.func]
    return [*found, *map(memory.wrapped, found)]
