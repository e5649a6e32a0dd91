"""Checks pinned memory, and programs that are a single script."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from .parts_of_checks import Pictures, Point, same, script
from .table import behaviour


@behaviour("pin_memory")
def pin_memory(DataLoader: Any) -> None:
    """pin_memory gives the same values; they are pinned if there is an accelerator."""
    pinned = torch.accelerator.is_available()
    for workers in (0, 2):
        for picture, label in DataLoader(Pictures(4), batch_size=2, pin_memory=True, num_workers=workers):
            assert (picture[:, 0, 0, 0] == label).all()
            assert not pinned or (picture.is_pinned() and label.is_pinned())


@behaviour("pin_memory of containers")
def pin_memory_containers(DataLoader: Any) -> None:
    """pin_memory keeps containers and strings as they are."""
    samples = [{"a": torch.ones(2) * i, "name": str(i), "p": Point(i, [np.ones(1)])} for i in range(2)]
    expected = torch_data.default_collate(samples)
    (batch,) = DataLoader(samples, batch_size=2, pin_memory=True, num_workers=2)
    assert same(batch, expected)


@behaviour("a dataset of __main__")
def main_dataset(DataLoader: Any) -> None:
    """A program's dataset and collate_fn may be in the program itself."""
    code = """
        class Squares:
            def __len__(self): return 4
            def __getitem__(self, i): return i * i
        def collate(samples): return list(samples)
        if __name__ == "__main__":
            print(list(DataLoader(Squares(), batch_size=2, collate_fn=collate, num_workers=2)))
    """
    assert script(DataLoader, code) == "[[0, 1], [4, 9]]"


@behaviour("a program that ends early")
def early_end(DataLoader: Any) -> None:
    """A program that ends in the middle of an epoch ends well."""
    code = """
        if __name__ == "__main__":
            it = iter(DataLoader(range(1000), batch_size=2, num_workers=2))
            print(next(it).tolist())
    """
    assert script(DataLoader, code) == "[0, 1]"
