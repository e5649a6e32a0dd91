"""Tests bad days: jobs and coordinators die, unknown clients connect, users press Ctrl-C. Nothing is lost or left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket as sockets
import subprocess
import sys
from pathlib import Path

import coprep
import pytest
from batches import ids
from coordinators import coordinator_pid, shm, stream
from image_jobs import TRAIN, N, job, whole
from jobs import Start, go, in_step, run_on, seen
from waiting import WAIT, gone, until

HOLD = """
import sys, time, coprep
data = coprep.ImageFolder(sys.argv[1]).decode().random_resized_crop(32).random_horizontal_flip()
train = coprep.DataLoader(data, batch_size=16, shuffle=True, framework="numpy")
batches = iter(train)
held = [next(batches) for _ in range(3)]
print("holding", flush=True)
time.sleep(600)
"""


def test_two_jobs_that_start_the_coordinator_at_once_share_one(pipeline: coprep.Pipeline, start: Start) -> None:
    # Nobody waits until a job is ready, so that several jobs find no coordinator and start one.
    jobs = [start(TRAIN, pipeline.root, 16, 2, 0.02) for _ in range(6)]
    go(*jobs)
    assert [seen(one) for one in jobs] == [whole(2)] * 6
    socket_path = os.environ["COPREP_SOCKET"]
    running = subprocess.run(["pgrep", "-f", f"serve.*{socket_path}"], capture_output=True, text=True).stdout.split()
    assert len(running) == 1


def test_a_killed_job_releases_its_batches(pipeline: coprep.Pipeline, start: Start) -> None:
    with coprep.DataLoader(pipeline, batch_size=16, shuffle=True, framework="numpy", with_index=True) as train:
        batches = iter(train)
        next(batches)
        victim = start(HOLD, pipeline.root)
        assert victim.line() == "holding"
        assert len(coprep.status()["streams"][0]["jobs"]) == 2
        victim.kill()
        until(lambda: len(coprep.status()["streams"][0]["jobs"]) == 1, "the dead job is forgotten")
        for _ in range(3):
            assert sorted(ids(train)) == list(range(N))


def test_a_killed_job_alone_frees_everything(pipeline: coprep.Pipeline, start: Start) -> None:
    victim = start(HOLD, pipeline.root)
    assert victim.line() == "holding"
    victim.kill()
    until(lambda: coprep.status()["streams"] == [], "the stream is closed")


def test_a_killed_coordinator_loses_and_repeats_nothing(pipeline: coprep.Pipeline, start: Start) -> None:
    jobs = [job(start, pipeline, 16, 3, 0.05, "step") for _ in range(3)]
    in_step(*jobs, batches=5)
    first = coordinator_pid()
    run_on(*jobs)
    os.kill(first, signal.SIGKILL)
    assert [seen(one) for one in jobs] == [whole(3)] * 3
    assert coordinator_pid() != first


@pytest.mark.parametrize("ahead", [0, 1])
def test_ranks_survive_a_killed_coordinator(pipeline: coprep.Pipeline, start: Start, ahead: int) -> None:
    """Ranks advance in step, as with an all-reduce; the first may be one batch ahead of the second."""
    code = """
    import json, sys, coprep
    rank = int(sys.argv[2])
    data = coprep.ImageFolder(sys.argv[1]).decode().random_resized_crop(32)
    train = coprep.DataLoader(data, batch_size=6, shuffle=True, framework="numpy", with_index=True, rank=rank,
                              world_size=2, group="g")
    batches = None
    while sys.stdin.readline():
        batches = batches or iter(train)
        batch = next(batches, None)
        print(json.dumps(batch and batch[-1].tolist()), flush=True)
        batches = batch and batches
    """
    jobs = [start(code, pipeline.root, rank) for rank in range(2)]
    # 200 samples in steps of 2 times 6 are 16 full steps and a shorter one.
    full = [17, 17]
    killed = 0

    def ask(rank: int) -> None:
        jobs[rank].say("next")

    def answer(rank: int) -> list[int] | None:
        ids: list[int] | None = json.loads(jobs[rank].line())
        return ids

    def kill() -> None:
        """Kills the coordinator if there is one: a job uses up its ready batches before it looks for another."""
        nonlocal killed
        with contextlib.suppress(coprep.CoprepError):
            os.kill(coordinator_pid(), signal.SIGKILL)
            killed += 1

    def epoch(kill_at: int | None) -> None:
        batches: list[list[list[int]]] = [[], []]
        asked = False
        for number in range(full[0] + 1):
            if not asked:
                ask(0)
            asked = False
            if ahead and number == kill_at:
                answers = [answer(0)]
                kill()
                # The new coordinator begins only when both ranks are there.
                ask(1)
                ask(0)
                asked = True
            else:
                ask(1)
                answers = [answer(0)]
            answers.append(answer(1))
            if not ahead and number == kill_at:
                kill()
            for rank, given in enumerate(answers):
                batches[rank] += [given] if given is not None else []
        assert [len(b) for b in batches] == full, "a rank has not as many steps as it had"
        assert sorted(i for b in batches for ids in b for i in ids) == list(range(N))

    epoch(None)
    for kill_at in range(full[0]):
        epoch(kill_at)
    # Some kills meet no coordinator, since the jobs still use up ready batches. A third is enough.
    assert killed > full[0] // 3


def test_ctrl_c_in_a_job_ends_it_and_nothing_else(pipeline: coprep.Pipeline, start: Start) -> None:
    other = job(start, pipeline, 16, 20, 0.01)
    victim = job(start, pipeline, 16, 1000, 0.01, "mark")
    go(other, victim)
    for _ in range(20):
        assert victim.line() == "batch"
    victim.process.send_signal(signal.SIGINT)
    code, error = victim.ended()
    assert code != 0 and "KeyboardInterrupt" in error
    assert seen(other) == whole(20)


def test_ctrl_c_wakes_a_job_that_waits(pipeline: coprep.Pipeline, start: Start) -> None:
    # The cohort has two members, and one of them never comes.
    code = HOLD.replace("shuffle=True", 'shuffle=True, cohort="c", cohort_size=2').replace(
        "batches = iter", 'len(train)\nprint("waiting", flush=True)\nbatches = iter'
    )
    waiting = start(code, pipeline.root)
    assert waiting.line() == "waiting"
    # After a second without a request, the job surely sleeps in its wait.
    until(lambda: stream()["jobs"][0]["idle_s"] > 1, "it waits")
    waiting.process.send_signal(signal.SIGINT)
    code, error = waiting.ended()
    assert code != 0 and "KeyboardInterrupt" in error


def test_a_wait_that_lasts_too_long_says_who_is_awaited(pipeline: coprep.Pipeline) -> None:
    options: dict = {"batch_size": 16, "cohort": "c", "cohort_size": 3, "timeout": 1}
    with coprep.DataLoader(pipeline, **options) as train, pytest.raises(TimeoutError, match="cohort"):
        next(iter(train))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_serve_and_leaves_nothing(socket_path: Path, number: signal.Signals) -> None:
    server = serve(socket_path)
    server.send_signal(number)
    assert server.wait(WAIT) == 0
    assert list(socket_path.parent.iterdir()) == []


def serve(socket_path: Path, *arguments: str, **kwargs) -> subprocess.Popen:
    command = ["coprep", "serve", "--socket", str(socket_path), *arguments]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **kwargs)
    until(lambda: socket_path.exists() or server.poll() is not None, "the coordinator listens")
    assert server.poll() is None, server.stderr.read()
    return server


def test_a_second_coordinator_on_one_socket_is_refused(socket_path: Path) -> None:
    server = serve(socket_path)
    second = subprocess.run(
        ["coprep", "serve", "--socket", str(socket_path)], capture_output=True, text=True, timeout=WAIT
    )
    assert second.returncode == 1 and "another coordinator" in second.stderr
    assert coprep.status()["pid"] == server.pid


def test_an_idle_coordinator_ends_by_itself(socket_path: Path) -> None:
    server = serve(socket_path, "--idle", "1")
    assert server.wait(WAIT) == 0
    assert list(socket_path.parent.iterdir()) == []


def test_malformed_bytes_end_that_connection_only(pipeline: coprep.Pipeline, socket_path: Path) -> None:
    with coprep.DataLoader(pipeline, batch_size=16, framework="numpy", with_index=True) as train:
        batches = iter(train)
        next(batches)
        for malformed in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"CPRP" + b"\xff" * 60,
            os.urandom(4096),
            b"CPRP\x01\x00\x00\x00\x40",
        ):
            with sockets.socket(sockets.AF_UNIX) as peer:
                peer.settimeout(WAIT)
                peer.connect(str(socket_path))
                peer.sendall(malformed)
                # Otherwise the coordinator could rightly wait for the rest of a message.
                peer.shutdown(sockets.SHUT_WR)
                # The coordinator may close the connection with unread bytes in it, which resets it.
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(100) == b""
        assert sorted(ids(train)) == list(range(N))


def test_ctrl_c_in_warm_keeps_what_is_cached(folder: Path, socket_path: Path) -> None:
    server = serve(socket_path, "--workers", "1")
    command = ["coprep", "--socket", str(socket_path), "warm", str(folder), "--json"]
    warm = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    until(lambda: any(cache["entries"] > 0 for cache in coprep.status()["caches"]), "something is cached")
    warm.send_signal(signal.SIGINT)
    warm.wait(WAIT)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["cached"] == last["done"] == last["total"] == N
    # Fewer bytes than all files have: the first warm-up's samples were still in the cache.
    assert last["fetched_bytes"] < sum(file.stat().st_size for file in folder.rglob("*.jpg"))
    assert server.poll() is None


def test_a_warmed_cache_serves_the_jobs(folder: Path, socket_path: Path) -> None:
    serve(socket_path)
    subprocess.run(
        ["coprep", "--socket", str(socket_path), "warm", str(folder)], check=True, timeout=WAIT, capture_output=True
    )
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    with coprep.DataLoader(data, batch_size=16, shuffle=True, framework="numpy", with_index=True) as train:
        assert sorted(ids(train)) == list(range(N))
        assert coprep.status()["streams"][0]["totals"]["fetched_bytes"] == 0


def test_a_named_cache_is_taken_over_warm(folder: Path, socket_path: Path) -> None:
    name = f"coprep-test-{os.getpid()}"
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    try:
        first = serve(socket_path, "--cache-name", name)
        subprocess.run(
            ["coprep", "--socket", str(socket_path), "warm", str(folder)], check=True, timeout=WAIT, capture_output=True
        )
        # The cache must survive a coordinator that had no time to leave it in order.
        first.kill()
        first.wait()
        # `serve` takes this file for the sign that the coordinator listens, and a killed one leaves it.
        socket_path.unlink(missing_ok=True)
        serve(socket_path, "--cache-name", name)
        with coprep.DataLoader(data, batch_size=16, shuffle=True, framework="numpy", with_index=True) as train:
            assert sorted(ids(train)) == list(range(N))
            assert coprep.status()["streams"][0]["totals"]["fetched_bytes"] == 0
        # A named segment outlives its coordinator, and disappears when it is dropped.
        assert any(name in segment for segment in shm())
        subprocess.run(["coprep", "drop", str(folder)], check=True, timeout=WAIT, capture_output=True)
        assert not any(name in segment for segment in shm())
    finally:
        for left in Path("/dev/shm").glob(f"coprep-*{name}*"):
            left.unlink()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a mount namespace")
def test_a_small_dev_shm_is_enough(pipeline: coprep.Pipeline, socket_path: Path) -> None:
    script = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    training = [sys.executable, "-c", TRAIN, str(pipeline.root), "16", "2", "0"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *training],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT * 2,
        # Each of these budgets alone exceeds the 64 MiB of the new /dev/shm.
        env={**os.environ, "COPREP_STAGING": "256M", "COPREP_CACHE": "256M"},
    )
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line)["seen"] for line in done.stdout.splitlines() if line != "ready"]
    assert [sorted(epoch) for epoch in epochs] == whole(2)


def test_nothing_is_left_when_all_is_over(pipeline: coprep.Pipeline, socket_path: Path) -> None:
    before = shm()
    with coprep.DataLoader(pipeline, batch_size=16, framework="numpy") as train:
        for _ in train:
            pass
        pid = coordinator_pid()
    coprep.stop()
    until(lambda: gone(pid), "the coordinator ends")
    assert list(socket_path.parent.iterdir()) == []
    assert shm() == before


def test_a_forked_child_is_told_that_a_loader_does_not_follow(pipeline: coprep.Pipeline) -> None:
    with coprep.DataLoader(pipeline, batch_size=16, framework="numpy", with_index=True) as train:
        batches = iter(train)
        next(batches)
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except RuntimeError:
                os._exit(7)
            finally:
                # The child must not go on as a second pytest, whatever it was given.
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(next(batches)[-1]) == 16


def test_doctor_finds_this_machine_fit(socket_path: Path) -> None:
    done = subprocess.run(["coprep", "doctor", "--json"], capture_output=True, text=True, timeout=WAIT)
    findings = json.loads(done.stdout)
    assert done.returncode == 0, findings
    assert {"shared memory", "memory", "kernel", "socket"} <= {f["check"] for f in findings}


def test_wrong_usage_is_told_from_failure(socket_path: Path) -> None:
    def code(*arguments: str) -> int:
        return subprocess.run(["coprep", *arguments], capture_output=True, timeout=WAIT).returncode

    assert code("frobnicate") == 2
    assert code("serve", "--cache", "plenty") == 2
    assert code("status") == 1
    assert code("warm", "/nonexistent") == 1
