"""Tests the kinds of samples that the user's own datasets may have."""

from __future__ import annotations

import collections
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from batches import ids
from coordinators import stream
from jobs import Start, go, seen
from user_jobs import HERE, NUMPY, TRAIN
from waiting import WAIT

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 48


def test_ragged_samples_with_a_collate_fn() -> None:
    with coprep.DataLoader(ud.Ragged(20), 6, True, collate_fn=ud.as_they_are, **NUMPY) as loader:
        for _ in range(2):
            taken = [sample for batch, _ in loader for sample in batch]
            assert sorted(label for _, label in taken) == list(range(20))
            assert all(values.tolist() == list(range(label)) for values, label in taken)


def test_ragged_samples_without_one_say_what_to_do() -> None:
    with coprep.DataLoader(ud.Ragged(20), 6, **NUMPY) as loader, pytest.raises(ValueError, match="collate_fn"):
        ids(loader)


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_may_grow_by_far(shuffle: bool) -> None:
    with coprep.DataLoader(ud.Growing(24), 4, shuffle, collate_fn=ud.as_they_are, **NUMPY) as loader:
        for _ in range(2):
            taken = [sample for batch, _ in loader for sample in batch]
            assert sorted(label for _, label in taken) == list(range(24))
            for values, label in taken:
                assert values.size == (100 if label < 12 else 1_000_000) and (values == label % 251).all()


def test_samples_grow_under_several_jobs(start: Start) -> None:
    own = "{'batch_size': %d, 'shuffle': True, 'collate_fn': as_they_are}"
    jobs = [start(TRAIN, "Growing(24)", own % size, 2, 0.01, PYTHONPATH=HERE) for size in (4, 6)]
    for one in jobs:
        assert one.line() == "ready"
    go(*jobs)
    assert [seen(one) for one in jobs] == [[list(range(24))] * 2] * 2


def test_samples_of_text_pictures_and_records() -> None:
    with coprep.DataLoader(ud.Words(5), 5, **NUMPY) as loader:
        ((batch, index),) = loader
        assert batch["text"] == ["é" * i for i in range(5)]
        assert batch["raw"] == [bytes([i]) * i for i in range(5)]
        assert batch["label"].tolist() == index.tolist() == list(range(5))
    with coprep.DataLoader(ud.Pictures(5), 5, **NUMPY) as loader:
        (((pictures, labels), _),) = loader
        assert pictures.dtype == np.uint8 and pictures.shape in {(5, 3, 4, 6), (5, 4, 6, 3)}
        channels = pictures if pictures.shape[1] == 3 else np.moveaxis(pictures, -1, 1)
        assert (channels == (np.arange(5)[:, None] * [1, 2, 3])[:, :, None, None]).all()
        assert labels.tolist() == list(range(5))
    for data, kind in ((ud.Records(5), ud.Record), (ud.Pairs(5), ud.Pair)):
        with coprep.DataLoader(data, 5, **NUMPY) as loader:
            ((batch, _),) = loader
            assert type(batch) is kind
            assert batch.values.tolist() == [[i] * 3 for i in range(5)] and batch.label.tolist() == list(range(5))


CLASSES_OF_ONE_NAME = """
import json, sys
from collections import namedtuple
from typing import NamedTuple
import coprep

class Sample(namedtuple("Sample", ["x", "y"])):
    def total(self): return self.x + self.y
class Outer:
    class Sample(namedtuple("Sample", ["x", "y"])): pass
def made():
    class Sample(namedtuple("Sample", ["x", "y"])): pass
    return Sample
Local, Other = made(), made()
class Redefined(NamedTuple):
    x: int
    y: int
Before = Redefined
class Redefined(NamedTuple):
    x: int
    y: int
KINDS = {
    "derived": [Sample],
    "its base": [Sample.__base__],
    "both": [Sample, Sample.__base__],
    "in a class": [Outer.Sample, Sample],
    "of a function": [Local, Other, Sample],
    "defined twice": [Before, Redefined],
}
class Data:
    def __init__(self, kind): self.kind = kind
    def __len__(self): return 4
    def __getitem__(self, i): return tuple(cls(i, 2 * i) for cls in KINDS[self.kind])

if __name__ == "__main__":
    for method in sys.argv[1:]:
        found = {}
        for kind, classes in KINDS.items():
            for collate in (None, list):
                options = {"num_workers": 1, "multiprocessing_context": method}
                with coprep.DataLoader(Data(kind), 2, collate_fn=collate, framework="numpy", **options) as loader:
                    batch = next(iter(loader))
                sample = batch if collate is None else batch[1]
                found[kind] = found.get(kind, True) and [type(part) for part in sample] == classes
        print(json.dumps(found), flush=True)
"""


def test_classes_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Which class a sample has does not depend on its name, whichever job's workers have made it."""
    script = tmp_path / "script.py"
    script.write_text(CLASSES_OF_ONE_NAME)
    command = [sys.executable, str(script), "fork", "spawn"]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for job in jobs:
        output, _ = job.communicate(timeout=WAIT)
        for line in output.splitlines():
            found = json.loads(line)
            assert found and all(found.values()), found
        assert job.returncode == 0


class Within(ud.Numbers):
    """A dataset that makes the class of each sample anew."""

    def __getitem__(self, i: int) -> Any:
        cls = collections.namedtuple("Made", "x")  # noqa: PYI024
        cls.__module__ = "__main__"
        return cls(i)


def test_a_class_that_is_made_for_each_sample_is_named() -> None:
    with coprep.DataLoader(Within(8), 4, **NUMPY) as loader, pytest.raises(pickle.UnpicklingError, match="Made"):
        list(loader)


def test_skipped_samples_are_counted() -> None:
    data = ud.Faulty(N, [3, 17, 18], ud.fail)
    with coprep.DataLoader(data, 8, True, on_error="skip", **NUMPY) as loader:
        for _ in range(2):
            taken = [batch[-1].tolist() for batch in loader]
            assert sorted(sum(taken, [])) == [i for i in range(N) if i not in data.bad]
            # Other samples take their places, as long as some are not drawn yet.
            assert len(taken) == 6
        assert stream()["jobs"][0]["skipped"] == loader.stats()["skipped"] == 3
        assert stream()["totals"]["failed"] >= 3
