"""Measures the first batch of a stream that no job has opened yet, and of a program's second loader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.benchmarks.drop_in.case import Case, Once, Setting, column
from tests.benchmarks.drop_in.figures import Figure
from tests.benchmarks.drop_in.passes import passes_of
from tests.benchmarks.drop_in.plan import Part, Plan, Side
from tests.benchmarks.drop_in.running import run

NAME = "first batch"
SAMPLES, BATCH_SIZE, COST_S = 256, 32, 0.001
PARTS = ("train", "validation")
BEYOND_TORCH_S = 0.3


def prepare(setting: Setting) -> None:
    # The contents differ, because loaders over equal datasets would share a stream.
    for first, name in enumerate(PARTS):
        np.save(setting.folder / f"{name}.npy", first + np.arange(SAMPLES * 64.0).reshape(SAMPLES, 64))


def dataset(setting: Setting, name: str) -> list[object]:
    return ["indexed", str(setting.folder / f"{name}.npy"), COST_S]


def plan(setting: Setting, side: Side) -> Plan:
    return Plan(side, [Part(dataset(setting, name), 1) for name in PARTS], BATCH_SIZE)


def once(setting: Setting) -> Once:
    outcomes = setting.in_turn(lambda side: run([plan(setting, side)], setting.folder))
    ours, theirs = ([passes_of(outcomes[side].said[0], loader)[0] for loader in (0, 1)] for side in ("coprep", "torch"))
    values = {
        "first": ours[0].first_batch_s,
        "second": ours[1].first_batch_s,
        "torch_first": theirs[0].first_batch_s,
        "torch_second": theirs[1].first_batch_s,
    }
    return Once(values, [outcome.others_cores for outcome in outcomes.values()])


def figures(runs: Sequence[Once]) -> list[Figure]:
    found = []
    for which, loader in (("first", "the first loader"), ("second", "the second loader")):
        ours, theirs = column(runs, which), column(runs, f"torch_{which}")
        beyond = [mine - other for mine, other in zip(ours, theirs, strict=True)]
        found += [
            Figure(NAME, f"of {loader}, beyond PyTorch's", "s", beyond, BEYOND_TORCH_S),
            Figure(NAME, f"of {loader}", "s", ours),
            Figure(NAME, f"of {loader}, PyTorch", "s", theirs),
        ]
    return found


CASE = Case(
    NAME, "one program with a training and a validation loader, 256 samples each, batches of 32", prepare, once, figures
)
