"""Measures the hand-over of a minibatch by itself, between real processes: latency, and CPU per batch and job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.demo.children import Children, messages

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class HandOver:
    """One row of the micro-benchmark."""

    consumers: int
    touch: str
    batch_bytes: int
    latency_us_p50: float
    latency_us_p99: float
    cpu_us_per_batch: float


def measure_handover(program: Path) -> Sequence[HandOver]:
    with Children() as children:
        child = children.start("hand-over", [str(program), "--json"])
        said = [message for _, message in messages([child], TIMEOUT_S)]
        if not said:
            raise child.failure()
    return [
        HandOver(
            consumers=row["consumers"],
            touch=row["touch"],
            batch_bytes=said[-1]["batch_bytes"],
            latency_us_p50=row["latency_median_us"],
            latency_us_p99=row["latency_p99_us"],
            cpu_us_per_batch=row["cpu_us_per_batch_per_consumer"],
        )
        for row in said[-1]["rows"]
    ]
