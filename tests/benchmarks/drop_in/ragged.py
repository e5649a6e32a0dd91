"""Measures samples of 100 kB, with three that are 10, 40 and 100 times as large."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.drop_in.case import Case, Once, Setting, column, known, nothing_to_prepare
from tests.benchmarks.drop_in.datasets import KB
from tests.benchmarks.drop_in.figures import Figure
from tests.benchmarks.drop_in.passes import passes_of
from tests.benchmarks.drop_in.plan import Part, Plan, Side
from tests.benchmarks.drop_in.running import run

NAME = "ragged"
SAMPLES, BATCH_SIZE, COST_S = 400, 8, 0.002
QUICK_SAMPLES = 200
LARGE_KB = (1_000, 4_000, 10_000)
STAGING_MIB = 256
PAUSE_S = 0.2


def plan(setting: Setting, side: Side) -> Plan:
    samples = QUICK_SAMPLES if setting.quick else SAMPLES
    # In ascending order they come apart from one another, and each is larger than all before it.
    large = {str((number + 1) * samples // 4): size * KB for number, size in enumerate(LARGE_KB)}
    part = Part(["ragged", samples, COST_S, large], 1)
    return Plan(side, [part], BATCH_SIZE, shuffle=False, collate="lists")


def once(setting: Setting) -> Once:
    outcomes = setting.in_turn(lambda side: run([plan(setting, side)], setting.folder))
    ours, theirs = (passes_of(outcomes[side].said[0])[0] for side in ("coprep", "torch"))
    return Once(
        known(
            staging=outcomes["coprep"].staging_mib,
            shared=outcomes["coprep"].shared_mib,
            pause=ours.longest_pause_s,
            torch_pause=theirs.longest_pause_s,
            seconds=ours.end - ours.made,
            torch_seconds=theirs.end - theirs.made,
        ),
        [outcome.others_cores for outcome in outcomes.values()],
    )


def figures(runs: Sequence[Once]) -> list[Figure]:
    return [
        Figure(NAME, "staging, by coprep status", "MiB", column(runs, "staging"), STAGING_MIB),
        Figure(NAME, "memory files of the coordinator, by the kernel", "MiB", column(runs, "shared"), STAGING_MIB),
        Figure(NAME, "longest pause after the first batch", "s", column(runs, "pause"), PAUSE_S),
        Figure(NAME, "longest pause after the first batch, PyTorch", "s", column(runs, "torch_pause")),
        Figure(NAME, "the pass, from the making of the loader", "s", column(runs, "seconds")),
        Figure(NAME, "the pass, PyTorch", "s", column(runs, "torch_seconds")),
    ]


CASE = Case(
    NAME,
    "400 samples of 100 kB, three of them of 1, 4 and 10 MB, batches of 8 in ascending order, one pass",
    nothing_to_prepare,
    once,
    figures,
)
