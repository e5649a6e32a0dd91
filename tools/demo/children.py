"""Child processes that never outlive their parent.

Each runs in its own session, so that Ctrl-C reaches only the parent. The kernel kills it when the parent dies. On every
other way out, the parent ends it by its id, with everything that it started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class ChildFailed(Exception):
    """A child ended when it should not have; the message carries the end of its log."""


class Child:
    """One running process, its messages (JSON, a line each, on its standard output) and its log."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self.started = time.monotonic()
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._partial = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def exit_code(self) -> int | None:
        """Returns the code, or None while it runs. Only `end` reaps the process, so that its id stays reserved."""
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def running(self) -> bool:
        return self.exit_code() is None

    def tell(self, line: str) -> None:
        """Writes a line to its standard input. If the child has just ended, its next reader notices."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def fileno(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the messages that have arrived, and whether more may come. Blocks until something can be read."""
        data = os.read(self.fileno(), 1 << 16)
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines], bool(data)

    def failure(self, what: str = "") -> ChildFailed:
        """Returns an exception that says `what` (by default, how the child ended) and the end of its log."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return ChildFailed(f"{self.name} {what or f'ended with code {self.exit_code()}'}:\n{tail}")

    def end(self, timeout: float = 5.0) -> None:
        """Asks the child and everything it started to end, and kills them after `timeout` seconds."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.01)
        # Even if the child has ended, something that it has started may be left in its group.
        self._signal(signal.SIGKILL)
        self.process.wait(timeout)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            # Closing writes the buffered rest, which a child that has ended does not take.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        """Signals the child's whole process group, whose id is the child's."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Children(contextlib.ExitStack):
    """Starts children, and ends them all when the block is left, the youngest first.

    Owns a temporary folder for their logs and sockets, which is removed at the end.
    """

    def __enter__(self) -> Children:
        super().__enter__()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="coprep-")))
        return self

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        child = Child(name, command, self.folder / f"{name.replace(' ', '-')}.log", env or {})
        self.callback(child.end)
        return child

    def module(self, name: str, module: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Runs a Python module of this repository in this interpreter's environment."""
        return self.start(name, [sys.executable, "-m", module, *arguments], env)

    def coordinator(
        self,
        cache: str = "0",
        options: Sequence[str] = (),
        name: str = "coordinator",
        env: Mapping[str, str] | None = None,
    ) -> tuple[Child, dict[str, str]]:
        """Starts a coordinator of our own, and waits until it answers. Returns it and the environment for its jobs."""
        path = self.folder / f"{name}.sock"
        command = [str(coprep_command()), "serve", "--socket", str(path), "--cache", cache, *options]
        child = self.start(name, command, env)
        await_socket(child, path)
        return child, {"COPREP_SOCKET": str(path)}


def coprep_command() -> Path:
    """Returns the `coprep` command that `COPREP_BIN` names, or that of this interpreter's environment."""
    return Path(os.environ.get("COPREP_BIN") or Path(sys.executable).with_name("coprep"))


def await_socket(child: Child, path: Path, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not answers(path):
        if not child.running():
            raise child.failure()
        if time.monotonic() > deadline:
            raise child.failure(f"does not answer on {path} after {timeout:.0f} s")
        time.sleep(0.02)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def messages(children: Sequence[Child], seconds: float) -> Iterator[tuple[Child, dict[str, Any]]]:
    """Yields the children's messages within the next `seconds`. Returns early when all have closed their output."""
    deadline = time.monotonic() + seconds
    # Without a registered pipe, the loop below would end at once.
    if not children:
        time.sleep(seconds)
    with selectors.DefaultSelector() as selector:
        for one in children:
            selector.register(one, selectors.EVENT_READ, one)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                child: Child = key.data
                said, open_still = child.read()
                yield from ((child, message) for message in said)
                if not open_still:
                    selector.unregister(child)


def die_with_parent() -> None:
    """Makes the kernel kill the child when its parent dies. Runs in the child before its program starts."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def exit_code(work: Callable[[], None]) -> int:
    """Does the work, and returns the exit code: 0 done, 1 a child failed, 130 stopped by the user."""
    end_on_terminate()
    try:
        work()
    except ChildFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


def end_on_terminate() -> None:
    """Lets SIGTERM and SIGHUP leave our blocks as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
