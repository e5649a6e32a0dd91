"""Tar shards, written by Python's `tarfile`."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write_shard(path: Path, members: Iterable[tuple[str, bytes]], form: str = "pax") -> Path:
    """Writes members by name and content."""
    with tarfile.open(path, "w", format=FORMATS[form]) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            # A time with a fraction makes `tarfile` write a pax header for each member, as many programs do.
            member.mtime = 1_700_000_000.5 if form == "pax" else 1_700_000_000
            archive.addfile(member, io.BytesIO(content))
    return path


def members_of(number: int, image: bytes, label: int, form: str = "pax") -> list[tuple[str, bytes]]:
    """Returns the members of one sample: an image, a label in text and in JSON, and a file that nobody asks for."""
    # Too long for a plain header, except in the old format.
    key = f"{'long/' * (10 if form == 'ustar' else 60)}{number:05}"
    return [
        (f"{key}.cls", str(label).encode()),
        (f"{key}.jpg", image),
        (f"{key}.json", b'{"label": %d, "caption": "a photo"}' % (label + 100)),
        (f"{key}.txt", b"a photo"),
    ]


def write_shards(root: Path, photos: list[Path], shards: int, form: str = "pax") -> list[Path]:
    """Writes photos in their order to shards `train-000.tar` and so on. The label is the position, modulo 7."""
    root.mkdir(parents=True, exist_ok=True)
    each = -(-len(photos) // shards)
    written = []
    for shard in range(shards):
        part = range(shard * each, min((shard + 1) * each, len(photos)))
        members = [m for i in part for m in members_of(i, photos[i].read_bytes(), i % 7, form)]
        written.append(write_shard(root / f"train-{shard:03}.tar", members, form))
    return written


def samples_of(path: Path) -> list[dict[str, bytes]]:
    """Returns the samples of a shard as the package `webdataset` groups them, read by `tarfile`."""
    samples: list[dict[str, bytes]] = []
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, base = member.name.rpartition("/")
            key, _, ending = base.partition(".")
            key = f"{folder}/{key}"
            if not samples or samples[-1]["key"] != key.encode():
                samples.append({"key": key.encode()})
            content = archive.extractfile(member)
            assert content is not None
            samples[-1][ending] = content.read()
    return samples
