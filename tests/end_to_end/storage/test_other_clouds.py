"""Tests Azure and Google: against Azurite where it is installed, and against the XML interface of Google."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import batches
from object_server import ObjectServer
from photos import make_folder
from waiting import until

N = 40
ACCOUNT = "devstoreaccount1"
# The published key of Azurite's only account.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", N, classes=2)


def loader(root: str | Path, **options: Any) -> coprep.DataLoader:
    operators = coprep.ImageFolder(root).decode().random_resized_crop(32)
    return coprep.DataLoader(operators, batch_size=8, framework="numpy", with_index=True, seed=3, **options)


def same_samples(folder: Path, url: str) -> None:
    local, remote = (batches(loader(root, cache="encoded"), epochs=2) for root in (folder, url))
    assert local == remote


class Azurite:
    """Azurite's blob service, and a client that makes containers and blobs."""

    def __init__(self, program: str, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.log = (folder / "azurite.log").open("wb")
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        command = [program, *options, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        until(self._answers, "Azurite answers")

    def _answers(self) -> bool:
        assert self.process.poll() is None, Path(self.log.name).read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, path: str, body: bytes = b"", query: str = "", **headers: str) -> None:
        """Sends a signed `PUT` (the scheme "Shared Key")."""
        path = urllib.parse.quote(f"/{ACCOUNT}/{path}")
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
        canonical = "".join(f"{name}:{value}\n" for name, value in sorted(sent.items()))
        length = str(len(body)) if body else ""
        resource = f"/{ACCOUNT}{path}" + "".join(f"\n{part.replace('=', ':')}" for part in query.split("&") if part)
        # Encoding, language, length, MD5, type, date and the conditions are empty but for the length and the type.
        text = f"PUT\n\n\n{length}\n\napplication/octet-stream\n\n\n\n\n\n\n{canonical}{resource}"
        signature = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        sent["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
        sent["Content-Type"] = "application/octet-stream"
        url = f"{self.address}{path}" + (f"?{query}" if query else "")
        request = urllib.request.Request(url, data=body, method="PUT", headers=sent)
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def load(self, container: str, folder: Path) -> None:
        self.put(container, query="restype=container")
        for path in folder.rglob("*.jpg"):
            blob = f"{container}/train/{path.relative_to(folder).as_posix()}"
            self.put(blob, path.read_bytes(), **{"x-ms-blob-type": "BlockBlob"})

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


@pytest.fixture
def azurite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Azurite]:
    program = os.environ.get("COPREP_TEST_AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip(
            "Azurite is not installed: npm install --global azurite, or name azurite-blob in COPREP_TEST_AZURITE"
        )
    folder = tmp_path / "azurite"
    folder.mkdir()
    server = Azurite(program, folder)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server.address)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    yield server
    server.end()


def test_azurite_gives_the_samples_of_the_same_files(socket_path: Path, few: Path, azurite: Azurite) -> None:
    azurite.load("photos", few)
    same_samples(few, "az://photos/train")


def test_a_blob_that_was_replaced_is_named(socket_path: Path, few: Path, azurite: Azurite) -> None:
    azurite.load("photos", few)
    last = max(few.rglob("*.jpg"), key=lambda path: path.relative_to(few).as_posix()).relative_to(few).as_posix()
    with loader("az://photos/train", cache="off", shuffle=False) as train:
        batch = iter(train)
        next(batch)
        azurite.put(f"photos/train/{last}", b"another one", **{"x-ms-blob-type": "BlockBlob"})
        with pytest.raises(coprep.SampleError, match=f"az://photos/train/{last} was replaced since it was listed"):
            list(batch)
            list(train)


def test_a_container_that_is_not_there_is_one_error(socket_path: Path, azurite: Azurite) -> None:
    with pytest.raises(coprep.StorageError, match="check the name of the bucket az://nowhere"):
        len(coprep.ImageFolder("az://nowhere/train"))


def test_google_s_interface_gives_the_samples_of_the_same_files(
    socket_path: Path, few: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Google's XML interface lists and reads as S3 does. Its signatures are those of OAuth, which no server here checks.
    monkeypatch.setenv("GOOGLE_BASE_URL", server.address)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    server.load("bucket", "train", few)
    same_samples(few, "gs://bucket/train")
    counts = server.counts()
    # Opening reads the start of one sample.
    assert counts["gets"] == counts["matched"] == N + 1 and counts["heads"] == 0
