"""The figures of the part `peers` as rows of tables, and its conditions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.benchmarks.loaders.tables import Section, Table
from tests.benchmarks.storage.peers import BATCH_SIZE
from tests.benchmarks.storage.peers.bucket import SHARDS
from tests.benchmarks.storage.peers.loaders import LOADERS, Loader, workers_of
from tests.benchmarks.storage.peers.running import Epoch, Run

Column = tuple[str, Callable[[Run], float], int]
"""A heading, the figure of a run, and its digits after the point."""


def of_epoch(number: int, figure: Callable[[Epoch], float]) -> Callable[[Run], float]:
    return lambda run: figure(run.epochs[number])


COLUMNS: Sequence[Column] = (
    ("images/s, 1st epoch", of_epoch(0, lambda epoch: epoch.images_per_s), 0),
    ("2nd", of_epoch(1, lambda epoch: epoch.images_per_s), 0),
    ("GETs/sample, 1st", of_epoch(0, lambda epoch: epoch.gets), 3),
    ("2nd", of_epoch(1, lambda epoch: epoch.gets), 3),
    ("KB/sample, 1st", of_epoch(0, lambda epoch: epoch.kilobytes), 1),
    ("2nd", of_epoch(1, lambda epoch: epoch.kilobytes), 1),
    ("CPU s/1,000, 1st", of_epoch(0, lambda epoch: epoch.cpu_s_per_1000), 2),
    ("2nd", of_epoch(1, lambda epoch: epoch.cpu_s_per_1000), 2),
    ("memory MiB", lambda run: run.memory_mib, 0),
    ("disk MiB", lambda run: run.disk_mib, 0),
)
OTHER_COLUMNS: Sequence[Column] = (
    ("first batch s", lambda run: run.first_batch_s, 2),
    ("warm-up s", lambda run: run.warm_up_s, 2),
    ("HEADs and listings/sample, 1st", of_epoch(0, lambda epoch: epoch.other_requests), 3),
    ("2nd", of_epoch(1, lambda epoch: epoch.other_requests), 3),
    ("server, cores, 1st", of_epoch(0, lambda epoch: epoch.server_cores), 2),
    ("2nd", of_epoch(1, lambda epoch: epoch.server_cores), 2),
    ("others, cores, 1st", of_epoch(0, lambda epoch: epoch.others_cores), 2),
    ("2nd", of_epoch(1, lambda epoch: epoch.others_cores), 2),
)


@dataclass
class PeerResults:
    """All repetitions, by loader and number of jobs."""

    samples: int
    cores: int
    versions: Mapping[str, str] = field(default_factory=dict)
    runs: dict[tuple[Loader, int], list[Run]] = field(default_factory=dict)
    failed: Counter[tuple[Loader, int]] = field(default_factory=Counter)
    """Numbers of runs that failed."""

    def table(self, columns: Sequence[Column], jobs: int) -> Table:
        rows = []
        for loader in LOADERS:
            if runs := self.runs.get((loader, jobs)):
                medians = [(statistics.median(map(figure, runs)), digits) for _, figure, digits in columns]
                rows.append([loader.label, *(f"{value:,.{digits}f}" for value, digits in medians)])
        return [jobs_label(jobs), *(heading for heading, _, _ in columns)], rows

    def spread(self, jobs: int) -> Table:
        """Returns the lowest and the highest rate of each epoch."""
        rows = []
        for loader in LOADERS:
            if runs := self.runs.get((loader, jobs)):
                rates = [[run.epochs[number].images_per_s for run in runs] for number in (0, 1)]
                rows.append([loader.label, *(f"{pick(rate):,.0f}" for rate in rates for pick in (min, max))])
        return [jobs_label(jobs), "images/s, 1st epoch, lowest", "highest", "2nd, lowest", "highest"], rows

    def conditions(self) -> str:
        repetitions = max(map(len, self.runs.values()))
        versions = ", ".join(f"{package} {version}" for package, version in self.versions.items())
        workers = ", ".join(f"{workers_of(jobs, self.cores)} with {jobs_label(jobs)}" for jobs in self.jobs())
        failed = ", ".join(
            f"{loader.label} with {jobs_label(jobs)} ({count})" for (loader, jobs), count in self.failed.items()
        )
        return (
            f"The part `peers`: {self.samples:,} photographs in about {SHARDS} shards, batches of {BATCH_SIZE};"
            f" medians of {repetitions}; workers of each job's DataLoader: {workers}. {versions}."
            f"{f' Runs that failed: {failed}.' if failed else ''}"
        )

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"loader": loader.label, "jobs": jobs, **asdict(run)}
            for (loader, jobs), runs in self.runs.items()
            for run in runs
        ]

    def jobs(self) -> list[int]:
        return sorted({jobs for _, jobs in self.runs})

    def tables(self) -> list[Table]:
        return [self.table(COLUMNS, jobs) for jobs in self.jobs()]

    def sections(self) -> list[Section]:
        """Returns the complete tables."""
        others = [table for jobs in self.jobs() for table in (self.table(OTHER_COLUMNS, jobs), self.spread(jobs))]
        return [
            Section("peers: other loaders of object stores", self.tables()),
            Section("peers: start, other requests, spread", others),
        ]


def jobs_label(jobs: int) -> str:
    return f"{jobs} job{'s' * (jobs > 1)}"
