"""Calls: of functions of the user's, which are evaluated, and of others."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coprep._modules import is_users
from coprep._names import main_name, path_in
from coprep._reach import memory
from coprep._reach.frames import CONTEXTS, Context, Frame
from coprep._reach.trees import Function, positional, trees_of
from coprep._reach.values import ITEMS, UNKNOWN, Bound, Box, Closure, Live, Made, Method, Partial, Value, Values

if TYPE_CHECKING:
    from coprep._reach.evaluation import Evaluation


_OPAQUE = frozenset(("gc", "inspect", "ctypes", "pdb", "code"))
"""Modules whose functions may find anything."""
_SWITCHES = frozenset(("get_threshold", "set_threshold", "enable", "disable", "isenabled", "collect", "freeze"))
"""Functions of ``gc`` that do not."""
_TRANSPARENT = ("contextlib", "torch.utils._contextlib")
"""Modules whose decorators call the function that they wrap with the same arguments."""
_FIELDS = frozenset(("__pydantic_fields__", "__fields__", "__struct_defaults__"))
"""Members of classes of pydantic and msgspec, with the defaults that their constructors use."""

Arguments = list[Values]
Named = dict[str, Values]


class Calls:
    """Calls functions, methods and classes."""

    def __init__(self, run: Evaluation) -> None:
        self._run = run
        self._is_by_library = False
        self._opaque: set[int] = set()
        """Functions whose source is not known, by their id."""

    def call(self, functions: Values, arguments: Arguments, named: Named, star: Values = 0) -> Values:
        """Calls all functions of a set. ``star`` may be any of their arguments, beside those that are given."""
        found: Values = 0
        for function in self._run.table.each(functions):
            found |= self.call_one(function, arguments, named, star)
        return found or UNKNOWN

    def by_library(self, function: Value, arguments: Arguments) -> None:
        """Calls a function as a library may do: with any further arguments, and what it returns counts whole."""
        before, self._is_by_library = self._is_by_library, True
        try:
            self.call_one(function, arguments, {}, UNKNOWN)
        finally:
            self._is_by_library = before

    def call_one(self, function: Value, arguments: Arguments, named: Named, star: Values) -> Values:
        if isinstance(function, Bound):
            return self.call_one(function.function, [function.first, *arguments], named, star)
        if isinstance(function, Closure):
            frame = function.frame
            context = Context(frame.scope, frame.cells, getattr(function.node, "name", "<lambda>"), frame.file)
            defaults, kwdefaults = self._defaults(function.node, frame)
            return self._enter(function.node, frame, context, (defaults, kwdefaults), arguments, named, star)
        if isinstance(function, Method):
            from coprep._reach.understood import call_method

            return call_method(self._run, function, arguments, named, star)
        if isinstance(function, Partial):
            held = self._run.stored(function, ITEMS)
            return self.call(self._run.stored(function, "function"), arguments, named, star | held)
        if isinstance(function, Live):
            return self._call_live(function, arguments, named, star)
        if isinstance(function, Made):
            method = memory.method_of(function.cls, "__call__")
            if method is not None:
                return self.function(method, [function.bit, *arguments], named, star)
            self._run.whole.escape(function.bit, "called, and not code of yours")
        return self._run.whole.escape_arguments(arguments, named, star, "given to code that is not known")

    def _call_live(self, function: Live, arguments: Arguments, named: Named, star: Values) -> Values:
        from coprep._reach.understood import UNDERSTOOD

        obj, path = function.obj, function.path
        if obj is getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None):
            self._run.reads_worker_info = True
            return self._run.live(self._run.worker_info, "get_worker_info()")
        understood = UNDERSTOOD.get(id(obj))
        if understood is not None:
            return understood(self._run, arguments, named, star)
        why = f"given to {path}"
        kind = type(obj)
        if kind is types.FunctionType:
            return self._call_function(function, arguments, named, star)
        if kind is types.MethodType:
            owner = self._run.read(obj.__self__, f"{path}.__self__", (memory.same, obj.__self__))
            (inner,) = self._run.table.each(self._run.live(obj.__func__, path))
            return self.call_one(inner, [owner, *arguments], named, star)
        if issubclass(kind, functools.partial) and memory.method_of(kind, "__call__") is None:
            return self._call_partial(function, arguments, named, star)
        if issubclass(kind, type):
            return self.instance(obj, arguments, named, star)
        if issubclass(kind, types.BuiltinFunctionType):
            self._run.note(obj.__module__)
            self._run.whole.of_compiled(obj.__module__)
            if _is_opaque(obj):
                return self._run.whole.give_up(f"given to {obj.__name__}", imports=True)
            if obj.__self__ is not None and not isinstance(obj.__self__, types.ModuleType):
                owner = self._run.live(obj.__self__, f"{path}.__self__")
                self._run.whole.escape(owner, "its method is a library's")
            return self._run.whole.escape_arguments(arguments, named, star, why)
        method = memory.method_of(kind, "__call__")
        if method is not None:
            return self.function(method, [function.bit, *arguments], named, star)
        if memory.calls_forward(obj):
            # A hook may be added later.
            self._run.count(f"{path}.forward", "presence", True, (memory.calls_forward, obj))
            return self.call(self._run.objects.attribute(function.bit, "forward"), arguments, named, star)
        code: Any = memory.wrapped(obj) if memory.library_of(obj) == "functools" else None
        if memory.is_followed_code(code) or memory.is_a(code, type):
            known = memory.ABSENT if arguments or named or star else memory.remembered(obj)
            found = 0 if known is memory.ABSENT else self._run.read(known, f"{path}()", (memory.remembered, obj))
            run: Callable[[Any, Arguments, Named, Values], Values]
            run = self.function if memory.is_followed_code(code) else self.instance
            return found | run(code, arguments, named, star)
        module = getattr(obj, "__module__", None)
        if memory.is_compiled(obj) and not is_users(module):
            self._run.note(module)
        else:
            self._run.whole.escape(function.bit, "called, and not code of yours")
        return self._run.whole.escape_arguments(arguments, named, star, why)

    def _call_partial(self, function: Live, arguments: Arguments, named: Named, star: Values) -> Values:
        obj, path = function.obj, function.path
        read = self._run.read
        given = {name: read(one, f"{path}.{name}", (memory.same, one)) for name, one in obj.keywords.items()}
        first = [read(one, f"{path}[{index}]", (memory.same, one)) for index, one in enumerate(obj.args)]
        inner = read(obj.func, f"{path}.func", (memory.same, obj.func))
        return self.call(inner, [*first, *arguments], {**given, **named}, star)

    def _call_function(self, function: Live, arguments: Arguments, named: Named, star: Values) -> Values:
        obj = function.obj
        if memory.is_followed_code(obj):
            return self.function(obj, arguments, named, star)
        self._run.note(obj.__module__)
        if _is_opaque(obj):
            return self._run.whole.give_up(f"given to {function.path}", imports=True)
        inner = memory.wrapped(obj)
        self._run.note(obj.__globals__.get("__name__"))
        if memory.is_followed_code(inner) and obj.__globals__.get("__name__") in _TRANSPARENT:
            for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=False):
                # A context that is entered for the call.
                if memory.cell(cell) is not inner:
                    self._run.whole.cell(cell, f"{function.path}<{name}>", "a decorator of a library holds it")
            return self.function(inner, arguments, named, star)
        if inner is not None or obj.__closure__:
            self._run.whole.escape(function.bit, "a function that a library has made")
        return self._run.whole.escape_arguments(arguments, named, star, f"given to {function.path}")

    def instance(self, cls: type, arguments: Arguments, named: Named, star: Values) -> Values:
        why = f"given to {cls.__qualname__}()"
        if not memory.is_users_class(cls):
            self._run.note(cls.__module__)
            if cls.__module__ == "argparse":
                self._run.whole.escape(self._run.objects.attribute(self._run.imported("sys"), "argv"), why)
            return self._run.whole.escape_arguments(arguments, named, star, why)
        self._run.watch(cls)
        for base in cls.__mro__:
            if not memory.is_users_class(base):
                self._run.note(base.__module__)
        made: Values = self._run.table.one(Made, cls).bit
        creator = memory.method_of(type(cls), "__call__")
        if creator is not None:
            return self.function(creator, [self._run.live(cls, cls.__qualname__), *arguments], named, star) | made
        is_followed = False
        for name in ("__new__", "__init__", "__post_init__"):
            member = memory.in_class(cls, name)
            method = getattr(member, "__func__", member)
            if memory.is_followed_code(method):
                is_followed = is_followed or name != "__post_init__"
                self._run.count(f"{cls.__qualname__}.{name}", "code", method, (memory.attribute, None, cls, name))
                first = made if name != "__new__" else self._run.live(cls, cls.__qualname__)
                given = self.function(method, [first, *arguments], named, star)
                # It may give an instance that it keeps.
                made |= given if name == "__new__" else 0
        if not is_followed:
            self._run.whole.escape_arguments(arguments, named, star, why)
            for name in sorted(_FIELDS & cls.__dict__.keys()):
                again = (memory.class_member, cls, name)
                self._run.whole.escape(self._run.read(cls.__dict__[name], f"{cls.__qualname__}.{name}", again), why)
        return made

    def function(self, function: Any, arguments: Arguments, named: Named | None = None, star: Values = 0) -> Values:
        """Calls a function of the user's."""
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        context = Context(function.__globals__, cells, function.__qualname__, code.co_filename)
        at = path_in(function.__module__ or "", function.__qualname__)
        self._run.functions[id(function)] = function
        self._run.watched.add_function(function)
        codes = self._run.codes.setdefault((function.__module__ or "", function.__qualname__), {})
        if code not in codes:
            codes[code] = None
            self._run.is_changed = True
        trees = trees_of(code)
        if not trees:
            return self._run_opaque(function, at, arguments, named or {}, star)
        found: Values = 0
        for tree in trees:
            defaults = [values for _, values in self._defaults_of(function, at)]
            kwdefaults = dict(self._defaults_by_keyword(function, at))
            found |= self._enter(tree, None, context, (defaults, kwdefaults), arguments, named or {}, star)
        return found

    def _defaults_of(self, function: Any, at: str) -> list[tuple[str, Values]]:
        """Returns the defaults of parameters in their order, by name."""
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        return [(name, self._default(one, at, name)) for name, one in zip(names, defaults, strict=True)]

    def _defaults_by_keyword(self, function: Any, at: str) -> list[tuple[str, Values]]:
        return [(name, self._default(one, at, name)) for name, one in (function.__kwdefaults__ or {}).items()]

    def _default(self, value: Any, at: str, name: str) -> Values:
        return self._run.read(value, f"{at}'s default of {name}", (memory.same, value))

    def _run_opaque(self, function: Any, at: str, arguments: Arguments, named: Named, star: Values) -> Values:
        """Counts all that code names whole, since its source is not known."""
        if id(function) not in self._opaque:
            self._opaque.add(id(function))
            self._run.opaque[at] = why = f"the source of {at} is missing, or is not that of the code in memory"
            names: set[str] = set()
            todo = [function.__code__]
            for code in todo:
                names.update(code.co_names)
                todo += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
                self._run.whole.cell(cell, f"{at}<{name}>", why)
            scope = function.__globals__
            home = scope.get("__name__", "")
            for name in sorted(names & scope.keys()):
                path = path_in(home, name) if home else name
                self._run.whole.escape(self._run.read(scope[name], path, (memory.entry, scope, name)), why)
            for name in sorted(filter(is_users, names - scope.keys())):
                # It may import a module of this name.
                self._run.whole.escape(self._run.imported(name), why)
            for _, values in (*self._defaults_of(function, at), *self._defaults_by_keyword(function, at)):
                self._run.whole.escape(values, why)
            if names & {"eval", "exec", "globals", "locals", "__import__"} and home in sys.modules:
                self._run.whole.object(sys.modules[home], main_name(home), why, is_outermost=True)
        return self._run.whole.escape_arguments(arguments, named, star, "given to code whose source is not known")

    def _defaults(self, node: Function, frame: Frame) -> tuple[Arguments, Named]:
        names = [arg.arg for arg in node.args.kwonlyargs]
        given = [(name, default) for name, default in zip(names, node.args.kw_defaults, strict=True) if default]
        defaults = [self._run.syntax.value(default, frame) for default in node.args.defaults]
        return defaults, {name: self._run.syntax.value(default, frame) for name, default in given}

    def _enter(
        self,
        node: Function,
        parent: Frame | None,
        context: Context,
        defaults: tuple[Arguments, Named],
        arguments: Arguments,
        named: Named,
        star: Values,
    ) -> Values:
        """Returns what a function may return for these arguments. Its body is evaluated in the next round."""
        first = [arg.arg for arg in positional(node)]
        only = [arg.arg for arg in node.args.kwonlyargs]
        unset = dict(zip(first[len(first) - len(defaults[0]) :], defaults[0], strict=True)) | defaults[1]
        variables: Named = {}
        for index, name in enumerate(first + only):
            is_given = index < min(len(arguments), len(first))
            given = arguments[index] if is_given else named.get(name, unset.get(name, UNKNOWN))
            variables[name] = given | star
        if node.args.vararg is not None:
            rest = functools.reduce(int.__or__, arguments[len(first) :], star)
            variables[node.args.vararg.arg] = self._run.box((node, "*"), rest)
        if node.args.kwarg is not None:
            others = (values for name, values in named.items() if name not in variables)
            variables[node.args.kwarg.arg] = self._run.box((node, "**"), functools.reduce(int.__or__, others, star))
        home = (node, parent, id(context.scope), tuple(map(id, context.cells.values())))
        # The elements of containers are merged anyway.
        key: tuple[Any, ...] = (*home, *(values & ~self._boxes(values) for values in variables.values()))
        if key not in self._run.frames:
            if self._run.contexts[node] >= CONTEXTS:
                key = (*home, "any")
            self._run.contexts[node] += 1
        if key not in self._run.frames:
            self._run.frames[key] = Frame(node, parent, context)
            self._run.is_changed = True
            if self._run.whole.has_given_up:
                self._run.whole.frame(self._run.frames[key])
        frame = self._run.frames[key]
        if self._is_by_library and not frame.is_whole:
            frame.is_whole = True
            self._run.whole.escape(frame.returned, "returned to a library")
        for name, values in variables.items():
            self._run.bind(frame, name, values)
        if not frame.is_generator:
            self._run.note_reader(frame.callers)
            return frame.returned
        generator = self._run.box((node, "yield"), 0)
        if frame.is_whole:
            self._run.whole.escape(generator, "given to a library")
        return generator

    def _boxes(self, values: Values) -> Values:
        return functools.reduce(
            int.__or__, (value.bit for value in self._run.table.each(values) if isinstance(value, Box)), 0
        )


def _is_opaque(function: Any) -> bool:
    """Returns whether a function of a library may find anything."""
    return (function.__module__ in _OPAQUE and function.__name__ not in _SWITCHES) or function.__name__ == "_getframe"
