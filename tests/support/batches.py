"""The content of batches and of whole epochs."""

from __future__ import annotations

from typing import Any

import coprep
import numpy as np

QUEUE = 16
"""Largest number of minibatches that lie ready for a job."""


def ids(loader: coprep.DataLoader) -> list[int]:
    """Returns the sample ids of one epoch, in order."""
    return [int(i) for batch in loader for i in batch[-1]]


def content(value: Any) -> Any:
    """Returns a form of the value that can be compared bit for bit."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [content(item) for item in value]
    return value


def batches(loader: coprep.DataLoader, epochs: int) -> list[Any]:
    with loader:
        return [content(batch) for _ in range(epochs) for batch in loader]
