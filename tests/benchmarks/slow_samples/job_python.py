"""A job over a Python dataset, with coprep or with PyTorch's DataLoader. Everything else is the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import coprep
import torch

from tests.benchmarks.loaders.consume import report
from tests.benchmarks.loaders.measure import BATCH_SIZE
from tests.benchmarks.slow_samples.samples import opened
from tests.benchmarks.slow_samples.take import Batch, Stamped, stamped, take


class Drawn:
    """A random order that is reported as it is drawn."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.samples, generator=self.generator).tolist()
        report(event="drawn", ids=order)
        return iter(order)


def loader_of(kind: str, of: Stamped, workers: int, options: dict[str, Any]) -> Iterable[Any]:
    """Returns the loader. `options` are its further arguments; the seed of PyTorch's loader goes to its sampler."""
    common: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": workers, "persistent_workers": True}
    dataset: Any = of
    if kind == "coprep":
        return coprep.DataLoader(dataset, shuffle=True, **common, **options)
    sampler = Drawn(len(of), options.pop("seed"))
    made: Iterable[Any] = torch.utils.data.DataLoader(dataset, sampler=sampler, **common, **options)
    return made


def main() -> None:
    kind, samples, workers, options, epochs, digest = sys.argv[1:]
    torch.set_num_threads(1)
    of = Stamped(opened(samples))

    def open_loader() -> Callable[[], Iterable[Batch]]:
        loader = loader_of(kind, of, int(workers), json.loads(options))
        return lambda: stamped(loader)

    take(open_loader, int(epochs), digest == "digest")


if __name__ == "__main__":
    main()
