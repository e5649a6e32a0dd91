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
    assert "example.invalid" not in (package.read_text("METADATA") or "")


NEEDLESS = {"asyncio", "hashlib", "importlib.resources", "logging", "multiprocessing", "subprocess", "torch", "uuid"}
"""Modules that only some jobs need, and that take milliseconds to import."""


def imported_by(statement: str, after: str = "sys") -> set[str]:
    """Returns the modules that a statement imports, in a new process that has imported another one before."""
    code = f"import {after}; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    # Without site, which imports what packages of the environment ask it to.
    command = [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path!r}; {code}"]
    return set(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.split())


def test_importing_coprep_imports_no_numpy() -> None:
    imported = imported_by("import coprep")
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"coprep", "coprep._coprep", "coprep._errors"}
    assert NEEDLESS.isdisjoint(imported)


@pytest.mark.parametrize("name", ["DataLoader", "install"])
def test_importing_the_loader_imports_numpy_and_what_each_job_needs(name: str) -> None:
    assert "numpy" in imported_by(f"from coprep import {name}")
    imported = imported_by(f"from coprep import {name}", after="numpy")
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"coprep", "numpy"}
    assert NEEDLESS.isdisjoint(imported)
    # Modules that native pipelines and epochs of one's own process do without.
    assert {"coprep._usercode", "coprep._fingerprint", "coprep._worker", "coprep._warm"}.isdisjoint(imported)


def test_names_that_are_imported_late_are_there_like_the_others() -> None:
    code = "import coprep; print(set(coprep.__all__) <= set(dir(coprep))); from coprep import *; print(DataLoader)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout.split("\n", 1)[0] == "True" and "coprep._loader.DataLoader" in done.stdout
    with pytest.raises(AttributeError, match="module 'coprep' has no attribute 'Dataloader'"):
        coprep.Dataloader  # type: ignore[attr-defined]  # noqa: B018


def test_a_loader_says_in_a_notebook_what_it_is(socket_path: Path) -> None:
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


def test_stats_are_short_unless_slow_samples_are_asked_for(socket_path: Path) -> None:
    with coprep.DataLoader(ud.Numbers(8), 4, **NUMPY) as loader:
        list(loader)
        assert all(isinstance(value, (int, float)) for value in loader.stats().values())
        assert len(loader.stats(slow=2)["slow"]) == 2


def test_too_little_memory_is_told_in_sizes_that_can_be_read(socket_path: Path) -> None:
    data = coprep.Files([__file__] * 100_000).decode().random_resized_crop(16_384)
    with pytest.raises(MemoryError) as caught:
        iter(coprep.DataLoader(data, 100_000, framework="numpy"))
    text = str(caught.value)
    assert re.search(r"[\d.]+ TiB wanted, [\d.]+ [MGT]iB to be had", text), text
    assert "batch_size" in text and "COPREP_STAGING" in text and not re.search(r"\d{9}", text)
