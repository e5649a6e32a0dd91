"""Tests ``coprep bench`` on a small folder, with PyTorch and without."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coordinators import shm
from waiting import WAIT, gone, until

BENCH = ["coprep", "bench", "--jobs", "2", "--image-size", "32", "--batch-size", "16"]
BRIEFLY = ["--seconds", "0.3"]
WITHOUT_TORCH = "/nowhere/python"
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "torchvision"))
PYTHON = os.environ.get("COPREP_TEST_TORCH_PYTHON", sys.executable if HAS_TORCH else "")
"""Path of an interpreter that has torch: this one, or the one that the variable names."""
COPREP_ROWS = [("coprep", 1), ("coprep encoded", 1), ("coprep decoded", 1), ("coprep", 2), ("coprep decoded", 2)]
with_torch = pytest.mark.skipif(not PYTHON, reason="torch and torchvision are not there")


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short-named folder for temporary files. At the end no file may be left, and no process with this setting."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as name:
        folder = Path(name)
        monkeypatch.setenv("TMPDIR", name)
        before = shm()
        yield folder
        until(lambda: not started_with(folder), "every process ends", 5)
        assert not list(folder.iterdir())
        assert shm() == before


def started_with(folder: Path) -> list[int]:
    """Returns the processes with this folder in their environment, except this one."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            is_ours = process.name.isdecimal() and os.fsencode(folder) in (process / "environ").read_bytes()
        except OSError:
            # It has ended since it was listed, or it is another user's.
            continue
        if is_ours and int(process.name) != os.getpid() and not gone(int(process.name)):
            found.append(int(process.name))
    return found


def bench(folder: Path, python: str, *options: str) -> tuple[dict[str, Any], str]:
    """Returns the report, and the text that was printed meanwhile."""
    command = [*BENCH, *BRIEFLY, str(folder), "--python", python, "--json", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * WAIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def failures(report: dict[str, Any]) -> list[str]:
    """Returns the notes, except those about other work on the machine."""
    return [note for note in report["notes"] if "other work took" not in note]


def rows(report: dict[str, Any]) -> list[tuple[str, int]]:
    assert all(row["images_per_s"] > 0 and row["cpu_s_per_1000"] >= 0 for row in report["rows"])
    return [(row["loader"], row["jobs"]) for row in report["rows"]]


@with_torch
def test_every_loader_is_measured_alone_and_with_all_jobs(folder: Path) -> None:
    report, said = bench(folder, PYTHON)
    assert rows(report) == [*COPREP_ROWS, ("pytorch", 1), ("pytorch", 2)], report["notes"]
    assert failures(report) == [] and report["pytorch"]["torch"]
    assert all(row["times_pytorch"] > 0 for row in report["rows"])
    assert "1 of 8: how many samples are enough, " in said
    assert "8 of 8: PyTorch DataLoader, 2 jobs, " in said


def test_without_torch_the_rest_is_measured_and_one_line_says_why(folder: Path) -> None:
    report, said = bench(folder, WITHOUT_TORCH)
    assert rows(report) == COPREP_ROWS, report["notes"]
    assert report["pytorch"] is None
    [note] = failures(report)
    assert note.startswith(f"{WITHOUT_TORCH} has no torch and torchvision") and "--python" in note
    assert "6 of 6" in said


def test_a_loader_that_fails_is_named_with_its_reason(folder: Path, tmp_path: Path) -> None:
    """The fake Python claims to have torch, but does not."""
    fake = tmp_path / "python"
    probe = '{"torch": "2", "torchvision": "0", "pillow": "1"}'
    fake.write_text(
        f"#!/bin/sh\ncase \"$2\" in *find_spec*) echo '{probe}';; *) echo 'ImportError: none' >&2; exit 1;; esac\n"
    )
    fake.chmod(0o755)
    report, _ = bench(folder, str(fake))
    assert rows(report) == COPREP_ROWS
    assert failures(report) == [f"PyTorch DataLoader, {jobs}: ImportError: none." for jobs in ("1 job", "2 jobs")]


def test_for_a_person_the_answer_comes_first(folder: Path) -> None:
    command = [*BENCH, *BRIEFLY, str(folder), "--python", WITHOUT_TORCH]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * WAIT)
    assert done.stdout.startswith("With 2 jobs coprep delivers ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "what", ["coprep, no cache, 2 jobs", pytest.param("PyTorch DataLoader, 2 jobs", marks=with_torch)]
)
def test_ctrl_c_ends_everything(folder: Path, what: str, temporary: Path) -> None:
    command = [*BENCH, "--seconds", "2", str(folder), "--python", PYTHON or WITHOUT_TORCH]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        said = iter(process.stderr.readline, "")
        assert any(what in line for line in said)
        until(lambda: len(started_with(temporary)) > 2, "there are jobs")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 1
        rest = process.stderr.read()
        assert "coprep: interrupted" in rest
        # No measurement begins after the one that the signal met, and there is no report.
        assert [line for line in rest.splitlines() if re.match(r"\d+ of \d+: ", line) and what not in line] == []
        assert process.stdout.read() == ""
    assert not started_with(temporary)
