"""The plan that a job is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Side = Literal["coprep", "torch"]
WORKERS = 2
"""Worker processes: with PyTorch of each job, with coprep of all jobs together."""


@dataclass(frozen=True)
class Part:
    """One loader of a job."""

    dataset: list[Any]
    """As `datasets.opened` takes it."""
    passes: int


@dataclass(frozen=True)
class Plan:
    """Everything that a job does."""

    loader: Side
    parts: Sequence[Part]
    batch_size: int
    shuffle: bool = True
    collate: Literal["", "lists", "columns"] = ""
    workers: int = WORKERS
    options: dict[str, Any] = field(default_factory=dict)
    """Of coprep's loader, beside those of PyTorch's."""
    imports_torch: bool = True
    """Of coprep's jobs. Those that PyTorch's loader serves do in any case."""
    linger_s: float = 0.0
    """Seconds from the last batch to `done`, with the loader still there."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Plan:
        return cls(**{**values, "parts": [Part(**part) for part in values["parts"]]})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
