"""Train with Lightning, on one device or on several.

    python lightning_train.py data/train --epochs 5
    python lightning_train.py data/train --accelerator cpu --devices 2 --strategy ddp

The loader takes the place of PyTorch's. With several devices it finds the ranks by itself and gives each its share of
every epoch, so Lightning need not add a sampler. All ranks, and every other job on this folder with the same
transforms, share one preparation of each image.
"""

import argparse

import lightning
import torch
from coprep import DataLoader
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import BasicBlock, ResNet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with one subfolder of images per class")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--steps", type=int, help="at most so many per epoch")
    parser.add_argument("--batch-size", type=int, default=64, help="of each device")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--blocks", type=int, nargs=4, default=[2, 2, 2, 2], help="2 2 2 2 is ResNet-18")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU, per device")
    return parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self, blocks: list[int], classes: int, lr: float) -> None:
        super().__init__()
        self.model = ResNet(BasicBlock, blocks, num_classes=classes)
        self.lr = lr

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("images", float(len(images)), on_step=False, on_epoch=True, sync_dist=True, reduce_fx="sum")
        return loss

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        self.print(f"epoch {self.current_epoch}: loss {metrics['loss']:.4f}, {metrics['images']:.0f} images")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=1e-4)


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    dataset = ImageFolder(
        args.data,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(args.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        ),
    )
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        limit_train_batches=args.steps,
        accelerator=args.accelerator,
        devices=args.devices,
        strategy=args.strategy,
        # The loader divides each epoch among the ranks itself.
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Classifier(args.blocks, len(dataset.classes), args.lr), train_dataloaders=loader)


if __name__ == "__main__":
    main()
