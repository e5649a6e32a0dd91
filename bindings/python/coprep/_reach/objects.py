"""Attributes and elements of values, as reached code reads and stores them."""

from __future__ import annotations

import contextvars
import enum
import functools
import threading
import types
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coprep._modules import is_users
from coprep._names import path_in
from coprep._reach import memory
from coprep._reach.memory import ABSENT, CODE, is_a
from coprep._reach.values import ANY, ITEMS, UNKNOWN, Bound, Box, Live, Made, Super, Text, Value, Values

if TYPE_CHECKING:
    from coprep._reach.evaluation import Evaluation

FOLLOWED = 500
"""Most elements of a container that are followed. A longer one counts whole."""
_METHODS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
"""Types of what gives a method where it is read from an instance."""
_SLOTS = ("member_descriptor", "_tuplegetter")
"""Names of the types of what gives a member of an instance that is stored in C."""
_OF_CONTAINERS = {name for kind in (list, dict, tuple, set, str, types.GeneratorType) for name in dir(kind)}
_OF_CONTAINERS |= {"appendleft", "popleft", "extendleft", "rotate", "move_to_end", "elements", "most_common"}
TEXTS = ("__str__", "__repr__")
"""Methods that make an object's text."""
_ITERATED = ("__next__", "__anext__", "__iter__", "__aiter__")
"""Methods by which an object is iterated."""


class Objects:
    """Reads and stores members of values."""

    def __init__(self, run: Evaluation) -> None:
        self._run = run
        self._owners: dict[int, Live] = {}
        """Objects by the id of their ``__dict__``."""

    # --- attributes ------------------------------------------------------------------------------------------------

    def is_followed(self, cls: type, name: str) -> bool:
        """Returns whether a member of a class is code of the user's, or stands for it."""
        member = memory.in_class(cls, name)
        return memory.is_followed_code(member) or memory.is_followed_code(memory.wrapped(member))

    def attribute(self, values: Values, name: str) -> Values:
        found: Values = 0
        for value in self._run.table.each(values):
            if isinstance(value, Live):
                found |= self._of_live(value, name)
            elif isinstance(value, Made):
                found |= self._of_made(value, name)
            elif isinstance(value, Super):
                found |= self._of_super(value, name)
            elif isinstance(value, (Box, Text)):
                found |= self._run.method(name, value) if name in _OF_CONTAINERS else UNKNOWN
            elif value.bit == UNKNOWN:
                found |= UNKNOWN
            elif isinstance(value, Bound):
                found |= value.first if name == "__self__" else self.attribute(value.function.bit, name)
            else:
                self._run.whole.escape(value.bit, f".{name} of a function")
        return found or UNKNOWN

    def _stored(self, value: Value, name: str) -> Values:
        """Returns what reached code has stored under a name, in a value or in one of its classes."""
        found = self._run.stored(value, name) | self._run.stored(value, ANY)
        cls = self._run.class_of(value) or (value.obj if isinstance(value, Live) and is_a(value.obj, type) else None)
        for base in () if cls is None else cls.__mro__:
            known = self._run.table.known(Live, id(base))
            if known is None:
                self._run.note_reader(self._run.unmet[id(base)])
            elif known is not value:
                found |= self._run.stored(known, name) | self._run.stored(known, ANY)
        return found

    def _of_made(self, made: Made, name: str) -> Values:
        found = self._stored(made, name)
        member = memory.in_class(made.cls, name)
        if member is not None:
            found |= self.described(member, made, made.cls, name)
        elif not found:
            fallback = memory.method_of(made.cls, "__getattr__")
            if fallback is not None:
                found |= self._run.calls.function(fallback, [made.bit, self._run.text(name)])
        return found or self._run.method(name, made)

    def _of_super(self, value: Super, name: str) -> Values:
        found: Values = 0
        for first in self._run.table.each(value.first):
            cls = self._run.class_of(first) or (first.obj if isinstance(first, Live) else None)
            line = list(cls.__mro__) if is_a(cls, type) and cls is not None else []
            rest = line[line.index(value.cls) + 1 :] if value.cls in line else []
            holder = next((base for base in rest if name in base.__dict__ and base is not object), None)
            if holder is not None and cls is not None:
                found |= self.described(holder.__dict__[name], first, cls, name, holder)
            elif first.bit != UNKNOWN and (name in object.__dict__ or any(base is not object for base in rest)):
                found |= self._run.method(name, first)
            else:
                found |= UNKNOWN
        return found or UNKNOWN

    def _of_live(self, live: Live, name: str) -> Values:
        obj, at = live.obj, f"{live.path}.{name}"
        stored = self._stored(live, name)
        kind = type(obj)
        if issubclass(kind, types.ModuleType):
            return stored | self._of_module(live, name, bool(stored))
        if issubclass(kind, type):
            return stored | self._of_class(live, name, bool(stored))
        if issubclass(kind, contextvars.ContextVar):
            return self._run.method(name, live)
        if issubclass(kind, (weakref.ProxyType, weakref.CallableProxyType)):
            self._run.whole.escape(live.bit, "a weak proxy")
            return UNKNOWN
        if name == "__class__":
            return self._run.live(kind, kind.__qualname__)
        if memory.is_identified(kind):
            self._run.whole.escape(live.bit, "its class says what counts of it")
            method = memory.method_of(kind, name)
            return UNKNOWN if method is None else self._run.bound(method, f"{kind.__qualname__}.{name}", UNKNOWN)
        held: dict[str, Any] = {}
        if not memory.is_configuration(kind) or issubclass(kind, dict):
            held = memory.members_of(obj)
        if name == "__dict__" and held and memory.in_class(kind, "__dict__") is not None:
            members = object.__getattribute__(obj, "__dict__")
            if id(members) not in self._owners:
                self._owners[id(members)] = live
                self._run.change()
            return self._run.live(members, live.path)
        special, fallback = (memory.method_of(kind, method) for method in ("__getattribute__", "__getattr__"))
        if special is not None:
            stored |= self._run.calls.function(special, [live.bit, self._run.text(name)])
            return stored | self._run_if_missing(fallback, live, name)
        member = memory.in_class(kind, name)
        if member is not None and (name not in held or memory.is_data_descriptor(member)):
            found = stored | self.described(member, live, kind, name)
            # All but a function may raise an AttributeError, which Python answers so.
            return found if type(member) is types.FunctionType else found | self._run_if_missing(fallback, live, name)
        if issubclass(kind, threading.local) and member is None:
            return stored | self._run.read(memory.of_thread(obj, name), at, (memory.of_thread, obj, name))
        if name in held:
            return stored | self._run.read(held[name], at, (memory.member, obj, name))
        if fallback is not None:
            return stored | self._run_if_missing(fallback, live, name)
        if memory.is_mapping(obj) and name in memory.keys_of(obj):
            return stored | self._run.read(memory.item(obj, name), at, (memory.item, obj, name))
        if _is_asked_further(kind):
            self._run.whole.escape(live.bit, f"{kind.__name__}.__getattr__, of a library")
        if not stored:
            self._run.count(at, "value", ABSENT, (memory.attribute, obj, kind, name))
        return stored or UNKNOWN

    def _run_if_missing(self, fallback: Any, live: Live, name: str) -> Values:
        """Returns what a `__getattr__` of the user's gives, if there is one."""
        return 0 if fallback is None else self._run.calls.function(fallback, [live.bit, self._run.text(name)])

    def _of_module(self, live: Live, name: str, is_stored: bool) -> Values:
        module, members = live.obj, vars(live.obj)
        self._run.note(module.__name__)
        at = path_in(module.__name__, name)
        is_of_user = is_users(module.__name__)
        if name in members:
            value = members[name]
            if not is_of_user and (issubclass(type(value), CODE) or memory.is_compiled(value)):
                return self._run.live(value, at)
            return self._run.read(value, at, (memory.entry, members, name))
        if not is_of_user:
            return UNKNOWN if is_stored else self._run.method(name, live)
        self._run.imports[f"{module.__name__}.{name}"] = None
        fallback = members.get("__getattr__")
        if memory.is_followed_code(fallback):
            return self._run.calls.function(fallback, [self._run.text(name)])
        self._run.count(at, "value", ABSENT, (memory.entry, members, name))
        return UNKNOWN

    def _of_class(self, live: Live, name: str, is_stored: bool) -> Values:
        cls, at = live.obj, f"{live.path}.{name}"
        if name in ("__mro__", "__bases__"):
            bases = getattr(cls, name)
            return self._run.box(
                (cls, name), functools.reduce(int.__or__, (self._run.live(b, b.__qualname__) for b in bases), 0)
            )
        member = memory.in_class(cls, name)
        of_type = memory.in_class(type(cls), name) if memory.is_users_class(type(cls)) else None
        if of_type is not None and memory.is_data_descriptor(of_type):
            return self.described(of_type, live, type(cls), name)
        if member is None:
            fallback = memory.method_of(type(cls), "__getattr__")
            if fallback is not None:
                return self._run.calls.function(fallback, [live.bit, self._run.text(name)])
            if of_type is not None:
                return self.described(of_type, live, type(cls), name)
            return UNKNOWN if is_stored else self._run.method(name, live)
        if type(member) is types.FunctionType:
            return self._run.read(member, at, (memory.class_member, cls, name))
        if is_a(member, (staticmethod, classmethod)) or memory.method_of(type(member), "__get__") is not None:
            return self.described(member, live, cls, name)
        if hasattr(type(member), "__get__"):
            # A slot, a property, or a method of a built-in class, as it is written in the class.
            return self._run.method(name, live)
        return self._run.read(member, at, (memory.class_member, cls, name))

    def described(self, member: Any, owner: Value, cls: type, name: str, base: type | None = None) -> Values:
        """Returns what an attribute that was found in a class gives on one of its instances.

        Args:
            base: the class in which ``super()`` has found it.
        """
        at = f"{(base or cls).__qualname__}.{name}"
        again = (memory.attribute, None if base else _object(owner), base or cls, name)
        kind = type(member)
        of_kind = memory.method_of(kind, "__get__")
        if of_kind is not None:
            descriptor = self._run.read(member, at, (memory.class_member, cls, name))
            of = self._run.live(cls, cls.__qualname__)
            return self._run.calls.function(of_kind, [descriptor, owner.bit, of])
        if kind is types.FunctionType:
            if not memory.is_followed_code(member) and not memory.is_followed_code(memory.wrapped(member)):
                return self._run.method(name, owner)
            self._run.read(member, at, again)
            return self._run.bound(member, at, owner.bit)
        if issubclass(kind, (property, functools.cached_property)):
            getter = member.fget if issubclass(kind, property) else member.func
            inner = memory.wrapped(getter) if memory.library_of(getter) == "functools" else None
            getter = inner if memory.is_followed_code(inner) else getter
            if memory.is_followed_code(getter):
                self._run.read(getter, at, again)
                return self._run.calls.function(getter, [owner.bit])
            return UNKNOWN if getter is None else self._given_by_library(member, owner, name, at)
        if issubclass(kind, staticmethod):
            return self._run.read(member.__func__, at, again)
        if issubclass(kind, classmethod) and not is_a(member.__func__, types.FunctionType):
            return self.described(member.__func__, self._run.value(cls, cls.__qualname__), cls, name)
        if issubclass(kind, classmethod):
            return self._run.bound(member.__func__, at, self._run.live(cls, cls.__qualname__))
        if kind.__name__ in _SLOTS:
            value = memory.slot(_object(owner), member)
            if value is ABSENT:
                return UNKNOWN
            return self._run.read(value, f"{_path(owner)}.{name}", (memory.slot, _object(owner), member))
        inner = memory.wrapped(member)
        if memory.is_followed_code(inner) and memory.library_of(member) == "functools":
            self._run.read(inner, at, again)
            return self._run.bound(inner, at, owner.bit)
        if issubclass(kind, _METHODS):
            return self._run.method(name, owner)
        if hasattr(kind, "__get__"):
            return self._given_by_library(member, owner, name, at)
        return self._run.read(member, at, again)

    def _given_by_library(self, member: Any, owner: Value, name: str, at: str) -> Values:
        """Returns what a property of a library gives, which may read all of an object."""
        obj = _object(owner)
        if is_a(obj, enum.Enum) and name in ("value", "name"):
            inner = f"_{name}_"
            return self._run.read(memory.member(obj, inner), f"{_path(owner)}.{name}", (memory.member, obj, inner))
        self._run.whole.escape(owner.bit | self._run.live(member, at), f"{at}, a property of a library")
        return UNKNOWN

    def attribute_without_code(self, value: Value, name: str) -> Values:
        """Returns what ``object.__getattribute__`` gives."""
        held = memory.members_of(value.obj) if isinstance(value, Live) else {}
        stored = self._stored(value, name)
        if name in held:
            again = (memory.member, _object(value), name)
            return stored | self._run.read(held[name], f"{_path(value)}.{name}", again)
        cls = self._run.class_of(value)
        member = memory.in_class(cls, name) if cls is not None else None
        return stored | (UNKNOWN if member is None or cls is None else self.described(member, value, cls, name))

    # --- elements --------------------------------------------------------------------------------------------------

    def subscript(self, values: Values, key: Values) -> Values:
        found: Values = 0
        self._run.whole.escape(key, "used as a key")
        for value in self._run.table.each(values):
            cls = self._run.class_of(value)
            getter, missing = memory.method_of(cls, "__getitem__"), memory.method_of(cls, "__missing__")
            if isinstance(value, Live) and is_a(value.obj, type):
                found |= self._of_generic(value, key)
            elif getter is not None:
                found |= self._run.calls.function(getter, [value.bit, key])
            else:
                if missing is not None:
                    found |= self._run.calls.function(missing, [value.bit, key])
                found |= self.subscript_without_code(value, key)
        return found or UNKNOWN

    def _of_generic(self, cls: Live, key: Values) -> Values:
        """Returns what ``cls[key]`` gives."""
        of_type = memory.method_of(type(cls.obj), "__getitem__")
        if of_type is not None:
            return self._run.calls.function(of_type, [cls.bit, key])
        member = memory.in_class(cls.obj, "__class_getitem__")
        function = getattr(member, "__func__", member)
        if memory.is_followed_code(function):
            return self._run.calls.function(function, [cls.bit, key])
        if is_a(cls.obj, enum.EnumMeta):
            members = cls.obj.__members__.items()
            parts = (self._run.read(one, f"{cls.path}.{name}", (memory.same, one)) for name, one in members)
            return functools.reduce(int.__or__, parts, 0) | UNKNOWN
        # An alias of the class, such as `list[int]`, makes its instances.
        return cls.bit

    def subscript_without_code(self, value: Value, key: Values) -> Values:
        """Returns an element as ``dict`` and ``list`` themselves give it."""
        obj = _object(value)
        names = self._run.table.texts(key)
        if isinstance(value, Live) and memory.is_mapping(obj) and names is not None:
            return self._entries(value, names)
        if isinstance(value, Box) or memory.is_mapping(obj) or is_a(obj, (list, tuple)):
            return self.members(value, "read with an index that is not known")
        if value.bit != UNKNOWN and not isinstance(value, Text):
            self._run.whole.escape(value.bit, "read with an index, of an object of a library")
        return UNKNOWN

    def _entries(self, live: Live, names: list[str]) -> Values:
        found = self._run.stored(live, ITEMS)
        owner = self._owners.get(id(live.obj))
        for name in names:
            at, again = _entry_path(live, name), (memory.item, live.obj, name)
            value = memory.item(live.obj, name)
            if owner is not None:
                found |= self._stored(owner, name)
            if value is not ABSENT:
                found |= self._run.read(value, at, again)
            else:
                self._run.count(at, "value", ABSENT, again)
                found |= self._from_factory(live)
        return found

    def _from_factory(self, live: Live) -> Values:
        """Returns what a ``defaultdict`` makes for a key that it does not have."""
        factory = memory.factory_of(live.obj)
        if factory is None:
            return 0
        made_by = self._run.read(factory, f"{live.path}.default_factory", (memory.factory_of, live.obj))
        return self._run.calls.call(made_by, [], {})

    def members(self, value: Value, why: str) -> Values:
        """Returns all that an object holds, of which what holds nothing to follow counts: its names are not known."""
        if isinstance(value, Box):
            return self._run.stored(value, ITEMS) | UNKNOWN
        obj: Any = _object(value)
        if not isinstance(value, Live) or is_a(obj, (types.ModuleType, type)):
            self._run.whole.escape(value.bit, why)
            return UNKNOWN
        found = self._run.stored(value, ITEMS) | UNKNOWN
        if memory.is_mapping(obj):
            names = memory.keys_of(obj)
            if len(names) > FOLLOWED or not (is_a(obj, dict) or memory.is_configuration(type(obj))):
                self._run.whole.escape(value.bit, why)
                return found
            owner = self._owners.get(id(obj))
            if owner is not None:
                found |= self._run.all_stored(owner)
            self._run.count(value.path, "keys", memory.suffixes_of(obj), (memory.suffixes_of, obj), why)
            for name in names:
                found |= self._run.read(memory.item(obj, name), _entry_path(value, name), (memory.item, obj, name))
            return found | self._from_factory(value)
        if memory.is_sequence(obj):
            if memory.length(obj) > FOLLOWED or is_a(obj, (set, frozenset)):
                self._run.whole.escape(value.bit, why)
                return found
            self._run.count(value.path, "length", memory.length(obj), (memory.length, obj), why)
            for index, one in enumerate(memory.elements_of(obj)):
                found |= self._run.read(one, f"{value.path}[{index}]", (memory.element, obj, index))
            return found
        held = memory.members_of(obj)
        if not held or _is_asked_further(type(obj)):
            self._run.whole.escape(value.bit, why)
        found |= self._run.all_stored(value)
        if memory.is_users_class(type(obj)):
            self._run.whole.methods(type(obj), value.bit)
        self._run.count(value.path, "keys", [*held], (memory.names_of, obj), why)
        for name, one in held.items():
            found |= self._run.read(one, f"{value.path}.{name}", (memory.member, obj, name))
        return found

    def elements(self, values: Values, why: str = "iterated") -> Values:
        found: Values = UNKNOWN
        for value in self._run.table.each(values):
            obj = _object(value)
            cls = self._run.class_of(value)
            if any(memory.method_of(cls, name) is not None for name in _ITERATED):
                found |= self._iterated(value, why)
            elif isinstance(value, Box) or memory.is_sequence(obj):
                found |= self.members(value, why)
            elif isinstance(value, Live) and memory.is_mapping(obj):
                names = memory.keys_of(obj)
                self._run.count(value.path, "keys", memory.suffixes_of(obj), (memory.suffixes_of, obj), why)
                for name in names[:FOLLOWED]:
                    found |= self._run.text(name) if type(name) is str else self._key(value, name)
            elif value.bit != UNKNOWN and not isinstance(value, Text):
                found |= self._iterated(value, why)
        return found

    def _key(self, mapping: Value, key: Any) -> Values:
        """Returns a key of a mapping, which may be or hold code. The texts of all keys count already."""
        if memory.is_plain(key):
            return UNKNOWN
        return self._run.read(key, f"{_entry_path(mapping, key)} as key", (memory.same, key))

    def _iterated(self, value: Value, why: str) -> Values:
        cls = self._run.class_of(value)
        methods = {name: memory.method_of(cls, name) for name in (*_ITERATED, "__getitem__")}
        found: Values = 0
        for name, method in methods.items():
            if method is None:
                continue
            if name in ("__iter__", "__aiter__"):
                found |= self.elements(self._run.calls.function(method, [value.bit]) & ~value.bit, why)
            elif name != "__getitem__":
                found |= self._run.calls.function(method, [value.bit])
            elif methods["__iter__"] is None:
                found |= self._run.calls.function(method, [value.bit, UNKNOWN])
        if not found:
            self._run.whole.escape(value.bit, why)
        return found

    def contains(self, key: Values, values: Values) -> Values:
        names = self._run.table.texts(key)
        for value in self._run.table.each(values):
            method = memory.method_of(self._run.class_of(value), "__contains__")
            obj = _object(value)
            if method is not None:
                self._run.calls.function(method, [value.bit, key])
            elif isinstance(value, Live) and names is not None and memory.holds_names(obj):
                for name in names:
                    is_there = memory.has_name(obj, name)
                    self._run.count(_entry_path(value, name), "presence", is_there, (memory.has_name, obj, name))
            else:
                self._run.whole.escape(self.but_code(key), "compared")
                if value.bit != UNKNOWN and not isinstance(value, Text) and not is_a(obj, types.ModuleType):
                    self._run.whole.escape(self.but_code(self.elements(value.bit)), "compared")
        return UNKNOWN

    def but_code(self, values: Values) -> Values:
        """Returns values without functions and classes, which are compared and printed by their names."""
        for value in self._run.table.each(values):
            obj = _object(value)
            if is_a(obj, types.FunctionType) or (is_a(obj, type) and not memory.is_users_class(type(obj))):
                values &= ~value.bit
        return values

    def printed(self, values: Values, names: Sequence[str] = TEXTS) -> None:
        """Counts what the texts of values depend on.

        Args:
            names: methods that may make such a text. The first one that a class has does so.
        """
        for value in self._run.table.each(self.but_code(values)):
            cls = self._run.class_of(value)
            has = [name for name in names if cls and memory.in_class(cls, name) is not object.__dict__[name]]
            method = memory.method_of(cls, has[0]) if has else None
            if method is None:
                self._run.whole.escape(value.bit, "formatted")
            else:
                self._run.calls.function(method, [value.bit, UNKNOWN][: 2 if has[0] == "__format__" else 1])

    # --- storing ---------------------------------------------------------------------------------------------------

    def owners(self, values: Values) -> Values:
        """Returns the objects whose `__dict__` values are, or 0 if there are others among these."""
        owners = [self._owners.get(id(obj)) for obj in self._run.table.objects(values)]
        return 0 if None in owners else functools.reduce(int.__or__, (one.bit for one in owners if one is not None), 0)

    def store(self, holder: Value, name: str, key: Values, values: Values) -> None:
        """Assigns to an attribute, or to an element if the name is ``ITEMS``."""
        if name == "__class__":
            self._run.whole.escape(holder.bit | values, "its class is assigned")
        cls = self._run.class_of(holder)
        method = memory.method_of(cls, "__setitem__" if name == ITEMS else "__setattr__")
        if method is not None:
            self._run.calls.function(method, [holder.bit, key, values])
        member = None if cls is None or name == ITEMS else memory.in_class(cls, name)
        if is_a(member, property) and member is not None and memory.is_followed_code(member.fset):
            self._run.calls.function(member.fset, [holder.bit, values])
        setter = memory.method_of(type(member), "__set__")
        if setter is not None:
            self._run.calls.function(setter, [self._run.read(member, name, (memory.same, member)), holder.bit, values])
        owner = self._owners.get(id(_object(holder)))
        if owner is not None:
            for inner in self._run.table.texts(key) or [ANY]:
                self._run.put(owner, inner, values & ~UNKNOWN)
        if isinstance(holder, Live):
            self._run.put(holder, name, values & ~UNKNOWN)
        elif isinstance(holder, (Made, Box)):
            self._run.put(holder, name, values)
        else:
            self._run.whole.escape(values, "stored in an object that is not known")


def _entry_path(value: Value, key: Any) -> str:
    return f"{_path(value)}{memory.entry_suffix(key)}"


def _path(value: Value) -> str:
    return value.path if isinstance(value, Live) else "?"


def _object(value: Value) -> Any:
    return value.obj if isinstance(value, Live) else None


def _is_asked_further(cls: type) -> bool:
    """Returns whether a library's code finds members that objects of a class do not hold, as a DataFrame does."""
    is_there = memory.in_class(cls, "__getattr__") is not None and memory.method_of(cls, "__getattr__") is None
    return is_there and not memory.is_configuration(cls)
