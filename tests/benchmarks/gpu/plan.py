"""The measurements to make, in their order. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SYNTHETIC, DEVICE, SHARED = "synthetic", "coprep-device", "coprep-shared"
PIN, PAGEABLE, TORCH = "coprep-pin", "coprep-pageable", "torch"
ARRAYS_OWN, ARRAYS_SHARED = "arrays-own", "arrays-shared"
MODES = {
    SYNTHETIC: "one batch that stays on the GPU: the limit of every loader",
    DEVICE: 'coprep with `device="cuda"`',
    SHARED: 'the same with `uploads="shared"`',
    PIN: "coprep with `pin_memory=True`, then `.to(non_blocking=True)` and normalisation on the GPU",
    PAGEABLE: "the same without `pin_memory`",
    TORCH: "PyTorch's `DataLoader` with `pin_memory=True`, then the same; its workers are split over the jobs",
    ARRAYS_OWN: 'coprep with `device="cuda"`: a Python dataset of float32 arrays, 3x512x512',
    ARRAYS_SHARED: 'the same with `uploads="shared"`',
}
OF_ARRAYS = (ARRAYS_OWN, ARRAYS_SHARED)
"""Modes that are measured only if they are asked for: they want another model."""
ON_GPU = (DEVICE, SHARED, *OF_ARRAYS)
"""Modes whose batches come on the GPU."""
SHARING = (SHARED, ARRAYS_SHARED)
JOBS = (1, 4, 8)


@dataclass(frozen=True)
class Case:
    """A mode, and the number of jobs that train at a time."""

    mode: str
    jobs: int

    @property
    def label(self) -> str:
        return f"{self.mode}, {self.jobs} job{'s' * (self.jobs > 1)}"


@dataclass(frozen=True)
class JobSettings:
    """Everything that a job needs to know when it starts."""

    device: str
    model: str
    data: str
    batch_size: int
    workers: int
    """Worker processes of PyTorch's loaders, of all jobs together."""
    warm_s: float
    """Seconds for which a job trains before a window can begin."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def in_order(modes: Sequence[str], jobs: Sequence[int], repeat: int) -> Iterator[tuple[int, Case]]:
    """Yields the number of the repetition and the case of each measurement.

    Modes take turns for each number of jobs, the other way round in each second repetition, so that a GPU that grows
    slower while it grows warm treats them alike. A run that ends early has each case at least once.
    """
    for repetition in range(repeat):
        turn = modes if repetition % 2 == 0 else list(reversed(modes))
        yield from ((repetition, Case(mode, count)) for count in jobs for mode in turn)
