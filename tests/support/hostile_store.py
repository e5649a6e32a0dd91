"""A store of S3 that answers what a broken or a hostile server may answer. The bucket names the behaviour."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

COUNT = 8
DAY = "Mon, 02 Nov 2026 10:00:00 GMT"


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


OBJECTS = {f"p/{number % 2}/{number}.png": picture(number) for number in range(COUNT)}


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def entry(key: str, size: object, tag: str) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>2026-11-02T10:00:00.000Z</LastModified><ETag>{tag}</ETag>"
        f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def page(entries: Iterable[str], token: str | None = None) -> str:
    more = "" if token is None else f"<NextContinuationToken>{token}</NextContinuationToken>"
    truncated = "false" if token is None else "true"
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>b</Name><Prefix></Prefix>'
        f"<IsTruncated>{truncated}</IsTruncated>{more}{''.join(entries)}</ListBucketResult>"
    )


def all_entries() -> list[str]:
    return [entry(key, len(content), etag(content)) for key, content in OBJECTS.items()]


def error(code: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"


class Request(BaseHTTPRequestHandler):
    """A request, with what behaviours answer by."""

    protocol_version = "HTTP/1.1"
    server: HostileStore

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.bucket, _, key = url.path.lstrip("/").partition("/")
        self.key = urllib.parse.unquote(key)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        self.server.seen[self.bucket].append(dict(self.headers))
        listing, objects = self.server.behaviours[self.bucket]
        try:
            (listing if "list-type" in self.query else objects)(self)
        except OSError:
            # Whoever has asked has hung up.
            self.close_connection = True

    do_HEAD = do_GET

    def send(self, status: int, body: bytes | str, **headers: str) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_head(status, **{"Content_Length": str(len(content)), **headers})
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_head(self, status: int, **headers: str) -> None:
        self.send_response(status, HTTPStatus(status).phrase)
        self.send_header("Last-Modified", DAY)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send_forever(self, status: int, piece: bytes, pause: float = 0) -> None:
        """Sends a body without an end, until whoever asks hangs up."""
        self.close_connection = True
        self.send_head(status, Connection="close", ETag='"0"')
        while True:
            self.wfile.write(piece)
            self.server.sent[self.bucket] += len(piece)
            time.sleep(pause)

    def hang_up(self) -> None:
        self.close_connection = True


def lists(request: Request) -> None:
    request.send(200, page(all_entries()), Content_Type="application/xml")


def gives(request: Request) -> None:
    content = OBJECTS.get(request.key)
    if content is None:
        request.send(404, error("NoSuchKey"))
        return
    first, last = 0, len(content) - 1
    headers = {"ETag": etag(content), "Accept_Ranges": "bytes"}
    if "Range" in request.headers:
        start, _, end = request.headers["Range"].removeprefix("bytes=").partition("-")
        first, last = int(start), min(int(end or last), last)
        headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
        request.send(206, content[first : last + 1], **headers)
    else:
        request.send(200, content, **headers)


Behaviour = Callable[[Request], None]


class HostileStore(ThreadingHTTPServer):
    """A server whose buckets have the behaviours that they are named after: for listings, and for objects."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behaviours: dict[str, tuple[Behaviour, Behaviour]]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.behaviours = behaviours
        self.seen: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass
