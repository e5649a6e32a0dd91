"""Tests that the loader can replace PyTorch's: each behaviour is checked with both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordinators import coordinator_at

pytest.register_assert_rewrite("torch_behaviour.behaviours")

from torch_behaviour.behaviours import BEHAVIOURS, Behaviour, Loader  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/torch-behaviour.md"
COUNTING = ["README.md", "CHANGELOG.md", "docs/reference/index.md", "docs/how-to/move-from-pytorch.md"]
"""Further pages that say how many behaviours there are."""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A coordinator that all behaviours share, like the jobs on a machine."""
    with pytest.MonkeyPatch.context() as patch, coordinator_at(tmp_path_factory.mktemp("behaviours") / "run", patch):
        yield


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda b: b.key)
@pytest.mark.parametrize("loader", ["torch", "coprep"])
def test_behaviour(behaviour: Behaviour, loader: Loader, request: pytest.FixtureRequest) -> None:
    if loader == "coprep":
        request.getfixturevalue("coordinator")
    behaviour.run(loader)


def test_every_difference_is_explained_and_checked() -> None:
    for behaviour in BEHAVIOURS:
        assert behaviour.statement, behaviour.key
        assert bool(behaviour.difference) == bool(behaviour.ours) == bool(behaviour.our_statement), behaviour.key


def test_behaviours_have_names_of_their_own() -> None:
    assert len({b.name for b in BEHAVIOURS}) == len({b.key for b in BEHAVIOURS}) == len(BEHAVIOURS)


def rows(text: str) -> list[list[str]]:
    """Returns the cells of each row of the tables in a page. Pages set names as code, which statements do not."""
    lines = re.findall(r"^\| (.+) \|$", text.replace("`", ""), re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_reference_has_each_behaviour_as_it_is_checked() -> None:
    page = PAGE.read_text()
    differing = rows(page.split("\n## What differs\n")[1].split("\n## ")[0])[1:]
    assert sorted(differing) == sorted(
        [b.name, b.statement, b.our_statement, b.difference] for b in BEHAVIOURS if b.difference
    )
    listed = [cells[0] for cells in rows(page.split("\n## The complete table\n")[1]) if cells[0].startswith("**")]
    assert sorted(listed) == sorted(f"**{b.name}**: {b.statement}" for b in BEHAVIOURS)


def test_the_pages_have_the_number_of_behaviours() -> None:
    for page in (PAGE, *(ROOT / name for name in COUNTING)):
        told = re.findall(r"\b(\d+)\s+behaviours", page.read_text())
        assert set(told) == {str(len(BEHAVIOURS))}, page
    different = sum(bool(b.difference) for b in BEHAVIOURS)
    assert f"{len(BEHAVIOURS) - different} are the same; {different} differ" in " ".join(PAGE.read_text().split())
