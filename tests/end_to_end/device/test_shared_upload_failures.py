"""Uploaders that fail, hang or die: jobs go on by themselves, and each sample comes once."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import coprep
import pytest
from gpu_jobs import Serving, calls, fake_only
from jobs import Job, Start
from sharing_jobs import Pair, Serve, each_sample_once
from sharing_kills import Round
from waiting import kill, until

pytestmark = fake_only


OPENING = [
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuStreamCreate",
]
"""Calls that open a ring."""
COPYING = {
    "cuStreamIsCapturing": 12,
    "cuEventCreate": 12,
    "cuEventRecord": 12,
    "cuEventQuery": 12,
    "cuMemcpyHtoDAsync_v2": 12,
}
"""Calls that copy a minibatch, and the number of one that does so after some others."""


@pytest.mark.parametrize("function", OPENING)
def test_if_a_ring_cannot_be_opened_each_job_uploads_by_itself(
    serve: Serve, pair: Pair, socket_path: Path, function: str
) -> None:
    serve(f"fail={function}:999")
    for stats in pair.train(socket_path):
        assert stats["shared_uploads"] == 0
        assert "unknown error" in stats["not_shared"] or "sees no GPU" in stats["not_shared"]


@pytest.mark.parametrize("function", COPYING)
def test_an_uploader_whose_copy_fails_is_replaced(serve: Serve, pair: Pair, socket_path: Path, function: str) -> None:
    serving = serve(f"fail={function}:999@{COPYING[function]}")
    pair.train(socket_path)
    assert "an uploader has ended" in serving.log.read_text()


def test_memory_that_cannot_be_pinned_at_all_is_copied_through_buffers(
    serve: Serve, pair: Pair, socket_path: Path
) -> None:
    serve("fail=cuMemHostRegister_v2:2")
    for stats in pair.train(socket_path):
        assert stats["shared_uploads"] > 0


def test_a_gpu_without_room_for_a_ring_gets_none_and_each_job_is_warned_once(serve: Serve, job: Start) -> None:
    serve("mem=500000")
    jobs = [job() for _ in range(2)]
    for started in jobs:
        out, err = started.process.communicate(timeout=120)
        assert started.process.returncode == 0, err
        assert err.count("uploads to the GPU are not shared") == 1 and "--device-memory" in err
        assert '"not_shared"' in out
    assert all(gpu["rings"] == [] for gpu in coprep.status()["gpus"])


# Of these, a coordinator in a container without GPUs has the last one.
@pytest.mark.parametrize(
    "settings", ["fail=cuMemCreate:2", "share=0", "mem=0", "fail=cuDevicePrimaryCtxRetain:46", "devices=0"]
)
def test_a_gpu_that_cannot_share_is_used_by_each_job_alone(
    serve: Serve, pair: Pair, socket_path: Path, settings: str
) -> None:
    serve(settings)
    for stats in pair.train(socket_path):
        assert stats["shared_uploads"] == 0 and "not_shared" in stats


def test_a_coordinator_that_may_take_no_memory_shares_nothing(serve: Serve, pair: Pair, socket_path: Path) -> None:
    serve(COPREP_DEVICE_MEMORY="0")
    for stats in pair.train(socket_path):
        assert "COPREP_DEVICE_MEMORY" in stats["not_shared"]


@pytest.mark.parametrize("function", ["cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"])
def test_a_job_that_cannot_map_the_ring_uploads_by_itself(serve: Serve, job: Start, function: str) -> None:
    serve()
    cannot, can = job(f"fail={function}:999", epochs=4), job(epochs=4)
    without, with_ring = each_sample_once(cannot, can)
    assert without[-1]["shared_uploads"] == 0 and "unknown error" in without[-1]["not_shared"]
    assert with_ring[-1]["shared_uploads"] > 0


@pytest.mark.parametrize("call", calls(range(1, 100, 12)))
def test_an_uploader_that_dies_in_any_call_costs_no_batch(
    serve: Serve, pair: Pair, socket_path: Path, call: int
) -> None:
    serve(f"die=@{call}")
    pair.train(socket_path)


@pytest.mark.parametrize("call", calls(range(1, 100, 45)))
def test_an_uploader_that_fails_in_any_call_costs_no_batch(
    serve: Serve, pair: Pair, socket_path: Path, call: int
) -> None:
    serve(f"fail=:999@{call}")
    pair.train(socket_path)


@pytest.mark.parametrize("call", calls(range(1, 100, 33)))
def test_an_uploader_that_hangs_in_any_call_costs_no_batch(serve: Serve, job: Start, call: int) -> None:
    serve(f"hang=@{call}")
    # The jobs do not wait for the ring: one that hangs while it opens it is given up only after a minute.
    each_sample_once(*[job(epochs=4, waits=False) for _ in range(2)])


def test_a_job_that_dies_in_any_call_leaves_the_ring_to_the_others(serve: Serve, job: Start) -> None:
    # A ring of eight buffers: it would have none left if each of the six jobs took two with it.
    serve(COPREP_DEVICE_MEMORY=str(8 * (20 * 3 * 16 * 16 + 256)))
    others = [job(epochs=1000, steps=True) for _ in range(2)]
    for other in others:
        other.line()
    for call in calls(range(30, 250, 40)):
        dying = job(f"die=@{call}", epochs=1000, compares=False)
        while dying.process.poll() is None:
            in_step(others)
        assert dying.ended()[0] == 66
    before = shared_uploads()
    for _ in range(30):
        in_step(others)
    assert shared_uploads() >= before + 20
    for other in others:
        other.kill()


@pytest.mark.parametrize("fault", ["hang", "stall"])
def test_an_uploader_that_hangs_is_killed_after_five_seconds(
    serve: Serve, pair: Pair, socket_path: Path, fault: str
) -> None:
    serving = serve(f"{fault}=cuMemcpyHtoDAsync_v2@9")
    pair.train(socket_path)
    assert "a copy has not ended after 5 s" in serving.log.read_text()


def shared_uploads() -> int:
    return int(coprep.status()["gpus"][0]["shared_uploads"])


def in_step(jobs: list[Job]) -> list[dict[str, Any]]:
    """Lets each of the jobs take a batch, and returns what they tell."""
    for started in jobs:
        started.say("")
    told = [json.loads(started.line()) for started in jobs]
    # The report on an epoch comes behind its last batch.
    return [json.loads(job.line()) if "seen" in report else report for job, report in zip(jobs, told, strict=True)]


def is_sharing(serving: Serving, but: list[int]) -> bool:
    """Returns true if there is an uploader, and not one of these."""
    running = serving.uploaders()
    return running != [] and not set(running) & set(but)


def test_killed_uploaders_and_jobs_cost_nobody_a_sample(serve: Serve, job: Start) -> None:
    serving = serve("delay_us=500")
    round_of_kills = Round(serving, lambda **plan: job("delay_us=500", **plan), seed=1)
    kills = round_of_kills.run(jobs=3, epochs=8, job_kills=4, uploader_kills=3)
    assert kills == (4, 3)


def test_after_a_kill_uploads_are_shared_again(serve: Serve, job: Start) -> None:
    serving = serve()
    jobs = [job(epochs=100, steps=True) for _ in range(2)]
    for started in jobs:
        started.line()

    def shares_more_than(uploads: int) -> bool:
        in_step(jobs)
        return shared_uploads() > uploads

    killed: list[int] = []
    for _ in range(2):
        until(lambda: is_sharing(serving, killed), "uploads are shared")
        killed.extend(serving.uploaders())
        until(functools.partial(shares_more_than, shared_uploads() + 30), "more is shared")
        kill(killed[-1])
    for started in jobs:
        started.kill()
