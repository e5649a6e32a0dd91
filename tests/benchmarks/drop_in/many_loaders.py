"""Measures a program with many small loaders, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.benchmarks.drop_in.case import Case, Once, Setting, column
from tests.benchmarks.drop_in.figures import Figure, ratios
from tests.benchmarks.drop_in.passes import passes_of
from tests.benchmarks.drop_in.plan import Part, Plan, Side
from tests.benchmarks.drop_in.running import run

NAME = "many loaders"
LOADERS, QUICK_LOADERS = 60, 6
SAMPLES, BATCH_SIZE, COST_S = 32, 8, 0.001
TIMES_TORCH = 3.0


def loaders(setting: Setting) -> range:
    return range(QUICK_LOADERS if setting.quick else LOADERS)


def prepare(setting: Setting) -> None:
    (setting.folder / NAME).mkdir()
    # The contents differ, because loaders over equal datasets would share a stream.
    for number in loaders(setting):
        np.save(setting.folder / NAME / f"{number}.npy", number + np.arange(SAMPLES * 64.0).reshape(SAMPLES, 64))


def plan(setting: Setting, side: Side) -> Plan:
    files = [str(setting.folder / NAME / f"{number}.npy") for number in loaders(setting)]
    return Plan(side, [Part(["indexed", file, COST_S], 1) for file in files], BATCH_SIZE)


def once(setting: Setting) -> Once:
    outcomes = setting.in_turn(lambda side: run([plan(setting, side)], setting.folder))
    passes = {side: [passes_of(outcome.said[0], n)[0] for n in loaders(setting)] for side, outcome in outcomes.items()}
    seconds = {side: each[-1].end - each[0].made for side, each in passes.items()}
    return Once(
        {"seconds": seconds["coprep"], "torch": seconds["torch"]},
        [outcome.others_cores for outcome in outcomes.values()],
    )


def figures(runs: Sequence[Once]) -> list[Figure]:
    ours, theirs = column(runs, "seconds"), column(runs, "torch")
    what = "60 loaders of 32 samples, one after another"
    return [
        Figure(NAME, f"{what}, over PyTorch's", "x", ratios(ours, theirs), TIMES_TORCH),
        Figure(NAME, what, "s", ours),
        Figure(NAME, f"{what}, PyTorch", "s", theirs),
    ]


CASE = Case(NAME, "one program with 60 loaders of 32 samples each, all of which stay", prepare, once, figures)
