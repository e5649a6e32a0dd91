"""A plain loop over some samples of a Python dataset that measures the CPU time that its thread spends on each."""

from __future__ import annotations

import sys
import time

from tests.benchmarks.loaders.consume import report
from tests.benchmarks.slow_samples.samples import opened
from tests.benchmarks.slow_samples.take import Stamped


def main() -> None:
    samples, first, step = sys.argv[1:]
    dataset = Stamped(opened(samples))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    report(event="ready")
    sys.stdin.readline()
    ids = range(int(first), len(dataset), int(step))
    costs = []
    for index in ids:
        before = time.thread_time()
        dataset[index]
        costs.append(time.thread_time() - before)
    report(event="done", ids=list(ids), cpu_s=costs)


if __name__ == "__main__":
    main()
