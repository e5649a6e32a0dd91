"""A process that imports NumPy, as a job that needs nothing else does, and waits."""

from __future__ import annotations

import sys

import numpy as np

from tests.benchmarks.loaders.consume import report


def main() -> None:
    report(event="ready", numpy=np.__version__)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
