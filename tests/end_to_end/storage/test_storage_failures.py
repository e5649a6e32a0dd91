"""Tests storage that fails: nothing is lost or skipped for it, jobs wait, and errors name the store and the remedy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import ids
from coordinators import coordinator_pid, lasting_outage
from object_server import SECRET, ObjectServer
from pages import pattern, status_lines
from waiting import WAIT, until

N = 200
EPOCHS = 4
"""As many hold more samples than are read ahead, so that some are still to be read after the first batch."""
SECONDS = 30
"""Within this time a loader says that a store cannot be opened."""


def loader(url: str, **options: Any) -> coprep.DataLoader:
    pipeline = coprep.ImageFolder(url).decode().random_resized_crop(32)
    options = {"batch_size": 16, "framework": "numpy", "with_index": True, "cache": "off", **options}
    return coprep.DataLoader(pipeline, **options)


def status() -> str:
    shown = subprocess.run(["coprep", "status"], capture_output=True, text=True, timeout=WAIT)
    return " ".join(shown.stdout.split())


@pytest.mark.parametrize("faults", [{"error_every": 20}, {"reset_every": 20}, {"stall_every": 150}], ids=str)
def test_answers_that_fail_lose_and_skip_nothing(
    socket_path: Path, server: ObjectServer, photos: str, faults: dict[str, int]
) -> None:
    server.faults(**faults)
    with warnings.catch_warnings(), loader(photos, on_error="skip") as train:
        warnings.simplefilter("error")
        for _ in range(2):
            assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] > 2 * N


def test_a_coordinator_raises_a_low_limit_of_open_files(socket_path: Path, server: ObjectServer, photos: str) -> None:
    # The usual limit of 1,024 is low where there are several stores and many processors.
    server.faults(latency_ms=50)
    coordinator = subprocess.Popen(["bash", "-c", "ulimit -Sn 64; exec coprep serve"])
    try:
        until(socket_path.exists, "the coordinator listens")
        with loader(photos) as train:
            for _ in range(2):
                assert sorted(ids(train)) == list(range(N))
        # Without a descriptor for this connection it would not answer.
        assert coprep.status()["outages"] == []
        limits = Path(f"/proc/{coordinator.pid}/limits").read_text()
        (limit,) = re.findall(r"Max open files +(\d+)", limits)
        assert int(limit) == min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536) > 64
    finally:
        coordinator.terminate()
        coordinator.wait(WAIT)


def test_jobs_wait_for_a_store_that_is_away_and_go_on(socket_path: Path, server: ObjectServer, photos: str) -> None:
    with loader(photos, on_error="skip") as train, ThreadPoolExecutor(1) as pool:
        batches = iter(train)
        seen = [int(i) for i in next(batches)[-1]]
        with server.refusing("403 ExpiredToken"):
            rest = pool.submit(lambda: ids(batches) + [i for _ in range(EPOCHS - 1) for i in ids(train)])
            outage = lasting_outage()
            assert outage["store"] == "s3://bucket"
            assert outage["last_answer"] == "403 Forbidden (ExpiredToken)"
            shown = status()
            (told,) = [line for line in status_lines() if line.startswith("s3://")]
            like = pattern(told.replace("503 Service Unavailable (SlowDown)", outage["last_answer"]))
            assert re.search(like, shown), shown
            time.sleep(3)
            assert not rest.done()
        assert sorted(seen + rest.result(WAIT)) == sorted(EPOCHS * list(range(N)))
    assert coprep.status()["outages"] == []


def test_a_job_that_is_attaching_when_the_coordinator_ends_is_served_by_the_next(
    socket_path: Path, server: ObjectServer, photos: str
) -> None:
    def begin() -> list[int]:
        with loader(photos) as train:
            return ids(train)

    def running() -> int:
        with contextlib.suppress(coprep.CoprepError):
            return coordinator_pid()
        return 0

    with ThreadPoolExecutor(1) as pool:
        with server.refusing("503 SlowDown"):
            attaching = pool.submit(begin)
            until(lambda: running() > 0, "a coordinator runs")
            first = coordinator_pid()
            until(lambda: "503" in Path(f"{socket_path}.log").read_text(), "the store is asked")
            os.kill(first, signal.SIGTERM)
            until(lambda: running() not in (0, first) or attaching.done(), "another coordinator is asked")
        assert sorted(attaching.result(WAIT)) == list(range(N))


def test_a_store_that_stays_away_is_one_error_also_for_jobs_that_skip(
    socket_path: Path, server: ObjectServer, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_STORAGE_PATIENCE", "2")
    with loader(photos, on_error="skip") as train:
        next(iter(train))
        server.faults(refuse="503 SlowDown")
        with pytest.raises(coprep.StorageError) as caught:
            for _ in range(EPOCHS):
                ids(train)
    text = str(caught.value)
    assert "s3://bucket has not answered for" in text and "503 Service Unavailable (SlowDown)" in text


def test_an_object_that_was_replaced_is_named(
    socket_path: Path, server: ObjectServer, folder: Path, photos: str
) -> None:
    with loader(photos, shuffle=False) as train:
        assert ids(train) == list(range(N))
        first, second = sorted((folder / "class0").iterdir())[:2]
        server.put("bucket", f"photos/class0/{first.name}", second.read_bytes())
        with pytest.raises(coprep.SampleError, match="a dataset in use must not change") as caught:
            list(train)
    assert caught.value.id == 0 and caught.value.path == f"{photos}/class0/{first.name}"


@pytest.mark.parametrize(
    ("refuse", "part"),
    [
        ("403 AccessDenied", "403 Forbidden (AccessDenied)"),
        ("400 ExpiredToken", "check the credentials"),
        ("503 SlowDown", "503 Service Unavailable (SlowDown)"),
    ],
)
def test_a_store_that_refuses_is_one_error_at_once(
    socket_path: Path, server: ObjectServer, photos: str, refuse: str, part: str
) -> None:
    server.faults(refuse=refuse)
    began = time.monotonic()
    with pytest.raises(coprep.StorageError) as caught, loader(photos) as train:
        list(train)
    assert time.monotonic() - began < SECONDS
    text = str(caught.value)
    assert text.startswith("cannot list s3://bucket/photos") and part in text, text


def test_a_missing_bucket_and_an_empty_folder_are_named(socket_path: Path, server: ObjectServer) -> None:
    with pytest.raises(coprep.StorageError, match="s3://elsewhere.*NoSuchBucket.*check the name of the bucket"):
        len(coprep.ImageFolder("s3://elsewhere/photos"))
    with pytest.raises(ValueError, match="there is nothing in s3://bucket/nowhere"):
        len(coprep.ImageFolder("s3://bucket/nowhere/"))


def test_no_network_is_one_error(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody listens on this port.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    began = time.monotonic()
    with pytest.raises(coprep.StorageError, match="no connection.*check the network and the address"):
        len(coprep.ImageFolder("s3://bucket/photos"))
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("ftp://host/photos", "not a storage that coprep reads"),
        (Path("s3://bucket/photos"), "as text, because pathlib.Path"),
        ("s3://", "names no bucket"),
        (f"https://user:{SECRET}@host/x", "credentials in it"),
        (f"https://host/x.jpg?X-Amz-Signature={SECRET}", "presigned"),
    ],
)
def test_a_url_that_is_not_accepted_is_an_error_at_once(url: str | Path, part: str) -> None:
    for source in (coprep.ImageFolder, lambda url: coprep.Files([url])):
        with pytest.raises(ValueError, match=part) as caught:
            source(url)
        assert SECRET not in str(caught.value)


def test_secrets_are_nowhere(socket_path: Path, server: ObjectServer, photos: str) -> None:
    with loader(photos) as train, ThreadPoolExecutor(1) as pool:
        next(iter(train))
        # A failure is logged, with its cause.
        with server.refusing("403 AccessDenied"):
            rest = pool.submit(lambda: [ids(train) for _ in range(EPOCHS)])
            lasting_outage()
            shown = json.dumps(coprep.status()) + status()
            command = Path(f"/proc/{coordinator_pid()}/cmdline").read_bytes()
        rest.result(WAIT)
    logs = [path.read_text() for path in socket_path.parent.rglob("*") if path.is_file()]
    assert logs and SECRET not in shown and SECRET.encode() not in command
    assert all(SECRET not in log for log in logs)
