"""Tests that a dataset that no job uses gives the room of its cache to one that is used, and no other does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from batches import ids
from pages import pattern, status_lines
from PIL import Image
from waiting import WAIT

pytestmark = pytest.mark.usefixtures("nothing_is_left", "budget")

SAMPLES, SIDE = 100, 128
BYTES = SAMPLES * SIDE * SIDE * 3
"""A dataset takes more than half of the budget."""


@pytest.fixture
def budget(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPREP_CACHE", str(BYTES * 3 // 2))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three datasets of equal size."""
    folders = [tmp_path_factory.mktemp(name) / name for name in ("first", "second", "third")]
    for number, folder in enumerate(folders):
        (folder / "all").mkdir(parents=True)
        for sample in range(SAMPLES):
            pixels = np.full((SIDE, SIDE, 3), 80 * number + sample % 80, np.uint8)
            Image.fromarray(pixels).save(folder / "all" / f"{sample:03}.png")
    return folders


def loader(folder: Path, **options: Any) -> coprep.DataLoader:
    pipeline = coprep.ImageFolder(str(folder)).decode().random_resized_crop(64)
    return coprep.DataLoader(pipeline, 10, framework="numpy", with_index=True, cache="decoded", **options)


def run(folder: Path) -> dict[str, Any]:
    """Runs a job for two epochs. Returns the status of its cache afterwards."""
    with loader(folder) as train:
        for _ in range(2):
            assert sorted(ids(train)) == list(range(SAMPLES))
    return cache(folder)


def cache(folder: Path) -> dict[str, Any]:
    (found,) = [each for each in coprep.status()["caches"] if each["dataset"] == str(folder)]
    return dict(found)


def test_datasets_in_turn_are_each_cached_as_if_alone(folders: list[Path]) -> None:
    for folder in [*folders, folders[0]]:
        assert run(folder)["entries"] == SAMPLES
    status = coprep.status()
    gone = [(Path(each["dataset"]).name, Path(each["to"]).name) for each in status["given_way"]]
    assert gone == [("third", "first"), ("second", "third"), ("first", "second")]
    told = subprocess.run(["coprep", "status"], capture_output=True, text=True, timeout=WAIT).stdout
    (line,) = [line for line in status_lines() if line.startswith("the cache of")]
    names = {"/data/old": str(folders[2]), "/data/train": str(folders[0]), "GiB": "MiB", "min": "s"}
    for name, own in names.items():
        line = line.replace(name, own)
    assert re.search(pattern(line), " ".join(told.split())), told


def test_no_sample_of_a_dataset_in_use_is_evicted(folders: list[Path]) -> None:
    first, second, third = folders
    with loader(first) as train:
        assert sorted(ids(train)) == list(range(SAMPLES))
        before = cache(first)
        assert run(second)["entries"] < SAMPLES, "it has what the first one leaves"
        assert run(third)["entries"] <= SAMPLES // 2 and cache(first)["entries"] == SAMPLES
        assert sorted(ids(train)) == list(range(SAMPLES))
        after = cache(first)
        assert after["misses"] == before["misses"] and after["hits"] == before["hits"] + SAMPLES
    # The first one is not used any more, so that the next one gets all that it needs, though it had little before.
    assert run(second)["entries"] == SAMPLES
    assert run(second)["entries"] == SAMPLES, "what it has is kept"


def test_a_cache_that_was_used_last_stays_while_others_make_room(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_CACHE", str(BYTES * 9 // 4))
    first, second, third = folders
    run(first)
    run(second)
    run(first)
    run(third)
    assert {each["dataset"] for each in coprep.status()["caches"]} == {str(first), str(third)}


def test_a_cache_that_is_kept_stays_until_it_is_dropped(folders: list[Path]) -> None:
    first, second, _ = folders
    warm = ["coprep", "warm", first, "--form", "decoded", "--keep"]
    subprocess.run(warm, check=True, capture_output=True, timeout=WAIT)
    assert cache(first)["kept"]
    assert run(second)["entries"] < SAMPLES and cache(first)["entries"] == SAMPLES
    assert coprep.status()["given_way"] == []
    subprocess.run(["coprep", "drop", first], check=True, capture_output=True, timeout=WAIT)
    assert run(second)["entries"] == SAMPLES
