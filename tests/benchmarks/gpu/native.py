"""The Rust program `measure_gpu`, which measures the parts of a batch's way to the GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 120.0


def measured(program: Path, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the program to its end. Returns its results, or its error."""
    try:
        run = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    if run.returncode:
        return {"error": run.stderr.strip() or f"{program.name} ended with code {run.returncode}"}
    results: dict[str, Any] = json.loads(run.stdout)
    return results


def latency(program: Path, seconds: float) -> dict[str, Any]:
    """Measures single uploads for some seconds."""
    return measured(program, ["latency", "--seconds", str(seconds)])
