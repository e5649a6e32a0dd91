"""Datasets of the jobs that need PyTorch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

Target = dict[str, torch.Tensor]


def opened(name: str, *arguments: Any) -> torch.utils.data.Dataset[Any]:
    if name == "detection":
        return Detection(*arguments)
    if name == "indexed":
        return Indexed(*arguments)
    if name == "packaged":
        # The package lies in a folder of its own, which the environment names.
        from drop_in_package import dataset

        made: torch.utils.data.Dataset[Any] = dataset.Packaged()
        return made
    raise ValueError(f"there is no dataset {name!r}")


class Detection(torch.utils.data.Dataset[Any]):
    """Photographs with boxes and masks, as in programs that train detectors."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(map(str, Path(folder).glob("*.jpg")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]:
        path = self.paths[index]
        with Image.open(path) as photograph:
            pixels = torch.from_numpy(np.array(photograph.convert("RGB"))).permute(2, 0, 1).contiguous()
        # The file's name tells the number of objects.
        objects = int(Path(path).stem.rpartition("-")[2])
        return pixels, target(index, objects, pixels.shape[1], pixels.shape[2])


def target(index: int, objects: int, height: int, width: int) -> Target:
    """Returns boxes, and for each a mask of the whole photograph."""
    draw = np.random.default_rng(index)
    masks = torch.zeros(objects, height, width, dtype=torch.uint8)
    boxes = torch.empty(objects, 4)
    for number in range(objects):
        left, top = int(draw.integers(0, width // 2)), int(draw.integers(0, height // 2))
        right, bottom = left + width // 3, top + height // 3
        masks[number, top:bottom, left:right] = 1
        boxes[number] = torch.tensor([left, top, right, bottom])
    labels = torch.from_numpy(draw.integers(1, 91, objects))
    return {"boxes": boxes, "masks": masks, "labels": labels, "image_id": torch.tensor([index])}


class Indexed(torch.utils.data.Dataset[Any]):
    """A dataset that reads an index when it is made. Its samples are small, and cost some time off the processor."""

    def __init__(self, index: str, cost_s: float) -> None:
        self.values = np.load(index)
        self.cost_s = cost_s

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.cost_s)
        return torch.full((3, 32, 32), float(self.values[index, 0])), index
