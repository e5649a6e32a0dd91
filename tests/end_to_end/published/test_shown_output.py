"""Tests that commands print what the pages show of them: the tutorial, and warming a cache."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import coprep
import pytest
from pages import DOCS, Block, all_blocks, pattern
from waiting import WAIT, until

TUTORIAL = DOCS / "tutorial" / "first-loader.md"


def excerpts(shown: str) -> list[str]:
    """Returns the parts of an output that a page shows, between the places where it leaves something out."""
    return [part for part in re.split(r"^ *\.\.\.$", shown, flags=re.MULTILINE) if part.strip()]


def missing(blocks: list[Block], printed: str) -> list[str]:
    """Returns the excerpts that an output lacks, in whatever order they come."""
    return [part for block in blocks for part in excerpts(block.text) if not re.search(pattern(part), printed)]


@pytest.fixture(scope="module")
def steps() -> list[Block]:
    """The pieces of the tutorial: the script, and commands with what they print."""
    return all_blocks(TUTORIAL)


def share() -> bool:
    """Tells whether two jobs take part in one stream and have been given samples."""
    with contextlib.suppress(coprep.CoprepError):
        return any(sum(job["delivered"] > 500 for job in s["jobs"]) == 2 for s in coprep.status()["streams"])
    return False


def test_two_scripts_of_the_tutorial_share_and_print_what_it_shows(
    steps: list[Block], socket_path: Path, tmp_path: Path
) -> None:
    script, alone, once, twice, *shown = steps[:6]
    assert [block.language for block in steps[:6]] == ["python", "bash", "", "bash", "", ""]
    assert (alone.text, twice.text) == (
        "python first.py\n",
        "python first.py & python first.py & sleep 7; coprep status; wait\n",
    )
    (tmp_path / "first.py").write_text(script.text)
    # The page says that PyTorch is not needed. Without it the scripts start at once.
    assert "PyTorch is not needed" in TUTORIAL.read_text()
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    jobs = [
        subprocess.Popen(
            [sys.executable, "first.py"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        for _ in range(2)
    ]
    try:
        # On a busy machine the scripts may take longer than 7 s to come so far.
        until(share, "both scripts share a stream")
        status = subprocess.run(["coprep", "status"], capture_output=True, text=True, timeout=WAIT).stdout
        printed = [job.communicate(timeout=2 * WAIT)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [job.returncode for job in jobs] == [0, 0]
    epochs, state = shown
    assert missing([once], printed[0]) == missing([once], printed[1]) == missing([epochs], "".join(printed)) == []
    assert missing([state], status) == [], status
    assert [re.findall(r"^epoch (\d): (\d+) samples", text, re.MULTILINE) for text in printed] == [
        [(str(epoch), "1000") for epoch in range(3)]
    ] * 2
    (factor,) = re.findall(r"share factor ([\d.]+)", status)
    assert float(factor) > 1


def test_an_output_that_is_different_is_noticed(steps: list[Block]) -> None:
    *_, status = steps[:6]
    assert len(excerpts(status.text)) == 2 and missing([status], status.text.replace("2449", "7")) == []
    assert len(missing([status], status.text.replace("held", "kept"))) == 1
    assert missing([status], status.text.replace("2 batches", "1 batch").replace("1 buffer ", "3 buffers ")) == []


def test_warming_prints_what_a_job_must_say(folder: Path, socket_path: Path) -> None:
    blocks = all_blocks(DOCS / "how-to" / "warm-cache.md")
    (at,) = [i for i, block in enumerate(blocks) if block.text.startswith("for jobs with")]
    command = blocks[at - 1].text.strip()
    assert command == "coprep warm data/train --resize 256"
    shown = blocks[at].text.replace("/data/train", str(folder)).replace("256", "40")
    warmed = ["coprep", "warm", str(folder), "--resize", "40"]
    done = subprocess.run(warmed, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0 and shown in done.stdout + "\n", done.stdout
    with coprep.DataLoader(coprep.ImageFolder(folder).decode().resize(40).random_resized_crop(32), 8) as job:
        list(job)
    (cache,) = coprep.status()["caches"]
    assert cache["hits"] >= 200 and cache["misses"] <= 200
