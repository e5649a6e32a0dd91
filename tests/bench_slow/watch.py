"""What it costs to tell apart what jobs wait for, and to serve metrics of it: speed with and without, in pairs."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from tests.bench_slow.pairs import PairOptions, PairRecord, Switch, measure_pairs
from tests.bench_slow.running import Outcome

EVERY_S = 1.0
"""Prometheus asks each 15 s to 60 s, as it is usually set up."""
PATIENCE_S = 10.0


def measure_watch(options: PairOptions) -> list[PairRecord]:
    return measure_pairs(WATCH, options)


def attributes(outcome: Outcome) -> bool:
    """Whether any wait of the job was put down to storage or processors."""
    stalls: dict[str, Any] = outcome.status["streams"][0]["stalls"]
    return bool(stalls["fetch_s"] + stalls["prep_s"] > 0)


@contextlib.contextmanager
def scraped() -> Iterator[Sequence[str]]:
    """Options with which a coordinator serves metrics, which are fetched again and again until this ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended, seen = threading.Event(), list[int]()

    def scrape() -> None:
        while not ended.wait(EVERY_S):
            # Before it is there, and after its end.
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                seen.append(len(answer.read()))

    address = f"http://127.0.0.1:{port}/metrics"
    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield [f"--metrics=127.0.0.1:{port}"]
    finally:
        ended.set()
        thread.join()
    if not seen:
        raise RuntimeError(f"no metrics came from {address} while the work was done")


WATCH = Switch("watch", "attribution and metrics", {"COPREP_ATTRIBUTION": "off"}, attributes, scraped)
