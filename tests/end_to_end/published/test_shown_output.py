"""Tests that commands print what the pages show of them: the tutorial, and warming a cache."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import coprep
import pytest
from pages import DOCS, Block, all_blocks, pattern
from waiting import WAIT

TUTORIAL = DOCS / "tutorial" / "first-loader.md"


def shell(text: str, folder: Path) -> str:
    """Returns what a piece of shell prints in a folder."""
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=2 * WAIT, cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


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


def test_two_scripts_of_the_tutorial_share_and_print_what_it_shows(
    steps: list[Block], place: Path, tmp_path: Path
) -> None:
    script, alone, once, twice, *shown = steps[:6]
    assert [block.language for block in steps[:6]] == ["python", "bash", "", "bash", "", ""]
    (tmp_path / "first.py").write_text(script.text)
    assert alone.text == "python first.py\n"
    printed = shell(twice.text, tmp_path)
    assert missing([once, *shown], printed) == [], printed
    epochs = re.findall(r"^epoch (\d): (\d+) samples in", printed, re.MULTILINE)
    assert sorted(epochs) == sorted([(str(epoch), "1000") for epoch in range(3)] * 2)
    (factor,) = re.findall(r"share factor ([\d.]+)", printed)
    # A machine that is busy may start one script much later than the other.
    assert float(factor) > 1.1


def test_an_output_that_is_different_is_noticed(steps: list[Block]) -> None:
    *_, status = steps[:6]
    assert len(excerpts(status.text)) == 2 and missing([status], status.text.replace("2449", "7")) == []
    assert len(missing([status], status.text.replace("held", "kept"))) == 1
    assert missing([status], status.text.replace("2 batches", "1 batch").replace("1 buffer ", "3 buffers ")) == []


def test_warming_prints_what_a_job_must_say(folder: Path, place: Path) -> None:
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
