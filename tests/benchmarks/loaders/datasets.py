"""The Python dataset of images, as an import string names it. Only a process that calls the factory imports PyTorch."""

from __future__ import annotations

import os
from typing import Any

from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from tests.benchmarks.loaders import DATA_VARIABLE


def images() -> Dataset[Any]:
    """Returns images as users of PyTorch load them."""
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    made: Dataset[Any] = ImageFolder(os.environ[DATA_VARIABLE], transforms.Compose(steps))
    return made
