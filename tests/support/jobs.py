"""Training scripts in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from waiting import WAIT
from warm_interpreter import ForkedProcess, WarmInterpreter


class Job:
    """A training script in a process of its own. The lines that it prints are its report.

    Args:
        code: the script.
        args: its arguments.
        interpreter: forks the script. Without one, an interpreter starts for it.
        env: variables of its environment, beside those of this process.
    """

    def __init__(self, code: str, *args: object, interpreter: WarmInterpreter | None = None, **env: str) -> None:
        script, arguments, environment = textwrap.dedent(code), [*map(str, args)], {**os.environ, **env}
        self.process: subprocess.Popen[str] | ForkedProcess
        if interpreter:
            self.process = interpreter.start(script, arguments, environment)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )

    def line(self) -> str:
        """Returns the next line that the job prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the job ended: {self.process.stderr.read() if self.process.stderr else ''}"
        return line.strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT)

    def run_on(self) -> None:
        """Closes the job's input, so that it stops waiting for lines."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def result(self) -> str:
        """Returns the job's output once it has ended successfully."""
        out, err = self.process.communicate(timeout=WAIT * 2)
        assert self.process.returncode == 0, err
        return out.strip()

    def ended(self) -> tuple[int, str]:
        """Returns the exit code and the text on stderr."""
        _, err = self.process.communicate(timeout=WAIT * 2)
        return self.process.returncode, err


Start = Callable[..., Job]


def go(*jobs: Job) -> None:
    for job in jobs:
        job.say("go")


def in_step(*jobs: Job, batches: int) -> None:
    """Lets jobs that wait for a line after each batch take this many batches, side by side."""
    for _ in range(batches):
        go(*jobs)
        assert {job.line() for job in jobs} == {"batch"}


def run_on(*jobs: Job) -> None:
    for job in jobs:
        job.run_on()


def reports(job: Job) -> list[dict[str, Any]]:
    """Returns the job's report on each epoch, once it has ended successfully."""
    return [json.loads(line) for line in job.result().splitlines() if line.startswith("{")]


def seen(job: Job) -> list[list[int]]:
    """Returns the ids of each epoch, in ascending order."""
    return [sorted(report["seen"]) for report in reports(job)]
