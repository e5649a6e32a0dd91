"""A job whose own work is a pause of known length for each batch, like a device that needs none of the processors."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import coprep

from tests.benchmarks.loaders.measure import BATCH_SIZE


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    data, options, epochs, step_s = sys.argv[1:]
    pipeline = coprep.ImageFolder(data).decode().random_resized_crop(224)
    loader = coprep.DataLoader(
        pipeline, batch_size=BATCH_SIZE, shuffle=True, framework="numpy", seed=1, **json.loads(options)
    )
    report_epochs(loader, int(epochs), float(step_s))


def report_epochs(loader: Any, epochs: int, step_s: float) -> None:
    """Trains when told to, and reports when each epoch ended and how long the job waited, by cause."""
    say(event="ready")
    sys.stdin.readline()
    before = loader.stats(slow=0)
    began = time.monotonic()
    ends = []
    for _ in range(epochs):
        for _batch in loader:
            time.sleep(step_s)
        ends.append(time.monotonic() - began)
    after = loader.stats(slow=0)
    waits = {key: after[key] - before[key] for key in after if key.endswith("_s")}
    say(event="done", ends=ends, waits=waits)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
