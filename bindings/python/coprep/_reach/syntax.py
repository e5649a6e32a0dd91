"""Statements and expressions."""

from __future__ import annotations

import ast
import sys
import types
from typing import TYPE_CHECKING, Any

from coprep._names import main_name, path_in
from coprep._reach import memory
from coprep._reach.frames import Frame
from coprep._reach.memory import ABSENT
from coprep._reach.objects import TEXTS
from coprep._reach.values import ITEMS, UNKNOWN, Box, Closure, Live, Made, Method, Super, Text, Values

if TYPE_CHECKING:
    from coprep._reach.calls import Arguments, Named
    from coprep._reach.evaluation import Evaluation
_RETURNED = "returned"
"""The name under which a generator keeps what it returns when it ends."""


class Syntax:
    """Evaluates statements and expressions."""

    def __init__(self, run: Evaluation) -> None:
        self._run = run

    def give_back(self, frame: Frame, values: Values) -> None:
        if values & ~frame.returned:
            frame.returned |= values
            self._run.change_for(frame.callers)
            if frame.is_whole:
                self._run.whole.escape(values, "returned to a library")
            if frame.is_generator:
                (generator,) = self._run.table.each(self._run.box((frame.node, "yield"), 0))
                self._run.put(generator, _RETURNED, values)

    def block(self, body: list[ast.stmt], frame: Frame) -> None:
        for statement in body:
            self._run.node = statement
            evaluate = getattr(self, f"_run_{type(statement).__name__}", self._run_other)
            evaluate(statement, frame)

    def _run_nothing(self, node: ast.stmt, frame: Frame) -> None:
        pass

    _run_Pass = _run_Break = _run_Continue = _run_Global = _run_Nonlocal = _run_nothing

    def _run_Delete(self, node: ast.Delete, frame: Frame) -> None:
        targets = list(node.targets)
        for target in targets:
            if isinstance(target, (ast.Tuple, ast.List)):
                targets += target.elts
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                self._run.whole.escape(self.value(target.value, frame), "a member of it is deleted")
            if isinstance(target, ast.Subscript):
                self._run.whole.escape(self.value(target.slice, frame), "used as a key")

    def _run_Expr(self, node: ast.Expr, frame: Frame) -> None:
        self.value(node.value, frame)

    def _run_Return(self, node: ast.Return, frame: Frame) -> None:
        self.give_back(frame, UNKNOWN if node.value is None else self.value(node.value, frame))

    def _run_Assign(self, node: ast.Assign, frame: Frame) -> None:
        values = self.value(node.value, frame)
        for target in node.targets:
            self._assign(target, node.value, values, frame)

    def _run_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._assign(node.target, node.value, self.value(node.value, frame), frame)

    def _run_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:
        target: Any = node.target
        values = self._operation(node, self.value(target, frame) | self.value(node.value, frame))
        self._assign(target, None, values, frame)

    def _run_For(self, node: ast.For | ast.AsyncFor, frame: Frame) -> None:
        self._assign(node.target, None, self._run.objects.elements(self.value(node.iter, frame)), frame)
        self.block(node.body + node.orelse, frame)

    _run_AsyncFor = _run_For

    def _run_If(self, node: ast.If | ast.While, frame: Frame) -> None:
        self.truth(node.test, frame)
        self.block(node.body + node.orelse, frame)

    _run_While = _run_If

    def _run_With(self, node: ast.With | ast.AsyncWith, frame: Frame) -> None:
        enter, leave = ("__aenter__", "__aexit__") if isinstance(node, ast.AsyncWith) else ("__enter__", "__exit__")
        for managed in node.items:
            entered: Values = UNKNOWN
            for value in self._run.table.each(self.value(managed.context_expr, frame)):
                if isinstance(value, Box):
                    entered |= self._run.stored(value, ITEMS)
                elif isinstance(value, (Live, Made)):
                    entered |= self._run.calls.call(self._run.objects.attribute(value.bit, enter), [], {})
                    self._run.calls.call(self._run.objects.attribute(value.bit, leave), [UNKNOWN] * 3, {})
            if managed.optional_vars is not None:
                self._assign(managed.optional_vars, None, entered, frame)
        self.block(node.body, frame)

    _run_AsyncWith = _run_With

    def _run_Try(self, node: Any, frame: Frame) -> None:
        self.block(node.body + node.orelse + node.finalbody, frame)
        for handler in node.handlers:
            if handler.type is not None:
                self._run.objects.elements(self.value(handler.type, frame), "compared")
            if handler.name is not None:
                self._run.bind(frame, handler.name, UNKNOWN)
            self.block(handler.body, frame)

    _run_TryStar = _run_Try

    def _run_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
        # The variables of a class body are not those of its methods.
        within = frame if frame.is_function else frame.function
        values: Values = self._run.table.one(Closure, node, within).bit
        for decorator in reversed(node.decorator_list):
            values |= self._run.calls.call(self.value(decorator, frame), [values], {})
        self._run.bind(frame, node.name, values)

    _run_AsyncFunctionDef = _run_FunctionDef

    def _run_Raise(self, node: ast.Raise, frame: Frame) -> None:
        for part in (node.exc, node.cause):
            if part is not None:
                self._run.whole.escape(self._run.objects.but_code(self.value(part, frame)), "raised")

    def _run_Assert(self, node: ast.Assert, frame: Frame) -> None:
        self.truth(node.test, frame)
        if node.msg is not None:
            self._run.whole.escape(self._run.objects.but_code(self.value(node.msg, frame)), "raised")

    def _run_Import(self, node: ast.Import, frame: Frame) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self._run.bind(frame, alias.asname or name, self._run.imported(alias.name) and self._run.imported(name))

    def _run_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        base = node.module or ""
        if node.level:
            package = str(frame.scope.get("__package__") or "").split(".")
            base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            module = self._run.imported(base)
            inner = sys.modules.get(f"{base}.{alias.name}")
            if base in sys.modules and alias.name not in vars(sys.modules[base]) and inner is not None:
                values = self._run.imported(f"{base}.{alias.name}")
            elif module == UNKNOWN:
                self._run.imports[f"{base}.{alias.name}"] = None
                values = UNKNOWN
            else:
                values = self._run.objects.attribute(module, alias.name)
            self._run.bind(frame, alias.asname or alias.name, values)

    def _run_ClassDef(self, node: ast.ClassDef, frame: Frame) -> None:
        """A class that reached code defines: all in it counts whole."""
        why = f"in the class {node.name}, which reached code defines"
        body = self._run.within(node, frame)
        self.block(node.body, body)
        for part in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)):
            self._run.whole.escape(self.value(part, frame), why)
        self._run.note_reader(body.readers)
        for values in list(body.variables.values()):
            self._run.whole.escape(values, why)
        self._run.bind(frame, node.name, UNKNOWN)

    def _run_other(self, node: ast.stmt, frame: Frame) -> None:
        """``match``, and what Python may add: all that it names escapes."""
        why = f"named in a statement that is not followed ({type(node).__name__.lower()})"
        for inner in ast.walk(node):
            if isinstance(inner, ast.expr) and isinstance(getattr(inner, "ctx", None), (ast.Load, type(None))):
                self._run.whole.escape(self.value(inner, frame), why)
            elif isinstance(inner, ast.stmt) and inner is not node:
                self.block([inner], frame)
            self._run.note_reader(frame.readers)
            for name in (getattr(inner, "name", None), getattr(inner, "rest", None)):
                if isinstance(name, str) and not isinstance(inner, (ast.stmt, ast.alias)):
                    self._run.whole.escape(frame.variables.get(name, 0), why)
                    self._run.bind(frame, name, UNKNOWN)

    def _assign(self, target: ast.expr, source: ast.expr | None, values: Values, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            self._run.bind(frame, target.id, values)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None, self._run.box((target, "*"), values), frame)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, source, values, frame)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            for holder in self._run.table.each(self.value(target.value, frame)):
                if isinstance(target, ast.Attribute):
                    self._run.objects.store(holder, target.attr, self._run.text(target.attr), values)
                else:
                    key = self.value(target.slice, frame)
                    self._run.whole.escape(key, "used as a key")
                    is_slice = isinstance(target.slice, ast.Slice)
                    held = values | self._run.objects.elements(values) if is_slice else values
                    self._run.objects.store(holder, ITEMS, key, held)

    def _unpack(self, target: ast.Tuple | ast.List, source: ast.expr | None, values: Values, frame: Frame) -> None:
        targets = target.elts
        sources = source.elts if isinstance(source, (ast.Tuple, ast.List)) else []
        if len(sources) == len(targets) and not any(isinstance(one, ast.Starred) for one in targets + sources):
            for inner, one in zip(targets, sources, strict=True):
                self._assign(inner, one, self.value(one, frame), frame)
            return
        held = self._run.objects.elements(values, "unpacked")
        for inner in targets:
            self._assign(inner, None, held, frame)

    def value(self, node: ast.expr, frame: Frame) -> Values:
        """Returns what an expression may be."""
        evaluate: Any = getattr(self, f"_value_{type(node).__name__}", None)
        if evaluate is not None:
            found: Values = evaluate(node, frame)
            return found
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.expr):
                why = f"used in an expression that is not followed ({type(node).__name__.lower()})"
                self._run.whole.escape(self.value(inner, frame), why)
        return UNKNOWN

    def _value_Constant(self, node: ast.Constant, frame: Frame) -> Values:
        if not isinstance(node.value, str):
            return UNKNOWN
        self._run.strings[node.value] = None
        return self._run.text(node.value)

    def _value_Name(self, node: ast.Name, frame: Frame) -> Values:
        name = node.id
        at: Frame | None = frame
        while at is not None:
            self._run.note_reader(at.readers)
            if name in at.variables and name not in at.globals:
                return at.variables[name] or UNKNOWN
            if name in at.cells:
                contents = memory.cell(at.cells[name])
                stored = self._run.stored(self._run.cell(at.cells[name]), name)
                if contents is not ABSENT:
                    return stored | self._run.read(contents, f"{at.name}<{name}>", (memory.cell, at.cells[name]))
                if stored:
                    return stored
            at = at.parent
        stored = self._run.stored(self._run.scope(frame), name)
        scope = frame.scope
        if name == "__name__":
            return stored | self._run.text(main_name(str(scope.get(name))))
        if name in scope:
            path = path_in(str(scope.get("__name__")), name)
            return stored | self._run.read(scope[name], path, (memory.entry, scope, name))
        builtin = scope.get("__builtins__", {})
        builtin = vars(builtin) if isinstance(builtin, types.ModuleType) else builtin
        self._run.watched.add_absent(scope, name)
        if name in builtin:
            return stored | self._run.live(builtin[name], name)
        return stored or UNKNOWN

    def _value_Attribute(self, node: ast.Attribute, frame: Frame) -> Values:
        return self._run.objects.attribute(self.value(node.value, frame), node.attr)

    def _value_Subscript(self, node: ast.Subscript, frame: Frame) -> Values:
        values, key = self.value(node.value, frame), self.value(node.slice, frame)
        found = self._run.objects.subscript(values, key)
        return (
            found | self._run.box(node, self._run.objects.elements(values))
            if isinstance(node.slice, ast.Slice)
            else found
        )

    def _value_Slice(self, node: ast.Slice, frame: Frame) -> Values:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self._run.whole.escape(self.value(part, frame), "used as an index")
        return UNKNOWN

    def _value_Tuple(self, node: ast.Tuple | ast.List | ast.Set, frame: Frame) -> Values:
        held: Values = 0
        for element in node.elts:
            held |= self.value(element, frame)
        return self._run.box(node, held)

    _value_List = _value_Tuple

    def _value_Set(self, node: ast.Set, frame: Frame) -> Values:
        values = self._value_Tuple(node, frame)
        self._run.whole.escape(values, "put into a set")
        return values

    def _value_Dict(self, node: ast.Dict, frame: Frame) -> Values:
        held: Values = 0
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                held |= self.spread(self.value(value, frame))
                continue
            self._run.whole.escape(self.value(key, frame), "used as a key")
            held |= self.value(value, frame)
        return self._run.box(node, held)

    def spread(self, values: Values) -> Values:
        """Returns what ``**`` gives."""
        found: Values = 0
        for value in self._run.table.each(values):
            if value.bit != UNKNOWN and not isinstance(value, Text):
                found |= self._run.objects.members(value, "given by **")
        return found or UNKNOWN

    def _value_Starred(self, node: ast.Starred, frame: Frame) -> Values:
        return self._run.objects.elements(self.value(node.value, frame), "given by *")

    def _value_Lambda(self, node: ast.Lambda, frame: Frame) -> Values:
        within = frame.function if isinstance(frame.node, ast.ClassDef) else frame
        bit: Values = self._run.table.one(Closure, node, within).bit
        return bit

    def _value_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Values:
        values = self.value(node.value, frame)
        self._assign(node.target, node.value, values, frame.function)
        return values

    def _value_Await(self, node: ast.Await, frame: Frame) -> Values:
        values = self.value(node.value, frame)
        for value in self._run.table.each(values):
            if self._run.class_of(value) is not None:
                iterator = self._run.calls.call(self._run.objects.attribute(value.bit, "__await__"), [], {})
                values |= self._given_back(iterator)
        return values | self._given_back(values)

    def _given_back(self, generators: Values) -> Values:
        """Returns what generators return when they end."""
        found: Values = UNKNOWN
        for value in self._run.table.each(generators):
            found |= self._run.stored(value, _RETURNED)
        return found

    def _value_Yield(self, node: ast.Yield, frame: Frame) -> Values:
        values = UNKNOWN if node.value is None else self.value(node.value, frame)
        self._run.box((frame.function.node, "yield"), values)
        return UNKNOWN

    def _value_YieldFrom(self, node: ast.YieldFrom, frame: Frame) -> Values:
        generators = self.value(node.value, frame)
        self._run.box((frame.node, "yield"), self._run.objects.elements(generators))
        return self._given_back(generators)

    def _value_ListComp(self, node: Any, frame: Frame) -> Values:
        outer, frame = frame, self._run.within(node, frame)
        for number, generator in enumerate(node.generators):
            iterated = self.value(generator.iter, frame if number else outer)
            self._assign(generator.target, None, self._run.objects.elements(iterated), frame)
            for condition in generator.ifs:
                self.truth(condition, frame)
        if isinstance(node, ast.DictComp):
            self._run.whole.escape(self.value(node.key, frame), "used as a key")
            return self._run.box(node, self.value(node.value, frame))
        values = self.value(node.elt, frame)
        if isinstance(node, ast.SetComp):
            self._run.whole.escape(values, "put into a set")
        return self._run.box(node, values)

    _value_SetComp = _value_DictComp = _value_GeneratorExp = _value_ListComp

    def truth(self, node: ast.expr, frame: Frame) -> Values:
        """Evaluates a condition."""
        values = self.value(node, frame)
        for value in self._run.table.each(values):
            obj = value.obj if isinstance(value, Live) else None
            cls = self._run.class_of(value)
            methods = [
                method for name in ("__bool__", "__len__") if (method := memory.method_of(cls, name)) is not None
            ]
            for method in methods:
                self._run.calls.function(method, [value.bit])
            if isinstance(value, Live) and (memory.is_sequence(obj) or memory.is_mapping(obj)):
                self._run.count(value.path, "truth", memory.is_filled(obj), (memory.is_filled, obj))
            elif not methods and isinstance(value, Live) and cls is not None and memory.has_truth(cls):
                self._run.whole.escape(value.bit, "tested, and its class is a library's")
            elif isinstance(value, Method):
                self._run.whole.escape(value.bit, "tested")
        return values

    def _value_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Values:
        found: Values = 0
        for part in node.values:
            found |= self.truth(part, frame)
        return found

    def _value_IfExp(self, node: ast.IfExp, frame: Frame) -> Values:
        self.truth(node.test, frame)
        return self.value(node.body, frame) | self.value(node.orelse, frame)

    def _value_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Values:
        values = self.truth(node.operand, frame)
        if not isinstance(node.op, ast.Not):
            self._run.whole.escape(values, "used with an operator")
        return UNKNOWN

    def _value_BinOp(self, node: ast.BinOp, frame: Frame) -> Values:
        values = self.value(node.left, frame) | self.value(node.right, frame)
        if isinstance(node.op, ast.Mod):
            # A text formats what a tuple holds.
            self._run.whole.escape(self._run.objects.but_code(values), "formatted")
        return self._operation(node, values)

    def _operation(self, node: ast.AST, values: Values) -> Values:
        held: Values = 0
        for value in self._run.table.each(values):
            if isinstance(value, Box) or type(getattr(value, "obj", None)) in (list, tuple, dict):
                held |= self._run.objects.members(value, "used with an operator")
            else:
                self._run.whole.escape(value.bit, "used with an operator")
        return self._run.box(node, held) | UNKNOWN if held & ~UNKNOWN else UNKNOWN

    def _value_Compare(self, node: ast.Compare, frame: Frame) -> Values:
        sides = [self.value(side, frame) for side in (node.left, *node.comparators)]
        for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
            if isinstance(operator, (ast.In, ast.NotIn)):
                self._run.objects.contains(left, right)
            elif isinstance(operator, (ast.Is, ast.IsNot)):
                pass
            else:
                self._run.whole.escape(self._run.objects.but_code(left | right), "compared")
        return UNKNOWN

    def _value_FormattedValue(self, node: ast.FormattedValue, frame: Frame) -> Values:
        names = {ord("s"): TEXTS, ord("r"): TEXTS[1:], ord("a"): TEXTS[1:]}.get(node.conversion, ("__format__", *TEXTS))
        self._run.objects.printed(self.value(node.value, frame), names)
        if node.format_spec is not None:
            self.value(node.format_spec, frame)
        return UNKNOWN

    def _value_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Values:
        for part in node.values:
            self.value(part, frame)
        return UNKNOWN

    def _value_Call(self, node: ast.Call, frame: Frame) -> Values:
        functions = self.value(node.func, frame)
        arguments: Arguments = []
        named: Named = {}
        star: Values = 0
        copied: Values = 0
        for argument in node.args:
            if isinstance(argument, ast.Starred) or star:
                star |= self.value(argument, frame)
            else:
                arguments.append(self.value(argument, frame))
        makes_namespace = not arguments and all(map(memory.is_namespace, self._run.table.objects(functions)))
        for keyword in node.keywords:
            values = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = values
            elif makes_namespace and (owners := self._run.objects.owners(values)):
                copied |= owners
            else:
                star |= self.spread(values)
        self._run.node = node
        if copied:
            # As in `Namespace(**vars(options))`. The copy is taken for the original.
            for name, values in named.items():
                for original in self._run.table.each(copied):
                    self._run.objects.store(original, name, self._run.text(name), values)
            return copied | (self._run.calls.call(functions, [], named, star) if star else 0)
        if not arguments and any(isinstance(one, Live) and one.obj is super for one in self._run.table.each(functions)):
            return self._super(frame)
        return self._run.calls.call(functions, arguments, named, star)

    def _super(self, frame: Frame) -> Values:
        outer = frame
        while outer.parent is not None:
            outer = outer.parent
        cell = outer.cells.get("__class__")
        cls = ABSENT if cell is None else memory.cell(cell)
        if not isinstance(cls, type):
            return UNKNOWN
        self._run.note_reader(outer.readers)
        first = outer.variables.get(outer.first or "", UNKNOWN)
        bit: Values = self._run.table.one(Super, cls, first).bit
        return bit
