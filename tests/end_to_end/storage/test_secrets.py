"""Tests that no secret is anywhere: in no log, status, metric, command line, file or message."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import coprep
import pytest
from batches import ids
from coordinators import processes_of
from object_server import Credentials, ObjectServer
from served import Coordinator, ask
from shards import write_shards
from waiting import WAIT

FIRST, SECOND = (Credentials(f"KEYID{n}", f"SECRET{n}", f"TOKEN{n}") for n in ("ONE", "TWO"))
SECRETS = [text.encode() for one in (FIRST, SECOND) for text in (one.key, one.secret, one.token)]
SHARDS = "s3://bucket/shards/train-{000..001}.tar"
PHOTOS, OTHER = "s3://bucket/photos", "s3://bucket/other"


def found_in(content: bytes) -> list[bytes]:
    return [secret for secret in SECRETS if secret in content]


def files_below(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file())


def named() -> list[Path]:
    """Returns the named caches of this test in memory."""
    return list(Path("/dev/shm").glob(f"*secrets-{os.getpid()}*"))


def say(*command: str) -> bytes:
    """Runs a command. Returns everything that it says."""
    done = subprocess.run(["coprep", *command], capture_output=True, timeout=WAIT)
    assert done.stdout + done.stderr, command
    return done.stdout + done.stderr


@pytest.fixture
def told(server: ObjectServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store that wants temporary credentials. Yields a folder that holds what the coordinator writes."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    kept = tmp_path / "kept"
    kept.mkdir()
    settings = server.environment_of_a_role() | {
        "XDG_CACHE_HOME": str(kept / "home"),
        "COPREP_DISK_CACHE": str(kept / "disk"),
        "COPREP_DISK_BYTES": "16M",
        "COPREP_CACHE_NAME": f"secrets-{os.getpid()}",
        "COPREP_LOG": "trace",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    server.load("bucket", "photos", folder)
    server.load("bucket", "other", folder)
    write_shards(tmp_path / "shards", sorted(folder.rglob("*.jpg"))[:40], 2)
    server.load("bucket", "shards", tmp_path / "shards")
    server.demand(FIRST)
    yield kept
    # Those of a test that has failed.
    for path in named():
        path.unlink()


def test_no_secret_is_anywhere(socket_path: Path, server: ObjectServer, told: Path, tmp_path: Path) -> None:
    coordinator = Coordinator(socket_path, told / "log", "--metrics", "127.0.0.1:0")
    try:
        texts = run(server, coordinator, socket_path)
        assert named()
        written = {path: path.read_bytes() for path in [*files_below(told, socket_path.parent), *named()]}
        for url in (PHOTOS, OTHER, SHARDS):
            say("drop", url)
    finally:
        coordinator.end()
    assert {name: secrets for name, text in texts.items() if (secrets := found_in(text))} == {}
    assert {path: secrets for path, text in written.items() if (secrets := found_in(text))} == {}
    # The log is one in which everything is told, and the files are those that matter.
    log = (told / "log").read_bytes()
    assert b"TRACE" in log and not found_in(log)
    assert any(path.suffix == ".samples" for path in written) and any(path.suffix == ".index" for path in written)


def run(server: ObjectServer, coordinator: Coordinator, socket: Path) -> dict[str, bytes]:
    """Runs jobs while credentials expire and the store refuses. Returns everything that was said meanwhile, by name."""
    texts = {}
    for source in (coprep.ImageFolder(PHOTOS), coprep.WebDataset(SHARDS)):
        pipeline = source.decode().random_resized_crop(32)
        with coprep.DataLoader(pipeline, batch_size=8, framework="numpy", with_index=True) as train:
            assert len(ids(train)) == len(source)
            texts[f"loader of {source}"] = f"{train!r} {train.stats()} {train.state_dict()}".encode()
    # Nothing of this dataset is cached, so that the job waits until the coordinator has the new credentials.
    pipeline = coprep.ImageFolder(OTHER).decode().random_resized_crop(32)
    with coprep.DataLoader(pipeline, batch_size=8, framework="numpy", with_index=True) as train:
        assert len(train)
        server.demand(SECOND)
        assert len(ids(train)) == len(pipeline)
        texts["commands"] = b"".join(
            say(*command)
            for command in (
                ("status",),
                ("status", "--json"),
                ("top", "--once"),
                ("doctor", PHOTOS),
                ("doctor", "--json", PHOTOS),
                ("index", SHARDS, "--checksums"),
                ("warm", PHOTOS, "--form", "encoded"),
            )
        )
        texts["status"] = json.dumps(coprep.status()).encode()
        texts["metrics"] = ask(coordinator.port)[2].encode()
        processes = processes_of(socket)
        assert coordinator.process.pid in processes
        texts["command lines"] = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes)
    server.faults(refuse="403 AccessDenied")
    with pytest.raises(coprep.StorageError) as refused:
        len(coprep.ImageFolder("s3://bucket/elsewhere"))
    texts["error"] = str(refused.value).encode()
    texts["doctor of a store that refuses"] = say("doctor", PHOTOS)
    server.faults()
    return texts
