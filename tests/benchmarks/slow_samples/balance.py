"""Measures how soon the pool of threads follows storage and processors that change while it runs, and the rate it then
reaches.

One job takes batches as fast as they come, without a cache. Its coordinator is asked for its status at short intervals,
while storage becomes slower, or its processors become fewer, and then recover.

Processors are taken away by affinity, from all threads of the coordinator. The coordinator sees only the affinity of
its main thread and the quota of its control group. So `taskset -p`, which sets the main thread's affinity alone, makes
it use fewer threads but leaves them on all processors. A change of the other threads' affinity alone goes unnoticed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import coprep

from tests.benchmarks.loaders.machine import CpuClock
from tests.benchmarks.loaders.measure import BATCH_SIZE, MIB, ONE_THREAD, Dataset, sleep_until
from tests.benchmarks.loaders.records import Spread
from tests.benchmarks.slow_samples.features import Features
from tests.benchmarks.slow_samples.running import READY_TIMEOUT_S, Progress, hear
from tests.benchmarks.slow_samples.series import Phase, PoolSnapshot, bytes_of, phases, samples_of
from tools.demo.children import Child, ChildFailed, Children, coprep_command

EVERY_S = 0.25
"""Seconds between two statuses."""
PHASES_S, QUICK_PHASES_S = (20.0, 40.0, 20.0), (4.0, 8.0, 4.0)
WARM_BATCHES = 8
"""Batches that the job takes before the series begins."""
PASSES = 10
"""Largest number of passes over the threads of a process, which may start others meanwhile."""
STORAGE, LATENCY, PROCESSORS = "storage", "latency", "processors"


@dataclass(frozen=True)
class World:
    """The storage and the processors that the coordinator has."""

    name: str
    mib_per_s: int | None = None
    """Rate of storage in MiB per second, or `None` for its natural rate."""
    latency_ms: int = 0
    cpus: int | None = None
    """Number of processors, or `None` for all."""

    @property
    def slowness(self) -> dict[str, str]:
        """Returns the options of `coprep throttle`. With the prefix `storage-` they are options of `coprep serve`."""
        rate = {"rate": f"{self.mib_per_s}M"} if self.mib_per_s else {}
        return rate | ({"latency": f"{self.latency_ms}ms"} if self.latency_ms else {})


@dataclass(frozen=True)
class Scenario:
    """Three phases: a world, a poorer one, and the first again."""

    name: str
    usual: World
    poor: World

    @property
    def worlds(self) -> list[World]:
        return [self.usual, self.poor, self.usual]

    def allowed(self, number: int, first: Phase) -> float | None:
        """Returns the bytes per second that the world of this phase lets the pool reach, or `None` if that is not
        known.

        This is the rate of storage where it is lower than the rate of the first phase. Otherwise it is the rate of the
        first phase, scaled by the processors that are left.
        """
        if number == 0:
            return None
        world = self.worlds[number]
        usual = first.reaches(bytes_of)
        if world.cpus:
            usual *= world.cpus / first.snapshots[-1].cpus
        return min(usual, world.mib_per_s * MIB) if world.mib_per_s else usual


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(STORAGE, World("200 MiB/s, 1 ms", 200, 1), World("20 MiB/s, 10 ms", 20, 10)),
        Scenario(LATENCY, World("5 ms", latency_ms=5), World("50 ms", latency_ms=50)),
        Scenario(PROCESSORS, World("all processors"), World("one processor", cpus=1)),
    )
}


@dataclass(frozen=True)
class BalanceOptions:
    """The scenarios to measure, and how."""

    data: Dataset
    scenarios: Sequence[str]
    features: Features
    repeat: int
    quick: bool

    def there(self) -> list[Scenario]:
        """Returns the scenarios that this coprep and this machine support."""
        if not self.features.throttle:
            return []
        few = len(os.sched_getaffinity(0)) < 2
        return [SCENARIOS[name] for name in self.scenarios if not (few and SCENARIOS[name].poor.cpus)]


@dataclass(frozen=True)
class Series:
    """One run of a scenario."""

    scenario: Scenario
    snapshots: Sequence[PoolSnapshot]
    turns: Sequence[float]
    """Moments at which the phases began."""
    others_cores: float

    @property
    def phases(self) -> list[Phase]:
        return phases(self.snapshots, self.turns)

    def allowed(self) -> list[float | None]:
        """Returns the allowed rate of each phase."""
        first, *_ = found = self.phases
        return [self.scenario.allowed(number, first) for number in range(len(found))]


@dataclass(frozen=True)
class PhaseRecord:
    """A phase, over the repetitions. Rates and threads are those of its last third."""

    scenario: str
    number: int
    world: str
    threads: Spread
    samples_per_s: Spread
    mib_per_s: Spread
    of_allowed: Spread | None
    """Rate over the rate that storage or processors allow."""
    settled_s: Spread | None
    """Seconds from the turn until the rate has settled, or `None` in the first phase, which has no turn. A run that
    never settles counts with its whole phase."""
    astray: float
    """Share of the windows after settling in which the rate is not near the one that the phase reaches."""
    cpus_s: Spread | None
    """Seconds from the turn until the pool counts on the right number of processors, or `None` if it did not change."""
    others_cores: float
    repetitions: int

    @classmethod
    def of(cls, number: int, runs: Sequence[Series]) -> PhaseRecord:
        scenario = runs[0].scenario
        mine = [run.phases[number] for run in runs]
        shares = [
            phase.reaches(bytes_of) / allowed
            for phase, allowed in zip(mine, (run.allowed()[number] for run in runs), strict=True)
            if allowed
        ]
        return cls(
            scenario=scenario.name,
            number=number,
            world=scenario.worlds[number].name,
            threads=Spread.of([phase.threads for phase in mine]),
            samples_per_s=Spread.of([phase.reaches(samples_of) for phase in mine]),
            mib_per_s=Spread.of([phase.reaches(bytes_of) / MIB for phase in mine]),
            of_allowed=Spread.of(shares) if shares else None,
            settled_s=Spread.of([or_all(phase.settled_s(), phase) for phase in mine]) if number else None,
            astray=statistics.median(phase.astray() for phase in mine),
            cpus_s=cpus_followed(number, runs) if number and scenario.poor.cpus else None,
            others_cores=statistics.median(run.others_cores for run in runs),
            repetitions=len(runs),
        )

    def as_json(self) -> dict[str, Any]:
        return {"part": "balance", **asdict(self)}


def or_all(seconds: float | None, phase: Phase) -> float:
    return phase.seconds if seconds is None else seconds


def cpus_followed(number: int, runs: Sequence[Series]) -> Spread:
    found = []
    for run in runs:
        phase = run.phases[number]
        there = run.scenario.worlds[number].cpus or run.snapshots[0].cpus
        found.append(or_all(phase.cpus_s(there), phase))
    return Spread.of(found)


@dataclass
class BalanceResults:
    """All results of this part."""

    scenarios: Sequence[str]
    """The scenarios that were asked for."""
    records: list[PhaseRecord] = field(default_factory=list)
    runs: dict[str, list[Series]] = field(default_factory=dict)
    """The runs, by scenario."""


def measure_balance(options: BalanceOptions) -> BalanceResults:
    scenarios = options.there()
    results = BalanceResults(options.scenarios, runs={scenario.name: [] for scenario in scenarios})
    progress = Progress(options.repeat * len(scenarios))
    for _ in range(options.repeat):
        for scenario in scenarios:
            one = one_run(scenario, options)
            results.runs[scenario.name].append(one)
            progress.say(f"{scenario.name}: {summary(one)}")
    for runs in results.runs.values():
        results.records += [PhaseRecord.of(number, runs) for number in range(len(PHASES_S))]
    return results


def summary(run: Series) -> str:
    parts = []
    for number, phase in enumerate(run.phases):
        settled = phase.settled_s()
        after = "" if number == 0 else f" after {settled:.1f} s" if settled is not None else ", not settled"
        parts.append(f"{phase.reaches(samples_of):,.0f}/s with {phase.threads:g} threads{after}")
    return f"{'; '.join(parts)} (others used {run.others_cores:.2f} cores)"


def one_run(scenario: Scenario, options: BalanceOptions) -> Series:
    options.data.read()
    with Children() as children:
        usual = scenario.usual.slowness.items()
        serve = list(chain.from_iterable((f"--storage-{name}", value) for name, value in usual))
        coordinator, variables = children.coordinator("0", serve)
        arguments = [str(options.data.root), str(BATCH_SIZE), str(WARM_BATCHES * BATCH_SIZE), "off"]
        job = children.module(
            "job", "tests.benchmarks.loaders.job_coprep", [*arguments, str(time.monotonic())], ONE_THREAD | variables
        )
        hear(job, "warm", READY_TIMEOUT_S)
        roots = [coordinator.pid, job.pid]
        before, began = CpuClock.read(roots), time.monotonic()
        snapshots, turns = [], []
        for number, seconds in enumerate(QUICK_PHASES_S if options.quick else PHASES_S):
            # The coordinator starts in the world of the first phase.
            if number:
                turn_to(scenario.worlds[number], coordinator, variables)
            turned = time.monotonic()
            turns.append(turned - began)
            for at, status in statuses(Path(variables["COPREP_SOCKET"]), turned + seconds, [coordinator, job]):
                snapshots.append(PoolSnapshot.of(at - began, status))
        elapsed = time.monotonic() - began
        others = CpuClock.read(roots).others_since(before) / elapsed
    return Series(scenario, snapshots, turns, others)


def statuses(socket: Path, until: float, children: Sequence[Child]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yields the status now and then every `EVERY_S` seconds."""
    due = time.monotonic()
    while due < until:
        sleep_until(due)
        for child in children:
            if not child.running():
                raise child.failure()
        status = coprep.status(socket)
        if "pool" not in status:
            raise ChildFailed("coprep status does not tell what the pool of threads does")
        yield time.monotonic(), status
        due += EVERY_S


def turn_to(world: World, coordinator: Child, variables: dict[str, str]) -> None:
    """Gives the coordinator this world from now on."""
    options = chain.from_iterable((f"--{name}", value) for name, value in world.slowness.items())
    command = [str(coprep_command()), "throttle", *options]
    subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=True, timeout=30)
    usable = sorted(os.sched_getaffinity(0))
    keep_to(set(usable[: world.cpus]), coordinator.pid)


def keep_to(processors: set[int], pid: int) -> None:
    """Keeps all threads of this process to these processors.

    A thread that has the old affinity may start another one meanwhile, so it makes several passes.
    """
    for _ in range(PASSES):
        others = [thread for thread in threads(pid) if affinity(thread) not in (processors, None)]
        if not others:
            return
        for thread in others:
            # The thread may have ended since it was listed.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processors)
    raise ChildFailed(f"{len(others)} threads of process {pid} cannot be kept to processors {sorted(processors)}")


def threads(pid: int) -> list[int]:
    """Returns the ids of the threads, the main thread first."""
    return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())


def affinity(thread: int) -> set[int] | None:
    """Returns the processors that a thread may use, or `None` if it has ended."""
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return None
