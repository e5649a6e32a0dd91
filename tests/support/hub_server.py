"""A server with the interface of the Hugging Face Hub, which no test can reach. Hugging Face's client reads from it.

Large files lie on another server, as in the real one: reads are sent on to a signed URL, where no token may come.
"""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = 50
"""Number of entries in a page of a listing."""
LARGE = 1024
"""Size from which the bytes of a file lie on the other server."""
SIGNATURE = "SECRET-signature"


@dataclass
class Request:
    """A request that has come."""

    path: str
    headers: Message


@dataclass
class HubServer:
    """Datasets by name. A dataset is a list of commits, and a commit is its files by path. The last one is `main`."""

    address: str = ""
    token: str | None = None
    """The token without which there is nothing to see, or `None` if everything is public."""
    gated: bool = False
    relative_links: bool = False
    """``True`` if a page of a listing names the next one without the address of the server."""
    datasets: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    """Requests to the Hub."""
    reads: list[Request] = field(default_factory=list)
    """Requests to the server of large files."""
    store_address: str = ""

    def commit(self, dataset: str, files: Mapping[str, bytes]) -> str:
        """Adds a commit with these files and no others. Returns its name."""
        commits = self.datasets.setdefault(dataset, [])
        commits.append(dict(files))
        return commit_name(dataset, len(commits) - 1)

    def commit_folder(self, dataset: str, prefix: str, folder: Path) -> str:
        """Adds a commit with the files of a folder."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return self.commit(
            dataset, {f"{prefix}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}
        )

    def find(self, dataset: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.datasets[dataset]
        for number, files in enumerate(commits):
            name = commit_name(dataset, number)
            if revision == name or (revision == "main" and number == len(commits) - 1):
                return name, files
        return None


def commit_name(dataset: str, number: int) -> str:
    return hashlib.sha1(f"{dataset} {number}".encode()).hexdigest()


class _Answering(BaseHTTPRequestHandler):
    """Answers requests, each connection in a thread of its own."""

    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: Any, **headers: str) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def answer_file(self, content: bytes, **headers: str) -> None:
        """Answers with a file, or with the range of it that is asked for."""
        headers |= {"Accept_Ranges": "bytes", "Last_Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}
        asked = self.headers.get("Range")
        if asked is None:
            self.answer(200, content, **headers)
            return
        first, last = asked.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last or len(content)), len(content) - 1)
        headers["Content_Range"] = f"bytes {start}-{end}/{len(content)}"
        self.answer(206, content[start : end + 1], **headers)


class _Hub(_Answering):
    def do_GET(self) -> None:
        self.hub.requests.append(Request(self.path, self.headers))
        path, _, query = self.path.partition("?")
        is_interface = path.startswith("/api/")
        parts = [urllib.parse.unquote(part) for part in path.removeprefix("/api").split("/")[1:]]
        dataset, rest = "/".join(parts[1:3]), "/".join(parts[5:])
        # Hugging Face's client asks for the dataset itself, which stands for its branch `main`.
        how, revision = parts[3:5] or ("revision", "main")
        denied = self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}"
        if dataset not in self.hub.datasets or denied:
            self.answer(401, b"Repository not found", X_Error_Code="RepoNotFound")
        elif self.hub.gated and how == "resolve":
            self.answer(403, b"Access to it is restricted", X_Error_Code="GatedRepo")
        elif (found := self.hub.find(dataset, revision)) is None:
            self.answer(404, b"Invalid rev id", X_Error_Code="RevisionNotFound")
        elif is_interface and how == "revision":
            self.answer_json({"id": dataset, "sha": found[0]})
        elif is_interface and how == "tree":
            self.tree(found[1], rest, urllib.parse.parse_qs(query))
        else:
            self.resolve(*found, rest)

    def tree(self, files: dict[str, bytes], folder: str, query: dict[str, list[str]]) -> None:
        """Gives a page of a listing: folders before the files in them, in the order of their paths."""
        prefix = f"{folder}/" if folder else ""
        below = {path: content for path, content in files.items() if path.startswith(prefix)}
        if not below:
            self.answer(404, f"{folder} does not exist".encode(), X_Error_Code="EntryNotFound")
            return
        folders = {str(parent) for path in below for parent in Path(path).parents if str(parent) not in (".", folder)}
        entries = [entry(path, below.get(path)) for path in sorted(folders | set(below))]
        if query.get("recursive", ["false"])[0].lower() != "true":
            entries = [one for one in entries if "/" not in one["path"].removeprefix(prefix)]
        start = int(query.get("cursor", ["0"])[0])
        link = {}
        if start + PAGE < len(entries):
            query["cursor"] = [str(start + PAGE)]
            address = "" if self.hub.relative_links else self.hub.address
            page = f"{address}{self.path.partition('?')[0]}?{urllib.parse.urlencode(query, doseq=True)}"
            link = {"Link": f'<{page}>; rel="next"'}
        self.answer_json(entries[start : start + PAGE], **link)

    def resolve(self, commit: str, files: dict[str, bytes], path: str) -> None:
        content = files.get(path)
        if content is None:
            self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            return
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        told = {"X_Repo_Commit": commit, "X_Linked_Size": str(len(content)), "X_Linked_Etag": etag, "ETag": etag}
        if len(content) < LARGE:
            self.answer_file(content, **told)
            return
        name = urllib.parse.quote(f"{commit}/{path}")
        self.answer(302, Location=f"{self.hub.store_address}/{name}?Signature={SIGNATURE}", **told)


class _Store(_Answering):
    def do_GET(self) -> None:
        self.hub.reads.append(Request(self.path, self.headers))
        path, _, query = self.path.partition("?")
        commit, _, key = urllib.parse.unquote(path[1:]).partition("/")
        found = [files for name in self.hub.datasets if (files := self.hub.find(name, commit)) is not None]
        if query != f"Signature={SIGNATURE}" or not found:
            self.answer(403)
            return
        # An ETag of its own, which is not the Hub's.
        self.answer_file(found[0][1][key], ETag='"of-the-store"')


def entry(path: str, content: bytes | None) -> dict[str, Any]:
    """Returns an entry of a listing: a folder if there is no content."""
    oid = hashlib.sha1(path.encode()).hexdigest()
    if content is None:
        return {"type": "directory", "oid": oid, "size": 0, "path": path}
    told: dict[str, Any] = {"type": "file", "oid": oid, "size": len(content), "path": path}
    if len(content) >= LARGE:
        told["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return told


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Runs a Hub without datasets, and the server of its large files."""
    hub = HubServer()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"hub": hub})) for kind in (_Hub, _Store)]
    hub.address, hub.store_address = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
