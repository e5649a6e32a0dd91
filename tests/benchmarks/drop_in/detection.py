"""Measures photographs with boxes and masks: samples of very unequal size, which a `collate_fn` puts together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.drop_in.case import Case, Once, Setting, column, known
from tests.benchmarks.drop_in.figures import Figure, ratios
from tests.benchmarks.drop_in.passes import all_passes_s, first_pass_s, later_pass_s, passes_of
from tests.benchmarks.drop_in.photographs import write_photograph
from tests.benchmarks.drop_in.plan import Part, Plan, Side
from tests.benchmarks.drop_in.running import run

NAME = "detection"
PHOTOGRAPHS, BATCH_SIZE, PASSES = 24, 4, 3
LARGEST = (2600, 1800, 10)
"""Width, height and number of objects. With a mask for each object, this is 61 MB."""
LARGER = (1200, 900, 6)
QUICK_PHOTOGRAPHS, QUICK_PASSES, QUICK_LARGEST = 12, 2, (1300, 900, 10)
TIMES_TORCH, FIRST_TIMES_TORCH = 1.1, 1.5
SHARED_MIB = 600


PARTS = ("train", "validation")


def prepare(setting: Setting) -> None:
    for seed, part in enumerate(PARTS, 1):
        write_photographs(setting, setting.folder / NAME / part, seed)


def write_photographs(setting: Setting, folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    for number in range(QUICK_PHOTOGRAPHS if setting.quick else PHOTOGRAPHS):
        width, height, objects = int(draw.integers(400, 641)), int(draw.integers(300, 481)), int(draw.integers(2, 8))
        if number == 9:
            width, height, objects = QUICK_LARGEST if setting.quick else LARGEST
        elif number % 8 == 3:
            width, height, objects = LARGER
        write_photograph(folder / f"{number:02d}-{objects}.jpg", width, height, number)


def plan(setting: Setting, side: Side) -> Plan:
    passes = QUICK_PASSES if setting.quick else PASSES
    parts = [Part(["detection", str(setting.folder / NAME / part)], passes) for part in PARTS]
    return Plan(side, parts, BATCH_SIZE, collate="columns")


def once(setting: Setting) -> Once:
    outcomes = setting.in_turn(lambda side: run([plan(setting, side)], setting.folder))
    ours, theirs = ([passes_of(outcomes[side].said[0], loader) for loader in (0, 1)] for side in ("coprep", "torch"))
    return Once(
        known(
            cold=first_pass_s(ours[0]),
            first=first_pass_s(ours[1]),
            later=later_pass_s(ours[1]),
            all=all_passes_s(ours[1]),
            torch_cold=first_pass_s(theirs[0]),
            torch_first=first_pass_s(theirs[1]),
            torch_later=later_pass_s(theirs[1]),
            torch_all=all_passes_s(theirs[1]),
            staging=outcomes["coprep"].staging_mib,
            shared=outcomes["coprep"].shared_mib,
        ),
        [outcome.others_cores for outcome in outcomes.values()],
    )


def figures(runs: Sequence[Once]) -> list[Figure]:
    return [
        Figure(NAME, "all passes of the second loader, over PyTorch's", "x", over(runs, "all"), TIMES_TORCH),
        Figure(NAME, "a later pass, over PyTorch's", "x", over(runs, "later"), TIMES_TORCH),
        Figure(NAME, "first pass of the first loader, over PyTorch's", "x", over(runs, "cold"), FIRST_TIMES_TORCH),
        Figure(NAME, "first pass of the second loader, over PyTorch's", "x", over(runs, "first")),
        Figure(NAME, "all passes of the second loader", "s", column(runs, "all")),
        Figure(NAME, "all passes of the second loader, PyTorch", "s", column(runs, "torch_all")),
        Figure(NAME, "first pass of the first loader", "s", column(runs, "cold")),
        Figure(NAME, "first pass of the first loader, PyTorch", "s", column(runs, "torch_cold")),
        Figure(NAME, "first pass of the second loader", "s", column(runs, "first")),
        Figure(NAME, "first pass of the second loader, PyTorch", "s", column(runs, "torch_first")),
        Figure(NAME, "a later pass", "s", column(runs, "later")),
        Figure(NAME, "a later pass, PyTorch", "s", column(runs, "torch_later")),
        Figure(NAME, "staging, by coprep status", "MiB", column(runs, "staging"), SHARED_MIB),
        Figure(NAME, "memory files of the coordinator, by the kernel", "MiB", column(runs, "shared"), SHARED_MIB),
    ]


def over(runs: Sequence[Once], name: str) -> list[float]:
    return ratios(column(runs, name), column(runs, f"torch_{name}"))


CASE = Case(
    NAME,
    "a training and a validation set of 24 photographs with boxes and masks, batches of 4, the largest sample 61 MB",
    prepare,
    once,
    figures,
)
