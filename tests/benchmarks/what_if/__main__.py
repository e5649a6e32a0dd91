"""Compares the predictions of `coprep analyze` with epochs that are run, over cache sizes, processors, storage and
jobs.

usage: python -m tests.benchmarks.what_if DATA --out FOLDER [--repeat 3] [--only cache,jobs]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.benchmarks.loaders import machine
from tests.benchmarks.loaders.machine import CpuClock
from tests.benchmarks.loaders.measure import ONE_THREAD, Dataset
from tests.benchmarks.loaders.tables import Section, Table, TablesPage, markdown
from tests.benchmarks.slow_samples.running import READY_TIMEOUT_S, Progress, end, hear
from tests.benchmarks.slow_samples.subset import part_of
from tools.demo.children import Children, coprep_command, exit_code

IMAGES = 600
SECONDS = 10.0
SHORTEST_S = 10.0
"""Seconds that the compared epochs take together, roughly. They follow `FIRST` epochs that fill caches and queues."""
FIRST = 2
WITHIN = 0.10
WAITS = ("fetch_stall_s", "prep_stall_s")
GROUPS = ("cache", "cpus", "storage", "jobs", "unshared", "code")


@dataclass(frozen=True)
class Code:
    """A Python dataset, with the times that one sample takes a worker."""

    work_ms: float
    wait_ms: float
    workers: int

    def command(self, step_ms: float, *epochs: str) -> list[str]:
        times = [str(self.work_ms), str(self.wait_ms), str(self.workers), str(step_ms / 1e3)]
        return ["tests.benchmarks.what_if.job_code", *times, *epochs]


@dataclass(frozen=True)
class Setting:
    """One configuration to predict and to run. Sizes and rates are in bytes."""

    group: str
    name: str
    cache: int
    form: str = "encoded"
    cpus: int = 2
    storage: int | None = None
    jobs: int = 1
    shared: bool = True
    step_ms: float = 2.0
    code: Code | None = None
    """The Python dataset that replaces the images, or `None` for images. `coprep analyze` runs its script."""

    def arguments(self) -> list[str]:
        """Returns the options for `coprep analyze --again`."""
        found = [f"--cache={self.cache}", f"--form={self.form}", f"--cpus={self.cpus}", f"--jobs={self.jobs}"]
        found += [f"--step-time={self.step_ms}ms"]
        found += [f"--storage-rate={self.storage}"] if self.storage else []
        return found if self.shared else [*found, "--unshared"]


@dataclass(frozen=True)
class Options:
    """The groups of settings to measure, and how often."""

    groups: Sequence[str]
    rounds: int
    seconds: float
    """Length of each measurement of `coprep analyze`."""


@dataclass(frozen=True)
class Once:
    """One setting, predicted and run in one round."""

    predicted: dict[str, Any]
    measured_s: float
    waits: Sequence[float]
    others_cores: float

    @property
    def predicted_s(self) -> float:
        return float(self.predicted["epoch_s"])

    @property
    def predicted_waits(self) -> list[float]:
        return [self.predicted[key] / self.predicted_s for key in WAITS]


@dataclass(frozen=True)
class Row:
    """One setting, with the medians of all rounds."""

    setting: Setting
    predicted_s: float
    measured_s: float
    spread: float
    """The largest measured time over the smallest, minus 1."""
    predicted_waits: Sequence[float]
    """Shares of the epoch spent waiting: for storage, and for processors."""
    measured_waits: Sequence[float]
    others_cores: float

    @classmethod
    def of(cls, setting: Setting, rounds: Sequence[Once]) -> Row:
        seconds = [once.measured_s for once in rounds]
        return cls(
            setting,
            statistics.median(once.predicted_s for once in rounds),
            statistics.median(seconds),
            max(seconds) / min(seconds) - 1,
            medians([once.predicted_waits for once in rounds]),
            medians([once.waits for once in rounds]),
            statistics.median(once.others_cores for once in rounds),
        )

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s

    @property
    def is_met(self) -> bool:
        return abs(self.ratio - 1) <= WITHIN


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Returns the median of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def settings(encoded: int) -> list[Setting]:
    """Returns all settings to compare. `encoded` is the number of bytes of all files."""
    slow, fast = 40 << 20, 160 << 20
    full = 2 * encoded
    found = [Setting("cache", f"cache {n} %, 40 MiB/s", encoded * n // 100, storage=slow) for n in (0, 25, 50, 75)]
    found.append(Setting("cache", "cache 100 %, 40 MiB/s", full, storage=slow))
    found += [Setting("cpus", f"{n} processors, all cached", full, cpus=n) for n in (1, 2)]
    found += [Setting("cpus", f"{n} processors, nothing cached", 0, form="off", cpus=n) for n in (1, 2)]
    found += [Setting("storage", "no cache, 40 MiB/s", 0, form="off", storage=slow)]
    found += [Setting("storage", "no cache, 160 MiB/s", 0, form="off", storage=fast)]
    found += [Setting("jobs", f"{n} jobs that share", 0, form="off", jobs=n) for n in (1, 2, 4, 8)]
    found += [Setting("jobs", f"{n} jobs that share, 60 ms a step", 0, form="off", jobs=n, step_ms=60) for n in (1, 8)]
    found += [Setting("unshared", f"{n} jobs, each its own", 0, form="off", jobs=n, shared=False) for n in (2, 4, 8)]
    # The numbers are milliseconds of work and of waiting for each sample, and workers.
    bound = {"processors": Code(4, 0, 2), "storage": Code(1, 9, 2), "both": Code(3, 3, 2), "6 workers": Code(2, 6, 6)}
    found += [Setting("code", f"Python dataset, bound by {name}", 0, form="off", code=c) for name, c in bound.items()]
    return found


def predict(report: Path, setting: Setting, seconds: float) -> dict[str, Any]:
    if setting.code:
        script = [sys.executable, "-m", *setting.code.command(setting.step_ms)]
        answer = coprep("analyze", f"--seconds={seconds}", f"--cpus={setting.cpus}", "--json", "--", *script)
        present: dict[str, Any] = json.loads(answer)["present"]["outcome"]
        return present
    answer = coprep("analyze", f"--again={report}", "--json", *setting.arguments())
    outcome: dict[str, Any] = json.loads(answer)["present"]["outcome"]
    return outcome


def coprep(*arguments: str) -> str:
    ran = subprocess.run([str(coprep_command()), *arguments], stdout=subprocess.PIPE, check=True, timeout=600)
    return ran.stdout.decode()


def measure(data: Dataset, setting: Setting, epoch_s: float) -> tuple[float, Sequence[float], float]:
    """Returns the seconds of an epoch, the shares of it that were waits, and the processors that others used."""
    if setting.code is None:
        data.read()
    # Between 3 and 24 epochs are compared, so that they take about `SHORTEST_S` seconds.
    epochs = FIRST + max(3, min(24, round(SHORTEST_S / epoch_s)))
    options: dict[str, Any] = {"cache": setting.form}
    if setting.form != "off":
        options["cache_bytes"] = setting.cache
    serve = [f"--cpus={setting.cpus}", *([f"--storage-rate={setting.storage}"] if setting.storage else [])]
    # Jobs that share nothing have a coordinator each.
    coordinator_count = 1 if setting.shared else setting.jobs
    if setting.code:
        module, *arguments = setting.code.command(setting.step_ms, str(epochs))
    else:
        module = "tests.benchmarks.what_if.job"
        arguments = [str(data.root), json.dumps(options), str(epochs), str(setting.step_ms / 1e3)]
    with Children() as children:
        coordinators = [
            children.coordinator(str(2 * setting.cache), serve, f"coordinator-{n}") for n in range(coordinator_count)
        ]
        jobs = [
            children.module(f"job {n}", module, arguments, {**ONE_THREAD, **coordinators[n % coordinator_count][1]})
            for n in range(setting.jobs)
        ]
        for job in jobs:
            hear(job, "ready", READY_TIMEOUT_S)
        roots = [child.pid for child in [*jobs, *(child for child, _ in coordinators)]]
        before, began = CpuClock.read(roots), time.monotonic()
        for job in jobs:
            job.tell("go")
        done = [hear(job, "done", 900.0)[-1] for job in jobs]
        others = CpuClock.read(roots).others_since(before) / (time.monotonic() - began)
        for job in jobs:
            end(job)
    # All jobs run at once only after the last one has begun, so the first epochs are left out.
    means = [(said["ends"][-1] - said["ends"][FIRST - 1]) / (epochs - FIRST) for said in done]
    waits = [[said["waits"][key] / said["ends"][-1] for key in WAITS] for said in done]
    return statistics.median(means), medians(waits), others


def rows(data: Dataset, out: Path, options: Options) -> list[Row]:
    """Predicts and runs all settings, round by round.

    The machine is not equally fast at all times, so each round measures both the basis of the prediction and the epochs
    that it is compared with.
    """
    encoded = sum(path.stat().st_size for path in data.files)
    wanted = [setting for setting in settings(encoded) if setting.group in options.groups]
    progress = Progress(options.rounds * (1 + len(wanted)))
    found: dict[Setting, list[Once]] = {setting: [] for setting in wanted}
    for number in range(1, options.rounds + 1):
        report = out / f"report-{number}.json"
        if any(setting.code is None for setting in wanted):
            data.read()
            report.write_text(coprep("analyze", str(data.root), f"--seconds={options.seconds}", "--json"))
        progress.say(f"round {number}: coprep analyze of {len(data.files)} images")
        for setting in wanted:
            predicted = predict(report, setting, options.seconds)
            once = Once(predicted, *measure(data, setting, predicted["epoch_s"]))
            found[setting].append(once)
            said = f"predicted {once.predicted_s:.3f} s, measured {once.measured_s:.3f} s"
            progress.say(f"round {number}: {setting.name}: {said}, {once.predicted_s / once.measured_s:.3f}")
    return [Row.of(setting, each) for setting, each in found.items()]


def table(found: Sequence[Row]) -> Table:
    header = ["setting", "predicted s", "measured s", "predicted / measured"]
    header += ["waits for storage, processors: predicted", "measured"]
    rows = []
    for row in found:
        waits = [
            ", ".join(f"{100 * part:.0f} %" for part in parts) for parts in (row.predicted_waits, row.measured_waits)
        ]
        ratio = f"{row.ratio:.2f}" if row.is_met else f"**{row.ratio:.2f}**"
        rows.append([row.setting.name, f"{row.predicted_s:.3f}", f"{row.measured_s:.3f}", ratio, *waits])
    return header, rows


def verdict(found: Sequence[Row]) -> str:
    met = sum(row.is_met for row in found)
    return f"within {WITHIN:.0%}: {met} of {len(found)}{'' if met == len(found) else ' (NOT MET)'}"


def conditions(found: Sequence[Row], rounds: int) -> str:
    others, spread = max(row.others_cores for row in found), max(row.spread for row in found)
    return (
        f"{datetime.now(timezone.utc).date()}, {machine.processor()}, {machine.cores()} cores, {rounds} rounds;"
        f" others used up to {others:.2f} cores; epochs of one setting differ by up to {spread:.0%};"
        f" {verdict(found)}."
    )


def page(found: Sequence[Row], rounds: int) -> TablesPage:
    sections = [Section("Settings", [table(found)])]
    return TablesPage("what-if", "Predictions of analyze", "make what-if", conditions(found, rounds), sections)


def run(arguments: argparse.Namespace, folder: Path) -> None:
    data = part_of(Dataset.find(arguments.data.resolve()), IMAGES, folder / "images")
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    found = rows(data, out, Options(arguments.only, arguments.repeat, arguments.seconds))
    print(f"\n{markdown(table(found))}\n\n{conditions(found, arguments.repeat)}")
    page(found, arguments.repeat).write(out)
    lines = [json.dumps(asdict(row) | {"ratio": row.ratio}) for row in found]
    (out / "what-if.jsonl").write_text("\n".join(lines) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make what-if", description="predictions against measured epochs")
    parser.add_argument("data", type=Path, help="an image folder: one sub-folder per class")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", type=lambda text: text.split(","), default=GROUPS)
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    os.environ.pop("COPREP_SOCKET", None)
    with tempfile.TemporaryDirectory(prefix="coprep-what-if-") as folder:
        return exit_code(lambda: run(arguments, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
