"""A job: it imports PyTorch and makes its model once, and then trains with one mode after the other.

It is told a line at a time, and answers each with one message, so that all jobs stay in step:

| told | does | answers |
|---|---|---|
| (its start) | imports everything, opens the device | `ready` |
| `warm` | trains some steps, in which cuDNN chooses its algorithms | `warm` |
| `fill` | takes each photograph once from coprep, so that its cache has all of them | `full` |
| `open` with a mode | trains with it, until told a window | `steady` |
| `window` with its bounds | trains on until its end, and closes the loader | `closed`, with what it saw |
| `abandon` | closes the loader | `closed` |

A mode that fails makes `steady` or `closed` carry an `error`. The job then waits for what it is told next.
"""

from __future__ import annotations

import gc
import json
import select
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from tests.benchmarks.gpu import modes
from tests.benchmarks.gpu.plan import PAGEABLE, JobSettings
from tests.benchmarks.gpu.training import Trainer, Unusable, opened_device
from tests.benchmarks.gpu.window import Recorder
from tests.benchmarks.loaders.consume import report

WARM_BATCHES = 8


class Job:
    """The model of this job, and its answers."""

    def __init__(self, settings: JobSettings, trainer: Trainer) -> None:
        self.settings = settings
        self.trainer = trainer

    def serve(self) -> None:
        while command := told():
            match command["do"]:
                case "warm":
                    self.trainer.warm_up(self.settings.batch_size)
                    report(event="warm")
                case "fill":
                    report(event="full", batches=self.fill())
                case "open":
                    self.measure(command["mode"], command["jobs"])

    def fill(self) -> int:
        """Takes an epoch as fast as it comes."""
        with modes.coprep_loader(PAGEABLE, self.settings, drop_last=False) as loader:
            return sum(1 for _batch in loader)

    def measure(self, mode: str, jobs: int) -> None:
        """Trains with a mode, and answers twice."""
        answer = self.attempt(mode, jobs)
        # The rest of the loader must not go on beside the next one.
        gc.collect()
        report(event="closed", **answer)

    def attempt(self, mode: str, jobs: int) -> dict[str, Any]:
        """Trains with a mode, and says when it is steady. Returns what it saw in the window, or an error."""
        is_steady = False
        try:
            self.trainer.reset_memory()
            with modes.opened(mode, self.settings, jobs) as (batches, finish):
                training = self.train(batches, finish)
                next(training)
                is_steady = True
                report(event="steady")
                answer = next(training)
                self.trainer.drain()
        except modes.NotAvailable as error:
            answer = {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        if not is_steady:
            report(event="steady", **answer)
            # The answer is to abandon it.
            told()
        return answer

    def train(self, batches: Iterator[modes.Batch], finish: modes.Finish) -> Iterator[dict[str, Any]]:
        """Trains. Yields when it is steady, and again at the end of the window that it is told then."""
        recorder: Recorder | None = None
        steady_at = time.monotonic() + self.settings.warm_s
        steps = 0
        is_steady = False
        while True:
            begin = time.monotonic()
            batch = next(batches)
            taken = time.monotonic()
            images, labels = finish(batch)
            finished = time.monotonic()
            done = self.trainer.step(images, labels)
            steps += 1
            if not is_steady:
                if steps >= WARM_BATCHES and finished >= steady_at:
                    is_steady = True
                    yield {}
            elif recorder is None and (command := told_already()):
                if command["do"] == "abandon":
                    yield {}
                recorder = Recorder(command["begin"], command["end"])
            elif recorder is not None:
                recorder.note(begin, taken, finished, done)
                if recorder.is_over(begin):
                    yield {**recorder.as_json(), "memory_mib": self.trainer.memory_mib()}


def told() -> dict[str, Any] | None:
    """Returns the next command, or `None` if there will be none."""
    line = sys.stdin.readline()
    command: dict[str, Any] | None = json.loads(line) if line else None
    return command


def told_already() -> dict[str, Any] | None:
    """Returns the next command if it has come."""
    return told() if select.select([sys.stdin], [], [], 0)[0] else None


def main() -> None:
    settings = JobSettings(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    try:
        trainer = Trainer(opened_device(settings.device), settings.model)
    except Unusable as error:
        report(event="ready", error=str(error))
        return
    report(event="ready", **trainer.about())
    Job(settings, trainer).serve()


if __name__ == "__main__":
    main()
