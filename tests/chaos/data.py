"""The datasets of the jobs, whose samples tell their ids. Workers import this module too, so it needs only NumPy."""

from __future__ import annotations

import io
import os
import random
import signal
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LEVELS = 6
"""Number of values that a colour channel can have. Three channels tell an id."""
STEP = 40
"""Distance between two values of a channel."""
BASES = (20, 40)
"""Lowest value of a channel, in the first version of a file and after a change."""
TOLERANCE = 8
"""Largest change of a channel's value by JPEG compression."""


class Broken(Exception):
    """Raised by samples that fail."""


@dataclass(frozen=True)
class Misbehaviour:
    """Samples of a dataset that are slow, raise, or kill their worker."""

    slow: Sequence[int] = ()
    slow_s: float = 0.0
    """Seconds that each slow sample takes."""
    failing: Sequence[int] = ()
    deadly: Sequence[int] = ()
    """Ids of samples that kill their worker, each time."""
    deadly_once: Sequence[int] = ()
    """Ids of samples that kill their worker the first time."""
    marks: str = ""
    """Folder with a file for each of these samples that has killed a worker."""

    def show(self, i: int) -> None:
        """Delays, fails or kills the worker, if sample ``i`` is one that does so."""
        if i in self.slow:
            time.sleep(self.slow_s)
        if i in self.failing:
            raise Broken(f"sample {i} is broken")
        if i in self.deadly or (i in self.deadly_once and self._is_first(i)):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_first(self, i: int) -> bool:
        try:
            # With `O_EXCL`, exactly one of several workers at the same sample is the first.
            os.close(os.open(f"{self.marks}/{i}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Values:
    """A dataset whose sample i is an array full of i, and i itself.

    Args:
        size: number of samples.
        width: number of elements in a sample's array.
        misbehaviour: the samples that are not made at once.
    """

    def __init__(self, size: int, width: int = 8, misbehaviour: Misbehaviour | None = None) -> None:
        self.size = size
        self.width = width
        self.misbehaviour = misbehaviour or Misbehaviour()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Any:
        self.misbehaviour.show(i)
        return np.full(self.width, i, np.int64), i


class Together(Values):
    """A dataset that is asked for all samples of a minibatch in one call."""

    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [self[i] for i in ids]


class Pickled(Values):
    """A dataset with samples of unequal size, which travel pickled."""

    def __getitem__(self, i: int) -> Any:
        self.misbehaviour.show(i)
        return {"raw": bytes([i % 251]) * raw_length(i), "label": i}


class Sampler:
    """A sampler that gives its ids in another order each time, whatever seeds the process has."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(random.SystemRandom().sample(self.ids, len(self.ids)))


def raw_length(i: int) -> int:
    """Returns the length of a sample's data. A few samples are too large for a slot that is sized by the first ones."""
    return 50_000 if i % 37 == 36 else 10 + i * 37 % 3000


class Shift:
    """A random transform whose results still tell the id."""

    def __call__(self, sample: Any) -> Any:
        values, label = sample
        values *= 1000
        values += np.random.randint(1000)
        return values, label


def as_list(samples: list[Any]) -> list[Any]:
    """A ``collate_fn`` that leaves the samples as they are."""
    return samples


# --- images --------------------------------------------------------------------------------------------------


def colour(i: int, version: int = 0) -> tuple[int, int, int]:
    """Returns the colour of a sample's image, whose channels are the digits of the id in base ``LEVELS``."""
    digits = (i % LEVELS, i // LEVELS % LEVELS, i // LEVELS**2 % LEVELS)
    red, green, blue = (BASES[version] + STEP * digit for digit in digits)
    return red, green, blue


def write_image(path: str, i: int, version: int = 0) -> None:
    Path(path).write_bytes(image(i, version))


def write_shard(file: Any, ids: Sequence[int], images: Sequence[bytes]) -> None:
    """Writes a tar shard of images, labelled by their ids, into an open file."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        for i, image in zip(ids, images, strict=True):
            for ending, content in (("jpg", image), ("cls", str(i).encode())):
                member = tarfile.TarInfo(f"{i:04}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def image(i: int, version: int = 0) -> bytes:
    """Returns a JPEG of one colour, with sides of 32 to 64 pixels."""
    from PIL import Image

    content = io.BytesIO()
    # High quality and colours in full resolution keep each pixel within TOLERANCE.
    made = Image.new("RGB", (32 + i % 33, 32 + i * 7 % 33), colour(i, version))
    made.save(content, "JPEG", quality=95, subsampling=0)
    return content.getvalue()


# --- verification --------------------------------------------------------------------------------------------


def wrong_images(images: Any, ids: Sequence[int], is_float: bool) -> list[int]:
    """Returns the ids of images whose pixels have the colour of no version of that sample."""
    pixels = images * (255 * STD) + 255 * MEAN if is_float else images.astype(np.float32)
    wrong = []
    for image, i in zip(pixels, ids, strict=True):
        expected = (np.array(colour(i, version), np.float32)[:, None, None] for version in range(len(BASES)))
        if not any((np.abs(image - one) <= TOLERANCE).all() for one in expected):
            wrong.append(i)
    return wrong


MEAN, STD = 0.5, 0.25
"""Mean and standard deviation of the pipelines that normalize."""


def wrong_values(values: Any, labels: Any, ids: Sequence[int], is_shifted: bool) -> list[int]:
    """Returns the ids of samples whose values or labels are those of another sample."""
    index = np.asarray(ids)[:, None]
    good = (values // 1000 == index if is_shifted else values == index).all(axis=1)
    good &= (values == values[:, :1]).all(axis=1) & (np.asarray(labels) == index[:, 0])
    return [int(i) for i in np.asarray(ids)[~good]]


def wrong_pickled(samples: Sequence[Any], ids: Sequence[int]) -> list[int]:
    """Returns the ids of pickled samples whose contents are those of another sample."""
    return [
        i
        for sample, i in zip(samples, ids, strict=True)
        if sample != {"raw": bytes([i % 251]) * raw_length(i), "label": i}
    ]
