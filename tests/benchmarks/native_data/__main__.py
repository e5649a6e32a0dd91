"""Measures native pipelines on tokens, arrays, audio and parquet files, beside PyTorch's DataLoader.

usage: python -m tests.benchmarks.native_data PHOTOGRAPHS --peers PYTHON --out FOLDER [--only tokens,audio]
       [--jobs 1,8] [--repeat 3] [--seconds 5] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.loaders.arguments import words
from tests.benchmarks.native_data import report
from tests.benchmarks.native_data.files import make
from tests.benchmarks.native_data.kinds import KINDS
from tests.benchmarks.native_data.running import Plan, Run, measure
from tests.benchmarks.slow_samples.running import Progress
from tests.benchmarks.storage.peers.measure import versions
from tests.benchmarks.storage.peers.table import jobs_label
from tools.demo.children import exit_code

SECONDS, QUICK_SECONDS = 5.0, 1.0
PACKAGES = ("torch", "torchaudio", "soundfile", "datasets")


def benchmark(args: argparse.Namespace) -> None:
    plans = [Plan(kind, loader, jobs) for kind in args.only for jobs in args.jobs for loader in KINDS[kind].loaders]
    runs: dict[Plan, list[Run]] = {plan: [] for plan in plans}
    progress = Progress(args.repeat * len(plans))
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out.absolute()) as folder:
        data: dict[str, Path] = {}
        for kind in args.only:
            count = KINDS[kind].quick_count if args.quick else KINDS[kind].count
            data[kind] = make(kind, count, Path(folder), args.photographs.resolve(), args.peers.absolute())
        for _ in range(args.repeat):
            for plan in plans:
                run = measure(plan, data[plan.kind], args.peers.absolute(), args.seconds)
                runs[plan].append(run)
                samples = KINDS[plan.kind].samples
                progress.say(f"{plan.loader}, {jobs_label(plan.jobs)}: {run.samples_per_s:,.0f} {samples}/s")
    results = report.Results(runs, versions(args.peers.absolute(), PACKAGES), args.seconds, args.quick)
    report.show(results)
    print("\n" + ", ".join(map(str, report.write(results, args.out))))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-data", description="tokens, arrays, audio, parquet files")
    parser.add_argument("photographs", type=Path, help="a folder of images, one subfolder for each class")
    parser.add_argument("--peers", type=Path, required=True, help="the Python that has the other loaders' packages")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=words(tuple(KINDS)), default=tuple(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--jobs", type=lambda text: [int(word) for word in text.split(",")], default=[1, 8])
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--seconds", type=float, help="of each window")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that everything runs")
    args = parser.parse_args(arguments)
    args.repeat = args.repeat or (1 if args.quick else 3)
    args.seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    return args


def main() -> int:
    args = parse()
    return exit_code(lambda: benchmark(args))


if __name__ == "__main__":
    sys.exit(main())
