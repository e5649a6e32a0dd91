"""Compares the output of the program `pixels` with Pillow. Needs Pillow 13, numpy and xxhash."""

import math
import struct
import sys
from pathlib import Path

import numpy as np
import xxhash
from PIL import Image

SIDE = 224
MASK = 2**64 - 1
BILINEAR = Image.Resampling.BILINEAR


class Draws:
    """The random numbers of a sample: SplitMix64 from the xxh3 hash of (seed, visit, id)."""

    def __init__(self, seed, visit, id):
        self.state = xxhash.xxh3_64_intdigest(struct.pack("<QQI", seed, visit, id))

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def between(self, low, high):
        return low + (high - low) * ((self.next() >> 11) * 2.0**-53)

    def below(self, n):
        return self.next() * n >> 64


def random_box(width, height, draws):
    """Returns the part that torchvision's RandomResizedCrop.get_params draws, with these draws and float32 bounds."""
    scale, ratio = np.float32((0.08, 1.0)).astype(float), np.float32((3 / 4, 4 / 3)).astype(float)
    for _ in range(10):
        area = width * height * draws.between(*scale)
        aspect = math.exp(draws.between(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            y = draws.below(height - h + 1)
            x = draws.below(width - w + 1)
            return x, y, x + w, y + h
    return None


def random(image, id):
    box = random_box(*image.size, Draws(0, 0, id))
    return box and image.crop(box).resize((SIDE, SIDE), BILINEAR)


def central(image, id):
    width, height = image.size
    short = min(width, height)
    width, height = 256 * width // short, 256 * height // short
    x, y = round((width - SIDE) / 2), round((height - SIDE) / 2)
    return image.resize((width, height), BILINEAR).crop((x, y, x + SIDE, y + SIDE))


def pixels(path):
    return np.fromfile(path, np.uint8).reshape(-1, 3, SIDE, SIDE).astype(np.int16)


def show(what, pairs):
    signed = np.stack([ours - theirs for ours, theirs in pairs])
    off = np.abs(signed)
    print(
        f"{what:24} samples {len(off):4}  mean {off.mean():.3f}  bias {signed.mean():+.3f}  "
        f"worst sample {off.mean((1, 2, 3)).max():.2f}  99 % within {np.percentile(off, 99):.0f}  max {off.max()}"
    )


def report(folder, name, prepare):
    samples = [line.split(" ", 1) for line in (folder / "samples").read_text().splitlines()]
    images = [prepare(Image.open(path).convert("RGB"), int(id)) for id, path in samples]
    theirs = [image and np.asarray(image, np.int16).transpose(2, 0, 1) for image in images]
    exact, reduced = pixels(folder / f"{name}.exact"), pixels(folder / f"{name}.reduced")
    assert len(exact) == len(reduced) == len(theirs)
    rows = [row for row in zip(exact, reduced, theirs, strict=True) if row[2] is not None]
    changed = [row for row in rows if (row[0] != row[1]).any()]
    show(f"{name}, exact", [(e, t) for e, _, t in rows])
    show(f"{name}, default", [(r, t) for _, r, t in rows])
    show(f"{name}, where reduced", [(r, t) for _, r, t in changed])


folder = Path(sys.argv[1])
report(folder, "random", random)
report(folder, "central", central)
