"""Tests the command line on URLs: what it says, and that it reads no more than it should."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import ids
from coordinators import lasting_outage
from object_server import SECRET, ObjectServer
from served import Coordinator, ask, series
from waiting import WAIT, until

N = 200


def run(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(["coprep", *arguments], capture_output=True, text=True, timeout=2 * WAIT)
    assert done.returncode == code, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stdout


def findings(*arguments: str, code: int = 0) -> dict[str, Any]:
    return {finding["check"]: finding for finding in json.loads(run("doctor", "--json", *arguments, code=code))}


def test_warm_counts_bytes_and_requests(socket_path: Path, server: ObjectServer, folder: Path, photos: str) -> None:
    done = json.loads(run("warm", photos, "--form", "encoded", "--json").splitlines()[-1])
    size = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    assert (done["cached"], done["fetched_bytes"]) == (N, size)
    # One GET for each sample. The listing came before, and the start of one sample in 128.
    assert done["requests"] == N <= server.counts()["gets"] <= N + 2
    again = run("warm", photos, "--form", "encoded")
    assert "200 of 200 samples are cached" in again and "read by 0 requests" in again, again
    local = json.loads(run("warm", str(folder), "--form", "encoded", "--json").splitlines()[-1])
    assert local["requests"] is None


def test_bench_and_analyze_measure_a_bucket(socket_path: Path, photos: str) -> None:
    brief = ("--seconds", "0.2", "--batch-size", "4", "--json")
    report = json.loads(run("bench", photos, *brief))
    assert report["rows"] and "reads no URLs" in " ".join(report["notes"])
    text = run("analyze", photos, *brief)
    assert photos in text


def test_doctor_checks_a_bucket(socket_path: Path, server: ObjectServer, photos: str) -> None:
    found = findings(photos)
    assert found["s3://bucket"]["found"] == f"{server.address} answers"
    assert found["s3://bucket credentials"]["found"] == "by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    assert "photos/class0/" in found["s3://bucket listing"]["found"]
    assert "a GET takes" in found["s3://bucket reading"]["found"]
    assert all(found[check]["level"] == "ok" for check in found if check.startswith("s3://"))


def test_doctor_measures_the_latency_of_a_store(socket_path: Path, server: ObjectServer, photos: str) -> None:
    server.faults(latency_ms=250)
    reading = findings(photos)["s3://bucket reading"]
    takes = float(reading["found"].split("a GET takes ")[1].split(" ms")[0])
    assert reading["level"] == "warning" and takes >= 250, reading


def test_doctor_checks_a_web_server(socket_path: Path, server: ObjectServer, folder: Path, photos: str) -> None:
    name = sorted(folder.rglob("*.jpg"))[0].relative_to(folder).as_posix()
    url = f"{server.address}/bucket/photos/{name}"
    found = findings(url)
    assert found[f"{server.address} credentials"]["found"] == "none are needed"
    assert "not listed" in found[f"{server.address} listing"]["found"]
    assert "a GET takes" in found[f"{server.address} reading"]["found"]
    assert findings(f"{server.address}/bucket/none.jpg", code=1)[f"{server.address} listing"]["level"] == "failure"


@pytest.mark.parametrize(
    ("refuse", "part"),
    [("403 InvalidAccessKeyId", "InvalidAccessKeyId"), ("404 NoSuchBucket", "NoSuchBucket")],
)
def test_doctor_tells_a_store_that_refuses_from_one_that_is_away(
    socket_path: Path, server: ObjectServer, photos: str, refuse: str, part: str
) -> None:
    server.faults(refuse=refuse)
    found = findings(photos, code=1)
    assert found["s3://bucket"]["level"] == "ok"
    assert found["s3://bucket listing"]["level"] == "failure" and part in found["s3://bucket listing"]["found"]


def test_doctor_names_a_store_that_is_away(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody listens on this port.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    away = findings("s3://bucket/photos", code=1)["s3://bucket"]
    assert away["level"] == "failure" and "http://127.0.0.1:9 does not answer" in away["found"]


def test_doctor_refuses_a_path(socket_path: Path, folder: Path) -> None:
    done = subprocess.run(["coprep", "doctor", str(folder)], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 1 and "is a path: give a URL" in done.stderr


def test_metrics_and_top_tell_of_an_outage(
    socket_path: Path, tmp_path: Path, server: ObjectServer, photos: str
) -> None:
    coordinator = Coordinator(socket_path, tmp_path / "log", "--metrics", "127.0.0.1:0")

    def of(name: str) -> float:
        (status, _, text) = ask(coordinator.port)
        assert status == 200
        return series(text)[f"coprep_storage_{name}", frozenset({("store", "s3://bucket")})]

    pipeline = coprep.ImageFolder(photos).decode().random_resized_crop(32)
    train = coprep.DataLoader(pipeline, batch_size=16, framework="numpy", with_index=True, cache="off")
    try:
        with train, ThreadPoolExecutor(1) as pool:
            next(iter(train))
            assert of("received_bytes_total") > 0 and of("failed_requests_total") == 0
            assert of("outage_seconds") == 0 and of("waiting_reads") == 0
            before = of("requests_total")
            with server.refusing("503 SlowDown"):
                # These hold more samples than are read ahead.
                rest = pool.submit(lambda: [sorted(ids(train)) for _ in range(4)])
                lasting_outage()
                until(lambda: of("outage_seconds") > 0, "the outage is in the metrics")
                until(lambda: of("waiting_reads") > 0, "reads wait")
                assert of("failed_requests_total") > 0 and of("requests_total") > before
                shown = " ".join(run("top", "--once").split())
                assert "s3://bucket has not answered for" in shown, shown
            assert rest.result(WAIT) == 4 * [list(range(N))] and of("outage_seconds") == 0
            (store,) = coprep.status()["stores"]
            counts = server.counts()
            assert store["store"] == "s3://bucket" and store["failed_requests"] > 0
            assert store["requests"] >= counts["gets"]
    finally:
        coordinator.end()
