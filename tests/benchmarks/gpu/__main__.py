"""Measures training jobs that share one GPU, with several loaders in turn, and the parts of a batch's way to the GPU.

usage: python3 -m tests.benchmarks.gpu --data DIR --out FILE.json [--native PROGRAM] [--jobs 1,4,8]
       [--modes synthetic,coprep-device,...] [--seconds 4] [--repeat 2] [--budget 400]

It needs Python, PyTorch, torchvision, the package coprep, and a folder of photographs. With `--device cpu --model tiny`
it is a dry run, which shows that everything works and whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu import fleet, native, report
from tests.benchmarks.gpu.cores import usable_cores
from tests.benchmarks.gpu.photographs import Photographs, linked
from tests.benchmarks.gpu.plan import JOBS, MODES, OF_ARRAYS, ON_GPU, SYNTHETIC, Case, JobSettings, in_order
from tests.benchmarks.gpu.records import Row
from tests.benchmarks.loaders import machine
from tests.benchmarks.loaders.arguments import words
from tests.benchmarks.loaders.measure import BATCH_SIZE, MIB, Dataset
from tools.demo.children import ChildFailed, exit_code

NO_DEVICE_CODE = 2
USUAL = tuple(mode for mode in MODES if mode not in OF_ARRAYS)
Remaining = deque[tuple[int, Case]]
"""Cases that are still to be measured, with the number of their repetition."""


@dataclass(frozen=True)
class Options:
    """The measurements to make, and how."""

    settings: JobSettings
    photographs: Photographs
    modes: Sequence[str]
    jobs: Sequence[int]
    seconds: float
    repeat: int
    budget: float
    native: Path | None

    @property
    def is_dry_run(self) -> bool:
        return self.settings.device == "cpu" or self.settings.model == "tiny"


@dataclass
class Results:
    """Everything that has been measured so far. It is written after each measurement, so that none is lost."""

    options: Options
    out: Path
    began: float = field(default_factory=time.monotonic)
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    native: dict[str, Any] = field(default_factory=dict)
    latency: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def seconds_so_far(self) -> float:
        return time.monotonic() - self.began

    def say(self, what: str) -> None:
        """Writes the results, and a line for the person who waits."""
        self.out.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        print(f"[{self.seconds_so_far():5.0f} s] {what}", flush=True)

    def as_json(self) -> dict[str, Any]:
        return {
            "conditions": self.conditions(),
            "native": self.native,
            "latency": self.latency,
            "rows": [row.as_json() for row in self.rows],
            "left_out": self.left_out,
            "took_s": self.seconds_so_far(),
        }

    def conditions(self) -> dict[str, Any]:
        options = self.options
        return {
            "date": str(datetime.now(timezone.utc).date()),
            "gpu": "",
            "torch": "",
            "cuda": "",
            **self.about,
            "processor": machine.processor(),
            "cores": usable_cores(),
            "device": options.settings.device,
            "model": options.settings.model,
            "batch_size": options.settings.batch_size,
            "workers": options.settings.workers,
            "photographs": options.photographs.files,
            "photographs_mib": options.photographs.bytes / MIB,
            "copies": options.photographs.copies,
            "seconds": options.seconds,
            "repeat": options.repeat,
            "is_dry_run": options.is_dry_run,
        }


def benchmark(options: Options, results: Results) -> None:
    if options.native:
        results.native = native.measured(options.native)
        idle = native.latency(options.native, options.seconds)
        results.latency.append({"jobs": 0, "results": idle})
        results.say(f"measure_gpu{failure(results.native)}")
    measure_training(options, results)
    report.show(results.as_json())
    print(f"\n{results.out}")


def failure(found: dict[str, Any]) -> str:
    return f": {found['error']}" if "error" in found else ""


def measure_training(options: Options, results: Results) -> None:
    """Makes all measurements with jobs. If a job ends, the others are ended too, and new ones go on."""
    remaining = deque(in_order(options.modes, options.jobs, options.repeat))
    while remaining:
        with fleet.started(options.settings, max(options.jobs), options.photographs.samples) as jobs:
            results.about = jobs.about
            results.say(f"{len(jobs.jobs)} jobs are warm, and the cache is full")
            measure_until_a_job_ends(options, results, jobs, remaining)


def measure_until_a_job_ends(options: Options, results: Results, jobs: fleet.Fleet, remaining: Remaining) -> None:
    while remaining:
        repetition, case = remaining.popleft()
        if results.seconds_so_far() > options.budget:
            results.left_out.append(f"{case.label}, repetition {repetition + 1}")
            continue
        try:
            measure_case(options, results, jobs, case, repetition)
        except ChildFailed as failed:
            why = str(failed).splitlines()[0]
            # The mode is not tried again: all jobs have to start again after each failure.
            later = [(number, other) for number, other in remaining if other.mode == case.mode]
            for number, broken in [(repetition, case), *later]:
                results.rows.append(Row(broken.mode, broken.jobs, number, error=why))
            for one in later:
                remaining.remove(one)
            results.say(f"{case.label}: {failed}")
            return


def measure_case(options: Options, results: Results, jobs: fleet.Fleet, case: Case, repetition: int) -> None:
    row = jobs.measure(case, repetition, options.seconds)
    results.rows.append(row)
    rate = row.steps_per_s
    results.say(f"{case.label}: {row.error or f'{rate:.1f} steps/s' if rate else 'too few steps'}")
    if case.mode == SYNTHETIC and repetition == 0 and options.native:
        with jobs.training(case) as error:
            found = {"error": error} if error else native.latency(options.native, options.seconds)
        results.latency.append({"jobs": case.jobs, "results": found})
        results.say(f"uploads beside {case.jobs} job{'s' * (case.jobs > 1)}{failure(found)}")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-gpu", description="training jobs that share one GPU")
    parser.add_argument("--data", type=Path, required=True, help="an image folder: one sub-folder per class")
    parser.add_argument("--out", type=Path, required=True, help="the file to write the results to")
    parser.add_argument("--native", type=Path, help="the program measure_gpu, which measures the parts by themselves")
    parser.add_argument(
        "--modes",
        type=words(tuple(MODES)),
        default=USUAL,
        help=f"of {', '.join(MODES)} (default: all but the last two)",
    )
    parser.add_argument("--jobs", type=numbers, default=JOBS, help="how many at a time (default: 1,4,8)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=2, help="windows of each case, in turn (default: %(default)s)")
    parser.add_argument(
        "--budget", type=float, default=400.0, help="begin no window after as many seconds (default: %(default)s)"
    )
    parser.add_argument("--warm-seconds", type=float, default=1.0, help="before each window (default: %(default)s)")
    parser.add_argument("--copies", type=int, default=16, help="names of each photograph (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="(default: %(default)s)")
    parser.add_argument("--model", default="resnet50", help="of torchvision, tiny or one-layer (default: %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="or cpu, with which it is a dry run (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.device == "cpu":
        args.modes = tuple(mode for mode in args.modes if mode not in ON_GPU)
    return args


def numbers(text: str) -> tuple[int, ...]:
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 1:
        raise argparse.ArgumentTypeError("there is at least one job")
    return found


def run(args: argparse.Namespace) -> None:
    data = Dataset.find(args.data.resolve())
    if not data.files:
        raise fleet.NoDevice(f"there are no photographs in {args.data}")
    data.read()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coprep-") as folder:
        photographs = linked(data, args.copies, Path(folder))
        settings = JobSettings(
            args.device, args.model, str(photographs.root), args.batch_size, usable_cores(), args.warm_seconds
        )
        options = Options(
            settings,
            photographs,
            args.modes,
            args.jobs,
            args.seconds,
            args.repeat,
            args.budget,
            args.native and args.native.resolve(),
        )
        benchmark(options, Results(options, args.out))


def main() -> int:
    args = parse()
    try:
        return exit_code(lambda: run(args))
    except fleet.NoDevice as error:
        print(f"nothing is measured: {error}", file=sys.stderr)
        return NO_DEVICE_CODE


if __name__ == "__main__":
    sys.exit(main())
