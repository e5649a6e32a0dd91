"""Tests slow samples: measured, begun early, overtaken, and cached in the form that saves most."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from coordinators import coordinator_pid, stream
from photos import make_folder, photo
from waiting import until

BATCH = 8
SIZE = 160
SLOW = dict.fromkeys(range(0, SIZE, 40), 0.25)
"""Seconds of the slow samples, by id. The others take 2 ms."""


@pytest.fixture(autouse=True)
def _coordinator(nothing_is_left: None) -> None:
    """Uses a coordinator for each test, and checks that nothing is left."""


def loader(dataset: Any = None, **arguments: Any) -> coprep.DataLoader:
    dataset = ud.Numbers(SIZE, pause=0.002, slow=SLOW) if dataset is None else dataset
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "shuffle": True,
        "framework": "numpy",
        "with_index": True,
        "cache": "off",
        "num_workers": 2,
    }
    return coprep.DataLoader(dataset, **(options | arguments))


def batches(loader: coprep.DataLoader) -> list[list[int]]:
    """Returns the ids of an epoch's batches, and checks the batches' contents against them."""
    found = []
    for (values, labels), ids in loader:
        assert (values[:, 0] == ids).all() and (np.asarray(labels) == ids).all()
        found.append(ids.tolist())
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [i for batch in batches for i in batch]


def once(ids: list[int], size: int = SIZE) -> bool:
    return sorted(ids) == list(range(size))


# --- in order -------------------------------------------------------------------------------------------------


def test_in_deterministic_order_the_same_seed_gives_the_same_batches_with_any_number_of_workers() -> None:
    found = []
    for workers in (1, 2, 6):
        with loader(num_workers=workers, seed=5) as one:
            found.append([batches(one) for _ in range(3)])
            costs = stream()["costs"]
            assert costs["window"] > 0 and costs["overtaken"] == 0
        coprep.stop()
    assert found[0] == found[1] == found[2]
    assert all(once(flat(epoch)) for epoch in found[0])


def test_where_costs_are_even_nothing_is_drawn_ahead() -> None:
    # A sample takes long compared with the delays on a busy machine, which count as costs as well.
    with loader(ud.Numbers(SIZE, pause=0.03)) as even:
        for _ in range(2):
            assert once(flat(batches(even)))
        assert stream()["costs"]["window"] == 0


@pytest.mark.parametrize("order", ["deterministic", "relaxed"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_what_waits_behind_a_slow_sample_is_made_by_another_worker(tmp_path: Path, order: str, epoch: int) -> None:
    """The sample is either of unknown cost, or was quick before."""
    log, flag = tmp_path / "log", tmp_path / "slow"
    slow = 120
    dataset = ud.Turning(SIZE, str(flag), pause=0.001, slow={slow: 0.4}, log=str(log))
    with loader(dataset, shuffle=False, order=order) as one:
        for number in range(epoch + 1):
            if number == epoch:
                flag.touch()
            assert once(flat(batches(one)))
    made = [int(line.removeprefix("dataset:")) for line in ud.noted(log)]
    last = {i: at for at, i in enumerate(made)}
    # These samples were given to the worker together with the slow one, or queued for it next.
    assert all(last[i] < last[slow] for i in range(slow + 1, slow + 7))


# --- relaxed --------------------------------------------------------------------------------------------------


def test_relaxed_a_slow_sample_is_overtaken_and_comes_later_in_its_epoch_once() -> None:
    with loader(ud.Numbers(SIZE, pause=0.002), seed=5) as strict:
        drawn = batches(strict)
    # The costs of the other samples are known when this one comes.
    slow = drawn[10][0]
    with loader(ud.Numbers(SIZE, pause=0.002, slow={slow: 0.5}), seed=5, order="relaxed") as relaxed:
        found = [batches(relaxed) for _ in range(3)]
        assert stream()["costs"]["overtaken"] > 0
    assert place_of(slow, found[0]) > 10
    for epoch in found:
        assert once(flat(epoch)) and [len(b) for b in epoch] == [len(b) for b in drawn]


def place_of(sample: int, batches: list[list[int]]) -> int:
    return next(number for number, batch in enumerate(batches) if sample in batch)


def test_relaxed_jobs_that_share_get_the_same_batches() -> None:
    with (
        loader(order="relaxed", cohort="two", cohort_size=2) as one,
        loader(order="relaxed", cohort="two", cohort_size=2) as two,
    ):
        firsts, seconds = iter(one), iter(two)
        found = [(a[1].tolist(), b[1].tolist()) for a, b in zip(firsts, seconds, strict=True)]
        assert all(a == b for a, b in found)
        assert once(flat([a for a, _ in found]))


def test_relaxed_and_deterministic_jobs_do_not_share() -> None:
    with loader(seed=1) as strict, loader(seed=1, order="relaxed") as relaxed:
        next(iter(strict)), next(iter(relaxed))
        differs = [s["differs"] for s in coprep.status()["streams"]]
        assert len(differs) == 2 and all("order" in d for (d,) in differs)


@pytest.mark.parametrize("at", [3, 9, 17])
def test_relaxed_what_was_overtaken_is_part_of_the_state(at: int) -> None:
    with loader(order="relaxed", seed=3) as before:
        given: list[int] = []
        for number, (_, ids) in enumerate(before):
            given += ids.tolist()
            if number == at:
                state = before.state_dict()
                break
    with loader(order="relaxed", seed=3) as after:
        after.load_state_dict(state)
        given += flat(batches(after))
        assert once(given)
        assert once(flat(batches(after)))


def test_relaxed_ranks_get_equally_many_batches_and_each_sample_once() -> None:
    ranks = [loader(order="relaxed", rank=r, world_size=2, group="g") for r in range(2)]
    found: list[list[list[int]]] = [[], []]
    for (_, a), (_, b) in zip(*ranks, strict=True):
        found[0].append(a.tolist())
        found[1].append(b.tolist())
    assert once(flat(found[0]) + flat(found[1]))
    for rank in ranks:
        rank.close()


def test_relaxed_a_sample_that_raises_is_skipped_and_the_others_come_once() -> None:
    dataset = ud.Faulty(SIZE, [7, 41], ud.fail, pause=0.002)
    with loader(dataset, order="relaxed", on_error="skip") as relaxed:
        for _ in range(2):
            assert sorted(flat(batches(relaxed))) == [i for i in range(SIZE) if i not in (7, 41)]


def test_relaxed_a_worker_that_is_killed_loses_nothing() -> None:
    with loader(order="relaxed") as relaxed:
        found: list[int] = []
        for number, (_, ids) in enumerate(relaxed):
            found += ids.tolist()
            # Only one worker is killed, since a sample on which two workers ended is reported.
            if number == 6:
                os.kill(stream()["worker_pids"][0], signal.SIGKILL)
        assert once(found)


def test_relaxed_what_was_begun_of_an_epoch_that_begins_anew_is_no_part_of_it() -> None:
    """The previous epoch is left near its end, when slow samples of this one are already being made."""
    dataset = ud.Numbers(SIZE, pause=0.001, slow=dict.fromkeys(range(0, SIZE, 16), 0.06))
    with loader(dataset, order="relaxed", num_workers=4) as relaxed:
        for number in range(8):
            for _, _ in zip(range(12 + number), relaxed, strict=False):
                pass
            assert once(flat(batches(relaxed)))


def test_relaxed_the_coordinator_dies_and_nothing_is_lost() -> None:
    with loader(order="relaxed", seed=4) as relaxed:
        found: list[int] = []
        for number, (_, ids) in enumerate(relaxed):
            found += ids.tolist()
            if number == 5:
                os.kill(coordinator_pid(), signal.SIGKILL)
        assert once(found)


def test_relaxed_order_of_a_native_pipeline(tail: Path) -> None:
    pipeline = coprep.ImageFolder(tail).decode().random_resized_crop(32)
    with coprep.DataLoader(
        pipeline, batch_size=BATCH, shuffle=True, order="relaxed", framework="numpy", with_index=True, cache="off"
    ) as relaxed:
        for _ in range(4):
            assert once([i for *_, ids in relaxed for i in ids.tolist()], 96)


# --- cost -------------------------------------------------------------------------------------------------------


def test_the_samples_that_cost_most_are_named() -> None:
    with loader() as one:
        batches(one)
        slowest = coprep.status(slow=len(SLOW))["streams"][0]["costs"]["slowest"]
        assert {s["id"] for s in slowest} == set(SLOW)
        assert all(s["fetch_s"] + s["decode_s"] > 0.2 and s["cpu_s"] < 0.1 for s in slowest), "they slept"
        assert {s["id"] for s in one.stats(slow=10)["slow"][: len(SLOW)]} == set(SLOW)
        shown = subprocess.run(["coprep", "status", "--slow", "3"], capture_output=True, text=True, check=True).stdout
        assert "slow sample" in shown and f"{SIZE} samples measured" in shown


def test_a_sample_that_had_to_wait_once_is_not_slow_for_ever(tmp_path: Path) -> None:
    """The same happens where files are in the page cache from the second epoch on."""
    flag, waited = tmp_path / "slow", {5: 0.2, 77: 0.2}
    flag.touch()
    with loader(ud.Turning(SIZE, str(flag), slow=waited)) as one:
        batches(one)
        assert min(fetch_s(waited)) > 0.1
        flag.unlink()
        for _ in range(12):
            batches(one)
        assert max(fetch_s(waited)) < 0.05


def fetch_s(samples: Iterable[int]) -> list[float]:
    slowest = coprep.status(slow=SIZE)["streams"][0]["costs"]["slowest"]
    costs = {cost["id"]: cost for cost in slowest}
    return [costs[sample]["fetch_s"] for sample in samples]


def test_of_a_native_pipeline_the_paths_are_shown(tail: Path) -> None:
    with native(tail, cache="off") as one:
        for _ in one:
            pass
        found = coprep.status(slow=6)["streams"][0]
        # The kernel tells the bytes that a process has read only to users who may trace it.
        with contextlib.suppress(PermissionError):
            read = int(re.search(r"rchar: (\d+)", Path(f"/proc/{coordinator_pid()}/io").read_text())[1])  # type: ignore[index]
            # Reading twice would double the bytes. The 4 MiB allow for the coordinator's other reads.
            assert read < 1.5 * found["totals"]["fetched_bytes"] + (4 << 20), "files are read twice"
        slowest = found["costs"]
        assert slowest["measured"] == 96 and slowest["bytes"] <= 32 * 96
        assert sum("large" in s["path"] for s in slowest["slowest"]) >= 5


# --- forms ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 96 JPEGs, 6 of them large."""
    root = make_folder(tmp_path_factory.mktemp("tail"), 90)
    for i in range(6):
        photo(i, 2400, 1800).save(root / "class0" / f"large{i}.jpg", quality=90)
    return root


def native(tail: Path, **arguments: Any) -> coprep.DataLoader:
    pipeline = coprep.ImageFolder(tail).decode(scaled=False).random_resized_crop(32)
    return coprep.DataLoader(pipeline, batch_size=BATCH, shuffle=True, framework="numpy", **arguments)


def cache() -> dict[str, Any]:
    (found,) = coprep.status()["caches"]
    return found


def epochs(loader: coprep.DataLoader, count: int) -> None:
    for _ in range(count):
        for _ in loader:
            pass


def test_with_room_for_everything_the_decoded_form_is_kept(tail: Path) -> None:
    with native(tail, cache="auto", cache_bytes="512M") as one:
        epochs(one, 2)
        found = cache()
        assert found["form"] == "auto" and found["entries"] == 96 and found["lambda_s_per_mib"] == 0
        assert [f["form"] for f in found["by_form"]] == ["decoded"]
        hits = found["hits"]
        epochs(one, 2)
        # Some samples of the next epoch may have been ready.
        assert cache()["misses"] == found["misses"] and cache()["hits"] >= hits + 2 * 96 - 2 * 96 // 50


def test_with_little_room_it_is_filled_and_never_exceeded(tail: Path) -> None:
    with native(tail, cache="auto", cache_bytes="4M") as one:
        epochs(one, 3)
        found = cache()
        assert found["used"] <= found["capacity"] == 4 << 20
        assert found["saves_s_per_epoch"] > 0 and sum(f["entries"] for f in found["by_form"]) == found["entries"] > 0


def test_with_slow_storage_and_little_room_the_encoded_form_is_kept(
    tail: Path, socket_path: Path, tmp_path: Path
) -> None:
    command = ["coprep", "serve", "--socket", str(socket_path), "--storage-latency", "20ms", "--idle", "60"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        until(lambda: subprocess.run(["coprep", "status"], capture_output=True).returncode == 0, "it listens")
        with native(tail, cache="auto", cache_bytes="1M") as one:
            epochs(one, 2)
            forms = {f["form"]: f["entries"] for f in cache()["by_form"]}
            # A small file is read in 20 ms and decoded in less than one.
            assert forms["encoded"] > 5 * forms.get("decoded", 0)
        shown = subprocess.run(["coprep", "status", "--json"], capture_output=True, text=True, check=True).stdout
        assert json.loads(shown)["caches"][0]["saves_s_per_epoch"] > 0
        coprep.stop()
        server.wait(60)


def test_pixels_do_not_depend_on_the_form(tail: Path) -> None:
    found = []
    for form in ("off", "encoded", "decoded", "auto"):
        room = {} if form == "off" else {"cache_bytes": "3M"}
        with native(tail, cache=form, seed=8, **room) as one:
            found.append([[images.copy() for images, _ in one] for _ in range(2)])
        coprep.stop()
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert all((x == y).all() for x, y in zip(a, b, strict=True))


def test_a_pipeline_is_given_no_sample_that_another_one_prepared(tail: Path) -> None:
    decoded = coprep.ImageFolder(tail).decode(scaled=False).resize(40).center_crop(32)
    pipelines = [
        decoded.normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
        decoded.normalize([0.1, 0.2, 0.3], [0.2, 0.3, 0.4]),
        decoded.random_horizontal_flip(1.0),
        decoded,
    ]

    def given(pipeline: coprep.Pipeline, cache: str) -> list[Any]:
        with coprep.DataLoader(pipeline, batch_size=BATCH, framework="numpy", seed=8, cache=cache) as one:
            return [images.copy() for _ in range(2) for images, _ in one]

    expected = [given(pipeline, "off") for pipeline in pipelines]
    for pipeline, right in zip(pipelines, expected, strict=True):
        found = given(pipeline, "auto")
        assert all((x == y).all() for x, y in zip(right, found, strict=True)), pipeline
    # They share one cache, and the first one has left whole samples there.
    assert "prepared" in {f["form"] for f in cache()["by_form"]}


@pytest.mark.parametrize(("room", "like"), [("1M", "off"), ("512M", "decoded")])
def test_where_decoding_may_be_scaled_pixels_depend_on_the_room_alone(tail: Path, room: str, like: str) -> None:
    pipeline = coprep.ImageFolder(tail).decode().random_resized_crop(32)
    found = []
    for form in ("auto", like):
        bytes = {} if form == "off" else {"cache_bytes": room}
        with coprep.DataLoader(
            pipeline, batch_size=BATCH, shuffle=True, framework="numpy", seed=8, cache=form, **bytes
        ) as one:
            found.append([images.copy() for _ in range(2) for images, _ in one])
            kept = {f["form"] for c in coprep.status()["caches"] for f in c["by_form"]}
        coprep.stop()
        assert ("decoded" in kept) == (like == "decoded")
    assert all((a == b).all() for a, b in zip(*found, strict=True))


def test_what_is_deterministic_is_kept_prepared(tail: Path) -> None:
    pipeline = coprep.ImageFolder(tail).decode().resize((24, 32))
    with coprep.DataLoader(pipeline, batch_size=BATCH, shuffle=True, framework="numpy", cache="auto") as one:
        first = {int(label): images for images, label in label_by_label(one)}
        epochs(one, 1)
        assert {f["form"] for f in cache()["by_form"]} <= {"prepared", "decoded"}
        again = {int(label): images for images, label in label_by_label(one)}
        assert first.keys() == again.keys()


def label_by_label(loader: coprep.DataLoader) -> Any:
    for images, labels in loader:
        yield from zip(images.copy(), labels.copy(), strict=True)


def test_of_user_code_with_a_transform_the_slow_part_is_kept() -> None:
    dataset = ud.Numbers(SIZE, pause=0.001, slow=SLOW)
    with loader(dataset, transform=ud.Scaled(), cache="auto", cache_bytes="1M", with_index=False) as one:
        epochs(one, 2)
        found = cache()
        assert found["form"] == "auto" and found["entries"] == SIZE
        assert stream()["costs"]["measured"] == SIZE
        assert found["saves_s_per_epoch"] > sum(SLOW.values()), "of what takes so long nothing is made again"


def test_a_warm_up_chooses_by_price_too(tail: Path, socket_path: Path) -> None:
    command = ["coprep", "warm", str(tail), "--form", "auto", "--bytes", "4M", "--json"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    found = cache()
    assert found["form"] == "auto" and 0 < found["used"] <= 4 << 20
