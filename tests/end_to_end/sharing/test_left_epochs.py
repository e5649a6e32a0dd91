"""Tests that an epoch which is left early is continued by the next, evenly and without preparing anything twice."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import coprep
import pytest
from batches import QUEUE
from coordinators import stream
from image_jobs import N
from jobs import Start, go
from waiting import until

BATCH = 4
EPOCHS = 30


def loader(pipeline: coprep.Pipeline, **options: object) -> coprep.DataLoader:
    return coprep.DataLoader(
        pipeline, batch_size=BATCH, shuffle=True, seed=1, framework="numpy", with_index=True, **options
    )


def some(train: coprep.DataLoader, batches: int | None) -> list[int]:
    """Returns the ids of an epoch that is left after `batches` batches."""
    return [int(i) for batch in itertools.islice(train, batches) for i in batch[-1]]


@pytest.mark.parametrize("batches", [1, 10, 49])
def test_the_next_epoch_begins_with_what_had_not_come_and_is_whole(pipeline: coprep.Pipeline, batches: int) -> None:
    with loader(pipeline) as train:
        first, second, third = some(train, batches), some(train, None), some(train, None)
    assert len(first) == batches * BATCH
    assert sorted(first + second[: N - len(first)]) == list(range(N))
    assert sorted(second) == sorted(third) == list(range(N))


def test_what_a_job_alone_is_given_depends_on_its_breaks_and_not_on_its_speed(
    pipeline: coprep.Pipeline, start: Start
) -> None:
    breaks = [3, 20, 20, 20, 49, 1, None]
    code = """
    import itertools, json, sys, time, coprep
    folder, breaks, pause = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    with coprep.DataLoader(data, 4, shuffle=True, seed=1, framework="numpy", with_index=True) as train:
        for batches in breaks:
            for images, _, index in itertools.islice(train, batches):
                print(index.tolist(), int(images.sum()), flush=True)
                time.sleep(pause)
    """
    runs = [start(code, pipeline.root, json.dumps(breaks), pause).result() for pause in (0, 0.01)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("taken", [0, 5, 40, 50])
def test_a_state_goes_on_with_what_comes_first(pipeline: coprep.Pipeline, taken: int) -> None:
    def given(train: coprep.DataLoader) -> tuple[list[int], dict[str, object], list[int]]:
        some(train, 20)
        epoch = iter(train)
        before = [int(i) for batch in itertools.islice(epoch, taken) for i in batch[-1]]
        state = train.state_dict()
        return before, state, [int(i) for batch in epoch for i in batch[-1]]

    with loader(pipeline) as train:
        before, state, after = given(train)
        following = some(train, None)
    assert sorted(before + after) == list(range(N))
    with loader(pipeline) as again:
        again.load_state_dict(json.loads(json.dumps(state)))
        assert some(again, None) == after
        assert some(again, None) == following


def test_jobs_that_leave_their_epochs_share_and_see_all_samples_evenly(pipeline: coprep.Pipeline, start: Start) -> None:
    code = """
    import itertools, json, sys, time, coprep
    folder, batches, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    with coprep.DataLoader(data, 4, shuffle=True, framework="numpy", with_index=True) as train:
        len(train)  # attaches
        print("ready", flush=True)
        sys.stdin.readline()
        seen = []
        for _ in range(epochs):
            for batch in itertools.islice(train, batches):
                seen += batch[-1].tolist()
                time.sleep(0.005)
        print(json.dumps(seen), flush=True)
        sys.stdin.readline()
    """
    batches = 23
    jobs = [start(code, pipeline.root, batches, EPOCHS) for _ in range(3)]
    assert [one.line() for one in jobs] == ["ready"] * 3
    for one in jobs:
        # They leave their epochs at different times.
        due = stream()["totals"]["delivered"] + 7 * BATCH
        go(one)
        until(lambda due=due: stream()["totals"]["delivered"] >= due, "it is some steps ahead")
    counts = [Counter(json.loads(one.line())) for one in jobs]
    prepared = stream()["totals"]["prepared"]
    go(*jobs)
    mean = EPOCHS * batches * BATCH / N
    for count in counts:
        assert sum(count.values()) == mean * N
        # Of independent random parts, some samples would come less than 6 times.
        assert all(mean / 2 <= count[i] <= 2 * mean for i in range(N)), sorted(count.values())
    # Jobs that began their epochs anew prepared more than twice as much as one of them was given.
    assert prepared <= 1.4 * mean * N + 3 * QUEUE * BATCH
