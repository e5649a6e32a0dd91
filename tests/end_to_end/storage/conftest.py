"""Fixtures for tests of remote storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import ObjectServer

BUCKET = "bucket"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A server with an empty bucket. A coordinator that starts from now on reads from it."""
    server = ObjectServer()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    server.put(BUCKET, "", b"")
    yield server
    server.close()


@pytest.fixture
def photos(server: ObjectServer, folder: Path) -> str:
    """The URL of the photos of ``folder``."""
    server.load(BUCKET, "photos", folder)
    return f"s3://{BUCKET}/photos"
