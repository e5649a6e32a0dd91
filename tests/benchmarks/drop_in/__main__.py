"""Measures drop-in cost: programs that replace PyTorch's DataLoader and nothing else, in turn with the originals.

usage: python -m tests.benchmarks.drop_in --out FOLDER [--only detection,memory] [--repeat 3] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.drop_in import (
    changes,
    detection,
    first_batch,
    identity,
    many_loaders,
    memory,
    one_pass,
    ragged,
    report,
)
from tests.benchmarks.drop_in.case import Once, Setting
from tests.benchmarks.loaders.arguments import words
from tests.benchmarks.slow_samples.running import Progress
from tools.demo.children import exit_code

CASES = {
    case.name.replace(" ", "-"): case
    for case in (
        detection.CASE,
        ragged.CASE,
        identity.CASE,
        first_batch.CASE,
        many_loaders.CASE,
        changes.CASE,
        one_pass.CASE,
        memory.CASE,
    )
}


def benchmark(args: argparse.Namespace, folder: Path) -> None:
    """Runs the chosen cases. `folder` receives the generated files."""
    cases = [CASES[name] for name in args.only]
    for case in cases:
        case.prepare(Setting(folder, args.quick))
    runs: dict[str, list[Once]] = {case.name: [] for case in cases}
    progress = Progress(args.repeat * len(cases))
    for repetition in range(args.repeat):
        for case in cases:
            run = case.once(Setting(folder, args.quick, coprep_first=repetition % 2 == 0))
            runs[case.name].append(run)
            progress.say(f"{case.name} (others used up to {max(run.others_cores, default=0):.2f} cores)")
    results = report.Results(runs, cases, args.quick)
    report.show(results)
    print("\n" + ", ".join(map(str, report.write(results, args.out))))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make drop-in", description="what it costs to replace PyTorch's DataLoader")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=words(tuple(CASES)), default=tuple(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    args = parser.parse_args()
    args.repeat = args.repeat or (1 if args.quick else 3)
    return args


def main() -> int:
    args = parse()

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="coprep-") as folder:
            benchmark(args, Path(folder))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
