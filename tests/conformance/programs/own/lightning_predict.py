"""Predicts, tests and fits with Lightning, like a program that does not know coprep.

Predictions come first, so that they use the weights of the seed. Each photograph is a class of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

SIZE = 64


class Photographs(lightning.LightningDataModule):
    def __init__(self, folder: Path, workers: int) -> None:
        super().__init__()
        self.folder, self.workers = folder, workers

    def setup(self, stage: str) -> None:
        varied = T.Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ToTensor()])
        plain = T.Compose([T.Resize(SIZE), T.CenterCrop(SIZE), T.ToTensor()])
        self.train, self.val = ImageFolder(self.folder / "train", varied), ImageFolder(self.folder / "val", plain)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=32, shuffle=True, num_workers=self.workers, drop_last=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, batch_size=32, num_workers=self.workers)

    test_dataloader = predict_dataloader = val_dataloader


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))
        self.accuracy = MulticlassAccuracy(classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(images)
        return logits

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        self.accuracy(self(images), labels)
        self.log("accuracy", self.accuracy)

    test_step = validation_step

    def predict_step(self, batch: Any, _: int) -> torch.Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    lightning.seed_everything(0)
    data = Photographs(args.data, args.workers)
    model = Classifier(sum(1 for _ in (args.data / "train").iterdir()))
    model(torch.zeros(1, 3, SIZE, SIZE))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=args.epochs, accelerator="cpu", **quiet)  # type: ignore[arg-type]
    predicted = trainer.predict(model, data)
    (args.out / "predictions.bin").write_bytes(torch.cat(predicted).numpy().tobytes())
    (args.out / "tested.txt").write_text(repr(trainer.test(model, data)))
    trainer.fit(model, data)
    trainer.predict(model, data)
    (args.out / "steps.txt").write_text(str(trainer.global_step))


if __name__ == "__main__":
    main()
