"""The memory of processes together with what they keep in /dev/shm, each page once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.loaders.machine import PROC, SHARED_MEMORY

STREAMING_FILES = re.compile(r"\d{6}_\w+")
"""Names of the shared memory of MosaicML streaming."""


@dataclass(frozen=True)
class Memory:
    """Bytes of some processes."""

    pss: int
    """With shared pages divided among those that have mapped them."""
    pss_shared: int
    """The part of it that is shared memory."""
    files: int
    """Growth of /dev/shm since the start of the run."""

    @property
    def total(self) -> int:
        """Returns the processes' memory and the files in /dev/shm that none of them has mapped."""
        return self.pss + max(self.files - self.pss_shared, 0)


def memory_of(pids: Iterable[int], files_before: int) -> Memory:
    texts = [_rollup(pid) for pid in pids]
    pss, shared = (sum(_field(text, name) for text in texts) for name in ("Pss", "Pss_Shmem"))
    return Memory(pss, shared, max(shm_bytes() - files_before, 0))


def _rollup(pid: int) -> str:
    try:
        return (PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _field(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def shm_bytes() -> int:
    """Returns the bytes in /dev/shm."""
    status = os.statvfs(SHARED_MEMORY)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def disk_bytes(folder: Path) -> int:
    """Returns the bytes that the files below a folder take on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def streaming_files() -> set[Path]:
    return {path for path in SHARED_MEMORY.iterdir() if STREAMING_FILES.fullmatch(path.name)}


def remove_new(before: set[Path]) -> None:
    """Removes the shared memory that jobs of MosaicML streaming leave when they are ended by a signal."""
    for path in streaming_files() - before:
        path.unlink(missing_ok=True)
