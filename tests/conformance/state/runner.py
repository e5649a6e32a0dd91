"""Runs jobs that set kinds of state, with PyTorch's loader and with coprep's."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jobs import Job
from warm_interpreter import WarmInterpreter

from state import datasets, handles, job, libraries, modules, packages, process
from state.kind import Kind, kinds_of

Loader = Literal["torch", "coprep"]
Method = Literal["fork", "spawn", "forkserver"]
When = Literal["before", "after"]

HERE = Path(__file__).parent
IMPORTED = ("torch", "pandas", "PIL.Image", "numpy", "cloudpickle")
"""What a job need not import anew. None of it sets any kind of state."""
MODULES = (libraries, packages, process, modules, handles, datasets, job)
KINDS: dict[str, type[Kind]] = {
    f"{module.__name__.rpartition('.')[2]}.{kind.__name__}": kind
    for module in MODULES
    for kind in kinds_of(module)
    if kind.__doc__
}
"""The kinds of state by name."""
TOGETHER = [name for name, kind in KINDS.items() if not kind.alone]
ALONE = [name for name, kind in KINDS.items() if kind.alone]

SCRIPT = f"""
__file__ = {str(HERE / "job.py")!r}
with open(__file__) as file:
    exec(compile(file.read(), __file__, "exec"))
"""
"""Runs the script of a job as `python job.py` does."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a job tells: its batches as text or an error, its stream, and the kinds whose state was harmed."""

    batches: tuple[str, ...] = ()
    error: str = ""
    stream: int = 0
    harm: frozenset[str] = frozenset()

    @property
    def samples(self) -> tuple[str, ...] | str:
        """Returns the batches. Of an error, which each loader words in its own way, only that it is one."""
        return "an error" if self.error else self.batches


class Runner:
    """Starts jobs in interpreters that have imported the packages, and keeps their reports.

    Two interpreters differ in the order of their sets, as programs do that are started apart.
    """

    def __init__(self, environment: Mapping[str, str], imports: Sequence[str] = ("coprep",)) -> None:
        self._interpreters = [
            WarmInterpreter({**environment, "PYTHONHASHSEED": str(seed)}, (*imports, *IMPORTED)) for seed in (1, 2)
        ]
        self.by_fork = functools.cache(self._by_fork)
        self.together = functools.cache(self._together)
        self.alone = functools.cache(self._alone)

    def close(self) -> None:
        for interpreter in self._interpreters:
            interpreter.close()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Keeps a job with a kind, so that the coordinator that it starts knows nothing of what others set."""
        job = self._start("coprep", "fork", "before", 0, [name], 0)
        assert "error" not in (report := json.loads(job.line())), report
        yield
        job.say("go")
        job.line()
        job.result()

    def _start(self, loader: Loader, method: Method, when: When, which: int, names: Sequence[str], other: int) -> Job:
        arguments = [loader, method, when, which, *names]
        return Job(SCRIPT, *arguments, interpreter=self._interpreters[other], PYTHONPATH=str(HERE.parent))

    def _by_fork(self, loader: Loader, name: str) -> list[Report]:
        """Returns the reports of three jobs that run side by side.

        They set a kind to its first value before the loader is made, to its second value, and, in another interpreter,
        to its first value after the loader is made.
        """
        whens: list[tuple[When, int, int]] = [("before", 0, 0), ("before", 1, 0), ("after", 0, 1)]
        return reports(*(self._start(loader, "fork", when, which, [name], other) for when, which, other in whens))

    def _alone(self, loaders: tuple[Loader, ...], method: Method, when: When, name: str) -> list[Report]:
        """Returns the reports of a job for each loader, with one kind. The jobs run side by side."""
        return reports(*(self._start(loader, method, when, 0, [name], 0) for loader in loaders))

    def _together(self, loader: Loader, method: Method, when: When) -> tuple[dict[str, str], frozenset[str]]:
        """Returns the sample of each kind, all of which one job shows, and the kinds whose state was harmed."""
        return self._samples(loader, method, when, TOGETHER)

    def _samples(
        self, loader: Loader, method: Method, when: When, names: list[str]
    ) -> tuple[dict[str, str], frozenset[str]]:
        """Returns the samples of these kinds. If that is an error, halves of them tell which kinds cause it."""
        report = reports(self._start(loader, method, when, 0, names, 0))[0]
        if len(names) == 1:
            return {names[0]: report.error or str(report.batches)}, report.harm
        if report.error:
            middle = len(names) // 2
            first, second = (self._samples(loader, method, when, half) for half in (names[:middle], names[middle:]))
            return first[0] | second[0], first[1] | second[1]
        return dict(zip(names, report.batches, strict=True)), report.harm


def reports(*started: Job) -> list[Report]:
    """Returns what jobs report, which run until all of them have their batches."""
    told: list[dict[str, Any]] = [json.loads(job.line()) for job in started]
    for ready in started:
        ready.say("go")
    for ended, report in zip(started, told, strict=True):
        report |= json.loads(ended.line())
        ended.result()
    return [
        Report(
            tuple(report.get("batches", ())),
            report.get("error", ""),
            report.get("stream", 0),
            frozenset(report["harm"]),
        )
        for report in told
    ]


def own_environment() -> dict[str, str]:
    """Returns the environment of an interpreter, without settings of coprep, which are for the jobs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COPREP_")}
