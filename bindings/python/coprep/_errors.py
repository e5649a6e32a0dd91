"""Exceptions. Where Python has one that fits (ValueError, FileNotFoundError, MemoryError), that one is raised."""

from __future__ import annotations

import builtins
import warnings


class CoprepError(RuntimeError):
    """Base of the exceptions of this package: the coordinator cannot be reached, or cannot be started, ..."""


class SampleError(CoprepError):
    """A sample could not be prepared. The rest of its batch still comes: iteration may go on.

    An exception of a user's dataset or transform is raised as it is, with this one as its ``__cause__``.

    Attributes:
        id: sample id, its position in the dataset.
        path: its file; empty for a user's dataset.
        stage: ``"fetch"``, ``"decode"`` or ``"prepare"``; for a user's dataset ``"dataset"`` or ``"transform"``.
        worker: for a user's dataset, number and process id of the worker; else empty.
    """

    def __init__(self, message: str, id: int, path: str, stage: str, worker: str = "", exception: bytes = b"") -> None:
        super().__init__(message, id, path, stage, worker, exception)
        self.id = id
        self.path = path
        self.stage = stage
        self.worker = worker
        self._exception = exception

    def __str__(self) -> str:
        return str(self.args[0])


class CannotTravel(TypeError):
    """Something of a dataset cannot be pickled, so that no other process can make its samples."""


class TimeoutError(CoprepError, builtins.TimeoutError):
    """A wait lasted longer than ``timeout``. The message says who is awaited, for what, since when."""


class CacheWarning(UserWarning):
    """A cache was warmed of the job's samples, and the job does not use it; the message says why."""


class UnsharedWarning(UserWarning):
    """A loader works, but shares nothing with other jobs; the message says why."""


class WaitingWarning(UserWarning):
    """A loader has waited for some seconds for somebody else: another rank, the rest of a cohort, a slow folder.

    The message says for whom, since when, and what to do. It comes once in a wait, which goes on.
    """


class SkippedSampleWarning(UserWarning):
    """A sample is left out of the epochs, because it could not be prepared and ``on_error`` is ``"skip"``.

    A loader gives one, for the first such sample; ``loader.stats()["skipped"]`` counts them.
    """


def warn_skipped(id: int, path: str, stage: str, message: str, stacklevel: int = 3) -> None:
    """Warn of the first sample that is skipped. ``message``: its error; of a traceback the last line counts."""
    where = f" ({path})" if path else ""
    error = message.strip().splitlines()[-1] if message.strip() else "no message"
    warnings.warn(
        f"sample {id}{where} is left out, as on_error='skip' asks: it failed in stage {stage}: {error}. "
        'This is said once; loader.stats()["skipped"] counts the samples that are left out',
        SkippedSampleWarning,
        stacklevel=stacklevel,
    )


for _public in (
    CacheWarning,
    CoprepError,
    SampleError,
    SkippedSampleWarning,
    TimeoutError,
    UnsharedWarning,
    WaitingWarning,
):
    # Tracebacks show the names by which they are imported.
    _public.__module__ = "coprep"
del _public
