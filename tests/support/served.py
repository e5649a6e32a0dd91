"""A coordinator that serves metrics: its log, and its answers over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

from waiting import WAIT, until

SAMPLE = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]
Series = dict[tuple[str, Labels], float]


class Coordinator:
    """``coprep serve``, with its log in a file."""

    def __init__(self, socket: Path, log: Path, *arguments: str) -> None:
        self.log = log
        command = ["coprep", "serve", "--socket", str(socket), "--log-format", "json", *arguments]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stderr=file)
        until(lambda: self.says("coordinator listens") or self.process.poll() is not None, "the coordinator listens")
        assert self.process.poll() is None, log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text()
        # The coordinator may be writing its last line.
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        assert all(line.startswith("{") for line in lines), text
        return [json.loads(line) for line in lines]

    def says(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["message"] == message]

    @property
    def port(self) -> int:
        return port_of(self.says("metrics are served")[0]["url"])

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT)


def port_of(url: str) -> int:
    port = urllib.parse.urlsplit(url).port
    assert port
    return port


def ask(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Returns the status, the headers with names in lower case, and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()


def series(text: str) -> Series:
    found: Series = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        key = match["name"], frozenset(LABEL.findall(match["labels"] or ""))
        assert key not in found, f"twice: {line}"
        found[key] = float(match["value"])
    return found
