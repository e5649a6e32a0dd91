"""An object store for tests, in a process of its own: `tests/object_server`, with faults on demand."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PROGRAM = "coprep-object-server"
SECRET = "SECRET-that-nobody-may-see"
"""The secret access key of the environment. It must be in no message, log, status or command line."""


def _program() -> Path:
    # Imported here, because benchmarks, which name the program, run without it.
    import pytest

    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = [target / profile / _PROGRAM for profile in ("debug", "release")]
    program = next((path for path in found if path.exists()), None)
    if program is None:
        pytest.fail(f"{_PROGRAM} is not built: cargo build -p {_PROGRAM}")
    return program


@dataclass(frozen=True)
class Credentials:
    """Temporary credentials, which the server's metadata service gives."""

    key: str
    secret: str
    token: str
    bucket: str = ""
    """The only bucket that they may read, or ``""`` for all."""


class ObjectServer:
    """A server with buckets. It ends with this process."""

    def __init__(self, program: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [program or _program()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def environment(self) -> dict[str, str]:
        """Returns the environment of a process that reads from it by ``s3://``."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.address}/{path}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def load(self, bucket: str, prefix: str, folder: Path) -> None:
        """Puts all files below a folder."""
        arguments = urllib.parse.urlencode({"bucket": bucket, "prefix": prefix, "folder": str(folder)})
        self._ask("PUT", f"-/load?{arguments}", b"")

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self._ask("PUT", f"{bucket}/{urllib.parse.quote(key)}", content)

    def delete(self, bucket: str, key: str) -> None:
        self._ask("DELETE", f"{bucket}/{urllib.parse.quote(key)}")

    def flip(self, bucket: str, key: str, at: int) -> None:
        """Changes a byte of an object behind its back: its ETag stays."""
        self._ask("PUT", f"-/flip?{urllib.parse.urlencode({'bucket': bucket, 'key': key, 'at': at})}", b"")

    def demand(self, *credentials: Credentials) -> None:
        """Refuses requests with any other credentials from now on, as expired. The metadata service gives the first."""
        fields = {
            name: ",".join(asdict(one)[name] for one in credentials) for name in ("key", "secret", "token", "bucket")
        }
        self._ask("PUT", f"-/credentials?{urllib.parse.urlencode(fields)}", b"")

    def environment_of_a_role(self) -> dict[str, str]:
        """Returns the environment of a process that asks the metadata service for credentials."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_METADATA_ENDPOINT": self.address,
            "AWS_REGION": "us-east-1",
        }

    def faults(self, **faults: object) -> None:
        """Sets the faults from now on, by the names of ``Faults`` in `tests/object_server`. Without any, none."""
        self._ask("PUT", f"-/faults?{urllib.parse.urlencode(faults)}", b"")

    @contextlib.contextmanager
    def refusing(self, answer: str) -> Iterator[None]:
        """Answers every request with an error such as ``503 SlowDown``, until the block ends.

        The errors end also if the test fails in the block. Its jobs would otherwise wait for minutes before they end.
        """
        self.faults(refuse=answer)
        try:
            yield
        finally:
            self.faults()

    def counts(self) -> dict[str, int]:
        """Returns the number of requests so far (``lists``, ``gets``, ``heads``), and the ``bytes`` of objects sent."""
        counts: dict[str, int] = json.loads(self._ask("GET", "-/counts"))
        return counts

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)
