"""Makes loaders over one dataset, and computes its identity, as a loader does when it connects and in each epoch."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import coprep
from coprep._fingerprint import Counted

from tests.benchmarks.drop_in.datasets import opened
from tests.benchmarks.loaders.consume import report

LATER = 9


def timed(dataset: Any, counted: Counted) -> tuple[float, float]:
    """Returns seconds and processor seconds."""
    began, cpu_began = time.monotonic(), time.process_time()
    coprep.DataLoader(dataset, batch_size=8, num_workers=2)
    counted.parts([])
    return time.monotonic() - began, time.process_time() - cpu_began


def main() -> None:
    import drop_in_package

    dataset = opened(["packaged"])
    files = len(list(Path(drop_in_package.__path__[0]).glob("*.py")))
    counted = Counted({"dataset": dataset})
    first, first_cpu = timed(dataset, counted)
    later = [timed(dataset, counted) for _ in range(LATER)]
    # If parts were missing, the time would not cover the whole package.
    parts = {name for name, _ in counted.parts([])}
    # The package itself has no function that is reached.
    missing = files - 1 - sum(name.startswith("code drop_in_package") for name in parts)
    if missing:
        raise AssertionError(f"the identity leaves out {missing} of {files} files")
    report(
        event="identity",
        first=first,
        first_cpu=first_cpu,
        later=statistics.median(seconds for seconds, _ in later),
        later_cpu=statistics.median(cpu for _, cpu in later),
    )


if __name__ == "__main__":
    main()
