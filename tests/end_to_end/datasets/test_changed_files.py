"""Tests that a job that starts after files have changed is given their new content, whatever is cached."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from PIL import Image
from served import Coordinator
from waiting import WAIT, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SAMPLES, SIDE = 12, 16
NEW = 200
"""The value of all pixels of a file that was written anew. Those of sample ``i`` are ``i`` before."""


def write(path: Path, value: int, side: int = SIDE) -> None:
    """Writes an image. Without compression, images of equal shape have files of equal length."""
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(path, "PNG", compress_level=0)


def beside(path: Path, side: int = SIDE) -> Path:
    new = path.with_suffix(".new")
    write(new, NEW, side)
    return new


def restore_times(path: Path, before: os.stat_result, seconds: int = 0) -> None:
    second = 1_000_000_000
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + seconds * second))


def in_place(path: Path) -> None:
    write(path, NEW, 2 * SIDE)


def in_place_with_the_same_size(path: Path) -> None:
    write(path, NEW)


def in_place_with_the_same_size_and_time(path: Path) -> None:
    before = path.stat()
    write(path, NEW)
    restore_times(path, before)


def renamed_over(path: Path) -> None:
    beside(path, 2 * SIDE).replace(path)


def renamed_over_with_the_same_size_and_time(path: Path) -> None:
    new, before = beside(path), path.stat()
    restore_times(new, before)
    new.replace(path)


def an_older_file_in_its_place(path: Path) -> None:
    new, before = beside(path), path.stat()
    restore_times(new, before, -3600)
    new.replace(path)


def a_link_turned(path: Path) -> None:
    new = beside(path)
    path.unlink()
    path.symlink_to(new)


def removed_and_made_again(path: Path) -> None:
    path.unlink()
    write(path, NEW)


def added(path: Path) -> None:
    write(path.with_name("05b.png"), NEW)


def removed(path: Path) -> None:
    path.unlink()


WAYS: list[Callable[[Path], None]] = [
    in_place,
    in_place_with_the_same_size,
    in_place_with_the_same_size_and_time,
    renamed_over,
    renamed_over_with_the_same_size_and_time,
    an_older_file_in_its_place,
    a_link_turned,
    removed_and_made_again,
]
OF_THE_LIST: list[Callable[[Path], None]] = [added, removed]
"""These change the list of samples, which a job has in common with those that it joins."""

CACHES: dict[str, dict[str, Any]] = {
    "off": {"cache": "off"},
    "encoded": {"cache": "encoded"},
    "decoded": {"cache": "decoded"},
    "auto": {"cache": "auto"},
    "lru": {"cache": "decoded", "cache_policy": "lru"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "images")


def fill(folder: Path) -> Path:
    (folder / "all").mkdir(parents=True)
    for sample in range(SAMPLES):
        write(folder / "all" / f"{sample:02}.png", sample)
    return folder


def images(folder: Path) -> list[Path]:
    return sorted((folder / "all").glob("*.png"))


def loader(folder: Path, **options: Any) -> coprep.DataLoader:
    pipeline = coprep.ImageFolder(str(folder)).decode().resize(SIDE).center_crop(SIDE)
    return coprep.DataLoader(pipeline, 5, framework="numpy", with_index=True, shuffle=True, **options)


def values(train: coprep.DataLoader) -> list[int]:
    """Returns the value of the pixels of each sample, by its id."""
    found = {int(i): image for batch, _, ids in train for image, i in zip(batch, ids, strict=True)}
    assert all((image == image.flat[0]).all() for image in found.values())
    return [int(found[i].flat[0]) for i in range(len(found))]


def in_files(folder: Path) -> list[int]:
    return [int(np.asarray(Image.open(path)).flat[0]) for path in images(folder)]


def run(folder: Path, **options: Any) -> list[int]:
    """Runs a job. Returns what it is given in its last epoch, which what is cached serves."""
    with loader(folder, **options) as train:
        return [values(train) for _ in range(3)][-1]


def check_both_epochs(train: coprep.DataLoader, folder: Path) -> None:
    for _ in range(2):
        assert values(train) == in_files(folder)


@pytest.mark.parametrize("way", WAYS + OF_THE_LIST)
@pytest.mark.parametrize("options", CACHES.values(), ids=CACHES)
def test_the_next_job_is_given_the_new_file(
    socket_path: Path, folder: Path, options: dict[str, Any], way: Callable[[Path], None]
) -> None:
    assert run(folder, **options) == [*range(SAMPLES)]
    way(images(folder)[5])
    expected = in_files(folder)
    assert expected != [*range(SAMPLES)]
    with loader(folder, **options) as train:
        check_both_epochs(train, folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", CACHES.values(), ids=CACHES)
def test_a_job_that_joins_another_is_given_the_new_file_and_so_is_the_other(
    socket_path: Path, folder: Path, options: dict[str, Any], way: Callable[[Path], None]
) -> None:
    with loader(folder, **options) as first:
        for _ in range(3):
            assert values(first) == [*range(SAMPLES)]
        way(images(folder)[5])
        # Minibatches that lie ready for the first job were made before.
        with loader(folder, **options) as second:
            for _ in range(2):
                values(second)
            assert len(coprep.status()["streams"]) == 1
            assert values(second) == in_files(folder)
        for _ in range(2):
            values(first)
        assert values(first) == in_files(folder)


class OpenedByPython:
    """A dataset of a program's own, of the images of a folder."""

    def __init__(self, folder: Path) -> None:
        self.paths = images(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return np.array(Image.open(self.paths[index]).resize((SIDE, SIDE)))


def as_it_is(value: Any) -> Any:
    return value


def own_loader(folder: Path, cache: str) -> coprep.DataLoader:
    options: dict[str, Any] = {"framework": "numpy", "with_index": True, "cache": cache, "num_workers": 2}
    return coprep.DataLoader(OpenedByPython(folder), 5, transform=as_it_is, **options)


def own_values(train: coprep.DataLoader) -> list[int]:
    found = {int(i): int(image.flat[0]) for batch, ids in train for image, i in zip(batch, ids, strict=True)}
    return [found[i] for i in range(len(found))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cache", ["decoded", "auto"])
def test_a_value_of_a_python_dataset_is_made_anew(
    socket_path: Path, folder: Path, cache: str, way: Callable[[Path], None]
) -> None:
    with own_loader(folder, cache) as first:
        for _ in range(3):
            assert own_values(first) == [*range(SAMPLES)]
        way(images(folder)[5])
        # Minibatches that lie ready for the first job were made before.
        with own_loader(folder, cache) as second:
            for _ in range(2):
                own_values(second)
            assert len(coprep.status()["streams"]) == 1
            assert own_values(second) == in_files(folder)
    assert coprep.status()["streams"] == []
    with own_loader(folder, cache) as third:
        assert own_values(third) == in_files(folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_named_cache_that_outlives_its_coordinator_has_the_new_file(
    socket_path: Path, folder: Path, way: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_CACHE_NAME", f"changed-{os.getpid()}")
    assert run(folder, cache="decoded") == [*range(SAMPLES)]
    coprep.stop()
    way(images(folder)[5])
    try:
        with loader(folder, cache="decoded") as train:
            check_both_epochs(train, folder)
            # All others were found in the cache.
            (stream,) = coprep.status()["streams"]
            assert stream["totals"]["fetched"] == 1
    finally:
        subprocess.run(["coprep", "drop"], check=True, timeout=WAIT)


@pytest.fixture
def slow_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield fill(Path(memory) / "images")


@pytest.mark.parametrize("way", WAYS)
def test_the_local_disk_has_the_new_file(
    socket_path: Path, slow_folder: Path, tmp_path: Path, way: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_DISK_CACHE", str(tmp_path / "nvme"))
    monkeypatch.setenv("COPREP_DISK_BYTES", str(16 << 20))
    coordinator = Coordinator(socket_path, tmp_path / "log", "--storage-latency", "20ms")
    try:
        assert run(slow_folder, cache="off") == [*range(SAMPLES)]
        # The disk is written in the background.
        until(lambda: coprep.status()["disk"]["caches"][0]["entries"] == SAMPLES, "all files are on the disk")
        way(images(slow_folder)[5])
        with loader(slow_folder, cache="off") as train:
            check_both_epochs(train, slow_folder)
    finally:
        coordinator.end()


@pytest.mark.parametrize("waived_by", ["the job", "the coordinator"])
def test_who_waives_the_comparison_is_given_what_is_cached(
    socket_path: Path, folder: Path, waived_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if waived_by == "the coordinator":
        monkeypatch.setenv("COPREP_CHECK_FILES", "off")
    assert run(folder, cache="decoded") == [*range(SAMPLES)]
    in_place(images(folder)[5])
    assert run(folder, cache="decoded", check_files=waived_by != "the job") == [*range(SAMPLES)]


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_warm_up_has_the_new_file_unless_the_operator_waives_it(
    socket_path: Path, folder: Path, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_CHECK_FILES", switch)
    assert run(folder, cache="encoded") == [*range(SAMPLES)]
    in_place(images(folder)[5])
    subprocess.run(["coprep", "warm", str(folder), "--form", "encoded"], check=True, capture_output=True, timeout=WAIT)
    expected = in_files(folder) if switch == "on" else [*range(SAMPLES)]
    assert run(folder, cache="encoded", check_files=False) == expected


def test_a_list_of_files_of_which_one_is_gone_says_so(socket_path: Path, folder: Path) -> None:
    pipeline = coprep.Files([str(path) for path in images(folder)]).decode().resize(SIDE).center_crop(SIDE)
    options: dict[str, Any] = {"framework": "numpy", "with_index": True, "cache": "decoded"}
    with coprep.DataLoader(pipeline, 5, **options) as train:
        assert values(train) == [*range(SAMPLES)]
    images(folder)[5].unlink()
    with (
        coprep.DataLoader(pipeline, 5, **options) as train,
        pytest.raises(coprep.SampleError, match=r"05\.png.*No such file"),
    ):
        values(train)


def test_all_files_written_anew_are_cached_anew(socket_path: Path, folder: Path) -> None:
    """The room of the old samples is used again: each dataset takes more than half of the memory that it may have."""
    options: dict[str, Any] = {"cache": "decoded", "cache_bytes": SAMPLES * SIDE * SIDE * 3 * 3 // 2}
    assert run(folder, **options) == [*range(SAMPLES)]
    for _ in range(3):
        shutil.rmtree(folder)
        fill(folder)
        for path in images(folder):
            in_place_with_the_same_size(path)
        assert run(folder, **options) == [NEW] * SAMPLES
        (cache,) = coprep.status()["caches"]
        assert cache["entries"] == SAMPLES
