"""Tests the border of an epoch: one pass prepares one pass, and an epoch that follows at once finds a batch ready."""

from __future__ import annotations

import time
from pathlib import Path

import coprep
import pytest
import user_datasets as ud
from batches import ids
from coordinators import stream
from jobs import Start, go, seen
from user_jobs import NUMPY, job
from waiting import until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
LOOKED_AT = 1
"""Samples that are made once more, to find the structure of a sample."""
SLOW_STEP = 0.3
"""Seconds that one step of an epoch takes. A border is crossed at once if it takes no longer than a few of these."""


def prepared() -> int:
    """Returns the number of prepared samples, once all buffers are free: then nothing is in preparation."""
    until(lambda: stream()["buffers_free"] == stream()["buffers"], "all buffers are free")
    return stream()["totals"]["prepared"]


def becomes_prepared(samples: int, buffers: int) -> None:
    """Waits until exactly `samples` are prepared and exactly `buffers` are taken by them or in preparation."""

    def same() -> bool:
        now = stream()
        return (now["totals"]["prepared"], now["buffers"] - now["buffers_free"]) == (samples, buffers)

    until(same, f"{samples} samples are prepared and {buffers} buffers are taken")


def test_two_epochs_of_a_cohort_call_for_each_sample_twice(start: Start, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    own = {"batch_size": 32, "cohort": "c", "cohort_size": 4}
    jobs = [job(start, f"Numbers(400, log={log!r})", 2, 0, **own) for _ in range(4)]
    go(*jobs)
    assert [seen(one) for one in jobs] == [[list(range(400))] * 2] * 4
    assert len(ud.noted(log)) <= 800 + LOOKED_AT


def test_one_pass_calls_for_each_sample_once(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with coprep.DataLoader(ud.Numbers(60, log=log), 32, **NUMPY) as loader:
        assert ids(loader) == list(range(60))
        assert prepared() == 60
    assert len(ud.noted(log)) == 60 + LOOKED_AT


def test_a_validation_set_is_prepared_once_for_each_pass(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with coprep.DataLoader(ud.Numbers(60, log=log), 32, **NUMPY) as loader:
        for passes in range(1, 4):
            began = time.monotonic()
            assert ids(loader) == list(range(60))
            assert prepared() == 60 * passes
            # The pause stands for training between passes.
            # It is longer than the four longest steps within which a border counts as crossed at once.
            time.sleep(5 * (time.monotonic() - began))
    assert len(ud.noted(log)) == 180 + LOOKED_AT


def test_epochs_that_follow_each_other_find_their_first_batch_ready(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    size, batches = 64, 32
    with coprep.DataLoader(ud.Numbers(size, log=log), size // batches, True, **NUMPY) as loader:
        for epochs in range(1, 4):
            epoch = iter(loader)
            for step in range(batches):
                next(epoch)
                # A border counts as crossed at once by comparison with the longest step, so one step is made long.
                if step == 0:
                    time.sleep(SLOW_STEP)
            # While the job works on its last batch, only samples of an epoch that it has not begun are prepared.
            # A job that has crossed a border at once may have a fiftieth of the assigned samples prepared ahead.
            ahead = 0 if epochs == 1 else epochs * batches // 50
            becomes_prepared(epochs * size + ahead * (size // batches), buffers=ahead)
            assert next(epoch, "over") == "over"
    assert len(ud.noted(log)) == 3 * size + 1 * (size // batches) + LOOKED_AT
