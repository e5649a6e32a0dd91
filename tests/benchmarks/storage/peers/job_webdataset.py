"""A job that loads tar shards with webdataset, over plain HTTP: it opens each shard by `curl`."""

from __future__ import annotations

import json
import sys
from typing import Any

import webdataset

from tests.benchmarks.storage.peers import BATCH_SIZE
from tests.benchmarks.storage.peers.consume import Batches, run, transform

SHARD_SHUFFLE, SHUFFLE = 100, 1000
"""Shards and samples in the buffers that are shuffled, as in the package's examples."""


def same(value: Any) -> Any:
    return value


def main() -> None:
    plan = json.loads(sys.argv[1])

    def make() -> Batches:
        dataset = (
            webdataset.WebDataset(plan["url"], shardshuffle=SHARD_SHUFFLE)
            .shuffle(SHUFFLE)
            .decode("pilrgb")
            .to_tuple("jpg", "cls")
            .map_tuple(transform(), same)
            .batched(BATCH_SIZE)
        )
        # Batches are made by the workers, which is how the package's documentation does it.
        loader: Batches = webdataset.WebLoader(
            dataset, batch_size=None, num_workers=plan["workers"], persistent_workers=True
        )
        return loader

    run(make)


if __name__ == "__main__":
    main()
