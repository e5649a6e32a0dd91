"""A page in headless Chromium, controlled over its DevTools protocol.

`python tests/support/browser.py page.html picture.png [width]` makes a picture of a page.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from websockets.sync.client import ClientConnection, connect

WAIT = 30.0
"""Seconds after which the browser counts as hanging."""
NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


def chromium() -> str | None:
    """Returns the path of a browser that starts, or `None`. Some distributions install only a script with a note on
    where to find it."""
    return next(filter(starts, filter(None, map(shutil.which, NAMES))), None)


def starts(program: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([program, "--version"], capture_output=True, timeout=WAIT).returncode == 0
    return False


class Page:
    """A tab of the browser. It keeps the page's requests and complaints."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.session: str | None = None
        self.calls = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loads = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self.calls += 1
        call, session = self.calls, {"sessionId": self.session} if self.session else {}
        self.socket.send(json.dumps({"id": call, "method": method, "params": params, **session}))
        while (message := self.hear()).get("id") != call:
            pass
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def hear(self) -> dict[str, Any]:
        """Returns the next message, and records the requests, complaints and load events in it."""
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=WAIT))
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))
        elif method == "Page.loadEventFired":
            self.loads += 1
        return message

    def open(self, file: Path, width: int, scheme: str = "light", media: str = "screen") -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.requests, self.complaints, loads = [], [], self.loads
        self.call("Page.navigate", url=file.absolute().as_uri())
        end = time.monotonic() + WAIT
        while self.loads == loads:
            assert time.monotonic() < end, f"{file} is not loaded after {WAIT} s"
            self.hear()

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self) -> Image.Image:
        """Returns a picture of the whole page, including the part below the window."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")


@contextlib.contextmanager
def browser(program: str) -> Iterator[Page]:
    """Starts a browser, yields a tab of it, and ends the browser afterwards."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        # Chromium's sandbox needs rights that containers lack. The browser opens only our own page.
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
        process = subprocess.Popen(
            [program, *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )
        try:
            with connect(address(process, Path(profile)), max_size=None, proxy=None, open_timeout=WAIT) as socket:
                yield Page(socket)
                socket.send(json.dumps({"id": 0, "method": "Browser.close"}))
            # A browser that ignores the request to close is killed below.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        finally:
            process.kill()
            process.wait()


def address(process: subprocess.Popen[bytes], profile: Path) -> str:
    """Waits until the browser listens, and returns its address."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        # The browser has not written the file yet, or only a part of it.
        with contextlib.suppress(FileNotFoundError, ValueError):
            port, path = (profile / "DevToolsActivePort").read_text().split()
            return f"ws://127.0.0.1:{port}{path}"
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        time.sleep(0.05)
    raise TimeoutError(f"the browser does not listen after {WAIT} s")


def main(page: str, picture: str, width: str = "1280") -> None:
    program = chromium()
    assert program, f"none of these is installed: {', '.join(NAMES)}"
    with browser(program) as tab:
        tab.open(Path(page), int(width))
        # A palette needs a third of the bytes, and the eye sees no difference.
        tab.picture().quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
