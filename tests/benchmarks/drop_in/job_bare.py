"""A fresh interpreter that imports PyTorch, makes a dataset, and reports when it is done."""

from __future__ import annotations

import json
import sys
import time

from tests.benchmarks.drop_in.datasets import opened
from tests.benchmarks.loaders.consume import report


def main() -> None:
    opened(json.loads(sys.argv[1]))
    report(event="loaded", at=time.monotonic())


if __name__ == "__main__":
    main()
