"""What concurrent jobs share, and that none disturbs another."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import coprep
import numpy as np
from conftest import Job, ids, make_folder

N = 200

TRAIN = """
import json, sys, time, coprep
folder, batch_size, epochs, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
data = coprep.ImageFolder(folder).decode().random_resized_crop(32).random_horizontal_flip()
train = coprep.DataLoader(data, batch_size=batch_size, shuffle=True, framework="numpy", with_index=True)
len(train)
print("ready", flush=True)
for epoch in range(epochs):
    seen = []
    start = time.monotonic()
    for images, labels, index in train:
        seen += index.tolist()
        time.sleep(pause)
    print(json.dumps({"seen": seen, "seconds": time.monotonic() - start}), flush=True)
"""


def epochs(job: Job) -> list[list[int]]:
    return [json.loads(line)["seen"] for line in job.result().splitlines() if line != "ready"]


def stream() -> dict:
    (only,) = coprep.status()["streams"]
    return only


def test_jobs_that_run_together_share_one_preparation(pipeline: coprep.Pipeline, start) -> None:
    with coprep.DataLoader(pipeline, batch_size=16, shuffle=True, framework="numpy") as watcher:
        len(watcher)
        jobs = [start(TRAIN, pipeline.root, 16, 6, 0.01) for _ in range(4)]
        for job in jobs:
            assert all(sorted(e) == list(range(N)) for e in epochs(job))
        totals = stream()["totals"]
    # Four jobs of six epochs each. Started within seconds of each other, they overlap in part at least.
    assert totals["delivered"] >= 4 * 6 * N
    assert totals["delivered"] / totals["prepared"] > 1.5


def test_jobs_of_different_batch_sizes_share_a_stream(pipeline: coprep.Pipeline, start) -> None:
    jobs = [start(TRAIN, pipeline.root, size, 3, 0.005) for size in (8, 16, 24, 50)]
    for job in jobs:
        assert job.line() == "ready"
    for job in jobs:
        assert all(sorted(e) == list(range(N)) for e in epochs(job))


def test_jobs_may_come_and_go_at_any_time(pipeline: coprep.Pipeline, start) -> None:
    jobs = []
    for n in range(5):
        jobs.append(start(TRAIN, pipeline.root, 16, 2 + n % 2, 0.004 * n))
        time.sleep(0.2)
    for job in jobs:
        assert all(sorted(e) == list(range(N)) for e in epochs(job))


def test_folds_share_their_intersection(pipeline: coprep.Pipeline) -> None:
    folds = [[i for i in range(N) if i % 4 != k] for k in range(2)]
    loaders = [
        coprep.DataLoader(pipeline, batch_size=10, shuffle=True, subset=fold, framework="numpy", with_index=True)
        for fold in folds
    ]
    iterators = [iter(loader) for loader in loaders]
    seen: list[list[int]] = [[], []]
    for _ in range(15):
        for k, it in enumerate(iterators):
            seen[k] += next(it)[-1].tolist()
    assert [sorted(s) for s in seen] == folds
    totals = stream()["totals"]
    assert totals["prepared"] < totals["delivered"]
    for loader in loaders:
        loader.close()


def test_a_job_that_stops_reading_does_not_hold_up_the_others(pipeline: coprep.Pipeline, start) -> None:
    lazy = coprep.DataLoader(pipeline, batch_size=16, shuffle=True, framework="numpy")
    kept = next(iter(lazy))
    job = start(TRAIN, pipeline.root, 16, 5, 0)
    assert all(sorted(e) == list(range(N)) for e in epochs(job))
    assert kept[0].shape[0] == 16
    lazy.close()


def test_keeping_every_batch_holds_up_nobody(pipeline: coprep.Pipeline, start) -> None:
    hoarder = coprep.DataLoader(pipeline, batch_size=4, shuffle=True, framework="numpy", with_index=True)
    job = start(TRAIN, pipeline.root, 4, 3, 0)
    batches = list(hoarder)
    first = [np.array(b[0]) for b in batches]
    assert sorted(int(i) for b in batches for i in b[-1]) == list(range(N))
    assert all(sorted(e) == list(range(N)) for e in epochs(job))
    assert sorted(ids(hoarder)) == list(range(N))
    # What it kept is as it was, though the buffers have gone round many times since.
    assert all((a == b[0]).all() for a, b in zip(first, batches, strict=True))
    assert hoarder.stats()["copies"] > 0
    hoarder.close()


def test_an_in_place_write_is_seen_by_that_job_only(pipeline: coprep.Pipeline) -> None:
    options: dict = {"batch_size": 16, "shuffle": True, "seed": 3, "framework": "numpy", "with_index": True}
    writer, reader = (coprep.DataLoader(pipeline, cohort="w", cohort_size=2, **options) for _ in range(2))
    batches: list = [None, None]

    def run(k: int, loader: coprep.DataLoader) -> None:
        batches[k] = iter(loader)
        batches[k] = (batches[k], next(batches[k]))

    threads = [threading.Thread(target=run, args=(k, one)) for k, one in enumerate((writer, reader))]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    (writing, mine), (reading, theirs) = batches
    assert (mine[-1] == theirs[-1]).all()
    before = np.array(theirs[0])
    mine[0][:] = 255 - mine[0]
    assert (theirs[0] == before).all()
    assert (mine[0] == 255 - before).all()
    del mine, theirs
    # Gone in the buffers' next lives: both still see the same.
    for a, b in zip(writing, reading, strict=True):
        assert (a[-1] == b[-1]).all() and (a[0] == b[0]).all()
        a[0][:] = 0
    writer.close()
    reader.close()


def test_a_batch_outlives_its_loader(pipeline: coprep.Pipeline) -> None:
    loader = coprep.DataLoader(pipeline, batch_size=16, shuffle=True, framework="numpy")
    images, _ = next(iter(loader))
    copy = np.array(images)
    loader.close()
    coprep.stop()
    assert (images == copy).all()


def test_a_cache_of_half_the_dataset_saves_exactly_that_half(tmp_path: Path, place: Path) -> None:
    folder = make_folder(tmp_path / "photos", 120)
    size = sum(f.stat().st_size for f in folder.rglob("*.jpg"))
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    with coprep.DataLoader(
        data, batch_size=12, shuffle=True, framework="numpy", cache="encoded", cache_bytes=size // 2, with_index=True
    ) as loader:
        for _ in range(4):
            assert len(ids(loader)) == 120
        fetched = stream()["totals"]["fetched_by_visit"][:4]
    first, *later = fetched
    assert first == size
    # The same samples are missing in every epoch: nothing is ever evicted for another.
    assert later == [later[0]] * 3
    assert 0.4 * size < later[0] < 0.6 * size


def test_lru_of_half_the_dataset_saves_less(tmp_path: Path, place: Path) -> None:
    folder = make_folder(tmp_path / "photos", 120)
    size = sum(f.stat().st_size for f in folder.rglob("*.jpg"))
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    fetched = {}
    for policy in ("no-eviction", "lru"):
        with coprep.DataLoader(
            data,
            batch_size=12,
            shuffle=True,
            seed=1,
            framework="numpy",
            with_index=True,
            cache="encoded",
            cache_bytes=size // 2,
            cache_policy=policy,
        ) as loader:
            for _ in range(4):
                assert len(ids(loader)) == 120
            fetched[policy] = sum(stream()["totals"]["fetched_by_visit"][1:4])
    assert fetched["no-eviction"] < 0.8 * fetched["lru"]
