"""The multiple-choice knapsack: at most one form of each sample, for the most saved seconds within a budget of bytes.

The solution is greedy along the efficient frontiers (Sinha & Zoltners 1979, "The Multiple-Choice Knapsack Problem"):
only the forms on the upper convex hull of seconds over bytes matter, and steps from one to the next are taken by
seconds per byte. The result is within one step of the optimum, which the linear relaxation bounds from above.

Where two resources work at the same time, an epoch takes as long as the slower one, and seconds saved on the other have
no effect. The larger of two numbers is at least any mean of them. So for every weight the knapsack of the weighted
seconds bounds the epoch from below (Lagrangian relaxation: Fisher 1981, "The Lagrangian Relaxation Method for Solving
Integer Programming Problems"). The highest of these bounds, and the best of their choices, lie where both resources
take about equally long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

HALVINGS = 20
"""Number of times that the range of weights is halved."""


class Item(NamedTuple):
    """A form in which a sample can be kept."""

    form: str
    bytes: int
    saved_s: Sequence[float]
    """Seconds saved of each resource in each epoch, compared with not keeping the sample."""

    def worth_s(self, weights: Sequence[float]) -> float:
        return sum(weight * saved for weight, saved in zip(weights, self.saved_s, strict=True))


class Step(NamedTuple):
    """A step from one form of a sample, or from nothing, to the next better form."""

    sample: int
    bytes: int
    worth_s: float
    to: Item

    @property
    def density(self) -> float:
        return self.worth_s / self.bytes


@dataclass(frozen=True)
class Choice:
    """The kept samples, and the weighted seconds that they save in each epoch."""

    kept: dict[int, Item]
    """The kept form, by sample."""
    worth_s: float
    bound_s: float
    """Upper bound: no choice saves more."""

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.kept.values())

    @property
    def by_form(self) -> dict[str, int]:
        """Returns the number of samples in each form."""
        return dict(Counter(item.form for item in self.kept.values()))

    def saved_s(self, resource: int) -> float:
        return sum(item.saved_s[resource] for item in self.kept.values())


class HullPoint(NamedTuple):
    """A form on the frontier of its sample: its bytes, and the weighted seconds that it saves."""

    bytes: int
    worth_s: float
    item: Item | None


def frontier(items: Sequence[Item], budget: int, weights: Sequence[float]) -> list[HullPoint]:
    """Returns the forms that some price per byte would choose, the smallest first, starting with nothing.

    A form that exceeds the budget by itself is left out.
    """
    hull = [HullPoint(0, 0.0, None)]
    points = [HullPoint(item.bytes, item.worth_s(weights), item) for item in items]
    for point in sorted(points, key=lambda point: (point.bytes, -point.worth_s)):
        if not 0 < point.bytes <= budget or point.worth_s <= hull[-1].worth_s:
            continue
        while len(hull) > 1 and slope(hull[-2], hull[-1]) <= slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def slope(one: HullPoint, other: HullPoint) -> float:
    if one.bytes == other.bytes:
        return float("inf")
    return (other.worth_s - one.worth_s) / (other.bytes - one.bytes)


def choose(samples: Sequence[Sequence[Item]], budget: int, weights: Sequence[float]) -> Choice:
    """Takes the steps by their density. If a sample's step does not fit, cheaper steps of other samples are tried."""
    steps = [step for number, items in enumerate(samples) for step in steps_of(number, items, budget, weights)]
    steps.sort(key=lambda step: -step.density)
    kept: dict[int, Item] = {}
    stuck: set[int] = set()
    left, worth = budget, 0.0
    bound: float | None = None
    for step in steps:
        if step.sample in stuck:
            continue
        if step.bytes <= left:
            kept[step.sample] = step.to
            left -= step.bytes
            worth += step.worth_s
        else:
            # The first step that does not fit, taken in part, gives the optimum of the linear relaxation.
            bound = worth + left * step.density if bound is None else bound
            stuck.add(step.sample)
    return Choice(kept, worth, worth if bound is None else bound)


def steps_of(sample: int, items: Sequence[Item], budget: int, weights: Sequence[float]) -> list[Step]:
    found = []
    before, *hull = frontier(items, budget, weights)
    for point in hull:
        assert point.item is not None
        found.append(Step(sample, point.bytes - before.bytes, point.worth_s - before.worth_s, point.item))
        before = point
    return found


@dataclass(frozen=True)
class Plan:
    """A choice, where two resources work at the same time."""

    choice: Choice
    needs_s: tuple[float, float]
    """Seconds of each resource with this choice."""
    bound_s: float
    """Lower bound: no choice makes an epoch shorter."""

    @property
    def epoch_s(self) -> float:
        return max(self.needs_s)


def fastest(samples: Sequence[Sequence[Item]], budget: int, needs_s: tuple[float, float]) -> Plan:
    """Returns the plan with the shortest epoch. `needs_s` are the seconds of each resource where nothing is kept.

    A larger weight of a resource leaves fewer seconds of it, so bisection finds the weight where both take equally
    long.
    """
    plans = [weighed(samples, budget, needs_s, weight) for weight in (0.0, 1.0)]
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        plan = weighed(samples, budget, needs_s, middle)
        plans.append(plan)
        first, second = plan.needs_s
        # The slower resource needs more weight.
        low, high = (middle, high) if second > first else (low, middle)
    best = min(plans, key=lambda plan: plan.epoch_s)
    # Every weight gives a lower bound, and the highest is the tightest.
    return replace(best, bound_s=max(plan.bound_s for plan in plans))


def weighed(samples: Sequence[Sequence[Item]], budget: int, needs_s: tuple[float, float], weight: float) -> Plan:
    """Returns the plan for one weight of the second resource. The first resource has the rest of 1."""
    weights = (1 - weight, weight)
    choice = choose(samples, budget, weights)
    first, second = (needs - choice.saved_s(resource) for resource, needs in enumerate(needs_s))
    whole = sum(part * needs for part, needs in zip(weights, needs_s, strict=True))
    return Plan(choice, (first, second), whole - choice.bound_s)
