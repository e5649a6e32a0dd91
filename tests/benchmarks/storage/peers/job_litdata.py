"""A job that loads chunks with litdata, which keeps them in a local folder and decodes images to tensors."""

from __future__ import annotations

import json
import sys
from typing import Any

import litdata
from litdata.streaming import downloader

from tests.benchmarks.storage.peers import BATCH_SIZE
from tests.benchmarks.storage.peers.consume import Batches, run, transform

CACHE_BYTES = "10GB"
"""More than the dataset. The default depends on the room on the disk."""


class Images(litdata.StreamingDataset):  # type: ignore[misc]
    """The dataset with the transform, as the package's documentation writes it."""

    operators = staticmethod(transform(of_tensors=True))

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        sample = super().__getitem__(index)
        return self.operators(sample["image"]), sample["label"]


def main() -> None:
    plan = json.loads(sys.argv[1])
    # litdata reads chunks by obstore, which refuses plain HTTP unless it is told otherwise, and litdata has no option
    # for that. With boto3 alone it would read in a way that its users do not have.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"

    def make() -> Batches:
        dataset = Images(
            plan["url"],
            cache_dir=plan["cache"],
            shuffle=True,
            max_cache_size=CACHE_BYTES,
            storage_options={"endpoint_url": plan["endpoint"]},
        )
        loader: Batches = litdata.StreamingDataLoader(
            dataset, batch_size=BATCH_SIZE, num_workers=plan["workers"], persistent_workers=True
        )
        return loader

    run(make)


if __name__ == "__main__":
    main()
