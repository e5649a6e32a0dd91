"""Tests datasets of the Hugging Face Hub: ``hf://``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import batches, content, ids
from hub_server import SIGNATURE, HubServer, hub_server
from parquet_files import write_files
from photos import make_folder, photo
from stored_images import loader, run
from waiting import WAIT

N = 120
DATASET = "someone/photos"
ROOT = f"hf://datasets/{DATASET}"
TOKEN = "hf_SECRET"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub without datasets, which coordinators that start from now on use, without a token."""
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging-face"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
            monkeypatch.delenv(name, raising=False)
        yield hub


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", N, classes=3)


@pytest.mark.parametrize("relative_links", [False, True])
def test_samples_of_the_hub_are_those_of_local_files(
    socket_path: Path, hub: HubServer, few: Path, relative_links: bool
) -> None:
    hub.relative_links = relative_links
    commit = hub.commit_folder(DATASET, "train", few)
    local, remote = (
        batches(loader(coprep.ImageFolder(root), cache="encoded", seed=3, shuffle=True), epochs=2)
        for root in (few, f"{ROOT}/train")
    )
    assert local == remote
    # The commit, the pages of the listing, the start of one sample, and then each sample once, from its commit.
    asked = [request.path for request in hub.requests]
    assert asked[0] == f"/api/datasets/{DATASET}/revision/main"
    pages = [path for path in asked if "/tree/" in path]
    assert len(pages) == 3
    reads = [path for path in asked if "/resolve/" in path]
    assert all(path.startswith(f"/datasets/{DATASET}/resolve/{commit}/train/") for path in reads)
    assert N <= len(reads) <= N + 1
    assert len(asked) == 1 + len(pages) + len(reads)
    assert len(hub.reads) == len(reads)


def test_parquet_files_of_the_hub_are_read_by_ranges(
    socket_path: Path, hub: HubServer, few: Path, tmp_path: Path
) -> None:
    files = tmp_path / "parquet"
    write_files(files, sorted(few.rglob("*.jpg")), 3, 10)
    hub.commit_folder(DATASET, "data", files)
    names = "train-{0..2}.parquet"
    local, remote = (
        batches(loader(coprep.Parquet(root), seed=3, shuffle=True), epochs=2)
        for root in (files / names, f"{ROOT}@main/data/{names}")
    )
    assert local == remote
    ranges = [request.headers["Range"] for request in hub.reads]
    assert ranges and all(ranges)


def test_a_dataset_that_moves_on_is_read_to_its_end_and_read_anew_afterwards(
    socket_path: Path, hub: HubServer, few: Path
) -> None:
    photos = sorted(few.rglob("*.jpg"))
    hub.commit(DATASET, {f"{i:03}.jpg": path.read_bytes() for i, path in enumerate(photos)})
    other = few / "other.jpg"
    photo(9999, 200, 200).save(other)

    def read(paths: Sequence[object]) -> list[Any]:
        return batches(loader(coprep.Files(paths), cache="off", seed=3), epochs=1)

    urls = [f"{ROOT}/{i:03}.jpg" for i in range(N)]
    with loader(coprep.Files(urls), cache="off", seed=3) as train:
        batch = iter(train)
        before = [content(next(batch))]
        hub.commit(DATASET, {f"{i:03}.jpg": other.read_bytes() for i in range(N)})
        before.extend(map(content, batch))
    assert before == read(photos)
    assert read(urls) == read([other] * N)


@pytest.mark.parametrize("way", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_a_token_opens_private_datasets_and_goes_nowhere_else(
    socket_path: Path, hub: HubServer, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    hub.token = TOKEN
    hub.commit_folder(DATASET, "train", few)
    if way.endswith("TOKEN"):
        monkeypatch.setenv(way, TOKEN)
    else:
        file = tmp_path / "hugging-face" / "token"
        file.parent.mkdir()
        file.write_text(f"{TOKEN}\n")
        if way == "HF_TOKEN_PATH":
            file = file.rename(tmp_path / "elsewhere")
            monkeypatch.setenv(way, str(file))
    with loader(coprep.ImageFolder(f"{ROOT}/train")) as train:
        assert sorted(ids(train)) == list(range(N))
        told = [run("status"), run("doctor", f"{ROOT}/train")]
    assert all(request.headers["Authorization"] == f"Bearer {TOKEN}" for request in hub.requests)
    assert hub.reads and not any(request.headers["Authorization"] for request in hub.reads)
    for done in told:
        said = done.stdout + done.stderr
        assert ROOT in said and TOKEN not in said and SIGNATURE not in said
    place = way if way.endswith("TOKEN") else "the token in"
    assert f"by {place}" in " ".join(told[1].stdout.split())


@pytest.mark.parametrize(
    ("url", "part"),
    [
        (f"{ROOT}/train", "HF_TOKEN"),
        ("hf://datasets/someone/nothing/train", "check the name of the dataset"),
        (f"{ROOT}/nowhere", "there is nothing in"),
        (f"{ROOT}@v9/train", "RevisionNotFound"),
        ("hf://someone/photos", "hf://datasets/owner/name"),
    ],
    ids=["private", "unknown", "empty", "revision", "model"],
)
def test_what_cannot_be_opened_is_one_error_with_a_remedy(
    socket_path: Path, hub: HubServer, few: Path, url: str, part: str
) -> None:
    hub.commit_folder(DATASET, "train", few)
    if url == f"{ROOT}/train":
        hub.token = TOKEN
    with pytest.raises((coprep.CoprepError, ValueError), match=part):
        len(coprep.ImageFolder(url))


def test_a_gated_dataset_waits_for_somebody_who_may_read_it(
    socket_path: Path, hub: HubServer, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_STORAGE_PATIENCE", "2")
    hub.commit_folder(DATASET, "train", few)
    hub.gated = True
    with (
        pytest.raises(coprep.StorageError, match="403 Forbidden"),
        loader(coprep.ImageFolder(f"{ROOT}/train")) as train,
    ):
        ids(train)


def test_the_hub_s_own_client_reads_from_this_server(hub: HubServer, few: Path, tmp_path: Path) -> None:
    # The server stands in for one that cannot be reached. What it has in common with that one is what this client uses.
    hugging_face = pytest.importorskip("huggingface_hub")
    commit = hub.commit_folder(DATASET, "train", few)
    interface = hugging_face.HfApi(endpoint=hub.address)
    assert interface.repo_info(DATASET, repo_type="dataset").sha == commit
    listed = interface.list_repo_tree(DATASET, "train", repo_type="dataset", recursive=True, revision=commit)
    sizes = {entry.path: entry.size for entry in listed if hasattr(entry, "size")}
    assert sizes == {f"train/{path.relative_to(few)}": path.stat().st_size for path in few.rglob("*.jpg")}
    name = sorted(sizes)[0]
    code = (
        "import huggingface_hub, sys; print(huggingface_hub.hf_hub_download(sys.argv[1], sys.argv[2], "
        "repo_type='dataset', cache_dir=sys.argv[3]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, DATASET, name, str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == (few / name.removeprefix("train/")).read_bytes()
