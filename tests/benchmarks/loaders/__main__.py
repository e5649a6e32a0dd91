"""Measures several loaders side by side, taking turns.

usage: python -m tests.benchmarks.loaders DATA --limit PROGRAM --out FOLDER [--only coprep,limit]
       [--jobs 1,2,4,8] [--repeat 3] [--seconds 8] [--handover PROGRAM]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.loaders import report
from tests.benchmarks.loaders.half_cache import measure_half_cache
from tests.benchmarks.loaders.handover import measure_handover
from tests.benchmarks.loaders.measure import Dataset, Run, Setup, measure
from tests.benchmarks.loaders.records import Case, Record
from tools.demo.children import exit_code

SETUPS = (
    Setup("limit"),
    Setup("coprep", "off"),
    Setup("coprep", "encoded"),
    Setup("coprep", "decoded"),
    Setup("torch-io"),
    Setup("torch-pil"),
    Setup("coprep-python"),
    Setup("coprep-python", light=True),
    Setup("torch-python"),
    Setup("coprep-python", samples="tensors"),
    Setup("torch-python", samples="tensors"),
)
LOADERS = tuple(dict.fromkeys(setup.loader for setup in SETUPS))
JOBS = (1, 2, 4, 8)
PYTHON_JOBS = (1, 4, 8)
"""Numbers of jobs for the Python dataset. There are fewer of them, since many jobs take long to import PyTorch and to
get their first batches."""


@dataclass(frozen=True)
class Options:
    """The measurements to make, and how."""

    data: Dataset
    limit: Path | None
    handover: Path | None
    only: Sequence[str]
    jobs: Sequence[int] | None
    repeat: int
    seconds: int

    def cases(self) -> Iterator[Case]:
        """Yields the cases of one repetition, in the order in which they are measured."""
        counts = {setup: self.counts(setup) for setup in SETUPS if setup.loader in self.only}
        for jobs in sorted({jobs for some in counts.values() for jobs in some}):
            yield from ((setup, jobs) for setup, some in counts.items() if jobs in some)

    def counts(self, setup: Setup) -> Sequence[int]:
        """Returns the numbers of jobs to run at a time. The limit has no jobs, and is measured once."""
        if setup.samples == "tensors":
            return [1]
        jobs = self.jobs or (PYTHON_JOBS if setup.is_python else JOBS)
        if setup.light:
            return [max(jobs)]
        return [min(jobs)] if setup.loader == "limit" else jobs


def run_all(options: Options) -> dict[Case, list[Run]]:
    cases = list(options.cases())
    runs: dict[Case, list[Run]] = {case: [] for case in cases}
    began = time.monotonic()
    for repetition in range(options.repeat):
        for number, (setup, jobs) in enumerate(cases, repetition * len(cases) + 1):
            run = measure(setup, jobs, options.data, options.seconds, options.limit)
            runs[setup, jobs].append(run)
            what = "" if setup.loader == "limit" else f", {jobs} job{'s' * (jobs > 1)}"
            progress = f"{number}/{options.repeat * len(cases)}"
            print(
                f"[{progress} {time.monotonic() - began:5.0f} s] {setup.label}{what}:"
                f" {run.images_per_s:,.0f} {setup.samples}/s"
                f" (others used {run.others_cores:.2f} cores)",
                flush=True,
            )
    return runs


def benchmark(options: Options, out: Path) -> None:
    runs = run_all(options)
    results = report.Results(options.data, options.seconds)
    results.records = [Record.of(setup, jobs, each) for (setup, jobs), each in runs.items()]
    results.records.sort(key=lambda record: SETUPS.index(record.setup))
    if "coprep" in options.only:
        print("a cache that holds half of the dataset ...", flush=True)
        results.half_cache = measure_half_cache(options.data)
    if "coprep" in options.only and options.handover:
        results.handover = measure_handover(options.handover)
    report.show(results)
    report.write(results, out)
    print(f"\n{out / 'report.json'}, {out / 'report.md'}")


def parse() -> tuple[Options, Path]:
    parser = argparse.ArgumentParser(prog="make bench", description="compare loaders, with one to many jobs at a time")
    parser.add_argument("data", type=Path, help="an image folder: one sub-folder per class")
    parser.add_argument("--limit", type=Path, help="the program that measures the limit")
    parser.add_argument("--handover", type=Path, help="the program that measures the hand-over by itself")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=LOADERS, help=f"of {', '.join(LOADERS)}")
    parser.add_argument("--jobs", type=lambda text: [int(word) for word in text.split(",")], help="how many at a time")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8, help="of each window (default: %(default)s)")
    args = parser.parse_args()
    if unknown := set(args.only) - set(LOADERS):
        parser.error(f"there is no loader {', '.join(unknown)}; there are {', '.join(LOADERS)}")
    data = Dataset.find(args.data.resolve())
    if not data.files:
        parser.error(f"no files in {args.data}")
    limit = args.limit and args.limit.resolve()
    handover = args.handover and args.handover.resolve()
    return Options(data, limit, handover, args.only, args.jobs, args.repeat, args.seconds), args.out


def main() -> int:
    options, out = parse()
    return exit_code(lambda: benchmark(options, out))


if __name__ == "__main__":
    sys.exit(main())
