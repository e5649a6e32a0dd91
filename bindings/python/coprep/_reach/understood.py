"""Calls of built-in functions and of methods whose effect is known without their code."""

from __future__ import annotations

import builtins
import copy
import functools
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coprep._reach import memory
from coprep._reach.calls import Arguments, Named
from coprep._reach.values import ANY, ITEMS, UNKNOWN, Box, Live, Method, Partial, Super, Text, Value, Values

if TYPE_CHECKING:
    from coprep._reach.evaluation import Evaluation

_ADDING = frozenset(
    ("append", "extend", "add", "insert", "update", "appendleft", "put", "push", "setdefault", "__setitem__")
)
_TAKING = frozenset(("get", "pop", "values", "copy", "__getitem__", "setdefault", "popleft", "clone", "__iter__"))
_HASHING = frozenset(("add", "remove", "index", "count", "discard"))
_OF_OBJECT = frozenset(("__init__", "__setattr__", "__delattr__", "__setitem__", "__init_subclass__"))

Understood = Callable[["Evaluation", Arguments, Named, Values], Values]


def _union(*sets: Values) -> Values:
    return functools.reduce(int.__or__, sets, 0)


# --- built-in functions --------------------------------------------------------------------------------------------


def _getattr(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    names = run.table.texts(arguments[1]) if len(arguments) > 1 else None
    found: Values = star
    if names is not None:
        found |= _union(*(run.objects.attribute(arguments[0], name) for name in names))
    else:
        run.whole.escape(_union(*arguments[1:2]), "used as a name")
        for value in run.table.each(_union(*arguments[:1], star) & ~UNKNOWN):
            if isinstance(value, Method):
                run.whole.give_up("getattr with a name that is not known")
            else:
                found |= run.objects.members(value, "getattr with a name that is not known")
    return _union(found, *arguments[2:]) or UNKNOWN


def _hasattr(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    _getattr(run, arguments, named, star)
    return UNKNOWN


def _setattr(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    if len(arguments) != 3:
        return run.whole.escape_arguments(arguments, named, star, "given to setattr")
    names = run.table.texts(arguments[1])
    if names is None and all(memory.is_namespace(type(obj)) for obj in run.table.objects(arguments[0])):
        # Any of its attributes may be this value.
        run.whole.escape(arguments[1], "used as a name")
        for holder in run.table.each(arguments[0]):
            run.objects.store(holder, ANY, arguments[1], arguments[2])
        return UNKNOWN
    if names is None:
        return run.whole.escape_arguments(arguments, named, star, "given to setattr with a name that is not known")
    for holder in run.table.each(arguments[0]):
        for name in names:
            run.objects.store(holder, name, run.text(name), arguments[2])
    return UNKNOWN


def _vars(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    return run.objects.attribute(arguments[0], "__dict__") if arguments else run.whole.give_up("vars() or locals()")


def _nothing(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    return UNKNOWN


def _isinstance(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    classes = arguments[1] if len(arguments) > 1 else star
    for cls in run.table.each(classes | run.objects.elements(run.objects.but_code(classes), "compared")):
        if not isinstance(cls, Live) or not memory.is_a(cls.obj, type):
            continue
        kind = type(cls.obj)
        if any(memory.method_of(kind, name) is not None for name in ("__instancecheck__", "__subclasscheck__")):
            run.whole.escape(_union(*arguments), "given to a class that checks its instances")
            run.whole.methods(kind, cls.bit)
    return UNKNOWN


def _len(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    for value in run.table.each(arguments[0] if arguments else star):
        obj = value.obj if isinstance(value, Live) else None
        method = memory.method_of(run.class_of(value), "__len__")
        if method is not None:
            run.calls.call(run.objects.attribute(value.bit, "__len__"), [], {})
        elif isinstance(value, Live) and memory.is_a(obj, (list, tuple, dict, set, frozenset)):
            run.count(value.path, "length", memory.length(obj), (memory.length, obj))
        elif not isinstance(value, (Box, Text)):
            run.whole.escape(value.bit, "given to len")
    return UNKNOWN


def _container(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    """``list``, ``tuple``, ``zip``, ``enumerate``, ...: what they hold may come in pairs."""
    held = _union(star, *map(run.objects.elements, arguments), *(v for name, v in named.items() if name != "key"))
    if "key" in named:
        run.whole.escape(run.calls.call(named["key"], [held], {}), "compared")
    inner = run.box((run.node, "tuple"), held)
    return run.box((run.node, "container"), held | (inner if held & ~UNKNOWN else 0))


def _reversed(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    found = _container(run, arguments, named, star)
    for value in run.table.each(_union(*arguments, star)):
        for name in ("__reversed__", "__len__"):
            method = memory.method_of(run.class_of(value), name)
            found |= 0 if method is None else run.calls.function(method, [value.bit])
    return found


def _text(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    if len(arguments) != 1 or named or star:
        return run.whole.escape_arguments(arguments, named, star, "given to str()")
    run.objects.printed(arguments[0])
    return UNKNOWN


def _elements(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    """``next``: an element of a container, or one of several arguments."""
    return _union(star, *(run.objects.elements(values) | values for values in arguments))


def _ordered(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    """``set``, ``sorted``: these call ``__hash__`` or ``__lt__`` of what they hold."""
    _escape_objects(run, _union(star, *map(run.objects.elements, arguments)), "hashed or compared")
    return _container(run, arguments, named, star)


def _reduced(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    """``min``, ``max``, ``sum``, ``any``, ``all``: these compare, add or test what they are given."""
    _ordered(run, arguments, named, star)
    _escape_objects(run, _union(*arguments, *(v for name, v in named.items() if name != "key")), "compared")
    return _elements(run, arguments, named, star) | named.get("default", 0)


def _escape_objects(run: Evaluation, values: Values, why: str) -> None:
    for value in run.table.each(values):
        if run.class_of(value) not in (None, list, tuple, set, frozenset):
            run.whole.escape(value.bit, why)


def _map(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    if len(arguments) < 2:
        return run.whole.escape_arguments(arguments, named, star, "given to map or filter")
    held = list(map(run.objects.elements, arguments[1:]))
    return run.box((run.node, "map"), _union(run.calls.call(arguments[0], held, {}, star), *held))


def _filter(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    held = _union(star, *map(run.objects.elements, arguments[1:]))
    run.whole.escape(run.calls.call(_union(*arguments[:1]) or star, [held], {}), "tested")
    _escape_objects(run, held, "tested")
    return run.box((run.node, "filter"), held)


def _dict(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    values = list(run.table.each(arguments[0])) if len(arguments) == 1 and not named and not star else []
    if values and all(isinstance(value, Live) and memory.is_mapping(value.obj) for value in values):
        has_own = any(memory.method_of(run.class_of(value), "__getitem__") is not None for value in values)
        return run.box((run.node, "dict"), run.syntax.spread(arguments[0])) if has_own else arguments[0]
    # Pairs of a key and a value, each of which is a container.
    pairs = _union(*map(run.objects.elements, arguments))
    held = run.objects.elements(pairs & ~UNKNOWN) | pairs
    return run.box((run.node, "dict"), held | _union(star, *named.values(), *map(run.syntax.spread, arguments)))


def _type(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    if len(arguments) != 1:
        return run.whole.escape_arguments(arguments, named, star, "given to type()")
    classes = [run.class_of(value) for value in run.table.each(arguments[0])]
    return _union(*(run.live(cls, cls.__qualname__) for cls in classes if cls is not None)) or UNKNOWN


def _copy(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    for value in run.table.each(_union(*arguments[:1])):
        for name in ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"):
            if memory.method_of(run.class_of(value), name) is not None:
                run.whole.escape(value.bit, f"copied by its {name}")
    return arguments[0] if arguments else run.whole.escape_arguments(arguments, named, star, "given to copy")


def _super(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    if len(arguments) != 2:
        return UNKNOWN
    classes = (value.obj for value in run.table.each(arguments[0]) if isinstance(value, Live))
    return _union(*(run.table.one(Super, cls, arguments[1]).bit for cls in classes if isinstance(cls, type))) or UNKNOWN


def _partial(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    made = run.table.one(Partial, run.node, make=())
    run.put(made, "function", arguments[0] if arguments else UNKNOWN)
    run.put(made, ITEMS, _union(star, *arguments[1:], *named.values()))
    return int(made.bit)


def _import(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    names = run.table.texts(arguments[0]) if arguments else None
    if names is None:
        return run.whole.give_up("an import of a name that is not known", imports=True)
    return _union(*map(run.imported, names))


def _everything(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    run.whole.escape_arguments(arguments, named, star, "given to eval or exec")
    return run.whole.give_up("eval, exec or the like")


def _execute(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    """``exec``: the text may import any module, too."""
    return _everything(run, arguments, named, star) | run.whole.give_up("exec", imports=True)


def _getenv(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    return run.objects.subscript(run.live(os.environ, memory.ENVIRONMENT), _union(*arguments[:1], star)) | _union(
        *arguments[1:]
    )


def _expanded(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    """``os.path.expandvars``: any variable may be named."""
    run.whole.escape(run.live(os.environ, memory.ENVIRONMENT), "given to os.path")
    return run.whole.escape_arguments(arguments, named, star, "given to os.path")


def _directory(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    run.count("working directory", "value", os.getcwd(), (os.getcwd,))
    return UNKNOWN


def _delattr(run: Evaluation, arguments: Arguments, named: Named, star: Values) -> Values:
    return run.whole.escape_arguments(arguments, named, star, "a member of it is deleted")


_FUNCTIONS: dict[Understood, tuple[Any, ...]] = {
    _getattr: (getattr,),
    _hasattr: (hasattr,),
    _setattr: (setattr,),
    _vars: (vars, locals),
    _isinstance: (isinstance, issubclass),
    _nothing: (id, callable, object),
    _len: (len,),
    _container: (list, tuple, iter, enumerate, zip),
    _reversed: (reversed,),
    _text: (str,),
    _elements: (next,),
    _ordered: (set, frozenset, sorted),
    _reduced: (min, max, sum, any, all),
    _map: (map,),
    _filter: (filter,),
    _dict: (dict,),
    _type: (type,),
    _copy: (copy.copy, copy.deepcopy),
    _super: (super,),
    _partial: (functools.partial,),
    _import: (importlib.import_module, builtins.__import__),
    _everything: (eval, compile, globals, dir),
    _execute: (exec,),
    _getenv: (os.getenv,),
    _directory: (os.getcwd, os.getcwdb),
    _delattr: (delattr,),
    _expanded: (os.path.expandvars, os.path.expanduser),
}
UNDERSTOOD: dict[int, Understood] = {id(one): how for how, all_ in _FUNCTIONS.items() for one in all_}
"""Functions that carry out a call, by the id of the called function."""


# --- methods -------------------------------------------------------------------------------------------------------


def call_method(run: Evaluation, method: Method, arguments: Arguments, named: Named, star: Values) -> Values:
    """Calls a method that is no code of the user's."""
    name, owner = method.name, method.owner
    first = arguments[0] if arguments else UNKNOWN
    if isinstance(owner, Text):
        return run.whole.escape_arguments(arguments, named, star, f"given to str.{name}")
    obj: Any = owner.obj if isinstance(owner, Live) else None
    is_mapping = isinstance(owner, Live) and memory.is_mapping(obj)
    if isinstance(owner, Box) or memory.is_sequence(obj) or is_mapping:
        found = _of_container(run, name, owner, is_mapping, arguments, named, star)
        if found is not None:
            return found
    names = run.table.texts(first)
    if name == "__getitem__" and len(arguments) == 2 and memory.is_a(obj, type):
        # As in `dict.__getitem__(self, name)`.
        return _union(*(run.objects.subscript_without_code(one, arguments[1]) for one in run.table.each(first)))
    if name == "__getitem__" and arguments:
        return run.objects.subscript_without_code(owner, first)
    if name == "mro" and memory.is_a(obj, type):
        return run.objects.attribute(owner.bit, "__mro__")
    if name in ("__getattribute__", "__getattr__") and names is not None:
        return _union(*(run.objects.attribute_without_code(owner, one) for one in names))
    if name in _OF_OBJECT and not (arguments or named):
        return UNKNOWN
    if _is_context_variable(obj) and name == "get":
        value = memory.contents(obj)
        return run.read(value, f"{owner.path}.get()", (memory.contents, obj)) | _union(*arguments)  # type: ignore[attr-defined]
    if name == "__subclasses__" and isinstance(owner, Live) and memory.is_a(obj, type):
        run.count(owner.path, "subclasses", memory.subclasses(obj), (memory.subclasses, obj))
        derived: list[type] = type.__subclasses__(obj)
        return run.box((run.node, name), _union(*(run.live(cls, cls.__qualname__) for cls in derived)))
    if not (memory.is_a(obj, type) and memory.in_class(obj, name) is None):
        run.whole.escape(owner.bit, f"its method {name}() is a library's")
    return run.whole.escape_arguments(arguments, named, star, f"given to .{name}()")


def _is_context_variable(obj: Any) -> bool:
    return type(obj).__name__ == "ContextVar"


def _of_container(
    run: Evaluation, name: str, owner: Value, is_mapping: bool, arguments: Arguments, named: Named, star: Values
) -> Values | None:
    """Calls a method of a container. Returns ``None`` for one that is not known."""
    first = arguments[0] if arguments else UNKNOWN
    if name in _TAKING or name in _HASHING:
        _escape_objects(run, first, "used as a key")
    if name in _ADDING:
        held = _union(star, *arguments, *named.values())
        if name in ("extend", "update"):
            elements = run.objects.elements(first)
            # `update` takes pairs, too.
            held |= elements | run.objects.elements(elements & ~UNKNOWN) | run.syntax.spread(first)
        run.put(owner, ITEMS, held)
        if isinstance(owner, Live):
            run.objects.store(owner, ITEMS, UNKNOWN, held)
        if name != "setdefault":
            return UNKNOWN
    if is_mapping:
        if name in ("get", "pop", "setdefault", "__getitem__") and arguments:
            return run.objects.subscript_without_code(owner, first) | _union(*arguments[1:])
        if name == "__contains__":
            return run.objects.contains(first, owner.bit)
        if name in ("keys", "__iter__"):
            return run.box((run.node, name), run.objects.elements(owner.bit))
        if name in ("copy", "clone", "__copy__"):
            return owner.bit
    if name == "items":
        pair = run.objects.members(owner, ".items()") | (run.objects.elements(owner.bit) if is_mapping else UNKNOWN)
        return run.box((run.node, name), run.box((run.node, "pair"), pair))
    if name in _TAKING:
        found = run.objects.members(owner, f".{name}()") | _union(*arguments[1:])
        if isinstance(owner, Box):
            return found | (owner.bit if name in ("values", "copy", "__iter__") else 0)
        return found | run.box((run.node, name), found)
    return None
