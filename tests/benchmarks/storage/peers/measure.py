"""Measures all loaders with one and with eight jobs, in turn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tests.benchmarks.loaders.machine import cores
from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.slow_samples.running import Progress
from tests.benchmarks.storage.peers.bucket import Bucket
from tests.benchmarks.storage.peers.loaders import LOADERS, packages
from tests.benchmarks.storage.peers.running import run
from tests.benchmarks.storage.peers.table import PeerResults, jobs_label
from tests.support.object_server import ObjectServer
from tools.demo.children import ChildFailed


def measure(server: ObjectServer, photographs: Dataset, python: Path, repeat: int, quick: bool) -> PeerResults:
    """Measures every loader `repeat` times. `python` is the interpreter of the environment that has the other ones.

    Raises:
        ChildFailed: a run of coprep failed. If a run of another loader fails, it is counted, and the next run begins.
    """
    bucket = Bucket.fill(server, photographs, python, quick)
    results = PeerResults(bucket.samples, cores(), versions(python, (*packages(), "torch", "torchvision")))
    cases = [(loader, jobs) for loader in LOADERS for jobs in loader.jobs]
    progress = Progress(repeat * len(cases))
    for _ in range(repeat):
        for loader, jobs in cases:
            about = f"{loader.label}, {jobs_label(jobs)}"
            try:
                one = run(loader, jobs, bucket, python)
            except ChildFailed as failure:
                if loader.is_coprep:
                    raise
                results.failed[loader, jobs] += 1
                progress.say(f"{about}: FAILED: {failure}")
            else:
                results.runs.setdefault((loader, jobs), []).append(one)
                rates = " and ".join(f"{epoch.images_per_s:,.0f}" for epoch in one.epochs)
                progress.say(f"{about}: {rates} images/s")
    return results


def versions(python: Path, names: Sequence[str]) -> dict[str, str]:
    """Returns the versions of coprep and of other packages, as the environment of `python` has them."""
    names = [name for name in names if name != "coprep"]
    program = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    told = subprocess.run([str(python), "-c", program, *names], capture_output=True, check=True, timeout=60)
    return {"coprep": metadata.version("coprep"), **json.loads(told.stdout)}
