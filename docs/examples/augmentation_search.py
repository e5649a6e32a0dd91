"""Compare strengths of augmentation: one process for each, all at the same time.

    python augmentation_search.py data --strengths 0 0.25 0.5 1

``data`` has ``train`` and ``val``, each with one subfolder of images per class. The trials use different random
augmentations, so they cannot share batches. They do share the costly part: ``dataset[i]`` reads, decodes and shrinks an
image, which gives the same result every time. This is done once for all trials and epochs and kept in one cache. Only
``transform``, which receives the value of ``dataset[i]``, runs for each trial.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from coprep import DataLoader
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.transforms import v2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="folder with train and val")
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.0, 0.25, 0.5, 1.0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=128, help="side of the images in pixels")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU, per trial")
    return parser.parse_args()


def make_dataset(folder: Path, size: int) -> ImageFolder:
    """Make the part without randomness: its images are small enough for the cache and large enough to crop from."""
    return ImageFolder(folder, v2.Compose([v2.Resize(size), v2.CenterCrop(size), v2.PILToTensor()]))


def make_transform(strength: float, size: int) -> v2.Transform:
    """Make the random part. The operators of ``v2`` take a whole sample, (image, label), and leave the label alone."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(1 - 0.9 * strength, 1)),
            v2.ColorJitter(strength, strength, strength),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def run_trial(strength: float, args: argparse.Namespace) -> float:
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = make_dataset(args.data / "train", 2 * args.size)
    # In a spawned process workers are spawned too, and import PyTorch anew, unless the loader says otherwise.
    workers = {"num_workers": args.workers, "multiprocessing_context": "fork"}
    train = DataLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        transform=make_transform(strength, args.size),
        cache="decoded",
        **workers,
    )
    val = DataLoader(make_dataset(args.data / "val", args.size), args.batch_size, **workers)
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for _ in range(args.epochs):
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return evaluate(model, val, device)


def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    with torch.inference_mode():
        right = sum(
            (model(images.to(device) / 255).argmax(1).cpu() == labels).sum().item() for images, labels in loader
        )
    return right / len(loader.dataset)


def main() -> None:
    args = arguments()
    with ProcessPoolExecutor(len(args.strengths), mp_context=get_context("spawn")) as processes:
        accuracies = processes.map(partial(run_trial, args=args), args.strengths)
        for strength, accuracy in zip(args.strengths, accuracies, strict=True):
            print(f"strength {strength}: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
