"""A process that has a user's dataset, and forks the workers that make its samples.

A job forks it from itself (``_servers.py``), so it knows what the job knew at that moment. It runs no user code, except
that a new interpreter loads the dataset, so that its workers begin as in a fork of the training script. Only workers
(``_worker.py``) make samples.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from coprep import _exchange
from coprep._processes import Parent, Signals, ending_with, fork, leave_parent, reset_signals
from coprep._program import Program
from coprep._worker import Layout, Start, run_worker


class Source(NamedTuple):
    """The user's code that a fork server has."""

    load: Callable[[], Program]
    """Returns the code. It is called in each worker."""
    samples: int
    """Length of the dataset."""
    collects: bool
    """``True`` if garbage is collected in workers, as it is in the job."""


def run_fork_server(control: socket.socket, load: Callable[[], Source], job: int | None) -> NoReturn:
    """Runs a fork server in this process, and ends the process.

    Args:
        control: socket over which the coordinator asks.
        load: returns the user's code.
        job: process id of the parent, if this process was forked from the job itself.
    """
    status = 1
    try:
        # Ctrl-Z and a hang-up of the terminal are the job's.
        os.setsid()
        signals = reset_signals()
        leave_parent()
        _ForkServer(control, None if job is None else _watched(job), signals).serve(load)
        status = 0
    except ConnectionError:
        # The coordinator hung up while it was sent something, which is the usual end.
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Nothing of the job's runs here: no `atexit`, and no `__del__` of the dataset.
        os._exit(status)


def _watched(job: int) -> int:
    """Returns a descriptor of the job's process, with which this one ends."""
    process = os.pidfd_open(job)
    # If the job has ended meanwhile, the number may be another process's.
    if os.getppid() != job:
        os._exit(1)
    return process


class _ForkServer(Parent):
    def __init__(self, control: socket.socket, job: int | None, signals: Signals) -> None:
        super().__init__(control, job)
        self._signals = signals
        self._layout: Layout | None = None

    def serve(self, load: Callable[[], Source]) -> None:
        """Serves the coordinator until it hangs up."""
        try:
            # A fork has its dataset at once, and no threads.
            is_fork = self._job is not None
            with contextlib.nullcontext() if is_fork else ending_with(self._channel.socket):
                self._source = load()
        except Exception as error:
            self._report_failure("load", None, error)
            return
        me = os.pidfd_open(os.getpid())
        self._send_event("ready", (me,), pid=os.getpid(), samples=self._source.samples)
        os.close(me)
        self.run()

    def _map(self, **layout: Any) -> None:
        file = self._channel.descriptors.pop(0)
        # The whole file, since large samples lie behind the buffers.
        memory = mmap.mmap(file, 0)
        # Most of the file may have no memory yet. A core dump would read all of it, and so allocate that memory.
        memory.madvise(mmap.MADV_DONTDUMP)
        os.close(file)
        structure = bytes.fromhex(layout.pop("structure"))
        self._layout = Layout(memory=memory, structure=structure, **layout)
        self._send_event("mapped")

    def _fork(
        self, worker: int, id: int, workers: int, scratch: int, task_table: bool, seed: int | None = None
    ) -> None:
        listed = self._channel.descriptors.pop(0) if task_table else None
        files = [self._channel.descriptors.pop(0) for _ in range(scratch)]
        ours, theirs = socket.socketpair()
        fork_server = os.getpid()
        pid = fork()
        if pid == 0:
            self.close()
            theirs.close()
            self._signals.restore()
            if self._source.collects:
                gc.enable()
            layout = self._layout if seed is None else None
            run_worker(Start(self._source.load, layout, ours, listed, files, id, workers, fork_server, seed))
        ours.close()
        for descriptor in files if listed is None else [listed, *files]:
            os.close(descriptor)
        process = self._adopt(pid, worker)
        self._send_event("forked", (theirs.fileno(), process), worker=worker, pid=pid)
        theirs.close()

    def _kill(self, worker: int) -> None:
        self._end_child(worker)

    def _report_failure(self, what: str, worker: int | None, error: Exception) -> None:
        self._send_event("failed", worker=worker, message=_failed(what, error))

    def _ended(self, number: int, status: int) -> None:
        self._send_event("exited", worker=number, how=_how_it_ended(status))


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in signal.valid_signals() else "unknown"
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"was killed by signal {number}, {name}{hint}"
    return f"exited with status {os.waitstatus_to_exitcode(status)}"


def _failed(what: str, error: Exception) -> str:
    if what != "load":
        return f"the process that runs the dataset cannot {what}: {_exchange.describe(error)}"
    remedy = "run with num_workers=0 to see where"
    if isinstance(error, ModuleNotFoundError):
        remedy = (
            f"make the module {error.name!r} importable in a new process that has this job's sys.path "
            "(install it, or put its folder into PYTHONPATH)"
        )
    return f"the dataset cannot be loaded in a worker process: {_exchange.describe(error)}\nRemedy: {remedy}"
