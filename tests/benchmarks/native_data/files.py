"""Writes the files that are read: tokens, rows of an array, recordings, and photographs in parquet files.

usage: python -m tests.benchmarks.native_data.files KIND COUNT TO PHOTOGRAPHS

It runs in the environment of the other loaders, which has the packages that write recordings and parquet files.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np

WINDOW, STRIDE = 2049, 2048
ROW = 1024
"""Numbers of float32 in a row of the array."""
RATE = 44_100
ROWS_OF_A_GROUP = 100
PARQUET_FILES = 4


def make(kind: str, count: int, folder: Path, photographs: Path, python: Path) -> Path:
    """Writes `count` samples of a kind in `folder`. Returns the path of the file or the folder with them."""
    path = folder / {"tokens": "train.bin", "arrays": "features.npy"}.get(kind, kind)
    command = [str(python), "-m", __spec__.name, kind, str(count), str(path), str(photographs)]
    subprocess.run(command, check=True)
    return path


def write_tokens(path: Path, windows: int) -> None:
    """Writes random tokens of a vocabulary of 50,257, as uint16."""
    tokens = np.random.default_rng(0).integers(0, 50_257, windows * STRIDE + 1, dtype=np.uint16)
    tokens.tofile(path)


def write_rows(path: Path, rows: int) -> None:
    np.save(path, np.random.default_rng(1).standard_normal((rows, ROW), dtype=np.float32))


def write_recordings(folder: Path, recordings: int) -> None:
    """Writes FLAC files of 4 to 12 s in two folders: tones that fade in and out, with noise, one channel."""
    import soundfile

    random = np.random.default_rng(2)
    for number in range(recordings):
        times = np.arange(int(RATE * random.uniform(4, 12))) / RATE
        tones = [np.sin(2 * np.pi * random.uniform(80, 4000) * times + random.uniform(0, 6)) for _ in range(6)]
        sound = 0.1 * sum(tones) * (1 + np.sin(6 * np.pi * times)) + 0.01 * random.standard_normal(len(times))
        path = folder / f"class-{number % 2}" / f"{number:05}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, sound.clip(-1, 1), RATE, format="FLAC", subtype="PCM_16")


def write_parquet(folder: Path, rows: int, photographs: Path) -> None:
    """Writes photographs as Hugging Face's `datasets` does. Each comes as often as it takes to fill the rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    files = sorted(path for path in photographs.rglob("*") if path.is_file())
    classes = sorted({path.parent.name for path in files})
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    chosen = list(itertools.islice(itertools.cycle(files), rows))
    for number in range(PARQUET_FILES):
        part = chosen[number::PARQUET_FILES]
        images = [{"bytes": path.read_bytes(), "path": path.name} for path in part]
        labels = [classes.index(path.parent.name) for path in part]
        table = pa.table({"image": pa.array(images, image), "label": pa.array(labels, pa.int64())})
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=ROWS_OF_A_GROUP)


def main() -> None:
    kind, count, to, photographs = sys.argv[1:]
    if kind == "parquet":
        write_parquet(Path(to), int(count), Path(photographs))
    else:
        {"tokens": write_tokens, "arrays": write_rows, "audio": write_recordings}[kind](Path(to), int(count))


if __name__ == "__main__":
    main()
