"""Tests that the loader can replace PyTorch's: each behaviour is checked with both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from coordinators import coordinator_at

pytest.register_assert_rewrite("torch_behaviour.behaviours")

from torch_behaviour.behaviours import BEHAVIOURS, Behaviour, Loader  # noqa: E402


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
