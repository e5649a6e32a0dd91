"""Ends the jobs that fork servers were forked from, one after the other, while others take batches.

usage: python -m tests.chaos.ends [--ends 1000] [--jobs 4] [--longest-pause 30] [--seed 0]

Every job holds a port, a lock of a file and the end of a pipe, which its fork server and workers inherit. Half of the
ends are by SIGKILL, the others by closing the loader, or by the end of the program. A third of the jobs run in a
control group of their own, where the machine has such groups and they may be made. A second after each end nothing of
the job may be left, and no other job may wait for more than a second beyond the time in which its samples are made.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import coprep
import numpy as np

from tests.chaos import faults

SAMPLES, BATCH, WORKERS = 512, 8, 2
SAMPLE_S = 0.002
"""Seconds that a sample takes."""
MAKING_S = 2 * BATCH * SAMPLE_S
"""Seconds that the samples of a batch may take: one worker may make all of them, after those of another batch."""
GRACE_S = 1.0
"""Seconds within which nothing of a job may be left, and for which another job may wait."""
GROUPS = Path("/sys/fs/cgroup")


class Data:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        time.sleep(SAMPLE_S)
        return np.full(256, i)


@dataclass
class Job:
    """A job, as the program that ends it sees it."""

    pid: int
    pipe: int
    """The end of a pipe whose other end the job has. It is readable when the job tells something, and when it has
    ended with all processes that it has forked.
    """
    port: int = 0
    lock: str = ""
    group: Path | None = None
    told: bytearray = field(default_factory=bytearray)
    waits: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def run_job(out: int, lock: Path, longest_pause: float, seed: int) -> NoReturn:
    """Runs a job until it is told to end by SIGUSR1 (it leaves the loader) or SIGUSR2 (the program ends)."""
    code = 1
    rng = random.Random(seed)
    asked: list[str] = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append("close"))
    signal.signal(signal.SIGUSR2, lambda *_: asked.append("exit"))

    def tell(**what: Any) -> None:
        os.write(out, (json.dumps(what) + "\n").encode())

    try:
        file = os.open(lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        listener = socket.create_server(("127.0.0.1", 0))
        tell(port=listener.getsockname()[1])
        loader = coprep.DataLoader(
            Data(), BATCH, shuffle=True, num_workers=WORKERS, framework="numpy", with_index=True, timeout=60
        )
        while not asked:
            seen: list[int] = []
            batches = iter(loader)
            while not asked:
                began = time.monotonic()
                batch = next(batches, None)
                if not asked:
                    tell(wait=time.monotonic() - began)
                if batch is None:
                    break
                values, ids = batch
                assert (values[:, 0] == ids).all()
                seen += ids.tolist()
                pause = rng.choices([0.0, rng.uniform(0, 0.1), rng.uniform(0, longest_pause)], [60, 39, 1])[0]
                end = time.monotonic() + pause
                while not asked and time.monotonic() < end:
                    time.sleep(min(0.05, pause))
            if not asked and sorted(seen) != list(range(SAMPLES)):
                tell(error=f"an epoch of {len(seen)} samples, {len(set(seen))} of them different")
        if asked[0] == "close":
            del batches
            loader.close()
        tell(ended=True)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the program that ends jobs has to hear of any error
        tell(error=f"{type(error).__name__}: {error}")
    if code == 0 and asked[0] == "close":
        # The process goes on without its loader, and its locks stay its own.
        os.close(out)
        listener.close()
        os.close(file)
        time.sleep(3600)
    os._exit(code)


def make_group(number: int) -> Path | None:
    """Returns a control group of its own, or ``None`` if there can be none."""
    for folder in (GROUPS / "memory", GROUPS):
        if (folder / "cgroup.procs").exists():
            group = folder / f"coprep-ends-{os.getpid()}-{number}"
            with contextlib.suppress(OSError):
                group.mkdir()
                return group
    return None


class Ends:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.rng = random.Random(args.seed)
        self.jobs: list[Job] = []
        self.number = 0
        self.ends: Counter[str] = Counter()
        self.findings: list[str] = []
        self.waits: list[float] = []

    def start(self) -> None:
        self.number += 1
        number, lock = self.number, self.folder / f"lock{self.number}"
        group = make_group(number) if self.rng.random() < 1 / 3 else None
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            for job in self.jobs:
                os.close(job.pipe)
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))
            sys.argv = [f"job{number}"]
            run_job(writer, lock, self.args.longest_pause, self.rng.randrange(1 << 30) + number)
        os.close(writer)
        os.set_blocking(reader, False)
        self.jobs.append(Job(pid, reader, lock=str(lock), group=group))

    def hear(self, seconds: float) -> None:
        """Reads what the jobs tell, for some seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for ready in select.select([job.pipe for job in self.jobs], [], [], left)[0]:
                job = next(job for job in self.jobs if job.pipe == ready)
                data = os.read(ready, 1 << 16)
                if not data:
                    raise SystemExit(f"job {job.pid} has ended by itself: {job.errors}")
                self._take(job, data)

    def _take(self, job: Job, data: bytes) -> None:
        job.told += data
        *lines, rest = bytes(job.told).split(b"\n")
        job.told[:] = rest
        for line in lines:
            what = json.loads(line)
            job.port = what.get("port", job.port)
            if "wait" in what:
                self.waits.append(what["wait"])
                if what["wait"] > GRACE_S + MAKING_S:
                    self.findings.append(f"end {sum(self.ends.values())}: a job waited for {what['wait']:.2f} s")
            if "error" in what:
                job.errors.append(what["error"])
                self.findings.append(f"job {job.pid}: {what['error']}")

    def giver(self) -> Job | None:
        """Returns a job that a fork server was forked from, if there is one."""
        givers = set(faults.targets(faults.descendants(os.getpid()), "giver"))
        return next((job for job in self.jobs if job.pid in givers and job.port), None)

    def end_one(self) -> bool:
        job = self.giver()
        if job is None:
            return False
        how = self.rng.choices(["kill", "close", "exit"], [2, 1, 1])[0]
        below = [process.pid for process in faults.descendants(job.pid)]
        os.kill(job.pid, {"kill": signal.SIGKILL, "close": signal.SIGUSR1, "exit": signal.SIGUSR2}[how])
        self.ends[how + (", in a control group" if job.group else "")] += 1
        self.jobs.remove(job)
        self._wait_for_end(job, how)
        began = time.monotonic()
        self.start()
        self.hear(max(0.0, GRACE_S - (time.monotonic() - began)))
        self._check_nothing_left(job, below)
        os.close(job.pipe)
        if how == "close":
            os.kill(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)
        if job.group is not None:
            with contextlib.suppress(OSError):
                job.group.rmdir()
        return True

    def _wait_for_end(self, job: Job, how: str) -> None:
        """Waits until the job has ended, or has left its loader. A job that computes looks for that now and then."""
        if how != "close":
            os.waitpid(job.pid, 0)
            return
        end = time.monotonic() + 60
        while b'"ended"' not in job.told and time.monotonic() < end:
            if select.select([job.pipe], [], [], 0.1)[0]:
                data = os.read(job.pipe, 1 << 16)
                if not data:
                    return
                job.told += data

    def _check_nothing_left(self, job: Job, below: list[int]) -> None:
        def left(what: str) -> None:
            self.findings.append(f"end {sum(self.ends.values())}: {what} of job {job.pid} is left")

        for pid in below:
            process = faults.read(pid)
            if process is not None and not process.is_zombie:
                left(f"process {pid}")
        with socket.socket() as probe:
            # A free port may be given to another job, or to the probe, which is then connected to itself.
            others = {other.port for other in self.jobs}
            is_taken = probe.connect_ex(("127.0.0.1", job.port)) == 0 and job.port not in others
            if is_taken and probe.getsockname() != probe.getpeername():
                left("the port")
        file = os.open(job.lock, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            left("the lock")
        os.close(file)
        with contextlib.suppress(BlockingIOError):
            while os.read(job.pipe, 1 << 16):
                pass
            return
        left("the pipe")

    def run(self) -> None:
        for _ in range(self.args.jobs):
            self.start()
        self.hear(3)
        without = 0.0
        while sum(self.ends.values()) < self.args.ends:
            if self.end_one():
                without = 0.0
                continue
            self.hear(0.1)
            without += 0.1
            if without > 60:
                raise SystemExit("there is no fork server")
        for job in self.jobs:
            os.kill(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.ends")
    parser.add_argument("--ends", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--longest-pause", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    faults.adopt()
    with tempfile.TemporaryDirectory(prefix="coprep-") as folder:
        os.environ["COPREP_SOCKET"] = f"{folder}/s"
        ends = Ends(args, Path(folder))
        try:
            ends.run()
        finally:
            with contextlib.suppress(coprep.CoprepError):
                coprep.stop()
    waits = sorted(ends.waits)
    print(f"{sum(ends.ends.values())} ends: {dict(ends.ends)}")
    print(f"{len(waits)} batches; waits: median {waits[len(waits) // 2]:.4f} s, longest {waits[-1]:.2f} s")
    print("\n".join(ends.findings) or "no finding")
    return 1 if ends.findings else 0


if __name__ == "__main__":
    sys.exit(main())
