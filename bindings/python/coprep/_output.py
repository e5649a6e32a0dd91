"""Standard input, output and error of the processes that run user code.

They are those of the job that the processes were forked from, so a dataset prints where the job does. Other jobs need
its samples too. So output that cannot be written costs no sample anything: the disk may be full, a pipe may be closed,
or nobody may read it.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
from typing import Any, TextIO

_TIMEOUT_MS = 1000
"""Time that a full pipe may take to have room again. A reader that is alive takes less."""


def detach() -> None:
    """Lets ``sys.stdout`` and ``sys.stderr`` lose what cannot be written, and ``sys.stdin`` be empty.

    Otherwise ``print`` would raise an error in user code, or wait for ever, and input would be taken from the job.
    """
    sys.stdout = _tolerant(sys.stdout)
    sys.stderr = _tolerant(sys.stderr)
    if _is_standard(sys.stdin, 0):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)


def _tolerant(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper) or stream.closed:
        # A program may have replaced it, or was started without this descriptor.
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Lossy(stream.fileno())),
        encoding=stream.encoding,
        errors=stream.errors,
        # A worker is killed when its job has left, so what it printed must not wait in a buffer.
        line_buffering=True,
    )


def _is_standard(stream: Any, descriptor: int) -> bool:
    """Returns whether a stream is open and has this descriptor, which may otherwise be a file of the user's."""
    with contextlib.suppress(Exception):
        return isinstance(stream, io.TextIOWrapper) and not stream.closed and stream.fileno() == descriptor
    return False


class _Lossy(io.FileIO):
    """A file that loses what cannot be written."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(_without_waiting(descriptor), "w", closefd=False)
        self._is_stuck = False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        try:
            while (written := super().write(data)) is None and self._has_room_soon():
                pass
        except OSError:
            return size
        # Later writes do not wait for a reader that has not read within the time.
        self._is_stuck = written is None
        return size if written is None else written

    def _has_room_soon(self) -> bool:
        if self._is_stuck:
            return False
        watch = select.poll()
        watch.register(self.fileno(), select.POLLOUT)
        return bool(watch.poll(_TIMEOUT_MS))


def _without_waiting(descriptor: int) -> int:
    """Returns a descriptor of the same file whose writes do not wait, if the file is a pipe.

    It is opened anew, because all processes that have the pipe share the flags of the old descriptor. Other files stay:
    a regular file that is opened anew would lose its position.
    """
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        # The reader may have closed the pipe. Writes fail at once then.
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
    return descriptor
