"""A loader of images in a store, and commands on them."""

from __future__ import annotations

import subprocess
from typing import Any

import coprep
from waiting import WAIT


def loader(pipeline: coprep.Pipeline, **options: Any) -> coprep.DataLoader:
    operators = pipeline.decode().random_resized_crop(32).random_horizontal_flip()
    options = {"batch_size": 16, "framework": "numpy", "with_index": True, **options}
    return coprep.DataLoader(operators, **options)


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command of coprep."""
    return subprocess.run(["coprep", *map(str, command)], capture_output=True, text=True, timeout=2 * WAIT)
