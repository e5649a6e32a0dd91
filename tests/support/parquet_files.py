"""Parquet files with a column of images, written by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CLASSES = [f"class {label}" for label in range(7)]


def table(images: Iterable[bytes | None], labels: Iterable[int | None], *, nested: bool = True) -> pa.Table:
    """Returns rows as Hugging Face's `datasets` writes them, or with images as plain binary values."""
    images = list(images)
    column = (
        pa.array([{"bytes": image, "path": None} for image in images], HUGGING_FACE)
        if nested
        else pa.array(images, pa.binary())
    )
    features = {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    label = pa.array(list(labels), pa.int64())
    return pa.table({"image": column, "label": label}).replace_schema_metadata(metadata)


HUGGING_FACE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_files(root: Path, photos: list[Path], files: int, rows: int, **options: Any) -> list[Path]:
    """Writes photos in their order to files `train-0.parquet` and so on, with `rows` rows in a row group.

    The label of a photo is its position, modulo 7.
    """
    root.mkdir(parents=True, exist_ok=True)
    each = -(-len(photos) // files)
    nested = options.pop("nested", True)
    written = []
    for number in range(files):
        part = range(len(photos))[number * each : (number + 1) * each]
        path = root / f"train-{number}.parquet"
        content = table((photos[i].read_bytes() for i in part), (i % 7 for i in part), nested=nested)
        pq.write_table(content, path, row_group_size=rows, **options)
        written.append(path)
    return written
