"""A GPU that fails, a coordinator or a job that ends: one error or none, nothing hangs, and each sample comes once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from coordinators import coordinator_pid
from gpu_jobs import Driver, calls, fake_only
from jobs import Job
from waiting import kill, stop

EPOCHS = """
import json, sys, time
import gpu_seam
import coprep, torch

folder, epochs, wait = sys.argv[1], int(sys.argv[2]), sys.argv[3]
data = coprep.ImageFolder(folder).decode().resize((16, 16)).normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
options = dict(batch_size=20, shuffle=True, seed=5, with_index=True)
loader = coprep.DataLoader(data, device="cuda", dtype=torch.float16, **options)
state = sys.stdin.readline() if "resume" in sys.argv else ""
if state:
    loader.load_state_dict(json.loads(state))
raised = []
for epoch in range(epochs):
    seen, pixels = [], {}
    batches = iter(loader)
    while True:
        try:
            images, labels, ids = next(batches)
        except StopIteration:
            break
        except RuntimeError as error:
            raised.append(f"{type(error).__name__} {error}")
            # The second time it is the same error, if the GPU is lost.
            if len(raised) > 1:
                break
            continue
        if wait == "wait":
            gpu_seam.synchronize()
            pixels.update(zip(ids.tolist(), images.clone().cpu()))
        seen += ids.tolist()
        if wait == "step":
            print(json.dumps([loader.state_dict(), seen]), flush=True)
            sys.stdin.readline()
    print(json.dumps({"seen": seen, "raised": raised}), flush=True)
    if raised:
        break
if pixels:
    host = coprep.DataLoader(data, dtype=torch.float16, **options)
    for images, labels, ids in host:
        for image, id in zip(images, ids.tolist()):
            assert id not in pixels or torch.equal(image, pixels[id]), id
"""


def reports(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.result().splitlines()]


FUNCTIONS = [
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",
    "cuStreamCreate",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuDeviceGetAttribute",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuLaunchKernel",
]


@fake_only
@pytest.mark.parametrize("function", FUNCTIONS)
def test_whichever_call_fails_samples_come_once_or_there_is_an_error(
    folder: Path, socket_path: Path, tmp_path: Path, function: str
) -> None:
    for call in (1, 6):
        driver = Driver(tmp_path / f"driver{call}", f"fail={function}:999@{call}")
        (report,) = reports(driver.job(EPOCHS, folder, 1, "wait"))
        seen, raised = report["seen"], report["raised"]
        assert len(set(seen)) == len(seen)
        # A failure of opening passes, and the next call for a batch tries again.
        assert sorted(seen) == list(range(200)) or raised, report
        assert all("unknown error" in error for error in raised), raised


@fake_only
def test_at_whichever_call_it_fails_samples_come_once_or_there_is_an_error(
    folder: Path, socket_path: Path, tmp_path: Path
) -> None:
    for call in calls(range(10, 200, 32)):
        driver = Driver(tmp_path / f"driver{call}", f"fail=:999@{call}")
        (report,) = reports(driver.job(EPOCHS, folder, 1, "wait"))
        seen, raised = report["seen"], report["raised"]
        assert len(set(seen)) == len(seen), call
        assert sorted(seen) == list(range(200)) or raised, (call, report)


@fake_only
@pytest.mark.parametrize("function", ["cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuEventQuery"])
def test_a_gpu_that_fails_for_good_is_one_error(folder: Path, socket_path: Path, tmp_path: Path, function: str) -> None:
    driver = Driver(tmp_path / "driver", f"sticky={function}:700@5")
    (report,) = reports(driver.job(EPOCHS, folder, 1, "run"))
    first, second = report["raised"]
    assert first.startswith("CoprepError ") and "an illegal memory access was encountered" in first
    assert "start the process again" in second


@fake_only
@pytest.mark.parametrize("fault", ["hang=cuMemcpyHtoDAsync_v2@5", "stall=cuMemcpyHtoDAsync_v2@5"])
def test_a_gpu_that_hangs_is_an_error_after_five_seconds(
    folder: Path, socket_path: Path, tmp_path: Path, fault: str
) -> None:
    driver = Driver(tmp_path / "driver", fault)
    (report,) = reports(driver.job(EPOCHS, folder, 1, "run"))
    assert len(report["raised"]) == 2 and "GPU 0 does not get on with a batch: not done after 5" in report["raised"][0]


@fake_only
def test_memory_that_is_short_is_an_error_that_says_so(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "mem=40000")
    (report,) = reports(driver.job(EPOCHS, folder, 1, "run"))
    assert report["seen"] == []
    assert all("cannot allocate" in e and "out of memory" in e and "nvidia-smi" in e for e in report["raised"])


@fake_only
def test_without_the_kernels_pytorch_normalises(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "fail=cuModuleLoadData:222")
    job = driver.job(EPOCHS, folder, 1, "wait")
    out, err = job.process.communicate(timeout=60)
    assert job.process.returncode == 0, err
    assert sorted(json.loads(out)["seen"]) == list(range(200))
    assert err.count("RuntimeWarning: images are normalised by PyTorch's operations") == 1
    assert "unsupported toolchain" in err


@fake_only
def test_a_job_that_dies_in_any_call_harms_nobody(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    # Its neighbour shares the stream, and its successors share it again.
    neighbour = Driver(tmp_path / "driver").job(EPOCHS, folder, 3, "wait")
    for call in calls(range(10, 170, 20)):
        dying = Driver(tmp_path / f"driver{call}", f"die=@{call}").job(EPOCHS, folder, 1, "run")
        code, error = dying.ended()
        assert code == 66, error
    assert [sorted(report["seen"]) for report in reports(neighbour)] == [list(range(200))] * 3


def test_a_killed_job_goes_on_from_its_state(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    job = Driver(tmp_path / "driver").job(EPOCHS, folder, 1, "step")
    for _ in range(4):
        line = job.line()
        job.say("")
    job.kill()
    state, given = json.loads(line)
    again = Driver(tmp_path / "driver2").job(EPOCHS, folder, 1, "run", "resume")
    again.say(json.dumps(state))
    (report,) = reports(again)
    assert len(given) == 80 and sorted(given + report["seen"]) == list(range(200))


def test_batches_come_once_though_the_coordinator_is_killed(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "delay_us=2000")
    job = driver.job(EPOCHS, folder, 2, "step")
    steps = 0
    lines = []
    while not (line := job.line()).startswith('{"seen"') or len(lines) == 0:
        if line.startswith('{"seen"'):
            lines.append(json.loads(line))
            continue
        steps += 1
        if steps in (3, 13):
            kill(coordinator_pid())
        job.say("")
    lines.append(json.loads(line))
    assert job.ended()[0] == 0
    assert [sorted(report["seen"]) for report in lines] == [list(range(200))] * 2
    assert all(report["raised"] == [] for report in lines)


LEAVE = """
import os, sys, time
import gpu_seam
import coprep

data = coprep.ImageFolder(sys.argv[1]).decode().resize((16, 16)).normalize((0, 0, 0), (1, 1, 1))
loader = coprep.DataLoader(data, batch_size=20, shuffle=True, device="cuda", with_index=True)
kept = []
for epoch in range(4):
    seen = []
    for images, labels, ids in loader:
        gpu_seam.synchronize()
        kept.append((images, images.clone()))
        seen += ids.tolist()
        if epoch % 2 == 0 and len(seen) == 60:
            break
    print(len(set(seen)), flush=True)
loader.close()
# The threads that upload end by themselves, soon after their loader is closed.
def uploads():
    try:
        names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    except OSError:
        return True  # a thread ended meanwhile
    return "coprep-upload" in names
end = time.monotonic() + 20
while uploads():
    assert time.monotonic() < end, "a thread is left"
    time.sleep(0.01)
assert all((image == copy).all() for image, copy in kept)
second = coprep.DataLoader(data, batch_size=20, device="cuda")
batches = iter(second)
next(batches)
# The process ends with a batch on its way.
"""


def test_a_pass_may_be_left_and_batches_stay_valid(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "delay_us=5000")
    assert driver.job(LEAVE, folder).result().split() == ["60", "200", "60", "200"]


@fake_only
def test_what_was_begun_is_released_when_a_process_ends(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "delay_us=5000")
    driver.job(LEAVE, folder).result()
    calls = driver.calls()
    pairs = [
        ("cuMemHostRegister_v2", "cuMemHostUnregister"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuModuleLoadData", "cuModuleUnload"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
    ]
    assert [(begin, calls[begin]) for begin, _ in pairs] == [(begin, calls[end]) for begin, end in pairs]


def test_a_stopped_job_holds_up_nobody(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    stopped = Driver(tmp_path / "driver").job(EPOCHS, folder, 1, "step")
    stopped.line()
    stop(stopped.process.pid)
    try:
        (report,) = reports(Driver(tmp_path / "driver2").job(EPOCHS, folder, 1, "wait"))
        assert sorted(report["seen"]) == list(range(200))
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)
        stopped.kill()
