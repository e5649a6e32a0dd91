"""Trains on sounds of unequal lengths, padded to the longest of each batch, like a program that does not know coprep.

It makes the sounds if the folder has none. Each sound is a class of its own.
"""

from __future__ import annotations

import argparse
import random
import wave
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SOUNDS = 240
RATE = 16_000


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for number in range(SOUNDS):
        with wave.open(str(folder / f"{number:04}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(draw.randbytes(2 * draw.randint(RATE // 2, 4 * RATE)))


class Sounds(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: Path, part: slice) -> None:
        self.files = sorted(folder.glob("*.wav"))[part]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with wave.open(str(self.files[i])) as file:
            frames = bytearray(file.readframes(file.getnframes()))
        samples = torch.frombuffer(frames, dtype=torch.int16).float() / 32768
        # The spectra are of frames of 25 ms, one every 10 ms.
        return torch.stft(samples, 400, 160, window=torch.hann_window(400), return_complex=True).abs().T.contiguous(), i


def pad(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    spectra, labels = zip(*samples, strict=True)
    padded = nn.utils.rnn.pad_sequence(list(spectra), batch_first=True)
    return padded, torch.tensor(labels), torch.tensor([len(spectrum) for spectrum in spectra])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    if not args.data.exists():
        make(args.data)
    torch.manual_seed(0)
    train, test = Sounds(args.data, slice(SOUNDS - 40)), Sounds(args.data, slice(SOUNDS - 40, None))
    model = nn.Sequential(nn.Linear(201, 32), nn.ReLU(), nn.Linear(32, SOUNDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = DataLoader(test, 8, collate_fn=pad, num_workers=args.workers)

    def predict() -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([model(spectra).sum(1) / lengths[:, None] for spectra, _, lengths in held_out])

    (args.out / "predictions.bin").write_bytes(predict().numpy().tobytes())
    for _ in range(args.epochs):
        for spectra, labels, lengths in DataLoader(train, 8, shuffle=True, collate_fn=pad, num_workers=args.workers):
            loss = nn.functional.cross_entropy(model(spectra).sum(1) / lengths[:, None], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        predict()


if __name__ == "__main__":
    main()
