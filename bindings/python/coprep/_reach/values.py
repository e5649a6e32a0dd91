"""The values that a variable of reached code may have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from coprep._reach.frames import Frame

Values = int
"""A set of values: the bits at their numbers. So a union is an ``or``, and the order is that in which they were met."""

UNKNOWN: Literal[1] = 1
"""The set of the value that stands for numbers, arrays, and what libraries return."""
VALUES = 20_000
"""Most values of an evaluation."""
ANY = "*"
"""The name under which a value keeps what reached code has stored in it under a name that is not known."""
ITEMS = "[]"
"""The name under which a value keeps the elements that reached code has stored in it."""


class Bounds(Exception):
    """Raised when the reached code is too much to look at."""


class Value:
    """One value. It has a number, and the attributes that reached code has stored in it."""

    __slots__ = ("bit", "is_whole", "readers", "stored")

    def __init__(self) -> None:
        self.is_whole = False
        """``True`` if it counts whole, with all that is stored in it."""
        self.bit: Values = 0
        self.stored: dict[str, Values] = {}
        self.readers: set[Frame] = set()
        """Functions whose evaluation has read what is stored in it."""


class Unknown(Value):
    __slots__ = ()


class Live(Value):
    """An object in memory. Its path says how it was reached first."""

    __slots__ = ("obj", "path")

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__()
        self.obj = obj
        self.path = path


class Text(Value):
    """A string that is known."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Box(Value):
    """A container or a generator that reached code makes. All that it makes at one place are one."""

    __slots__ = ()


class Partial(Value):
    """A ``functools.partial`` that reached code makes, of what is stored as ``function``."""

    __slots__ = ()


class Made(Value):
    """The instances of a class that reached code makes."""

    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        super().__init__()
        self.cls = cls


class Closure(Value):
    """A lambda or function that reached code defines."""

    __slots__ = ("frame", "node")

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame) -> None:
        super().__init__()
        self.node = node
        self.frame = frame


class Bound(Value):
    """A function with the value of its first parameter."""

    __slots__ = ("first", "function")

    def __init__(self, function: Value, first: Values) -> None:
        super().__init__()
        self.function = function
        self.first = first


class Method(Value):
    """A method that is no code of the user's, of a container, a string or an object of a library."""

    __slots__ = ("name", "owner")

    def __init__(self, name: str, owner: Value) -> None:
        super().__init__()
        self.name = name
        self.owner = owner


class Super(Value):
    """What ``super()`` gives in a method of a class."""

    __slots__ = ("cls", "first")

    def __init__(self, cls: type, first: Values) -> None:
        super().__init__()
        self.cls = cls
        self.first = first


class Table:
    """All values of an evaluation, each once."""

    def __init__(self) -> None:
        self._values: list[Value] = [Unknown()]
        self._values[0].bit = UNKNOWN
        self._known: dict[tuple[Any, ...], Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    def each(self, values: Values) -> Iterator[Value]:
        """Yields the values of a set."""
        known = self._values
        while values:
            lowest = values & -values
            yield known[lowest.bit_length() - 1]
            values ^= lowest

    def objects(self, values: Values) -> list[Any]:
        """Returns the objects in memory that a set may be, with ``None`` for each value that is none."""
        return [value.obj if isinstance(value, Live) else None for value in self.each(values)]

    def known(self, kind: type[Any], *key: Any) -> Any:
        """Returns the value of a kind with this key, if it was met."""
        return self._known.get((kind, key))

    def one(self, kind: type[Any], *key: Any, make: tuple[Any, ...] | None = None) -> Any:
        """Returns the value of a kind with this key, which is also what it is made of unless that is given."""
        found = self._known.get((kind, key))
        if found is None:
            found = self._known[kind, key] = kind(*(key if make is None else make))
            if len(self._values) >= VALUES:
                raise Bounds(f"the code that makes samples meets more than {VALUES} objects")
            found.bit = 1 << len(self._values)
            self._values.append(found)
        return found

    def of(self, kind: type[Any]) -> list[Any]:
        """Returns all values of a kind."""
        return [value for value in self._values if isinstance(value, kind)]

    def texts(self, values: Values) -> list[str] | None:
        """Returns the strings that a set may be, or ``None`` if not all are known."""
        found = [value.text if isinstance(value, Text) else None for value in self.each(values)]
        return None if not found or None in found else [text for text in found if text is not None]
