"""Measures the CPU time of coprep's bookkeeping by itself, against the CPU time of the preparation."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.loaders.records import Spread
from tests.benchmarks.slow_samples.running import Progress

THREADS = 2
TIMES, QUICK_TIMES = 5, 1
TIMEOUT_S = 300
STEPS = ("fetch_clocks", "look", "stage_clocks", "record", "start", "form")


Said = Mapping[str, float]
"""The figures of one run of the program."""


@dataclass(frozen=True)
class OverheadRecord:
    """The overhead of measuring costs and using them, as medians over the program's runs."""

    steps_ns: Mapping[str, float]
    """CPU nanoseconds per sample of each step."""
    of_images: Spread
    """All steps, in per cent of an image's preparation from its file."""
    of_decoded: Spread
    """The steps that remain where an image comes decoded from the cache, in per cent of its preparation."""
    runs: int

    @classmethod
    def of(cls, said: Sequence[Said]) -> OverheadRecord:
        return cls(
            {step: statistics.median(one[step] for one in said) for step in STEPS},
            Spread.of([100 * one["all"] / one["prepare"] for one in said]),
            Spread.of([100 * one["cached"] / one["prepare_decoded"] for one in said]),
            len(said),
        )

    def as_json(self) -> dict[str, Any]:
        return {"part": "cost, by itself", **asdict(self)}


def run_overhead(program: Path, data: Dataset, quick: bool) -> list[Said]:
    times = QUICK_TIMES if quick else TIMES
    progress, said = Progress(times), []
    for _ in range(times):
        data.read()
        command = [str(program), str(data.root), "--threads", str(THREADS)]
        answer = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
        one = json.loads(answer.stdout)
        said.append(one)
        telling = f"telling waits apart {one['attribution']:,.0f}"
        progress.say(f"of {one['prepare']:,.0f} ns for an image: measuring costs {one['all']:,.0f}, {telling}")
    return said
