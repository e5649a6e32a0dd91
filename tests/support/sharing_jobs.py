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
import json, os, sys, time
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

def tell(**what):
    print(json.dumps(what), flush=True)

def is_settled():
    return sum(bool(gpu["rings"] or gpu["notes"]) for gpu in coprep.status()["gpus"]) == plan["gpus"]

def wait_for_ring():
    # Until the ring is there, batches are this job's own uploads.
    end = time.monotonic() + 60
    while not is_settled():
        assert time.monotonic() < end, coprep.status()["gpus"]
        time.sleep(0.01)

def train(pixels):
    device = f"cuda:{gpu}"
    with coprep.DataLoader(data, device=device, uploads=plan["uploads"], **common, **plan["options"]) as loader:
        if plan["resumes"]:
            state = sys.stdin.readline()
            loader.load_state_dict(json.loads(state)) if state.strip() else None
        waits = plan["waits"]
        for epoch in range(plan["epochs"]):
            seen = []
            for images, labels, ids in loader:
                gpu_seam.synchronize(gpu)
                assert images.dtype == dtype and gpu_seam.gpu_of(labels) == gpu and images.device == labels.device
                for image, id in zip(images.cpu().clone(), ids.tolist()):
                    assert torch.equal(image, pixels.setdefault(id, image)), (epoch, id)
                seen += ids.tolist()
                if waits:
                    waits = wait_for_ring()
                if plan["steps"]:
                    tell(state=loader.state_dict(), ids=ids.tolist(), stats=loader.stats())
                    sys.stdin.readline()
            tell(seen=sorted(seen), stats=loader.stats())

def compare(pixels):
    compared = 0
    with coprep.DataLoader(data, **common) as host:
        for images, labels, ids in host:
            for image, id in zip(images, ids.tolist()):
                if id in pixels:
                    assert torch.equal(image, pixels[id]), id
                    compared += 1
    assert compared == len(pixels)

def run():
    pixels = {}
    train(pixels)
    if plan["compares"]:
        compare(pixels)

if plan["rounds"]:
    for socket in iter(sys.stdin.readline, ""):
        os.environ["COPREP_SOCKET"] = socket.strip()
        run()
        tell(over=True)
else:
    run()
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
    "rounds": False,
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


class Pair:
    """Two jobs that share, and train again and again, each time with another coordinator: they start slowly.

    Args:
        folder: photographs.
        scratch: a folder for the drivers of the jobs.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder, self._scratch = folder, scratch
        self._started = 0
        self._jobs: list[Job] = []

    def train(self, socket: Path) -> list[dict[str, Any]]:
        """Lets both train with a coordinator, and returns the statistics of each at the end."""
        self._jobs = [job for job in self._jobs if job.process.poll() is None]
        self._jobs += [self._start() for _ in range(2 - len(self._jobs))]
        for job in self._jobs:
            job.say(str(socket))
        return [self._last(job) for job in self._jobs]

    def _start(self) -> Job:
        self._started += 1
        driver = Driver(self._scratch / f"job{self._started}")
        return sharing_job(driver, self._folder, rounds=True, epochs=4)

    def _last(self, job: Job) -> dict[str, Any]:
        stats: dict[str, Any] = {}
        while "over" not in (report := json.loads(job.line())):
            assert report["seen"] == list(range(200))
            stats = report["stats"]
        return stats

    def end(self) -> None:
        for job in self._jobs:
            job.kill()


def each_sample_once(*jobs: Job) -> list[list[dict[str, Any]]]:
    """Returns the statistics of each job after each of its epochs, in which each sample has come once."""
    reports = [epochs_of(job) for job in jobs]
    for epochs in reports:
        assert [epoch["seen"] for epoch in epochs] == [list(range(200))] * len(epochs)
    return [[epoch["stats"] for epoch in epochs] for epochs in reports]
