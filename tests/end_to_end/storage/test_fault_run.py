"""The fault run: jobs read from a store with every kind of fault, and each gets every sample exactly once.

It is short here. ``make fault-run`` runs 10,000 samples of each dataset, with stalls that only the client ends and an
outage of a minute.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coprep
import pytest
from jobs import Job, Start, go
from object_server import Credentials, ObjectServer
from pages import pattern, status_lines
from photos import photo
from shards import write_shards
from waiting import WAIT, until

IS_LONG = "COPREP_FAULT_RUN" in os.environ
SAMPLES, SHARDS, OUTAGE = (10_000, 40, 60) if IS_LONG else (240, 4, 1.5)
"""Samples of each dataset, shards of one of them, and seconds of the outage."""
FAULTS: dict[str, Any] = {
    "error_share": 0.05,
    "reset_share": 0.01,
    "stall_share": 0.01,
    "wrong_range_share": 0.005,
    "seed": 20,
    # The client gives up after ten seconds without a byte. Shorter stalls end with the connection.
    "stall_ms": 0 if IS_LONG else 700,
}
FIRST, SECOND = (Credentials(f"key-{n}", f"secret-{n}", f"token-{n}") for n in ("one", "two"))
EPOCHS, EVENTS, STOP = 5, 3, 3
"""Epochs, the number of those in which something happens, and the batch after which all jobs wait for it.

Samples are fetched ahead, up to the epoch after the last event.
"""

JOB = """
import json, sys, warnings, coprep
kind, url, on_error, epochs, events, stop = sys.argv[1:4] + [int(text) for text in sys.argv[4:]]
told, errors = [], []
warnings.showwarning = lambda message, category, *_: told.append(f"{category.__name__}: {message}")
warnings.simplefilter("always")
source = getattr(coprep, kind)(url).decode().random_resized_crop(32)
options = {"batch_size": 16, "shuffle": True, "cache": "off"}
train = coprep.DataLoader(source, **options, on_error=on_error, framework="numpy", with_index=True)
for epoch in range(epochs):
    seen, batches, number = [], iter(train), 0
    while True:
        try:
            batch = next(batches)
        except coprep.SampleError as error:
            errors.append((error.id, error.path, str(error)))
            continue
        except StopIteration:
            break
        seen += batch[-1].tolist()
        if number == stop and epoch < events:
            print("stopped", flush=True)
            sys.stdin.readline()
        number += 1
    report = {"seen": seen, "skipped": train.stats()["skipped"], "warnings": told, "errors": errors}
    print(json.dumps(report), flush=True)
    errors = []
"""


@dataclass(frozen=True)
class Data:
    photos: str
    shards: str
    flipped: int
    """The sample with a changed byte."""
    flipped_url: str
    """Its shard."""
    at: tuple[int, int]
    """The bytes of its shard that it takes."""
    replaced: int
    """Number of the shard that is replaced in mid-run."""

    @property
    def replaced_ids(self) -> set[int]:
        each = SAMPLES // SHARDS
        return set(range(self.replaced * each, (self.replaced + 1) * each))


@pytest.fixture
def data(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    """Datasets in the store, which wants temporary credentials. The shards have indexes, and then a byte changes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in server.environment_of_a_role().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = tmp_path / "photos" / "class"
    photos.mkdir(parents=True)
    for i in range(SAMPLES):
        photo(i, 48 + i % 16, 40 + i % 8).save(photos / f"{i:05}.jpg", quality=80)
    shards = write_shards(tmp_path / "shards", sorted(photos.iterdir()), SHARDS)
    server.load("bucket", "photos", photos.parent)
    server.load("bucket", "shards", shards[0].parent)
    server.demand(FIRST)
    url = f"s3://bucket/shards/train-{{000..{SHARDS - 1:03}}}.tar"
    assert len(coprep.WebDataset(url)) == SAMPLES
    # The coordinator would hand out the images that it read for the indexes, without the changed byte.
    coprep.stop()
    each = SAMPLES // SHARDS
    with tarfile.open(shards[1]) as archive:
        member = [member for member in archive if member.name.endswith(".jpg")][5]
    start, end = member.offset_data, member.offset_data + member.size
    server.flip("bucket", "shards/train-001.tar", (start + end) // 2)
    of_flipped = "s3://bucket/shards/train-001.tar"
    return Data("s3://bucket/photos", url, each + 5, of_flipped, (start, end), SHARDS - 1)


@dataclass
class Running:
    """A job, and its reports so far."""

    job: Job
    epochs: list[dict[str, Any]] = field(default_factory=list)


def stopped(running: list[Running]) -> None:
    """Waits until all jobs wait for the next event."""
    for one in running:
        line = one.job.line()
        while line.startswith("{"):
            one.epochs.append(json.loads(line))
            line = one.job.line()
        assert line == "stopped"


def ended(running: Running) -> list[dict[str, Any]]:
    """Returns the reports on all epochs, once the job has ended."""
    while len(running.epochs) < EPOCHS:
        running.epochs.append(json.loads(running.job.line()))
    running.job.result()
    return running.epochs


def go_on(running: list[Running]) -> None:
    go(*(one.job for one in running))


def outage(is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Waits until an outage of the store is told of which this holds, and returns what is told."""
    told: list[dict[str, Any]] = []

    def is_told() -> bool:
        told[:] = filter(is_it, coprep.status()["outages"])
        return bool(told)

    until(is_told, "the outage is seen", WAIT + OUTAGE)
    return told[0]


def credentials_expire(server: ObjectServer, jobs: list[Running]) -> None:
    server.demand(SECOND)
    go_on(jobs)
    assert outage(lambda told: told["last_answer"] == "403 Forbidden (ExpiredToken)")["store"] == "s3://bucket"


def store_is_out(server: ObjectServer, jobs: list[Running]) -> None:
    server.faults(down=1)
    go_on(jobs)
    found = outage(lambda told: told["lasts_s"] >= OUTAGE)
    assert found["store"] == "s3://bucket"
    shown = subprocess.run(["coprep", "status"], capture_output=True, text=True, timeout=WAIT).stdout
    (told,) = [line for line in status_lines() if line.startswith("s3://")]
    like = pattern(told.replace("503 Service Unavailable (SlowDown)", found["last_answer"]))
    # The page shows an outage of less than a minute.
    assert re.search(like, re.sub(r"for \d+ min (?=\d+ s, last)", "for ", " ".join(shown.split()))), shown
    top = subprocess.run(["coprep", "top", "--once"], capture_output=True, text=True, timeout=WAIT).stdout
    assert "s3://bucket has not answered for" in top, top
    server.faults(**FAULTS)


@pytest.mark.timeout(3600 if IS_LONG else 120)
def test_every_sample_comes_once_whatever_the_store_does(
    socket_path: Path, server: ObjectServer, data: Data, start: Start, tmp_path: Path
) -> None:
    began = time.monotonic()
    server.faults(**FAULTS)

    def job(kind: str, url: str, on_error: str) -> Running:
        return Running(start(JOB, kind, url, on_error, EPOCHS, EVENTS, STOP))

    loose = [job("ImageFolder", data.photos, "skip") for _ in range(2)]
    sharded = [job("WebDataset", data.shards, "skip") for _ in range(2)]
    strict = job("WebDataset", data.shards, "raise")
    jobs = [*loose, *sharded, strict]
    stopped(jobs)
    credentials_expire(server, jobs)
    stopped(jobs)
    store_is_out(server, jobs)
    stopped(jobs)
    other = (tmp_path / "shards" / "train-000.tar").read_bytes()
    server.put("bucket", f"shards/train-{data.replaced:03}.tar", other)
    go_on(jobs)
    # At once, because a job whose report nobody reads waits.
    with ThreadPoolExecutor(len(jobs)) as pool:
        epochs = list(pool.map(ended, jobs))
    every = list(range(SAMPLES))
    for seen in epochs[:2]:
        assert [sorted(epoch["seen"]) for epoch in seen] == [every] * EPOCHS
        assert seen[-1]["skipped"] == 0 and seen[-1]["warnings"] == []
    check_shards(epochs[2:4], data)
    check_errors(epochs[4], data)
    counts = server.counts()
    assert counts["gets"] > (2 * EPOCHS + 0.05) * SAMPLES, counts
    (store,) = coprep.status()["stores"]
    seconds = time.monotonic() - began
    print(f"\n{seconds:.0f} s; {counts['gets']} GETs; of coprep's requests: {json.dumps(store)}")


def check_shards(jobs: list[list[dict[str, Any]]], data: Data) -> None:
    """Checks the jobs that leave out what cannot be used."""
    intact = set(range(SAMPLES)) - {data.flipped}
    for epochs in jobs:
        for epoch in epochs:
            assert len(set(epoch["seen"])) == len(epoch["seen"])
        seen = [set(epoch["seen"]) for epoch in epochs]
        assert seen[0] == seen[1] == intact
        # Some samples of the shard were read before it was replaced.
        assert all(intact - data.replaced_ids <= one <= intact for one in seen[2:])
        assert seen[-1] == intact - data.replaced_ids
        assert epochs[1]["skipped"] == 1
        (warning,) = epochs[-1]["warnings"]
        assert warning.startswith("SkippedSampleWarning") and data.flipped_url in warning


def check_errors(epochs: list[dict[str, Any]], data: Data) -> None:
    """Checks the job that gets errors: one about the byte in each epoch, and about the other shard after its end."""
    start, end = data.at
    for epoch in epochs:
        (error,) = [one for one in epoch["errors"] if one[0] == data.flipped]
        assert error[1].startswith(f"{data.flipped_url}#") and error[1].endswith(f"{data.flipped % SAMPLES:05}.jpg")
        assert f"the bytes {start} to {end} of {data.flipped_url} are not those that were indexed" in error[2]
    others = [[one for one in epoch["errors"] if one[0] != data.flipped] for epoch in epochs]
    assert others[0] == others[1] == [] and others[-1]
    shard = f"s3://bucket/shards/train-{data.replaced:03}.tar"
    for id_, path, text in [one for epoch in others for one in epoch]:
        assert id_ in data.replaced_ids and path.startswith(shard)
        assert f"{shard} was replaced since it was listed" in text
