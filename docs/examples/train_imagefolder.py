"""Train a ResNet on a folder of images, one subfolder per class.

    python train_imagefolder.py data/train --epochs 5 --workers 8

This is the usual PyTorch script except for one line, ``from coprep import DataLoader``. Start it as often as you like
and whenever you like, with other learning rates or batch sizes. Jobs that run at the same time read, decode and augment
each image once for all of them, as long as folder, transforms and seed are the same.
"""

import argparse

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
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--blocks", type=int, nargs=4, default=[2, 2, 2, 2], help="2 2 2 2 is ResNet-18")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, help="for a run that can be repeated")
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    # The loader takes its seed from the generator.
    generator = None
    if args.seed is not None:
        torch.manual_seed(args.seed)
        generator = torch.Generator().manual_seed(args.seed)

    dataset = ImageFolder(
        args.data,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(args.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        ),
    )
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        drop_last=True,
        generator=generator,
    )

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = ResNet(BasicBlock, args.blocks, num_classes=len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)

    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step} loss {loss.item()!r}", flush=True)
            step += 1
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
