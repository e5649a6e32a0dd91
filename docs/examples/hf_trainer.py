"""Train a vision transformer with the Trainer of Hugging Face.

    python hf_trainer.py data/train --epochs 5

The Trainer makes its loader in one method, which this script overrides. The dataset gives dictionaries, so batches are
dictionaries too. All jobs on this folder with the same transforms share one preparation of each image, whatever their
model, learning rate or batch size. The model is made from a configuration, so nothing is downloaded.
"""

import argparse
import tempfile

import torch
from coprep import DataLoader
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with one subfolder of images per class")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels, a multiple of 16")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384, help="of the model, a multiple of 64")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU")
    parser.add_argument("--output", default=tempfile.gettempdir(), help="folder for checkpoints")
    return parser.parse_args()


class Photos(Dataset):
    """Images as dictionaries, the form that Hugging Face models take."""

    def __init__(self, folder: str, size: int) -> None:
        operators = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        self.images = ImageFolder(folder, transforms.Compose(operators))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor | int]:
        pixels, label = self.images[i]
        return {"pixel_values": pixels, "labels": label}


class SharingTrainer(Trainer):
    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            shuffle=True,
            num_workers=self.args.dataloader_num_workers,
            drop_last=self.args.dataloader_drop_last,
        )


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    dataset = Photos(args.data, args.size)
    config = ViTConfig(
        image_size=args.size,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64,
        num_labels=len(dataset.images.classes),
    )
    trainer = SharingTrainer(
        model=ViTForImageClassification(config),
        args=TrainingArguments(
            output_dir=args.output,
            num_train_epochs=args.epochs,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.lr,
            dataloader_num_workers=args.workers,
            logging_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=dataset,
    )
    result = trainer.train()
    print(f"{result.global_step} steps, mean loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
