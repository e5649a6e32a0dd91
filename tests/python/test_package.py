"""Tests the installed package: its command, its licences, and its descriptions of itself."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import coprep
import pytest
import user_datasets as ud
from user_jobs import NUMPY


def test_the_command_is_there_as_a_module() -> None:
    for name, code in (("--version", 0), ("no-such-command", 2)):
        done = subprocess.run([sys.executable, "-m", "coprep", name], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        assert ("coprep " + coprep.__version__ in done.stdout) is (code == 0)


def test_the_wheel_has_licences_and_no_link_that_leads_nowhere() -> None:
    try:
        package = importlib.metadata.distribution("coprep")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("this is no installed wheel")
    if Path(str(package.locate_file("coprep"))) != Path(coprep.__file__).parent:
        pytest.skip("this is another than the installed wheel")
    text = {Path(str(file)).name: file.read_text() for file in package.files or () if "licenses" in str(file)}
    assert "Apache License" in text["LICENSE"] and "libjpeg-turbo" in text["THIRD-PARTY-NOTICES.md"]
    page = package.metadata.get_payload() or package.metadata["Description"]
    assert re.findall(r"\]\((?!https?://)([^)]*)\)", str(page)) == []
    assert "example.invalid" not in str(package.metadata)


def test_a_loader_says_in_a_notebook_what_it_is(place: Path) -> None:
    loader = coprep.DataLoader(ud.Numbers(8), 4, True, seed=3, subset=[1, 2], **NUMPY)
    assert repr(loader) == "<coprep.DataLoader of Numbers: batch_size=4, shuffle=True, seed=3, a subset, shared>"
    local = coprep.DataLoader(ud.Numbers(8), num_workers=0)
    assert repr(local) == "<coprep.DataLoader of Numbers: batch_size=1, shuffle=False, samples made in this process>"
    pipeline = coprep.Files(["a.jpg"]).decode().center_crop(8)
    assert repr(coprep.DataLoader(pipeline, 2)) == (
        "<coprep.DataLoader of Files(1 paths).decode().center_crop(8): batch_size=2, shuffle=False, shared>"
    )
    with pytest.warns(coprep.UnsharedWarning):
        own = coprep.DataLoader(ud.Numbers(8), sampler=[3, 3], num_workers=1)
    assert repr(own) == "<coprep.DataLoader of Numbers: shares nothing>"


def test_stats_are_short_unless_slow_samples_are_asked_for(place: Path) -> None:
    with coprep.DataLoader(ud.Numbers(8), 4, **NUMPY) as loader:
        list(loader)
        assert all(isinstance(value, (int, float)) for value in loader.stats().values())
        assert len(loader.stats(slow=2)["slow"]) == 2


def test_too_little_memory_is_told_in_sizes_that_can_be_read(place: Path) -> None:
    data = coprep.Files([__file__] * 2).decode().random_resized_crop(16_384)
    with pytest.raises(MemoryError) as caught:
        iter(coprep.DataLoader(data, 100_000, framework="numpy"))
    text = str(caught.value)
    assert re.search(r"[\d.]+ TiB wanted, [\d.]+ [MGT]iB to be had", text), text
    assert "batch_size" in text and "COPREP_STAGING" in text and not re.search(r"\d{9}", text)
