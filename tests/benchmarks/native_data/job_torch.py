"""A job that loads one kind of data with PyTorch's DataLoader and the dataset that people usually write for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.benchmarks.native_data.consume import run
from tests.benchmarks.native_data.files import RATE, STRIDE, WINDOW
from tests.benchmarks.native_data.kinds import HOP, KINDS, MELS, SECONDS, SPEECH_RATE, WINDOW_OF_FFT


class Tokens(Dataset[torch.Tensor]):
    def __init__(self, path: str) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self.tokens) - WINDOW) // STRIDE + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * STRIDE
        return torch.from_numpy(self.tokens[begin : begin + WINDOW].astype(np.int64))


class RandomWindows:
    """Batches from a memory map, drawn with replacement and without a loader, as small training programs take them."""

    def __init__(self, dataset: Tokens, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(len(self.dataset) // self.batch_size):
            chosen = torch.randint(len(self.dataset), (self.batch_size,)).tolist()
            yield torch.stack([self.dataset[index] for index in chosen])


class Rows(Dataset[torch.Tensor]):
    def __init__(self, path: str) -> None:
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.rows[index]))


class Sounds(Dataset[Any]):
    """Reads whole files, as resampling before the crop needs them."""

    def __init__(self, folder: str) -> None:
        # The wheel wants the version of CUDA of an older PyTorch, and nothing here is on a GPU.
        torch.version.cuda = None
        import torchaudio

        self.files = sorted(Path(folder).rglob("*.flac"))
        self.resample = torchaudio.transforms.Resample(RATE, SPEECH_RATE)
        self.spectrogram = torchaudio.transforms.MelSpectrogram(
            SPEECH_RATE, n_fft=WINDOW_OF_FFT, hop_length=HOP, n_mels=MELS
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import soundfile

        path = self.files[index]
        sound, _rate = soundfile.read(path, dtype="float32", always_2d=True)
        sound = self.resample(torch.from_numpy(sound.mean(1)))
        length = int(SECONDS * SPEECH_RATE)
        begin = int(torch.randint(max(len(sound) - length, 0) + 1, ()))
        crop = torch.nn.functional.pad(sound[begin : begin + length], (0, max(length - len(sound), 0)))
        return self.spectrogram(crop[None]).clamp(min=1e-10).log(), int(path.parent.name[-1])


def photographs(folder: str) -> Any:
    from datasets import Image, load_dataset
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()])

    def transformed(rows: dict[str, Any]) -> dict[str, Any]:
        return {"image": [transform(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}

    rows = load_dataset("parquet", data_files=f"{folder}/*.parquet", split="train", cache_dir=f"{folder}/cache")
    return rows.cast_column("image", Image()).with_transform(transformed)


DATASETS = {"tokens": Tokens, "arrays": Rows, "audio": Sounds, "parquet": photographs}


def main() -> None:
    kind, data, warm_after, loader, workers = sys.argv[1:]
    torch.set_num_threads(1)
    dataset = DATASETS[kind](data)
    size = KINDS[kind].batch_size
    if loader == "np.memmap":
        run(RandomWindows(dataset, size), int(warm_after))
    batches = DataLoader(dataset, size, shuffle=True, num_workers=int(workers), persistent_workers=True)
    run(batches, int(warm_after))


if __name__ == "__main__":
    main()
