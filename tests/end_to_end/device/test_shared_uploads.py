"""Jobs that share uploads: each minibatch goes to the GPU once, with the bits of the host. A slow job costs itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import coprep
import pytest
from coordinators import processes_of
from gpu_jobs import Driver, fake_only
from jobs import Job, Start, go
from sharing_jobs import Serve, each_sample_once, epochs_of
from waiting import gone, kill, stop, until

MINIBATCHES = 10
"""Minibatches of an epoch of 200 samples in batches of 20."""
AHEAD = 18
"""Minibatches that are copied to a ring before they are wanted, at most."""


def cohort(size: int) -> dict[str, Any]:
    return {"cohort": "together", "cohort_size": size}


def epochs_in_step(epochs: int, *jobs: Job) -> list[list[dict[str, Any]]]:
    """Lets the jobs take each batch at the same time, for this many epochs.

    Returns:
        The statistics of each job after each of its epochs, in which each sample has come once.
    """
    stats: list[list[dict[str, Any]]] = [[] for _ in jobs]
    for _ in range(epochs):
        for _ in range(MINIBATCHES):
            for job in jobs:
                assert '"ids"' in job.line()
            go(*jobs)
        for job, of_job in zip(jobs, stats, strict=True):
            epoch = json.loads(job.line())
            assert epoch["seen"] == list(range(200))
            of_job.append(epoch["stats"])
    for job in jobs:
        job.result()
    return stats


@fake_only
def test_each_minibatch_is_uploaded_once_for_all_jobs(serve: Serve, job: Start) -> None:
    serving = serve()
    # A job that falls behind may copy a minibatch by itself, so the jobs take each batch at the same time.
    jobs = [job(epochs=6, options=cohort(3), steps=True) for _ in range(3)]
    for stats in epochs_in_step(6, *jobs):
        settled, last = stats[2], stats[5]
        assert last["uploads"] == settled["uploads"], "no job has copied a minibatch by itself"
        shared = last["shared_uploads"] - settled["shared_uploads"]
        assert abs(shared - 3 * MINIBATCHES) <= 2
    # Not three times as many.
    assert 3 * MINIBATCHES <= serving.uploaded() <= 6 * MINIBATCHES + AHEAD
    assert "pageable" not in serving.driver.answers("cuMemcpyHtoDAsync_v2")


FORMS = [
    ("uint8", None),
    ("uint8", "channels_last"),
    ("float32", None),
    ("float32", "channels_last"),
    ("float16", None),
    ("float16", "channels_last"),
    ("bfloat16", None),
    ("bfloat16", "channels_last"),
]


@pytest.mark.parametrize(("dtype", "layout"), FORMS)
def test_images_have_the_bits_of_the_host(serve: Serve, job: Start, dtype: str, layout: str | None) -> None:
    serve()
    # Batches of 33 straddle minibatches of 20, and the last one of each epoch is short. The side is odd.
    plan = {"dtype": dtype, "layout": layout, "side": 15, "epochs": 4}
    first = job(**plan)
    first_stats, second_stats = each_sample_once(first, job(**plan, batch_size=33))
    for stats in (first_stats, second_stats):
        assert stats[-1]["shared_uploads"] > 0 and "not_shared" not in stats[-1]


DATASET = """
import sys, time
import gpu_seam
import coprep, numpy as np, torch

class Rows:
    def __len__(self):
        return 100
    def __getitem__(self, i):
        half = torch.full((5,), i / 3, dtype=torch.bfloat16)
        return {"x": np.full((3, 7), i / 7, np.float32), "half": half, "is_even": i % 2 == 0, "y": i}

def wait_for_ring():
    end = time.monotonic() + 60
    while not any(gpu["rings"] for gpu in coprep.status()["gpus"]):
        assert time.monotonic() < end, coprep.status()["gpus"]
        time.sleep(0.01)

options = dict(batch_size=int(sys.argv[1]), shuffle=True, seed=1, num_workers=1, with_index=True)
with coprep.DataLoader(Rows(), device="cuda", uploads="shared", **options) as loader:
    for epoch in range(4):
        seen = []
        for batch, ids in loader:
            gpu_seam.synchronize()
            rows = [Rows()[i] for i in ids.tolist()]
            for name, part in batch.items():
                assert gpu_seam.gpu_of(part) == 0
                expected = torch.stack([torch.as_tensor(row[name]) for row in rows])
                assert part.dtype == expected.dtype and torch.equal(part.cpu(), expected), (epoch, name)
            seen += ids.tolist()
            if not epoch:
                wait_for_ring()
        assert sorted(seen) == list(range(100)), epoch
    print(loader.stats()["shared_uploads"])
"""


def test_parts_of_python_samples_are_shared_too(serve: Serve, socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    serve()
    # Batches of 13 straddle minibatches of 8, and both have a short one at the end.
    jobs = [Driver(tmp_path / f"rows{size}").job(DATASET, size) for size in (8, 13)]
    assert all(int(job.result()) > 0 for job in jobs)


@fake_only
def test_instances_of_a_divided_gpu_have_an_uploader_each(serve: Serve, job: Start) -> None:
    serving = serve("mig=1;devices=2")
    jobs = [job("mig=1;devices=2", gpu=gpu, gpus=2, epochs=4, steps=True) for gpu in (0, 1, 0, 1)]
    for started in jobs:
        started.line()
    uuids = [gpu["uuid"] for gpu in coprep.status()["gpus"]]
    assert len(uuids) == 2 and all(uuid.startswith("MIG-") for uuid in uuids)
    for started in jobs:
        started.run_on()
    for stats in each_sample_once(*jobs):
        assert stats[-1]["shared_uploads"] > 0
    assert len(serving.driver.processes()) == 2


@fake_only
def test_jobs_of_another_mps_server_have_an_uploader_of_their_own(
    serve: Serve, job: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = serve()
    jobs = []
    for server in ("/tmp/first", "/tmp/second"):
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", server)
        jobs += [job(epochs=4, steps=True, waits=False) for _ in range(2)]
    for started in jobs:
        started.line()
    until(lambda: len(serving.uploaders()) == 2, "there are two rings")
    found = {variable("CUDA_MPS_PIPE_DIRECTORY", pid) for pid in serving.uploaders()}
    assert found == {"/tmp/first", "/tmp/second"}
    for started in jobs:
        started.run_on()
    for stats in each_sample_once(*jobs):
        assert stats[-1]["shared_uploads"] > 0


def variable(name: str, pid: int) -> str | None:
    """Returns a variable of a process's environment."""
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in variables if entry).get(name)


@fake_only
def test_nothing_reads_what_a_slow_gpu_has_not_written(serve: Serve, job: Start) -> None:
    serve("delay_us=20000")
    jobs = [job("delay_us=20000", epochs=4, batch_size=size) for size in (20, 33)]
    for stats in each_sample_once(*jobs):
        assert stats[-1]["shared_uploads"] > 0


@fake_only
def test_a_job_alone_uploads_by_itself(serve: Serve, job: Start) -> None:
    serving = serve()
    (stats,) = each_sample_once(job(waits=False))
    assert stats[-1]["shared_uploads"] == 0 and stats[-1]["uploads"] > 0
    assert not serving.driver.trace.exists(), "no process was started"


@fake_only
def test_jobs_that_do_not_ask_for_it_share_no_uploads(serve: Serve, job: Start) -> None:
    serving = serve()
    jobs = [job(waits=False, uploads=uploads) for uploads in ("own", "auto", "shared")]
    for stats in each_sample_once(*jobs):
        assert stats[-1]["shared_uploads"] == 0
    assert not serving.driver.trace.exists()


def test_a_stopped_job_keeps_two_buffers_and_holds_up_nobody(serve: Serve, job: Start) -> None:
    # Each of the three jobs may be handed two buffers, and two more can be filled meanwhile.
    serve(COPREP_DEVICE_MEMORY=str(8 * (20 * 3 * 16 * 16 + 256)))
    stopped = job(steps=True, waits=False, epochs=100)
    stopped.line()
    others = [job(epochs=6) for _ in range(2)]
    until(lambda: any(gpu["rings"] for gpu in coprep.status()["gpus"]), "there is a ring")
    while True:
        stopped.say("")
        if '"shared_uploads": 0' not in stopped.line():
            break
    stop(stopped.process.pid)
    for stats in each_sample_once(*others):
        settled, last = stats[3], stats[5]
        # If the stopped job had more than its two buffers, the ring would soon have none for the others.
        assert last["shared_uploads"] - settled["shared_uploads"] >= 2 * MINIBATCHES * 3 // 4, stats


@fake_only
def test_two_gpus_have_an_uploader_each(serve: Serve, job: Start) -> None:
    serving = serve("devices=2")
    jobs = [job("devices=2", gpu=gpu, gpus=2, epochs=4) for gpu in (0, 1, 0, 1)]
    for stats in each_sample_once(*jobs):
        assert stats[-1]["shared_uploads"] > 0
    assert len(serving.driver.processes()) == 2


@fake_only
def test_ranks_on_several_gpus_share_and_each_sample_comes_once_to_a_job(serve: Serve, job: Start) -> None:
    serve("devices=2")

    def ranks(group: str, **plan: Any) -> list[Job]:
        options = [{"rank": rank, "world_size": 2, "group": group} for rank in (0, 1)]
        return [job("devices=2", gpu=of["rank"], gpus=2, epochs=6, options=of, **plan) for of in options]

    def rings() -> list[Any]:
        return [ring for gpu in coprep.status()["gpus"] for ring in gpu["rings"]]

    first = ranks("first", steps=True, waits=False)
    for rank in first:
        rank.line()
    # The second job comes within an epoch of the first one. Its ranks are aligned with those of the first.
    second = ranks("second", steps=True, waits=False)
    for rank in second:
        rank.line()
    until(lambda: len(rings()) == 2, "there is a ring on each GPU")
    for rank in (*first, *second):
        rank.run_on()
    for of_job in (first, second):
        reports = [epochs_of(rank) for rank in of_job]
        for one, other in zip(*reports, strict=True):
            assert sorted(one["seen"] + other["seen"]) == list(range(200))
        for epochs in reports:
            assert epochs[-1]["stats"]["shared_uploads"] > 0


@fake_only
def test_where_memory_cannot_be_pinned_the_uploader_copies_through_buffers(serve: Serve, job: Start) -> None:
    serving = serve("readonly=0;delay_us=500")
    jobs = [job(epochs=4) for _ in range(2)]
    until(lambda: serving.uploaders() != [], "there is a ring")
    (ring,) = [ring for gpu in coprep.status()["gpus"] for ring in gpu["rings"]]
    assert "pinned for reading only" in ring["why_bounced"]
    for stats in each_sample_once(*jobs):
        assert stats[-1]["shared_uploads"] > 0
    assert serving.driver.calls()["cuMemHostRegister_v2"] == 0


def test_status_shows_uploads_of_both_kinds(serve: Serve, job: Start) -> None:
    serve()
    jobs = [job(epochs=4, steps=True, waits=False) for _ in range(2)]
    for started in jobs:
        started.line()
    until(lambda: coprep.status()["gpus"][0]["rings"] != [], "there is a ring")
    for _ in range(3 * MINIBATCHES):
        for started in jobs:
            started.say("")
        for started in jobs:
            started.line()
    (gpu,) = coprep.status()["gpus"]
    assert gpu["uuid"].startswith(("GPU-", "MIG-")) and (
        gpu["consumers"],
        gpu["sharing"],
    ) == (2, 2)
    assert gpu["own_uploads"] > 0 and gpu["own_bytes"] > 0
    assert gpu["shared_uploads"] > 0 and gpu["shared_bytes"] > 0 and gpu["shared_s"] > 0
    assert gpu["rings"][0]["buffers"] == AHEAD and gpu["notes"] == []
    for started in jobs:
        started.run_on()
    each_sample_once(*jobs)


def test_an_uploader_ends_with_its_jobs_and_with_a_killed_coordinator_which_costs_no_batch(
    serve: Serve, job: Start, socket_path: Path
) -> None:
    serving = serve()
    each_sample_once(*[job() for _ in range(2)])
    until(lambda: len(processes_of(socket_path)) == 1, "only the coordinator is left")
    jobs = [job(steps=True) for _ in range(2)]
    for started in jobs:
        started.line()
    until(lambda: serving.uploaders() != [], "there is a ring")
    (uploader,) = serving.uploaders()
    kill(serving.process.pid)
    until(lambda: gone(uploader), "the uploader ends with its coordinator")
    # The jobs start another one, and present what they have been given.
    for started in jobs:
        started.run_on()
    each_sample_once(*jobs)
