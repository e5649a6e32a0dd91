"""Tests the causes of a job's waits: runs with a known cause, sums that add up, and a pool that follows storage."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
from coordinators import coordinator_pid, processes_of, stream
from photos import make_folder
from waiting import WAIT, until

PARTS = ("fetch_stall_s", "prep_stall_s", "others_stall_s")
RIGHT = 0.95
"""Share of the wait that must be attributed to its cause."""


@pytest.fixture(autouse=True)
def _coordinator(nothing_is_left: None) -> None:
    pass


@contextlib.contextmanager
def serve(socket_path: Path, *options: str) -> Iterator[None]:
    """Runs a coordinator with these options, so that the job does not start one."""
    command = ["coprep", "--socket", str(socket_path), "serve", *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: is_there(process.pid), "the coordinator is there")
        yield
    finally:
        process.terminate()
        process.wait(10)


def is_there(pid: int) -> bool:
    with contextlib.suppress(coprep.CoprepError):
        return coordinator_pid() == pid
    return False


def pool() -> dict[str, int]:
    return coprep.status()["pool"]  # type: ignore[no-any-return]


def images(folder: Path, **arguments: Any) -> coprep.DataLoader:
    pipeline = coprep.ImageFolder(folder).decode().random_resized_crop(64)
    arguments = {"batch_size": 16, "shuffle": True, "framework": "numpy", "cache": "off"} | arguments
    return coprep.DataLoader(pipeline, **arguments)


def take(loader: coprep.DataLoader, batches: int, pause: float = 0.0) -> float:
    """Takes this many batches, over any number of epochs. Returns the seconds that it waited for them."""
    inside = 0.0
    forever = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())
    for _ in range(batches):
        began = time.monotonic()
        next(forever)
        inside += time.monotonic() - began
        time.sleep(pause)
    return inside


def parts(loader: coprep.DataLoader) -> dict[str, float]:
    """Returns each part of the wait, as a share of the whole."""
    stats = loader.stats(slow=0)
    return {part: stats[part] / stats["wait_s"] for part in PARTS}


def test_slow_storage_is_a_fetch_stall(folder: Path, socket_path: Path) -> None:
    with serve(socket_path, "--storage-rate", "300K"), contextlib.closing(images(folder)) as loader:
        take(loader, 12)
        assert parts(loader)["fetch_stall_s"] >= RIGHT


def test_storage_that_is_far_away_is_a_fetch_stall(folder: Path, socket_path: Path) -> None:
    with serve(socket_path, "--storage-latency", "200ms", "--cpus", "1"), contextlib.closing(images(folder)) as loader:
        take(loader, 4)
        assert parts(loader)["fetch_stall_s"] >= RIGHT


def test_one_processor_with_heavy_operators_is_a_prep_stall(folder: Path, socket_path: Path) -> None:
    heavy = coprep.ImageFolder(folder).decode().resize(1200).random_resized_crop(64)
    with (
        serve(socket_path, "--cpus", "1"),
        contextlib.closing(
            coprep.DataLoader(heavy, batch_size=16, shuffle=True, framework="numpy", cache="off")
        ) as loader,
    ):
        take(loader, 12)
        assert parts(loader)["prep_stall_s"] >= RIGHT


def test_a_slow_model_waits_for_nothing(folder: Path) -> None:
    with contextlib.closing(images(folder)) as loader:
        take(loader, 1)
        # The wait for the very first batch does not count, since no model could avoid it.
        before, began = loader.stats(slow=0)["wait_s"], time.monotonic()
        take(loader, 20, pause=0.1)
        assert loader.stats(slow=0)["wait_s"] - before <= (1 - RIGHT) * (time.monotonic() - began)


def test_the_rest_of_a_cohort_is_a_wait_for_others(folder: Path) -> None:
    first = images(folder, cohort="both", cohort_size=2, seed=1)
    second = images(folder, cohort="both", cohort_size=2, seed=1)
    with contextlib.closing(first), contextlib.closing(second):
        waiting = threading.Thread(target=take, args=(first, 4))
        waiting.start()
        until(lambda: first.stats(slow=0)["wait_s"] > 1.5, "the first waits for the second")
        shown = stream()["jobs"][0]["stalls"]
        assert shown["open_s"] > 1.0, "a wait that lasts is shown, and not yet given a reason"
        take(second, 4)
        waiting.join()
        assert parts(first)["others_stall_s"] >= RIGHT


class Reads:
    """A dataset whose workers wait."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


class Works(Reads):
    """A dataset whose workers compute."""

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return index


@pytest.mark.parametrize(("dataset", "lacks"), [(Reads(), "fetch_stall_s"), (Works(), "prep_stall_s")])
def test_of_user_code_waiting_is_fetching_and_computing_is_preparing(dataset: Any, lacks: str) -> None:
    # There are more workers than processors, and waiting for a processor must not count as waiting for storage.
    loader = coprep.DataLoader(dataset, batch_size=16, num_workers=4, framework="numpy")
    with contextlib.closing(loader):
        take(loader, 2)
        before = loader.stats(slow=0)
        take(loader, 24)
        after = loader.stats(slow=0)
        assert after[lacks] - before[lacks] >= 0.9 * (after["wait_s"] - before["wait_s"])


def test_the_parts_add_up_to_what_a_clock_says(folder: Path, socket_path: Path) -> None:
    with serve(socket_path, "--storage-rate", "500K"), contextlib.closing(images(folder)) as loader:
        iter(loader)
        # Another process may run between the two clocks.
        for attempt in range(3):
            before = loader.stats(slow=0)["wait_s"]
            inside = take(loader, 30)
            stats = loader.stats(slow=0)
            assert sum(stats[part] for part in PARTS) == pytest.approx(stats["wait_s"], rel=1e-6)
            told = stats["wait_s"] - before
            if attempt == 2 or told == pytest.approx(inside, rel=0.01, abs=0.02):
                break
        assert told == pytest.approx(inside, rel=0.01, abs=0.02)
        (job,) = stream()["jobs"]
        assert job["batches"] == stats["batches"]
        assert sum(job["stalls"].values()) == pytest.approx(stats["wait_s"], rel=1e-6)


def test_a_stream_keeps_the_waits_of_jobs_that_have_left(folder: Path) -> None:
    with contextlib.closing(images(folder)) as stays:
        leaves = images(folder)
        take(stays, 4)
        take(leaves, 4)
        waited = leaves.stats(slow=0)["wait_s"] + stays.stats(slow=0)["wait_s"]
        leaves.close()
        until(lambda: len(stream()["jobs"]) == 1, "it has left")
        shown = stream()["stalls"]
        assert sum(shown.values()) == pytest.approx(waited, rel=1e-6, abs=1e-4)


def test_the_pool_follows_storage_that_turns_slow_and_back(folder: Path, socket_path: Path) -> None:
    with serve(socket_path, "--cpus", "1"), contextlib.closing(images(folder)) as loader:
        stop = threading.Event()
        job = threading.Thread(target=lambda: [take(loader, 1) for _ in iter(stop.is_set, True)])
        job.start()
        try:
            until(lambda: pool()["fetched"] > 100, "it fetches")
            assert pool()["threads"] <= 2
            throttle(socket_path, "--latency", "30ms")
            # A read now takes much longer than preparing a sample, so several threads have to read at once.
            until(lambda: pool()["threads"] >= 8, "more threads fetch", 10)
            throttle(socket_path)
            until(lambda: pool()["threads"] <= 2, "one is enough again", 10)
        finally:
            stop.set()
            job.join()


def throttle(socket_path: Path, *options: str) -> None:
    subprocess.run(
        ["coprep", "--socket", str(socket_path), "throttle", *options], check=True, timeout=20, capture_output=True
    )


def test_no_more_processors_are_used_than_are_given(tmp_path: Path, socket_path: Path) -> None:
    many = make_folder(tmp_path / "many", 300)
    with serve(socket_path, "--cpus", "1", "--storage-latency", "20ms"), contextlib.closing(images(many)) as loader:
        stop = threading.Event()
        job = threading.Thread(target=lambda: [take(loader, 1) for _ in iter(stop.is_set, True)])
        job.start()
        try:
            until(lambda: pool()["threads"] > 4, "many threads fetch")
            busy: list[int] = []
            # A sample is prepared in a moment, so that most looks find none in preparation.
            end = time.monotonic() + WAIT
            while len(busy) < 20:
                assert time.monotonic() < end, "no sample is prepared"
                busy += filter(None, [pool()["preparing"]])
            assert max(busy) == 1
        finally:
            stop.set()
            job.join()


def test_minibatches_that_come_again_are_not_prepared(folder: Path, socket_path: Path) -> None:
    with serve(socket_path, "--replay"), contextlib.closing(images(folder, with_index=True)) as loader:
        ids = [int(i) for _ in range(12) for batch in loader for i in batch[-1]]
        assert sorted(ids) == sorted(list(range(200)) * 12), "each sample's turn comes once an epoch"
        (shown,) = coprep.status()["streams"]
        assert shown["totals"]["fetched"] <= shown["buffers"] * shown["slots"]


def test_a_script_is_analysed_as_it_is(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time, coprep\n"
        f"images = coprep.ImageFolder({str(folder)!r}).decode().random_resized_crop(64)\n"
        "loader = coprep.DataLoader(images, batch_size=16, shuffle=True, framework='numpy')\n"
        "while True:\n"
        "    for batch in loader:\n"
        "        time.sleep(float(sys.argv[1]))\n"
    )
    report = analyze("--seconds=0.3", "--", sys.executable, str(script), "0.02")
    facts = {one["key"]: one["value"] for one in report["measured"]}
    assert facts["ingestion_rate"] == pytest.approx(16 / 0.02, rel=0.2)
    assert {series["key"] for series in report["series"]} == {"cache", "cpus", "storage", "gpu", "jobs", "form"}
    assert report["batch_size"] == 16
    assert report["dataset"]["samples"] == 200


TIMED = """
import sys, time, coprep, numpy

class Timed:
    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(float(sys.argv[2]))
        end = time.thread_time() + float(sys.argv[1])
        while time.thread_time() < end:
            pass
        return numpy.full(1, index)

loader = coprep.DataLoader(Timed(), batch_size=8, shuffle=True, num_workers=2, framework="numpy")
while True:
    for batch in loader:
        pass
"""


def analyze_code(tmp_path: Path, work_s: float, wait_s: float) -> dict[str, Any]:
    """Returns the report of a script whose dataset works and waits this long for each sample."""
    script = tmp_path / "train.py"
    script.write_text(TIMED)
    return analyze("--seconds=0.5", "--", sys.executable, str(script), str(work_s), str(wait_s))


def test_a_dataset_that_computes_is_held_up_by_processors(tmp_path: Path) -> None:
    report = analyze_code(tmp_path, 0.005, 0.0)
    outcome = report["present"]["outcome"]
    assert outcome["bottleneck"] == "processors"
    assert outcome["fetch_stall_s"] < 0.1 * outcome["epoch_s"]
    assert not [advice for advice in report["advice"] if "Storage" in advice["headline"]]
    assert report["dataset"]["encoded_bytes"] == 0, "its bytes in storage are not known"


def test_a_dataset_that_waits_is_held_up_by_storage(tmp_path: Path) -> None:
    report = analyze_code(tmp_path, 0.0005, 0.02)
    outcome = report["present"]["outcome"]
    assert outcome["bottleneck"] == "storage"
    assert outcome["fetch_stall_s"] > 0.8 * outcome["epoch_s"]
    (advice,) = [advice for advice in report["advice"] if "Storage" in advice["headline"]]
    assert advice["gain_x"] == pytest.approx(2, rel=0.15)
    assert "num_workers" in advice["detail"] and "a second" not in advice["detail"]
    assert report["present"]["setting"]["storage_bytes_per_s"] is None


def test_work_of_other_programs_is_told(folder: Path) -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    # Two busy processors are far more than the 0.3 that a measurement tolerates.
    others = [subprocess.Popen(spin) for _ in range(2)]
    try:
        report = analyze(str(folder), "--seconds=0.2", "--image-size=64")
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert any("Other programs used" in warning for warning in report["warnings"])
    assert any("while other programs used" in one["how"] for one in report["measured"])


def test_a_report_predicts_again_for_other_settings(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps(analyze(str(folder), "--seconds=0.2", "--image-size=64")))
    slow = analyze(f"--again={report}", "--storage-rate=100K", "--cache=0")["present"]["outcome"]
    assert slow["bottleneck"] == "storage"
    encoded = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    assert slow["epoch_s"] == pytest.approx(encoded / (100 << 10), rel=0.1)


def test_a_report_that_predicts_again_keeps_the_settings_that_are_not_named(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(analyze(str(folder), "--seconds=0.2", "--image-size=64")))
    named = ["--jobs=4", "--unshared", "--cache=1M", "--form=decoded", "--storage-rate=1M"]
    second.write_text(json.dumps(analyze(f"--again={first}", *named)))
    before = json.loads(second.read_text())["present"]["setting"]
    assert (before["jobs"], before["shared"], before["cache_bytes"]) == (4, False, 1 << 20)
    after = analyze(f"--again={second}", "--cpus=8")["present"]["setting"]
    assert after == {**before, "cpus": 8.0}


def test_options_that_would_have_no_effect_are_refused(folder: Path) -> None:
    for arguments in (["--step-time=5ms", "--", "true"], ["--again=report.json", "--storage-latency=5ms"]):
        ran = subprocess.run(["coprep", "analyze", *arguments], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 2 and "cannot be used with" in ran.stderr


def analyze(*arguments: str) -> dict[str, Any]:
    ran = subprocess.run(["coprep", "analyze", "--json", *arguments], capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def test_a_script_that_ends_too_soon_is_an_error_and_leaves_nothing() -> None:
    ran = subprocess.run(
        ["coprep", "analyze", "--", sys.executable, "-c", "print('nothing')"], capture_output=True, timeout=60
    )
    assert ran.returncode == 1
    assert b"let it train for longer" in ran.stderr
    assert not processes_of(Path("coprep-analyze-"))
