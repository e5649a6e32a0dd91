"""Tests the benchmark of batches on the GPU: its computations, and a dry run of all of it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import photos
import pytest

from tests.benchmarks.gpu import native, report
from tests.benchmarks.gpu.__main__ import NO_DEVICE_CODE, USUAL, parse
from tests.benchmarks.gpu.cores import usable_cores
from tests.benchmarks.gpu.photographs import linked
from tests.benchmarks.gpu.plan import (
    ARRAYS_OWN,
    ARRAYS_SHARED,
    DEVICE,
    MODES,
    ON_GPU,
    PIN,
    SHARED,
    SYNTHETIC,
    Case,
    JobSettings,
    in_order,
)
from tests.benchmarks.gpu.records import Record, Records, Row, bars
from tests.benchmarks.gpu.window import Recorder
from tests.benchmarks.loaders.machine import cores
from tests.benchmarks.loaders.measure import Dataset

ROOT = Path(__file__).parents[3]
WITHOUT_GPU = tuple(mode for mode in USUAL if mode not in ON_GPU)


def job(rate: float | None, next_us: list[float], wait_share: float = 0.1) -> dict[str, Any]:
    memory = {"used": 9000.0, "allocated": 4000.0}
    return {
        "steps_per_s": rate,
        "steps": 10,
        "wait_share": wait_share,
        "next_us": next_us,
        "finish_us": [5.0],
        "memory_mib": memory,
    }


def row(mode: str, rates: list[float], cpu_s: float = 1.0, repetition: int = 0) -> Row:
    by_job = [job(rate, [100.0, 300.0]) for rate in rates]
    return Row(mode, len(rates), repetition, None, 4.0, by_job, cpu_s, images=1000)


def test_modes_take_turns_and_each_case_comes_once_before_any_comes_twice() -> None:
    order = list(in_order(["a", "b"], [1, 4], repeat=2))
    first, second = ([case for number, case in order if number == repetition] for repetition in (0, 1))
    assert first == [Case("a", 1), Case("b", 1), Case("a", 4), Case("b", 4)]
    assert second == [Case("b", 1), Case("a", 1), Case("b", 4), Case("a", 4)]
    assert order[: len(first)] == [(0, case) for case in first]


def test_the_rate_is_that_between_two_steps_and_not_that_of_the_window() -> None:
    recorder = Recorder(10.0, 12.0)
    for at in (9.9, 10.3, 10.8, 11.3, 11.8, 12.3):
        recorder.note(at - 0.1, at - 0.05, at - 0.04, at)
    assert recorder.steps_per_s == pytest.approx(2.0)
    assert len(recorder.next_s) == 4
    assert recorder.wait_share == pytest.approx(4 * 0.05 / 2)
    assert (recorder.is_over(11.99), recorder.is_over(12.0)) == (False, True)


def test_a_job_that_has_done_one_step_has_no_rate_and_neither_have_all_jobs() -> None:
    recorder = Recorder(0.0, 1.0)
    recorder.note(0.1, 0.2, 0.3, 0.4)
    recorder.note(0.5, 0.6, 0.7, None)
    assert recorder.steps_per_s is None
    slow = Row("torch", 2, 0, by_job=[job(3.0, []), job(None, [])])
    assert slow.steps_per_s is None
    assert "give --seconds more" in str(Record.of(slow.case, [slow]).error)


def test_figures_of_a_case_are_those_of_all_its_jobs_and_repetitions() -> None:
    rows = [row("torch", [10.0, 12.0]), row("torch", [11.0, 15.0], cpu_s=3.0, repetition=1)]
    record = Record.of(Case("torch", 2), rows)
    assert record.steps_per_s is not None and record.each is not None
    assert (record.steps_per_s.median, record.steps_per_s.min, record.steps_per_s.max) == (24, 22, 26)
    assert (record.each.min, record.each.max) == (10, 15)
    assert (record.next_us_p50, record.next_us_p99, record.cpu_s_per_1000) == (300, 300, 2)
    assert (record.used_mib, record.allocated_mib) == (9000, 4000)


def records_of(*rows: Row, native: dict[str, Any] | None = None, latency: Any = ()) -> Records:
    rows_as_json = json.loads(json.dumps([each.as_json() for each in rows]))
    return Records.of({"rows": rows_as_json, "native": native or {}, "latency": list(latency)})


def test_a_row_with_an_error_is_shown_with_its_reason_and_meets_no_bar() -> None:
    failed = Row(DEVICE, 1, 0, error="not available")
    found = records_of(row(SYNTHETIC, [50.0]), failed)
    assert report.rate_cells(found, found.by_case[failed.case])[:3] == [DEVICE, "1", "not available"]
    assert {bar.met for bar in bars(found, [1])} == {None}


def test_training_is_compared_with_the_limit_and_with_pinned_memory() -> None:
    rows = [row(SYNTHETIC, [50.0], cpu_s=1), row(DEVICE, [49.0], cpu_s=1.5), row(PIN, [49.5], cpu_s=2)]
    uploads = [{"jobs": 1, "results": {"latency": {"us": [100.0] * 98 + [1500.0] * 2}}}]
    by_name = {bar.what: bar for bar in bars(records_of(*rows, latency=uploads), [1])}
    assert by_name["G4: steps/s of 1 job, over the limit"].cells()[2:] == ["0.980 x", "met"]
    assert by_name["G4: steps/s of 1 job, over coprep-pin"].cells()[2:] == ["0.990 x", "NOT MET"]
    assert by_name["G4: upload p99 beside 1 job"].cells()[2:] == ["1.50 ms", "met"]
    assert by_name["G5: next() of 1 job, p50"].met is False
    # Training alone costs 1 s of the processors, so batches cost 0.5 s and 1 s.
    assert by_name["G5: CPU of batches of 1 job, over coprep-pin"].cells()[2:] == ["0.50 x", "met"]


def test_shared_uploads_are_counted_for_each_batch_and_compared_with_own_ones() -> None:
    counted = [
        replace(row(mode, [5.0] * 8), uploads_per_batch=copies) for mode, copies in [(SHARED, 0.126), (DEVICE, 1.0)]
    ]
    rows = [*counted, row(ARRAYS_OWN, [2.0] * 8), row(ARRAYS_SHARED, [2.8] * 8)]
    by_name = {bar.what: bar for bar in bars(records_of(*rows), [1, 8])}
    assert by_name["G2: copies for each batch of 8 jobs, coprep-shared"].cells()[2:] == ["0.126 x", "met"]
    assert by_name["G2: copies for each batch of 8 jobs, arrays-shared"].met is None
    assert by_name["G9: steps/s of 8 jobs with arrays, shared over own uploads"].cells()[2:] == ["1.40 x", "NOT MET"]
    assert not any("G2" in bar.what for bar in bars(records_of(counted[1]), [8]))


def test_arrays_come_in_batches_of_floats(socket_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.benchmarks.gpu.modes import coprep_loader

    settings = JobSettings("cpu", "one-layer", "", batch_size=4, workers=1, warm_s=0)
    with coprep_loader(ARRAYS_SHARED, settings) as loader:
        arrays, labels = next(iter(loader))
    assert arrays.shape == (4, 3, 512, 512) and str(arrays.dtype) == "torch.float32" and len(labels) == 4


def parts(us: list[float], gb_per_s: list[float], bits: int = 0, is_fake: bool = False) -> dict[str, Any]:
    sources = {"cuMemHostAlloc": [50.0], "staging, pinned": gb_per_s, "staging, through buffers": [9.0]}
    kernel = {"order": "NCHW", "bytes_moved": 48_000_000, "us": us, "different_bits": bits}
    names = ("map_s_per_gib", "pin_s_per_gib", "unpin_s_per_gib")
    return {
        "gpu": {"is_fake": is_fake},
        "uploads": [
            {"from": name, "why_bounced": None, "bytes": size, "gb_per_s": rates}
            for size in (9_633_792, 38_535_168)
            for name, rates in sources.items()
        ],
        "pinning": {"bytes": 2**30, "why_bounced": None, **{name: [0.25] for name in names}},
        "kernels": [{**kernel, "element": name} for name in ("float32", "bfloat16")],
        "plain_copy": {"bytes_moved": 48_000_000, "us": [12.0]},
    }


def test_parts_are_judged_by_medians_and_one_wrong_bit_is_too_many() -> None:
    good = {bar.what: bar.met for bar in bars(records_of(native=parts([9.0, 9.5, 20.0], [48.0, 49.0, 10.0])), [])}
    assert len(good) == 5 and set(good.values()) == {True}
    bad = {bar.what: bar.met for bar in bars(records_of(native=parts([16.0], [40.0], bits=1)), [])}
    assert set(bad.values()) == {False}


def full_report(**changes: Any) -> dict[str, Any]:
    conditions = {
        "date": "2026-01-01",
        "gpu": "NVIDIA H200",
        "processor": "a processor",
        "cores": 16,
        "torch": "2.11",
        "cuda": "13.0",
        "model": "resnet50",
        "batch_size": 64,
        "photographs": 400,
        "photographs_mib": 44.0,
        "copies": 16,
        "seconds": 4.0,
        "repeat": 2,
        "workers": 16,
        "is_dry_run": False,
    }
    made = {
        "conditions": conditions,
        "rows": [row(mode, [49.0, 50.0]).as_json() for mode in MODES],
        "native": parts([9.0], [49.0]),
        "latency": [{"jobs": 0, "results": {"error": "no memory"}}],
        "left_out": ["torch, 2 jobs, repetition 2"],
    }
    changed: dict[str, Any] = json.loads(json.dumps(made | changes))
    return changed


def test_the_page_has_all_tables_and_says_what_was_left_out() -> None:
    text = report.page(full_report()).text()
    assert "2026-01-01, NVIDIA H200, a processor, 16 cores" in text
    assert "The time was up before 1 measurement" in text
    assert "| coprep-device | 2 | 99.0 (99.0-99.0) | 49.5 (49.0-50.0) | 1.000 | 10.0 % | 0.00 |" in text
    assert "| staging, pinned | 9.6 | 49.0 (49.0-49.0) |" in text
    assert "| pin | 250.0 (250.0-250.0) |" in text
    assert "| float32, NCHW | 9.0 (9.0-9.0) | 5,333 | 0 |" in text
    assert "| nothing | no memory |" in text
    assert "Bars" in text and "NOT MET" in text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"conditions": {"is_dry_run": True}}, "dry run"),
        ({"native": parts([9.0], [49.0], is_fake=True)}, "fake driver"),
    ],
)
def test_figures_that_mean_nothing_become_no_page(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(report.NoResults, match=why):
        report.page(full_report(**changes))


def test_a_photograph_occurs_under_several_names(tmp_path: Path) -> None:
    original = Dataset.find(photos.make_folder(tmp_path / "original", 6, classes=2))
    made = linked(original, 3, tmp_path / "links")
    found = Dataset.find(tmp_path / "links")
    assert made.samples == len(found.files) == 18
    assert found.bytes == 3 * original.bytes
    assert {path.parent.name for path in found.files} == {path.parent.name for path in original.files}


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    for text, expected in (("max 100000", cores()), ("100000 100000", 1), ("50000 100000", 1)):
        limit.write_text(text)
        assert usable_cores(limit) == expected
    assert usable_cores(tmp_path / "none") == cores()


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    assert "No such file" in native.measured(tmp_path / "none")["error"]
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'measure_gpu: no driver' >&2\nexit 1\n")
    program.chmod(0o755)
    assert native.measured(program) == {"error": "measure_gpu: no driver"}


def test_a_dry_run_leaves_out_the_modes_that_need_a_gpu() -> None:
    common = ["--data", "x", "--out", "y"]
    assert parse(common).modes == USUAL
    assert parse([*common, "--device", "cpu"]).modes == WITHOUT_GPU


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks.gpu", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)


def test_all_of_it_runs_without_a_gpu_and_makes_no_page_of_that(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data = photos.make_folder(tmp_path / "data", 40)
    out = tmp_path / "report.json"
    small = ["--batch-size", "4", "--copies", "2", "--seconds", "0.5", "--warm-seconds", "0", "--repeat", "1"]
    # The program fails here as it does without a driver. The rest goes on.
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'no driver' >&2\nexit 1\n")
    program.chmod(0o755)
    done = run(
        "--data", data, "--out", out, "--device", "cpu", "--model", "tiny", "--jobs", "2", "--native", program, *small
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert tuple(each["mode"] for each in written["rows"]) == WITHOUT_GPU
    for each in written["rows"]:
        assert each["error"] is None and len(each["by_job"]) == 2
        assert each["images"] > 0 and each["cpu_s"] > 0
        assert all(job["steps_per_s"] > 0 and statistics.median(job["next_us"]) > 0 for job in each["by_job"])
    assert written["native"] == {"error": "no driver"}
    assert [each["jobs"] for each in written["latency"]] == [0, 2]
    with pytest.raises(report.NoResults):
        report.page(written)


def test_without_a_gpu_there_is_one_sentence_and_a_failure(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    data = photos.make_folder(tmp_path / "data", 4)
    done = run("--data", data, "--out", tmp_path / "report.json", "--jobs", "1")
    assert done.returncode == NO_DEVICE_CODE
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing is measured: there is no GPU to measure")
