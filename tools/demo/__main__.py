"""Four training jobs on one dataset: first sharing one preparation, then with one loader each.

usage: python -m tools.demo DATA   (an image folder: one sub-folder per class)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.demo import screen
from tools.demo.children import Child, ChildFailed, Children, exit_code, messages

LEARNING_RATES = (0.001, 0.003, 0.01, 0.03)
"""Learning rate of each job."""
START_EVERY_S = 1.0
"""Seconds between the starts of two jobs."""
STARTS_S = tuple(START_EVERY_S * number for number in range(len(LEARNING_RATES)))
"""Start of each job, in seconds after the start of the round."""
SAMPLES_PER_PROCESSOR = 6_000
"""Approximate samples of a job in all its epochs, for each processor. A job then lasts for some seconds on a small
machine and on a large one, so that the jobs meet."""
MOST_PROCESSORS = 8
"""Further processors add no samples, because a container often may use fewer than it sees."""
LARGEST_EPOCH = 6_000
"""A larger dataset is thinned out evenly, so that the demonstration stays short."""
TIMEOUT_S = 600.0
"""Longest time of a round in seconds."""
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""One thread for numpy in each job: four jobs would otherwise compete for all processors."""
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


@dataclass(frozen=True)
class Work:
    """The work of each job."""

    data: Path
    samples: int
    classes: int
    stride: int
    epochs: int

    def arguments(self, learning_rate: float, loader_seed: int | None) -> list[str]:
        words = ["--data", self.data, "--samples", self.samples, "--classes", self.classes, "--stride", self.stride]
        words += ["--epochs", self.epochs, "--learning-rate", learning_rate]
        if loader_seed is not None:
            words += ["--loader-seed", loader_seed]
        return [str(word) for word in words]


@dataclass(frozen=True)
class Outcome:
    """Results of one round: each job's last message, and the seconds of the round."""

    jobs: list[dict[str, Any]]
    seconds: float

    @property
    def delivered(self) -> int:
        return sum(job["samples"] for job in self.jobs)

    @property
    def prepared(self) -> int:
        """Samples prepared by all streams. Counts only grow, so the job that asked last saw the most."""
        latest: dict[int, int] = {}
        for stream in (stream for job in self.jobs for stream in job["streams"]):
            count = stream["totals"]["prepared"]
            latest[stream["id"]] = max(count, latest.get(stream["id"], 0))
        return sum(latest.values())

    @property
    def rate(self) -> float:
        return self.delivered / self.seconds


def plan(data: Path) -> Work:
    """Chooses the stride and the number of epochs for a dataset."""
    classes = [folder for folder in data.iterdir() if folder.is_dir()]
    samples = sum(path.suffix.lower() in SUFFIXES for folder in classes for path in folder.rglob("*"))
    if not samples:
        raise SystemExit(f"no images in {data}: it should have one sub-folder of images per class")
    # Rounded up, so that no epoch has more than LARGEST_EPOCH samples.
    stride = -(-samples // LARGEST_EPOCH)
    processors = min(len(os.sched_getaffinity(0)), MOST_PROCESSORS)
    epochs = max(2, round(SAMPLES_PER_PROCESSOR * processors / (samples / stride)))
    return Work(data, samples, len(classes), stride, epochs)


def run_round(work: Work, loader_seeds: Sequence[int | None]) -> Outcome:
    """Starts each job at its time, and follows all of them to their ends."""
    with Children() as children:
        _, env = children.coordinator()
        lines = [
            screen.JobLine(f"job {number}", f"learning rate {rate}", work.epochs, f"starts at {start:.0f} s")
            for number, (rate, start) in enumerate(zip(LEARNING_RATES, STARTS_S, strict=True), 1)
        ]
        progress = screen.Progress(lines)
        results: dict[str, dict[str, Any]] = {}
        jobs: list[Child] = []
        began = time.monotonic()
        while len(results) < len(lines):
            start_due(children, jobs, work, loader_seeds, env, time.monotonic() - began)
            for child, message in messages([job for job in jobs if job.name not in results], 0.1):
                hear(lines[int(child.name[-1]) - 1], child, message, results)
            # The messages come first: a job that has just said `done` may already have ended.
            check(jobs, results, time.monotonic() - began)
            progress.show()
        progress.show(now=True)
        return Outcome([results[job.name] for job in jobs], time.monotonic() - began)


def start_due(
    children: Children,
    jobs: list[Child],
    work: Work,
    loader_seeds: Sequence[int | None],
    env: dict[str, str],
    elapsed: float,
) -> None:
    number = len(jobs)
    if number < len(STARTS_S) and elapsed >= STARTS_S[number]:
        arguments = work.arguments(LEARNING_RATES[number], loader_seeds[number])
        jobs.append(children.module(f"job {number + 1}", "tools.demo.job", arguments, {**env, **QUIET}))


def hear(line: screen.JobLine, child: Child, message: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
    """Updates the line of a job from its message, and keeps its last message as its result."""
    match message["event"]:
        case "ready":
            line.state = ""
        case "progress":
            line.epoch, line.loss, line.accuracy = message["epoch"], message["loss"], message["accuracy"]
            line.samples = message["samples"]
        case "done":
            line.epoch, line.loss, line.accuracy = line.epochs, message["loss_last"], message["accuracy"]
            line.samples, line.state = message["samples"], "done"
            results[child.name] = message


def check(jobs: Sequence[Child], results: dict[str, dict[str, Any]], elapsed: float) -> None:
    """Raises an error if a job ended without a result, or if the round takes too long."""
    for job in jobs:
        if job.name not in results and not job.running():
            raise job.failure()
    if elapsed > TIMEOUT_S:
        late = [job.name for job in jobs if job.name not in results]
        raise ChildFailed(f"{', '.join(late)} did not finish within {TIMEOUT_S:.0f} s")


def show_jobs(shared: Outcome, alone: Outcome, epochs: int) -> None:
    """Prints the results of each job when sharing, and its stalls with a loader of its own."""
    header = ["job", "learning rate", "started", "epochs", "loss first", "last", "accuracy"]
    header += ["stalled", "with its own loader"]
    rows = [
        [
            str(number),
            f"{rate}",
            f"{start:.0f} s",
            str(epochs),
            f"{ours['loss_first']:.2f}",
            f"{ours['loss_last']:.2f}",
            f"{ours['accuracy']:.0%}",
            stall(ours),
            stall(theirs),
        ]
        for number, (rate, start, ours, theirs) in enumerate(
            zip(LEARNING_RATES, STARTS_S, shared.jobs, alone.jobs, strict=True), 1
        )
    ]
    screen.table(header, rows)


def stall(job: dict[str, Any]) -> str:
    """Formats the time for which a job waited for batches, and its share of the run."""
    return f"{job['wait_s']:.1f} s ({job['wait_s'] / job['seconds']:.0%})"


def show_totals(shared: Outcome, alone: Outcome) -> None:
    """Prints the sums over all jobs of both rounds."""
    rounds = (shared, alone)
    rows = [
        ["samples delivered", *(f"{one.delivered:,}" for one in rounds)],
        ["samples prepared", *(f"{one.prepared:,}" for one in rounds)],
        ["share factor (delivered / prepared)", *(f"{one.delivered / one.prepared:.2f}" for one in rounds)],
        ["images per second, all jobs", *(f"{one.rate:,.0f}" for one in rounds)],
        ["seconds, first start to last end", *(f"{one.seconds:.1f}" for one in rounds)],
    ]
    screen.table(["", "shared", "one loader per job"], rows)
    print(f"\nSharing delivered {shared.rate / alone.rate:.2f} times as many images per second to the same jobs.")


def demonstrate(data: Path) -> None:
    """Runs both rounds, and prints their results."""
    work = plan(data)
    thinned = "" if work.stride == 1 else f", of which each job takes {work.samples // work.stride:,}"
    jobs = f"{len(LEARNING_RATES)} jobs, started {START_EVERY_S:.0f} s apart, {work.epochs} epochs each, no cache"
    print(f"{work.samples:,} images in {data}{thinned}; {jobs}")
    screen.heading("1 of 2. The jobs share: each sample is prepared once for all of them")
    shared = run_round(work, [None] * len(LEARNING_RATES))
    screen.heading(
        "2 of 2. One loader per job: the same, but with a seed of its own for each, so that nothing is shared"
    )
    alone = run_round(work, range(1, len(LEARNING_RATES) + 1))
    screen.heading("The jobs")
    show_jobs(shared, alone, work.epochs)
    screen.heading("All together")
    show_totals(shared, alone)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="four training jobs that share one preparation")
    parser.add_argument("data", type=Path, help="an image folder: one sub-folder per class")
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"{args.data} is not a folder", file=sys.stderr)
        return 2
    return exit_code(lambda: demonstrate(args.data.resolve()))


if __name__ == "__main__":
    sys.exit(main())
