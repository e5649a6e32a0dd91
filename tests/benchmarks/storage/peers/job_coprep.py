"""A job that loads with coprep: loose objects or tar shards. Like the other jobs it imports PyTorch."""

from __future__ import annotations

import json
import sys

import coprep

from tests.benchmarks.storage.peers import BATCH_SIZE
from tests.benchmarks.storage.peers.consume import Batches, run


def main() -> None:
    plan = json.loads(sys.argv[1])

    def make() -> Batches:
        source = coprep.WebDataset(plan["url"]) if plan["url"].endswith(".tar") else coprep.ImageFolder(plan["url"])
        pipeline = source.decode().random_resized_crop(224).random_horizontal_flip()
        # The others keep files as they were read, so coprep may not keep decoded images, which it does by default.
        return coprep.DataLoader(pipeline, batch_size=BATCH_SIZE, shuffle=True, cache="encoded")

    run(make)


if __name__ == "__main__":
    main()
