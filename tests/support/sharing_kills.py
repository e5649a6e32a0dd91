"""Kills jobs that share uploads, and their uploaders, again and again, and checks that each sample comes once.

By hand, for as many kills as asked for: ``python tests/support/sharing_kills.py PHOTOS --kills 1000``
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import coprep
from coordinators import coordinator_at
from gpu_jobs import Driver, Serving
from jobs import Job, Start
from sharing_jobs import sharing_job
from waiting import WAIT


class Trial:
    """A training run that goes on in another process when its own is killed.

    Args:
        start: starts a job, with what differs from the usual plan.
        epochs: number of epochs.
    """

    def __init__(self, start: Start, epochs: int) -> None:
        self._start, self._epochs = start, epochs
        self._state: Any = None
        self._lines: queue.Queue[str] = queue.Queue()
        self.given: list[list[int]] = [[] for _ in range(epochs)]
        self.shared = 0
        self.job = self._begin()

    def _begin(self) -> Job:
        # A state that was taken after the last batch of an epoch begins with a pass of no batches.
        is_border = self._state is not None and not (self._epoch < self._epochs and self.given[self._epoch])
        left = self._epochs - self._epoch + is_border
        plan = {"steps": True, "waits": False, "compares": False, "resumes": True}
        job = self._start(epochs=left, **plan)
        job.say("" if self._state is None else json.dumps(self._state))
        self._lines = queue.Queue()
        threading.Thread(target=_read, args=(job, self._lines), daemon=True).start()
        return job

    @property
    def _epoch(self) -> int:
        """Number of the epoch that is being given."""
        return next(
            (number for number, ids in enumerate(self.given) if len(ids) < 200),
            self._epochs,
        )

    @property
    def is_over(self) -> bool:
        return self._epoch == self._epochs

    def kill(self) -> None:
        self._take()
        if not self.is_over:
            self.job.kill()
            # What it told before it died counts: it was given that batch.
            time.sleep(0.05)
            self._take()
            if not self.is_over:
                self.job = self._begin()

    def step(self) -> None:
        """Lets the job go on if it has told a batch."""
        if self._take() and not self.is_over:
            with contextlib.suppress(BrokenPipeError):
                self.job.say("")

    def _take(self) -> bool:
        """Takes what the job has told. Returns True if that is a batch."""
        told = False
        with contextlib.suppress(queue.Empty):
            while True:
                report = json.loads(self._lines.get_nowait())
                if "state" in report:
                    told = True
                    self._state = report["state"]
                    self.given[self._epoch] += report["ids"]
                    self.shared += report["stats"]["shared_uploads"] > 0
        return told


def _read(job: Job, lines: queue.Queue[str]) -> None:
    assert job.process.stdout is not None
    for line in job.process.stdout:
        lines.put(line)


class Round:
    """Jobs that share uploads under one coordinator, whose processes are killed at random moments.

    Args:
        serving: the coordinator.
        start: starts a job, with what differs from the usual plan.
        seed: of the moments.
    """

    def __init__(self, serving: Serving, start: Start, seed: int) -> None:
        self._serving, self._start = serving, start
        self._random = random.Random(seed)

    def run(self, jobs: int, epochs: int, job_kills: int, uploader_kills: int) -> tuple[int, int]:
        """Runs jobs to their end. Returns the numbers of jobs and of uploaders that were killed."""
        trials = [Trial(self._start, epochs) for _ in range(jobs)]
        kinds = ["job"] * job_kills + ["uploader"] * uploader_kills
        self._random.shuffle(kinds)
        killed = {"job": 0, "uploader": 0}
        # The kills are spread over all batches but the last ones, when there may be nobody left to kill.
        batches = jobs * epochs * 10
        moments = sorted(self._random.randrange(batches * 3 // 4) for _ in kinds)
        end = time.monotonic() + 2 * WAIT + 5 * len(kinds)
        while not all(trial.is_over for trial in trials):
            assert time.monotonic() < end, [trial.given for trial in trials]
            given = sum(len(ids) for trial in trials for ids in trial.given) // 20
            # Jobs wait for a kill that is due. Otherwise they may be over before there is an uploader again.
            if not kinds or given < moments[0]:
                for trial in trials:
                    trial.step()
            elif self._kill(kinds[0], trials):
                killed[kinds.pop(0)] += 1
                moments.pop(0)
            time.sleep(0.001)
        for trial in trials:
            trial.job.run_on()
            assert trial.job.process.wait(WAIT) == 0, trial.job.process.stderr and trial.job.process.stderr.read()
            assert [sorted(ids) for ids in trial.given] == [list(range(200))] * epochs
        # A job that was replaced late may have found no ring.
        assert any(trial.shared for trial in trials), "nothing was shared"
        return killed["job"], killed["uploader"]

    def _kill(self, kind: str, trials: list[Trial]) -> bool:
        """Kills a process. Returns False if there is none of the kind at the moment."""
        if kind == "job":
            alive = [trial for trial in trials if not trial.is_over]
            self._random.choice(alive).kill()
            return True
        uploaders = self._serving.uploaders()
        for pid in uploaders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return uploaders != []


def main() -> None:
    import pytest

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "photos",
        type=Path,
        help="a folder for 200 photographs, made if it is not there",
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not options.photos.exists():
        from photos import make_folder

        make_folder(options.photos, 200)
    done, seed = [0, 0], options.seed
    while sum(done) < options.kills:
        with (
            tempfile.TemporaryDirectory() as temporary,
            pytest.MonkeyPatch.context() as patch,
        ):
            folder = Path(temporary)
            with coordinator_at(folder / "run", patch):
                serving = Serving(folder / "uploader", "delay_us=500")
                numbers = iter(range(1000))

                def start(folder: Path = folder, numbers: Any = numbers, **plan: Any) -> Job:
                    return sharing_job(
                        Driver(folder / f"job{next(numbers)}", "delay_us=500"),
                        options.photos,
                        **plan,
                    )

                # A fourth uploader that is killed within seconds is not replaced.
                killed = Round(serving, start, seed).run(jobs=4, epochs=20, job_kills=12, uploader_kills=3)
                rings = [ring for gpu in coprep.status()["gpus"] for ring in gpu["rings"]]
                assert all(ring["buffers"] == ring["buffers_free"] for ring in rings), rings
                serving.end()
        done = [a + b for a, b in zip(done, killed, strict=True)]
        print(
            f"seed {seed}: {done[0]} jobs and {done[1]} uploaders killed so far",
            flush=True,
        )
        seed += 1


if __name__ == "__main__":
    main()
