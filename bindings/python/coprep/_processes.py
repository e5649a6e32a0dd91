"""Processes that are forked from others: fork servers and workers.

``coordinator/protocol/src/code.rs`` describes the messages. A worker ends with its fork server. A fork server ends with
its job, and when the coordinator hangs up.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
MOST_DESCRIPTORS = 253
"""Largest number of descriptors in one message, as the kernel allows it."""
_GRACE = 0.5
"""Seconds that workers get to finish their samples when nobody needs them any more."""


def flush() -> None:
    """Writes text that is still buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def fork() -> int:
    """Calls ``os.fork`` so that the child may go on for long.

    Garbage collection is off in the child, because it would call ``__del__`` of the parent's garbage there.
    """
    # Text that is still buffered would be written twice.
    flush()
    collects = gc.isenabled()
    gc.disable()
    pid = -1
    try:
        with warnings.catch_warnings():
            # Python warns if there are threads. PyTorch forks all the same. Where that fails, users ask for spawn.
            warnings.simplefilter("ignore")
            pid = os.fork()
    finally:
        if collects and pid != 0:
            gc.enable()
    return pid


def leave_parent() -> None:
    """Lets a forked process own what it does from now on, and nothing that its parent looks after.

    Objects of ``multiprocessing`` know their process by these functions, which it calls in its own children.
    """
    # The collector never looks at the present objects again: it would copy their pages, and end those that are garbage.
    gc.freeze()
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        util._run_after_forkers()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children = set()


class Signals(NamedTuple):
    """The handling of signals in a process."""

    handlers: dict[int, Any]
    mask: set[Any]

    def restore(self) -> None:
        """Handles signals in this way again, except that Ctrl-C is the job's."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def reset_signals() -> Signals:
    """Sets Python's signal handlers and the mask as in a new process, except that Ctrl-C is the job's.

    Returns:
        the handlers and the mask of before, which workers have, as PyTorch's have.
    """
    signal.set_wakeup_fd(-1)
    handlers: dict[int, Any] = {}
    for number in signal.valid_signals() - {signal.SIGINT}:
        handler = signal.getsignal(number)
        # A handler of the job would run here, and a program that ignores SIGCHLD cannot wait for its children.
        if callable(handler) or (number == signal.SIGCHLD and handler is not None):
            handlers[number] = handler
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Signals(handlers, signal.pthread_sigmask(signal.SIG_SETMASK, []))


def end_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the call, and then no signal comes.
    if os.getppid() != parent:
        os._exit(1)


def readable(descriptors: Iterable[int], timeout: float | None = None) -> list[int]:
    """Waits until one of some descriptors is readable or hung up, and returns those that are.

    ``select.select`` would refuse numbers above 1,023, which a program with many open files has.
    """
    watch = select.poll()
    for descriptor in descriptors:
        watch.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in watch.poll(None if timeout is None else timeout * 1000)]


def is_hung_up(sock: socket.socket) -> bool:
    """Returns whether the other side of a socket is gone."""
    watch = select.poll()
    watch.register(sock, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in watch.poll(0))


@contextlib.contextmanager
def ending_with(*descriptors: int | socket.socket) -> Iterator[None]:
    """Ends this process if the other side of a socket hangs up, or a process ends (pidfd), in the block.

    The block may take as long as large imports do.
    """
    stop, stopped = os.pipe()
    watch = select.poll()
    for descriptor in descriptors:
        # A socket may have messages to be read, but the descriptor of a process is readable when it has ended.
        watch.register(descriptor, 0 if isinstance(descriptor, socket.socket) else select.POLLIN)
    watch.register(stop, select.POLLIN)

    def end_if_gone() -> None:
        if any(descriptor != stop for descriptor, _ in watch.poll()):
            os._exit(1)

    watcher = threading.Thread(target=end_if_gone, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        # Not by closing it: a process that user code has forked meanwhile would hold it open.
        os.write(stopped, b".")
        watcher.join()
        os.close(stop)
        os.close(stopped)


class Channel:
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
        return len(received) >= _LENGTH.size and len(received) >= _LENGTH.size + _LENGTH.unpack_from(received)[0]

    def receive(self) -> bytes | None:
        """Returns the next message, or ``None`` if the other side has hung up."""
        received = self._received
        while True:
            if len(received) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(received)
                end = _LENGTH.size + length
                if len(received) >= end:
                    message = bytes(received[_LENGTH.size : end])
                    del received[:end]
                    return message
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, MOST_DESCRIPTORS)
            self.descriptors += descriptors
            if not data:
                return None
            received += data


class Parent:
    """A process that forks others on request, and reports how they end.

    Args:
        control: socket over which the coordinator asks.
        job: descriptor of the process (pidfd) with which this one ends, or ``None``.
    """

    def __init__(self, control: socket.socket, job: int | None) -> None:
        self._channel = Channel(control)
        self._job = job
        self._children: dict[int, tuple[int, int]] = {}  # number and process id, by descriptor of the process

    def run(self) -> None:
        """Carries out requests until the other side hangs up or the job ends. No child is left then."""
        control, job = self._channel.socket.fileno(), [] if self._job is None else [self._job]
        try:
            while True:
                ready = readable([control, *job, *self._children])
                if self._job in ready:
                    return
                for process in set(ready) - {control}:
                    self._reap(process)
                if control not in ready:
                    continue
                while self._handle_message():
                    # Several messages may come in one read, and the socket is not readable again for the later ones.
                    if not self._channel.has_message():
                        break
                else:
                    self._wait_for_children()
                    return
        finally:
            # All are killed before the first is awaited, so that they end at the same time.
            for _, pid in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for _, pid in self._children.values():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _wait_for_children(self) -> None:
        """Lets the children end by themselves, if they do so soon: the coordinator has hung up on them, too."""
        end = time.monotonic() + _GRACE
        job = [] if self._job is None else [self._job]
        while self._children and (left := end - time.monotonic()) > 0:
            ready = readable([*job, *self._children], left)
            if self._job in ready:
                return
            for process in ready:
                _, pid = self._children.pop(process)
                os.waitpid(pid, 0)

    def close(self) -> None:
        """Closes the parent's descriptors, in a child that was forked from it."""
        self._channel.socket.close()
        for other in self._children:
            os.close(other)
        if self._job is not None:
            os.close(self._job)

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

    def _adopt(self, pid: int, number: int) -> int:
        """Watches a child from now on. Returns the descriptor of the process."""
        try:
            process = os.pidfd_open(pid)
        except OSError:
            # Without a descriptor nobody would see the child end.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[process] = (number, pid)
        return process

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
