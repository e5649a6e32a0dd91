"""Measures the same work with and without an additional function of coprep, in pairs with alternating order."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.loaders.measure import Dataset, Setup, cache_budget
from tests.benchmarks.loaders.records import Spread
from tests.benchmarks.slow_samples.delivery import Epoch, later_rate
from tests.benchmarks.slow_samples.features import Features
from tests.benchmarks.slow_samples.running import Coordinator, Job, Outcome, Progress, run

WORKERS = 2
SEED = 1
PAIRS = 5
"""Pairs in each repetition."""
CHEAP = "50000,1,0"
"""A Python dataset whose samples cost almost nothing."""


@dataclass(frozen=True)
class Work:
    """The work of both sides: whole epochs of one seed, so that both prepare exactly the same samples."""

    name: str
    label: str
    epochs: int
    """Enough epochs to take some seconds, plus a first one that does not count."""
    cache: str | None = None
    """Cache of coprep's own pipeline, or `None` for a Python dataset."""

    def job(self, data: Dataset) -> Job:
        epochs = [str(self.epochs), ""]
        if self.cache is None:
            arguments = ["coprep", CHEAP, str(WORKERS), json.dumps({"seed": SEED}), *epochs]
            return Job("tests.benchmarks.slow_samples.job_python", arguments)
        options = json.dumps({"cache": self.cache, "seed": SEED})
        return Job("tests.benchmarks.slow_samples.job_native", [str(data.root), options, *epochs])


WORKS = (
    Work("images-off", "images, cache off", 1 + 3, "off"),
    Work("images-decoded", "images, cache decoded", 1 + 16, "decoded"),
    Work("python", "Python samples that cost next to nothing", 1 + 10),
)
"""The works, from the most expensive samples to the cheapest, where additional functions weigh most."""


@dataclass(frozen=True)
class PairOptions:
    """The pairs to measure, and how."""

    data: Dataset
    features: Features
    works: Sequence[str]
    """Names of the works."""
    repeat: int
    quick: bool

    @property
    def pairs(self) -> int:
        return self.repeat * (1 if self.quick else PAIRS)


@dataclass(frozen=True)
class Switch:
    """The function that is on for one side and off for the other."""

    part: str
    what: str
    off: Mapping[str, str]
    """Environment of the coordinator that switches it off. The side where it is on has none of these."""
    is_on: Callable[[Outcome], bool]
    """``True`` if it was on, by the coordinator's status when the work is done."""
    meanwhile: Callable[[], AbstractContextManager[Sequence[str]]] = lambda: contextlib.nullcontext(())
    """Runs during the work of the side where it is on, and gives options of `coprep serve`."""


@dataclass(frozen=True)
class Side:
    """One side of a pair: with it, or without."""

    per_s: float
    """Samples per second, from the second epoch on, when memory is warm and caches are full."""
    cpu_s: float
    """CPU seconds of all processes, over the same epochs."""
    is_on: bool


Pair = tuple[Side, Side]
"""The sides with and without it."""


@dataclass(frozen=True)
class PairRecord:
    """One piece of work. Ratios are with over without, over the pairs."""

    part: str
    what: str
    work: str
    on_per_s: float
    off_per_s: float
    rate_ratio: Spread
    cpu_ratio: Spread
    """Ratio of the CPU seconds of all processes."""
    pairs: int
    switched: bool
    """``True`` if it was on for one side only. If not, differences are chance."""

    @property
    def slower_percent(self) -> float:
        return 100 * (1 - self.rate_ratio.median)

    @property
    def more_cpu_percent(self) -> float:
        return 100 * (self.cpu_ratio.median - 1)

    @classmethod
    def of(cls, switch: Switch, work: Work, pairs: Sequence[Pair]) -> PairRecord:
        return cls(
            part=switch.part,
            what=switch.what,
            work=work.label,
            on_per_s=statistics.median(on.per_s for on, _ in pairs),
            off_per_s=statistics.median(off.per_s for _, off in pairs),
            rate_ratio=Spread.of([on.per_s / off.per_s for on, off in pairs]),
            cpu_ratio=Spread.of([on.cpu_s / off.cpu_s for on, off in pairs]),
            pairs=len(pairs),
            switched=all(on.is_on and not off.is_on for on, off in pairs),
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_pairs(switch: Switch, options: PairOptions) -> list[PairRecord]:
    pairs: dict[Work, list[Pair]] = {work: [] for work in WORKS if work.name in options.works}
    progress = Progress(options.pairs * len(pairs))
    for number in range(options.pairs):
        for work in pairs:
            on, off = one_pair(switch, work, options, on_first=number % 2 == 0)
            pairs[work].append((on, off))
            progress.say(f"{work.label}: {on.per_s:,.0f}/s with {switch.what}, {off.per_s:,.0f} without")
    return [PairRecord.of(switch, work, each) for work, each in pairs.items()]


def one_pair(switch: Switch, work: Work, options: PairOptions, on_first: bool) -> Pair:
    found = {on: one_side(switch, work, options, on) for on in (on_first, not on_first)}
    return found[True], found[False]


def one_side(switch: Switch, work: Work, options: PairOptions, on: bool) -> Side:
    options.data.read()
    cache = cache_budget(Setup("coprep", work.cache))
    with (
        environment({} if on else switch.off, without=switch.off),
        switch.meanwhile() if on else contextlib.nullcontext(()) as more,
    ):
        serve = [*options.features.threads(WORKERS), *more]
        outcome = run(work.job(options.data), Coordinator(cache, serve))
    epochs = [Epoch.of(message) for message in outcome.of("epoch")]
    return Side(later_rate(epochs), outcome.later_cpu_s, switch.is_on(outcome))


@contextlib.contextmanager
def environment(values: Mapping[str, str], without: Mapping[str, str] | Sequence[str]) -> Iterator[None]:
    """Sets these variables, and removes all others of `without`, for processes that start in this block."""
    before = {name: os.environ.pop(name, None) for name in without}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
