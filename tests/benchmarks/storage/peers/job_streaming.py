"""A job that loads MDS shards with MosaicML streaming, which keeps them in a local folder."""

from __future__ import annotations

import json
import sys
from typing import Any

from streaming import StreamingDataLoader, StreamingDataset

from tests.benchmarks.storage.peers import BATCH_SIZE
from tests.benchmarks.storage.peers.consume import Batches, run, transform


class Images(StreamingDataset):  # type: ignore[misc]
    """The dataset with the transform, as the package's documentation writes it."""

    transform = staticmethod(transform())

    def __getitem__(self, at: Any) -> tuple[Any, int]:
        sample = super().__getitem__(at)
        return self.transform(sample["image"].convert("RGB")), sample["label"]


def main() -> None:
    plan = json.loads(sys.argv[1])

    def make() -> Batches:
        dataset = Images(remote=plan["url"], local=plan["cache"], shuffle=True, batch_size=BATCH_SIZE)
        # The dataset keeps the connection over which it read the index, and forked workers inherit it. Two workers that
        # send requests over one connection read each other's responses: an image cannot be decoded, or a worker waits
        # for a minute.
        for stream in dataset.streams:
            stream._downloader.clean_up()
        loader: Batches = StreamingDataLoader(
            dataset, batch_size=BATCH_SIZE, num_workers=plan["workers"], persistent_workers=True
        )
        return loader

    run(make)


if __name__ == "__main__":
    main()
