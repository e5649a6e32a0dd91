"""A job that runs one epoch of a dataset with very many samples that cost almost nothing."""

from __future__ import annotations

import sys

import coprep
import numpy as np
import numpy.typing as npt

from tests.benchmarks.loaders.consume import report

BATCH_SIZE = 4096


class Many:
    """A map-style dataset of numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> npt.NDArray[np.int64]:
        return np.full(1, index)


def main() -> None:
    samples = int(sys.argv[1])
    report(event="ready")
    sys.stdin.readline()
    loader = coprep.DataLoader(
        Many(samples), batch_size=BATCH_SIZE, shuffle=True, num_workers=2, seed=1, framework="numpy"
    )
    for _batch in loader:
        pass
    report(event="done")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
