"""A job that opens tar shards, and reports how long that took.

usage: python -m tests.benchmarks.storage.opening URL
"""

from __future__ import annotations

import sys
import time

import coprep

from tests.benchmarks.loaders.consume import report


def main() -> None:
    began = time.monotonic()
    samples = len(coprep.WebDataset(sys.argv[1], label=None))
    report(event="opened", seconds=time.monotonic() - began, samples=samples)


if __name__ == "__main__":
    main()
