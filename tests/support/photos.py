"""Folders of photographs that are drawn from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Returns a picture with edges and gradients, drawn from the seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def make_folder(root: Path, count: int, classes: int = 4) -> Path:
    for i in range(count):
        folder = root / f"class{i % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(i, 160 + i % 50, 120 + i % 40).save(folder / f"{i:05}.jpg", quality=90)
    return root
