"""Fixtures for jobs that share uploads."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_jobs import Driver, Serving
from jobs import Job, Start
from sharing_jobs import Pair, Serve, sharing_job


@pytest.fixture
def serve(socket_path: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts a coordinator whose uploaders find a driver with these settings, and ends it after the test."""
    serving: list[Serving] = []

    def serve(settings: str = "", **variables: str) -> Serving:
        serving.append(Serving(tmp_path / "uploader", settings, **variables))
        return serving[-1]

    yield serve
    for coordinator in serving:
        coordinator.end()


@pytest.fixture
def job(folder: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts jobs that share, each with a driver of its own, and ends the remaining ones after the test."""
    jobs: list[Job] = []

    def start(settings: str = "", **plan: Any) -> Job:
        jobs.append(sharing_job(Driver(tmp_path / f"job{len(jobs)}", settings), folder, **plan))
        return jobs[-1]

    yield start
    for started in jobs:
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGCONT)
            started.kill()


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two jobs that share, and train once for each test."""
    jobs = Pair(folder, tmp_path_factory.mktemp("pair"))
    yield jobs
    jobs.end()
