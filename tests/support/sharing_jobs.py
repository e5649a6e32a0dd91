"""A training script whose job shares uploads to a GPU, and checks each of its images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_jobs import Driver, Serving
from jobs import Job

Serve = Callable[..., Serving]
"""Starts a coordinator."""

_SCRIPT = """
import json, sys, time
import gpu_seam
import coprep, torch

folder, plan = sys.argv[1], json.loads(sys.argv[2])
gpu, side, dtype = plan["gpu"], plan["side"], getattr(torch, plan["dtype"])
data = coprep.ImageFolder(folder).decode().resize((side, side))
form = {}
if plan["dtype"] != "uint8":
    data = data.normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    form["dtype"] = dtype
if plan["layout"]:
    form["memory_format"] = getattr(torch, plan["layout"])
common = dict(batch_size=plan["batch_size"], shuffle=True, seed=5, with_index=True, cache="decoded", **form)
loader = coprep.DataLoader(data, device=f"cuda:{gpu}", uploads=plan["uploads"], **common, **plan["options"])
resumed = sys.stdin.readline() if plan["resumes"] else ""
if resumed:
    loader.load_state_dict(json.loads(resumed))
pixels = {}

def tell(**what):
    print(json.dumps(what), flush=True)

def is_settled():
    return sum(bool(gpu["rings"] or gpu["notes"]) for gpu in coprep.status()["gpus"]) == plan["gpus"]

def wait_for_ring(count):
    # Until the ring is there, batches are this job's own uploads.
    end = time.monotonic() + 60
    while plan["waits"] and count == 1 and not is_settled():
        assert time.monotonic() < end, coprep.status()["gpus"]
        time.sleep(0.01)

batches = 0
for epoch in range(plan["epochs"]):
    seen = []
    for images, labels, ids in loader:
        gpu_seam.synchronize(gpu)
        assert images.dtype == dtype and gpu_seam.gpu_of(labels) == gpu and images.device == labels.device
        for image, id in zip(images.cpu().clone(), ids.tolist()):
            assert torch.equal(image, pixels.setdefault(id, image)), (epoch, id)
        seen += ids.tolist()
        batches += 1
        wait_for_ring(batches)
        if plan["steps"]:
            tell(state=loader.state_dict(), ids=ids.tolist(), stats=loader.stats())
            sys.stdin.readline()
    tell(seen=sorted(seen), stats=loader.stats())
if plan["compares"]:
    host = coprep.DataLoader(data, **common)
    compared = 0
    for images, labels, ids in host:
        for image, id in zip(images, ids.tolist()):
            if id in pixels:
                assert torch.equal(image, pixels[id]), id
                compared += 1
    assert compared == len(pixels)
"""

_PLAN = {
    "gpu": 0,
    "gpus": 1,
    "side": 16,
    "dtype": "float16",
    "layout": None,
    "batch_size": 20,
    "uploads": "shared",
    "epochs": 3,
    "waits": True,
    "steps": False,
    "compares": True,
    "resumes": False,
    "options": {},
}


def sharing_job(driver: Driver, folder: Path, **plan: Any) -> Job:
    """Starts a job.

    Args:
        driver: the driver that it finds.
        folder: photographs.
        plan: what differs from the usual plan. ``gpu`` is the number of the job's GPU, and ``gpus`` says how many have
            jobs that share. With ``steps`` the job tells each batch and waits for a line; with ``waits`` it goes on
            after the first batch only when it is decided whether uploads are shared; with ``resumes`` it reads a state.
    """
    assert plan.keys() <= _PLAN.keys()
    return driver.job(_SCRIPT, folder, json.dumps(_PLAN | plan))


def epochs_of(job: Job) -> list[dict[str, Any]]:
    """Returns the job's report on each epoch, once it has ended successfully."""
    reports = [json.loads(line) for line in job.result().splitlines()]
    return [report for report in reports if "seen" in report]


def each_sample_once(*jobs: Job) -> list[list[dict[str, Any]]]:
    """Returns the statistics of each job after each of its epochs, in which each sample has come once."""
    reports = [epochs_of(job) for job in jobs]
    for epochs in reports:
        assert [epoch["seen"] for epoch in epochs] == [list(range(200))] * len(epochs)
    return [[epoch["stats"] for epoch in epochs] for epochs in reports]
