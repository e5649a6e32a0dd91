"""Finds the features of the installed coprep. The benchmark leaves out parts that need a missing one, and says so."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any

import coprep

from tools.demo.children import coprep_command


@dataclass(frozen=True)
class Features:
    """Available features, each named as users write it."""

    relaxed: bool
    auto: bool
    cpus: bool
    slow_storage: bool
    listing: bool
    throttle: bool

    @classmethod
    def find(cls) -> Features:
        serve, status, commands = help_of("serve"), help_of("status"), help_of()
        return cls(
            relaxed=takes(order="relaxed"),
            auto=takes(cache="auto"),
            cpus="--cpus" in serve,
            slow_storage="--storage-rate" in serve and "--storage-latency" in serve,
            listing="--slow" in status,
            throttle="throttle" in commands,
        )

    def missing(self) -> list[str]:
        names = {
            'order="relaxed"': self.relaxed,
            'cache="auto"': self.auto,
            "serve --cpus (--workers is taken)": self.cpus,
            "serve --storage-rate, --storage-latency": self.slow_storage,
            "status --slow": self.listing,
            "throttle": self.throttle,
        }
        return [name for name, there in names.items() if not there]

    def threads(self, count: int) -> list[str]:
        """Returns the options of `coprep serve` for this number of threads."""
        return ["--cpus" if self.cpus else "--workers", str(count)]


def help_of(*command: str) -> str:
    words = [str(coprep_command()), *command, "--help"]
    return subprocess.run(words, capture_output=True, check=True, text=True, timeout=30).stdout


def takes(**arguments: Any) -> bool:
    """Returns whether a loader accepts these arguments. The loader is never used, so nothing connects."""
    try:
        coprep.DataLoader(coprep.Files([]), **arguments)
    except ValueError:
        return False
    return True
