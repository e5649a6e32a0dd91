"""Tests that long lists of records have the identity of their content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from coprep._fingerprint import fingerprint
from coprep._hashing import Hasher


def here(value: Any) -> bytes:
    """Returns the digest of a value as a whole."""
    return fingerprint({"x": {"whole": value}})[0][1]


@dataclass
class Record:
    path: Any
    box: Any = None


@dataclass(slots=True)
class Slots:
    path: Any
    box: Any = None


class Pair(NamedTuple):
    path: Any
    box: Any = None


class Said(Record):
    """Says itself what of it is pickled."""

    def __getstate__(self) -> Any:
        return self.path


ROWS: dict[str, Callable[..., Any]] = {
    "dicts": lambda path, box=None: {"path": path, "box": box},
    "lists": lambda path, box=None: [path, box],
    "tuples": lambda path, box=None: (path, box),
    "dataclasses": Record,
    "slots": Slots,
    "named tuples": Pair,
}
ELEMENTS = [1, 1.0, True, None, "1", 2**70, [1], (1,), [1, 2], [[1]], [1.0, 1], {"a": 1}, {"a": 2}, {"b": 1}, b"1"]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_long_lists_differ_where_an_element_does(row: Callable[..., Any]) -> None:
    def rows(**boxes: Any) -> list[Any]:
        return [row(f"{number}.jpg", boxes.get(f"at{number}", [number, 0.5])) for number in range(100)]

    assert here(rows()) == here(rows())
    lists = [rows(), [*reversed(rows())], rows()[1:], [*rows(), row("")], *(rows(at50=one) for one in ELEMENTS)]
    lists += [[row("", one)] * 100 for one in ELEMENTS]
    assert len({here(one) for one in lists}) == len(lists)
    assert {here(rows(at50=one)) for one in ELEMENTS} == {here(rows(at50=one)) for one in ELEMENTS}


def test_long_lists_of_one_content_and_several_types_differ() -> None:
    lists = [[row("1", [1, 2])] * 100 for row in ROWS.values()]
    assert len({here(one) for one in lists}) == len(lists)
    assert here([Said("1", 2)] * 100) == here([Said("1", 3)] * 100) != here([Said("2", 2)] * 100)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_relative_paths_within_long_lists_are_noted(row: Callable[..., Any]) -> None:
    hasher = Hasher([])
    hasher.plain([row(f"{number}.jpg", [["masks", f"{number}.png"]]) for number in range(100)])
    assert {"0.jpg", "masks", "99.png"} <= hasher.strings


def test_a_long_list_that_holds_itself_is_hashed() -> None:
    endless: list[Any] = ["a"]
    endless += [endless] * 100
    assert here(endless) == here(endless)
    endless[0] = "b"
    other: list[Any] = ["a"]
    other += [other] * 100
    assert here(other) != here(endless)
