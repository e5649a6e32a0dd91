"""Measures a cache that holds half of the dataset: bytes read in each epoch, without eviction and with LRU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.loaders.measure import ONE_THREAD, WARM_TIMEOUT_S, Dataset
from tools.demo.children import Children, messages

EPOCHS = 4
POLICIES = ("no-eviction", "lru")


@dataclass(frozen=True)
class HalfCache:
    """Bytes fetched in each epoch with one policy."""

    policy: str
    dataset_bytes: int
    cache_bytes: int
    fetched_bytes: Sequence[int]


def measure_half_cache(data: Dataset) -> list[HalfCache]:
    return [one_policy(data, policy) for policy in POLICIES]


def one_policy(data: Dataset, policy: str) -> HalfCache:
    half = data.bytes // 2
    with Children() as children:
        _, env = children.coordinator(cache=str(2 * data.bytes))
        arguments = [str(data.root), str(half), policy, str(EPOCHS)]
        job = children.module("job 1", "tests.benchmarks.loaders.job_half_cache", arguments, {**env, **ONE_THREAD})
        fetched = [message["fetched_bytes"] for _, message in messages([job], WARM_TIMEOUT_S)]
        if len(fetched) != EPOCHS:
            raise job.failure()
    return HalfCache(policy, data.bytes, half, fetched)
