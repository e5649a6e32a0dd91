"""Predicts, evaluates and trains on images with the Trainer of Hugging Face, like a program that does not know coprep.

Predictions come first, so that they use the weights of the seed. Images are decoded in the dataset's transform.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from PIL import Image
from torchvision import transforms as T

SIZE = 64


def photographs(folder: Path, operators: list[Any]) -> Dataset:
    """Returns the photographs as a dataset. Each has a label of its own."""
    paths = sorted(map(str, folder.rglob("*.jpg")))
    found = Dataset.from_dict({"path": paths, "label": list(range(len(paths)))})
    prepare = T.Compose([*operators, T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)])

    def load(rows: dict[str, Any]) -> dict[str, Any]:
        images = [prepare(Image.open(path).convert("RGB")) for path in rows["path"]]
        return {"pixel_values": images, "labels": rows["label"]}

    found.set_transform(load)
    return found


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.stack([sample["pixel_values"] for sample in samples]),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    transformers.set_seed(0)
    train = photographs(args.data / "train", [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()])
    test = photographs(args.data / "val", [T.Resize(SIZE), T.CenterCrop(SIZE)])
    config = transformers.ViTConfig(
        image_size=SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=len(train),
    )
    trainer = transformers.Trainer(
        model=transformers.ViTForImageClassification(config),
        args=transformers.TrainingArguments(
            output_dir=str(args.out),
            num_train_epochs=args.epochs,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=32,
            dataloader_num_workers=args.workers,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        ),
        train_dataset=train,
        eval_dataset=test,
        data_collator=collate,
    )
    np.save(args.out / "predictions.npy", trainer.predict(test).predictions)
    loss = trainer.evaluate()["eval_loss"]
    result = trainer.train()
    (args.out / "result.json").write_text(json.dumps({"loss": loss, "steps": result.global_step}))
    trainer.predict(test)


if __name__ == "__main__":
    main()
