"""The plan that a job receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Side = Literal["coprep", "torch"]
WORKERS = 2
"""Worker processes. With PyTorch each job has this many; with coprep all jobs share them."""


@dataclass(frozen=True)
class Part:
    """One loader of a job."""

    dataset: list[Any]
    """The name and arguments for `datasets.opened`."""
    passes: int


@dataclass(frozen=True)
class Plan:
    """All instructions for a job."""

    loader: Side
    parts: Sequence[Part]
    batch_size: int
    shuffle: bool = True
    collate: Literal["", "lists", "columns"] = ""
    workers: int = WORKERS
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of coprep's loader."""
    imports_torch: bool = True
    """``True`` if coprep's jobs import PyTorch. Jobs with PyTorch's loader always do."""
    ballast_mib: int = 0
    """Memory beside the datasets. The job rewrites it after each pass."""
    linger_s: float = 0.0
    """Seconds from the last batch to `done`, with the loader still there."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Plan:
        return cls(**{**values, "parts": [Part(**part) for part in values["parts"]]})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
