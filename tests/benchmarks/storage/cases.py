"""The cases: one stream without and with latency, eight jobs with a cache, tar shards, caches of half the size."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.loaders.records import Bar
from tests.benchmarks.storage.running import MANY_SHARDS, SKIP_S, Disk, Outcome, Plan, Store, open_dataset, run

LATENCY_MS = 50
JOBS = 8
WINDOW = 1000
EPOCHS = 4
"""Epochs with a cache of half the size."""
DISK_ENTRY_BYTES = 48
"""Bytes that each entry takes in the table of a disk cache's file."""


@dataclass(frozen=True)
class Setting:
    """What all cases need."""

    store: Store
    photographs: Dataset
    local: str
    """Folder for timed runs."""
    remote: str
    """URL for timed runs, of the same photographs."""
    seconds: float
    """Length of a timed run."""


Values = dict[str, float]
"""The figures of one repetition by their names."""


@dataclass(frozen=True)
class Case:
    """One comparison, with its figures and its bars."""

    name: str
    about: str
    once: Callable[[Setting], Values]
    figures: Sequence[tuple[str, str, int]]
    """The name of each figure, its unit, and the digits after the point."""
    bars: Callable[[Values], list[Bar]]


def local_beside(setting: Setting, remote: Outcome) -> Outcome:
    """Reads the local files while a process uses as much processor time as the server did."""
    return run(Plan(setting.local, seconds=setting.seconds, burn=remote.server_share))


def at_once(setting: Setting) -> Values:
    """One stream, and a server that answers at once."""
    setting.store.server.faults()
    alone = run(Plan(setting.local, seconds=setting.seconds))
    remote = run(Plan(setting.remote, seconds=setting.seconds), setting.store)
    beside = local_beside(setting, remote)
    return {
        "local files": alone.images_per_s,
        "local files beside the server's load": beside.images_per_s,
        "remote": remote.images_per_s,
        "remote / local files": remote.images_per_s / alone.images_per_s,
        "remote / local files beside the server's load": remote.images_per_s / beside.images_per_s,
        "CPU, local files": alone.cpu_s_per_1000,
        "CPU, remote": remote.cpu_s_per_1000,
        "CPU, remote / local files": remote.cpu_s_per_1000 / alone.cpu_s_per_1000,
        "server": remote.server_share,
        "others": max(outcome.window.others_cores for outcome in (alone, remote)),
    }


def at_once_bars(got: Values) -> list[Bar]:
    # The bar for the rate is about a server elsewhere, so its processor time must be missing on both sides.
    return [
        Bar(
            "0 ms: images/s against local files beside the server's load",
            0.85,
            True,
            got["remote / local files beside the server's load"],
        ),
        Bar("0 ms: CPU for 1,000 images against local files", 1.25, False, got["CPU, remote / local files"]),
    ]


def with_latency(setting: Setting) -> Values:
    """One stream without a cache, and a server that answers after 50 ms."""
    setting.store.server.faults(latency_ms=LATENCY_MS)
    try:
        remote = run(Plan(setting.remote, seconds=setting.seconds), setting.store)
    finally:
        setting.store.server.faults()
    beside = local_beside(setting, remote)
    limit = beside.images_per_s
    rates = remote.rates_by_second()
    seconds = {f"second {number}": rate / limit for number, rate in enumerate(rates[:SHOWN_S], 1)}
    reached = next((number for number, rate in enumerate(rates, 1) if rate >= 0.9 * limit), len(rates) + 1)
    after = rates[2:]
    return {
        "decode limit": limit,
        **seconds,
        "from the 3rd second on": statistics.fmean(after) / limit if after else 0.0,
        "first second at 0.9 or more": float(reached),
        "CPU, remote": remote.cpu_s_per_1000,
        "server": remote.server_share,
        "others": remote.window.others_cores,
    }


SHOWN_S = 6


def with_latency_bars(got: Values) -> list[Bar]:
    return [
        Bar("50 ms: 3rd second against the decode limit", 0.9, True, got.get("second 3")),
        Bar("50 ms: from the 3rd second on against the decode limit", 0.9, True, got["from the 3rd second on"]),
    ]


def eight_jobs(setting: Setting) -> Values:
    """Eight jobs with one bucket, and a cache that holds all samples."""
    before = setting.store.gets()
    options: dict[str, Any] = {"cache": "encoded"}
    plan = Plan(setting.store.url, JOBS, epochs=2, options=options, cache=str(2 * setting.photographs.bytes))
    first, second = run(plan, setting.store).gets_by_epoch
    samples = len(setting.photographs.files)
    return {
        "GETs / samples, 1st epoch": (first - before) / samples,
        "GETs / samples, 2nd epoch": (second - first) / samples,
    }


def eight_jobs_bars(got: Values) -> list[Bar]:
    return [
        Bar("8 jobs: GETs for each sample, 1st epoch", 1.021, False, got["GETs / samples, 1st epoch"], digits=3),
        Bar("8 jobs: GETs for each sample, 2nd epoch", 0.0001, False, got["GETs / samples, 2nd epoch"], digits=3),
    ]


def shards(setting: Setting) -> Values:
    """Eight jobs with tar shards that nobody has opened before, and a cache that holds all samples."""
    url, before = setting.store.shards(setting.photographs), setting.store.gets()
    options: dict[str, Any] = {"cache": "encoded", "shuffle_window": WINDOW}
    with tempfile.TemporaryDirectory(prefix="coprep-index-") as folder:
        plan = Plan(url, JOBS, epochs=2, options=options, cache=str(2 * setting.photographs.bytes), index_folder=folder)
        first, second = run(plan, setting.store).gets_by_epoch
    samples = len(setting.photographs.files)
    return {
        "samples / GETs, 1st epoch": samples / max(first - before, 1),
        "GETs / samples, 2nd epoch": (second - first) / samples,
    }


def shards_bars(got: Values) -> list[Bar]:
    return [
        Bar(
            "8 jobs, tar shards: samples for each GET, 1st epoch", 40, True, got["samples / GETs, 1st epoch"], digits=1
        ),
        Bar(
            "8 jobs, tar shards: GETs for each sample, 2nd epoch",
            0.0001,
            False,
            got["GETs / samples, 2nd epoch"],
            digits=3,
        ),
    ]


def half_cache(setting: Setting) -> Values:
    """One job with a cache for half of the bytes."""
    size = setting.photographs.bytes
    options: dict[str, Any] = {"cache": "encoded", "cache_bytes": size // 2}
    plan = Plan(setting.store.url, epochs=EPOCHS, options=options, cache=str(2 * size))
    fetched = run(plan, setting.store).fetched_by_visit[:EPOCHS]
    return {f"bytes read / all, epoch {number}": bytes / size for number, bytes in enumerate(fetched, 1)}


def half_cache_bars(got: Values) -> list[Bar]:
    return _half_bars("half cache", got)


def _half_bars(cache: str, got: Values) -> list[Bar]:
    read = got["bytes read / all, epoch 2"]
    return [
        Bar(f"{cache}: bytes read in the 2nd epoch, lowest", 0.49, True, read, digits=3),
        Bar(f"{cache}: bytes read in the 2nd epoch, highest", 0.51, False, read, digits=3),
    ]


def disk_cache(setting: Setting) -> Values:
    """One job with a disk cache for half of the bytes, then one for all of them whose coordinator is killed."""
    url, size, samples = setting.store.url, setting.photographs.bytes, len(setting.photographs.files)
    # The file begins with a table, which takes the room of no sample.
    table = DISK_ENTRY_BYTES * samples
    plan = Plan(url, epochs=EPOCHS, options={})
    with _disk_folder(setting) as folder:
        half = run(replace(plan, disk=Disk(folder, size // 2 + table)), setting.store).fetched_by_visit[:EPOCHS]
    with _disk_folder(setting) as folder:
        whole = replace(plan, epochs=1, disk=Disk(folder, 2 * size, samples))
        run(replace(whole, kill=True), setting.store)
        before = setting.store.gets()
        (after,) = run(whole, setting.store).gets_by_epoch
    read = {f"bytes read / all, epoch {number}": bytes / size for number, bytes in enumerate(half, 1)}
    return {**read, "GETs / samples after kill -9": (after - before) / samples}


def _disk_folder(setting: Setting) -> tempfile.TemporaryDirectory[str]:
    """Returns a folder on the same disk as the local files."""
    return tempfile.TemporaryDirectory(prefix="disk-", dir=Path(setting.local).parent)


def disk_cache_bars(got: Values) -> list[Bar]:
    return [
        *_half_bars("half of the bytes on disk", got),
        Bar(
            "all bytes on disk: GETs for each sample, after kill -9",
            0.0001,
            False,
            got["GETs / samples after kill -9"],
            digits=3,
        ),
    ]


def many_shards(setting: Setting) -> Values:
    """Many shards that were indexed before, and a server that answers after 50 ms."""
    url = setting.store.many_shards(setting.photographs)
    with tempfile.TemporaryDirectory(prefix="coprep-index-") as folder:
        first = open_dataset(url, setting.store, folder)
        setting.store.server.faults(latency_ms=LATENCY_MS)
        try:
            again = open_dataset(url, setting.store, folder)
        finally:
            setting.store.server.faults()
    assert first.samples == again.samples == MANY_SHARDS, f"{first.samples} and {again.samples} samples were found"
    return {"seconds": again.seconds, "listings": float(again.lists), "GETs": float(again.gets)}


def many_shards_bars(got: Values) -> list[Bar]:
    return [
        Bar(f"{MANY_SHARDS:,} indexed shards, 50 ms: time to open", 2, False, got["seconds"], unit="s"),
        Bar(f"{MANY_SHARDS:,} indexed shards, 50 ms: GETs to open", 1, False, got["GETs"], unit="GETs", digits=0),
    ]


RATE, RATIO, CPU, CORES, SHARE = ("images/s", 0), ("x", 2), ("s for 1,000 images", 3), ("cores", 2), ("", 3)

CASES = (
    Case(
        "at-once",
        f"one stream, no cache, from {SKIP_S:.0f} s on; the server answers at once",
        at_once,
        (
            ("local files", *RATE),
            ("local files beside the server's load", *RATE),
            ("remote", *RATE),
            ("remote / local files", *RATIO),
            ("remote / local files beside the server's load", *RATIO),
            ("CPU, local files", *CPU),
            ("CPU, remote", *CPU),
            ("CPU, remote / local files", *RATIO),
            ("server", *CORES),
            ("others", *CORES),
        ),
        at_once_bars,
    ),
    Case(
        "latency",
        f"one stream, no cache; answers take {LATENCY_MS} ms; seconds count from the first request for a batch",
        with_latency,
        (
            ("decode limit", *RATE),
            *((f"second {number}", *RATIO) for number in range(1, SHOWN_S + 1)),
            ("from the 3rd second on", *RATIO),
            ("first second at 0.9 or more", "", 0),
            ("CPU, remote", *CPU),
            ("server", *CORES),
            ("others", *CORES),
        ),
        with_latency_bars,
    ),
    Case(
        "eight-jobs",
        f"{JOBS} jobs, each with its own loader, and a cache that holds all samples as they are",
        eight_jobs,
        (("GETs / samples, 1st epoch", *SHARE), ("GETs / samples, 2nd epoch", *SHARE)),
        eight_jobs_bars,
    ),
    Case(
        "shards",
        f"{JOBS} jobs that draw from {WINDOW} samples of tar shards at a time; the index is made in the first epoch",
        shards,
        (("samples / GETs, 1st epoch", "", 1), ("GETs / samples, 2nd epoch", *SHARE)),
        shards_bars,
    ),
    Case(
        "half-cache",
        "one job, and a cache for half of the bytes",
        half_cache,
        tuple((f"bytes read / all, epoch {number}", *SHARE) for number in range(1, EPOCHS + 1)),
        half_cache_bars,
    ),
    Case(
        "disk-cache",
        "one job, no memory, and a disk cache: for half of the bytes, then for all with a coordinator that is killed",
        disk_cache,
        (
            *((f"bytes read / all, epoch {number}", *SHARE) for number in range(1, EPOCHS + 1)),
            ("GETs / samples after kill -9", *SHARE),
        ),
        disk_cache_bars,
    ),
    Case(
        "many-shards",
        f"{MANY_SHARDS:,} tar shards that were indexed before are opened; answers take {LATENCY_MS} ms",
        many_shards,
        (("seconds", "s", 2), ("listings", "", 0), ("GETs", "", 0)),
        many_shards_bars,
    ),
)
