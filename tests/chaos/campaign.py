"""Runs many histories, several at a time, and sums up their findings."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import data, faults
from tests.chaos.checks import Finding
from tests.chaos.history import History, Result, Settings
from tests.chaos.plan import SHARDS, SIZES, Plan, features

GRACE_S = 90.0
"""Seconds beyond its deadline that a history may take for its checks."""


def make_images(folder: Path) -> None:
    """Makes the images of all histories, if an earlier campaign has not made them already.

    There is one list of files, and for each size of dataset a folder of links to them.
    """
    most = max(SIZES)
    # An earlier campaign, of an earlier version, may have made fewer.
    done = folder / "with shards"
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "list").mkdir(parents=True)
    for i in range(most):
        data.write_image(str(folder / "list" / f"{i:04}.jpg"), i)
    for size in SIZES:
        _write_shards(folder, size)
        for i in range(size):
            target = folder / f"folder-{size}" / f"class{i * 4 // size}" / f"{i:04}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / "list" / f"{i:04}.jpg", target)
    # The mark comes last, so that the next campaign begins anew if this one is interrupted.
    done.touch()


def _write_shards(folder: Path, size: int) -> None:
    """Writes the tar shards of a dataset of this size, with the images of the list."""
    root = folder / f"shards-{size}"
    root.mkdir()
    for number in range(SHARDS):
        ids = [i for i in range(size) if i * SHARDS // size == number]
        images = (folder / "list" / f"{i:04}.jpg" for i in ids)
        with open(root / f"{number}.tar", "wb") as file:
            data.write_shard(file, ids, [image.read_bytes() for image in images])


@dataclass
class Summary:
    """Counts of a campaign."""

    histories: int = 0
    batches: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    table: dict[str, Counter[str]] = field(default_factory=dict)
    """Numbers of histories, of kills, and of histories with findings, by feature of the plan."""
    signatures: dict[str, list[int]] = field(default_factory=dict)
    """Seeds of the histories with a finding, by its signature."""

    def add(self, plan: Plan, result: Result) -> None:
        if result.skipped:
            self.skipped[result.skipped] += 1
            return
        self.histories += 1
        self.batches += result.batches
        self.fired += result.fired
        kills = sum(count for what, count in result.fired.items() if what.startswith("kill"))
        for feature in features(plan):
            row = self.table.setdefault(feature, Counter())
            row["histories"] += 1
            row["kills"] += kills
            row["findings"] += bool(result.findings)
        for signature in {one.signature for one in result.findings}:
            self.signatures.setdefault(signature, []).append(plan.seed)

    @property
    def bad(self) -> set[int]:
        return {seed for seeds in self.signatures.values() for seed in seeds}

    def text(self) -> str:
        lines = [f"{'':34}{'histories':>10}{'kills':>8}{'with findings':>15}"]
        for feature in sorted(self.table):
            row = self.table[feature]
            lines.append(f"{feature:34}{row['histories']:10}{row['kills']:8}{row['findings']:15}")
        lines.append(f"faults that met something: {dict(sorted(self.fired.items()))}")
        lines += [f"not run, {count} times: {why}" for why, count in self.skipped.most_common()]
        for signature, seeds in sorted(self.signatures.items(), key=lambda item: -len(item[1])):
            more = " ..." if len(seeds) > 6 else ""
            lines.append(f"{len(seeds):5} x {signature}\n        seeds {' '.join(map(str, seeds[:6]))}{more}")
        lines.append(f"{self.histories} histories, {self.batches} batches, {len(self.bad)} with findings")
        return "\n".join(lines)


class Campaign:
    """Runs histories, each in a child of this process."""

    def __init__(self, settings: Settings, parallel: int, say: Callable[[str], None] = print) -> None:
        self.settings, self.parallel, self.say = settings, parallel, say
        self.summary = Summary()
        self._running: dict[int, tuple[Plan, float]] = {}

    def run(self, plans: Iterable[Plan]) -> Summary:
        # Orphans of a history come to this process, so that `_end_all` finds them below itself.
        faults.adopt()
        make_images(self.settings.images)
        try:
            for plan in plans:
                while len(self._running) >= self.parallel:
                    self._wait()
                self._start(plan)
            while self._running:
                self._wait()
        finally:
            self._end_all()
        return self.summary

    def _start(self, plan: Plan) -> None:
        # The child would inherit buffered text, and write it once more with its own first line.
        sys.stdout.flush()
        pid = os.fork()
        if pid != 0:
            self._running[pid] = (plan, time.monotonic())
            return
        code = 1
        try:
            # Ctrl-C reaches the whole process group. Only the campaign reacts, and ends all histories.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            history = History(plan, self.settings)
            result = history.run()
            (history.out / "result.json").write_text(result.dumps())
            code = 0
        finally:
            try:
                if code:
                    folder = self.settings.out / str(plan.seed)
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / "runner.txt").write_text(traceback.format_exc())
            finally:
                # Without this, the child would go on as a second campaign.
                os._exit(code)

    def _wait(self) -> None:
        """Waits until one history has ended, and kills histories that are long past their deadline."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in self._running:
                plan, _ = self._running.pop(pid)
                self._take(plan, os.waitstatus_to_exitcode(status))
                return
            # With 0, no process has ended. Any other id is that of an orphan, which this call has just reaped.
            if pid == 0:
                self._end_late()
                time.sleep(0.01)

    def _end_late(self) -> None:
        for pid, (_, began) in self._running.items():
            if time.monotonic() > began + self.settings.deadline + GRACE_S:
                for process in faults.descendants(pid):
                    faults.send(process.pid, signal.SIGKILL)
                faults.send(pid, signal.SIGKILL)

    def _take(self, plan: Plan, status: int) -> None:
        folder = self.settings.out / str(plan.seed)
        result = Result(plan.seed)
        # File systems that the history mounted there are gone with its process.
        shutil.rmtree(self.settings.runtime / str(plan.seed), ignore_errors=True)
        # A history that was killed has written no result. Its exit code tells of that.
        with contextlib.suppress(FileNotFoundError):
            result = Result.loads((folder / "result.json").read_text())
        if status != 0:
            trace = folder / "runner.txt"
            # Only a process that was killed leaves no trace: by this campaign after its deadline, or by somebody else.
            text = trace.read_text()[-1500:] if trace.exists() else f"its process ended with {status}"
            result.findings.append(Finding("runner failed", text))
        self.summary.add(plan, result)
        if not result.findings:
            shutil.rmtree(folder, ignore_errors=True)
            return
        (folder / "findings.txt").write_text("".join(f"{one.kind}: {one.text}\n" for one in result.findings))
        self.say(f"seed {plan.seed}: {len(result.findings)} findings, in {folder}")
        for one in result.findings[:6]:
            self.say(f"    {one.kind}: {one.text[:400]}")

    def _end_all(self) -> None:
        for process in faults.descendants(os.getpid()):
            faults.send(process.pid, signal.SIGKILL)
