"""The processors that this process may use."""

from __future__ import annotations

import math
from pathlib import Path

from tests.benchmarks.loaders.machine import cores

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(limit: Path = CPU_LIMIT) -> int:
    """Returns the number of cores, within the limit of the container."""
    quota = limit.read_text().split() if limit.exists() else ["max"]
    if quota[0] == "max":
        return cores()
    return min(cores(), max(math.ceil(int(quota[0]) / int(quota[1])), 1))
