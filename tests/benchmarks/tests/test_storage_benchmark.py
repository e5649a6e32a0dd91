"""Tests the pure parts of the benchmark of remote storage, and the process that stands for the server's load."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.loaders.machine import cpu_seconds, yield_to_others
from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.storage import cases
from tests.benchmarks.storage.cases import CASES, Case, Values
from tests.benchmarks.storage.report import Results
from tests.benchmarks.storage.running import Outcome, Window

DATA = Dataset(Path("photos"), [Path(f"{i}.jpg") for i in range(100)], 100 * 48_000)
AT_ONCE, LATENCY, EIGHT_JOBS, SHARDS, HALF_CACHE, DISK_CACHE, MANY_SHARDS = CASES


def outcome(*arrivals: tuple[float, int]) -> Outcome:
    window = Window(start=103, end=105, coprep_cpu_s=1.5, server_cpu_s=0.5, others_cores=0)
    return Outcome(100, arrivals, [], window)


def test_rates_are_those_of_the_window_and_of_whole_seconds() -> None:
    run = outcome((100.5, 10), (102.9, 20), (103.0, 30), (104.9, 70), (105.0, 999), (105.5, 1))
    assert run.images_per_s == 50
    assert run.cpu_s_per_1000 == pytest.approx(15)
    assert run.server_share == 0.25
    assert run.rates_by_second() == [10, 0, 20, 30, 70]
    assert outcome().rates_by_second() == []


def verdicts(case: Case, values: Values) -> list[bool | None]:
    return [bar.met for bar in case.bars(values)]


def test_each_bar_can_be_met_and_missed() -> None:
    rate, cpu = "remote / local files beside the server's load", "CPU, remote / local files"
    assert verdicts(AT_ONCE, {rate: 0.85, cpu: 1.2}) == [True, True]
    assert verdicts(AT_ONCE, {rate: 0.84, cpu: 1.26}) == [False, False]
    assert verdicts(LATENCY, {"second 3": 0.9, "from the 3rd second on": 0.89}) == [True, False]
    assert verdicts(LATENCY, {"from the 3rd second on": 0.9}) == [None, True]
    first, second = "GETs / samples, 1st epoch", "GETs / samples, 2nd epoch"
    assert verdicts(EIGHT_JOBS, {first: 1.02, second: 0}) == [True, True]
    assert verdicts(EIGHT_JOBS, {first: 1.03, second: 0.01}) == [False, False]
    assert verdicts(SHARDS, {"samples / GETs, 1st epoch": 41, second: 0}) == [True, True]
    assert verdicts(SHARDS, {"samples / GETs, 1st epoch": 39, second: 0.01}) == [False, False]
    assert verdicts(HALF_CACHE, {"bytes read / all, epoch 2": 0.505}) == [True, True]
    assert verdicts(HALF_CACHE, {"bytes read / all, epoch 2": 0.52}) == [True, False]
    read, after = "bytes read / all, epoch 2", "GETs / samples after kill -9"
    assert verdicts(DISK_CACHE, {read: 0.505, after: 0}) == [True, True, True]
    assert verdicts(DISK_CACHE, {read: 0.48, after: 0.01}) == [False, True, False]
    assert verdicts(MANY_SHARDS, {"seconds": 0.1, "GETs": 0}) == [True, True]
    assert verdicts(MANY_SHARDS, {"seconds": 2.1, "GETs": 1000}) == [False, False]


def test_a_table_has_medians_and_leaves_out_what_no_run_has() -> None:
    runs = [{"second 1": 0.1, "second 2": value, "from the 3rd second on": 0.95} for value in (0.5, 0.9, 0.7)]
    del runs[0]["second 1"]
    results = Results(DATA, [LATENCY], {LATENCY.name: runs}, quick=True)
    header, rows = results.table(LATENCY)
    assert header == ["figure", "median", "lowest", "highest"]
    assert rows[0] == ["second 1 (x)", "0.10", "0.10", "0.10"]
    assert rows[1] == ["second 2 (x)", "0.70", "0.50", "0.90"]
    assert [row[0] for row in rows] == ["second 1 (x)", "second 2 (x)", "from the 3rd second on (x)"]
    assert "QUICK" in results.conditions() and "100 photographs of 48 KB" in results.conditions()
    assert "| 50 ms: from the 3rd second on against the decode limit | at least 0.9 x | 0.95 x | met |" in (
        results.page().text()
    )


def test_the_figures_of_a_case_have_the_names_that_its_table_shows() -> None:
    assert cases.SHOWN_S >= 3, "the bar is about the third second"
    for case in CASES:
        names = [name for name, _, _ in case.figures]
        assert len(names) == len(set(names)), case.name


def test_the_load_takes_the_share_that_it_is_told() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.storage.burn", "0.3"]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    try:
        assert load.stdout is not None and b"ready" in load.stdout.readline()
        before, began = cpu_seconds(load.pid), time.monotonic()
        time.sleep(2)
        share = (cpu_seconds(load.pid) - before) / (time.monotonic() - began)
        policy = os.sched_getscheduler(load.pid)
    finally:
        load.kill()
        load.wait()
        load.stdout.close()
    # A busy machine gives it less for a while, never more.
    assert 0.05 < share <= 0.36
    assert policy == os.SCHED_BATCH


LATER_THREAD = """
import os, threading
print("ready", flush=True)
input()
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))
thread.start()
thread.join()
"""


def test_threads_that_a_process_starts_later_yield_too() -> None:
    command = [sys.executable, "-c", LATER_THREAD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield_to_others(process.pid)
        told, _ = process.communicate("\n")
    assert told.strip() == str(os.SCHED_BATCH)
    assert os.sched_getscheduler(0) != os.SCHED_BATCH, "this process is as it was"
