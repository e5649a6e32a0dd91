"""Tests reading tar shards: the same samples as from files, few requests, and errors that name shard and sample."""

from __future__ import annotations

import gzip
import json
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import coprep
import numpy as np
import pytest
from batches import batches, ids
from object_server import ObjectServer
from shards import FORMATS, samples_of, write_shard, write_shards
from stored_images import loader, run
from waiting import WAIT

N = 120
SHARDS = 4
BRACES = f"train-{{000..{SHARDS - 1:03}}}.tar"


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder for one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))[:N]


@pytest.fixture
def shards(tmp_path: Path, files: list[Path]) -> Path:
    """A folder with shards of the photos."""
    write_shards(tmp_path / "shards", files, SHARDS)
    return tmp_path / "shards"


@pytest.fixture
def stored(server: ObjectServer, shards: Path) -> str:
    """The URL of the same shards."""
    server.load("bucket", "shards", shards)
    return f"s3://bucket/shards/{BRACES}"


def index_files(cache_home: Path) -> list[Path]:
    return sorted((cache_home / "coprep" / "shards").iterdir())


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_samples_of_every_format_are_those_of_tarfile(
    socket_path: Path, tmp_path: Path, files: list[Path], form: str
) -> None:
    written = write_shards(tmp_path / "shards", files, 3, form)
    found = [sample for shard in written for sample in samples_of(shard)]
    assert len(found) == N
    extracted = []
    for number, sample in enumerate(found):
        extracted.append(tmp_path / f"{number}.jpg")
        extracted[-1].write_bytes(sample["jpg"])
    labels = [int(sample["cls"]) for sample in found]
    listed, sharded = (
        batches(loader(source, seed=7), epochs=2)
        for source in (coprep.Files(extracted, labels), coprep.WebDataset(written))
    )
    assert listed == sharded


@pytest.mark.parametrize("cache", ["off", "encoded", "decoded", "auto"])
def test_samples_in_stores_are_those_of_local_files(
    socket_path: Path, server: ObjectServer, files: list[Path], shards: Path, stored: str, cache: str
) -> None:
    web = f"{server.address}/{stored.removeprefix('s3://')}"
    expected, local, s3, http = (
        batches(loader(source, seed=7, cache=cache), epochs=2)
        for source in (
            coprep.Files(files, [i % 7 for i in range(N)]),
            coprep.WebDataset(shards / BRACES),
            coprep.WebDataset(stored),
            coprep.WebDataset(web),
        )
    )
    assert expected == local
    assert expected == s3
    assert expected == http


def test_the_label_may_be_a_field_of_json_or_nothing(socket_path: Path, shards: Path) -> None:
    def labels(label: str | None) -> list[int]:
        with loader(coprep.WebDataset(shards / BRACES, label=label), shuffle=False) as train:
            found = [batch[1] for batch in train]
        assert all(part.dtype == np.int64 for part in found)
        return [int(x) for part in found for x in part]

    assert labels("json:label") == [100 + i % 7 for i in range(N)]
    assert labels(None) == [0] * N


def test_a_web_dataset_is_a_pipeline_like_others(socket_path: Path, shards: Path) -> None:
    whole = coprep.WebDataset(str(shards / BRACES))
    listed = coprep.WebDataset([shards / f"train-{i:03}.tar" for i in range(SHARDS)])
    assert whole == listed and hash(whole) == hash(listed)
    assert len(whole) == N and whole.classes == [] and whole.root is None
    chosen = coprep.WebDataset(shards / BRACES, image="jpg", label="json:label").decode()
    assert pickle.loads(pickle.dumps(chosen)) == chosen != whole
    assert repr(chosen) == f'WebDataset("{shards}/{BRACES}", image="jpg", label="json:label").decode()'


def test_jobs_that_draw_from_a_window_read_each_part_of_a_shard_once(
    socket_path: Path, server: ObjectServer, stored: str
) -> None:
    pipeline = coprep.WebDataset(stored)
    assert len(pipeline) == N
    before = server.counts()["gets"]

    def epochs(_: int) -> list[list[int]]:
        with loader(pipeline, shuffle=True, shuffle_window=40) as train:
            return [sorted(ids(train)) for _ in range(3)]

    with ThreadPoolExecutor(8) as pool:
        for seen in pool.map(epochs, range(8)):
            assert seen == [list(range(N))] * 3
    # The header of one image tells how much memory the cache needs.
    assert server.counts()["gets"] - before <= SHARDS + 1


@pytest.mark.parametrize("options", [{"shuffle_window": 40}, {}], ids=["window", "whole"])
def test_jobs_that_open_new_shards_together_read_each_byte_once(
    socket_path: Path, server: ObjectServer, stored: str, cache_home: Path, options: dict[str, Any]
) -> None:
    before = server.counts()
    opened = Barrier(8)
    after_first: list[int] = []

    def epochs(_: int) -> list[list[int]]:
        with loader(coprep.WebDataset(stored), shuffle=True, cache="encoded", **options) as train:
            first = sorted(ids(train))
            opened.wait(WAIT)
            after_first.append(server.counts()["gets"])
            return [first, *(sorted(ids(train)) for _ in range(2))]

    with ThreadPoolExecutor(8) as pool:
        for seen in pool.map(epochs, range(8)):
            assert seen == [list(range(N))] * 3
    after = server.counts()
    # One request for each shard serves for its index, for the sizes of decoded images, and for the first epoch.
    assert after["gets"] - before["gets"] == SHARDS
    assert after_first == [after["gets"]] * 8, "later epochs come from memory"
    assert len(index_files(cache_home)) == SHARDS
    assert coprep.status()["early_bytes"] == 0


def test_what_was_read_for_an_index_serves_the_job_that_comes_next(
    socket_path: Path, server: ObjectServer, stored: str
) -> None:
    before = server.counts()["gets"]
    assert len(coprep.WebDataset(stored)) == N
    assert coprep.status()["early_bytes"] > 0
    with loader(coprep.WebDataset(stored), cache="encoded") as train:
        assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] - before == SHARDS
    assert coprep.status()["early_bytes"] == 0


def test_a_warm_up_of_new_shards_reads_each_byte_once(socket_path: Path, server: ObjectServer, stored: str) -> None:
    before = server.counts()["gets"]
    done = run("warm", stored, "--form", "encoded")
    assert done.returncode == 0, done.stderr
    with loader(coprep.WebDataset(stored), cache="encoded") as train:
        assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] - before == SHARDS


def test_what_was_read_for_an_index_is_not_used_for_a_shard_that_was_replaced(
    socket_path: Path, server: ObjectServer, shards: Path, stored: str
) -> None:
    assert len(coprep.WebDataset(stored)) == N
    server.put("bucket", "shards/train-003.tar", (shards / "train-000.tar").read_bytes())
    pipeline = coprep.WebDataset(stored).decode().resize(32).center_crop(32)
    with coprep.DataLoader(pipeline, batch_size=1, shuffle=False, cache="encoded", framework="numpy") as train:
        images = [batch[0].tobytes() for batch in train]
    each = N // SHARDS
    assert images[3 * each :] == images[:each] != images[each : 2 * each]


def test_a_window_is_as_many_neighbours_as_it_says_in_an_order_of_the_seed(
    socket_path: Path, stored: str, shards: Path
) -> None:
    def order(source: str | Path, window: int | None) -> list[int]:
        options = {"shuffle": True, "seed": 7, "batch_size": 10, "shuffle_window": window}
        with loader(coprep.WebDataset(source), **options) as train:
            found = [*ids(train), *ids(train)]
            held = coprep.status()["streams"][0]["block_bytes"]
        if window is None:
            assert held == 0
        elif source != stored:
            # Images that were read for the index of local shards are not kept, so each block was read.
            assert 0 < held <= sum(path.stat().st_size for path in shards.iterdir())
        return found

    each = N // SHARDS
    narrow = order(stored, 1)
    assert narrow == order(shards / BRACES, 1) and narrow != order(stored, None)
    parts = [narrow[start : start + each] for start in range(0, 2 * N, each)]
    shard_of = [{sample // each for sample in part} for part in parts]
    # One shard after another, in an order of its own in each epoch, and shuffled within.
    assert all(len(found) == 1 for found in shard_of)
    assert sorted(min(found) for found in shard_of[:SHARDS]) == list(range(SHARDS))
    assert all(part != sorted(part) for part in parts) and narrow[:N] != narrow[N:]


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"shuffle": False}, ValueError, "random orders"),
        ({"shuffle_window": 0}, ValueError, "from 1 to"),
        ({"shuffle_window": 1.5}, TypeError, "an integer"),
    ],
)
def test_a_window_that_means_nothing_is_an_error(
    socket_path: Path, shards: Path, options: dict[str, Any], error: type[Exception], part: str
) -> None:
    with pytest.raises(error, match=part):
        next(iter(loader(coprep.WebDataset(shards / BRACES), **{"shuffle": True, "shuffle_window": 8, **options})))


def test_files_of_their_own_have_no_window(socket_path: Path, files: list[Path]) -> None:
    with pytest.raises(ValueError, match="lie together in larger files"):
        next(iter(loader(coprep.Files(files), shuffle=True, shuffle_window=8)))
    with pytest.raises(TypeError, match="sample by sample"):
        coprep.DataLoader(list(range(8)), shuffle=True, shuffle_window=8)


def test_a_warm_up_reads_shards_in_large_parts(socket_path: Path, server: ObjectServer, stored: str) -> None:
    assert len(coprep.WebDataset(stored)) == N
    before = server.counts()["gets"]
    done = run("warm", stored, "--form", "encoded")
    assert done.returncode == 0, done.stderr
    assert server.counts()["gets"] - before <= SHARDS + 1
    before = server.counts()["gets"]
    with loader(coprep.WebDataset(stored), cache="encoded") as train:
        assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] == before


@pytest.mark.parametrize("place", ["local", "s3", "http"])
def test_a_list_of_shards_in_json_names_them(
    socket_path: Path, server: ObjectServer, shards: Path, stored: str, place: str
) -> None:
    names = [f"train-{i:03}.tar" for i in range(SHARDS)]
    sizes = [(shards / name).stat().st_size for name in names]
    entries = [
        {"url": name, "nsamples": N // SHARDS, "filesize": size} for name, size in zip(names, sizes, strict=True)
    ]
    folders = {
        "local": str(shards),
        "s3": stored.removesuffix(f"/{BRACES}"),
        "http": f"{server.address}/bucket/shards",
    }

    def written(entries: list[dict[str, Any]]) -> coprep.Pipeline:
        text = json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": entries})
        (shards / "index.json").write_text(text)
        server.put("bucket", "shards/index.json", text.encode())
        return coprep.WebDataset(f"{folders[place]}/index.json")

    listed, named = (
        batches(loader(source, seed=7), epochs=1) for source in (written(entries), coprep.WebDataset(shards / BRACES))
    )
    assert listed == named
    for wrong, error, part in [
        ({**entries[1], "nsamples": 7}, ValueError, "its list says 7"),
        ({**entries[1], "url": "gone.tar"}, FileNotFoundError, "gone.tar"),
        ({"nsamples": 1}, ValueError, 'has no "url"'),
    ]:
        with pytest.raises(error, match=part):
            len(written([entries[0], wrong]))


@pytest.mark.parametrize(
    ("urls", "options", "part"),
    [
        ("x.tar.gz", {}, "x.tar.gz is compressed"),
        ("ftp://host/x.tar", {}, "not a storage that coprep reads"),
        ([], {}, "the list of shards is empty"),
        ("x-{0..99999999}.tar", {}, "more than 1000000 names"),
        ("x.tar", {"image": ".jpg"}, "without a dot"),
        ("x.tar", {"label": "json:"}, "names no part of a sample"),
    ],
)
def test_what_is_not_accepted_is_an_error_at_once(urls: Any, options: dict[str, str], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        coprep.WebDataset(urls, **options)


def test_bytes_are_no_name() -> None:
    with pytest.raises(TypeError, match="urls must be text"):
        coprep.WebDataset(b"x.tar")


def test_two_jobs_share_the_requests_and_each_has_exact_epochs(
    socket_path: Path, server: ObjectServer, stored: str
) -> None:
    def epochs(_: int) -> list[list[int]]:
        with loader(coprep.WebDataset(stored)) as train:
            return [sorted(ids(train)) for _ in range(2)]

    assert len(coprep.WebDataset(stored)) == N
    opened = server.counts()["gets"]
    with ThreadPoolExecutor(2) as pool:
        for seen in pool.map(epochs, range(2)):
            assert seen == [list(range(N))] * 2
    counts = server.counts()
    # One request for each sample, and some for the starts of a few, which tell how large they are decoded.
    assert counts["gets"] - opened <= 1.05 * N and counts["heads"] == 0, counts
    assert counts["matched"] == counts["gets"]


def test_subsets_and_states_work_as_with_files(socket_path: Path, stored: str) -> None:
    subset = range(30, 90)
    with loader(coprep.WebDataset(stored), subset=subset, seed=1) as train:
        assert sorted(ids(train)) == list(subset)
        batch = iter(train)
        first = [int(i) for _ in range(2) for i in next(batch)[-1]]
        state = train.state_dict()
    with loader(coprep.WebDataset(stored), subset=subset, seed=1) as train:
        train.load_state_dict(state)
        assert sorted(first + ids(train)) == list(subset)


def test_an_index_is_kept_and_reused(socket_path: Path, server: ObjectServer, stored: str, cache_home: Path) -> None:
    assert len(coprep.WebDataset(stored)) == N
    kept = index_files(cache_home)
    assert len(kept) == SHARDS
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
    assert kept[0].parent.stat().st_mode & 0o777 == 0o700
    coprep.stop()
    before = server.counts()
    assert len(coprep.WebDataset(stored)) == N
    after = server.counts()
    assert after["gets"] == before["gets"] and after["lists"] == before["lists"] + 1


@pytest.mark.parametrize("damage", [b"", b"coprepTI", bytes(1000)])
def test_a_damaged_index_is_made_anew(socket_path: Path, shards: Path, cache_home: Path, damage: bytes) -> None:
    before = batches(loader(coprep.WebDataset(shards / BRACES), seed=3), epochs=1)
    coprep.stop()
    sound = {path: path.read_bytes() for path in index_files(cache_home)}
    for path, content in sound.items():
        path.write_bytes(damage or content[:-7])
    assert batches(loader(coprep.WebDataset(shards / BRACES), seed=3), epochs=1) == before
    assert {path: path.read_bytes() for path in index_files(cache_home)} == sound


def test_a_shard_that_was_uploaded_anew_is_another_dataset(
    socket_path: Path, server: ObjectServer, shards: Path, stored: str
) -> None:
    assert len(coprep.WebDataset(stored)) == N
    server.put("bucket", "shards/train-003.tar", (shards / "train-000.tar").read_bytes())
    with loader(coprep.WebDataset(stored), shuffle=False, cache="encoded") as train:
        labels = [int(x) for batch in train for x in batch[1]]
    each = N // SHARDS
    assert labels[3 * each :] == labels[:each]


def rest_with_errors(iterator: Iterator[Any]) -> tuple[set[int], dict[int, str]]:
    """Takes the rest of an epoch. Returns the ids that were given, and the text of each sample's error."""
    given: set[int] = set()
    errors: dict[int, str] = {}
    while True:
        try:
            given |= {int(i) for i in next(iterator)[-1]}
        except coprep.SampleError as error:
            assert error.id not in errors
            errors[error.id] = str(error)
        except StopIteration:
            return given, errors


@pytest.mark.parametrize("place", ["local", "s3"])
def test_each_sample_of_a_shard_replaced_in_mid_run_is_an_error_that_names_the_shard(
    socket_path: Path, server: ObjectServer, shards: Path, stored: str, place: str
) -> None:
    name = f"{shards}/train-002.tar" if place == "local" else "s3://bucket/shards/train-002.tar"
    urls = str(shards / BRACES) if place == "local" else stored
    other = (shards / "train-000.tar").read_bytes()
    assert len(coprep.WebDataset(urls)) == N
    # The coordinator would hand out the images that it read for the indexes, without the new bytes.
    coprep.stop()
    options = {"cache": "off", "shuffle": False, "batch_size": 4}
    with (
        loader(coprep.WebDataset(urls), **options) as raises,
        loader(coprep.WebDataset(urls), on_error="skip", **options) as skips,
    ):
        one, two = iter(raises), iter(skips)
        next(one), next(two)
        Path(shards / "train-002.tar").write_bytes(other)
        server.put("bucket", "shards/train-002.tar", other)
        given, errors = rest_with_errors(one)
        assert all(name in text and "was replaced since it was" in text for text in errors.values())
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            seen = {int(i) for batch in two for i in batch[-1]}
        each = N // SHARDS
        replaced = set(range(2 * each, 3 * each))
        # Some samples of the shard may have been read before it was replaced, for one of the jobs or for both.
        assert errors and errors.keys() == replaced - given
        assert set(range(3 * each, N)) <= seen and replaced - seen
        assert len([w for w in warned if issubclass(w.category, coprep.SkippedSampleWarning)]) == 1
        # A sample counts as soon as it has failed for any job, also if the job that skips was given it before.
        assert skips.stats()["skipped"] == len(errors.keys() | (replaced - seen))


def test_a_bad_image_is_named_by_shard_and_key(socket_path: Path, tmp_path: Path, files: list[Path]) -> None:
    members = [("a/good.jpg", files[0].read_bytes()), ("a/bad.jpg", b"no image"), ("a/empty.jpg", b"")]
    shard = write_shard(tmp_path / "x.tar", members)
    with loader(coprep.WebDataset(shard, label=None), shuffle=False, batch_size=1) as train:
        batch = iter(train)
        next(batch)
        with pytest.raises(coprep.SampleError, match="decode") as caught:
            next(batch)
    assert f"{shard}#a/bad.jpg" in str(caught.value)


def test_a_shard_that_cannot_be_used_is_named_when_it_is_opened(
    socket_path: Path, tmp_path: Path, shards: Path
) -> None:
    whole = (shards / "train-000.tar").read_bytes()
    for content, part in [
        (whole[: len(whole) // 2], "it is cut off: .* at byte [0-9]+ reaches beyond its end"),
        (gzip.compress(whole), "it is compressed by gzip; decompress it"),
        (b"no tar file" * 100, "its header at byte 0 is broken"),
        (b"", "it is cut off"),
    ]:
        (tmp_path / "bad.tar").write_bytes(content)
        with pytest.raises(ValueError, match=part) as caught:
            len(coprep.WebDataset(tmp_path / "bad.tar"))
        assert f"{tmp_path}/bad.tar" in str(caught.value)
    shard = write_shard(tmp_path / "parts.tar", [("k/a.jpg", b"x"), ("k/a.cls", b"one")])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, 'the sample k/a has a label that is no integer: its .cls holds "one"'),
        ({"label": "json:id"}, "the sample k/a has no label: it has no member that ends in json, but jpg, cls"),
        ({"image": "png", "label": None}, "the sample k/a has no image: it has none of the endings png, but jpg, cls"),
    ]
    for options, part in wrong:
        with pytest.raises(ValueError, match=part) as caught:
            len(coprep.WebDataset(shard, **options))
        assert str(shard) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="gone.tar"):
        len(coprep.WebDataset(tmp_path / "gone.tar"))


def test_a_thousand_indexed_shards_are_opened_without_reading_them(
    socket_path: Path, server: ObjectServer, tmp_path: Path, files: list[Path]
) -> None:
    image = files[0].read_bytes()
    shard = write_shard(tmp_path / "x.tar", [("a.jpg", image), ("a.cls", b"1")]).read_bytes()
    for number in range(1000):
        server.put("bucket", f"many/{number:03}.tar", shard)
    urls = "s3://bucket/many/{000..999}.tar"
    assert len(coprep.WebDataset(urls)) == 1000
    coprep.stop()
    before = server.counts()
    assert len(coprep.WebDataset(urls)) == 1000
    after = server.counts()
    assert after["gets"] == before["gets"] and after["lists"] <= before["lists"] + 2


def test_the_index_command_spares_the_first_job_the_reads(
    socket_path: Path, server: ObjectServer, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("index", stored, "--json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["shards"], found["samples"], found["scanned"]) == (SHARDS, N, SHARDS)
    gets = server.counts()["gets"]
    assert len(coprep.WebDataset(stored)) == N
    assert server.counts()["gets"] == gets
    coprep.stop()
    # Beside the shards, the indexes serve another user.
    server.load("bucket", "shards", tmp_path / "out")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    again = run("index", stored)
    assert again.returncode == 0, again.stderr
    assert f"0 read, {SHARDS} had an index beside them, 0 were indexed before" in again.stdout
    failed = run("index", "s3://bucket/shards/none.tar")
    assert failed.returncode == 1 and "the shard s3://bucket/shards/none.tar does not exist" in failed.stderr


def test_commands_take_shards(socket_path: Path, server: ObjectServer, shards: Path, stored: str) -> None:
    done = run("warm", stored, "--form", "encoded")
    assert done.returncode == 0, done.stderr
    assert f"WebDataset({json.dumps(stored)})" in done.stdout
    gets = server.counts()["gets"]
    with loader(coprep.WebDataset(stored)) as train:
        assert sorted(ids(train)) == list(range(N))
    assert server.counts()["gets"] == gets
    assert stored in run("status").stdout
    dropped = run("drop", stored)
    assert dropped.returncode == 0, dropped.stderr
    for command in ("analyze", "bench"):
        report = run(command, shards / BRACES, "--json", "--seconds", "0.5", "--image-size", "32")
        assert report.returncode == 0, report.stderr
        assert json.loads(report.stdout)
