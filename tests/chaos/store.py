"""The object store of a history: a server with all images, which can be killed, stopped and made to fail."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.chaos import data as datasets
from tests.chaos import faults
from tests.chaos.keys import Keys
from tests.chaos.plan import BUCKET, SHARDED, SIZES, Data, Fault

ROOT = Path(__file__).parents[2]
PROGRAM = "coprep-object-server"
CONTROL_S = 5.0
"""Seconds within which a server that runs answers."""
BREAKING: dict[str, Any] = {
    "error_share": 0.1,
    "reset_share": 0.05,
    "stall_share": 0.02,
    "wrong_range_share": 0.02,
    "stall_ms": 300,
}
"""Faults of single requests while a fault ``breaks`` lasts."""


def find_program() -> str:
    """Returns the path of the server's program, or ``""`` if it is not built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = (target / profile / PROGRAM for profile in ("release", "debug"))
    return next((str(path) for path in built if path.exists()), "")


class Store:
    """The server, and its port, which stays the same when it is started again."""

    def __init__(self, program: str, images: Path, keys: Keys | None = None) -> None:
        self._loads: list[str] = []
        for name in ("list", *(f"{kind}-{size}" for size in SIZES for kind in ("folder", "shards"))):
            self._loads += [BUCKET, name, str(images / name)]
        self._program = program
        self._keys = keys
        self.is_stopped = False
        self._failing: dict[str, Any] = {}
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Id of the server's process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """``True`` if the server answers, be it by refusals."""
        return not self.is_stopped and self._process.returncode is None

    def start(self) -> None:
        """Starts the server, or starts it again, with the objects that it had at first and without faults."""
        command = [self._program, str(self._port), *self._loads]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise faults.Unable(f"{PROGRAM} does not start")
        self._port = int(line)
        self._failing = {}
        self._demand_keys()

    def environment(self) -> dict[str, str]:
        """Returns the environment of jobs that read from the server."""
        signed = {} if self._keys else {"AWS_SKIP_SIGNATURE": "true"}
        return {"AWS_ENDPOINT_URL": self.address, "AWS_REGION": "us-east-1", **signed}

    def take_new_keys(self) -> None:
        """Lets the jobs give new keys from now on, and takes both the old and the new ones."""
        assert self._keys is not None
        self._keys.begin_next()
        self._demand_keys()
        self._keys.publish()

    def refuse_old_keys(self) -> None:
        assert self._keys is not None
        self._keys.forget_old()
        if self.is_running:
            self._demand_keys()

    def _demand_keys(self) -> None:
        """Tells the server which keys it takes. Without any, it takes every request."""
        if self._keys:
            given = self._keys.accepted()
            fields = {name: ",".join(one[name] for one in given) for name in ("key", "secret", "token")}
            self._ask("PUT", f"-/credentials?{urllib.parse.urlencode(fields)}", b"")

    def kill(self) -> None:
        self._process.kill()
        # Everything that has inherited the other end of this pipe closes it by itself.
        self._process.wait()

    def stop(self) -> None:
        self.is_stopped = True
        faults.send(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        self.is_stopped = False
        faults.send(self.pid, signal.SIGCONT)
        self._set_faults()

    def fail(self, **what: Any) -> None:
        """Sets the faults of the server, now or when it runs again. Without any, it has none."""
        self._failing = what
        if self.is_running:
            self._set_faults()

    def _set_faults(self) -> None:
        # While it was stopped, it may have been told of no new keys.
        self._demand_keys()
        what = self._failing
        self._ask("PUT", f"-/faults?{urllib.parse.urlencode(what)}", b"")

    def change(self, data: Data, fault: Fault) -> None:
        """Carries out a fault of kind ``objects``."""
        if data.kind not in SHARDED:
            for i in fault.ids:
                content = datasets.image(i, version=1) if fault.target == "replaced" else None
                self._ask("DELETE" if content is None else "PUT", f"{BUCKET}/list/{i:04}.jpg", content)
            return
        for number in sorted({data.shard_of(i) for i in fault.ids}):
            ids = [i for i in range(data.samples) if data.shard_of(i) == number]
            shard = io.BytesIO()
            datasets.write_shard(shard, ids, [datasets.image(i, version=1) for i in ids])
            self._ask("PUT", f"{BUCKET}/shards-{data.samples}/{number}.tar", shard.getvalue())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> None:
        request = urllib.request.Request(f"{self.address}/{path}", data=body, method=method)
        urllib.request.urlopen(request, timeout=CONTROL_S).close()

    def end(self) -> None:
        """Ends the server, whatever it does."""
        with contextlib.suppress(ChildProcessError):
            self.kill()
