"""Measures programs that change much memory between passes: that of the dataset, and that of the program."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.drop_in.case import Case, Once, Setting, column, known, nothing_to_prepare
from tests.benchmarks.drop_in.figures import Figure, ratios
from tests.benchmarks.drop_in.passes import all_passes_s, passes_of
from tests.benchmarks.drop_in.plan import Part, Plan, Side
from tests.benchmarks.drop_in.running import run

NAME = "changes"
SAMPLES, BATCH_SIZE, PASSES = 256, 32, 4
DATASET_MIB, QUICK_DATASET_MIB = 190, 20
BALLAST_MIB, QUICK_BALLAST_MIB = 2048, 100
TIMES_TORCH, PEAK_TIMES_TORCH = 1.5, 1.0


def plan(side: Side, dataset_mib: int, ballast_mib: int) -> Plan:
    return Plan(side, [Part(["changing", SAMPLES, dataset_mib], PASSES)], BATCH_SIZE, ballast_mib=ballast_mib)


def once(setting: Setting) -> Once:
    dataset, ballast = (QUICK_DATASET_MIB, QUICK_BALLAST_MIB) if setting.quick else (DATASET_MIB, BALLAST_MIB)
    changed = setting.in_turn(lambda side: run([plan(side, dataset, 0)], setting.folder))
    rewritten = setting.in_turn(lambda side: run([plan(side, 1, ballast)], setting.folder))
    return Once(
        known(
            passes=all_passes_s(passes_of(changed["coprep"].said[0])),
            torch_passes=all_passes_s(passes_of(changed["torch"].said[0])),
            peak=rewritten["coprep"].peak_mib,
            torch_peak=rewritten["torch"].peak_mib,
        ),
        [outcome.others_cores for outcome in (*changed.values(), *rewritten.values())],
    )


def figures(runs: Sequence[Once]) -> list[Figure]:
    passes, torch_passes = column(runs, "passes"), column(runs, "torch_passes")
    peak, torch_peak = column(runs, "peak"), column(runs, "torch_peak")
    dataset, ballast = "a dataset of 190 MiB changes: all passes", "a job rewrites 2 GiB: peak of memory"
    return [
        Figure(NAME, f"{dataset}, over PyTorch's", "x", ratios(passes, torch_passes), TIMES_TORCH),
        Figure(NAME, dataset, "s", passes),
        Figure(NAME, f"{dataset}, PyTorch", "s", torch_passes),
        Figure(NAME, f"{ballast}, over PyTorch's", "x", ratios(peak, torch_peak), PEAK_TIMES_TORCH),
        Figure(NAME, ballast, "MiB", peak),
        Figure(NAME, f"{ballast}, PyTorch", "MiB", torch_peak),
    ]


CASE = Case(
    NAME,
    "four passes over 256 samples, before each of which the program changes its dataset, or memory of its own",
    nothing_to_prepare,
    once,
    figures,
)
