"""Tests that every script in docs/examples runs unchanged, on a small scale, and prints the expected results."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
from photos import make_folder
from waiting import WAIT

pytest.importorskip("torchvision")
# Each process of a script imports PyTorch, which takes some ten seconds beside other tests.
pytestmark = pytest.mark.timeout(6 * WAIT)

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
TRAIN, VAL = 200, 40
SMALL = ("--size", 32, "--batch-size", 20, "--workers", 1, "--threads", 1)
BLOCKS = ("--blocks", 1, 1, 1, 1)
FLOAT = r"\d+\.\d+(?:e-\d+)?"

# PyTorch's rendezvous listens on all interfaces, so it runs where the loopback is the only one.
ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JPEGs in 4 classes, some to train and some to validate."""
    root = tmp_path_factory.mktemp("data")
    make_folder(root / "train", TRAIN)
    make_folder(root / "val", VAL)
    return root


@pytest.fixture
def alone() -> tuple[str, ...]:
    """The prefix of a command that makes it see no network but the loopback."""
    if not shutil.which("unshare") or subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("needs a network namespace")
    return ALONE


class Example:
    """A running script, with its coordinator's totals."""

    def __init__(self, script: str | Path, *args: object, before: tuple[str, ...] = (), **env: str) -> None:
        self.lines: list[str] = []
        self._ended = False
        self._streams: dict[int, dict[str, Any]] = {}
        self._caches: dict[tuple[str, str], dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [*before, sys.executable, *map(str, (*self._launcher(script), EXAMPLES / script, *args))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        )

    @staticmethod
    def _launcher(script: str | Path) -> tuple[str, ...]:
        if script != "ddp_torchrun.py":
            return ()
        return ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    def wait(self) -> Example:
        """Waits until the script has ended successfully."""
        try:
            for _ in range(int(WAIT * 5 / 0.05)):
                # The waits are short, since a stream's totals are gone with the stream: they are read in between.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, err = self._process.communicate(timeout=0.05)
                    assert self._process.returncode == 0, err
                    self.lines = out.splitlines()
                    return self
                self._look()
            raise AssertionError(f"{self._process.args} does not end")
        finally:
            self.end()

    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kills the script and all its children."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT)

    def _look(self) -> None:
        # The coordinator has not started yet, or has ended.
        with contextlib.suppress(coprep.CoprepError):
            status = coprep.status()
            self._streams |= {stream["id"]: stream["totals"] for stream in status["streams"]}
            self._caches |= {(cache["dataset"], cache["form"]): cache for cache in status["caches"]}

    def total(self, what: str) -> int:
        """Returns the sum of a total over all streams."""
        return sum(totals[what] for totals in self._streams.values())

    def cached(self, what: str) -> int:
        """Returns the sum of a figure over all caches."""
        return sum(cache[what] for cache in self._caches.values())

    def find(self, pattern: str) -> list[tuple[str, ...]]:
        """Returns the groups of each line that matches."""
        return [match.groups() for line in self.lines if (match := re.fullmatch(pattern, line))]


LOSS = rf"epoch (\d+) step (\d+) loss ({FLOAT})"


def test_train_imagefolder_repeats_itself_with_a_seed(data: Path, socket_path: Path) -> None:
    args = (data / "train", "--epochs", 2, "--steps", 15, "--seed", 7, *SMALL, *BLOCKS)
    first, second = (Example("train_imagefolder.py", *args).wait().find(LOSS) for _ in range(2))
    assert [(int(epoch), int(step)) for epoch, step, _ in first] == [(step // 10, step) for step in range(15)]
    assert first == second


def test_train_imagefolder_is_pytorchs_script_but_for_one_line(data: Path, socket_path: Path, tmp_path: Path) -> None:
    ours = (EXAMPLES / "train_imagefolder.py").read_text()
    assert re.findall(r"^.*import.*", ours, re.MULTILINE).count("from coprep import DataLoader") == 1
    assert ours.count("coprep") == 2, "the import, and the docstring that tells of it"
    theirs = tmp_path / "theirs.py"
    theirs.write_text(ours.replace("from coprep import DataLoader\n", "from torch.utils.data import DataLoader\n"))
    losses = Example(theirs, data / "train", "--epochs", 1, *SMALL, *BLOCKS).wait().find(LOSS)
    assert len(losses) == TRAIN // 20
    assert not socket_path.exists(), "a coordinator runs"


def test_two_of_train_imagefolder_share(data: Path, socket_path: Path) -> None:
    args = (data / "train", "--epochs", 10, *SMALL, *BLOCKS)
    examples = [Example("train_imagefolder.py", *args) for _ in range(2)]
    try:
        for example in examples:
            assert len(example.wait().find(LOSS)) == 10 * TRAIN // 20
    finally:
        for example in examples:
            example.end()
    assert 0 < examples[0].total("prepared") < examples[0].total("delivered")


def test_four_of_train_imagefolder_in_step_are_one(data: Path, socket_path: Path) -> None:
    """Each script has the losses of a single run, to the last digit, and each image is prepared once for all four."""
    run = ("train_imagefolder.py", data / "train", *SMALL, *BLOCKS, "--epochs", 2, "--seed", 3)
    alone = Example(*run).wait()
    four = [Example(*run, COPREP_COHORT="search:4") for _ in range(4)]
    looks = []
    while any(example.runs() for example in four):
        with contextlib.suppress(coprep.CoprepError):
            # A script that has left receives none of the batches for four, so only looks with all four count.
            looks += [stream["totals"] for stream in coprep.status()["streams"] if len(stream["jobs"]) == 4]
        time.sleep(0.01)
    for example in four:
        example.wait()
    losses = alone.find(LOSS)
    assert len(losses) == 2 * TRAIN // 20
    assert all(example.find(LOSS) == losses for example in four)
    assert looks[-1]["delivered"] > 4 * TRAIN
    # One or two minibatches are prepared, and not yet handed over.
    assert all(totals["prepared"] <= totals["delivered"] / 4 + 2 * 20 for totals in looks)


def test_optuna_search(data: Path, socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    journal = tmp_path / "search.journal"
    example = Example(
        "optuna_search.py", data, "--trials", 8, "--jobs", 2, "--epochs", 9, "--journal", journal, *SMALL
    ).wait()
    ((complete, pruned),) = example.find(r"(\d+) complete, (\d+) pruned, best accuracy 0\.\d+ with {.*}")
    assert int(complete) + int(pruned) == 8
    assert int(complete) >= 1
    assert int(pruned) >= 1
    assert 0 < example.total("prepared") < example.total("delivered")


@pytest.fixture
def short() -> Iterator[str]:
    """A folder with a name short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


def test_ray_tune_search(data: Path, socket_path: Path, tmp_path: Path, short: str) -> None:
    pytest.importorskip("ray")
    example = Example(
        *("ray_tune_search.py", data, "--trials", 6, "--jobs", 2, "--epochs", 9, "--storage", tmp_path / "results"),
        *SMALL,
        RAY_TMPDIR=short,
    ).wait()
    ((complete, stopped),) = example.find(r"(\d+) complete, (\d+) stopped early, best accuracy 0\.\d+ with {.*}")
    assert int(complete) + int(stopped) == 6
    assert int(complete) >= 1
    assert 0 < example.total("prepared") < example.total("delivered")


EPOCH = rf"epoch (\d+): loss {FLOAT}, (\d+) images"


def test_lightning_train(data: Path, socket_path: Path) -> None:
    pytest.importorskip("lightning")
    args = ("--epochs", 2, "--accelerator", "cpu", *SMALL, *BLOCKS)
    assert Example("lightning_train.py", data / "train", *args).wait().find(EPOCH) == [("0", "200"), ("1", "200")]


def test_lightning_train_with_two_ranks(data: Path, socket_path: Path, alone: tuple[str, ...]) -> None:
    pytest.importorskip("lightning")
    args = ("--epochs", 2, "--accelerator", "cpu", "--devices", 2, "--strategy", "ddp", *SMALL, *BLOCKS)
    example = Example("lightning_train.py", data / "train", *args, before=alone, GLOO_SOCKET_IFNAME="lo").wait()
    assert example.find(EPOCH) == [("0", "200"), ("1", "200")]


def test_hf_trainer(data: Path, socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    args = ("--epochs", 2, "--layers", 1, "--width", 64, "--output", tmp_path / "out", *SMALL)
    example = Example("hf_trainer.py", data / "train", *args).wait()
    assert example.find(rf"(\d+) steps, mean loss {FLOAT}") == [(str(2 * TRAIN // 20),)]


def test_ddp_torchrun_goes_on_in_the_middle_of_an_epoch(
    data: Path, socket_path: Path, tmp_path: Path, alone: tuple[str, ...]
) -> None:
    args = ("--epochs", 2, "--check", "--checkpoint", tmp_path / "run.pt", *SMALL, *BLOCKS)

    def counts(*more: object) -> list[tuple[int, ...]]:
        example = Example("ddp_torchrun.py", data / "train", *args, *more, before=alone, GLOO_SOCKET_IFNAME="lo")
        lines = example.wait().find(r"epoch (\d+): (\d+) images, (\d+) different")
        return [tuple(map(int, line)) for line in lines]

    assert counts("--steps", 3) == [(0, 120, 120)]
    assert counts() == [(0, 80, 80), (1, 200, 200)]


def test_augmentation_search(data: Path, socket_path: Path) -> None:
    example = Example("augmentation_search.py", data, "--strengths", 0, 0.5, "--epochs", 4, *SMALL).wait()
    assert [strength for strength, _ in example.find(r"strength (.*): accuracy (0\.\d+)")] == ["0.0", "0.5"]
    # The part without randomness was made once, or twice where both trials began with it, not in each of the four
    # epochs.
    assert example.cached("hits") > example.cached("misses") > 0
