"""One training run of the demonstration, in a process.

It loads batches, trains a small model on them, and reports to the parent, a line of JSON at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import coprep

from tools.demo.model import Model

BATCH_SIZE = 64
REPORT_EVERY_S = 0.25
"""Seconds between two reports of progress."""
FIRST_BATCHES = 5
"""Batches over which the "first" loss is averaged."""


def main() -> None:
    args = parse()
    loader = open_loader(args)
    model = Model(args.classes, args.learning_rate, seed=0)
    report(event="ready")
    began = time.monotonic()
    losses: list[float] = []
    for epoch in range(args.epochs):
        epoch_began = len(losses)
        accuracies: list[float] = []
        reported = 0.0
        for images, labels in loader:
            loss, accuracy = model.step(images, labels)
            losses.append(loss)
            accuracies.append(accuracy)
            if time.monotonic() - reported > REPORT_EVERY_S:
                reported = time.monotonic()
                progress(loader, epoch + len(accuracies) / len(loader), losses[-20:], accuracies[-20:])
    report(
        event="done",
        loss_first=statistics.fmean(losses[:FIRST_BATCHES]),
        loss_last=statistics.fmean(losses[epoch_began:]),
        accuracy=statistics.fmean(accuracies),
        samples=loader.stats()["samples"],
        wait_s=loader.stats()["wait_s"],
        seconds=time.monotonic() - began,
        streams=coprep.status()["streams"],
    )


def open_loader(args: argparse.Namespace) -> coprep.DataLoader:
    """Opens the loader. The jobs share one preparation, unless each has a seed of its own."""
    pipeline = coprep.ImageFolder(args.data).decode().random_resized_crop(224).random_horizontal_flip()
    subset = range(0, args.samples, args.stride) if args.stride > 1 else None
    return coprep.DataLoader(
        pipeline,
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=args.loader_seed,
        subset=subset,
        cache="off",
        framework="numpy",
    )


def progress(loader: coprep.DataLoader, epoch: float, losses: list[float], accuracies: list[float]) -> None:
    stats = loader.stats()
    report(
        event="progress",
        epoch=epoch,
        loss=statistics.fmean(losses),
        accuracy=statistics.fmean(accuracies),
        samples=stats["samples"],
        wait_s=stats["wait_s"],
    )


def report(**message: Any) -> None:
    """Sends a message to the parent, as a line of JSON."""
    print(json.dumps(message), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--stride", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--loader-seed", type=int, help="a seed of its own shares with nobody")
    return parser.parse_args()


if __name__ == "__main__":
    main()
