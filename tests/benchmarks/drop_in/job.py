"""A job: some loaders one after the other, with coprep or with PyTorch. Everything else is the same.

The job says `ready` when it has its imports and its datasets, and waits for the command to go. It makes its loaders one
by one and takes their passes as fast as batches come. A dataset with a method `change` is changed before each pass. The
job says `pass` after each pass, then `done`, and ends when it is told to.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.benchmarks.drop_in.datasets import opened
from tests.benchmarks.drop_in.plan import Part, Plan
from tests.benchmarks.loaders.consume import report


def as_lists(samples: list[Any]) -> Any:
    """Returns the samples as a list, since their sizes differ."""
    return samples


def as_columns(samples: list[Any]) -> Any:
    """Collates like programs that train detectors."""
    return tuple(zip(*samples, strict=True))


COLLATE: dict[str, Any] = {"": None, "lists": as_lists, "columns": as_columns}


def loader_of(plan: Plan, part: Part, dataset: Any) -> Iterable[Any]:
    collate = COLLATE[plan.collate]
    common: dict[str, Any] = {"batch_size": plan.batch_size, "shuffle": plan.shuffle, "num_workers": plan.workers}
    if collate is not None:
        common["collate_fn"] = collate
    if plan.loader == "coprep":
        import coprep

        return coprep.DataLoader(dataset, **common, **plan.options)
    import torch

    made: Iterable[Any] = torch.utils.data.DataLoader(dataset, **common)
    return made


def touch(batch: Any) -> None:
    """Reads the first element of everything in a batch."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            touch(part)
    elif hasattr(batch, "__array__"):
        np.asarray(batch).ravel()[:1].sum()


def main() -> None:
    plan = Plan.of(json.loads(sys.argv[1]))
    if plan.imports_torch:
        import torch

        torch.set_num_threads(1)
    if plan.loader == "coprep":
        import coprep  # noqa: F401 - before it says that it is ready
    datasets = [opened(part.dataset) for part in plan.parts]
    ballast = np.ones(plan.ballast_mib << 20, np.uint8)
    report(event="ready", at=time.monotonic())
    sys.stdin.readline()
    loaders = []
    for number, (part, dataset) in enumerate(zip(plan.parts, datasets, strict=True)):
        made = time.monotonic()
        # All loaders stay, as in programs that train and validate.
        loaders.append(loader_of(plan, part, dataset))
        for _ in range(part.passes):
            arrivals = []
            if hasattr(dataset, "change"):
                dataset.change()
            for batch in loaders[-1]:
                touch(batch)
                arrivals.append(time.monotonic())
            report(event="pass", loader=number, made=made, arrivals=arrivals)
            ballast += 1
    # A program does other work after a pass, while its loader is still there.
    time.sleep(plan.linger_s)
    report(event="done")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
