"""Tests that concurrent jobs share their work, and that none disturbs another."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import coprep
import numpy as np
import pytest
from batches import QUEUE, ids
from coordinators import stream
from image_jobs import TRAIN, N, job, whole
from jobs import Start, go, in_step, seen
from photos import make_folder


def test_jobs_that_run_together_share_one_preparation(pipeline: coprep.Pipeline, start: Start) -> None:
    epochs = 12
    with coprep.DataLoader(pipeline, batch_size=20, shuffle=True, framework="numpy") as watcher:
        len(watcher)
        jobs = [job(start, pipeline, 20, epochs, 0, "step") for _ in range(4)]
        # A job that fell behind by more than its queue would need samples to be prepared again.
        in_step(*jobs, batches=epochs * N // 20)
        assert [seen(one) for one in jobs] == [whole(epochs)] * 4
        totals = stream()["totals"]
    assert totals["delivered"] >= 4 * epochs * N
    # The queues may have been filled before the next job came, and again at the end, when no job needs the samples.
    assert totals["prepared"] <= epochs * N + 2 * 5 * QUEUE * 20


def test_jobs_of_different_batch_sizes_share_a_stream(pipeline: coprep.Pipeline, start: Start) -> None:
    sizes = [8, 16, 24, 50]
    jobs = [job(start, pipeline, size, 3, 0.005) for size in sizes]
    assert [one["batch_size"] for one in stream()["jobs"]] == sizes
    go(*jobs)
    assert [seen(one) for one in jobs] == [whole(3)] * 4


def test_jobs_may_come_and_go_at_any_time(pipeline: coprep.Pipeline, start: Start) -> None:
    jobs = []
    for n in range(5):
        jobs.append(start(TRAIN, pipeline.root, 16, 2 + n % 2, 0.004 * n))
        go(jobs[-1])
        time.sleep(0.2)
    assert [seen(one) for one in jobs] == [whole(2 + n % 2) for n in range(5)]


def test_folds_share_their_intersection(pipeline: coprep.Pipeline) -> None:
    folds = [[i for i in range(N) if i % 4 != k] for k in range(2)]
    # An epoch is longer than a queue, so the first loader cannot have received all of it before the other comes.
    size = 3
    assert len(folds[0]) // size > 2 * QUEUE
    loaders = [
        coprep.DataLoader(pipeline, batch_size=size, shuffle=True, subset=fold, framework="numpy", with_index=True)
        for fold in folds
    ]
    iterators = [iter(loader) for loader in loaders]
    seen: list[list[int]] = [[], []]
    for _ in range(len(folds[0]) // size):
        for k, it in enumerate(iterators):
            seen[k] += next(it)[-1].tolist()
    assert [sorted(s) for s in seen] == folds
    totals = stream()["totals"]
    assert totals["prepared"] < totals["delivered"]
    for loader in loaders:
        loader.close()


def test_a_job_that_stops_reading_does_not_hold_up_the_others(pipeline: coprep.Pipeline, start: Start) -> None:
    lazy = coprep.DataLoader(pipeline, batch_size=16, shuffle=True, framework="numpy")
    kept = next(iter(lazy))
    assert seen(job(start, pipeline, 16, 5, 0)) == whole(5)
    assert kept[0].shape[0] == 16
    lazy.close()


def test_keeping_every_batch_holds_up_nobody(pipeline: coprep.Pipeline, start: Start) -> None:
    hoarder = coprep.DataLoader(pipeline, batch_size=4, shuffle=True, framework="numpy", with_index=True)
    other = job(start, pipeline, 4, 3, 0)
    go(other)
    batches = list(hoarder)
    first = [np.array(b[0]) for b in batches]
    assert sorted(int(i) for b in batches for i in b[-1]) == list(range(N))
    assert seen(other) == whole(3)
    assert sorted(ids(hoarder)) == list(range(N))
    # The kept batches are unchanged, though the buffers have been reused many times since.
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
    # The write is gone when the buffers are reused: both jobs see the same values again.
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


def test_a_cache_of_half_the_dataset_saves_exactly_that_half(
    tmp_path: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With two workers, one could still make a sample of this epoch while the other begins with it in the next epoch.
    monkeypatch.setenv("COPREP_WORKERS", "1")
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
    # The same samples are missing in every epoch, since no sample is evicted for another.
    assert later == [later[0]] * 3
    # The files differ in size, so the cache holds half of the bytes only roughly.
    assert 0.4 * size < later[0] < 0.6 * size


def test_lru_of_half_the_dataset_saves_less(tmp_path: Path, socket_path: Path) -> None:
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
