"""The multiple-choice knapsack: of each sample one form at most, for the most seconds within so many bytes.

The greedy way along the efficient frontiers (Sinha & Zoltners 1979, "The Multiple-Choice Knapsack Problem"): of each
sample only the forms on the upper convex hull of seconds over bytes matter, and steps from one to the next are taken by
seconds per byte. It is within one step of the optimum, which the linear relaxation bounds from above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Item(NamedTuple):
    """A form that a sample can be kept in."""

    form: str
    bytes: int
    saved_s: float
    """In each epoch, against not keeping it."""


NOTHING = Item("", 0, 0.0)


class Step(NamedTuple):
    """From one form of a sample, or nothing, to the next better."""

    sample: int
    bytes: int
    saved_s: float
    to: Item

    @property
    def worth(self) -> float:
        return self.saved_s / self.bytes


@dataclass(frozen=True)
class Choice:
    """What is kept, and what it saves in each epoch."""

    saved_s: float
    bound_s: float
    """No choice saves more."""
    bytes: int
    by_form: dict[str, int]
    """Samples."""


def frontier(items: Sequence[Item], budget: int) -> list[Item]:
    """The forms that some price per byte would choose, the smallest first. None that exceeds the budget alone."""
    hull = [NOTHING]
    for item in sorted(items, key=lambda item: (item.bytes, -item.saved_s)):
        if not 0 < item.bytes <= budget or item.saved_s <= hull[-1].saved_s:
            continue
        while len(hull) > 1 and slope(hull[-2], hull[-1]) <= slope(hull[-2], item):
            hull.pop()
        hull.append(item)
    return hull[1:]


def slope(one: Item, other: Item) -> float:
    if one.bytes == other.bytes:
        return float("inf")
    return (other.saved_s - one.saved_s) / (other.bytes - one.bytes)


def choose(samples: Sequence[Sequence[Item]], budget: int) -> Choice:
    """Steps by their worth. A sample whose step does not fit stays as it is, and cheaper steps of others are tried."""
    steps = [step for number, items in enumerate(samples) for step in steps_of(number, frontier(items, budget))]
    steps.sort(key=lambda step: -step.worth)
    kept: dict[int, Item] = {}
    stuck: set[int] = set()
    left, saved, bound = budget, 0.0, 0.0
    for step in steps:
        if step.sample in stuck:
            continue
        if step.bytes <= left:
            kept[step.sample] = step.to
            left -= step.bytes
            saved += step.saved_s
        else:
            bound = bound or saved + left * step.worth
            stuck.add(step.sample)
    by_form = Counter(item.form for item in kept.values())
    return Choice(saved, bound or saved, budget - left, dict(by_form))


def steps_of(sample: int, hull: Sequence[Item]) -> list[Step]:
    found = []
    before = NOTHING
    for item in hull:
        found.append(Step(sample, item.bytes - before.bytes, item.saved_s - before.saved_s, item))
        before = item
    return found
