"""Processes that fork others on request, and end with their parents: zygotes and fork servers.

``coordinator/protocol/src/code.rs`` describes the messages. A worker ends with its fork server, the fork server with
its zygote, and the zygote with the coordinator.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import warnings
from typing import Any, NoReturn

from coprep._output import tolerate_failures

_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1


def enter() -> socket.socket:
    """Makes this process end with its parent. Returns the socket for its orders, which it got as standard input."""
    tolerate_failures()
    end_with_parent(os.getppid())
    # Ctrl-C in the terminal of a coordinator reaches its children too, but the coordinator decides when they end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The coordinator blocks signals that it reads from a descriptor, and its children inherit the mask.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    control = socket.socket(fileno=os.dup(0))
    # User code that reads the standard input must not read the coordinator's messages.
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    if is_hung_up(control):
        # The parent ended before this process was tied to it. The imports, which may take long, would serve nobody.
        os._exit(0)
    return control


def end(status: int) -> NoReturn:
    """Ends a fork server or a zygote without taking the interpreter apart.

    Otherwise libraries would report their leaks, which concern nobody (nanobind writes dozens of lines). Functions that
    user code registered with ``atexit`` are called.
    """
    # A function of user code may raise anything, even SystemExit, and the process ends nevertheless.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    flush()
    os._exit(status)


def flush() -> None:
    """Writes text that is still buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def fork() -> int:
    """Calls ``os.fork`` without its warning about threads."""
    # Text that is still buffered would be written twice.
    flush()
    with warnings.catch_warnings():
        # A user whose code starts threads while it is loaded has to ask for spawn.
        warnings.simplefilter("ignore")
        return os.fork()


def end_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the call, and then no signal comes.
    if os.getppid() != parent:
        os._exit(1)


def is_hung_up(sock: socket.socket) -> bool:
    """Returns whether the other side of a socket is gone."""
    watch = select.poll()
    watch.register(sock, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in watch.poll(0))


class _Channel:
    """Messages over a socket, each with its length before it. Some come with file descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.descriptors: list[int] = []
        self._received = bytearray()

    def send(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        data = _LENGTH.pack(len(message)) + message
        if descriptors:
            sent = socket.send_fds(self.socket, [data], list(descriptors))
            data = data[sent:]
        self.socket.sendall(data)

    def has_message(self) -> bool:
        """Returns whether a message has come whole."""
        received = self._received
        return len(received) >= 4 and len(received) >= 4 + int(_LENGTH.unpack_from(received)[0])

    def receive(self) -> bytes | None:
        """Waits for the next message and returns it, or ``None`` if the other side is gone."""
        received = self._received
        while True:
            if self.has_message():
                end = 4 + _LENGTH.unpack_from(received)[0]
                message = bytes(received[4:end])
                del received[:end]
                return message
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
            self.descriptors += descriptors
            if not data:
                return None
            received += data


class Parent:
    """A process that forks others on request, and reports how they end."""

    def __init__(self, control: socket.socket) -> None:
        self._channel = _Channel(control)
        self._children: dict[int, tuple[int, int]] = {}  # number and process id, by descriptor of the process

    def run(self) -> None:
        """Carries out requests until the other side hangs up. No child is left then, whatever happens."""
        try:
            while True:
                control = self._channel.socket.fileno()
                ready, _, _ = select.select([control, *self._children], [], [])
                for process in set(ready) - {control}:
                    self._reap(process)
                if control not in ready:
                    continue
                while self._handle_message():
                    # Several messages may come in one read, and the socket is not readable again for the later ones.
                    if not self._channel.has_message():
                        break
                else:
                    return
        finally:
            # All are killed before the first is awaited, so that they end at the same time.
            for _, pid in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for _, pid in self._children.values():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def close(self) -> None:
        """Closes the parent's descriptors, in a child that was forked from it."""
        self._channel.socket.close()
        for other in self._children:
            os.close(other)

    def _handle_message(self) -> bool:
        try:
            message = self._channel.receive()
        except ConnectionResetError:
            message = None
        if message is None:
            return False
        request = json.loads(message)
        what = request.pop("do")
        try:
            getattr(self, f"_{what}")(**request)
        except BrokenPipeError:
            return False
        except Exception as error:
            self._report_failure(what, request.get("worker"), error)
        return True

    def _report_failure(self, what: str, worker: int | None, error: Exception) -> None:
        """Reports that a request failed. ``worker`` is the number of the worker that it was about, if any."""
        raise NotImplementedError

    def _send_event(self, event: str, descriptors: tuple[int, ...] = (), **values: Any) -> None:
        self._channel.send(json.dumps({"event": event, **values}).encode(), descriptors)

    def _adopt(self, pid: int, number: int) -> None:
        try:
            process = os.pidfd_open(pid)
        except OSError:
            # Without a descriptor nobody would see the child end.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[process] = (number, pid)

    def _end_child(self, number: int) -> None:
        for other, pid in self._children.values():
            if other == number:
                # The child stays listed until `_reap` reports its end.
                os.kill(pid, signal.SIGKILL)

    def _reap(self, process: int) -> None:
        number, pid = self._children.pop(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        self._ended(number, status)

    def _ended(self, number: int, status: int) -> None:
        raise NotImplementedError
