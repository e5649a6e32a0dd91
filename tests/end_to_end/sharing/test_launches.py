"""Tests that the ranks of launches which run at once never form one job, and that a name used twice is told."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import coprep
import pytest
from jobs import Job, Start
from waiting import WAIT, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")

HISTORIES = int(os.environ.get("COPREP_TEST_LAUNCHES", "8"))
SAMPLES, EPOCHS = 96, 2

RANK = f"""
import json, os, sys, time
import coprep

given = json.loads(sys.argv[1])
time.sleep(given["after"])
os.environ.update(given["environment"])
options = dict(shuffle=True, num_workers=1, framework="numpy", **given["options"])
with coprep.DataLoader(range({SAMPLES}), 4, **options) as train:
    for epoch in range({EPOCHS}):
        line = json.dumps([epoch, [i for batch in train for i in batch.tolist()]])
        # All ranks of a launch have one pipe.
        os.write(1, line.encode() + b"\\n")
"""
"""Code of a rank, in the place of one that a launcher starts."""

LAUNCHER = """
import json, subprocess, sys

code, ranks = sys.argv[1], json.loads(sys.argv[2])
started = [subprocess.Popen([sys.executable, "-c", code, json.dumps(rank)]) for rank in ranks]
sys.exit(max(rank.wait() for rank in started))
"""
"""Code of a launcher. It starts ranks, as torchrun's agent, srun, mpirun and a shell do."""


def one_allocation(launch: int, port: int) -> dict[str, dict[str, str]]:
    """Returns by kind of launcher what it says to each rank, where several run in one allocation of Slurm."""
    job = {"SLURM_JOB_ID": "4711"}
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "localhost"}
    return {
        "torchrun": {**job, **torchrun, "MASTER_PORT": str(port)},
        "torchrun whose port was used": {**job, **torchrun, "MASTER_PORT": "29500"},
        "torchrun that starts its ranks again": {
            **job,
            **torchrun,
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": str(launch),
        },
        "srun": {**job, "SLURM_STEP_ID": str(launch)},
        "mpirun": {**job, "PMIX_NAMESPACE": f"prterun-node-{launch}@1"},
        "by hand": {**job, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)},
        "a loop of the shell": job,
    }


@pytest.mark.timeout(3 * WAIT)
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_each_of_the_launches_that_run_at_once_has_each_sample_once(start: Start, seed: int) -> None:
    chance = random.Random(seed)
    kind = chance.choice(list(one_allocation(0, 0)))
    options = chance.choice([{}, {"group": "mine"}]) if kind != "a loop of the shell" else {}
    launches = []
    for launch in range(chance.randint(2, 4)):
        said = one_allocation(launch, 20_000 + launch)[kind]
        size = chance.randint(2, 4)
        ranks = [
            {
                "after": chance.uniform(0, 0.5),
                "environment": {"RANK": str(rank), "WORLD_SIZE": str(size), **said},
                "options": options,
            }
            for rank in range(size)
        ]
        launches.append(start(LAUNCHER, RANK, json.dumps(ranks)))
    for launch in launches:
        assert_exact(launch.result(), f"{kind}, {options}")


def assert_exact(printed: str, what: str) -> None:
    """Asserts that the ranks of a launch had each sample once in each epoch."""
    epochs: list[list[int]] = [[] for _ in range(EPOCHS)]
    for epoch, seen in map(json.loads, printed.splitlines()):
        epochs[epoch] += seen
    assert [sorted(seen) for seen in epochs] == [list(range(SAMPLES))] * EPOCHS, what


@pytest.mark.timeout(3 * WAIT)
def test_real_torchruns_in_one_allocation(tmp_path: Path) -> None:
    """Ranks that a shell wraps are those of their agent."""
    script, rank = tmp_path / "wrapped.sh", tmp_path / "rank.py"
    rank.write_text(RANK)
    given = json.dumps({"after": 0, "environment": {}, "options": {}})
    script.write_text(f"{sys.executable} {rank} '{given}'\necho >&2\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    launches = [
        subprocess.Popen(
            [*command, f"--master-port={free_port()}", "bash", script],
            env={**os.environ, "SLURM_JOB_ID": "4711", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for launch in launches:
        printed, _ = launch.communicate(timeout=2 * WAIT)
        assert launch.returncode == 0
        assert_exact(printed, "torchrun")


@pytest.mark.parametrize("second", [0, 1])
def test_a_rank_that_another_process_has_is_refused(start: Start, second: int) -> None:
    """Ranks that were started one by one have only the name that they give."""

    def begin(rank: int) -> Job:
        options = {"group": "search", "rank": rank, "world_size": 3}
        return start(RANK, json.dumps({"after": 0, "environment": {}, "options": options}))

    waiting = [begin(0), begin(1)]
    until(lambda: attached() == 2, "both wait for the third")
    code, error = begin(second).ended()
    told = f"process {waiting[second].process.pid} waits as rank {second} of 3 of "
    assert code == 1 and told in error and "give each job another group=" in error, error
    printed = [rank.result() for rank in [*waiting, begin(2)]]
    assert_exact("\n".join(printed), "those that were not refused")


def attached() -> int:
    """Returns the number of ranks that are attached."""
    try:
        streams = coprep.status()["streams"]
    except coprep.CoprepError:
        # There is no coordinator yet.
        return 0
    return sum(len(job["pids"]) for stream in streams for job in stream["jobs"])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
