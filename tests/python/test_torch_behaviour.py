"""The loader takes the place of PyTorch's: each behaviour is checked on both."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import coprep
import pytest
from conftest import alive, shm, until

pytest.register_assert_rewrite("torch_behaviour.behaviours")

from torch_behaviour.behaviours import BEHAVIOURS, Behaviour, Loader  # noqa: E402


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all behaviours, as jobs on a machine have. Nothing may be left of it."""
    runtime: Path = tmp_path_factory.mktemp("run")
    runtime.chmod(0o700)
    socket = runtime / "coordinator.sock"
    before = shm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPREP_SOCKET", str(socket))
        patch.setenv("COPREP_CACHE", "64M")
        patch.setenv("COPREP_STAGING", "64M")
        yield
        if socket.exists():
            with contextlib.suppress(coprep.CoprepError):
                coprep.stop()
        until(lambda: not socket.exists() or not alive(socket), "the coordinator ends")
    shutil.rmtree(runtime, ignore_errors=True)
    assert shm() == before, "something is left in /dev/shm"


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
