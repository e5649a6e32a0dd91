"""Fork servers by the start methods ``spawn`` and ``forkserver``, which begin in a new interpreter.

PyTorch starts an interpreter for each worker and pass, and each imports what the dataset needs. A job starts one here.
It imports the modules once, loads no dataset, and forks the fork servers of all loaders of the job, until the job ends
or has changed what a new interpreter would get from it, such as its environment.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import mmap
import multiprocessing
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from multiprocessing import context as spawning
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from coprep._fork_server import Source, run_fork_server
from coprep._modules import edited_files
from coprep._processes import MOST_DESCRIPTORS, Channel, ending_with, fork, leave_parent, readable, reset_signals
from coprep._program import Program

_REAPS = 1.0
"""Seconds between the looks for fork servers that have ended, while the job asks for nothing."""
_OF_PROCESS = ("CapEff", "Cpus_allowed", "Gid", "Groups", "SigBlk", "SigIgn", "Uid", "Umask")
"""Names of ``/proc/thread-self/status`` that a new process inherits."""

_interpreters: dict[str, _Interpreter] = {}
"""The interpreter of this process by start method."""
_lock = threading.Lock()
_inherited: list[int] = []
"""In a fork server, the descriptors that came with the dataset."""


def spawn(program: Program, samples: int, control: int, context: Any, method: str) -> None:
    """Starts a fork server with a copy of the socket ``control``, whose workers load the dataset as PyTorch's do.

    Raises:
        RuntimeError: it would import other code than this process has.
        Exception: the dataset cannot be pickled.
    """
    if edited := edited_files():
        raise RuntimeError(
            f"{', '.join(edited)} was edited after this job had imported it, and a spawned process would import "
            "the new code: start the job anew, or use multiprocessing_context='fork' or persistent_workers=True"
        )
    if "torch" in sys.modules:
        # It lets tensors travel as shared memory.
        import torch.multiprocessing  # noqa: F401
    if context is None or isinstance(context, str):
        context = multiprocessing.get_context(method)
    with _lock:
        pickled = _Pickled(program)
        given = _given_by_process()
        interpreter = _interpreters.get(method)
        if interpreter is None or interpreter.given != given or not interpreter.begin(pickled, samples, control):
            interpreter = _interpreters[method] = _Interpreter(context, given)
            interpreter.begin(pickled, samples, control)


def _given_by_process() -> tuple[Any, ...]:
    """Returns what a new interpreter gets from this process, besides a dataset."""
    with open("/proc/thread-self/status") as status:
        of_process = [line for line in status if line.startswith(_OF_PROCESS)]
    with open("/proc/self/limits") as limits:
        of_process += limits
    of_python = dict(os.environ), [*sys.path], [*sys.argv], bytes(multiprocessing.current_process().authkey)
    return os.getpid(), os.getcwd(), os.nice(0), of_process, of_python


class _Pickled:
    """A program, pickled as for a process that ``multiprocessing`` starts.

    It stands for that process, and takes the descriptors that objects ask it to take along.
    """

    def __init__(self, program: Program) -> None:
        self.descriptors: list[int] = []
        self.modules: set[str] = set()
        """Modules of what was pickled."""
        modules = self.modules

        class Pickler(ForkingPickler):
            def reducer_override(self, obj: Any) -> Any:
                modules.add(str(getattr(obj, "__module__", None) or type(obj).__module__))
                return NotImplemented

        data = io.BytesIO()
        set_process: Any = spawning.set_spawning_popen
        set_process(self)
        try:
            Pickler(data).dump(tuple(program))
        finally:
            set_process(None)
        self.data = data.getbuffer()

    def duplicate_for_child(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    class DupFd:
        """A descriptor, pickled by its index."""

        def __init__(self, index: int) -> None:
            self._index = index

        def detach(self) -> int:
            return _inherited[self._index]


class _Interpreter:
    """A new interpreter that forks the fork servers of this job."""

    def __init__(self, context: Any, given: tuple[Any, ...]) -> None:
        self.given = given
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        with theirs:
            self._process = context.Process(target=_run, args=(theirs, os.getpid()), daemon=True)
            self._process.start()

    def begin(self, pickled: _Pickled, samples: int, control: int) -> bool:
        """Has it fork a fork server. Returns ``False`` if it has ended."""
        file = os.memfd_create("coprep-spawned")
        try:
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(pickled.data)
            descriptors = [control, file, *pickled.descriptors]
            message = json.dumps([sorted(pickled.modules), samples, gc.isenabled()]).encode()
            for start in range(0, len(descriptors), MOST_DESCRIPTORS):
                some = tuple(descriptors[start : start + MOST_DESCRIPTORS])
                is_last = start + len(some) == len(descriptors)
                self._channel.send(message if is_last else b"", some)
        except (BrokenPipeError, ConnectionResetError):
            return False
        finally:
            os.close(file)
        return True


def _run(control: socket.socket, job: int) -> NoReturn:
    """Runs the interpreter, and ends it with the job."""
    status = 1
    try:
        # Ctrl-Z and a hang-up of the terminal are the job's.
        os.setsid()
        signals = reset_signals()
        leave_parent()
        channel, process = Channel(control), os.pidfd_open(job)
        for request in _requests(channel, process):
            modules, samples, collects = json.loads(request)
            descriptors, channel.descriptors = channel.descriptors, []
            with ending_with(control, process):
                _import(modules)
            if fork() == 0:
                control.close()
                os.close(process)
                signals.restore()
                server, file, *_inherited[:] = descriptors
                data = mmap.mmap(file, 0, prot=mmap.PROT_READ)
                os.close(file)
                source = Source(lambda: Program(*ForkingPickler.loads(data)), samples, collects)  # noqa: B023
                run_fork_server(socket.socket(fileno=server), lambda: source, None)  # noqa: B023
            for descriptor in descriptors:
                os.close(descriptor)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _requests(channel: Channel, job: int) -> Iterator[bytes]:
    """Yields what the job asks for, until it ends."""
    control = channel.socket.fileno()
    while True:
        # The job's end is watched too, since another fork of it may have a copy of its socket. The socket tells nothing
        # of a message that came with the one before.
        ready = [control] if channel.has_message() else readable([control, job], _REAPS if _reap() else None)
        message = channel.receive() if ready == [control] else None
        if ready and message is None:
            return
        if message:
            yield message


def _reap() -> bool:
    """Reaps the fork servers that have ended. Nobody asks how. Returns whether there are others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        return True
    return False


def _import(modules: list[str]) -> None:
    for name in modules:
        # A worker reports an import that fails.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
