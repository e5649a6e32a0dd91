"""Training scripts that do not wait for PyTorch's import: each is a fork of an interpreter that has imported it.

The interpreter is this module, run as a program. For each script it forks a process that forks the script, tells its
process id, waits for it and tells its exit code.
"""

from __future__ import annotations

import array
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

MOST_BYTES = 1 << 17


class ForkedProcess:
    """A script that was forked, with what tests use of `subprocess.Popen`."""

    def __init__(self, reports: io.FileIO, stdin: IO[str], stdout: IO[str], stderr: IO[str]) -> None:
        self.stdin: IO[str] | None = stdin
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._reports = reports
        self.pid = int(reports.readline())

    def poll(self) -> int | None:
        """Returns the exit code, or `None` while it runs."""
        if select.select([self._reports], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            # The report comes when the process ends. If it does not end, the time limit of the test ends this wait, so
            # `timeout` is there only to have the signature of `subprocess.Popen`.
            self.returncode = int(self._reports.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Returns what it still prints, once it has ended."""
        if self.stdin is not None:
            self.stdin.close()
        end = time.monotonic() + timeout
        # Each stream has its own thread: the script could wait for a reader of one while the other is read.
        with ThreadPoolExecutor(2) as pool:
            reads = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                out, err = (read.result(end - time.monotonic()) for read in reads)
            except TimeoutError:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired("a forked script", timeout) from None
        self.wait()
        return out, err


class WarmInterpreter:
    """An interpreter that has imported PyTorch. It is started without ``PYTHONPATH``, which is for scripts.

    Args:
        environment: its environment. The dynamic linker reads `LD_LIBRARY_PATH` here only, and not for each script.
        imports: modules that it imports.
    """

    def __init__(self, environment: Mapping[str, str], imports: Sequence[str] = ("coprep", "torch")) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *imports]
            own = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
            self._process = subprocess.Popen(command, env=own, pass_fds=[theirs.fileno()])

    def start(self, code: str, args: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Starts a script, as `python -c` does."""
        pipes = [os.pipe() for _ in range(4)]
        (stdin, to_stdin), *outputs = pipes
        given = [stdin, *(write for _, write in outputs)]
        request = json.dumps({"code": code, "args": args, "environment": dict(environment), "folder": os.getcwd()})
        self._requests.sendmsg(
            [request.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given).tobytes())]
        )
        for descriptor in given:
            os.close(descriptor)
        stdout, stderr, reports = (read for read, _ in outputs)
        return ForkedProcess(
            # Unbuffered, so that `select` sees each report that was not read.
            io.FileIO(reports),
            os.fdopen(to_stdin, "w"),
            os.fdopen(stdout),
            os.fdopen(stderr),
        )

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


def become(request: bytes, descriptors: Sequence[int]) -> types.CodeType:
    """Gives this process the streams, the environment and the arguments of a script. Returns the script."""
    wanted = json.loads(request)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    # As `python -c` has it. The first entry is this module's folder.
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:1] = ["", *(os.path.abspath(folder) for folder in path.split(os.pathsep) if folder)]
    sys.argv = ["-c", *wanted["args"]]
    sys.modules["__main__"] = types.ModuleType("__main__")
    return compile(wanted["code"], "<string>", "exec")


def watch(job: int, report: int) -> None:
    """Tells the process id of a script, and its exit code when it has ended."""
    os.write(report, f"{job}\n".encode())
    _, status = os.waitpid(job, 0)
    os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    # The handlers for an exit belong to the interpreter of which this process is a copy.
    os._exit(0)


def next_script(requests: socket.socket) -> types.CodeType | None:
    """Forks scripts as they are asked for. Returns the script in each fork, and `None` at the end of the requests."""
    # Nobody waits for the processes that watch.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not request:
            return None
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    # While the signal is ignored, no exit code can be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    *streams, report = descriptors
    if job := os.fork():
        # A reader of the script's output finds its end only once nobody else holds the streams.
        for stream in streams:
            os.close(stream)
        watch(job, report)
    os.close(report)
    return become(request, streams)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)

    # The last collection of each script would copy the memory of all these objects.
    gc.freeze()
    if (script := next_script(socket.socket(fileno=int(sys.argv[1])))) is not None:
        exec(script, sys.modules["__main__"].__dict__)
