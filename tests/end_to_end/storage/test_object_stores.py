"""Tests reading datasets from an object store: the same samples as from files, and few requests."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from batches import batches, ids
from object_server import ObjectServer
from stored_images import loader
from waiting import WAIT

N = 200


def second_requests() -> int:
    """Returns how many requests were sent a second time, because this machine was slow to answer the first one."""
    return sum(store["second_requests"] for store in coprep.status()["stores"])


@pytest.mark.parametrize("cache", ["off", "encoded", "decoded", "auto"])
def test_samples_are_those_of_the_same_files(socket_path: Path, folder: Path, photos: str, cache: str) -> None:
    local, remote = (
        batches(loader(coprep.ImageFolder(root), seed=7, cache=cache), epochs=2) for root in (folder, photos)
    )
    assert local == remote
    assert coprep.ImageFolder(photos).classes == coprep.ImageFolder(folder).classes


@pytest.mark.parametrize("cache", ["off", "encoded"])
def test_listed_urls_and_paths_are_one_dataset(
    socket_path: Path, server: ObjectServer, folder: Path, photos: str, cache: str
) -> None:
    files = sorted(folder.rglob("*.jpg"))[:60]
    keys = [path.relative_to(folder).as_posix() for path in files]
    web = f"{server.address}/{photos.removeprefix('s3://')}"
    # A third each from a store that is listed, from one that is not, and from local files.
    mixed = [[f"{photos}/{key}", f"{web}/{key}", str(files[i])][i % 3] for i, key in enumerate(keys)]
    local, remote = (
        batches(loader(coprep.Files(paths, labels=range(60)), seed=7, cache=cache), epochs=2)
        for paths in (files, mixed)
    )
    assert local == remote


def test_opening_makes_no_request_per_sample(socket_path: Path, server: ObjectServer) -> None:
    for i in range(2500):
        server.put("bucket", f"many/class{i % 2}/{i:05}.jpg", b"not read")
    pipeline = coprep.ImageFolder("s3://bucket/many").decode().random_resized_crop(32)
    assert len(pipeline) == 2500
    assert server.counts() == {"lists": 3, "gets": 0, "matched": 0, "heads": 0, "bytes": 0}


def test_eight_jobs_read_each_sample_once(socket_path: Path, server: ObjectServer, photos: str) -> None:
    def epochs(_: int) -> list[list[int]]:
        with loader(coprep.ImageFolder(photos)) as train:
            return [sorted(ids(train)) for _ in range(2)]

    with ThreadPoolExecutor(8) as pool:
        for seen in pool.map(epochs, range(8)):
            assert seen == [list(range(N))] * 2
    counts = server.counts()
    assert counts["gets"] - second_requests() <= 1.02 * N and counts["heads"] == 0, counts
    # Each request names the content that was listed.
    assert counts["matched"] == counts["gets"]


def test_reads_that_wait_for_a_store_take_no_threads(socket_path: Path, server: ObjectServer, photos: str) -> None:
    with loader(coprep.ImageFolder(photos), cache="off") as train:
        batches = iter(train)
        seen = [int(i) for i in next(batches)[-1]]
        server.faults(latency_ms=400)
        # Later epochs are drawn ahead too, so that many reads are under way.
        for _ in range(3):
            seen += [int(i) for batch in batches for i in batch[-1]]
            batches = iter(train)
        pool = coprep.status()["pool"]
        names = [thread.read_text() for thread in Path(f"/proc/{coprep.status()['pid']}/task").glob("*/comm")]
    workers = sum(name.startswith("worker-") for name in names)
    assert sorted(seen) == sorted(list(range(N)) * 3)
    # A thread for each read would be 96 for each processor.
    assert pool["cpus"] <= workers < pool["cpus"] + 64, pool


def test_warmed_samples_are_not_read_again(socket_path: Path, server: ObjectServer, photos: str) -> None:
    command = ["coprep", "warm", photos, "--form", "encoded"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    before = server.counts()["gets"]
    assert before - second_requests() <= 1.02 * N
    with loader(coprep.ImageFolder(photos)) as train:
        assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] == before


def test_a_dataset_that_was_uploaded_anew_is_another_one(
    socket_path: Path, server: ObjectServer, folder: Path, photos: str
) -> None:
    def labels_of_first() -> Any:
        with loader(coprep.ImageFolder(photos), cache="encoded", shuffle=False, seed=1) as train:
            return next(iter(train))[0]

    before = labels_of_first()
    files = sorted((folder / "class0").iterdir())
    server.put("bucket", f"photos/class0/{files[0].name}", files[1].read_bytes())
    after = labels_of_first()
    assert not np.array_equal(before[0], after[0])
    assert np.array_equal(before[1:], after[1:])
