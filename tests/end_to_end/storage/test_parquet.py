"""Tests reading parquet files: the same samples as from files, a request for each row group, errors with a remedy."""

from __future__ import annotations

import json
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batches import batches, ids
from object_server import ObjectServer
from parquet_files import CLASSES, table, write_files
from stored_images import loader, run

N = 120
FILES = 3
ROWS = 10
GROUPS = N // ROWS
BRACES = f"train-{{0..{FILES - 1}}}.parquet"


@pytest.fixture
def photos(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))[:N]


@pytest.fixture
def files(tmp_path: Path, photos: list[Path]) -> Path:
    """A folder with parquet files of the photos."""
    write_files(tmp_path / "parquet", photos, FILES, ROWS)
    return tmp_path / "parquet"


@pytest.fixture
def stored(server: ObjectServer, files: Path) -> str:
    """The URL of the same files."""
    server.load("bucket", "parquet", files)
    return f"s3://bucket/parquet/{BRACES}"


def gets_to_open(server: ObjectServer, pipeline: coprep.Pipeline) -> int:
    """Returns the requests that it takes to open the files."""
    before = server.counts()["gets"]
    assert len(pipeline) == N
    return server.counts()["gets"] - before


@pytest.mark.parametrize("cache", ["off", "encoded", "decoded", "auto"])
def test_samples_in_stores_are_those_of_local_files(
    socket_path: Path, server: ObjectServer, photos: list[Path], files: Path, stored: str, cache: str
) -> None:
    web = f"{server.address}/{stored.removeprefix('s3://')}"
    expected, local, s3, http = (
        batches(loader(source, seed=7, shuffle=True, cache=cache), epochs=2)
        for source in (
            coprep.Files(photos, [i % 7 for i in range(N)]),
            # The window holds all of them, so that the orders are one.
            coprep.Parquet(files / BRACES),
            coprep.Parquet(stored),
            coprep.Parquet(web),
        )
    )
    assert expected == local
    assert expected == s3
    assert expected == http


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0"},
        {"compression": "gzip", "nested": False},
        {"compression": "lz4", "data_page_size": 1000, "write_page_index": True},
        {"compression": "none", "write_page_checksum": True},
    ],
    ids=lambda options: options["compression"],
)
def test_samples_of_every_kind_of_file_are_those_of_the_photos(
    socket_path: Path, tmp_path: Path, photos: list[Path], options: dict[str, Any]
) -> None:
    written = write_files(tmp_path / "other", photos, FILES, ROWS, **options)
    expected, found = (
        batches(loader(source, seed=7), epochs=1)
        for source in (coprep.Files(photos, [i % 7 for i in range(N)]), coprep.Parquet(written))
    )
    assert expected == found


def test_columns_are_named_and_classes_are_those_of_hugging_face(socket_path: Path, files: Path) -> None:
    def labels(**columns: Any) -> list[int]:
        with loader(coprep.Parquet(files / BRACES, **columns), shuffle=False) as train:
            found = [batch[1] for batch in train]
        assert all(part.dtype == np.int64 for part in found)
        return [int(x) for part in found for x in part]

    assert labels(image="image.bytes") == [i % 7 for i in range(N)]
    assert labels(label=None) == [0] * N
    assert coprep.Parquet(files / BRACES).classes == CLASSES
    assert coprep.Parquet(files / BRACES, label=None).classes == []


def test_parquet_files_are_a_pipeline_like_others(socket_path: Path, files: Path) -> None:
    whole = coprep.Parquet(str(files / BRACES))
    listed = coprep.Parquet([files / f"train-{i}.parquet" for i in range(FILES)])
    assert whole == listed and hash(whole) == hash(listed)
    assert len(whole) == N and whole.root is None
    chosen = coprep.Parquet(files / BRACES, image="image.bytes", label=None).decode()
    assert pickle.loads(pickle.dumps(chosen)) == chosen != whole
    assert repr(chosen) == f'Parquet("{files}/{BRACES}", image="image.bytes", label=None).decode()'


@pytest.mark.parametrize("cache", ["off", "auto"])
def test_jobs_share_one_request_for_each_row_group(
    socket_path: Path, server: ObjectServer, stored: str, cache: str
) -> None:
    pipeline = coprep.Parquet(stored)
    opening = gets_to_open(server, pipeline)
    # A footer for each file, and no more requests than one for the labels of each row group.
    assert FILES <= opening <= FILES + GROUPS
    before = server.counts()["gets"]

    def epochs(_: int) -> list[list[int]]:
        with loader(pipeline, shuffle=True, cache=cache) as train:
            return [sorted(ids(train)) for _ in range(3)]

    with ThreadPoolExecutor(3) as pool:
        for seen in pool.map(epochs, range(3)):
            assert seen == [list(range(N))] * 3
    counts = server.counts()
    assert counts["gets"] - before <= opening + GROUPS, counts
    assert counts["heads"] == 0 and counts["matched"] == counts["gets"]


def test_a_window_is_as_many_row_groups_as_it_says(
    socket_path: Path, server: ObjectServer, stored: str, photos: list[Path]
) -> None:
    pipeline = coprep.Parquet(stored)
    opening = gets_to_open(server, pipeline)

    def order(window: int) -> list[int]:
        before = server.counts()["gets"]
        with loader(pipeline, shuffle=True, seed=7, cache="off", shuffle_window=window, batch_size=10) as train:
            found = [*ids(train), *ids(train)]
            # Few groups are held, but more than there are here.
            assert coprep.status()["streams"][0]["block_bytes"] == sum(path.stat().st_size for path in photos)
        assert server.counts()["gets"] - before <= opening + GROUPS
        return found

    narrow, wide = order(1), order(5 * ROWS)
    assert narrow == order(1) and narrow != wide
    for found in (narrow, wide):
        assert sorted(found[:N]) == sorted(found[N:]) == list(range(N))
    groups = [sample // ROWS for sample in narrow]
    parts = [set(groups[at : at + ROWS]) for at in range(0, 2 * N, ROWS)]
    assert all(len(part) == 1 for part in parts) and groups != sorted(groups)
    assert len({sample // ROWS for sample in wide[:ROWS]}) > 1


def test_a_warm_up_reads_each_row_group_once(socket_path: Path, server: ObjectServer, stored: str) -> None:
    opening = gets_to_open(server, coprep.Parquet(stored))
    before = server.counts()["gets"]
    done = run("warm", stored, "--form", "encoded", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["cached"] == N
    assert server.counts()["gets"] - before <= opening + GROUPS
    before = server.counts()["gets"]
    with loader(coprep.Parquet(stored), cache="encoded", shuffle=True) as train:
        assert sorted(ids(train)) == list(range(N))
    # The footers are read, and no row group but those that tell how much memory the cache needs.
    assert server.counts()["gets"] - before <= opening + 4


def test_subsets_and_states_work_as_with_files(socket_path: Path, files: Path) -> None:
    subset = range(30, 90)
    options = {"subset": subset, "seed": 1, "shuffle": True, "shuffle_window": 20}
    with loader(coprep.Parquet(files / BRACES), **options) as train:
        assert sorted(ids(train)) == list(subset)
        batch = iter(train)
        first = [int(i) for _ in range(2) for i in next(batch)[-1]]
        state = train.state_dict()
    with loader(coprep.Parquet(files / BRACES), **options) as train:
        train.load_state_dict(state)
        assert sorted(first + ids(train)) == list(subset)


def test_the_commands_take_parquet_files(socket_path: Path, files: Path) -> None:
    for command in (["analyze"], ["bench", "--jobs", "1"]):
        done = run(*command, files / BRACES, "--seconds", "0.2", "--batch-size", "4", "--json")
        assert done.returncode == 0, done.stderr
        assert "parquet" in done.stdout


@pytest.mark.parametrize(
    ("urls", "options", "part"),
    [
        ("ftp://host/x.parquet", {}, "not a storage that coprep reads"),
        ([], {}, "the list of files is empty"),
        ("x-{0..99999999}.parquet", {}, "more than 1000000 names"),
        ("x.parquet", {"image": ""}, "names no column"),
        ("x.parquet", {"label": ""}, "names no column"),
    ],
)
def test_what_is_not_accepted_is_an_error_at_once(urls: Any, options: dict[str, str], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        coprep.Parquet(urls, **options)


def test_files_that_cannot_be_used_are_named(socket_path: Path, tmp_path: Path, photos: list[Path]) -> None:
    photo = photos[0].read_bytes()
    whole = tmp_path / "whole.parquet"
    pq.write_table(table([photo] * 4, [1, 2, None, 4]), whole)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-20])
    words = tmp_path / "words.parquet"
    pq.write_table(pa.table({"image": ["a"], "label": ["cat"]}), words)
    brotli = tmp_path / "brotli.parquet"
    pq.write_table(table([photo], [1]), brotli, compression="brotli")
    for path, columns, part in [
        (whole, {}, "row group 0: the label of its row 2 is null"),
        (whole, {"image": "picture"}, "no column picture for image=, but image.bytes, image.path, label"),
        (cut, {}, "cut off"),
        (words, {}, "its column image holds text"),
        (words, {"image": "label"}, "its column label holds text"),
        (brotli, {}, "compressed by BROTLI"),
    ]:
        with pytest.raises(ValueError, match=part) as caught:
            len(coprep.Parquet(path, **columns))
        assert path.name in str(caught.value)
    with pytest.raises(FileNotFoundError, match="gone.parquet"):
        len(coprep.Parquet(tmp_path / "gone.parquet"))


def test_a_row_without_an_image_is_an_error_of_its_sample(
    socket_path: Path, tmp_path: Path, photos: list[Path]
) -> None:
    images = [photo.read_bytes() for photo in photos[:8]]
    path = tmp_path / "x.parquet"
    pq.write_table(table([*images[:5], None, *images[6:]], range(8)), path, row_group_size=4)
    with (
        loader(coprep.Parquet(path), shuffle=False, batch_size=4) as raises,
        pytest.raises(coprep.SampleError, match="row 1 of row group 1 of .* has no image") as caught,
    ):
        list(raises)
    assert f"{path}#row5" in str(caught.value)
    with loader(coprep.Parquet(path), shuffle=False, batch_size=4, on_error="skip") as skips, warnings.catch_warnings():
        warnings.simplefilter("ignore", coprep.SkippedSampleWarning)
        assert sorted(ids(skips)) == [0, 1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize("place", ["local", "s3"])
def test_a_file_replaced_in_mid_run_is_one_error_that_names_it(
    socket_path: Path, server: ObjectServer, files: Path, stored: str, place: str
) -> None:
    name = f"{files}/train-2.parquet" if place == "local" else "s3://bucket/parquet/train-2.parquet"
    urls = str(files / BRACES) if place == "local" else stored
    other = (files / "train-0.parquet").read_bytes()
    with loader(coprep.Parquet(urls), cache="off", shuffle=False, batch_size=2) as train:
        one = iter(train)
        next(one)
        (files / "train-2.parquet").write_bytes(other)
        server.put("bucket", "parquet/train-2.parquet", other)
        with pytest.raises(coprep.SampleError, match="was replaced since it was") as caught:
            list(one)
    assert name in str(caught.value)


def test_a_damaged_row_group_is_skipped_and_read_no_more(
    socket_path: Path, server: ObjectServer, photos: list[Path], tmp_path: Path
) -> None:
    # Without a checksum a flipped byte would be one of an image.
    path = write_files(tmp_path / "one", photos[:40], 1, ROWS, use_dictionary=False, write_page_checksum=True)[0]
    server.put("bucket", "x.parquet", path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    server.flip("bucket", "x.parquet", chunk.data_page_offset + chunk.total_compressed_size // 2)
    opening_and_groups = 1 + 4 + 4
    with (
        loader(coprep.Parquet("s3://bucket/x.parquet"), cache="off", on_error="skip") as train,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", coprep.SkippedSampleWarning)
        assert sorted(ids(train)) == [i for i in range(40) if i // ROWS != 1]
        assert train.stats()["skipped"] == ROWS
    # The damaged one is read twice.
    assert server.counts()["gets"] <= opening_and_groups + 1
