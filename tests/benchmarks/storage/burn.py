"""Uses a constant share of one processor, in slices of a millisecond, until it is ended.

It stands for a server on the same machine: a loader of local files that runs beside it has as much processor time left
as one whose server runs here. As the server does, it waits for its turn when it wakes.

usage: python -m tests.benchmarks.storage.burn SHARE
"""

from __future__ import annotations

import os
import sys
import time

from tests.benchmarks.loaders.machine import yield_to_others

SLICE_S = 0.001


def main() -> None:
    share = float(sys.argv[1])
    yield_to_others(os.getpid())
    began = time.monotonic()
    print('{"event": "ready"}', flush=True)
    while True:
        # What other processes took from it is made up for, so that the share holds on a busy machine.
        due = share * (time.monotonic() - began)
        while time.process_time() < due:
            pass
        time.sleep(SLICE_S)


if __name__ == "__main__":
    main()
