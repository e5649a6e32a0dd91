"""Tests samples on a local disk below the caches in memory: what is read from storage, and what survives a crash."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import batches, ids
from coordinators import coordinator_pid, knows
from jobs import Start
from object_server import ObjectServer
from photos import make_folder
from served import Coordinator, ask, series
from shards import write_shards
from waiting import WAIT, until

N = 200


def loader(url: str | Path, **options: Any) -> coprep.DataLoader:
    pipeline = coprep.ImageFolder(url).decode().random_resized_crop(32).random_horizontal_flip()
    options = {"batch_size": 16, "framework": "numpy", "with_index": True, **options}
    return coprep.DataLoader(pipeline, **options)


def epochs(count: int, url: str | Path, **options: Any) -> dict[str, Any]:
    """Runs epochs, each of which must have each sample once. Returns the totals of the stream."""
    with loader(url, **options) as train:
        for _ in range(count):
            assert sorted(ids(train)) == list(range(N))
        (own,) = [s for s in coprep.status()["streams"] if s["dataset"] == str(url)]
        return dict(own["totals"])


def in_file(folder: Path) -> int:
    """Returns the bytes that the photos take in a file of the disk, each on a multiple of 64."""
    return sum(math.ceil(path.stat().st_size / 64) * 64 for path in folder.rglob("*.jpg"))


def file_bytes(capacity: int, samples: int = N) -> int:
    """Returns the bytes of a file with room for ``capacity`` bytes of samples."""
    head = 4096 + min(samples + samples // 16 + 64, capacity // 64) * 56
    return math.ceil((math.ceil(head / 4096) * 4096 + capacity) / 4096) * 4096


def on_disk() -> dict[str, Any]:
    """Returns the status of the only dataset on the disk."""
    (cache,) = coprep.status()["disk"]["caches"]
    return dict(cache)


def wait_for_entries(count: int = N) -> None:
    until(lambda: on_disk()["entries"] == count, f"{count} samples are on the disk")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a coordinator's disk, which has room for everything. Memory has none, so that the disk is alone."""
    folder = tmp_path / "nvme"
    monkeypatch.setenv("COPREP_DISK_CACHE", str(folder))
    monkeypatch.setenv("COPREP_DISK_BYTES", str(16 << 20))
    monkeypatch.setenv("COPREP_CACHE", "0")
    return folder


def test_half_of_the_samples_on_the_disk_halve_the_reads(
    socket_path: Path, disk: Path, server: ObjectServer, folder: Path, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = in_file(folder) // 2
    monkeypatch.setenv("COPREP_DISK_BYTES", str(file_bytes(half)))
    totals = epochs(4, photos)
    first, second, third = totals["fetched_by_visit"][:3]
    assert second / first == pytest.approx(0.5, abs=0.015) and third == second
    counts = server.counts()
    assert counts["heads"] == 0 and counts["gets"] >= totals["fetched"]
    found = on_disk()
    assert found["capacity"] == pytest.approx(half, abs=4096) and 0.95 * half <= found["used"] <= found["capacity"]
    assert found["entries"] == pytest.approx(N / 2, abs=N / 20) and found["dropped"] == 0
    (file,) = disk.iterdir()
    assert file.stat().st_size <= file_bytes(half) and file.stat().st_mode & 0o777 == 0o600
    assert disk.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("cache", ["encoded", "auto"])
def test_memory_and_disk_together_hold_everything(
    socket_path: Path, disk: Path, folder: Path, photos: str, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    # Each has room for half of the samples, and for one more than fit exactly.
    half = in_file(folder) // 2 + (16 << 10)
    monkeypatch.setenv("COPREP_DISK_BYTES", str(file_bytes(half if cache == "encoded" else 2 * half)))
    totals = epochs(4, photos, cache=cache, cache_bytes=half)
    first, second, third = totals["fetched_by_visit"][:3]
    assert second <= 0.01 * first and third <= 0.01 * first
    if cache == "encoded":
        (in_memory,) = coprep.status()["caches"]
        assert in_memory["entries"] + on_disk()["entries"] == N


@pytest.mark.skipif(not knows("FAILPOINTS"), reason="the command was built without failpoints: use make test")
def test_no_sample_is_fetched_again_while_the_disk_is_busy(
    socket_path: Path, disk: Path, server: ObjectServer, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The disk writes at most 20 samples per second, so that most of them wait when the first epoch is over.
    monkeypatch.setenv("FAILPOINTS", "disk-write=sleep(50)")
    with loader(photos) as train:
        assert sorted(ids(train)) == list(range(N))
        assert on_disk()["entries"] < N
        gets = server.counts()["gets"]
        for _ in range(2):
            assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] == gets


def test_samples_from_the_disk_are_those_of_the_files(socket_path: Path, disk: Path, folder: Path, photos: str) -> None:
    local, remote = (batches(loader(root, seed=7), epochs=3) for root in (folder, photos))
    assert local == remote
    assert on_disk()["hits"] > N


def test_samples_of_shards_lie_on_the_disk_too(
    socket_path: Path, disk: Path, server: ObjectServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_shards(tmp_path / "shards", sorted(folder.rglob("*.jpg")), 3)
    server.load("bucket", "shards", tmp_path / "shards")
    pipeline = coprep.WebDataset("s3://bucket/shards/train-{000..002}.tar").decode().random_resized_crop(32)
    with coprep.DataLoader(pipeline, batch_size=16, framework="numpy", with_index=True) as train:
        assert sorted(ids(train)) == list(range(N))
        wait_for_entries()
        gets = server.counts()["gets"]
        assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] == gets


def test_a_killed_coordinator_leaves_a_warm_disk(
    socket_path: Path, disk: Path, server: ObjectServer, photos: str, start: Start
) -> None:
    with loader(photos) as train:
        seen = iter(train)
        before = [int(i) for _ in range(3) for i in next(seen)[-1]]
        until(lambda: on_disk()["entries"] > 0, "samples are on the disk")
        held = on_disk()["entries"]
        os.kill(coordinator_pid(), signal.SIGKILL)
        # The job goes on with another coordinator.
        rest = [int(i) for batch in seen for i in batch[-1]]
        assert sorted(before + rest) == list(range(N))
        assert sorted(ids(train)) == list(range(N))
        wait_for_entries()
        os.kill(coordinator_pid(), signal.SIGKILL)
    gets = server.counts()["gets"]
    # Samples that were not on the disk yet when the first coordinator was killed are fetched again. Each coordinator
    # reads the starts of a few samples when it opens the dataset.
    assert gets <= 2 * N - held + 8
    totals = epochs(2, photos)
    assert totals["fetched"] == 0 and server.counts()["gets"] == gets
    assert on_disk()["misses"] == 0


@pytest.mark.parametrize("cache", ["encoded", "decoded"])
def test_memory_holds_what_the_disk_of_a_killed_coordinator_does_not(
    socket_path: Path, disk: Path, folder: Path, photos: str, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    half = in_file(folder) // 2 + (16 << 10)
    monkeypatch.setenv("COPREP_DISK_BYTES", str(file_bytes(half)))
    epochs(2, photos)
    held = on_disk()["entries"]
    os.kill(coordinator_pid(), signal.SIGKILL)
    # Decoded samples are about 14 times as large here.
    totals = epochs(4, photos, cache=cache, cache_bytes=half * (1 if cache == "encoded" else 30))
    first, second, third = totals["fetched_by_visit"][:3]
    assert first == pytest.approx(in_file(folder) - half, rel=0.1) and second == third == 0
    (in_memory,) = coprep.status()["caches"]
    assert in_memory["entries"] >= N - held


def test_metrics_show_the_disk(socket_path: Path, disk: Path, photos: str, tmp_path: Path) -> None:
    coordinator = Coordinator(socket_path, tmp_path / "log", "--metrics", "127.0.0.1:0")
    try:
        epochs(2, photos)
        wait_for_entries()
        until(lambda: not coprep.status()["streams"], "the stream is closed")
        shown = coprep.status()["disk"]
        exported = series(ask(coordinator.port)[2])
        names = {"capacity_bytes": "capacity", "used_bytes": "used", "entries": "entries"}
        names |= {"hits_total": "hits", "misses_total": "misses", "dropped_samples_total": "dropped"}
        (found,) = shown["caches"]
        for name, key in names.items():
            assert exported[f"coprep_disk_{name}", frozenset({("dataset", photos)})] == found[key]
        assert exported["coprep_disk_budget_bytes", frozenset()] == shown["budget"] == 16 << 20
    finally:
        coordinator.end()


def test_damaged_samples_are_fetched_anew_and_told_once(
    socket_path: Path, disk: Path, server: ObjectServer, folder: Path, photos: str, tmp_path: Path
) -> None:
    coordinator = Coordinator(socket_path, tmp_path / "log")
    try:
        expected = batches(loader(folder, seed=7), epochs=3)
        with loader(photos, seed=7) as train:
            list(train)
        wait_for_entries()
        gets = server.counts()["gets"]
        (file,) = disk.iterdir()
        # One bit in each of many samples: they lie behind the index, without gaps.
        with file.open("r+b") as opened:
            for at in range(file.stat().st_size - in_file(folder), file.stat().st_size - 8192, 40_000):
                opened.seek(at)
                (byte,) = opened.read(1)
                opened.seek(at)
                opened.write(bytes([byte ^ 16]))
        assert batches(loader(photos, seed=7), epochs=3) == expected
        until(lambda: on_disk()["entries"] == N, "damaged samples are on the disk again")
        dropped = on_disk()["dropped"]
        assert dropped >= 10 and server.counts()["gets"] == gets + dropped
        assert (
            len(
                coordinator.says(
                    "a sample in the disk cache was damaged: it is fetched anew, and so are others; "
                    "further ones are only counted"
                )
            )
            == 1
        )
    finally:
        coordinator.end()


def test_a_local_folder_is_not_copied(socket_path: Path, disk: Path, folder: Path) -> None:
    epochs(2, folder)
    assert coprep.status()["disk"]["caches"] == [] and list(disk.iterdir()) == []


@pytest.mark.parametrize("latency", ["0ms", "20ms"])
def test_a_folder_on_another_disk_is_copied_if_it_is_slow(
    socket_path: Path, disk: Path, tmp_path: Path, latency: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        photos = make_folder(Path(memory), N)
        coordinator = Coordinator(socket_path, tmp_path / "log", "--storage-latency", latency)
        try:
            if latency == "0ms":
                epochs(1, photos)
                assert coprep.status()["disk"]["caches"] == []
            else:
                assert epochs(3, photos)["fetched_by_visit"][1] == 0
        finally:
            coordinator.end()


def test_a_warm_up_fills_the_disk(socket_path: Path, disk: Path, server: ObjectServer, photos: str) -> None:
    done = subprocess.run(["coprep", "warm", photos], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    assert f"0 in memory, {N} on disk of {N} samples" in done.stdout and "with any operators" in done.stdout
    gets = server.counts()["gets"]
    assert gets == N
    again = subprocess.run(["coprep", "warm", photos, "--json"], capture_output=True, text=True, timeout=WAIT)
    last = json.loads(again.stdout.splitlines()[-1])
    assert last["on_disk"] == N and last["fetched_bytes"] == 0 and not last["full"]
    epochs(1, photos)
    assert server.counts()["gets"] == gets
    shown = subprocess.run(["coprep", "status"], capture_output=True, text=True, timeout=WAIT).stdout
    assert f"{photos}: {N} samples" in " ".join(shown.split())


def test_a_warm_up_fills_memory_and_disk(
    socket_path: Path, disk: Path, server: ObjectServer, folder: Path, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = in_file(folder) // 2 + (16 << 10)
    monkeypatch.setenv("COPREP_CACHE", str(half))
    monkeypatch.setenv("COPREP_DISK_BYTES", str(file_bytes(half)))
    command = ["coprep", "warm", photos, "--form", "encoded", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["cached"] + last["on_disk"] == N and last["cached"] == pytest.approx(N / 2, abs=N / 10)
    gets = server.counts()["gets"]
    assert epochs(1, photos)["fetched"] == 0 and server.counts()["gets"] == gets


@pytest.fixture
def two(server: ObjectServer, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Two datasets, and a disk with room for one of them."""
    for name in "one", "two":
        server.load("bucket", name, make_folder(tmp_path / name, N))
    monkeypatch.setenv("COPREP_DISK_BYTES", str(file_bytes(in_file(tmp_path / "one")) + 4096))
    yield "s3://bucket/one", "s3://bucket/two"


def test_a_file_in_use_is_kept_and_one_that_nobody_uses_makes_room(
    socket_path: Path, disk: Path, server: ObjectServer, two: tuple[str, str]
) -> None:
    one, other = two
    with loader(one) as train:
        list(train)
        wait_for_entries()
        (file,) = disk.iterdir()
        # The other dataset goes on without the disk, and its jobs are told why.
        with pytest.warns(coprep.CacheWarning, match="samples are not kept on the local disk: no room for s3"):
            epochs(1, other)
        assert [path.name for path in disk.iterdir()] == [file.name]
    until(lambda: not coprep.status()["streams"], "the streams are closed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epochs(1, other)
    wait_for_entries()
    assert on_disk()["dataset"] == other
    assert [path.name for path in disk.iterdir()] != [file.name]


def test_dropped_datasets_leave_the_disk(socket_path: Path, disk: Path, server: ObjectServer, photos: str) -> None:
    epochs(1, photos)
    wait_for_entries()
    until(lambda: not coprep.status()["streams"], "the stream is closed")
    done = subprocess.run(["coprep", "drop", photos], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0 and "freed" in done.stdout and "0 B" not in done.stdout, done.stderr
    assert list(disk.iterdir()) == []
    gets = server.counts()["gets"]
    epochs(1, photos)
    assert server.counts()["gets"] >= gets + N


def test_a_dataset_on_the_disk_that_is_in_use_is_not_dropped(socket_path: Path, disk: Path, photos: str) -> None:
    with loader(photos, cache="off") as train:
        next(iter(train))
        done = subprocess.run(["coprep", "drop", photos], capture_output=True, text=True, timeout=WAIT)
        assert done.returncode != 0 and "is in use" in done.stderr, done.stdout
        # Datasets that are on the disk alone are named too.
        done = subprocess.run(["coprep", "drop", str(disk)], capture_output=True, text=True, timeout=WAIT)
        assert done.returncode != 0 and f"there are: {photos}" in done.stderr, done.stderr


def refused(photos: str) -> str:
    """Returns the error that a job gets whose coordinator cannot start."""
    with pytest.raises(coprep.CoprepError) as caught, loader(photos) as train:
        list(train)
    return str(caught.value)


def test_a_folder_that_others_may_reach_is_one_error(
    socket_path: Path, disk: Path, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.mkdir(mode=0o755)
    disk.chmod(0o755)
    text = refused(photos)
    assert str(disk) in text and "other users may reach it (mode 755)" in text and "chmod go=" in text
    disk.chmod(0o700)
    link = disk.parent / "link"
    link.symlink_to(disk)
    monkeypatch.setenv("COPREP_DISK_CACHE", str(link))
    assert "symbolic link" in refused(photos)
    if os.geteuid() == 0:
        monkeypatch.setenv("COPREP_DISK_CACHE", str(disk))
        os.chown(disk, 12345, -1)
        assert "it belongs to user 12345" in refused(photos)


def test_a_disk_that_is_too_small_is_one_error(
    socket_path: Path, disk: Path, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_DISK_BYTES", "900T")
    text = refused(photos)
    assert str(disk) in text and "cannot reserve 900.0 TiB" in text and "smaller --disk-bytes" in text
    assert list(disk.iterdir()) == []


@pytest.fixture
def small(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the disk, which is a file system of 8 MiB."""
    disk.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "coprep-test", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    monkeypatch.setenv("COPREP_DISK_BYTES", str(4 << 20))
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> None:
    """Writes a file of another program, until the disk is full."""
    with contextlib.suppress(OSError), open(disk / "fills", "ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with pytest.raises(OSError, match="No space left"), open(disk / "more", "wb", buffering=0) as file:
        file.write(bytes(4096))


def test_a_disk_that_others_have_filled_costs_no_sample(
    socket_path: Path, small: Path, photos: str, tmp_path: Path
) -> None:
    coordinator = Coordinator(socket_path, tmp_path / "log")
    try:
        fill(small)
        with pytest.warns(coprep.CacheWarning, match="not kept on the local disk: .*cannot reserve .* are free in its"):
            epochs(2, photos)
        assert coprep.status()["disk"]["caches"] == []
        # As soon as there is room again, the next stream has a file.
        (small / "fills").unlink()
        until(lambda: not coprep.status()["streams"], "the stream is closed")
        epochs(1, photos)
        wait_for_entries()
    finally:
        coordinator.end()


def test_a_disk_that_refuses_a_write_costs_no_sample(
    socket_path: Path, small: Path, server: ObjectServer, photos: str, tmp_path: Path
) -> None:
    coordinator = Coordinator(socket_path, tmp_path / "log")
    try:
        with loader(photos) as train:
            assert len(train)
            (file,) = small.iterdir()
            # The room that was reserved goes to others, as with thin volumes and snapshots.
            length = file.stat().st_size - 4096
            punch = ["fallocate", "--punch-hole", "--offset", "4096", "--length", str(length), str(file)]
            subprocess.run(punch, check=True)
            fill(small)
            for _ in range(2):
                assert sorted(ids(train)) == list(range(N))
            told = coordinator.says(
                "the disk cache cannot be written: samples that are not on the disk are fetched each time"
            )
            assert len(told) == 1 and "No space left" in json.dumps(told)
            assert on_disk()["entries"] < N and server.counts()["gets"] > N
    finally:
        coordinator.end()


def test_a_limit_on_files_is_one_error_and_no_signal(socket_path: Path, disk: Path) -> None:
    # The kernel would end the coordinator at its first write beyond the limit.
    command = ["bash", "-c", "ulimit -f 1000; exec coprep serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 1 and "raise it: ulimit -f unlimited" in done.stderr, done.stderr


def test_a_second_coordinator_of_a_folder_is_one_error(
    socket_path: Path, disk: Path, photos: str, tmp_path: Path
) -> None:
    epochs(1, photos)
    other = ["coprep", "serve", "--socket", str(tmp_path / "other.sock")]
    second = subprocess.run(other, capture_output=True, text=True, timeout=WAIT)
    assert second.returncode == 1 and "another coordinator uses this folder" in second.stderr, second.stderr
    # A coordinator that was stopped leaves the folder to the next one.
    coprep.stop()
    assert epochs(1, photos)["fetched"] == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--disk-cache", "/nvme"], "--disk-bytes"),
        (["--disk-bytes", "1G"], "--disk-cache"),
        (["--disk-cache", "nvme", "--disk-bytes", "1G"], "give an absolute one"),
    ],
)
def test_options_that_lack_something_are_wrong_usage(socket_path: Path, options: list[str], part: str) -> None:
    done = subprocess.run(["coprep", "serve", *options], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 2 and part in done.stderr, done.stderr
