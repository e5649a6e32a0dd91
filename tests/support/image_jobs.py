"""Jobs on a folder of photographs with a native pipeline: their training script, and functions that start them."""

from __future__ import annotations

import coprep
from jobs import Job, Start

N = 200
"""Number of photographs in the folder of the fixture ``folder``."""

TRAIN = """
import json, sys, time, coprep
folder, batch_size, epochs, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
data = coprep.ImageFolder(folder).decode().random_resized_crop(32).random_horizontal_flip()
train = coprep.DataLoader(data, batch_size=batch_size, shuffle=True, framework="numpy", with_index=True)
len(train)  # attaches
print("ready", flush=True)
sys.stdin.readline()
epochs = [[] for _ in range(epochs)]
for seen in epochs:
    for images, labels, index in train:
        seen += index.tolist()
        if "mark" in sys.argv or "step" in sys.argv:
            print("batch", flush=True)
        if "step" in sys.argv:
            sys.stdin.readline()
        time.sleep(pause)
for seen in epochs:
    print(json.dumps({"seen": seen}), flush=True)
"""
"""Code of a job. Its arguments are a folder, a batch size, epochs, and seconds per batch. It waits for a line.

With ``mark`` it announces each batch. With ``step`` it then waits for another line.
"""


def job(start: Start, pipeline: coprep.Pipeline, batch_size: int, epochs: int, pause: float, *more: str) -> Job:
    """Starts a job, and waits until it is ready to begin."""
    ready = start(TRAIN, pipeline.root, batch_size, epochs, pause, *more)
    assert ready.line() == "ready"
    return ready


def whole(epochs: int) -> list[list[int]]:
    return [list(range(N))] * epochs
