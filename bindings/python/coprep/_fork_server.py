"""A process that loads a user's dataset once, and forks the workers that run it.

A zygote (``_zygote.py``) forks the fork servers. A fork server runs user code only to load the dataset, so that its
workers begin as in a fork of the training script. Only workers (``_worker.py``) make samples.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from coprep import _exchange
from coprep._processes import Parent, end, fork
from coprep._program import PROGRAM, Delivery, Program, load_program
from coprep._worker import Layout, Start, run_worker


def run_fork_server(control: socket.socket) -> NoReturn:
    """Runs a fork server until the coordinator hangs up, and ends the process."""
    status = 0
    try:
        _ForkServer(control).run()
    except ConnectionError:
        # The coordinator hung up while it was sent something, which is the usual end.
        pass
    except BaseException:
        status = 1
        traceback.print_exc()
    end(status)


class _ForkServer(Parent):
    def __init__(self, control: socket.socket) -> None:
        super().__init__(control)
        self._sent = memoryview(b"")
        self._program: Program | None = None
        self._layout: Layout | None = None

    def _load(self) -> None:
        with os.fdopen(self._channel.descriptors.pop(0), "rb") as file:
            # The mapping is private and writable: user code that writes to its arrays gets its own copy of the page.
            self._sent = memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        delivery = Delivery(*pickle.loads(self._sent))
        sys.argv[:] = delivery.argv
        samples = delivery.samples
        if not delivery.spawn or samples is None:
            program = load_program(self._sent[PROGRAM:])
            before = os.listdir("/proc/self/fd")
            samples = len(program.dataset)
            if not delivery.spawn:
                # A file that `__len__` opened would have one position in all workers, which each of them moves.
                is_clean = sorted(os.listdir("/proc/self/fd")) == sorted(before)
                self._program = program if is_clean else load_program(self._sent[PROGRAM:])
        # The collector writes to the objects that it visits, which would copy their pages in every worker. Frozen
        # objects are not visited.
        gc.collect()
        gc.freeze()
        self._send_event("loaded", samples=samples)

    def _map(self, **layout: Any) -> None:
        self._unmap()
        file = self._channel.descriptors.pop(0)
        # The whole file, since large samples lie behind the buffers.
        memory = mmap.mmap(file, 0)
        # Most of the file may have no memory yet. A core dump would read all of it, and so allocate that memory.
        memory.madvise(mmap.MADV_DONTDUMP)
        os.close(file)
        structure = bytes.fromhex(layout.pop("structure"))
        self._layout = Layout(memory=memory, structure=structure, **layout)
        self._send_event("mapped")

    def _unmap(self) -> None:
        if self._layout is not None:
            self._layout.memory.close()
            self._layout = None

    def _fork(self, worker: int, id: int, workers: int, scratch: int, task_table: bool) -> None:
        listed = self._channel.descriptors.pop(0) if task_table else None
        files = [self._channel.descriptors.pop(0) for _ in range(scratch)]
        ours, theirs = socket.socketpair()
        fork_server = os.getpid()
        pid = fork()
        if pid == 0:
            self.close()
            theirs.close()
            run_worker(Start(self._program_of_worker, self._layout, ours, listed, files, id, workers, fork_server))
        ours.close()
        for descriptor in files if listed is None else [listed, *files]:
            os.close(descriptor)
        self._adopt(pid, worker)
        self._send_event("forked", (theirs.fileno(),), worker=worker, pid=pid)
        theirs.close()

    def _program_of_worker(self) -> Program:
        return self._program or load_program(self._sent[PROGRAM:])

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
    elif isinstance(error, AttributeError):
        remedy = "what the dataset is made of must be defined when its module is imported"
    return f"the dataset cannot be loaded in a worker process: {_exchange.describe(error)}\nRemedy: {remedy}"
