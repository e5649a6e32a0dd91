"""Ways in which the code of a dataset reads its option ``size``, and not its option ``lr``.

Each is a function of the dataset. Its decorator says what is found of it: ``size`` exactly, or whole objects that hold
both options. A way that is missed would let jobs share samples that differ.
"""

from __future__ import annotations

import abc
import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import gc
import importlib
import json
import logging
import operator
import os
import pathlib
import pickle
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Read = Callable[[Any], Any]


class Way(NamedTuple):
    """A way to read the option, with what is found of it: ``exactly``, ``whole`` or ``missed``."""

    read: Read
    found: str
    why: str = ""
    """Why it is missed."""


WAYS: dict[str, Way] = {}


def exactly(read: Read) -> Read:
    """Adds a way of which ``size`` counts, and nothing else that differs."""
    WAYS[read.__name__] = Way(read, "exactly")
    return read


def whole(read: Read) -> Read:
    """Adds a way of which an object that holds both options counts."""
    WAYS[read.__name__] = Way(read, "whole")
    return read


def missed(why: str) -> Callable[[Read], Read]:
    """Returns a decorator that adds a way of which ``size`` does not count, though it should."""

    def add(read: Read) -> Read:
        WAYS[read.__name__] = Way(read, "missed", why)
        return read

    return add


DEFAULTS = {"size": 4, "lr": 1}


def options_of(size: int, lr: int) -> argparse.Namespace:
    return argparse.Namespace(size=size, lr=lr, sub=argparse.Namespace(size=size, lr=lr))


def given_of(size: int, lr: int) -> dict[str, int]:
    """Returns the options that differ from their defaults."""
    return {name: value for name, value in (("size", size), ("lr", lr)) if value != DEFAULTS[name]}


OPTIONS = options_of(4, 1)
SIZE = 4
LR = 1
SETTINGS = {"size": 4, "lr": 1}


class Holder:
    """An object that keeps the options that it is made with."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def read(self) -> Any:
        return self.options.size


class Width:
    """An object whose value depends on a global option alone."""

    def __init__(self) -> None:
        self.width = OPTIONS.size


# --- attributes ------------------------------------------------------------------------------------------------------


@exactly
def alias(data: Any) -> Any:
    options = data.options
    return options.size


@exactly
def assigned_twice(data: Any) -> Any:
    first = second = data.options
    return first.size + second.size


@exactly
def named_in_an_expression(data: Any) -> Any:
    return (options := data.options).size + options.size


@exactly
def swapped(data: Any) -> Any:
    number, options = 1, data.options
    number, options = options, number
    return number.size


@exactly
def added_in_place(data: Any) -> Any:
    total = 0
    total += data.options.size
    return total


@exactly
def alias_of_nested_options(data: Any) -> Any:
    inner = data.options.sub
    return inner.size


@exactly
def nested_path(data: Any) -> Any:
    return data.options.sub.size


@exactly
def key_of_vars(data: Any) -> Any:
    return vars(data.options)["size"]


@exactly
def key_of_the_dictionary(data: Any) -> Any:
    return data.options.__dict__["size"]


@exactly
def getattr_with_a_default(data: Any) -> Any:
    return getattr(data.options, "size", 3)


@whole
def getattr_in_a_loop(data: Any) -> Any:
    total = 0
    for name in ("size",):
        total += getattr(data.options, name)
    return total


@whole
def getattr_with_names_that_the_dataset_holds(data: Any) -> Any:
    return [getattr(data.options, name) for name in data.names]


@whole
def getattr_with_a_computed_name(data: Any) -> Any:
    return getattr(data.options, "".join(["si", "ze"]))


@whole
def getattr_along_a_dotted_path(data: Any) -> Any:
    value = data.options
    for name in "sub.size".split("."):  # noqa: SIM905 - so do programs
        value = getattr(value, name)
    return value


@whole
def reduced_by_getattr(data: Any) -> Any:
    return functools.reduce(getattr, ("sub", "size"), data.options)


@whole
def attrgetter(data: Any) -> Any:
    return operator.attrgetter("size")(data.options)


@whole
def attrgetter_of_a_path_through_the_class(data: Any) -> Any:
    return operator.attrgetter("shared.size")(data.small)


@whole
def getattribute_of_object(data: Any) -> Any:
    return object.__getattribute__(data.options, "size")


@exactly
def presence_by_in(data: Any) -> Any:
    return "size" in data.given


@exactly
def attribute_that_may_be_absent(data: Any) -> Any:
    try:
        return data.given.size
    except AttributeError:
        return 0


@exactly
def slots(data: Any) -> Any:
    return data.slotted.size


@exactly
def private_name(data: Any) -> Any:
    return data.read_private()


@exactly
def private_function(data: Any) -> Any:
    return data.read_by_a_private_function()


@exactly
def private_global(data: Any) -> Any:
    return data.read_a_private_global()


@whole
def weak_reference(data: Any) -> Any:
    return data.reference().size


@whole
def weak_proxy(data: Any) -> Any:
    return data.proxy.size


@exactly
def attribute_of_a_function(data: Any) -> Any:
    return counted_helper.size


def counted_helper() -> None:
    """A function with options as attributes."""


counted_helper.size = 4
counted_helper.lr = 1


@functools.cache
def remembered_options() -> Any:
    return options_of(4, 1)


@exactly
def options_that_a_function_remembers(data: Any) -> Any:
    return remembered_options().size


@functools.lru_cache
class Remembered:
    def __init__(self) -> None:
        self.size, self.lr = 4, 1


@exactly
def instance_that_a_class_remembers(data: Any) -> Any:
    return Remembered().size


@whole
def cast_for_a_type_checker(data: Any) -> Any:
    return typing.cast(argparse.Namespace, data.options).size


@exactly
def keywords_of_a_partial(data: Any) -> Any:
    return data.partial.keywords["size"]


@exactly
def text_of_a_pattern(data: Any) -> Any:
    return len(data.pattern.pattern)


# --- attributes that code answers ------------------------------------------------------------------------------------


class Attributes(dict):
    """A dictionary whose keys are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Keyed(dict):
    """A dictionary whose keys are attributes, with the error of a key where one is absent."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Configuration:
    """A configuration of the user's own."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    @property
    def area(self) -> Any:
        return self.size * self.size  # type: ignore[attr-defined]


class Nested(Configuration):
    """A configuration that looks where it lies for what it does not hold."""

    def __init__(self, outer: Any) -> None:
        super().__init__(outer=outer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outer, name)


class Descriptor:
    """A descriptor that reads the option of the object that it belongs to."""

    def __get__(self, owner: Any, kind: type) -> Any:
        return owner.options.size


class Forwarding:
    """An object that answers every attribute itself."""

    def __init__(self, options: Any) -> None:
        object.__setattr__(self, "options", options)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "options").size


class Logged:
    """A configuration that sees every attribute that is read."""

    def __init__(self, size: int, lr: int) -> None:
        self.size = size
        self.lr = lr

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class AttributesOfMeta(type):
    def __getattr__(cls, name: str) -> Any:
        return getattr(OPTIONS, name)


class OfMeta(metaclass=AttributesOfMeta):
    """A class whose attributes are the global options."""


@exactly
def dictionary_with_attributes(data: Any) -> Any:
    return data.attributes.size


@exactly
def absent_key_of_a_dictionary_with_attributes(data: Any) -> Any:
    return data.keyed.get("absent", data.keyed.size)


@exactly
def get_of_a_configuration(data: Any) -> Any:
    return data.configuration.get("size")


@exactly
def in_a_configuration(data: Any) -> Any:
    return "size" in data.given_configuration


@exactly
def key_of_a_configuration(data: Any) -> Any:
    return data.configuration["size"]


@exactly
def property_of_a_configuration(data: Any) -> Any:
    return data.configuration.area


@exactly
def attribute_of_the_outer_configuration(data: Any) -> Any:
    return data.nested.size


@exactly
def descriptor(data: Any) -> Any:
    return data.described


@exactly
def property_of_a_base_class(data: Any) -> Any:
    return data.inherited_size


@exactly
def property_that_is_set(data: Any) -> Any:
    data.kept = data.options
    return data._kept.size


@whole
def cached_property_of_a_new_object(data: Any) -> Any:
    return CachedReader(data.options).size


class CachedReader:
    def __init__(self, options: Any) -> None:
        self.options = options

    @functools.cached_property
    def size(self) -> Any:
        return self.options.size


@whole
def getattribute(data: Any) -> Any:
    return data.forwarding.anything


@exactly
def getattribute_that_calls_super(data: Any) -> Any:
    return data.logged.size


@exactly
def attribute_of_a_metaclass(data: Any) -> Any:
    return OfMeta.size


# --- classes and their attributes ------------------------------------------------------------------------------------


class Config:
    """Options as attributes of a class."""

    size = 4
    lr = 1


class Small:
    """An object that holds nothing: its options are its class's."""

    shared = OPTIONS
    train_size = 4

    def read(self) -> Any:
        return self.__class__.shared.size


class Mode(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Flags(enum.Flag):
    NONE = 0
    FLIP = 1


class Preset(enum.Enum):
    CURRENT = OPTIONS


@exactly
def attribute_of_a_class(data: Any) -> Any:
    return Config.size


@exactly
def attribute_of_the_type(data: Any) -> Any:
    return type(data).shared.size


@exactly
def attribute_of_the_class_by_dunder(data: Any) -> Any:
    return data.__class__.shared.size


@whole
def attribute_of_the_class_of_a_new_object(data: Any) -> Any:
    return Small().read()


@whole
def computed_name_of_a_class(data: Any) -> Any:
    return getattr(Config, "".join(["si", "ze"]))


@whole
def computed_name_of_an_attribute_of_a_class(data: Any) -> Any:
    return getattr(data.small, f"{data.split}_size")


@whole
def vars_of_a_class(data: Any) -> Any:
    return vars(Config)["size"]


@exactly
def class_method(data: Any) -> Any:
    return data.read_of_class()


@exactly
def static_method(data: Any) -> Any:
    return data.read_statically(data.options)


@exactly
def value_of_an_enumeration(data: Any) -> Any:
    return Preset.CURRENT.value.size


@exactly
def member_of_an_enumeration_by_is(data: Any) -> Any:
    return 1 if data.mode is Mode.LARGE else 0


@exactly
def member_of_an_enumeration_as_key(data: Any) -> Any:
    return {Mode.SMALL: 1, Mode.LARGE: 2}[data.mode]


@whole
def functions_by_members_of_an_enumeration(data: Any) -> Any:
    return BY_MODE[data.mode](data.options)


BY_MODE: dict[Mode, Read] = {Mode.SMALL: lambda options: options.size, Mode.LARGE: lambda options: options.size + 1}


@exactly
def truth_of_a_flag(data: Any) -> Any:
    return 1 if data.flags else 0


@exactly
def instance_check_of_a_metaclass(data: Any) -> Any:
    return isinstance(len(data), Judged)


class JudgedMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return bool(OPTIONS.size > 4)


class Judged(metaclass=JudgedMeta):
    """A class whose instances a global option determines."""


class Base(abc.ABC):
    """A base class whose properties and hooks read options."""

    options: Any

    @property
    def inherited_size(self) -> Any:
        return self.options.size

    def hook(self) -> Any:
        return self.implementation()

    @abc.abstractmethod
    def implementation(self) -> Any: ...

    def extended(self) -> Any:
        return self.options


# --- containers ------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    size: int
    lr: int


Pair = collections.namedtuple("Pair", ["options", "number"])


@dataclasses.dataclass
class Plain:
    """Options in a dataclass."""

    size: int = 4
    lr: int = 1


@exactly
def tuple_that_is_unpacked(data: Any) -> Any:
    pair = (data.options, 1)
    options, _ = pair
    return options.size


@exactly
def tuple_with_a_star(data: Any) -> Any:
    several = (data.options, 1, 2, 3)
    options, *_ = several
    return options.size


@exactly
def rest_of_a_list(data: Any) -> Any:
    _, *rest = [1, data.options]
    return rest[0].size


@exactly
def list_that_is_appended_to(data: Any) -> Any:
    several = []
    several.append(data.options)
    return several[0].size


@whole
def slice_of_a_list(data: Any) -> Any:
    return [1, data.options][1:][0].size


@exactly
def sum_of_lists(data: Any) -> Any:
    return ([1] + [data.options])[1].size


@exactly
def key_of_a_new_dictionary(data: Any) -> Any:
    return {"options": data.options}["options"].size


@exactly
def items_of_a_dictionary(data: Any) -> Any:
    return [options.size for _, options in {"options": data.options}.items()]


@exactly
def dictionary_of_pairs(data: Any) -> Any:
    return dict([("options", data.options)])["options"].size  # noqa: C406 - that it is made of pairs is the point


@whole
def dictionary_of_zipped(data: Any) -> Any:
    return dict(zip(("options",), (data.options,), strict=True))["options"].size


@whole
def merged_dictionaries(data: Any) -> Any:
    return {**DEFAULTS, **vars(data.options)}["size"]


@exactly
def get_of_a_dictionary(data: Any) -> Any:
    return data.settings.get("size", 3)


@exactly
def setdefault(data: Any) -> Any:
    return data.settings.setdefault("size", 3)


@exactly
def truth_of_a_dictionary(data: Any) -> Any:
    return 1 if data.given_sizes else 0


@whole
def itemgetter(data: Any) -> Any:
    return operator.itemgetter("size")(data.settings)


@exactly
def dictionary_with_a_factory_and_any_key(data: Any) -> Any:
    return data.made_if_absent[len(data)]


@whole
def double_ended_queue(data: Any) -> Any:
    queue = collections.deque([data.options])
    return queue.popleft().size


@exactly
def truth_of_a_queue(data: Any) -> Any:
    return 1 if data.waiting else 0


@whole
def zipped(data: Any) -> Any:
    return [options.size for _, options in zip([1], [data.options], strict=True)]


@exactly
def zipped_with_a_star(data: Any) -> Any:
    _, several = zip(*[(1, data.options), (2, data.options)], strict=True)
    return several[0].size


@whole
def enumerated(data: Any) -> Any:
    return [options.size for _, options in enumerate([data.options])]


@exactly
def generator_expression(data: Any) -> Any:
    return next(options.size for options in (data.options,))


@whole
def named_tuple(data: Any) -> Any:
    return Pair(data.options, 1).options.size


@exactly
def named_tuple_of_options(data: Any) -> Any:
    return range(data.record.size)


@exactly
def field_of_a_named_tuple_is_none(data: Any) -> Any:
    return 1 if data.optional_record.size is None else 0


@exactly
def dataclass(data: Any) -> Any:
    return data.plain.size


@whole
def dataclass_as_dictionary(data: Any) -> Any:
    return dataclasses.asdict(data.plain)["size"]


@whole
def fields_of_a_dataclass(data: Any) -> Any:
    return [getattr(data.plain, field.name) for field in dataclasses.fields(data.plain) if field.name == "size"]


@exactly
def dictionary_with_functions_as_keys(data: Any) -> Any:
    return [size for _, size in data.by_function.items()]


# --- containers of the user's ----------------------------------------------------------------------------------------


class Lowercase(dict):
    """A dictionary that changes its keys."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name.lower())


class Defaulting(dict):
    """A dictionary with a default."""

    def __missing__(self, name: str) -> Any:
        return 0


class Strict(dict):
    """A dictionary that must be read by ``get``."""

    def __getitem__(self, name: str) -> Any:
        raise TypeError(f"use get({name!r})")


class Asking(dict):
    """A dictionary that asks the global options for what it does not hold."""

    def get(self, name: str, default: Any = None) -> Any:
        return OPTIONS.size


class Judging(dict):
    """A dictionary that has its own truth."""

    def __bool__(self) -> bool:
        return bool(OPTIONS.size > 4)


class AskingIfMissing(dict):
    def __init__(self, options: Any) -> None:
        self.options = options

    def __missing__(self, name: str) -> Any:
        return self.options.size


class Same(list):
    """A list whose elements are all the same."""

    def __getitem__(self, index: Any) -> Any:
        return OPTIONS.size


class Iterated(list):
    """A list that yields something else than what it holds."""

    def __iter__(self) -> Iterator[Any]:
        yield OPTIONS.size


class Indexed:
    """A class whose subscripts are options."""

    def __class_getitem__(cls, name: str) -> Any:
        return SETTINGS[name]


@whole
def dictionary_that_changes_its_keys(data: Any) -> Any:
    return data.lowercase["SIZE"]


@exactly
def key_of_a_dictionary_with_missing(data: Any) -> Any:
    return data.defaulting["size"]


@exactly
def get_of_a_dictionary_with_its_own_subscript(data: Any) -> Any:
    return data.strict.get("size")


@exactly
def get_of_a_dictionary_of_the_users(data: Any) -> Any:
    return Asking().get("key")


@whole
def missing_key(data: Any) -> Any:
    return AskingIfMissing(data.options)["key"]


@exactly
def subscript_of_a_list_of_the_users(data: Any) -> Any:
    return Same([1, 2])[0]


@exactly
def iteration_over_a_list_of_the_users(data: Any) -> Any:
    return [*data.iterated]


@exactly
def truth_of_a_dictionary_of_the_users(data: Any) -> Any:
    return 1 if data.judging else 0


@exactly
def subscript_of_a_class(data: Any) -> Any:
    return Indexed["size"]


# --- functions -------------------------------------------------------------------------------------------------------


def size_of(options: Any) -> Any:
    return options.size


def size_of_keyword(*, size: int = 0, **rest: Any) -> Any:
    return size


def size_popped(**named: Any) -> Any:
    return named.pop("size")


def wrapped(function: Read) -> Read:
    """A decorator."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return call


def scaled(scale: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator with arguments."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return function(*arguments) * scale.size

        return call

    return decorate


def reading(options: Any) -> Callable[[], Any]:
    """Returns a closure over options."""

    def read() -> Any:
        return options.size

    return read


def times(factor: int) -> Callable[[int], int]:
    """Returns a closure over a number."""

    def multiply(number: int) -> int:
        return number * factor

    return multiply


def keeper() -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Returns two functions that share a variable."""
    kept: Any = None

    def keep(value: Any) -> None:
        nonlocal kept
        kept = value

    def give() -> Any:
        return kept

    return keep, give


def with_two_defaults(number: int, size: int) -> Callable[..., Any]:
    def read(first: int = number, second: int = size) -> Any:
        return first + second

    return read


class Composed:
    """Functions, one after the other."""

    def __init__(self, *functions: Callable[[Any], Any]) -> None:
        self.functions = functions

    def __call__(self, value: Any) -> Any:
        for function in self.functions:
            value = function(value)
        return value


READERS: dict[str, Read] = {}


def registered(read: Read) -> Read:
    """A decorator that fills a registry."""
    READERS[read.__name__] = read
    return read


@registered
def registered_reader(options: Any) -> Any:
    return options.size


TABLE_OF_LAMBDAS: dict[str, Callable[[Any], Any]] = {
    "size": lambda options: options.size,
    "lr": lambda options: options.lr,
}


@exactly
def parameter_of_a_nested_function(data: Any) -> Any:
    def read(options: Any) -> Any:
        return options.size

    return read(data.options)


@exactly
def two_lambdas_on_a_line(data: Any) -> Any:
    read, ignore = (lambda options: options.size), (lambda options: 1)
    return read(data.options) + ignore(data.options)


@exactly
def default_of_a_parameter(data: Any, options: Any = OPTIONS) -> Any:
    return options.size


@exactly
def default_of_a_keyword(data: Any, *, options: Any = OPTIONS) -> Any:
    return options.size


@exactly
def second_default_of_a_function(data: Any) -> Any:
    return data.with_two_defaults()


@exactly
def variable_set_by_an_inner_function(data: Any) -> Any:
    options = None

    def choose() -> None:
        nonlocal options
        options = data.options

    choose()
    return options.size


@exactly
def variable_set_two_functions_further_in(data: Any) -> Any:
    options = None

    def outer() -> None:
        def inner() -> None:
            nonlocal options
            options = data.options

        inner()

    outer()
    return options.size


@exactly
def variable_that_two_closures_share(data: Any) -> Any:
    data.keep(data.options)
    return data.give().size


@exactly
def closure_of_a_factory(data: Any) -> Any:
    return data.reader()


@exactly
def second_closure_of_a_factory(data: Any) -> Any:
    value = 1
    for step in data.factors:
        value = step(value)
    return value


@exactly
def namespace_of_options(data: Any) -> Any:
    return argparse.Namespace(**vars(data.options)).size


@exactly
def changed_copy_of_options(data: Any) -> Any:
    return copied_options(data.options, lr=3, depth=data.settings["size"]).depth


def copied_options(options: Any, **others: Any) -> Any:
    copied = argparse.Namespace(**vars(options))
    for name in others:
        setattr(copied, name, others[name])
    return copied


@exactly
def attribute_of_a_method(data: Any) -> Any:
    return data.read_with_options.options.size


@whole
def length_of_what_is_reversed(data: Any) -> Any:
    return list(reversed(data.counted))


@exactly
def key_of_what_is_deleted(data: Any) -> Any:
    numbers = {4: 1, 5: 2, 0: 3}
    del numbers[data.options.size], numbers[0]
    return list(numbers)


@exactly
def entered_by_async_code(data: Any) -> Any:
    return asyncio.run(data.read_asynchronously())


@exactly
def decorated_method(data: Any) -> Any:
    return data.read_decorated()


@exactly
def decorator_with_arguments(data: Any) -> Any:
    return scaled(data.options)(len)("ab")


@exactly
def cached_method(data: Any) -> Any:
    return data.read_cached()


@whole
def partial(data: Any) -> Any:
    return functools.partial(lambda options, number: options.size * number, data.options)(3)


@whole
def partial_that_the_dataset_holds(data: Any) -> Any:
    return data.partial(rest=1)


@whole
def partial_method(data: Any) -> Any:
    return data.read_partially()


@whole
def keywords_of_all_options(data: Any) -> Any:
    return size_of_keyword(**vars(data.options))


@exactly
def keyword_popped_by_name(data: Any) -> Any:
    return size_popped(size=data.options.size, factor=2)


@exactly
def arguments_with_a_star(data: Any) -> Any:
    return size_of(*[data.options])


@exactly
def arguments_with_two_stars(data: Any) -> Any:
    return size_of(**{"options": data.options})


@exactly
def function_in_a_new_dictionary(data: Any) -> Any:
    return {"read": data.read_size}["read"]()


@whole
def function_in_a_list(data: Any) -> Any:
    return data.functions[0](data.options)


@exactly
def registry_filled_by_a_decorator(data: Any) -> Any:
    return READERS["registered_reader"](data.options)


@exactly
def global_table_of_lambdas(data: Any) -> Any:
    return TABLE_OF_LAMBDAS["size"](data.options)


@exactly
def composed_functions(data: Any) -> Any:
    return data.composed(3)


@exactly
def method_of_the_class(data: Any) -> Any:
    return type(data).read_size(data)


@exactly
def method_by_getattr(data: Any) -> Any:
    return getattr(data, "read_size")()  # noqa: B009 - so do programs


@whole
def method_by_a_computed_name(data: Any) -> Any:
    return getattr(data, "read_" + data.chosen)()


@exactly
def bound_method_that_the_dataset_holds(data: Any) -> Any:
    return data.bound()


@whole
def builtin_method_that_the_dataset_holds(data: Any) -> Any:
    return data.lookup("size")


@exactly
def method_that_a_subclass_implements(data: Any) -> Any:
    return data.hook()


@exactly
def method_that_calls_super(data: Any) -> Any:
    return data.extended().size


@whole
def single_dispatch(data: Any) -> Any:
    return dispatched(data.options)


@functools.singledispatch
def dispatched(options: Any) -> Any:
    return 0


@dispatched.register(argparse.Namespace)
def _(options: argparse.Namespace) -> Any:
    return options.size


@whole
def single_dispatch_method(data: Any) -> Any:
    return Dispatching().read(data.options)


@exactly
def single_dispatch_method_of_a_global_option(data: Any) -> Any:
    return Dispatching().read(1)


@exactly
def partial_method_of_a_global_function(data: Any) -> Any:
    return Dispatching().partially()


def read_global(owner: Any, factor: int) -> Any:
    return OPTIONS.size * factor


class Dispatching:
    """Methods that the standard library wraps."""

    @functools.singledispatchmethod
    def read(self, value: Any) -> Any:
        return 0

    @read.register
    def _(self, value: int) -> Any:
        return OPTIONS.size

    @read.register
    def _(self, value: argparse.Namespace) -> Any:  # noqa: F811 - so the documentation has it
        return value.size

    partially = functools.partialmethod(read_global, 2)


# --- functions that libraries call -----------------------------------------------------------------------------------


@exactly
def mapped_method(data: Any) -> Any:
    return list(map(data.read_plus, [1]))


@exactly
def key_of_sorted(data: Any) -> Any:
    return sorted([1, 2], key=lambda number: number * (data.options.size - 4.5))


@exactly
def reduced(data: Any) -> Any:
    return functools.reduce(lambda total, number: total * data.options.size, [1, 2])


@exactly
def thread(data: Any) -> Any:
    read: list[Any] = []
    started = threading.Thread(target=lambda: read.append(data.options.size))
    started.start()
    started.join()
    return read


@exactly
def pool_of_threads(data: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return list(pool.map(data.read_plus, [1]))


@whole
def options_returned_to_a_pool(data: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: data.options).result().size


@whole
def options_returned_by_a_method_that_a_library_calls(data: Any) -> Any:
    return operator.methodcaller("give")(Giving()).size


class Giving:
    def give(self) -> Any:
        return OPTIONS


@exactly
def class_that_a_library_calls(data: Any) -> Any:
    return collections.defaultdict(Width)["key"].width


@whole
def class_that_map_calls(data: Any) -> Any:
    return [holder.options.size for holder in map(Holder, [data.options])]


@exactly
def class_with_a_subscript(data: Any) -> Any:
    return Parameterized[int]().width


Kind = typing.TypeVar("Kind")


class Parameterized(typing.Generic[Kind]):
    def __init__(self) -> None:
        self.width = OPTIONS.size


@exactly
def replacement_by_a_pattern(data: Any) -> Any:
    return re.sub("x", lambda match: str(data.options.size), "x")


# --- objects that reached code makes ---------------------------------------------------------------------------------


class Adding:
    """An object whose special methods read the option."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def __add__(self, other: Any) -> Any:
        return self.options.size + other

    def __call__(self) -> Any:
        return self.options.size

    def __len__(self) -> int:
        return int(self.options.size)

    def __bool__(self) -> bool:
        return bool(self.options.size > 4)

    def __contains__(self, other: Any) -> bool:
        return bool(self.options.size > other)

    def __enter__(self) -> Any:
        return self.options

    def __exit__(self, *error: object) -> None:
        self.options = None

    def __iadd__(self, other: Any) -> Any:
        return self.options.size + other


class Compared:
    """An object that is compared and hashed by the option."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def __hash__(self) -> int:
        return int(self.options.size)

    def __eq__(self, other: object) -> bool:
        return bool(self.options.size == 4)

    def __lt__(self, other: Any) -> bool:
        return bool(self.options.size == 4)

    def __gt__(self, other: Any) -> bool:
        return bool(self.options.size == 4)

    def __index__(self) -> int:
        return int(self.options.size)


class Counting:
    """An iterator."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.is_over = False

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.is_over:
            raise StopIteration
        self.is_over = True
        return self.options.size


class Iterable:
    def __init__(self, options: Any) -> None:
        self.options = options

    def __iter__(self) -> Any:
        return iter([self.options.size])


class CalledMeta(type):
    def __call__(cls) -> Any:
        return OPTIONS.size


class Called(metaclass=CalledMeta):
    """A class whose call gives a number."""


class Created:
    """A class whose instances are made by ``__new__``."""

    value: Any

    def __new__(cls) -> Any:
        made = object.__new__(cls)
        made.value = OPTIONS.size
        return made


class Singleton:
    """A class with one instance, which was filled when the program started."""

    instance: Any = None

    def __new__(cls) -> Any:
        if cls.instance is None:
            cls.instance = super().__new__(cls)
        return cls.instance


SINGLETON = Singleton()
SINGLETON.size = 4
SINGLETON.lr = 1


@dataclasses.dataclass
class Kept:
    options: Any


@dataclasses.dataclass
class Derived:
    """A dataclass with a member that is computed."""

    factor: int
    width: int = 0

    def __post_init__(self) -> None:
        self.width = OPTIONS.size * self.factor


class Step:
    """A step of a pipeline. Steps are joined by ``|``."""

    def __or__(self, other: Step) -> Pipeline:
        return Pipeline(self, other)

    def __call__(self, value: Any) -> Any:
        return value


class Pipeline:
    def __init__(self, *steps: Step) -> None:
        self.steps = steps

    def __call__(self, value: Any) -> Any:
        return value * OPTIONS.size


class Awaited:
    def __await__(self) -> Any:
        yield from ()
        return OPTIONS


@exactly
def method_of_a_new_object(data: Any) -> Any:
    return Holder(data.options).read()


@exactly
def attribute_that_is_stored(data: Any) -> Any:
    data.stored = data.options
    return data.read_stored()


@exactly
def attribute_that_setattr_stores(data: Any) -> Any:
    setattr(data, "stored", data.options)  # noqa: B010 - so do programs
    return data.stored.size


@exactly
def attribute_stored_in_the_dictionary(data: Any) -> Any:
    data.__dict__["stored"] = data.options
    return data.stored.size


@exactly
def attribute_stored_in_the_class(data: Any) -> Any:
    type(data).stored_in_class = data.options
    return data.stored_in_class.size


@exactly
def attribute_stored_in_the_class_of_a_new_object(data: Any) -> Any:
    return Caching().load(data.options)


class Caching:
    loaded: Any = None

    @classmethod
    def fill(cls, options: Any) -> None:
        cls.loaded = options

    def load(self, options: Any) -> Any:
        self.fill(options)
        return self.loaded.size


@exactly
def attribute_stored_in_a_base_class(data: Any) -> Any:
    Caching.fill(data.options)
    return CachingFurther.loaded.size


class CachingFurther(Caching):
    pass


@whole
def sum_with_an_object(data: Any) -> Any:
    return Adding(data.options) + 1


@whole
def addition_in_place_to_an_object(data: Any) -> Any:
    value = Adding(data.options)
    value += 1
    return value


@exactly
def truth_of_an_object(data: Any) -> Any:
    return 1 if Adding(data.options) else 2


@exactly
def length_of_an_object(data: Any) -> Any:
    return len(Adding(data.options))


@exactly
def in_an_object(data: Any) -> Any:
    return 4 in Adding(data.options)


@exactly
def call_of_an_object(data: Any) -> Any:
    return Adding(data.options)()


@whole
def hash_of_an_object(data: Any) -> Any:
    return {4: 2}.get(Compared(data.options), 0)


@whole
def hash_in_a_subscript(data: Any) -> Any:
    try:
        return {Compared(data.options): 2}[Compared(data.options)]
    except KeyError:
        return 0


@whole
def objects_in_a_set(data: Any) -> Any:
    return len({Compared(data.options), Compared(data.options)})


@whole
def objects_in_a_set_comprehension(data: Any) -> Any:
    return len({Compared(data.options) for _ in "ab"})


@whole
def sorted_objects(data: Any) -> Any:
    first = Compared(data.options)
    return sorted([first, Compared(data.options)])[0] is first


@whole
def greatest_object(data: Any) -> Any:
    first = Compared(data.options)
    return max(first, Compared(data.options)) is first


@whole
def index_of_an_object(data: Any) -> Any:
    return len(range(Compared(data.options)))


@exactly
def iterator(data: Any) -> Any:
    return list(Counting(data.options))


@exactly
def iterable(data: Any) -> Any:
    return list(Iterable(data.options))


@exactly
def call_of_a_metaclass(data: Any) -> Any:
    return Called()


@exactly
def instance_made_by_new(data: Any) -> Any:
    return Created().value


@whole
def only_instance_of_a_class(data: Any) -> Any:
    return Singleton().size


@whole
def class_in_a_function(data: Any) -> Any:
    class Inner:
        options = data.options

        def read(self) -> Any:
            return self.options.size

    return Inner().read()


@whole
def new_dataclass(data: Any) -> Any:
    return Kept(data.options).options.size


@exactly
def dataclass_with_a_computed_member(data: Any) -> Any:
    return Derived(2).width


@exactly
def object_made_by_an_operator(data: Any) -> Any:
    return (Step() | Step())(3)


@exactly
def second_class_of_a_factory(data: Any) -> Any:
    return data.first_class.size + data.second_class.size


def class_of(number: int) -> type:
    class Numbered:
        size = number

    return Numbered


@whole
def names_set_in_a_loop(data: Any) -> Any:
    return Spread(**vars(data.options)).size


class Spread:
    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)


# --- generators and contexts -----------------------------------------------------------------------------------------


@exactly
def generator(data: Any) -> Any:
    return list(data.generated())


@exactly
def delegating_generator(data: Any) -> Any:
    def outer() -> Iterator[Any]:
        yield from inner()

    def inner() -> Iterator[Any]:
        yield data.options

    return next(outer()).size


@exactly
def value_that_a_generator_returns(data: Any) -> Any:
    def outer() -> Iterator[Any]:
        options = yield from inner()
        yield options.size

    def inner() -> Any:
        yield 0
        return data.options

    return list(outer())


@whole
def value_sent_to_a_generator(data: Any) -> Any:
    def read() -> Any:
        options = yield
        yield options.size

    reading = read()
    next(reading)
    return reading.send(data.options)


@exactly
def coroutine_by_hand(data: Any) -> Any:
    async def read() -> Any:
        return data.options.size

    try:
        read().send(None)
    except StopIteration as stop:
        return stop.value


@whole
def awaited_object(data: Any) -> Any:
    async def read() -> Any:
        return (await Awaited()).size

    try:
        read().send(None)
    except StopIteration as stop:
        return stop.value


@exactly
def context_manager_of_a_method(data: Any) -> Any:
    with data.managed_options() as options:
        return options.size


@exactly
def object_as_context_manager(data: Any) -> Any:
    with Adding(data.options) as options:
        return options.size


@whole
def stack_of_contexts(data: Any) -> Any:
    with contextlib.ExitStack() as stack:
        return stack.enter_context(data.managed_options()).size


@whole
def stack_of_contexts_with_a_global_option(data: Any) -> Any:
    with contextlib.ExitStack() as stack:
        return stack.enter_context(Entered()).size


class Entered:
    def __enter__(self) -> Any:
        return OPTIONS

    def __exit__(self, *error: object) -> None:
        pass


# --- statements ------------------------------------------------------------------------------------------------------


@exactly
def conditional_expression(data: Any) -> Any:
    options = data.options if data.options else None
    return options.size


@exactly
def or_with_a_default(data: Any) -> Any:
    options = data.options or {}
    return options.size


@whole
def match_on_a_class(data: Any) -> Any:
    match data.options:
        case argparse.Namespace(size=size):
            return size


@whole
def match_on_a_mapping(data: Any) -> Any:
    match data.settings:
        case {"size": size}:
            return size


@exactly
def handler_that_reads(data: Any) -> Any:
    try:
        raise KeyError
    except KeyError:
        options = data.options
    return options.size


@exactly
def type_in_a_handler(data: Any) -> Any:
    try:
        raise KeyError
    except KeyError if data.options.size == 4 else IndexError:  # noqa: B030 - that it is computed is the point
        return 1
    except KeyError:
        return 2


@whole
def exception_of_a_helper_that_carries_options(data: Any) -> Any:
    try:
        fail_with(data.options)
    except CarryingError as error:
        return error.options.size


def fail_with(options: Any) -> None:
    raise CarryingError(options)


class CarryingError(Exception):
    def __init__(self, options: Any) -> None:
        self.options = options


@exactly
def subscript_that_is_deleted(data: Any) -> Any:
    table = Deleting()
    del table["key"]
    return table.deleted


class Deleting:
    deleted = 0

    def __delitem__(self, name: str) -> None:
        self.deleted = OPTIONS.size


# --- text ------------------------------------------------------------------------------------------------------------


@exactly
def text_of_the_dataset(data: Any) -> Any:
    return str(data)


@exactly
def formatted_dataset(data: Any) -> Any:
    return f"{data} {data!r}"


@exactly
def formatted_option(data: Any) -> Any:
    return f"{data.options.size}"


@whole
def formatted_options(data: Any) -> Any:
    return f"{data.options}".partition(",")[0]


@whole
def format_with_an_attribute(data: Any) -> Any:
    return "{0.size}".format(data.options)  # noqa: UP030, UP032 - so do programs


@whole
def percent_with_a_name(data: Any) -> Any:
    return "%(size)s" % vars(data.options)  # noqa: UP031 - so do programs


@exactly
def value_looked_for_in_a_text(data: Any) -> Any:
    return data.mode.value in "enlarged"


@whole
def json_text(data: Any) -> Any:
    return json.loads(json.dumps(data.options, default=vars))["size"]


@exactly
def path_of_a_file(data: Any) -> Any:
    return str(data.root / "images")


# --- modules and global variables ------------------------------------------------------------------------------------

TABLE: dict[str, Any] = {}
REGISTRY = types.SimpleNamespace(functions={"read": lambda: OPTIONS.size})
LOCAL = threading.local()
LOCAL.options = OPTIONS
VARIABLE = contextvars.ContextVar("VARIABLE", default=OPTIONS)
NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("NUMBER")
ENVIRONMENT = "WAYS_OF_READING_SIZE"


class WorkerInfo:
    """What a library tells of the worker, with the dataset."""

    dataset: Any

    def get(self) -> WorkerInfo:
        return self


WORKER_INFO = WorkerInfo()


class Found:
    """A class with one object."""

    def __init__(self) -> None:
        self.size = 4
        self.lr = 1


FOUND = Found()


@exactly
def global_number(data: Any) -> Any:
    return SIZE


@exactly
def one_of_two_global_objects(data: Any) -> Any:
    return PRESETS["small"].size, PRESETS["large"].size, data.preset.size


PRESETS = {"small": argparse.Namespace(size=4), "large": argparse.Namespace(size=5)}


@exactly
def global_options(data: Any) -> Any:
    return OPTIONS.size


@exactly
def global_options_with_the_name_of_a_variable_in_a_comprehension(data: Any) -> Any:
    numbers = [shadowed for shadowed in (1, 2)]  # noqa: C416 - its variable is the point
    return numbers, shadowed.size


shadowed = OPTIONS


@exactly
def global_options_with_the_name_of_a_variable_in_a_class(data: Any) -> Any:
    class Inner:
        shadowed = 1

    return Inner.shadowed, shadowed.size


@whole
def key_of_globals(data: Any) -> Any:
    return globals()["SIZE"]


@exactly
def entry_of_the_modules(data: Any) -> Any:
    return sys.modules[__name__].SIZE


@exactly
def imported_by_name(data: Any) -> Any:
    return importlib.import_module(__name__).SIZE


@exactly
def name_imported_in_a_function(data: Any) -> Any:
    from ways_of_reading import OPTIONS as options

    return options.size


@exactly
def module_imported_in_a_function(data: Any) -> Any:
    import ways_of_reading as module

    return module.OPTIONS.size


@whole
def evaluated_text(data: Any) -> Any:
    return eval("data.options.size")


@whole
def executed_text(data: Any) -> Any:
    variables: dict[str, Any] = {}
    exec("size = data.options.size", {"data": data}, variables)
    return variables["size"]


@exactly
def function_in_a_registry(data: Any) -> Any:
    return REGISTRY.functions["read"]()


@exactly
def local_of_a_thread(data: Any) -> Any:
    return LOCAL.options.size


@exactly
def context_variable(data: Any) -> Any:
    return VARIABLE.get().size


@exactly
def context_variable_that_a_library_reads(data: Any) -> Any:
    return operator.methodcaller("get")(NUMBER)


@exactly
def global_variable_that_is_set(data: Any) -> Any:
    global TEMPORARY
    TEMPORARY = data.options
    return read_temporary()


def read_temporary() -> Any:
    return TEMPORARY.size


@exactly
def global_variable_that_is_set_through_the_module(data: Any) -> Any:
    import ways_of_reading as module

    module.TEMPORARY = data.options
    return read_temporary()


@exactly
def global_variable_that_is_read_through_the_module(data: Any) -> Any:
    import ways_of_reading as module

    global TEMPORARY
    TEMPORARY = data.options
    return module.TEMPORARY.size


@exactly
def entry_that_is_stored(data: Any) -> Any:
    TABLE["options"] = data.options
    return TABLE["options"].size


@exactly
def dataset_of_the_worker(data: Any) -> Any:
    return WORKER_INFO.get().dataset.options.size


@missed("an object that a library returns from its own state is not known")
def object_that_a_library_holds(data: Any) -> Any:
    return logging.getLogger(__name__).options.size


@exactly
def variable_of_the_environment(data: Any) -> Any:
    return os.environ[ENVIRONMENT]


# --- copies and introspection ----------------------------------------------------------------------------------------


@exactly
def deep_copy(data: Any) -> Any:
    return copy.deepcopy(data.options).size


@whole
def pickled_copy(data: Any) -> Any:
    return pickle.loads(pickle.dumps(data.options)).size


@whole
def local_variables(data: Any) -> Any:
    options = data.options  # noqa: F841 - it is read by its name
    return locals()["options"].size


@whole
def present_frame(data: Any) -> Any:
    return sys._getframe(0).f_locals["data"].options.size


@whole
def frame_of_the_caller(data: Any) -> Any:
    return look_at_the_caller()


def of_another_module(function: types.FunctionType) -> types.FunctionType:
    """Returns a function with the global variables of a module that has no options."""
    return types.FunctionType(function.__code__, {"__name__": "another_module", "sys": sys})


@of_another_module
def look_at_the_caller() -> Any:
    return sys._getframe(1).f_locals["data"].options.size


@whole
def referents_of_the_collector(data: Any) -> Any:
    return next(one for one in gc.get_referents(vars(data)) if type(one) is argparse.Namespace).size


@whole
def objects_of_the_collector(data: Any) -> Any:
    return next(one for one in gc.get_objects() if type(one) is Found).size


# --- samples that hold what they were made from ----------------------------------------------------------------------


@exactly
def dictionary_in_a_sample(data: Any) -> Any:
    return data.description


@exactly
def field_of_a_named_tuple_in_a_sample(data: Any) -> Any:
    return data.record.size


# --- the dataset -----------------------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("lr", "size")

    def __init__(self, size: int, lr: int) -> None:
        self.size = size
        self.lr = lr


class Counted:
    def __init__(self, size: int, lr: int) -> None:
        self.size, self.lr = size, lr

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class AsyncEntered:
    def __init__(self, options: Any) -> None:
        self.options = options

    async def __aenter__(self) -> Any:
        return self.options

    async def __aexit__(self, *error: object) -> None:
        pass


class Samples(Base):
    """A dataset whose samples are what one way reads."""

    shared = OPTIONS
    described = Descriptor()
    stored: Any = None

    def __init__(self, read: Read, size: int, lr: int) -> None:
        given = given_of(size, lr)
        settings = {"size": size, "lr": lr}
        self.way = read
        self.options = options_of(size, lr)
        self.given = argparse.Namespace(**given)
        self.settings = settings
        self.given_sizes = {name: value for name, value in given.items() if name == "size"}
        self.attributes = Attributes(settings)
        self.keyed = Keyed(settings)
        self.lowercase = Lowercase(settings)
        self.defaulting = Defaulting(settings)
        self.strict = Strict(settings)
        self.iterated = Iterated([1])
        self.judging = Judging(settings)
        self.configuration = Configuration(**settings)
        self.given_configuration = Configuration(**given)
        self.nested = Nested(self.options)
        self.forwarding = Forwarding(self.options)
        self.logged = Logged(size, lr)
        self.slotted = Slotted(size, lr)
        self.__private = options_of(size, lr)
        self.reference = weakref.ref(self.options)
        self.proxy = weakref.proxy(self.options)
        self.small = Small()
        self.split = "train"
        self.chosen = "size"
        self.names = ["size"]
        self.preset = PRESETS["large" if size > 4 else "small"]
        self.mode = Mode.LARGE if size > 4 else Mode.SMALL
        self.flags = Flags.FLIP if size > 4 else Flags.NONE
        self.record = Record(size, lr)
        self.optional_record = Record(size if size > 4 else None, lr)  # type: ignore[arg-type]
        self.plain = Plain(size, lr)
        self.description = {"size": size}
        self.counted = Counted(size, lr)
        self.waiting = collections.deque(range(size - 4))
        self.made_if_absent = collections.defaultdict(lambda: OPTIONS.size)
        self.pattern = re.compile("a" * size)
        self.root = pathlib.Path(f"/data/{size}")
        self.partial = functools.partial(size_of_keyword, size=size, lr=lr)
        self.bound = Holder(self.options).read
        self.lookup = settings.get
        self.reader = reading(self.options)
        self.factors = [times(1), times(size)]
        self.keep, self.give = keeper()
        self.with_two_defaults = with_two_defaults(1, size)
        self.first_class, self.second_class = class_of(1), class_of(size)
        self.functions = [size_of]
        self.by_function = {size_of: size}
        options = self.options
        self.composed = Composed(lambda value: value, lambda value: options.size)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.way(self)

    def read_private(self) -> Any:
        return self.__private.size

    def __repr__(self) -> str:
        return f"Samples of {self.options.size}"

    def read_with_options(self) -> None:
        """Has options as an attribute."""

    async def read_asynchronously(self) -> Any:
        async with AsyncEntered(self.options) as options:
            return options.size

    def read_by_a_private_function(self) -> Any:
        def __read() -> Any:
            return self.options.size

        return __read()

    def read_a_private_global(self) -> Any:
        global __kept
        __kept = self.options
        return self.read_what_is_kept()

    def read_what_is_kept(self) -> Any:
        return __kept.size

    def read_size(self) -> Any:
        return self.options.size

    def read_plus(self, number: int) -> Any:
        return self.options.size + number

    def read_stored(self) -> Any:
        return self.stored.size

    def implementation(self) -> Any:
        return self.options.size

    def extended(self) -> Any:
        return super().extended()

    def generated(self) -> Iterator[Any]:
        yield self.options.size

    @contextlib.contextmanager
    def managed_options(self) -> Iterator[Any]:
        yield self.options

    @wrapped
    def read_decorated(self) -> Any:
        return self.options.size

    @functools.lru_cache  # noqa: B019 - so do programs
    def read_cached(self) -> Any:
        return self.options.size

    def read_times(self, factor: int) -> Any:
        return self.options.size * factor

    read_partially = functools.partialmethod(read_times, 2)

    @classmethod
    def read_of_class(cls) -> Any:
        return cls.shared.size

    @staticmethod
    def read_statically(options: Any) -> Any:
        return options.size

    @property
    def kept(self) -> Any:
        return self._kept

    @kept.setter
    def kept(self, value: Any) -> None:
        self._kept = value


def dataset_of(way: Way, size: int, lr: int) -> Samples:
    """Returns a new dataset of one way, and gives all options, also global ones, these values."""
    global SIZE, LR
    SIZE, LR = size, lr
    for options in (OPTIONS, OPTIONS.sub, Config, SINGLETON, FOUND, counted_helper, remembered_options(), Remembered()):
        options.size, options.lr = size, lr
    SETTINGS.update(size=size, lr=lr)
    Small.train_size = size
    NUMBER.set(size)
    os.environ[ENVIRONMENT] = str(size)
    logging.getLogger(__name__).options = OPTIONS
    Samples.read_with_options.options = options_of(size, lr)  # type: ignore[attr-defined]
    TABLE.clear()
    globals().pop("TEMPORARY", None)
    Caching.loaded = None
    made = Samples(way.read, size, lr)
    WORKER_INFO.dataset = made
    return made
