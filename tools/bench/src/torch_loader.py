"""A job of PyTorch's DataLoader, for `coprep bench`: it takes batches and does nothing else.

Its order is a line of JSON on stdin. It prints `ready` when it runs at its usual speed. After `go` it counts from its
next batch, prints the result as a line of JSON, and goes on until stdin is closed.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time

from PIL import ImageOps
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

PR_SET_PDEATHSIG = 1
PREFETCHED = 2
"""Batches that each worker prepares ahead, as by PyTorch's default."""
FOREVER = 10**6
"""Number of epochs in one iteration, which have no pause between them."""


class Part(ImageFolder):
    """The given files of a folder. It does not even list the others."""

    files: list[str] = []

    @classmethod
    def make_dataset(cls, directory, class_to_idx, *_args, **_kwargs):
        folders = (os.path.relpath(file, directory).split(os.sep)[0] for file in cls.files)
        return [(file, class_to_idx[folder]) for file, folder in zip(cls.files, folders, strict=True)]


def pipeline(order):
    steps = []
    if order["exif"]:
        steps.append(ImageOps.exif_transpose)
    if order["resize"]:
        steps.append(transforms.Resize(order["resize"], transforms.InterpolationMode(order["interpolation"])))
    if order["center_crop"]:
        steps.append(transforms.CenterCrop(order["center_crop"]))
    steps.append(transforms.RandomResizedCrop(order["image_size"]))
    steps += [transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return transforms.Compose(steps)


def loader(order):
    Part.files = order["paths"]
    dataset = Part(order["root"], transform=pipeline(order))
    return DataLoader(
        dataset,
        batch_size=order["batch_size"],
        sampler=RandomSampler(dataset, num_samples=len(dataset) * FOREVER),
        num_workers=order["workers"],
        prefetch_factor=PREFETCHED,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


def listen(go, end):
    for _ in sys.stdin:
        go.set()
    end.set()


def take(batches, order):
    go, end = threading.Event(), threading.Event()
    threading.Thread(target=listen, args=(go, end), daemon=True).start()
    # Skip the batches that were prepared while nobody took them.
    for _ in range(order["workers"] * PREFETCHED):
        next(batches)
    print("ready", flush=True)
    began, samples, said = None, 0, False
    for _images, labels in batches:
        now = time.monotonic()
        if end.is_set():
            return
        if began is None:
            # The first batch after `go` starts the clock, and is not counted.
            began = now if go.is_set() else None
            continue
        samples += len(labels)
        if not said and now - began >= order["seconds"]:
            print(json.dumps({"samples": samples, "seconds": now - began}), flush=True)
            said = True


def main():
    # The process that gives the orders may be killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    order = json.loads(sys.stdin.readline())
    take(iter(loader(order)), order)


if __name__ == "__main__":
    main()
