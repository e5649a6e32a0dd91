"""Datasets of the user's own: shared, split, resumed, by jobs and ranks that are processes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from conftest import WAIT, Job, processes_of, until

N = 48
HERE = str(Path(__file__).parent)
NUMPY: dict[str, Any] = {"framework": "numpy", "with_index": True, "num_workers": 2}
Start = Callable[..., Job]


@pytest.fixture(autouse=True)
def nothing_is_left(place: Path) -> Iterator[None]:
    """Once the coordinator has ended, none of the processes that it started is there any more."""
    yield
    with contextlib.suppress(coprep.CoprepError):
        coprep.stop()
    until(lambda: not processes_of(place), "every process ends", 5)


def job(start: Start, data: str, epochs: int, pause: float = 0.005, *more: str, **own: Any) -> Job:
    """A job that is ready to begin."""
    options = {"batch_size": 8, "shuffle": True, **own}
    ready = start(ud.TRAIN, data, repr(options), epochs, pause, *more, PYTHONPATH=HERE)
    assert ready.line() == "ready"
    return ready


def go(*jobs: Job) -> None:
    for one in jobs:
        one.say("go")


def reports(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.result().splitlines() if line.startswith("{")]


def seen(job: Job) -> list[list[int]]:
    """Ids of each epoch, in ascending order."""
    return [sorted(report["seen"]) for report in reports(job)]


def stream() -> dict[str, Any]:
    """The only one. For a moment there is none while it is opened anew."""
    until(lambda: len(coprep.status()["streams"]) == 1, "there is one stream", 5)
    return coprep.status()["streams"][0]


def one_epoch(loader: coprep.DataLoader, into: list[int]) -> Iterator[None]:
    for batch in loader:
        into += batch[-1].tolist()
        yield


def in_turn(*loaders: coprep.DataLoader) -> list[list[int]]:
    """Ids of an epoch of each, in ascending order. They take a batch each in turn."""
    taken: list[list[int]] = [[] for _ in loaders]
    running = [one_epoch(loader, into) for loader, into in zip(loaders, taken, strict=True)]
    while running:
        running = [one for one in running if next(one, "over") is None]
    return [sorted(ids) for ids in taken]


def ids(loader: coprep.DataLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch[-1]]


def content(value: Any) -> Any:
    """What can be compared bit for bit."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [content(item) for item in value]
    return value


def batches(loader: coprep.DataLoader, epochs: int) -> list[Any]:
    with loader:
        return [content(batch) for _ in range(epochs) for batch in loader]


# --- sharing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_processes_on_one_dataset_share_one_stream(start: Start, count: int) -> None:
    with coprep.DataLoader(ud.Numbers(N), batch_size=8, shuffle=True, **NUMPY) as watcher:
        assert watcher.seed >= 0 and len(watcher) == N // 8
        jobs = [job(start, f"Numbers({N})", 4, 0.01) for _ in range(count)]
        assert len(stream()["jobs"]) == count + 1
        go(*jobs)
        assert [seen(one) for one in jobs] == [[list(range(N))] * 4] * count
        totals = stream()["totals"]
    assert totals["delivered"] >= count * 4 * N
    assert totals["prepared"] < 0.8 * totals["delivered"]


def test_a_job_may_join_in_mid_epoch(start: Start) -> None:
    first = job(start, f"Numbers({N})", 3, 0.02, "mark", batch_size=4)
    go(first)
    for _ in range(5):
        assert first.line() == "batch"
    second = job(start, f"Numbers({N})", 3, 0.02, batch_size=4)
    assert len(stream()["jobs"]) == 2
    go(second)
    assert seen(first) == seen(second) == [list(range(N))] * 3


@pytest.mark.parametrize("seed", [1, 2])
def test_jobs_that_stop_early_take_nothing_from_the_others(start: Start, place: Path, seed: int) -> None:
    rng = random.Random(seed)
    jobs = [job(start, f"Numbers({N}, pause=0.001)", 5, 0.02) for _ in range(4)]
    go(*jobs)
    until(lambda: len(stream()["worker_pids"]) == 2, "workers run")
    workers = stream()["worker_pids"]
    for victim in rng.sample(jobs, 2):
        time.sleep(rng.uniform(0, 0.25))
        victim.kill()
        jobs.remove(victim)
    assert [seen(one) for one in jobs] == [[list(range(N))] * 5] * 2
    until(lambda: coprep.status()["streams"] == [], "the stream is closed")
    until(lambda: not set(workers) & set(processes_of(place)), "the stream's workers end")
    # What was loaded is kept for the next job.
    assert len(processes_of(place)) <= 2


def test_jobs_of_different_batch_sizes_share_a_stream(start: Start) -> None:
    sizes = (4, 7, 16, 64)
    jobs = [job(start, f"Numbers({N})", 3, 0.005, batch_size=size) for size in sizes]
    assert sorted(j["batch_size"] for j in stream()["jobs"]) == sorted(sizes)
    go(*jobs)
    assert [seen(one) for one in jobs] == [[list(range(N))] * 3] * len(sizes)


def test_folds_share_what_they_have_in_common() -> None:
    folds = [[i for i in range(N) if i % 4 != k] for k in range(2)]
    loaders = [coprep.DataLoader(ud.Numbers(N), 6, True, subset=fold, **NUMPY) for fold in folds]
    assert [len(loader) for loader in loaders] == [6, 6]
    for _ in range(2):
        assert in_turn(*loaders) == folds
    totals = stream()["totals"]
    assert totals["prepared"] < totals["delivered"]
    for loader in loaders:
        loader.close()


# --- reproducibility -----------------------------------------------------------------------------------------

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


# --- the split -----------------------------------------------------------------------------------------------


def test_what_comes_before_the_transform_runs_once(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data, transform = ud.Numbers(N, log=log, pause=0.002), ud.Scaled(log=log)
    with coprep.DataLoader(data, 8, True, transform=transform, **NUMPY) as loader:
        for _ in range(2):
            assert sorted(ids(loader)) == list(range(N))
        before = Counter(ud.noted(log))
        for _ in range(2):
            assert sorted(ids(loader)) == list(range(N))
        calls = Counter(ud.noted(log))
    loaded = {what: count for what, count in calls.items() if what.startswith("dataset")}
    assert loaded == {what: before[what] for what in loaded}
    assert len(loaded) == N
    # Four samples are looked at before; one per worker may be on its way when the next epoch begins.
    assert sum(loaded.values()) <= N + 4 + 2
    assert all(calls[f"transform:{i}"] >= 4 for i in range(N))


def test_jobs_with_different_transforms_share_what_is_decoded(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data = ud.Numbers(N, log=log)
    with coprep.DataLoader(data, 8, True, transform=ud.Scaled(), **NUMPY) as first:
        assert sorted(ids(first)) == list(range(N))
        before = len(ud.noted(log))
        with coprep.DataLoader(data, 8, True, transform=ud.negated, **NUMPY) as second:
            (negated, labels), index = next(iter(second))
            assert (negated == -index[:, None]).all() and (labels == index).all()
            assert sorted(ids(second)) == list(range(N))
            status = coprep.status()
    assert len(status["streams"]) == 2
    (cache,) = status["caches"]
    assert cache["entries"] == N and cache["hits"] >= N
    # Only what the second looked at before it began.
    assert len(ud.noted(log)) <= before + 4


def test_cached_values_are_those_that_were_made() -> None:
    """Though the transform works in place."""
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "transform": ud.Scaled(), **NUMPY}
    uncached = batches(coprep.DataLoader(ud.Numbers(N), cache="off", **options), 3)
    with coprep.DataLoader(ud.Numbers(N), cache="decoded", **options) as loader:
        assert [content(batch) for _ in range(3) for batch in loader] == uncached
        (cache,) = coprep.status()["caches"]
        assert cache["hits"] >= 2 * N
    assert batches(coprep.DataLoader(ud.Numbers(N), **{**options, "num_workers": 0}), 3) == uncached


def test_prepared_samples_run_no_code_again(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    data = ud.Noisy(N, log=log, pause=0.002)
    with coprep.DataLoader(data, 8, cache="prepared", **NUMPY) as loader:
        for _ in range(2):
            assert ids(loader) == list(range(N))
        calls = Counter(ud.noted(log))
        # One is looked at before; some may be on their way when the next epoch begins.
        assert len(calls) == N and sum(calls.values()) <= N + 1 + 8
        third, fourth = ([content(batch) for batch in loader] for _ in range(2))
        assert third == fourth
        assert Counter(ud.noted(log)) == calls


# Whether one is on its way at that moment is a matter of time.
def test_prepared_samples_are_the_same_from_the_first_epoch_on() -> None:
    with coprep.DataLoader(ud.Noisy(N, pause=0.002), 8, cache="prepared", **NUMPY) as loader:
        first, *later = ([content(batch) for batch in loader] for _ in range(3))
    assert later == [first, first]


def test_prepared_samples_are_the_same_without_workers() -> None:
    options: dict[str, Any] = {"batch_size": 4, "cache": "prepared", "seed": 1, "framework": "numpy"}
    made = batches(coprep.DataLoader(ud.Noisy(12), num_workers=0, **options), 2)
    assert made[:3] == made[3:]


# --- resuming and ranks --------------------------------------------------------------------------------------


def test_a_job_resumes_twice_in_one_epoch() -> None:
    taken: list[int] = []
    state: dict[str, Any] | None = None
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


def ranks(start: Start, state: Path, steps: int, count: int, group: str) -> list[tuple[int, list[int]]]:
    """Steps and ids of each rank."""
    options = [{"rank": rank, "world_size": count, "group": group} for rank in range(count)]
    jobs = [start(ud.RANK, state, steps, repr(own), PYTHONPATH=HERE) for own in options]
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
        start(ud.RANK, tmp_path / "none", -1, "{}", PYTHONPATH=HERE, RANK=str(rank), **environment) for rank in range(3)
    ]
    results = [json.loads(one.line()) for one in jobs]
    assert len(stream()["jobs"]) == 1 and len(stream()["jobs"][0]["pids"]) == 3
    for one in jobs:
        one.say("end")
        one.result()
    # 50 samples in steps of 3 times 4.
    assert [steps for steps, _ in results] == [5, 5, 5]
    assert sorted(i for _, ids in results for i in ids) == list(range(50))


# --- what keeps jobs from sharing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "first", "second"),
    [
        ("dataset.root", {"dataset": ud.Numbers(8, root="a")}, {"dataset": ud.Numbers(8, root="b")}),
        ("transform.by", {"transform": ud.Scaled(2)}, {"transform": ud.Scaled(3)}),
        ("transform", {"transform": ud.Scaled(2)}, {"transform": ud.negated}),
        ("shuffle", {"shuffle": True}, {"shuffle": False}),
        ("seed", {"seed": 1}, {"seed": 2}),
    ],
)
def test_status_names_what_differs(part: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    common = {"dataset": ud.Numbers(8), "batch_size": 4, **NUMPY}
    one, other = (coprep.DataLoader(**{**common, **own}) for own in (first, second))
    with one, other:
        assert isinstance(one.seed + other.seed, int)
        streams = coprep.status()["streams"]
        assert len(streams) == 2
        for status in streams:
            (differs,) = status["differs"]
            assert part in json.dumps(differs), differs
    with coprep.DataLoader(**{**common, **first}) as one, coprep.DataLoader(**{**common, **first}) as other:
        assert isinstance(one.seed + other.seed, int)
        assert stream()["differs"] == []


# --- where code comes from -----------------------------------------------------------------------------------

SCRIPT = """
import sys, threading
from collections import namedtuple
from typing import NamedTuple
import numpy as np
import coprep

SHIFT = 7

class Sample(NamedTuple):
    values: np.ndarray
    label: int

class MyError(Exception):
    def __init__(self, id, reason):
        super().__init__(f"{reason}: {id}")
        self.id = id

class Data:
    def __len__(self):
        return 24
    def __getitem__(self, i):
        if i == 13:
            raise MyError(i, "unlucky")
        return Sample(np.full(4, i + SHIFT), i)

if __name__ == "__main__":
    loader = coprep.DataLoader(Data(), batch_size=4, shuffle=True, num_workers=2, framework="numpy")
    loader.seed  # attaches
    print("ready", flush=True)
    sys.stdin.readline()
    seen, batches = [], iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except MyError as error:
            assert type(error) is MyError and error.id == 13 and str(error) == "unlucky: 13"
            assert error.__cause__.id == 13
            print("caught", flush=True)
            continue
        assert type(batch) is Sample
        assert (batch.values == batch.label[:, None] + SHIFT).all()
        seen += batch.label.tolist()
    assert sorted(seen) == [i for i in range(24) if i != 13]
"""


def test_a_script_may_define_everything_itself(start: Start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    jobs = [start_script(start, tmp_path / "script.py") for _ in range(3)]
    for one in jobs:
        assert one.line() == "ready"
    assert len(stream()["jobs"]) == 3
    go(*jobs)
    assert [one.result() for one in jobs] == ["caught"] * 3


def start_script(start: Start, path: Path, *args: object, **env: str) -> Job:
    """A job whose main module is a file."""
    code = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return start(code, path, *args, **env)


def test_a_dataset_may_be_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "factories.py").write_text("import user_datasets\ndef make():\n    return user_datasets.Numbers(48)\n")
    code = ud.TRAIN.replace("from user_datasets", "import user_datasets\nfrom user_datasets", 1)
    path = os.pathsep.join([str(tmp_path), HERE])
    jobs = [start(code, "'factories:make'", "{'batch_size': 8}", 2, 0.005, PYTHONPATH=path) for _ in range(2)]
    for one in jobs:
        assert one.line() == "ready"
    assert stream()["dataset"] == "factories:make" and len(stream()["jobs"]) == 2
    go(*jobs)
    assert [seen(one) for one in jobs] == [[list(range(N))] * 2] * 2


def test_workers_are_where_the_job_is(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "job.py").write_text(
        textwrap.dedent("""
        import os, sys
        os.chdir(sys.argv[1])
        os.environ["MARK"] = "set by the script"
        sys.path.insert(0, "/nowhere/special")
        import coprep, user_datasets
        loader = coprep.DataLoader(user_datasets.Place(6), batch_size=3, num_workers=2, framework="numpy")
        for batch in loader:
            assert batch["cwd"] == [os.getcwd()] * 3 == [sys.argv[1]] * 3, batch["cwd"]
            assert batch["path"] == ["\\n".join(sys.path)] * 3
            assert batch["variable"] == [os.environ["MARK"]] * 3
            assert batch["argv"] == ["\\n".join(sys.argv)] * 3
        print("done")
        """)
    )
    # A coordinator that was started elsewhere.
    with coprep.DataLoader(ud.Numbers(8), 4, **NUMPY) as loader:
        assert len(ids(loader)) == 8
        assert start_script(start, tmp_path / "job.py", folder, PYTHONPATH=HERE).result() == "done"


def test_spawned_workers_load_the_dataset_themselves() -> None:
    def loaded(**options: Any) -> tuple[set[int], set[int], list[bool]]:
        with coprep.DataLoader(ud.Loaded(24, pause=0.01, root=str(options)), 4, **NUMPY, **options) as loader:
            made = [batch for batch, _ in loader]
        by, here = (np.concatenate([batch[k] for batch in made]).tolist() for k in range(2))
        return set(by), set(here), [a == b for a, b in zip(by, here, strict=True)]

    by, here, _ = loaded()
    assert len(by) == 1 and len(here) == 2 and not by & here
    for method in ("spawn", "forkserver"):
        by, here, own = loaded(multiprocessing_context=method)
        assert len(here) == 2 and all(own)


# --- kinds of samples ----------------------------------------------------------------------------------------


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
    jobs = [start(ud.TRAIN, "Growing(24)", own % size, 2, 0.01, PYTHONPATH=HERE) for size in (4, 6)]
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


# --- the rest ------------------------------------------------------------------------------------------------


def test_skipped_samples_are_counted() -> None:
    data = ud.Faulty(N, [3, 17, 18], ud.fail)
    with coprep.DataLoader(data, 8, True, on_error="skip", **NUMPY) as loader:
        for _ in range(2):
            taken = [batch[-1].tolist() for batch in loader]
            assert sorted(sum(taken, [])) == [i for i in range(N) if i not in data.bad]
            # Others take their places, as long as there are some that are not drawn yet.
            assert len(taken) == 6
        # One that is drawn for the next epoch before it has failed counts there, too.
        assert 3 <= stream()["jobs"][0]["skipped"] <= 3 * 3
        assert stream()["totals"]["failed"] >= 3


def test_a_dataset_that_changes_is_seen_in_the_next_epoch() -> None:
    class Shifted(ud.Numbers):
        shift = 0

        def __getitem__(self, i: int) -> Any:
            return i + self.shift

    data = Shifted(10)
    with coprep.DataLoader(data, 5, **NUMPY) as loader:
        for shift, size in ((0, 10), (100, 10), (200, 15), (200, 15)):
            data.shift, data.size = shift, size
            made = np.concatenate([values for values, _ in loader])
            assert made.tolist() == [i + shift for i in range(size)]
            assert len(loader) == size // 5
        assert loader.epoch == 4


def test_a_dataset_that_is_said_not_to_change_is_not_looked_at_again() -> None:
    data = ud.Numbers(10)
    with coprep.DataLoader(data, 5, persistent_workers=True, **NUMPY) as loader:
        assert sorted(ids(loader)) == list(range(10))
        workers = stream()["worker_pids"]
        data.root = "changed"
        assert sorted(ids(loader)) == list(range(10))
        assert stream()["worker_pids"] == workers


def test_prepared_samples_that_outgrow_their_room_still_come() -> None:
    with coprep.DataLoader(ud.Growing(24), 4, cache="prepared", collate_fn=list, timeout=20, **NUMPY) as loader:
        for _ in range(3):
            assert sum(len(samples) for samples, _ in loader) == 24


def test_prepared_samples_are_those_of_their_seed() -> None:
    def one(seed: int) -> list[bytes]:
        with coprep.DataLoader(ud.Noisy(12), 4, cache="prepared", seed=seed, **NUMPY) as loader:
            return [np.asarray(part).tobytes() for batch in loader for part in batch[0]]

    first = one(1)
    assert one(2) != first
    assert one(1) == first


def test_a_sampler_needs_more_than_the_name_of_a_dataset() -> None:
    with pytest.raises(ValueError, match="needs the dataset itself"):
        coprep.DataLoader("user_datasets:made", sampler=[1, 2])


def test_reuse_is_for_prepared_samples() -> None:
    with pytest.raises(ValueError, match="reuse keeps prepared samples"):
        coprep.DataLoader(ud.Numbers(4), reuse=2, cache="decoded")
