"""Tests the user's own datasets: repeated by a seed, resumed, and split among ranks."""

from __future__ import annotations

import json
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import coprep
import pytest
import user_datasets as ud
from batches import batches, content, ids
from coordinators import stream
from jobs import Start
from user_jobs import HERE, NUMPY, RANK
from waiting import WAIT

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 48


AUGMENTED = """
import random, numpy as np, torch
class Augmented(torch.utils.data.Dataset):
    def __len__(self): return 20
    def __getitem__(self, i):
        return torch.full((4,), float(i)) + torch.rand(4), np.random.rand(3), random.random()
def augment(sample):
    values, more, number = sample
    return values * torch.rand(4), more + np.random.rand(3), number + random.random()
"""


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_a_seed_gives_the_same_bits_whoever_makes_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: bool
) -> None:
    (tmp_path / "augmented.py").write_text(AUGMENTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    # The run with the other parameter imported this module from another folder.
    monkeypatch.delitem(sys.modules, "augmented", raising=False)
    import augmented

    options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 5, "with_index": True}
    options["transform"] = augmented.augment if split else None

    def made(workers: int, **more: Any) -> list[Any]:
        return batches(coprep.DataLoader(augmented.Augmented(), num_workers=workers, **options, **more), 3)

    expected = made(0)
    assert len({repr(batch) for batch in expected}) == len(expected) == 12
    for workers in (1, 3):
        assert made(workers) == expected
    together: list[Any] = [None, None]

    def run(k: int) -> None:
        together[k] = made(2, cohort="c", cohort_size=2)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
    [thread.start() for thread in threads]
    [thread.join(WAIT) for thread in threads]
    assert together == [expected, expected]


def test_another_seed_gives_other_numbers() -> None:
    one, other = (
        batches(coprep.DataLoader(ud.Noisy(12), 12, seed=seed, **{**NUMPY, "num_workers": workers}), 1)
        for seed, workers in ((1, 0), (2, 2))
    )
    assert one[0][0][0] != other[0][0][0]
    assert one[0][1] == other[0][1]


def test_a_job_resumes_twice_in_one_epoch() -> None:
    taken: list[int] = []
    state: dict[str, Any] | None = None
    # 100 steps are more than an epoch has, so the last job takes the rest.
    for steps in (3, 2, 100):
        with coprep.DataLoader(ud.Noisy(N), 5, True, **NUMPY) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert loader.epoch == 0
            epoch = iter(loader)
            for _, batch in zip(range(steps), epoch, strict=False):
                taken += batch[-1].tolist()
            state = pickle.loads(pickle.dumps(loader.state_dict()))
            if steps == 100:
                assert sorted(taken) == list(range(N))
                assert sorted(ids(loader)) == list(range(N))


def test_a_closed_loader_stays_closed_if_it_cannot_resume() -> None:
    with (
        coprep.DataLoader(ud.Noisy(N), 5, True, **NUMPY) as one,
        coprep.DataLoader(ud.Noisy(N + 1), 5, **NUMPY) as other,
    ):
        state, of_other = one.state_dict(), other.state_dict()
    loader = coprep.DataLoader(ud.Noisy(N), 5, True, subset=[True] * N, **NUMPY)
    loader.close()
    with pytest.raises(ValueError, match="mask"):
        loader.load_state_dict(of_other)
    with pytest.raises(coprep.CoprepError, match="the loader is closed"):
        _ = loader.seed
    loader.load_state_dict(state)
    assert sorted(ids(loader)) == list(range(N))
    loader.close()


def test_a_resumed_job_continues_with_the_same_batches() -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 9, **NUMPY}
    whole = batches(coprep.DataLoader(ud.Noisy(N), **options), 2)
    with coprep.DataLoader(ud.Noisy(N), **options) as loader:
        epoch = iter(loader)
        parts = [content(next(epoch)) for _ in range(4)]
        state = loader.state_dict()
    with coprep.DataLoader(ud.Noisy(N), **options) as loader:
        loader.load_state_dict(state)
        parts += [content(batch) for _ in range(2) for batch in loader]
    assert parts == whole


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("older", ["to its end", "left early", "looked at", "closed"])
def test_an_older_loader_that_has_ended_does_not_change_the_order(older: str, workers: int) -> None:
    options: dict[str, Any] = {**NUMPY, "batch_size": 5, "shuffle": True, "seed": 9, "num_workers": workers}
    first = coprep.DataLoader(ud.Noisy(N), **options)
    epoch = iter(first)
    begun = [content(next(epoch)) for _ in range(4)]
    state = first.state_dict()
    rest = [content(batch) for batch in epoch]
    expected = [content(batch) for batch in first]
    others = [first]
    if older == "left early":
        next(iter(first))
    if older == "looked at":
        others.append(coprep.DataLoader(ud.Noisy(N), **options))
        assert others[1].seed == 9
    if older == "closed":
        first.close()
    second = coprep.DataLoader(ud.Noisy(N), **options)
    second.load_state_dict(state)
    assert [content(batch) for batch in second] == rest
    assert [content(batch) for batch in second] == expected
    assert len(begun) + len(rest) == len(second)
    if older == "to its end":
        # The older one goes on where it was.
        assert first.epoch == 2 and len(list(first)) == len(second)
    for loader in (*others, second):
        loader.close()


def ranks(start: Start, state: Path, steps: int, count: int, group: str) -> list[tuple[int, list[int]]]:
    """Returns the steps and ids of each rank."""
    options = [{"rank": rank, "world_size": count, "group": group} for rank in range(count)]
    jobs = [start(RANK, state, steps, repr(own), PYTHONPATH=HERE) for own in options]
    results = [json.loads(one.line()) for one in jobs]
    for one in jobs:
        one.say("end")
        one.result()
    return [(steps, ids) for steps, ids in results]


@pytest.mark.parametrize("later", [1, 3])
def test_ranks_may_be_more_or_fewer_when_they_resume(start: Start, tmp_path: Path, later: int) -> None:
    state = tmp_path / "state"
    first = ranks(start, state, 4, 2, "first")
    assert [steps for steps, _ in first] == [4, 4]
    rest = ranks(start, state, -1, later, "then")
    assert len({steps for steps, _ in rest}) == 1
    assert sorted(i for _, ids in first + rest for i in ids) == list(range(50))


def test_ranks_are_found_in_the_environment(start: Start, tmp_path: Path) -> None:
    environment = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29599"}
    jobs = [
        start(RANK, tmp_path / "none", -1, "{}", PYTHONPATH=HERE, RANK=str(rank), **environment) for rank in range(3)
    ]
    results = [json.loads(one.line()) for one in jobs]
    assert len(stream()["jobs"]) == 1 and len(stream()["jobs"][0]["pids"]) == 3
    for one in jobs:
        one.say("end")
        one.result()
    # There are 50 samples, and each step of the 3 ranks takes 3 times 4.
    assert [steps for steps, _ in results] == [5, 5, 5]
    assert sorted(i for _, ids in results for i in ids) == list(range(50))
