"""Tests the licences that the build backend puts beside the native module: of everything in the wheel, and no more."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

BACKEND = Path(__file__).resolve().parents[3] / "bindings/build_backend"
sys.path.append(os.fspath(BACKEND))
pytest.importorskip("maturin")
notices = pytest.importorskip("coprep_build.notices")


def crate(folder: Path, licence: str, **changes: object) -> object:
    values = {"name": "some", "version": "1.0.0", "authors": ("Ann <ann@mail>",), "compiles_c": False} | changes
    return notices.Crate(expression=licence, folder=folder, **values)


@pytest.mark.parametrize(
    ("expression", "licences"),
    [
        ("MIT", ("MIT",)),
        ("MIT OR Apache-2.0", ("Apache-2.0",)),
        ("MIT/Apache-2.0", ("Apache-2.0",)),
        ("Unlicense OR MIT", ("MIT",)),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", ("Apache-2.0", "Unicode-3.0")),
        ("GPL-3.0 AND MIT OR Zlib", ("Zlib",)),
        ("Apache-2.0 WITH LLVM-exception OR MIT", ("MIT",)),
    ],
)
def test_a_crate_is_used_under_a_licence_that_it_offers(expression: str, licences: tuple[str, ...]) -> None:
    assert notices.chosen(expression, "some") == licences


@pytest.mark.parametrize("expression", ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR MIT) AND LGPL-2.1"])
def test_a_licence_that_nobody_has_looked_at_is_an_error(expression: str) -> None:
    with pytest.raises(notices.UnknownLicence, match="some"):
        notices.chosen(expression, "some")


def test_c_code_that_nobody_has_looked_at_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(notices.UnknownLicence, match="some compiles C"):
        list(notices.page([crate(tmp_path, "MIT", compiles_c=True)]))


def test_equal_texts_stand_once_and_others_with_their_authors(tmp_path: Path) -> None:
    text = "Copyright Ann\n\nPermission is hereby granted, free of charge, to any person\n"
    for name, licence in (("a", text), ("b", f"  {text}"), ("c", text.replace("Ann", "Bob"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "LICENSE-MIT").write_text(licence)
        (tmp_path / name / "LICENSE-APACHE").write_text("Apache License")
    bare = tmp_path / "bare"
    bare.mkdir()
    crates = [crate(tmp_path / name, "MIT", name=name) for name in "abc"]
    lines = list(notices.page([*crates, crate(bare, "MIT", name="bare")]))
    assert [line for line in lines if line.startswith("## ")] == ["## Rust crates", "## a, b", "## c", "## bare"]
    assert sum("Copyright Ann" in line for line in lines) == 1
    assert "    Copyright (c) Ann" in lines, "a crate without a text has its authors in the text of the licence"
    with pytest.raises(notices.UnknownLicence, match="carries no text of its licence Zlib"):
        list(notices.page([crate(bare, "Zlib")]))


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")
def test_everything_that_is_linked_is_listed_and_nothing_else() -> None:
    crates = {crate.name: crate for crate in notices.linked_crates()}
    # Crates of the command, of the module, and of both. Then crates for builds and tests only, and one of this project.
    assert {"ratatui", "pyo3", "nix", "turbojpeg-sys"} <= crates.keys()
    assert {"proptest", "cmake", "serde_derive", "coprep-cache"}.isdisjoint(crates)
    text = "\n".join(notices.page(list(crates.values())))
    assert "Independent JPEG Group" in text and "Modified (3-clause) BSD License" in text
    for found in crates.values():
        assert f"| {found.name} | {found.version} | " in text
