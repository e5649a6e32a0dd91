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
        self._all: list[Mapping] | None = None

    def at(self, address: int) -> Mapping | None:
        """Returns the mapping that an address lies in."""
        if self._all is None:
            self._all = _read()
        i = bisect.bisect_right(self._all, (address, sys.maxsize)) - 1
        return self._all[i] if i >= 0 and address < self._all[i].end else None

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


def _read() -> list[Mapping]:
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                span, modes, offset, _, inode, *path = line.rstrip("\n").split(None, 5)
                start, _, end = span.partition("-")
                name = path[0] if path else ""
                found.append(Mapping(int(start, 16), int(end, 16), modes, int(offset, 16), int(inode), name))
    except OSError:
        return []
    return found
