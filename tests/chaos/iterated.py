"""Datasets that can only be iterated. Imports PyTorch, so that only histories with such a dataset import this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils import data

from tests.chaos.data import Values


class Iterated(data.IterableDataset[Any]):  # type: ignore[misc, unused-ignore]
    """Gives each sample in order, with its id. PyTorch's workers divide the ids."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for i in range(first, self.values.size, step):
            yield *self.values[i], i
