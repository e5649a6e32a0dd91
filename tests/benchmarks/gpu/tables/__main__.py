"""Writes the page of complete tables from the results of the benchmark.

usage: python3 -m tests.benchmarks.gpu.tables [FILE.json] [--out docs/results]

Without a file it writes the page of a benchmark that nobody has run yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.benchmarks.gpu.report import NOT_MEASURED, NoResults, page

DOCS = Path(__file__).parents[4] / "docs" / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description="write the page of complete tables, docs/results/tables/gpu.md")
    parser.add_argument("report", type=Path, nargs="?", help="the file that the benchmark wrote")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder of pages (default: docs/results)")
    args = parser.parse_args()
    report = json.loads(args.report.read_text()) if args.report else NOT_MEASURED
    try:
        print(page(report).write(args.out))
    except NoResults as error:
        print(f"no page is written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
