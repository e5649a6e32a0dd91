"""Exceptions of this package.

Where Python has an exception that fits (ValueError, FileNotFoundError, MemoryError), that one is raised instead.
"""

from __future__ import annotations

import builtins
import warnings


class CoprepError(RuntimeError):
    """Base of this package's exceptions. It is raised itself if the coordinator cannot be reached, for example."""


class SampleError(CoprepError):
    """A sample could not be prepared. The rest of its batch still comes, so that iteration may go on.

    An exception of a user's dataset or transform is raised itself, with this one as its ``__cause__``.

    Attributes:
        id: id of the sample, which is its position in the dataset.
        path: path of its file; empty for a user's dataset.
        stage: ``"fetch"``, ``"decode"`` or ``"prepare"``; for a user's dataset ``"dataset"`` or ``"transform"``.
        worker: for a user's dataset, number and process id of the worker; otherwise empty.
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

    def renumber(self, position: int) -> None:
        """Names the sample by its position in the loader's dataset, a part of the dataset in which it has its id."""
        message = str(self).replace(f"sample {self.id} ", f"sample {position} ({self.id} of the whole dataset) ", 1)
        self.args = (message, position, *self.args[2:])
        self.id = position


class StorageError(CoprepError):
    """Remote storage does not answer, or refuses: at the opening of a dataset, or after the storage patience.

    It says nothing about any sample, so it is raised with ``on_error="skip"`` too, and no sample is left out for it.
    """


class DatasetChanged(CoprepError):
    """The dataset has changed since the job joined its stream, so that the job cannot make samples for the stream."""


class TimeoutError(CoprepError, builtins.TimeoutError):
    """A wait lasted longer than ``timeout``. The message tells who is awaited, for what, and since when."""


class CacheWarning(UserWarning):
    """The job does not use a cache of its samples: one that was warmed, or the coordinator's local disk.

    The message gives the reason.
    """


class UnsharedWarning(UserWarning):
    """A loader works, but shares nothing with other jobs. The message gives the reason."""


class WaitingWarning(UserWarning):
    """A loader has waited for some seconds for another rank, the rest of a cohort, a slow folder, or the like.

    The message tells who is awaited, since when, and what to do. It comes once in each wait, and the wait goes on.
    """


class SkippedSampleWarning(UserWarning):
    """A sample is left out: of the epochs, because it could not be prepared and ``on_error`` is ``"skip"``; or of the
    dataset, because it lacks its image or label, or its key in a store cannot be asked for.

    A loader warns once of each, for the first such sample. ``loader.stats()["skipped"]`` counts those that are left out
    of the epochs; the message has the number of those that are left out of the dataset.
    """


def warn_skipped(id: int, path: str, stage: str, message: str, stacklevel: int = 3) -> None:
    """Warns of the first sample that is skipped. ``message`` is its error; only the last line of a traceback is
    shown."""
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
    # Tracebacks show an exception's module, which should be the one that users import.
    _public.__module__ = "coprep"
del _public
