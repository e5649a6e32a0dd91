"""Exceptions. Where Python has one that fits (ValueError, FileNotFoundError, MemoryError), that one is raised."""

from __future__ import annotations

import builtins


class CoprepError(RuntimeError):
    """Base of the exceptions of this package: the coordinator cannot be reached, or cannot be started, ..."""


class SampleError(CoprepError):
    """A sample could not be prepared. The rest of its batch still comes: iteration may go on.

    Attributes:
        id: sample id, its position in the dataset.
        path: its file.
        stage: ``"fetch"``, ``"decode"`` or ``"prepare"``.
    """

    def __init__(self, message: str, id: int, path: str, stage: str) -> None:
        super().__init__(message, id, path, stage)
        self.id = id
        self.path = path
        self.stage = stage

    def __str__(self) -> str:
        return str(self.args[0])


class TimeoutError(CoprepError, builtins.TimeoutError):
    """A wait lasted longer than ``timeout``. The message says who is awaited, for what, since when."""
