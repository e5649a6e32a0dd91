"""The files that a dataset's code opens while it makes a value for the cache.

The coordinator compares them with what they are when another job starts. Only what Python opens is noticed: libraries
such as OpenCV and HDF5 open files by themselves.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
from typing import Any

_ENTRY = struct.Struct("<4qI")
"""Size, time of writing, time of change, inode; and the bytes of the path, which follows."""
_END = struct.Struct("<Q8s")
"""Bytes of all entries before, and a magic number. ``coordinator/src/produce/processes/opened_files.rs`` reads it."""
_MAGIC = b"CPRPopen"
_MOST = 64
"""Most files of a value. One that is made of more is not compared with them."""
_WRITES = os.O_WRONLY | os.O_RDWR
_CODE = (b".py", b".pyc", b".so")
"""Endings of files that are opened for an import."""


class OpenedFiles:
    """Notes the files that this process opens for reading, between :meth:`begin` and :meth:`end`."""

    def __init__(self) -> None:
        self._found: dict[bytes, bytes] | None = None
        self._is_hooked = False

    def begin(self) -> None:
        """Forgets what was noted."""
        if not self._is_hooked:
            # There is no way to take a hook away, so only workers that fill a cache have one.
            sys.addaudithook(self._note)
            self._is_hooked = True
        self._found = {}

    def end(self) -> bytes:
        """Returns the list of the files, for the end of a value in the cache."""
        found, self._found = self._found or {}, None
        entries = b"".join(found.values()) if len(found) <= _MOST else b""
        return entries + _END.pack(len(entries), _MAGIC)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._found is None:
            return
        # An exception would be one of the user's code.
        with contextlib.suppress(Exception):
            path, _mode, flags = arguments
            # A number is that of a file that is open.
            if not isinstance(path, (str, bytes)) or flags & _WRITES:
                return
            name = os.path.abspath(os.fsencode(path))
            if name not in self._found and not name.endswith(_CODE):
                # Before the file is read, so that one that changes meanwhile is found to have changed.
                about = os.stat(name)
                if stat.S_ISREG(about.st_mode):
                    times = about.st_mtime_ns, about.st_ctime_ns
                    self._found[name] = _ENTRY.pack(about.st_size, *times, about.st_ino, len(name)) + name
