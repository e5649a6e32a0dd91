"""The configuration of a program, in the forms in which programs have one."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from typing import Any

SIZE = 0
LEARNING_RATE = 0.1
DEPTH = 0
"""Imported by name elsewhere, so that a later change is not seen there."""
SIZES: list[int] = []
TABLE: dict[str, Any] = {"size": 0, "learning_rate": 0.1, "augment": {"scale": 0}}
ARGS = argparse.Namespace(size=0, learning_rate=0.1, output="runs/0", seed=0)
STATE: dict[str, int] | None = None


class Node(dict[str, Any]):
    """A configuration as yacs has it: a dict whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def merge(self, other: dict[str, Any]) -> None:
        for name, value in other.items():
            if isinstance(value, dict):
                self[name].merge(value)
            else:
                self[name] = value


CFG = Node(data=Node(size=0), solver=Node(learning_rate=0.1))


@dataclasses.dataclass
class Options:
    size: int = 0
    learning_rate: float = 0.1


OPTIONS = Options()


class Color(enum.Enum):
    RED = 1


def init(size: int) -> None:
    """Sets the state of the module, which is `None` until then."""
    global STATE
    STATE = {"size": size}


def __getattr__(name: str) -> int:
    if name == "LAZY":
        return 0
    raise AttributeError(name)
