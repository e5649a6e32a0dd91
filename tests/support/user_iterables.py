"""Iterable datasets for tests of cohorts."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import data
from user_datasets import note, noted


class Items(data.IterableDataset[Any]):
    """A dataset of the items 0, 1, 2, ..., which PyTorch's workers divide among themselves.

    Args:
        lengths: number of items in each epoch, in turn, as this copy of the dataset counts its epochs.
        log: path of a file that notes each item with the process that made it.
        pause: seconds that an item takes.
        fails_at: item that raises instead.
    """

    def __init__(self, lengths: list[int], log: str | None = None, pause: float = 0.0, fails_at: int = -1) -> None:
        self.lengths, self.log, self.pause, self.fails_at = lengths, log, pause, fails_at
        self.epoch = -1

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return self._items(self.epoch)

    def _items(self, epoch: int) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for item in range(first, self.lengths[epoch % len(self.lengths)], step):
            if item == self.fails_at:
                raise LookupError(f"item {item}")
            if self.pause:
                time.sleep(self.pause)
            note(self.log, f"{os.getpid()}:{item}")
            yield self.value(item)

    def value(self, item: int) -> Any:
        return item


class Sized(Items):
    def __len__(self) -> int:
        return self.lengths[0]


class Endless(Items):
    def _items(self, epoch: int) -> Iterator[Any]:
        item = 0
        while True:
            note(self.log, item)
            yield item
            item += 1


class Rows(Items):
    """Items that have another shape in each batch of 2."""

    def value(self, item: int) -> Any:
        return {
            "row": torch.full((1 + item // 2,), item),
            "array": np.full(3, item, np.float32),
            "name": f"item {item}",
        }


class Random(Items):
    def value(self, item: int) -> Any:
        return torch.rand(1).item()


class FailsAtOnce(Items):
    def __iter__(self) -> Iterator[Any]:
        raise LookupError("no item at all")


class Deadly(Items):
    """A dataset whose 10th item kills the first processes that come to it, ``fails_at`` of them."""

    def value(self, item: int) -> Any:
        if item == 9 and len(noted(self.log)) < self.fails_at:
            note(self.log, "dies")
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    def _items(self, epoch: int) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return map(self.value, range(first, self.lengths[0], step))


class Alone(Items):
    """A dataset that fails if two processes iterate the same share of it at a time.

    Two of PyTorch's workers have different shares. Two readers would have the same.
    """

    def _items(self, epoch: int) -> Iterator[Any]:
        worker = data.get_worker_info()
        with open(f"{self.log}-{worker.id if worker else 0}", "w") as lock:
            # A second reader must fail. Without `LOCK_NB` it would only wait for the first.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield from super()._items(epoch)


class Unpicklable(Items):
    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.generator = (item for item in range(3))

    def __iter__(self) -> Iterator[Any]:
        return self.generator


def double(item: Any) -> Any:
    return 2 * item


def collate(items: list[Any]) -> Any:
    return ("collated", items)
