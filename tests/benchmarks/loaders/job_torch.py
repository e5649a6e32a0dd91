"""A job that loads with PyTorch's DataLoader, which decodes with Pillow or with torchvision.io."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image, read_file
from torchvision.transforms import v2

from tests.benchmarks.loaders.consume import consume


def read_with_torchvision(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_image(read_file(path), mode="RGB")
    return image


def dataset(decoder: str, data: str) -> ImageFolder:
    """Returns the image folder with the transforms that suit the decoder.

    With Pillow, images are cropped and resized as Pillow images and become tensors at the end. With torchvision.io they
    are tensors from the start.
    """
    operators: list[Callable[[Any], Any]] = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    if decoder == "pil":
        return ImageFolder(data, v2.Compose([*operators, v2.PILToTensor()]))
    return ImageFolder(data, v2.Compose(operators), loader=read_with_torchvision)


def main() -> None:
    data, batch_size, warm_after, decoder, workers, started = sys.argv[1:]
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        dataset(decoder, data),
        batch_size=int(batch_size),
        shuffle=True,
        num_workers=int(workers),
        persistent_workers=True,
    )
    consume(loader, float(started), int(warm_after))


if __name__ == "__main__":
    main()
