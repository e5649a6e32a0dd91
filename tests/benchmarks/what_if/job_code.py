"""A job on a Python dataset whose samples take known times: one of processor work, one of waiting.

usage: python -m tests.benchmarks.what_if.job_code WORK_MS WAIT_MS WORKERS STEP_S [EPOCHS]

Without EPOCHS it trains until it is ended, as `coprep analyze -- ...` needs. With EPOCHS it reports how long each one
took.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import coprep
import numpy as np
import numpy.typing as npt

from tests.benchmarks.slow_samples.spin import burn
from tests.benchmarks.what_if.job import report_epochs

SAMPLES = 640
BATCH_SIZE = 32


@dataclass(frozen=True)
class Timed:
    """A map-style dataset whose samples take `wait_s` of sleep and `work_s` of processor time."""

    work_s: float
    wait_s: float

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        time.sleep(self.wait_s)
        burn(self.work_s)
        return np.full(1, index, np.float32)


def main() -> None:
    work_ms, wait_ms, workers, step_s, *epochs = sys.argv[1:]
    dataset: Any = Timed(float(work_ms) / 1e3, float(wait_ms) / 1e3)
    loader: Any = coprep.DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=int(workers), framework="numpy", seed=1
    )
    if epochs:
        return report_epochs(loader, int(epochs[0]), float(step_s))
    while True:
        for _batch in loader:
            time.sleep(float(step_s))


if __name__ == "__main__":
    main()
