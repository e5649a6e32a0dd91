"""Tests samplers that draw with replacement. They are shared: an epoch is ``num_samples`` independent draws."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coprep
import pytest
import torch
import user_datasets as ud
from batches import QUEUE, ids
from coordinators import stream
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler
from user_jobs import NUMPY

pytestmark = [
    pytest.mark.usefixtures("nothing_is_left"),
    pytest.mark.filterwarnings("error::coprep.UnsharedWarning"),
]
WEIGHTS = [1.0, 2.0, 0.0, 4.0, 8.0, 0.5, 0.0, 1.0]
N = len(WEIGHTS)
DRAWS = 1000
KINDS = ["python", "native", "in the job"]


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weighted(weights: Any = WEIGHTS, draws: int = DRAWS, seed: int = 5) -> WeightedRandomSampler:
    return WeightedRandomSampler(weights, draws, generator=seeded(seed))


def drawn(draws: int = DRAWS, samples: int = N, seed: int = 5) -> RandomSampler:
    return RandomSampler(ud.Numbers(samples), replacement=True, num_samples=draws, generator=seeded(seed))


def make(sampler: Any, batch_size: int = 50, dataset: Any = None, **own: Any) -> coprep.DataLoader:
    return coprep.DataLoader(dataset or ud.Numbers(N), batch_size, sampler=sampler, **{**NUMPY, **own})


def of_kind(kind: str, folder: Path, sampler: Any) -> coprep.DataLoader:
    if kind == "native":
        files = sorted(folder.rglob("*.jpg"))[:N]
        pipeline = coprep.Files(files).decode().random_resized_crop(16)
        return coprep.DataLoader(pipeline, 50, sampler=sampler, framework="numpy", with_index=True)
    return make(sampler, num_workers=0 if kind == "in the job" else 2)


def chi_square(drawn: list[int], weights: list[float]) -> float:
    counts, total = Counter(drawn), sum(weights)
    expected = {i: len(drawn) * weight / total for i, weight in enumerate(weights) if weight}
    assert set(counts) <= set(expected), "a sample of weight 0 was drawn"
    return sum((counts[i] - n) ** 2 / n for i, n in expected.items())


@pytest.mark.parametrize("kind", KINDS)
def test_samples_come_as_often_as_their_weights_say(folder: Path, kind: str) -> None:
    with of_kind(kind, folder, weighted()) as loader:
        assert len(loader) == 20
        epochs = [ids(loader) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [DRAWS] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    # With 5 degrees of freedom, chi-square exceeds 20.5 once in a thousand epochs.
    assert all(chi_square(epoch, WEIGHTS) < 20.5 for epoch in epochs)


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_all_samples_come_as_often(folder: Path, kind: str) -> None:
    with of_kind(kind, folder, drawn()) as loader:
        epochs = [ids(loader) for _ in range(2)]
    # With 7 degrees of freedom, chi-square exceeds 24.3 once in a thousand epochs.
    assert all(len(epoch) == DRAWS and chi_square(epoch, [1.0] * N) < 24.3 for epoch in epochs)


def test_the_order_depends_on_the_seed_of_the_generator() -> None:
    def epoch(sampler: Any, **own: Any) -> list[int]:
        with make(sampler, **own) as loader:
            return ids(loader)

    assert epoch(weighted()) == epoch(weighted()) == epoch(weighted(), num_workers=0) == epoch(weighted(), seed=5)
    assert epoch(weighted()) != epoch(weighted(seed=6))


def test_two_jobs_share_what_is_drawn(tmp_path: Path) -> None:
    log, draws = tmp_path / "log", 5000

    def job() -> coprep.DataLoader:
        return make(weighted(draws=draws), 10, ud.Numbers(N, log=str(log)))

    with job() as one, job() as other:
        assert one.seed == other.seed == 5
        mine, theirs = [], []
        for ours, their in zip(one, other, strict=True):
            mine.append(ours[-1].tolist())
            theirs.append(their[-1].tolist())
        assert len(stream()["jobs"]) == 2
        totals = stream()["totals"]
    # Batches that lay ready for the first job when the other one came are not shared, so their distance stays the same.
    at = theirs.index(mine[400])
    assert theirs[at : at + 80] == mine[400:480]
    assert totals["delivered"] >= 2 * draws
    assert draws <= totals["prepared"] <= draws + 2 * QUEUE * 10
    # One more sample was made to find the structure of a sample.
    assert len(ud.noted(log)) <= totals["prepared"] + 1


def test_members_of_a_cohort_have_the_same_batches() -> None:
    def epochs(_: int) -> list[list[int]]:
        with make(weighted(), cohort="search", cohort_size=2) as loader:
            return [ids(loader) for _ in range(2)]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(epochs, range(2))
    assert one == other


def test_a_job_that_joins_in_mid_epoch_has_a_whole_one() -> None:
    with make(weighted(draws=2000), batch_size=10) as one, make(weighted(draws=2000), batch_size=7) as other:
        first = iter(one)
        seen = [next(first)[-1].tolist() for _ in range(30)]
        joined = ids(other)
        assert len(stream()["jobs"]) == 2
        seen += [batch[-1].tolist() for batch in first]
    assert sum(map(len, seen)) == len(joined) == 2000


def test_jobs_of_other_weights_or_other_draws_do_not_share() -> None:
    others = [weighted(), weighted([1.0] * N), weighted(draws=DRAWS + 1), drawn(), None]
    loaders = [make(sampler, seed=5, shuffle=sampler is None or None) for sampler in others]
    streams = {loader._native.attached()["stream"] for loader in loaders}
    assert len(streams) == len(loaders)
    first = coprep.status()["streams"][0]
    assert all("weights" in text for text in first["differs"][:3])
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("after", [0, 7, 20])
def test_a_state_goes_on_with_the_draws_that_are_left(after: int) -> None:
    with make(weighted()) as loader:
        whole = [[batch[-1].tolist() for batch in loader] for _ in range(2)]
    with make(weighted()) as loader:
        epoch = iter(loader)
        first = [next(epoch)[-1].tolist() for _ in range(after)]
        state = json.loads(json.dumps(loader.state_dict()))
    with make(weighted()) as loader:
        loader.load_state_dict(state)
        rest = [batch[-1].tolist() for batch in loader]
        assert first + rest == whole[0]
        assert [batch[-1].tolist() for batch in loader] == whole[1]


def test_a_state_of_other_draws_is_refused() -> None:
    states = {}
    loaders = {
        "weighted": lambda: make(weighted()),
        "other weights": lambda: make(weighted([1.0] * N)),
        "other number": lambda: make(weighted(draws=DRAWS + 1)),
        "no weights": lambda: make(drawn()),
        "no draws": lambda: make(None, shuffle=True, seed=5),
    }
    for name, loader in loaders.items():
        with loader() as one:
            states[name] = one.state_dict()
    for name, loader in loaders.items():
        for of, state in states.items():
            with loader() as one:
                if of == name:
                    one.load_state_dict(state)
                else:
                    with pytest.raises(ValueError, match="other draws"):
                        one.load_state_dict(state)


def test_another_sample_is_drawn_for_one_that_is_skipped() -> None:
    bad = {3: "text", 4: "text"}
    with make(weighted(), dataset=ud.Raising(N, bad), on_error="skip") as loader:
        with pytest.warns(coprep.SkippedSampleWarning):
            epochs = [ids(loader) for _ in range(3)]
        assert loader.stats()["skipped"] == 2
    left = [0.0 if i in bad else weight for i, weight in enumerate(WEIGHTS)]
    # With 3 degrees of freedom, chi-square exceeds 16.3 once in a thousand epochs.
    assert all(len(epoch) == DRAWS and chi_square(epoch, left) < 16.3 for epoch in epochs)


def test_a_sample_that_raises_does_so_whenever_it_is_drawn() -> None:
    with make(weighted(draws=60), batch_size=5, dataset=ud.Raising(N, {1: "text"})) as loader:
        for _ in range(2):
            epoch, given, errors = iter(loader), 0, 0
            while True:
                try:
                    given += len(next(epoch)[-1])
                except StopIteration:
                    break
                except Exception as error:
                    assert isinstance(error.__cause__, coprep.SampleError) and error.__cause__.id == 1
                    errors += 1
            # Seven draws of 60 are expected to fail.
            assert given == 60 and 1 <= errors <= 20


class Jitter:
    """A transform that adds a random number."""

    def __call__(self, sample: Any) -> Any:
        return float(sample[1]) + random.random()


@pytest.mark.parametrize("cache", ["off", "decoded"])
def test_each_draw_of_a_sample_has_random_numbers_of_its_own(tmp_path: Path, cache: Any) -> None:
    def epoch(log: Path | None, **own: Any) -> list[float]:
        dataset = ud.Numbers(N, log=log and str(log))
        with make(weighted(draws=200), dataset=dataset, transform=Jitter(), **own) as loader:
            return [value for values, _ in loader for value in values.tolist()]

    log = tmp_path / "log"
    values = epoch(log, cache=cache)
    assert len(set(values)) == len(values) == 200
    assert values == epoch(None, num_workers=0)
    if cache == "decoded":
        # Two workers may make the same sample at the same time, so a sample may be made twice.
        assert len(ud.noted(log)) < 60


def test_what_is_cached_as_prepared_is_made_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with make(weighted(), dataset=ud.Numbers(N, log=str(log)), transform=Jitter(), cache="prepared") as loader:
        values = {value for _ in range(2) for batch, _ in loader for value in batch.tolist()}
    assert len(values) == 6
    assert len(ud.noted(log)) < 200
    with pytest.raises(ValueError, match="reuse"):
        make(weighted(), reuse=2)


def test_weights_that_change_count_in_the_next_epoch() -> None:
    sampler = weighted(draws=100)
    with make(sampler) as loader:
        assert set(ids(loader)) > {3}
        sampler.weights[:] = 0
        sampler.weights[3] = 1
        assert ids(loader) == [3] * 100
        assert loader.epoch == 2
        sampler.weights[3] = 0
        with pytest.raises(ValueError, match="all 0"):
            iter(loader)


def test_weights_may_be_fewer_than_the_samples() -> None:
    learnt = torch.tensor([1.0, 3.0], requires_grad=True)
    for weights in ([1.0, 3.0], learnt):
        with make(weighted(weights, draws=100)) as loader:
            assert set(ids(loader)) == {0, 1}


def test_a_batch_sampler_of_draws_is_shared() -> None:
    batches = BatchSampler(weighted(draws=103), 10, drop_last=True)
    with coprep.DataLoader(ud.Numbers(N), batch_sampler=batches, **NUMPY) as loader:
        assert len(loader) == 10 and len(ids(loader)) == 100
        assert stream()["jobs"][0]["batch_size"] == 10


def test_ranks_share_the_draws_of_an_epoch() -> None:
    def epochs(rank: int) -> list[list[int]]:
        with make(weighted(), 10, rank=rank, world_size=2, group="ranks") as loader:
            assert len(loader) == 50
            return [ids(loader) for _ in range(2)]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(epochs, range(2))
    with make(weighted()) as loader:
        alone = [ids(loader) for _ in range(2)]
    for mine, theirs, all_of_it in zip(one, other, alone, strict=True):
        assert len(mine) == len(theirs) == 500 and sorted(mine + theirs) == sorted(all_of_it)


@pytest.mark.filterwarnings("default::coprep.UnsharedWarning")
def test_what_cannot_be_shared_says_why() -> None:
    data = ud.Numbers(N)
    unshared = {
        "draws each sample from those that are left": WeightedRandomSampler(WEIGHTS, 3, replacement=False),
        "gives each sample once": RandomSampler(data, num_samples=5),
        "not all 0": WeightedRandomSampler([0.0] * N, 5),
        "not negative": WeightedRandomSampler([1.0, -1.0] * 4, 5),
        "finite": WeightedRandomSampler([1.0, float("nan")] * 4, 5),
        "shape": WeightedRandomSampler([1.0] * (N + 1), 5),
        "the most are": RandomSampler(data, replacement=True, num_samples=10**9),
        "another dataset": RandomSampler(ud.Numbers(N + 1), replacement=True),
    }
    for why, sampler in unshared.items():
        with pytest.warns(coprep.UnsharedWarning, match=why):
            coprep.DataLoader(data, sampler=sampler, num_workers=0)
    with pytest.raises(ValueError, match="subset and a sampler"):
        make(weighted(), subset=[1, 2])
    assert "1000 draws with replacement" in repr(make(weighted()))
    assert "draws" not in repr(make(SequentialSampler(data)))
