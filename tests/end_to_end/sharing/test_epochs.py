"""Tests that one job gets each sample of its set exactly once per epoch, reproducibly."""

from __future__ import annotations

from pathlib import Path

import coprep
import numpy as np
import pytest
from batches import ids
from jobs import Job

N = 200


def loader(pipeline: coprep.Pipeline, **kwargs: object) -> coprep.DataLoader:
    options: dict[str, object] = {
        "batch_size": 16,
        "shuffle": True,
        "seed": 1,
        "framework": "numpy",
        "with_index": True,
        **kwargs,
    }
    return coprep.DataLoader(pipeline, **options)  # type: ignore[arg-type]


def test_every_epoch_has_each_sample_exactly_once(pipeline: coprep.Pipeline) -> None:
    with loader(pipeline) as train:
        epochs = [ids(train) for _ in range(3)]
    assert all(sorted(e) == list(range(N)) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_is_images_and_labels(pipeline: coprep.Pipeline) -> None:
    with loader(pipeline) as train:
        images, labels, index = next(iter(train))
    assert images.shape == (16, 3, 32, 32) and images.dtype == np.uint8
    assert labels.dtype == index.dtype == np.int64
    # Samples lie in the order of (class, name), with 50 in each of 4 classes.
    assert (labels == index // 50).all()


def test_the_length_is_the_number_of_batches(pipeline: coprep.Pipeline) -> None:
    for size, drop_last in [(16, False), (16, True), (7, False), (200, False), (300, False)]:
        with loader(pipeline, batch_size=size, drop_last=drop_last) as train:
            batches = [len(b[0]) for b in train]
            assert len(train) == len(batches)
            assert sum(batches) == (N // size * size if drop_last else N)
            assert set(batches[:-1]) <= {size}


def test_without_shuffle_ids_ascend(pipeline: coprep.Pipeline) -> None:
    with loader(pipeline, shuffle=False) as train:
        assert [ids(train), ids(train)] == [list(range(N))] * 2


def run(pipeline: coprep.Pipeline, epochs: int = 2, **kwargs: object) -> list[tuple[np.ndarray, ...]]:
    with loader(pipeline, **kwargs) as train:
        return [tuple(np.array(f) for f in batch) for _ in range(epochs) for batch in train]


def same(a: list[tuple[np.ndarray, ...]], b: list[tuple[np.ndarray, ...]]) -> bool:
    return len(a) == len(b) and all(
        (x == y).all() for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def test_a_job_alone_is_reproducible_bit_for_bit(pipeline: coprep.Pipeline) -> None:
    first = run(pipeline)
    assert same(first, run(pipeline))
    assert not same(first, run(pipeline, seed=2))


def test_the_order_does_not_depend_on_the_batch_size(pipeline: coprep.Pipeline) -> None:
    orders = [[int(i) for b in run(pipeline, batch_size=size) for i in b[-1]] for size in (16, 5)]
    assert orders[0] == orders[1]


def test_augmentation_differs_from_epoch_to_epoch(pipeline: coprep.Pipeline) -> None:
    with loader(pipeline, shuffle=False) as train:
        first, second = (np.array(next(iter(train))[0]) for _ in range(2))
    assert (first != second).any()


def test_pixels_do_not_depend_on_what_is_cached(folder: Path, socket_path: Path) -> None:
    pipeline = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    whole = run(pipeline, cache="decoded")
    part = run(pipeline, cache="decoded", cache_bytes=3 << 20)
    assert same(whole, part)


def test_a_subset_is_all_that_is_given(pipeline: coprep.Pipeline) -> None:
    some = [3, 5, 8, 13, 21, 34, 55, 89, 144]
    with loader(pipeline, subset=some, batch_size=4) as train:
        assert sorted(ids(train)) == some
        assert len(train) == 3


@pytest.mark.parametrize("stop", [1, 5, 12])
def test_resuming_goes_on_exactly_where_it_was(pipeline: coprep.Pipeline, stop: int) -> None:
    whole = run(pipeline, epochs=3)
    per_epoch = len(whole) // 3
    with loader(pipeline) as train:
        for _ in train:
            pass
        batches = iter(train)
        for _ in range(stop):
            next(batches)
        state = train.state_dict()
    with loader(pipeline) as again:
        again.load_state_dict(state)
        rest = [tuple(np.array(f) for f in b) for _ in range(2) for b in again]
    assert same(rest, whole[per_epoch + stop :])


def test_a_state_of_another_dataset_is_refused(pipeline: coprep.Pipeline, folder: Path) -> None:
    with loader(pipeline) as train:
        next(iter(train))
        state = train.state_dict()
    files = sorted(folder.rglob("*.jpg"))[:50]
    other = coprep.Files(files).decode().random_resized_crop(32)
    with loader(other) as train, pytest.raises(ValueError, match="200"):
        train.load_state_dict(state)
        next(iter(train))


def test_leaving_an_epoch_early_starts_the_next_in_full(pipeline: coprep.Pipeline) -> None:
    with loader(pipeline) as train:
        for n, _ in enumerate(train):
            if n == 3:
                break
        assert sorted(ids(train)) == list(range(N))
        assert sorted(ids(train)) == list(range(N))


def test_an_older_iterator_says_that_it_is_over(pipeline: coprep.Pipeline) -> None:
    with loader(pipeline) as train:
        old = iter(train)
        next(old)
        new = iter(train)
        next(new)
        with pytest.raises(RuntimeError):
            next(old)


def test_two_ranks_have_equal_steps_and_each_sample_once(pipeline: coprep.Pipeline, start) -> None:
    code = """
    import sys, coprep
    folder, rank = sys.argv[1], int(sys.argv[2])
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    train = coprep.DataLoader(data, batch_size=16, shuffle=True, seed=1, rank=rank, world_size=3, group="g",
                              framework="numpy", with_index=True)
    for epoch in range(2):
        batches = [b[-1].tolist() for b in train]
        assert len(batches) == len(train)
        print(batches, flush=True)
    """
    folder = pipeline.root
    jobs = [start(code, folder, rank) for rank in range(3)]
    reports = [[eval(line) for line in job.result().splitlines()] for job in jobs]
    for epoch in range(2):
        assert len({len(r[epoch]) for r in reports}) == 1
        assert sorted(i for r in reports for batch in r[epoch] for i in batch) == list(range(N))


def test_members_of_a_cohort_get_the_same_batches(pipeline: coprep.Pipeline, start) -> None:
    code = """
    import sys, time, hashlib, coprep
    folder, pause = sys.argv[1], float(sys.argv[2])
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32).random_horizontal_flip()
    train = coprep.DataLoader(data, batch_size=16, shuffle=True, seed=5, cohort="c", cohort_size=3,
                              framework="numpy", with_index=True)
    digest = hashlib.sha256()
    for epoch in range(2):
        for images, labels, index in train:
            digest.update(index.tobytes() + images.tobytes())
            time.sleep(pause)
    print(digest.hexdigest())
    """
    jobs: list[Job] = [start(code, pipeline.root, pause) for pause in (0, 0.002, 0.05)]
    assert len({job.result() for job in jobs}) == 1


def test_torch_gets_tensors(pipeline: coprep.Pipeline) -> None:
    torch = pytest.importorskip("torch")
    with loader(pipeline, framework=None) as train:
        images, labels, _ = next(iter(train))
    assert images.dtype is torch.uint8 and labels.dtype is torch.int64
    assert images.shape == (16, 3, 32, 32)


def test_normalised_images_are_float(folder: Path, socket_path: Path) -> None:
    data = coprep.ImageFolder(folder).decode().resize((24, 24)).normalize([0.5] * 3, [0.5] * 3)
    with loader(data, shuffle=False) as train:
        images = next(iter(train))[0]
    assert images.dtype == np.float32 and images.shape == (16, 3, 24, 24)
    assert -1 <= images.min() < 0 < images.max() <= 1


@pytest.mark.parametrize("leave", ["close", "load_state_dict"])
def test_batches_stay_valid_after_their_loader_has_left(
    pipeline: coprep.Pipeline, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    # With as few buffers as possible, the buffers of the held batches are soon wanted again.
    monkeypatch.setenv("COPREP_STAGING", "64K")
    first = loader(pipeline, seed=None)
    # These jobs take other samples, and each holds its own batches, so that all buffers are used.
    others = [loader(pipeline, seed=None, subset=range(part, N, 5)) for part in range(5)]
    assert len({one.seed for one in [first, *others]}) == 1, "all have joined one stream"
    held = [next(batches) for batches in [iter(first)] for _ in range(6)]
    before = [[np.array(field) for field in batch] for batch in held]
    assert first.stats()["copies"] < len(held), "some lie in the shared buffers"
    if leave == "close":
        first.close()
    else:
        first.load_state_dict(first.state_dict())
    for _ in range(4):
        at_once = list(zip(*others, strict=True))
        assert sum(len(batch[2]) for batches in at_once for batch in batches) == N
    for batch, copies in zip(held, before, strict=True):
        for field, copy in zip(batch, copies, strict=True):
            assert (np.asarray(field) == copy).all()
    for one in [first, *others]:
        one.close()
