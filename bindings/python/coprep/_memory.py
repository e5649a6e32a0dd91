"""Memory that an array, a tensor or a mapping lies in: the process's own, a file, or memory that processes share."""

from __future__ import annotations

import bisect
import os
import sys
from typing import Any, NamedTuple

import numpy as np

from coprep._modules import digest_of


class Mapping(NamedTuple):
    """A range of addresses, as ``/proc/self/maps`` shows it."""

    start: int
    end: int
    modes: str
    offset: int
    inode: int
    path: str

    @property
    def is_shared(self) -> bool:
        """``True`` if other processes may see what this one writes, and no file on a disk holds it."""
        return self.modes[1] == "w" and self.modes[3] == "s" and not self._is_file

    @property
    def _is_file(self) -> bool:
        return self.path.startswith("/") and not self.path.startswith(("/dev/", "/memfd:", "/SYSV"))

    def file_at(self, address: int) -> bytes | None:
        """Returns the file that holds an address, in its present state, as a digest.

        Returns ``None`` if no file does, or if this process may have changed the memory without the file.
        """
        if not self._is_file or self.modes[1] + self.modes[3] == "wp":
            return None
        try:
            file = os.stat(self.path)
        except OSError:
            return None
        if file.st_ino != self.inode:
            return None  # Another file has its name now.
        about = self.path, self.offset + address - self.start, file.st_size, file.st_mtime_ns
        return digest_of(b"file", repr(about).encode("utf-8", "surrogatepass"))


class Mappings:
    """The mappings of this process, which are read when they are first needed."""

    def __init__(self) -> None:
        self._lines: list[bytes] | None = None

    def at(self, address: int) -> Mapping | None:
        """Returns the mapping that an address lies in."""
        if self._lines is None:
            self._lines = _lines()
        # They are in the order of their addresses. There are about a thousand, so that few are parsed.
        i = bisect.bisect_right(self._lines, address, key=_start) - 1
        mapping = _parsed(self._lines[i]) if i >= 0 else None
        return mapping if mapping is not None and address < mapping.end else None

    def of_array(self, array: np.ndarray[Any, Any]) -> Mapping | None:
        """Returns the mapping that an array lies in, or ``None`` if the array is the process's own memory."""
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        return None if base is None or isinstance(base, (bytes, bytearray)) else self.at(address_of(array))

    def of_tensor(self, tensor: Any) -> Mapping | None:
        """Returns the mapping that a tensor lies in, or ``None`` if the tensor is the process's own memory."""
        torch = sys.modules["torch"]
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return None
        try:
            # PyTorch can resize memory that it has allocated itself.
            is_own = tensor.untyped_storage().resizable() and not tensor.is_shared()
            return None if is_own else self.at(tensor.data_ptr())
        except (RuntimeError, NotImplementedError):
            return None  # It has no storage.


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Returns the address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def _lines() -> list[bytes]:
    try:
        with open("/proc/self/maps", "rb") as maps:
            return maps.read().split(b"\n")[:-1]
    except OSError:
        return []


def _start(line: bytes) -> int:
    return int(line[: line.index(b"-")], 16)


def _parsed(line: bytes) -> Mapping:
    span, modes, offset, _, inode, *path = line.split(None, 5)
    start, _, end = span.partition(b"-")
    name = os.fsdecode(path[0]) if path else ""
    return Mapping(int(start, 16), int(end, 16), modes.decode(), int(offset, 16), int(inode), name)
