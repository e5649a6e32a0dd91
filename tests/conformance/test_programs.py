"""Tests that the comparison of programs' batches notices what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.programs.__main__ import Program, pass_differences, report

pytest.importorskip("torch")

PROGRAM = """
import sys
import torch
from coprep import DataLoader
from torch.utils.data import Dataset

class Data(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((2,), float(i)), i

for _ in DataLoader(Data(), 4, shuffle=True, num_workers=1):
    pass
for batch, _ in DataLoader(Data(), 4, num_workers=1, transform=lambda sample: (2 * sample[0], sample[1])):
    assert batch[0, 0] % 8 == 0
if sys.argv[1:] == ["more"] and "torch" not in DataLoader.__module__ and "stand_in" not in DataLoader.__module__:
    list(DataLoader(Data(), 3, num_workers=1))
"""


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(("more", "is_equal"), [([], True), (["more"], False)])
def test_a_program_that_imports_coprep_is_compared_with_pytorchs_loader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], is_equal: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    program = Program(["python", str(script), *more], imports_coprep=True, record=True, files=[])
    assert report(program, tmp_path / "out") is is_equal, capsys.readouterr()
    printed = capsys.readouterr().out
    assert "own random of 3 batches, 12 samples; 1 x own fixed of 3 batches, 12 samples" in printed
    assert "shared random of 3 batches, 12 samples; 1 x shared fixed of 3 batches, 12 samples" in printed
    assert ("differs: passes" in printed) is not is_equal


def one(ids: list[int], order: str = "random", samples: int = 4, **changed: Any) -> dict[str, Any]:
    """Returns a recorded pass with batches of two samples."""
    sizes = [len(ids[i : i + 2]) for i in range(0, len(ids), 2)]
    digests = [str(ids[i : i + 2]) for i in range(0, len(ids), 2)]
    recorded = {"order": order, "sizes": sizes, "digests": digests, "ids": ids, "samples": samples, "shared": True}
    return recorded | changed


def mixed(ids: list[int], weight: float, **changed: Any) -> dict[str, Any]:
    """Returns a recorded pass of one batch, each of whose labels is blended with the one before it."""
    before = ids[-1:] + ids[:-1]
    shares = [
        [weight * (label == mine) + (1 - weight) * (label == other) for label in range(4)]
        for mine, other in zip(ids, before, strict=True)
    ]
    return one(ids, **changed) | {"ids": shares}


@pytest.mark.parametrize(
    ("theirs", "ours", "what"),
    [
        ([one([0, 1, 2, 3])], [one([3, 1, 0, 2])], ""),
        ([one([0, 1, 2, 3])], [one([3, 1, 0, 0])], "labels"),
        ([one([0, 1, 2, 3])], [one([3, 1, 0, 0], shared=False)], ""),
        ([one([0, 1, 2, 3])], [one([3, 1, 0])], "batches"),
        ([one([0, 1], samples=5)], [one([3, 1], samples=5)], ""),
        ([one([0, 1], samples=5)], [one([3, 3], samples=5)], "labels"),
        ([one([0, 1, 2, 3], "fixed")], [one([0, 1, 3, 2], "fixed")], "order"),
        # Each rank may be given other samples than with PyTorch, and all of them together are given the same.
        ([one([0, 1]), one([2, 3])], [one([2, 1]), one([0, 3])], ""),
        ([one([0, 1]), one([2, 3])], [one([2, 1]), one([2, 3])], "labels"),
        # Mixup gives each sample a share of another label, by a weight of its own in each batch.
        ([mixed([0, 1], 0.75), mixed([2, 3], 0.5)], [mixed([3, 0], 0.9), mixed([2, 1], 0.7)], ""),
        ([mixed([0, 1], 0.75), mixed([2, 3], 0.5)], [mixed([3, 0], 0.9), mixed([2, 0], 0.7)], "labels"),
        ([mixed([0, 1], 0.75, samples=5)], [mixed([3, 0], 0.9, samples=5)], ""),
        ([mixed([0, 1], 0.75, samples=5)], [mixed([3, 3], 0.9, samples=5)], "labels"),
    ],
)
def test_differences_between_passes(theirs: list[Any], ours: list[Any], what: str) -> None:
    found = pass_differences(theirs, ours)
    assert (what in found[0]) if what else not found
