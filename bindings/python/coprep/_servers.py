"""The fork servers that this process starts, as the job whose samples they make.

By the start method ``fork``, a fork server is a copy of this process. It knows what the job knew at that moment, as
PyTorch's workers do. By ``spawn`` and ``forkserver``, and for a dataset that a factory makes, it is a new interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import weakref
from collections.abc import Callable
from typing import Any

from coprep._errors import warn_skipped
from coprep._folds import Positions
from coprep._packing import pack, unpack
from coprep._program import Program

_END = 0.5
"""Seconds to wait for the end of a fork server that nobody needs. Usually it takes a few milliseconds."""
_FACTORY = "import sys; sys.path[:], sys.argv[:] = {path!r}, {argv!r}; from coprep._servers import serve_factory; "
_FACTORY += "serve_factory({control}, {program}, {spawn})"

_children: dict[int, Any] = {}
"""Fork servers that this process started, by process id, each with the object that has to outlive it."""


def start_method(context: Any) -> str:
    """Returns the start method of a ``multiprocessing_context``, or the program's own if that is ``None``."""
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    import multiprocessing

    # The first of them is Python's default. Asking without `allow_none` would settle the method for the program.
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def check_may_spawn() -> None:
    """Checks that this process may start another one in a new interpreter, as ``multiprocessing`` does.

    Raises:
        RuntimeError: it is such a process itself and still imports the main script, which lacks
            ``if __name__ == "__main__":``.
    """
    from multiprocessing import spawn

    check: Any = vars(spawn)["_check_not_importing_main"]
    check()


class JobCode:
    """The code of a job, as the native loader uses it.

    Args:
        program: the dataset and the functions that are applied to its samples.
        samples: length of the dataset, or ``None`` if only the fork server can tell it.
        context: the loader's ``multiprocessing_context``.
        workers: number of worker processes; 0 leaves it to the coordinator.
        sample_timeout: seconds that a worker may take for a sample.
        is_persistent: whether workers stay between the passes of the loader.
        has_shadows: whether some samples are to be made from the job's memory too, and compared, before it shares.
        is_current: a method that returns whether the job may start a fork server for the stream that it is in. It may
            raise an exception, which the loader raises. Its object is not kept alive: it holds this one.
        positions: tells the ids that the user knows, from those of the stream.
    """

    def __init__(
        self,
        program: Program,
        samples: int | None,
        context: Any,
        *,
        workers: int,
        sample_timeout: float,
        is_persistent: bool,
        has_shadows: bool,
        is_current: Callable[[], bool],
        positions: Positions,
    ) -> None:
        self._program = program
        self._samples = samples
        self._context = context
        self.workers = workers
        self.sample_timeout_ms = int(sample_timeout * 1000)
        self.is_persistent = is_persistent
        self.has_shadows = has_shadows and start_method(context) == "fork"
        self._positions = positions
        self._is_current = weakref.WeakMethod(is_current)
        self.was_just_compared = True
        """``True`` as long as no user code has run since the dataset was compared with that of the stream."""

    def is_current(self) -> bool:
        """Returns whether a fork server that is started now makes the samples of the stream that the job is in."""
        is_current = self._is_current()
        return self.was_just_compared or (is_current is not None and is_current())

    def start_server(self, control: int) -> None:
        """Starts a fork server. It gets a copy of the socket ``control``, and does not return there.

        Raises:
            Exception: the dataset cannot be pickled for a new interpreter, or there is no room for a process.
        """
        reap()
        method = start_method(self._context)
        if self._samples is None:
            _children.update([_start_interpreter(self._program, control, spawn=method != "fork")])
        elif method == "fork":
            _children[_fork(self._program, self._samples, control)] = None
        else:
            from coprep._spawning import spawn

            spawn(self._program, self._samples, control, self._context, method)

    def warn_skipped(self, sample: int, path: str, stage: str, message: str) -> None:
        """Warns that samples are left out, of which this is one."""
        warn_skipped(self._positions.of(sample), path, stage, message, stacklevel=4)

    def server_ends(self, pid: int) -> None:
        """Waits a moment for the end of a fork server, if this process started it: its memory is free then."""
        if pid not in _children:
            return
        from coprep._processes import readable

        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                readable([process], _END)
            finally:
                os.close(process)
        reap()


def reap() -> None:
    """Reaps the fork servers that have ended."""
    for pid in list(_children):
        with contextlib.suppress(ChildProcessError):
            # A program that ignores SIGCHLD has no children to wait for.
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        owner = _children.pop(pid, None)
        if hasattr(owner, "returncode"):
            # It would otherwise wait for the process again.
            owner.returncode = 0


def _fork(program: Program, samples: int, control: int) -> int:
    # Imported before the fork, because another thread may hold the lock of an import in the child.
    from coprep import _fork_server
    from coprep._processes import fork

    job, collects = os.getpid(), gc.isenabled()
    pid = fork()
    if pid == 0:
        _children.clear()
        source = _fork_server.Source(lambda: program, samples, collects)
        _fork_server.run_fork_server(socket.socket(fileno=control), lambda: source, job)
    return pid


def _start_interpreter(program: Program, control: int, *, spawn: bool) -> tuple[int, Any]:
    """Starts a new interpreter that calls the factory of a dataset."""
    import subprocess

    if not sys.executable:
        raise RuntimeError("this Python does not say which program it is (sys.executable is empty): use num_workers=0")
    packed = pack(program)
    file = os.memfd_create("coprep-code")
    try:
        data = bytearray(packed.size)
        packed.write_to(memoryview(data))
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(data)
        start = _FACTORY.format(path=sys.path, argv=sys.argv, control=control, program=file, spawn=spawn)
        # Options of the interpreter, such as -O, change what code does.
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", start]
        process = subprocess.Popen(command, pass_fds=(control, file), stdin=subprocess.DEVNULL)
    finally:
        os.close(file)
    return process.pid, process


def serve_factory(control: int, program: int, spawn: bool) -> None:
    """Runs the fork server of a dataset that a factory makes, in a new interpreter.

    Args:
        control: descriptor of the socket over which the coordinator asks.
        program: descriptor of a file with the program.
        spawn: whether each worker calls the factory anew.
    """
    from coprep._fork_server import Source, run_fork_server

    def load() -> Source:
        with os.fdopen(program, "rb") as file:
            file.seek(0)
            packed: Program = Program(*unpack(bytearray(file.read())))
        loaded = packed.loaded()
        samples = len(loaded.dataset)
        return Source(packed.loaded if spawn else lambda: loaded, samples, True)

    run_fork_server(socket.socket(fileno=control), load, None)
