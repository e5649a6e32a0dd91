"""The work of a job of the part `peers`, whichever loader its batches come from.

A job imports its packages, makes its loader, takes two epochs, and then goes on until it is told to end. Before each
step it waits for a line from the parent.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchvision.transforms import v2

from tests.benchmarks.loaders.consume import report, touch
from tests.benchmarks.storage.peers import EPOCHS

Batches = Iterable[Any]
"""Pairs of images and labels."""


def transform(of_tensors: bool = False) -> Callable[[Any], Any]:
    """Returns the random crop and the flip, for Pillow images or for tensors."""
    operators: list[Callable[[Any], Any]] = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    composed: Callable[[Any], Any] = v2.Compose(operators if of_tensors else [*operators, v2.PILToTensor()])
    return composed


def run(make: Callable[[], Batches]) -> None:
    # Some packages print, and standard output is for messages to the parent.
    messages = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(messages, "w")
    report(event="imported")
    sys.stdin.readline()
    loader = make()
    report(event="ready")
    for _ in range(EPOCHS):
        sys.stdin.readline()
        images, began, first = 0, time.monotonic(), None
        for size in sizes(loader):
            first = first or time.monotonic() - began
            images += size
        report(event="epoch", images=images, first_s=first, ended=time.monotonic())
    sys.stdin.readline()
    while not is_told():
        for _ in sizes(loader):
            if is_told():
                break


def sizes(loader: Batches) -> Iterator[int]:
    for images, _labels in loader:
        touch(images)
        yield len(images)


def is_told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])
