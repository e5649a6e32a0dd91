"""Measures remote storage: the same photographs from an object store on this machine and from local files.

usage: python -m tests.benchmarks.storage DATA --server PROGRAM --out FOLDER [--only at-once,peers] [--repeat 3]
       [--quick] [--peers PYTHON]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.loaders.arguments import words
from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.slow_samples.running import Progress
from tests.benchmarks.storage import report
from tests.benchmarks.storage.cases import CASES, Setting, Values
from tests.benchmarks.storage.peers.measure import measure as measure_peers
from tests.benchmarks.storage.running import Store, under_several_names
from tools.demo.children import exit_code

SECONDS, QUICK_SECONDS = 10.0, 5.0
PEERS = "peers"
PARTS = (*(case.name for case in CASES), PEERS)


def benchmark(args: argparse.Namespace) -> None:
    photographs = Dataset.find(args.data.resolve())
    cases = [case for case in CASES if case.name in args.only]
    runs: dict[str, list[Values]] = {case.name: [] for case in cases}
    progress = Progress(args.repeat * len(cases))
    store = Store.of(args.server, photographs.root)
    seconds = QUICK_SECONDS if args.quick else SECONDS
    args.out.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(store.server), tempfile.TemporaryDirectory(dir=args.out.absolute()) as folder:
        local = under_several_names(photographs, Path(folder))
        setting = Setting(store, photographs, str(local), store.long(local), seconds)
        for _ in range(args.repeat):
            for case in cases:
                # Idle files leave the page cache.
                photographs.read()
                runs[case.name].append(case.once(setting))
                progress.say(case.name)
        peers = None
        if PEERS in args.only:
            peers = measure_peers(store.server, photographs, args.peers.absolute(), args.repeat, args.quick)
    results = report.Results(photographs, cases, runs, args.quick, peers)
    report.show(results)
    print("\n" + ", ".join(map(str, report.write(results, args.out))))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-storage", description="remote storage against local files")
    parser.add_argument("data", type=Path, help="a folder of images, one subfolder for each class")
    parser.add_argument("--server", type=Path, required=True, help="the program coprep-object-server")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=words(PARTS), default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--peers", type=Path, help="the Python of an environment that has the other loaders")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that everything runs")
    args = parser.parse_args(arguments)
    if PEERS in args.only and not args.peers:
        parser.error(f"{PEERS} needs --peers PYTHON; `make bench-storage ONLY={PEERS}` installs the other loaders")
    args.repeat = args.repeat or (1 if args.quick else 3)
    return args


def main() -> int:
    args = parse()
    return exit_code(lambda: benchmark(args))


if __name__ == "__main__":
    sys.exit(main())
