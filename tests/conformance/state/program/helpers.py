"""Functions and classes of a program that the program changes while it runs."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

from state.program import config


def load(index: int) -> int:
    return 0


def load_three(index: int) -> int:
    return 3


def load_five(index: int) -> int:
    return 5


def load_replaced(index: int) -> int:
    return 0


LOADS = {3: load_three, 5: load_five}


def with_default(index: int, size: int = 0) -> int:
    return size


def with_keyword(index: int, *, size: int = 0) -> int:
    return size


def with_attribute(index: int) -> int:
    return getattr(with_attribute, "size", 0)


def made_with(size: int) -> tuple[Callable[[int], int], Callable[[int], None]]:
    """Returns a function and another that changes the variable of the first."""

    def get(index: int) -> int:
        return size

    def change(value: int) -> None:
        nonlocal size
        size = value

    return get, change


get_enclosed, change_enclosed = made_with(0)
scaled = functools.partial(with_default, size=0)
compute: Callable[[int], int] = lambda index: 0  # noqa: E731


@functools.cache
def cached_size() -> int:
    """Keeps the size of the first call."""
    return config.SIZE


@functools.cache
def square(number: int) -> int:
    return number * number


@functools.singledispatch
def describe(value: object) -> str:
    return "object"


def logged(function: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def wrapper(index: int) -> int:
        return function(index) + config.SIZE

    return wrapper


@logged
def decorated(index: int) -> int:
    return 0


class Reader:
    size = 0

    def read(self, index: int) -> int:
        return 0

    def unused(self) -> int:
        return 0

    @property
    def area(self) -> int:
        return 0

    @classmethod
    def of_class(cls) -> int:
        return cls.size

    @staticmethod
    def static(index: int) -> int:
        return 0


class Meta(type):
    size = 0

    def area(cls) -> int:
        return cls.size


class WithMeta(metaclass=Meta):
    pass


class Descriptor:
    def __init__(self) -> None:
        self.size = 0

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else self.size


class WithDescriptor:
    size = Descriptor()


class Shape(abc.ABC):  # noqa: B024
    pass


class Circle:
    pass


class Square:
    pass


class Mixin:
    def area(self) -> int:
        return 0


class MixinThree(Mixin):
    def area(self) -> int:
        return 3


class MixinFive(Mixin):
    def area(self) -> int:
        return 5


class Mixed(Mixin):
    pass


class Entered:
    """A context that sets a global variable while it is entered."""

    current = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        Entered.current = self.size

    def __exit__(self, *error: object) -> None:
        Entered.current = 0
