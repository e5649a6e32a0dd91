"""Measures the cost of attributing jobs' waits to causes, and of serving metrics of them: by itself, and in pairs."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders.machine import CpuClock, cores
from tests.benchmarks.loaders.measure import ONE_THREAD, Dataset, Setup, cache_budget
from tests.benchmarks.loaders.records import Spread
from tests.benchmarks.slow_samples.overhead import Said, run_overhead
from tests.benchmarks.slow_samples.pairs import PairOptions, PairRecord, Switch, measure_pairs
from tests.benchmarks.slow_samples.running import DONE_TIMEOUT_S, READY_TIMEOUT_S, Outcome, end, hear
from tools.demo.children import Children

EVERY_S = 1.0
"""Seconds between two requests for metrics. Prometheus usually asks every 15 s to 60 s."""
START_S = 0.05
"""Seconds between two requests until the first answer."""
TIMEOUT_S = 10.0


ANSWERS = 200
"""Number of requests over which the cost of one answer is averaged."""


@dataclass(frozen=True)
class WatchRecord:
    """The cost by itself, in per cent of the time in which all processors prepare samples."""

    attribution_ns: Spread
    """Nanoseconds that it adds to a sample's way through the pool."""
    answer_ms: float
    """CPU time of the coordinator for one answer with metrics."""
    of_images: Spread
    of_decoded: Spread
    """The share for samples that come decoded from the cache."""

    @classmethod
    def of(cls, said: Sequence[Said], answer_s: float) -> WatchRecord:
        metrics = answer_s / EVERY_S / cores()
        return cls(
            Spread.of([one["attribution"] for one in said]),
            1000 * answer_s,
            Spread.of([100 * (metrics + one["attribution"] / one["prepare"]) for one in said]),
            Spread.of([100 * (metrics + one["attribution"] / one["prepare_decoded"]) for one in said]),
        )

    def as_json(self) -> dict[str, Any]:
        return {"part": "watch, by itself", **asdict(self)}


@dataclass
class WatchResults:
    """All results of this part."""

    records: list[PairRecord] = field(default_factory=list)
    by_itself: WatchRecord | None = None


def measure_watch(options: PairOptions, overhead: Path | None) -> WatchResults:
    """Measures this part. `overhead` is the program that measures it by itself."""
    found = WatchResults()
    if overhead:
        said = run_overhead(overhead, options.data, options.quick)
        found.by_itself = WatchRecord.of(said, answer_cpu_s(options.data))
    found.records = measure_pairs(WATCH, options)
    return found


def answer_cpu_s(data: Dataset) -> float:
    """Returns the CPU time, for one answer with metrics, of a coordinator that serves a job."""
    with Children() as children:
        port = free_port()
        serve = [f"--metrics=127.0.0.1:{port}"]
        coordinator, variables = children.coordinator(cache_budget(Setup("coprep", "decoded")), serve)
        options = json.dumps({"cache": "decoded"})
        job = children.module(
            "job", "tests.benchmarks.slow_samples.job_native", [str(data.root), options, "1"], ONE_THREAD | variables
        )
        hear(job, "ready", READY_TIMEOUT_S)
        job.tell("go")
        hear(job, "done", DONE_TIMEOUT_S)
        before = CpuClock.read([coordinator.pid])
        for _ in range(ANSWERS):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
                answer.read()
        spent = CpuClock.read([coordinator.pid]).ours_since(before)
        end(job)
    return spent / ANSWERS


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def attributes(outcome: Outcome) -> bool:
    """Returns whether any wait of the job was attributed to storage or processors."""
    stalls: dict[str, Any] = outcome.status["streams"][0]["stalls"]
    return bool(stalls["fetch_s"] + stalls["prep_s"] > 0)


@contextlib.contextmanager
def scraped() -> Iterator[Sequence[str]]:
    """Yields options with which a coordinator serves metrics, and fetches these repeatedly until the block ends."""
    port = free_port()
    ended, seen = threading.Event(), list[int]()

    def scrape() -> None:
        # Short work may be done within the first second.
        while not ended.wait(EVERY_S if seen else START_S):
            # The server is not there before its start and after its end.
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
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
