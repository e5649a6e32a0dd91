"""Counts calls per sample, for a cohort and for a set that is iterated over once, and measures gaps between epochs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.drop_in.case import Case, Once, Setting, column, nothing_to_prepare
from tests.benchmarks.drop_in.figures import Figure
from tests.benchmarks.drop_in.passes import border_to_gap, passes_of
from tests.benchmarks.drop_in.plan import Part, Plan, Side
from tests.benchmarks.drop_in.running import Outcome, run

NAME = "one pass"
SAMPLES, BATCH_SIZE, COST_S = 400, 32, 0.002
JOBS, EPOCHS = 4, 2
VALIDATION = 60
BORDER_EPOCHS = 6
QUICK_JOBS, QUICK_BORDER_EPOCHS = 2, 4
LINGERS_S = 1.0
CALLS = 1.02
LIGHT: dict[str, Any] = {"framework": "numpy"}
"""Options for jobs that need no PyTorch: their imports make no difference to the counts."""

files = itertools.count()


def counted(folder: Path, samples: int) -> Path:
    """Returns an empty file for counting calls."""
    path = folder / f"calls-{samples}-{next(files)}"
    path.touch()
    return path


def count(plans: Sequence[Plan], folder: Path, calls: Path) -> tuple[int, Outcome]:
    """Runs the jobs and returns the calls of all of them together."""
    outcome = run(plans, folder)
    return calls.stat().st_size, outcome


def cohort(setting: Setting) -> tuple[float, Outcome]:
    """Returns the calls per sample and epoch."""
    jobs = QUICK_JOBS if setting.quick else JOBS
    calls = counted(setting.folder, SAMPLES)
    part = Part(["counted", SAMPLES, COST_S, str(calls)], EPOCHS)
    options = {**LIGHT, "cohort": "drop-in", "cohort_size": jobs, "seed": 1}
    plan = Plan("coprep", [part], BATCH_SIZE, options=options, imports_torch=False, linger_s=LINGERS_S)
    made, outcome = count([plan] * jobs, setting.folder, calls)
    return made / (SAMPLES * EPOCHS), outcome


def validation(setting: Setting) -> tuple[float, Outcome]:
    """Returns the calls per sample of one pass."""
    calls = counted(setting.folder, VALIDATION)
    part = Part(["counted", VALIDATION, COST_S, str(calls)], 1)
    plan = Plan("coprep", [part], BATCH_SIZE, shuffle=False, options=LIGHT, imports_torch=False, linger_s=LINGERS_S)
    made, outcome = count([plan], setting.folder, calls)
    return made / VALIDATION, outcome


def borders(setting: Setting, side: Side) -> tuple[float, Outcome]:
    """Returns the longest gap between epochs, over the median gap."""
    epochs = QUICK_BORDER_EPOCHS if setting.quick else BORDER_EPOCHS
    calls = counted(setting.folder, SAMPLES)
    part = Part(["counted", SAMPLES, COST_S, str(calls)], epochs)
    outcome = run([Plan(side, [part], BATCH_SIZE)], setting.folder)
    return border_to_gap(passes_of(outcome.said[0])), outcome


def once(setting: Setting) -> Once:
    in_cohort, cohort_outcome = cohort(setting)
    validated, validation_outcome = validation(setting)
    sides = setting.in_turn(lambda side: borders(setting, side))
    values = {"cohort": in_cohort, "validation": validated, "border": sides["coprep"][0], "torch": sides["torch"][0]}
    outcomes = [cohort_outcome, validation_outcome, *(outcome for _, outcome in sides.values())]
    return Once(values, [outcome.others_cores for outcome in outcomes])


def figures(runs: Sequence[Once]) -> list[Figure]:
    once_over = column(runs, "validation")
    border = "longest gap at a border of epochs, from the second border on, over the median gap"
    return [
        Figure(NAME, "cohort: calls for each sample and epoch", "calls", column(runs, "cohort"), CALLS),
        Figure(NAME, f"{VALIDATION} samples iterated over once: calls for each sample", "calls", once_over, CALLS),
        Figure(NAME, border, "x", column(runs, "border")),
        Figure(NAME, f"{border}, PyTorch", "x", column(runs, "torch")),
    ]


CASE = Case(
    NAME,
    "400 samples, batches of 32, a cohort of 4 jobs for 2 epochs; 60 samples once; one job for 6 epochs",
    nothing_to_prepare,
    once,
    figures,
)
