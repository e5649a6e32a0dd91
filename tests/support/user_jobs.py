"""Jobs on the datasets of ``user_datasets``: their training scripts, and functions that start them."""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs import Job, Start
from waiting import WAIT

HERE = str(Path(__file__).parent)
"""Folder that a job needs on its path."""
NUMPY: dict[str, Any] = {"framework": "numpy", "with_index": True, "num_workers": 2}
"""Options that the jobs' loaders have in common."""

TRAIN = """
import json, sys, time, coprep
from user_datasets import *
options = dict(framework="numpy", with_index=True, num_workers=2)
data, own, epochs, pause = eval(sys.argv[1]), eval(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
train = coprep.DataLoader(data, **{**options, **own})
train.seed  # attaches
print("ready", flush=True)
sys.stdin.readline()
reports = []
for epoch in range(epochs):
    seen, errors, batches = [], [], iter(train)
    while True:
        try:
            (values, *_), ids = next(batches)
        except StopIteration:
            break
        except Exception as error:
            cause = error.__cause__ or error
            errors.append([type(error).__name__, str(error), getattr(cause, "id", -1), getattr(cause, "stage", ""),
                           getattr(cause, "worker", ""), str(cause)])
            continue
        if isinstance(values, np.ndarray) and values.ndim == 2 and not own.get("transform"):
            assert (values == ids[:, None]).all()
        seen += ids.tolist()
        if "mark" in sys.argv or "step" in sys.argv:
            print("batch", flush=True)
        if "step" in sys.argv:
            sys.stdin.readline()
        time.sleep(pause)
    reports.append({"seen": seen, "errors": errors})
for report in reports:
    print(json.dumps(report), flush=True)
"""
"""Code of a job. Its arguments are expressions for its dataset and its loader's options, epochs, and seconds per batch.
It waits for a line.

With ``mark`` it announces each batch. With ``step`` it then waits for another line.
"""


def job(start: Start, data: str, epochs: int, pause: float = 0.005, *more: str, **own: Any) -> Job:
    """Starts a job, and waits until it is ready to begin."""
    options = {"batch_size": 8, "shuffle": True, **own}
    ready = start(TRAIN, data, repr(options), epochs, pause, *more, PYTHONPATH=HERE)
    assert ready.line() == "ready"
    return ready


RANK = """
import json, pickle, sys, coprep
from user_datasets import *
state, steps, own = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
options = dict(batch_size=4, framework="numpy", with_index=True, num_workers=1, shuffle=True)
train = coprep.DataLoader(Numbers(50), **{**options, **own})
if Path(state).exists():
    train.load_state_dict(pickle.loads(Path(state).read_bytes()))
seen, batches, count = [], iter(train), 0
while steps < 0 or count < steps:
    batch = next(batches, None)
    if batch is None:
        break
    seen += batch[-1].tolist()
    count += 1
if steps >= 0 and own.get("rank", 0) == 0:
    Path(state).write_bytes(pickle.dumps(train.state_dict()))
elif steps >= 0:
    train.state_dict()
print(json.dumps([count, seen]), flush=True)
sys.stdin.readline()
"""
"""Code of a rank. Its arguments are the path of its state, the number of steps (-1 for the rest of the epoch), and
options. It stays until it gets a line."""


class RankProcess:
    """A rank's process, and its ids by epoch and batch.

    Its script prints ``[epoch, ids]`` for each batch, and then waits for a line.
    """

    def __init__(self, job: Job, epochs: int) -> None:
        self.job = job
        self.epochs: list[list[list[int]]] = [[] for _ in range(epochs)]

    def take(self, batches: int) -> None:
        """Takes this many batches, and lets the script continue after each."""
        for _ in range(batches):
            self.hear()
            self.job.say("on")

    def hear(self) -> None:
        epoch, ids = json.loads(self.job.line())
        self.epochs[epoch].append(ids)

    def is_given_more(self, seconds: float) -> bool:
        assert self.job.process.stdout is not None
        return bool(select.select([self.job.process.stdout], [], [], seconds)[0])


class MemberProcess(RankProcess):
    """A job of a cohort, and the ids or items that it was given, by epoch and batch.

    Its script prints ``ready`` first and waits for a line. It prints ``done`` at its end.
    """

    def __init__(self, job: Job, epochs: int) -> None:
        super().__init__(job, epochs)
        assert job.line() == "ready"

    def finish(self) -> None:
        """Takes the rest of the batches, until the job ends."""
        while (line := self.job.line()) != "done":
            epoch, given = json.loads(line)
            self.epochs[epoch].append(given)
            self.job.say("on")
        self.job.result()

    def given(self) -> list[list[int]]:
        """Returns the ids or items of each epoch."""
        return [[i for batch in batches for i in batch] for batches in self.epochs]


def finish(members: Sequence[MemberProcess]) -> None:
    """Lets members take the rest of their batches. They wait for each other, so each needs a thread."""
    threads = [threading.Thread(target=member.finish) for member in members]
    for thread in threads:
        thread.start()
    # All waits together are shorter than the 180 s that the runner allows a test, so that a hang is reported here.
    end = time.monotonic() + 2 * WAIT
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a member does not end"


def together(members: Sequence[MemberProcess], batches: int) -> None:
    """Lets members take this many batches in step."""
    for _ in range(batches):
        [member.take(1) for member in members]
