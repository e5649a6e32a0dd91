"""Measures the first batch of a stream that no job has opened yet, and of a program's second loader."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from tests.benchmarks.drop_in.case import Case, Once, Setting, column
from tests.benchmarks.drop_in.figures import Figure
from tests.benchmarks.drop_in.passes import passes_of
from tests.benchmarks.drop_in.plan import Part, Plan, Side
from tests.benchmarks.drop_in.running import job_that_says, run

NAME = "first batch"
SAMPLES, BATCH_SIZE, COST_S = 256, 32, 0.001
PARTS = ("train", "validation")
BEYOND_S, SECOND_S = 0.5, 0.5


def prepare(setting: Setting) -> None:
    # The contents differ, because loaders over equal datasets would share a stream.
    for first, name in enumerate(PARTS):
        np.save(setting.folder / f"{name}.npy", first + np.arange(SAMPLES * 64.0).reshape(SAMPLES, 64))


def dataset(setting: Setting, name: str) -> list[object]:
    return ["indexed", str(setting.folder / f"{name}.npy"), COST_S]


def plan(setting: Setting, side: Side) -> Plan:
    return Plan(side, [Part(dataset(setting, name), 1) for name in PARTS], BATCH_SIZE)


def bare_s(setting: Setting) -> float:
    """Returns the seconds of a fresh interpreter that imports PyTorch and makes the dataset."""
    arguments = [json.dumps(dataset(setting, PARTS[0]))]
    with job_that_says("tests.benchmarks.drop_in.job_bare", arguments, setting.folder) as (child, message):
        return float(message["at"] - child.started)


def once(setting: Setting) -> Once:
    outcomes = setting.in_turn(lambda side: run([plan(setting, side)], setting.folder))
    bare = bare_s(setting)
    ours, theirs = ([passes_of(outcomes[side].said[0], loader)[0] for loader in (0, 1)] for side in ("coprep", "torch"))
    values = {
        "bare": bare,
        "first": ours[0].first_batch_s,
        "second": ours[1].first_batch_s,
        "torch_first": theirs[0].first_batch_s,
        "torch_second": theirs[1].first_batch_s,
    }
    return Once(values, [outcome.others_cores for outcome in outcomes.values()])


def figures(runs: Sequence[Once]) -> list[Figure]:
    first, bare = column(runs, "first"), column(runs, "bare")
    beyond = [mine - other for mine, other in zip(first, bare, strict=True)]
    return [
        Figure(NAME, "first batch, beyond importing torch and loading the dataset", "s", beyond, BEYOND_S),
        Figure(NAME, "first batch of the second loader", "s", column(runs, "second"), SECOND_S),
        Figure(NAME, "first batch", "s", first),
        Figure(NAME, "a fresh interpreter: importing torch and loading the dataset", "s", bare),
        Figure(NAME, "first batch, PyTorch", "s", column(runs, "torch_first")),
        Figure(NAME, "first batch of the second loader, PyTorch", "s", column(runs, "torch_second")),
    ]


CASE = Case(
    NAME, "one program with a training and a validation loader, 256 samples each, batches of 32", prepare, once, figures
)
