"""Generates photographs: smooth shapes with some noise, so that their JPEG files are about as large as real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COARSE = 24
"""Side of the large shapes in pixels. Each of them is one pixel of the draft."""
NOISE = 6.0
QUALITY = 88
LARGE_EVERY = 20


def write_photograph(path: Path, width: int, height: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    draft = draw.integers(0, 256, (height // COARSE + 2, width // COARSE + 2, 3), np.uint8)
    pixels = np.asarray(Image.fromarray(draft).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    pixels = pixels + draw.normal(0, NOISE, pixels.shape).astype(np.float32)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=QUALITY)


def write_image_folder(root: Path, count: int) -> None:
    """Makes an image folder of two classes with sizes as in ImageNet: one in twenty is many times as large."""
    draw = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class-{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        sides = (2000, 4000) if number % LARGE_EVERY == LARGE_EVERY - 1 else (300, 520)
        width, height = (int(side) for side in draw.integers(*sides, 2))
        write_photograph(folder / f"{number:05d}.jpg", width, height, number)
