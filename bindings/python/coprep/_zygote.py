"""The process that imports the modules needed by a program's datasets, and forks their fork servers.

The coordinator starts it with a socket as standard input. See ``coordinator/protocol/src/code.rs`` for the messages.
It imports modules but uses none of them, so that a fork server begins like a new process that has just imported the
same: random numbers, ``atexit`` and weak references with callbacks at exit are set right for it. If a fork would differ
in more than that, because an import failed or left a thread behind, each fork server is a new process.

A zygote ends with the coordinator, and fork servers end with their zygote.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import json
import os
import random
import socket
import sys
import weakref
from typing import Any, NoReturn

import numpy as np

from coprep import _exchange
from coprep._fork_server import run_fork_server
from coprep._processes import Parent, end, end_with_parent, enter, fork

_FORK_SERVER = "fork-server"
"""Argument of a fork server that is started as a new process."""


def main() -> None:
    """Runs the zygote, or a fork server that is started as a new process."""
    control = enter()
    if sys.argv[1:] == [_FORK_SERVER]:
        run_fork_server(control)
    # The coordinator may hang up while it is sent a message.
    with contextlib.suppress(ConnectionError):
        _Zygote(control).run()
    # The fork servers have ended. Functions that modules registered for exit run here, and nowhere else.
    end(0)


class _Zygote(Parent):
    def __init__(self, control: socket.socket) -> None:
        super().__init__(control)
        self._can_fork = True
        self._random = _Random()
        # Modules may change both while they are imported.
        self._environment, self._directory = dict(os.environb), os.getcwd()

    def _import(self, prelude: str) -> None:
        wanted = json.loads(prelude)
        missing = [name for name in wanted["imports"] if name not in sys.modules]
        if not missing or not self._can_fork:
            return
        sys.argv[:] = wanted["argv"]
        self._can_fork = False
        try:
            for name in missing:
                importlib.import_module(name)
            self._can_fork = _is_alone()
        except BaseException:
            # A module that was imported in part may fail in another way the next time. Fork servers that are new
            # processes fail as this import did, and report it.
            return
        # The garbage collector ignores the present objects from now on. Otherwise it would copy their pages in every
        # fork server.
        gc.collect()
        gc.freeze()

    def _fork_server(self, number: int, prelude: str, anew: bool) -> None:
        try:
            if not anew:
                self._import(prelude)
            if not self._channel.descriptors:
                # This process had no descriptor left for the one that came.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            with socket.socket(fileno=self._channel.descriptors.pop(0)) as control:
                pid = self._start(control) if anew or not self._can_fork else self._fork(control)
            self._adopt(pid, number)
        except Exception as error:
            self._send_event("failed", number=number, message=_exchange.describe(error))

    def _start(self, control: socket.socket) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, control.fileno(), 0)]
        here = os.getcwd()
        # posix_spawn cannot set the folder of the new process, so this process goes there for the call.
        os.chdir(self._directory)
        try:
            return os.posix_spawn(
                sys.orig_argv[0], [*sys.orig_argv, _FORK_SERVER], self._environment, file_actions=actions
            )
        finally:
            os.chdir(here)

    def _fork(self, control: socket.socket) -> int:
        zygote = os.getpid()
        self._random.note_seeds()
        pid = fork()
        if pid == 0:
            self._become_fork_server(control, zygote)
        return pid

    def _become_fork_server(self, control: socket.socket, zygote: int) -> NoReturn:
        try:
            end_with_parent(zygote)
            self.close()
            _leave_exit_functions()
            self._random.begin()
        except BaseException:
            # An exception must not unwind into the loop of the zygote, of which this process is a copy.
            os._exit(1)
        run_fork_server(control)

    def _kill(self, number: int) -> None:
        self._end_child(number)

    def _report_failure(self, what: str, worker: int | None, error: Exception) -> None:
        # No process waits for an answer, but a person who looks for a defect needs the message.
        sys.stderr.write(f"cannot {what}: {_exchange.describe(error)}\n")

    def _ended(self, number: int, status: int) -> None:
        self._send_event("exited", number=number, status=status)


class _Random:
    """The global random numbers of a process that imports modules, for its forks."""

    def __init__(self) -> None:
        # The first number drawn changes all of the state, which would look as if a module had seeded it.
        random.random()
        np.random.random()
        self._at_start = self._keys()
        self._python: Any = None
        self._is_numpy_seeded = False

    def note_seeds(self) -> None:
        """Finds out, before a fork, which generators modules have seeded on import. Fork servers must have the
        same seeds."""
        python, numpy = self._keys()
        self._python = random.getstate() if python != self._at_start[0] else None
        self._is_numpy_seeded = numpy != self._at_start[1]

    def begin(self) -> None:
        """Sets the generators in a fork. A generator that no module has seeded begins as in any new process."""
        if self._python is not None:
            # Python's own generator was seeded anew by the fork.
            random.setstate(self._python)
        if not self._is_numpy_seeded:
            np.random.seed()

    @staticmethod
    def _keys() -> tuple[Any, bytes]:
        """Returns the parts of the state that change with a seed, and after hundreds of numbers."""
        return random.getstate()[1][:-1], bytes(np.random.get_state(legacy=False)["state"]["key"])


def _leave_exit_functions() -> None:
    """Leaves to the zygote the functions registered for exit before the fork: they may remove files of all
    fork servers."""
    atexit._clear()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    # These functions look after objects that this process will make.
    for module, function in (("logging", "shutdown"), ("multiprocessing.util", "_exit_function")):
        if module in sys.modules:
            atexit.register(getattr(sys.modules[module], function))


def _is_alone() -> bool:
    """Returns whether a fork of this process would have all of its threads."""
    if _threads() == 1:
        return True
    # Libraries that handle forks, as OpenBLAS does, end their threads before one, and start them again when needed.
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return _threads() == 1


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))
