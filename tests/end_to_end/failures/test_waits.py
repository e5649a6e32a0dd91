"""Tests that an event wakes each waiting thread, so that jobs run through without periodic polling.

The listed tests of other files run once more with poll intervals of an hour
(``coordinator/protocol/src/poll_interval.rs``). A thread that relies on polling hangs, and the time limit ends the run.
The limit uses a thread, since a job that hangs in native code hears no signal. Events that are noticed by polling the
socket are left out: Ctrl-C, and the death of the coordinator.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from coordinators import knows

POLL_INTERVAL = "COPREP_TEST_POLL_INTERVAL"

SELECTION = [
    "sharing/test_sharing.py::test_jobs_may_come_and_go_at_any_time",
    "sharing/test_sharing.py::test_a_job_that_stops_reading_does_not_hold_up_the_others",
    "sharing/test_sharing.py::test_keeping_every_batch_holds_up_nobody",
    "failures/test_bad_days.py::test_a_killed_job_releases_its_batches",
    "failures/test_bad_days.py::test_a_killed_job_alone_frees_everything",
    "failures/test_bad_days.py::test_an_idle_coordinator_ends_by_itself",
    "failures/test_bad_days.py::test_a_warmed_cache_serves_the_jobs",
    "failures/test_user_bad_days.py::test_a_worker_that_is_killed_while_idle_is_replaced",
    "failures/test_user_bad_days.py::test_a_worker_that_is_killed_while_busy_loses_nothing",
    "failures/test_user_bad_days.py::test_a_sample_that_hangs_is_reported_with_the_time",
    "failures/test_user_bad_days.py::test_stopping_leaves_no_process",
    "failures/test_user_bad_days.py::test_closing_the_last_loader_ends_its_processes",
]


@pytest.mark.skipif(POLL_INTERVAL in os.environ, reason="the intervals are long already")
def test_nothing_relies_on_polling() -> None:
    if not knows(POLL_INTERVAL):
        pytest.skip("a release build: its poll intervals cannot be lengthened")
    tests = [str(Path(__file__).parents[1] / test) for test in SELECTION]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--timeout=90", "--timeout-method=thread", *tests],
        env={**os.environ, POLL_INTERVAL: "3600"},
        # Less than the 180 s that the runner allows a test, so that this test reports the hang itself.
        timeout=170,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
