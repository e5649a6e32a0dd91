"""The same work with something that coprep does by the way and without it, in pairs, alternately first."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.measure import Dataset, Setup, cache_budget
from tests.bench.records import Spread
from tests.bench_slow.delivery import Epoch, later_rate
from tests.bench_slow.features import Features
from tests.bench_slow.running import Coordinator, Job, Outcome, Progress, run

WORKERS = 2
SEED = 1
PAIRS = 5
"""In each repetition."""
CHEAP = "50000,1,0"
"""A Python dataset whose samples cost next to nothing."""


@dataclass(frozen=True)
class Work:
    """What is done on both sides. Whole epochs of one seed: both prepare the very same."""

    name: str
    label: str
    epochs: int
    """As many as make some seconds, and one before that is not looked at."""
    cache: str | None = None
    """Of coprep's own pipeline. None: a Python dataset."""

    def job(self, data: Dataset) -> Job:
        epochs = [str(self.epochs), ""]
        if self.cache is None:
            arguments = ["coprep", CHEAP, str(WORKERS), json.dumps({"seed": SEED}), *epochs]
            return Job("tests.bench_slow.job_python", arguments)
        options = json.dumps({"cache": self.cache, "seed": SEED})
        return Job("tests.bench_slow.job_native", [str(data.root), options, *epochs])


WORKS = (
    Work("images-off", "images, cache off", 1 + 3, "off"),
    Work("images-decoded", "images, cache decoded", 1 + 16, "decoded"),
    Work("python", "Python samples that cost next to nothing", 1 + 10),
)
"""From where a sample costs most to where it costs least, and what is done by the way most beside that."""


@dataclass(frozen=True)
class PairOptions:
    """What to measure."""

    data: Dataset
    features: Features
    works: Sequence[str]
    """Names."""
    repeat: int
    quick: bool

    @property
    def pairs(self) -> int:
        return self.repeat * (1 if self.quick else PAIRS)


@dataclass(frozen=True)
class Switch:
    """What is on on one side, and off on the other."""

    part: str
    what: str
    off: Mapping[str, str]
    """In the coordinator's environment. On: none of these."""
    is_on: Callable[[Outcome], bool]
    """By what the coordinator says when the work is done."""
    meanwhile: Callable[[], AbstractContextManager[Sequence[str]]] = lambda: contextlib.nullcontext(())
    """Of the side where it is on: options of `coprep serve`."""


@dataclass(frozen=True)
class Side:
    """With it, or without."""

    per_s: float
    """Samples,"""
    cpu_s: float
    """and of all processes; both from the second epoch on, when memory is warm and caches are full."""
    is_on: bool


Pair = tuple[Side, Side]
"""With, and without."""


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
    """Of the CPU seconds of all processes."""
    pairs: int
    switched: bool
    """Whether it was on on one side only. If not, what differs is chance."""

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
    """Of what is started meanwhile: these, and none else of `without`."""
    before = {name: os.environ.pop(name, None) for name in without}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
