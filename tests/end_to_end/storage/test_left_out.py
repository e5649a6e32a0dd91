"""Tests datasets with members that cannot be used: they are left out and told once, and the other samples are read."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import ids
from object_server import ObjectServer
from shards import write_shard
from stored_images import loader, run

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
ESCAPE = "\x1b[31m"
"""A sequence that colours a terminal red."""


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collects the texts of what is left out."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield texts
    texts += [str(x.message) for x in told if x.category is coprep.SkippedSampleWarning]


def read(source: coprep.Pipeline, **options: Any) -> tuple[list[int], list[str]]:
    """Returns the ids of two epochs and the warnings."""
    with warned() as texts, loader(source, **options) as train:
        found = [*ids(train), *ids(train)]
    return found, texts


ODD_KEYS = ["photos/class0//z.jpg", "photos//y.png", "photos/class1/./x.jpg", f"photos/class2/{ESCAPE}.jpg"]


def put_odd_keys(server: ObjectServer) -> None:
    for key in ODD_KEYS:
        server.put("bucket", key, b"x")
    # Neither samples nor left out: other programs' files.
    server.put("bucket", "photos/_logs//part-0", b"x")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_keys_that_cannot_be_read_are_left_out_and_told_once(
    socket_path: Path, server: ObjectServer, photos: str, on_error: str
) -> None:
    whole = coprep.ImageFolder(photos)
    length, classes = len(whole), whole.classes
    coprep.stop()
    put_odd_keys(server)
    odd = coprep.ImageFolder(photos)
    assert (len(odd), odd.classes) == (length, classes)
    found, texts = read(odd, on_error=on_error)
    assert sorted(found) == sorted([*range(length)] * 2)
    assert len(texts) == 1 and texts[0].startswith(f"4 samples of {photos} are left out")
    assert "The first: s3://bucket/photos//y.png" in texts[0] and not CONTROL.search(texts[0])


def test_what_is_left_out_is_in_the_log_once_and_in_the_status(
    socket_path: Path, server: ObjectServer, photos: str
) -> None:
    put_odd_keys(server)
    with loader(coprep.ImageFolder(photos)) as train, pytest.warns(coprep.SkippedSampleWarning):
        next(iter(train))
        status = run("status").stdout
    logs = "".join(path.read_text() for path in socket_path.parent.glob("*.log"))
    assert logs.count(f"4 samples of {photos} are left out") == 1
    assert "4 samples of" in " ".join(status.split()) and not CONTROL.search(status)


def test_files_are_found_beside_keys_that_cannot_be_read(socket_path: Path, server: ObjectServer, photos: str) -> None:
    put_odd_keys(server)
    urls = [f"{photos}/class0/00000.jpg", f"{photos}/class1/00001.jpg"]
    found, texts = read(coprep.Files(urls))
    assert sorted(found) == [0, 0, 1, 1] and not texts


def test_a_folder_of_keys_that_cannot_be_read_is_an_error(socket_path: Path, server: ObjectServer) -> None:
    server.put("bucket", f"odd/a//{ESCAPE}.jpg", b"x")
    with pytest.raises(FileNotFoundError, match="1 sample of s3://bucket/odd is left out") as caught:
        len(coprep.ImageFolder("s3://bucket/odd"))
    assert not CONTROL.search(str(caught.value))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_samples_of_shards_that_lack_a_part_are_left_out_and_told_once(
    socket_path: Path, server: ObjectServer, folder: Path, tmp_path: Path, on_error: str, is_stored: bool
) -> None:
    images = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:20]]
    members = [[(f"{i}.jpg", image), (f"{i}.cls", b"%d" % i)] for i, image in enumerate(images)]
    odd = [("__index__.json", b"{}")], [(f"a{ESCAPE}.jpg", b"x")], [("b.cls", b"1")], [("c.jpg", b"x"), ("c.cls", b"?")]
    parts = [part for pair in zip(members, [*odd] * 5, strict=True) for part in pair]
    (tmp_path / "shards").mkdir()
    # The second shard has no sample that can be used.
    for number in range(2):
        write_shard(tmp_path / "shards" / f"{number}.tar", [x for part in parts[number::2] for x in part])
    root = str(tmp_path / "shards")
    if is_stored:
        server.load("bucket", "shards", tmp_path / "shards")
        root = "s3://bucket/shards"
    shards = coprep.WebDataset(f"{root}/{{0,1}}.tar")
    assert len(shards) == 20
    found, texts = read(shards, on_error=on_error)
    assert sorted(found) == sorted([*range(20)] * 2)
    assert len(texts) == 1 and re.match("20 samples of .* are left out", texts[0])
    assert "1.tar, the sample __index__ has no image" in texts[0] and not CONTROL.search(texts[0])
    done = run("index", f"{root}/{{0,1}}.tar")
    assert done.returncode == 0, done.stderr
    assert "20 samples of these shards are left out" in done.stdout and not CONTROL.search(done.stdout)
    with pytest.raises(ValueError, match="no sample can be used, of 40") as caught:
        len(coprep.WebDataset(f"{root}/{{0,1}}.tar", image="png"))
    assert not CONTROL.search(str(caught.value))


def test_shards_without_samples_keep_nobody_from_the_others(socket_path: Path, folder: Path, tmp_path: Path) -> None:
    images = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:6]]
    members = [
        (f"{i}.{ending}", content)
        for i, image in enumerate(images)
        for ending, content in [("jpg", image), ("cls", b"%d" % i)]
    ]
    for name, parts in {"empty": [], "full": members, "others": [("readme", b"x")]}.items():
        write_shard(tmp_path / f"{name}.tar", parts)
    found, texts = read(coprep.WebDataset(f"{tmp_path}/{{empty,full,others,empty}}.tar"), batch_size=4)
    assert sorted(found) == sorted([*range(6)] * 2)
    assert len(texts) == 1 and texts[0].endswith("others.tar, no member has a name of a key, a dot and an ending")
    with pytest.raises(ValueError, match="no shard of 1 has a sample"):
        len(coprep.WebDataset(tmp_path / "empty.tar"))
    with pytest.raises(ValueError, match=r"others\.tar, no member has a name"):
        len(coprep.WebDataset(tmp_path / "others.tar"))


def test_control_characters_of_names_reach_no_terminal(socket_path: Path, tmp_path: Path, folder: Path) -> None:
    images = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:4]]
    root = tmp_path / f"r{ESCAPE}" / "x"
    for number, image in enumerate([*images, b"no image"]):
        path = root / f"c\x9b{number % 2}" / f"{number}{ESCAPE}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    source = coprep.ImageFolder(root)
    with loader(source, batch_size=1, shuffle=False) as train, pytest.raises(coprep.SampleError) as caught:
        for _ in train:
            pass
    assert "\ufffd[31m.jpg" in str(caught.value) and not CONTROL.search(str(caught.value))
    assert caught.value.path.endswith(f"4{ESCAPE}.jpg")
    found, texts = read(source, on_error="skip", batch_size=1)
    assert len(found) >= 8 and len(texts) == 1 and not CONTROL.search(texts[0])
    with loader(source) as train:
        iter(train)
        shown = [run("status", "--slow", "9"), run("top", "--once")]
    shown += [run("warm", root), run("drop", root), run("drop", f"{root}-"), run("doctor", f"s3://b/{ESCAPE}")]
    for done in shown:
        assert not CONTROL.search(done.stdout + done.stderr), done
    logs = [path.read_text() for path in socket_path.parent.glob("*.log")]
    assert any("no image" in log or "decode" in log for log in logs)
    assert not any(CONTROL.search(log) for log in logs)
