"""Writes the photographs in the format of one loader, by the writer of that loader's own package.

usage: python -m tests.benchmarks.storage.peers.formats FORMAT PHOTOGRAPHS COUNT SHARD_BYTES FOLDER
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Photograph = tuple[str, int]
"""A path and its label."""


def photographs(root: Path, count: int) -> list[Photograph]:
    """Returns `count` photographs in a random order that is the same each time.

    All packages advise to shuffle before shards are written, because at run time each of them shuffles little more than
    a few shards at once.
    """
    labels = {name: label for label, name in enumerate(sorted(path.name for path in root.iterdir() if path.is_dir()))}
    files = sorted(path for path in root.rglob("*") if path.is_file())
    random.Random(0).shuffle(files)
    return [(str(path), labels[path.parent.name]) for path in files[:count]]


def write_files(found: Sequence[Photograph], _shard_bytes: int, folder: Path) -> None:
    for path, label in found:
        (folder / f"{label:03}").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / f"{label:03}")


def write_tar(found: Sequence[Photograph], shard_bytes: int, folder: Path) -> None:
    import webdataset

    folder.mkdir(parents=True)
    with webdataset.ShardWriter(str(folder / "%03d.tar"), maxsize=shard_bytes, verbose=0) as writer:
        for number, (path, label) in enumerate(found):
            writer.write({"__key__": f"{number:06}", "jpg": Path(path).read_bytes(), "cls": label})


def write_mds(found: Sequence[Photograph], shard_bytes: int, folder: Path) -> None:
    from PIL import Image
    from streaming import MDSWriter

    columns = {"image": "jpeg", "label": "int"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=shard_bytes) as writer:
        for path, label in found:
            writer.write({"image": Image.open(path), "label": label})


def litdata_sample(photograph: Photograph) -> dict[str, Any]:
    from PIL import Image

    path, label = photograph
    return {"image": Image.open(path), "label": label}


def write_litdata(found: Sequence[Photograph], shard_bytes: int, folder: Path) -> None:
    import litdata

    litdata.optimize(litdata_sample, list(found), str(folder), chunk_bytes=shard_bytes, num_workers=1)


WRITERS: dict[str, Callable[[Sequence[Photograph], int, Path], None]] = {
    "files": write_files,
    "tar": write_tar,
    "mds": write_mds,
    "litdata": write_litdata,
}


def main() -> None:
    name, root, count, shard_bytes, folder = sys.argv[1:]
    WRITERS[name](photographs(Path(root), int(count)), int(shard_bytes), Path(folder))


if __name__ == "__main__":
    main()
