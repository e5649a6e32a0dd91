"""CPU time and memory of processes and of the machine, from /proc, and how the threads of a process are scheduled."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuClock:
    """CPU seconds used so far: by some process trees, ended children included, and by the whole machine."""

    ours: float
    machine: float

    @classmethod
    def read(cls, roots: Iterable[int]) -> CpuClock:
        return cls(sum(map(cpu_seconds_with_ended, trees(roots))), machine_cpu_seconds())

    def ours_since(self, before: CpuClock) -> float:
        return self.ours - before.ours

    def others_since(self, before: CpuClock) -> float:
        return max(self.machine - before.machine - self.ours_since(before), 0.0)


def trees(roots: Iterable[int]) -> list[int]:
    """Returns the processes `roots` and all their descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def stat_fields(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the name: state, parent, ... If the process is gone, there are
    none.
    """
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpu_seconds(pid: int) -> float:
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if fields else 0.0


def cpu_seconds_with_ended(pid: int) -> float:
    """Returns the CPU seconds of a process and of the children that it has waited for."""
    fields = stat_fields(pid)
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def machine_cpu_seconds() -> float:
    """Returns user, nice, system, interrupt and stolen time: everything except idle time and waits for disks."""
    user, nice, system, _idle, _iowait, *rest = map(int, (PROC / "stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / TICKS_PER_S


def pss_bytes(pid: int) -> int | None:
    """Returns the memory of a process, with shared pages divided among their holders, or `None` without permission."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        return None
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def has_mapped(pid: int, name: str) -> bool:
    """Returns whether a file whose path contains `name` is mapped into one of our processes."""
    return name in (PROC / str(pid) / "maps").read_text()


def remove_torch_files(pids: Iterable[int]) -> None:
    """Removes the shared memory that a worker of PyTorch leaves when it is ended while it hands over a batch."""
    for pid in pids:
        for path in SHARED_MEMORY.glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)


def available_bytes() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", (PROC / "meminfo").read_text(), re.MULTILINE)
    assert found, "/proc/meminfo has no MemAvailable"
    return int(found[1]) * 1024


def processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", (PROC / "cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else "unknown processor"


def cores() -> int:
    return len(os.sched_getaffinity(0))


def yield_to_others(process: int) -> None:
    """Lets the threads of a process, and those that they start, wait for their turn when they wake (`SCHED_BATCH`).

    They take the processor from no other thread then, and have their fair share as before.
    """
    for thread in (PROC / str(process) / "task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
