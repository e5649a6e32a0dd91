"""Tests panics of threads that serve processes of user code: a panic ends the thread's own work, and nothing is lost.

The command must be built with failpoints, as ``make test`` builds it. Panics without user code are tested in
``coordinator/tests/panics.rs``.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from coordinators import knows, stream
from jobs import Start, go, reports
from user_jobs import job

pytestmark = [
    pytest.mark.skipif(not knows("FAILPOINTS"), reason="the command was built without failpoints: use make test"),
    pytest.mark.usefixtures("nothing_is_left"),
]
N = 64
EPOCHS = 3
DATA = f"Numbers({N}, pause=0.002)"


def run(start: Start, patch: pytest.MonkeyPatch, failpoints: str, kill: bool = False, **own: Any) -> list[list[Any]]:
    """Runs two jobs that lose and repeat nothing, and kills a worker on request. Returns the errors of both jobs."""
    patch.setenv("FAILPOINTS", failpoints)
    jobs = [job(start, DATA, EPOCHS, 0.005, "mark", **own) for _ in range(2)]
    go(*jobs)
    for each in jobs:
        assert each.line() == "batch"
    if kill:
        os.kill(stream()["worker_pids"][0], signal.SIGKILL)
    errors: list[list[Any]] = []
    for each in jobs:
        told = reports(each)
        assert len(told) == EPOCHS
        for epoch in told:
            failed = {error[2] for error in epoch["errors"]}
            assert len(epoch["seen"]) == len(set(epoch["seen"])), "none is given twice"
            # A sample that failed may still come: a stream that is opened anew makes it again.
            assert failed.union(epoch["seen"]) == set(range(N))
            errors += epoch["errors"]
    return errors


@pytest.mark.parametrize("order", ["deterministic", "relaxed"])
@pytest.mark.parametrize("point", ["pool-begin", "worker-written"])
def test_a_sample_over_which_the_thread_of_its_worker_panics_is_an_error_of_that_sample(
    socket_path: object, start: Start, monkeypatch: pytest.MonkeyPatch, point: str, order: str
) -> None:
    errors = run(start, monkeypatch, f"{point}=40*off->1*panic->off", order=order)
    assert errors and len({error[2] for error in errors}) == 1
    assert all("a defect of coprep" in error[5] for error in errors)


@pytest.mark.parametrize("order", ["deterministic", "relaxed"])
@pytest.mark.parametrize("failpoints", ["pool-turn=30*off->1*panic->off", "pump-locked=40*off->1*panic->off"])
def test_what_a_worker_process_was_given_is_made_by_another_if_its_thread_panics(
    socket_path: object, start: Start, monkeypatch: pytest.MonkeyPatch, failpoints: str, order: str
) -> None:
    assert run(start, monkeypatch, failpoints, order=order) == []


def test_a_job_attaches_again_if_its_session_panics_when_it_has_answered(
    socket_path: object, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(start, monkeypatch, "session-attached=1*panic->1*off->1*panic->off") == []


def test_a_fork_server_whose_listener_panics_is_replaced(
    socket_path: object, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fork server's messages before the panic: the dataset is loaded, the staging area is mapped, three workers are
    # forked, and the first of them has ended. The last message is that a worker was killed.
    assert run(start, monkeypatch, "fork-server-listener=6*off->1*panic->off", kill=True) == []


def test_many_panics_of_all_kinds_lose_nothing(
    socket_path: object, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = ["pool-begin", "pool-turn", "worker-written", "minibatch-done", "pump-locked", "session-request"]
    failpoints = ";".join(f"{point}=1%5*panic->off" for point in points)
    errors = run(start, monkeypatch, failpoints)
    assert all("defect of coprep" in error[5] for error in errors)
