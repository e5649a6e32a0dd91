"""A job that loads one kind of data with coprep."""

from __future__ import annotations

import sys
from typing import Any

import coprep

from tests.benchmarks.native_data.consume import run
from tests.benchmarks.native_data.files import STRIDE, WINDOW
from tests.benchmarks.native_data.kinds import HOP, KINDS, MELS, SECONDS, SPEECH_RATE, WINDOW_OF_FFT


def source(kind: str, data: str) -> Any:
    if kind == "tokens":
        return coprep.Tokens(data, window=WINDOW, stride=STRIDE, dtype="uint16", out="int64")
    if kind == "arrays":
        return coprep.Arrays(data)
    if kind == "parquet":
        rows = coprep.Parquet(f"{data}/{{000..003}}.parquet", image="image", label="label")
        return rows.decode().random_resized_crop(224).random_horizontal_flip()
    sounds = coprep.AudioFolder(data).decode_audio().resample(SPEECH_RATE).random_crop(SECONDS)
    return sounds.log_mel(n_fft=WINDOW_OF_FFT, hop_length=HOP, n_mels=MELS)


def main() -> None:
    kind, data, warm_after, cache = sys.argv[1:]
    options: Any = {"cache": cache}
    loader = coprep.DataLoader(source(kind, data), batch_size=KINDS[kind].batch_size, shuffle=True, **options)
    run(loader, int(warm_after))


if __name__ == "__main__":
    main()
