"""Tests that failures of logging affect nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import coprep
import pytest
from coordinators import alive
from jobs import Job, Start
from user_jobs import HERE
from waiting import WAIT, until

TRAIN = """
import json, sys, coprep
train = coprep.DataLoader(coprep.ImageFolder(sys.argv[1]).decode().random_resized_crop(16), batch_size=8,
                          framework="numpy", with_index=True, on_error="skip", timeout=60)
seen = []
for epoch in range(2):
    seen.append(sorted(int(i) for *_, index in train for i in index))
print(json.dumps([seen, coprep.status()["pid"]]), flush=True)
"""


@pytest.fixture
def photos(folder: Path, tmp_path: Path) -> Path:
    """A folder of photos in which every second file is not a photo."""
    photos = Path(shutil.copytree(folder, tmp_path / "photos"))
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        if number % 2:
            path.write_bytes(b"no photo")
    return photos


def good(job: Job) -> int:
    """Checks that the job got all readable photos, and returns its coordinator's process id."""
    seen, pid = json.loads(job.result().splitlines()[-1])
    assert seen == [list(range(0, 200, 2))] * 2
    return int(pid)


@pytest.fixture(params=["closed pipe", "full disk", "a pipe that nobody reads"])
def output(request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor to which nothing can be written."""
    reader, writer = os.pipe()
    if request.param == "a pipe that nobody reads":
        os.set_blocking(writer, False)
        try:
            # A full pipe blocks every further write.
            while os.write(writer, bytes(4096)):
                pass
        except BlockingIOError:
            # The process gets a blocking pipe, as a shell would give it.
            os.set_blocking(writer, True)
    output = os.open("/dev/full", os.O_WRONLY) if request.param == "full disk" else writer
    if request.param == "closed pipe":
        os.close(reader)
    yield output
    for descriptor in {writer, output} | ({reader} if request.param != "closed pipe" else set()):
        os.close(descriptor)


@pytest.fixture
def serve(output: int, socket_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A coordinator whose output cannot be written."""
    serve = subprocess.Popen(
        ["coprep", "serve", "--idle", "8"], stdout=output, stderr=output, env={**os.environ, "COPREP_LOG": "debug"}
    )
    try:
        until(lambda: alive(socket_path), "it listens")
        # Jobs may start slowly. A client that does not greet keeps the coordinator for ten seconds longer.
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(socket_path))
            yield serve
        assert serve.wait(WAIT) == 0, "it ends for idleness"
    finally:
        serve.kill()
        serve.wait(WAIT)


def test_a_log_that_cannot_be_written_costs_nobody_anything(
    serve: subprocess.Popen[bytes], photos: Path, start: Start
) -> None:
    pids = {good(job) for job in [start(TRAIN, photos), start(TRAIN, photos)]}
    assert pids == {serve.pid}, "it never ended"


LOUD = """
import json, sys, coprep
from pathlib import Path
from user_datasets import Loud
with coprep.DataLoader(Loud(48), 4, framework="numpy", with_index=True, num_workers=2, timeout=60) as train:
    seen = [sorted(int(i) for *_, ids in train for i in ids) for epoch in range(2)]
Path(sys.argv[1]).write_text(json.dumps(seen))
"""


def test_what_a_dataset_prints_into_such_an_output_costs_no_sample(
    output: int, tmp_path: Path, socket_path: Path
) -> None:
    """The output is that of the job that workers are forked from."""
    env = {**os.environ, "PYTHONPATH": HERE}
    command = [sys.executable, "-c", LOUD, str(tmp_path / "seen")]
    assert subprocess.run(command, stdout=output, stderr=output, env=env, timeout=WAIT).returncode == 0
    assert json.loads((tmp_path / "seen").read_text()) == [list(range(48))] * 2


def test_the_first_line_of_a_coordinator_can_be_looked_at(socket_path: Path, photos: Path, start: Start) -> None:
    command = ["bash", "-c", "set -o pipefail; coprep serve --idle 3 2>&1 | head -1"]
    serve = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: alive(socket_path), "it listens")
        for job in [start(TRAIN, photos), start(TRAIN, photos)]:
            good(job)
        out, _ = serve.communicate(timeout=WAIT)
        assert len(out.splitlines()) == 1 and serve.returncode == 0
    finally:
        serve.kill()
        serve.wait(WAIT)


@pytest.fixture
def full(socket_path: Path) -> Iterator[Path]:
    """The folder of the socket, on a full disk."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "coprep-test", socket_path.parent], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        with contextlib.suppress(OSError), open(socket_path.parent / "fills", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        yield socket_path
        coprep.stop()
    finally:
        subprocess.run(["umount", "--lazy", socket_path.parent], check=True)


def test_a_job_starts_a_coordinator_whose_log_has_no_room(full: Path, photos: Path, start: Start) -> None:
    with pytest.raises(OSError), open(full.parent / "more", "wb", buffering=0) as file:
        file.write(b"x")
    pids = {good(job) for job in [start(TRAIN, photos), start(TRAIN, photos)]}
    assert pids == {coprep.status()["pid"]}, "it never ended"
