"""The kinds of data, and what jobs do with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SPEECH_RATE, SECONDS = 16_000, 2.0
WINDOW_OF_FFT, HOP, MELS = 400, 160, 80
"""Samples of a window and between two windows, and the number of bands of a spectrogram."""


@dataclass(frozen=True)
class Kind:
    """A kind of data."""

    about: str
    samples: str
    """The name of its samples."""
    count: int
    """Number of its samples."""
    quick_count: int
    batch_size: int
    loaders: Sequence[str]
    """Labels of the loaders that are compared."""


KINDS = {
    "tokens": Kind(
        "windows of 2,049 uint16 tokens, given as int64",
        "windows",
        65_536,
        2_048,
        64,
        ("coprep", "DataLoader", "np.memmap"),
    ),
    "arrays": Kind("rows of 1,024 float32 in a .npy file", "rows", 65_536, 2_048, 256, ("coprep", "DataLoader")),
    "audio": Kind(
        "FLAC files of 4 to 12 s at 44.1 kHz: decode, resample to 16 kHz, random crop of 2 s, log-mel",
        "recordings",
        512,
        64,
        32,
        ("coprep", "coprep, cached", "DataLoader"),
    ),
    "parquet": Kind(
        "photographs in row groups of 100: decode, random-resized-crop 224, flip",
        "images",
        4_000,
        500,
        64,
        ("coprep", "DataLoader"),
    ),
}
