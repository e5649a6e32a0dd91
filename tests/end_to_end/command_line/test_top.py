"""Tests ``coprep top`` in a real terminal, against a real coordinator."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import coprep
import pytest
from coordinators import coordinator_pid
from image_jobs import job
from jobs import Job, Start, go
from terminal import Terminal, terminal
from user_jobs import job as user_job
from waiting import WAIT, stop

TOP = ["coprep", "top", "--interval", "0.2"]


@pytest.fixture
def jobs(pipeline: coprep.Pipeline, start: Start) -> list[Job]:
    """Two jobs that run on until they are ended."""
    two = [job(start, pipeline, 16, 10_000, 0.01) for _ in range(2)]
    go(*two)
    return two


def row(top: Terminal, of: Job) -> str:
    """Returns the job's line in the table, or an empty string if it is not shown."""
    return next((line for line in top.lines() if f" {of.process.pid} " in line), "")


def cell(top: Terminal, of: Job, column: str) -> str:
    """Returns the job's cell in a column, or an empty string if it is not shown."""
    head = next((line for line in top.lines() if line.startswith(" JOBS ")), "").split()
    marks = [word.rstrip("▼▲") for word in head]
    cells = row(top, of).lstrip(">").split()
    # The title of the first column is two words, and the name in it is one.
    return cells[marks.index(column) - 1] if cells and column in marks else ""


def rate(top: Terminal, of: Job) -> float:
    """Returns the samples per second, or a negative number if they are not known."""
    shown = cell(top, of, "smp/s")
    return -1.0 if shown in ("", "-") else float(shown.replace("k", "e3"))


def order(top: Terminal, jobs: list[Job]) -> list[Job]:
    shown = [(line, one) for line in top.lines() for one in jobs if line and line == row(top, one)]
    return [one for _, one in shown]


def test_both_jobs_are_shown_with_rates_that_follow_what_they_do(jobs: list[Job]) -> None:
    first, second = jobs
    with terminal(TOP) as top:
        top.until(lambda: rate(top, first) > 0 and rate(top, second) > 0, "both jobs have a rate")
        assert top.shows(f"coordinator {coordinator_pid()}")
        assert top.shows("decode > random_resized_crop")
        seen = set()
        top.until(lambda: bool(seen.add(rate(top, first))) or len(seen) > 2, "the rate changes")
        stop(first.process.pid)
        top.until(lambda: rate(top, first) == 0 < rate(top, second), "the stopped job has no rate, the other one has")
        first.process.send_signal(signal.SIGCONT)
        top.until(lambda: rate(top, first) > 0, "it goes on")
        top.type("q")
        assert top.ended() == 0
        assert top.is_as_it_was()


def test_keys_sort_and_select_and_a_new_size_is_filled(jobs: list[Job]) -> None:
    first, second = jobs
    with terminal(TOP) as top:
        top.until(lambda: order(top, jobs) == [first, second], "jobs are in the order of their numbers")
        assert row(top, first).startswith(">")
        top.type("j")
        top.until(lambda: row(top, second).startswith(">"), "the second one is selected")
        top.type("r")
        top.until(lambda: order(top, jobs) == [second, first], "the order is reversed")
        assert row(top, second).startswith(">")
        top.type("sss")
        top.until(lambda: top.shows("smp/s▼") and top.shows("s sort: rate"), "they are sorted by rate")
        stop(second.process.pid)
        top.until(lambda: order(top, jobs) == [first, second] and rate(top, second) == 0, "the slow one is last")
        top.type("r")
        top.until(lambda: order(top, jobs) == [second, first], "the slow one is first")
        second.process.send_signal(signal.SIGCONT)
        assert not top.shows("bat/s")
        top.resize(120, 40)
        top.until(lambda: top.shows("bat/s") and "q quit" in top.lines()[39], "more columns and lines are shown")
        top.resize(30, 5)
        top.until(lambda: top.shows("coprep top needs 36x6"), "it says that this is too small")
        top.type("h")
        top.resize(80, 24)
        top.until(lambda: top.shows("threads that fetch, of all"), "the help is shown")
        top.type("\x1b")
        top.until(lambda: bool(row(top, first)), "the help is gone")
        top.type("\x03")
        assert top.ended() == 0
        assert top.is_as_it_was()


def test_a_coordinator_that_ends_is_waited_for(
    jobs: list[Job], pipeline: coprep.Pipeline, start: Start, socket_path: Path
) -> None:
    with terminal(TOP) as top:
        top.until(lambda: bool(row(top, jobs[0])), "the job is shown")
        for one in jobs:
            one.kill()
        coprep.stop()
        top.until(lambda: top.shows("coordinator has ended, waiting for it to come back"), "the end is told")
        another = job(start, pipeline, 16, 10_000, 0.01)
        go(another)
        top.until(lambda: rate(top, another) > 0, "another coordinator's job is shown")
        assert top.shows(f"coordinator {coordinator_pid()}")
        assert not top.shows("has ended")


def test_a_coordinator_that_does_not_answer_holds_up_no_key(jobs: list[Job]) -> None:
    coordinator = coordinator_pid()
    with terminal(TOP) as top:
        top.until(lambda: bool(row(top, jobs[0])), "the job is shown")
        stop(coordinator)
        try:
            top.until(lambda: top.shows("the coordinator has not answered for"), "the silence is told")
            top.type("q")
            assert top.ended() == 0
        finally:
            os.kill(coordinator, signal.SIGCONT)
        assert top.is_as_it_was()


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(jobs: list[Job], ends: signal.Signals) -> None:
    with terminal(TOP) as top:
        top.until(lambda: bool(row(top, jobs[0])), "the job is shown")
        top.process.send_signal(ends)
        assert top.ended() == -ends
        assert top.is_as_it_was()


def test_without_utf8_and_colour_it_writes_neither(jobs: list[Job]) -> None:
    with terminal(TOP, LC_ALL="C", NO_COLOR="1") as top:
        top.until(lambda: rate(top, jobs[0]) > 0, "the job is shown")
        top.type("q")
        assert top.ended() == 0
        assert top.output.isascii()
        cells = [top.screen.buffer[y][x] for y in range(24) for x in range(80)]
        assert {(cell.fg, cell.bg) for cell in cells} == {("default", "default")}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT)


def test_where_there_is_no_screen_there_is_one_look(jobs: list[Job]) -> None:
    done = run("coprep", "top", "--once", "--interval", "0.5")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(str(one.process.pid) in done.stdout for one in jobs)
    assert "\x1b" not in done.stdout
    done = run(*TOP)
    assert (done.returncode, done.stdout) == (2, "")
    assert "coprep top --once" in done.stderr and "coprep status" in done.stderr


def test_a_coordinator_that_is_not_there_yet_is_waited_for(
    pipeline: coprep.Pipeline, start: Start, socket_path: Path
) -> None:
    with terminal(TOP) as top:
        top.until(lambda: top.shows("no coordinator is running, waiting for one"), "it waits")
        assert not top.shows("coordinator 0")
        one = job(start, pipeline, 16, 10_000, 0.01)
        go(one)
        top.until(lambda: rate(top, one) > 0, "the job is shown")
        assert top.shows(f"coordinator {coordinator_pid()}") and not top.shows("waiting")
        top.type("q")
        assert top.ended() == 0
        assert top.is_as_it_was()


def test_without_a_coordinator_there_is_no_single_look(socket_path: Path) -> None:
    done = run("coprep", "top", "--once")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("coprep: no coordinator is running")


def test_worker_processes_are_among_those_at_work(start: Start, socket_path: Path) -> None:
    # Each of two workers makes a sample in 20 ms, and uses no processor time for it.
    one = user_job(start, "Numbers(400, pause=0.02)", 1000, 0)
    go(one)
    with terminal(["coprep", "top", "--interval", "1"], columns=100) as top:
        top.until(lambda: at_work(top) > 0.5, "workers are at work")
        top.until(lambda: prepared_per_second(top) > 10, "their samples count")
        top.until(lambda: top.shows("when made from the dataset"), "slow samples say what that is")
        assert top.shows("dataset[")


def at_work(top: Terminal) -> float:
    """Returns the mean number of fetching threads."""
    found = re.search(r"fetching \S* ?([\d.]+)/\d+", "\n".join(top.lines()))
    return float(found[1]) if found else 0.0


def prepared_per_second(top: Terminal) -> float:
    found = re.search(r"preparing .* ([\d.]+k?)/s", "\n".join(top.lines()))
    return float(found[1].replace("k", "e3")) if found else 0.0
