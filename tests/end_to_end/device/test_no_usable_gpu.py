"""A GPU that cannot be used is an error when the loader is made, with a remedy, and never a batch on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_jobs import REAL, Driver, fake_driver, fake_only

MAKE = """
import sys
import gpu_seam
import coprep, torch

exec(sys.argv[2])
try:
    coprep.DataLoader(coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8)), batch_size=4, device=sys.argv[3])
except Exception as error:
    print(type(error).__mro__[-4 if isinstance(error, RuntimeError) else 0].__name__, error)
else:
    print("made")
"""

WAYS = {
    "no GPU": ("devices=0", "", "cuda", "check that nvidia-smi shows a GPU"),
    "a stub": ("fail=cuInit:34", "", "cuda", "take its folder (.../stubs) out of LD_LIBRARY_PATH"),
    "another kernel module": ("fail=cuInit:803", "", "cuda", "restart the machine after an update of the driver"),
    "no such GPU": ("devices=2", "", "cuda:2", "nvidia-smi -L"),
    "an old driver": (
        "version=12040",
        "",
        "cuda",
        "supports CUDA 12.4, and this PyTorch needs 13.0: update the driver",
    ),
    "a driver that dies": ("die=cuInit", "", "cuda", "run `coprep doctor`"),
    "PyTorch without CUDA": ("", "torch.version.cuda = None", "cuda", "install one for CUDA"),
    "no PyTorch": ("", "sys.modules['torch'] = None", "cuda", "install PyTorch with CUDA"),
}


@fake_only
@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_one_error_with_a_remedy(folder: Path, socket_path: Path, tmp_path: Path, way: str) -> None:
    settings, before, device, remedy = WAYS[way]
    driver = Driver(tmp_path / "driver", settings)
    text = driver.job(MAKE, folder, before, device).result()
    assert text.startswith("RuntimeError ") and remedy in text and "\n" not in text, text


@fake_only
def test_no_driver_and_a_driver_that_lacks_a_function(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    library = fake_driver().read_bytes()
    for text, remedy in [(b"no library", "start the container with --gpus all"), (b"", "lacks cuMemHostRegister_v2")]:
        driver = Driver(tmp_path / f"driver{len(text)}")
        for name in ("libcuda.so", "libcuda.so.1"):
            (driver.folder / name).unlink()
            lacking = library.replace(b"\0cuMemHostRegister_v2\0", b"\0xuMemHostRegister_v2\0")
            (driver.folder / name).write_bytes(text or lacking)
        told = driver.new_interpreter(MAKE, folder, "", "cuda").result()
        assert told.startswith("RuntimeError ") and remedy in told, told


@pytest.mark.parametrize(
    ("device", "error"),
    [("mps", "ValueError"), ("cuda:one", "ValueError"), ("cpu", "made")],
)
def test_devices_that_are_none(folder: Path, socket_path: Path, tmp_path: Path, device: str, error: str) -> None:
    assert Driver(tmp_path / "driver").job(MAKE, folder, "", device).result().startswith(error)


WITHOUT = """
import sys
import coprep
from coordinators import threads

data = coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8)).normalize((0, 0, 0), (1, 1, 1))
with coprep.DataLoader(data, batch_size=50) as loader:
    assert len(list(loader)) == 4
    assert "coprep-upload" not in threads() and coprep.status()["gpus"] == []
    print(loader.stats()["uploads"])
"""


@fake_only
def test_a_loader_without_device_makes_no_call_of_the_driver(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver")
    assert driver.job(WITHOUT, folder).result() == "0"
    assert not driver.trace.exists()


ARGUMENTS = """
import sys
import gpu_seam
import coprep, torch

data = coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8))
normalised = data.normalize((0, 0, 0), (1, 1, 1))
for pipeline, options in [
    (data, dict(device=3)),
    (data, dict(device="cuda", framework="numpy")),
    (data, dict(dtype=torch.float16)),
    (data, dict(dtype=torch.int32)),
    (normalised, dict(dtype="uint8")),
    (normalised, dict(dtype=torch.float16, framework="numpy")),
    (normalised, dict(memory_format=torch.preserve_format)),
    ([1, 2], dict(dtype=torch.float32)),
]:
    try:
        coprep.DataLoader(pipeline, **options)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
"""


def test_arguments_that_do_not_fit_are_refused_with_a_remedy(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    told = Driver(tmp_path / "driver").job(ARGUMENTS, folder).result().splitlines()
    remedies = [
        "TypeError device must be a text such as 'cuda:0', or a torch.device",
        "leave out framework='numpy', or leave out device",
        "dtype=float16 needs normalize",
        "dtype must be one of torch.float32, torch.float16, torch.bfloat16, torch.uint8",
        "dtype=uint8 is for pipelines without normalize",
        "dtype is for tensors of PyTorch",
        "memory_format must be one of torch.contiguous_format, torch.channels_last",
        "TypeError dtype is for native pipelines",
    ]
    assert len(told) == len(remedies)
    for text, remedy in zip(told, remedies, strict=True):
        assert remedy in text


FORK = """
import os, sys
import gpu_seam
import coprep, torch

def epoch(loader):
    for images, labels in loader:
        gpu_seam.synchronize()
        assert gpu_seam.gpu_of(images) == 0
    return "done"

def in_child(function):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            os.write(write, str(function()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__} {error}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        print(pipe.read(), flush=True)
    os.wait()

data = coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8))
make = lambda: coprep.DataLoader(data, batch_size=50, device="cuda")
loader = make()
# The loader is made, and CUDA has not begun: a child may use it, with a loader of its own or with this one.
in_child(lambda: epoch(make()))
in_child(lambda: epoch(loader))
batches = iter(loader)
next(batches)
in_child(lambda: next(batches))
print(epoch(loader))
"""


def test_a_process_may_fork_until_the_first_batch(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    told = Driver(tmp_path / "driver").job(FORK, folder).result().splitlines()
    assert told[:2] == ["done", "done"] and told[3] == "done"
    assert "which forked this one" in told[2]


CAPTURE = """
import sys
import gpu_seam
import coprep, torch

data = coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8))
loader = coprep.DataLoader(data, batch_size=50, device="cuda", with_index=True)
batches = iter(loader)
seen = []
if gpu_seam.REAL:
    seen += next(batches)[2].tolist()
    graph = torch.cuda.CUDAGraph()
    capture = torch.cuda.graph(graph)
    capture.__enter__()
try:
    next(batches)
except RuntimeError as error:
    print(error)
if gpu_seam.REAL:
    torch.zeros(1, device="cuda")
    capture.__exit__(None, None, None)
    for batch in batches:
        seen += batch[2].tolist()
    assert sorted(seen) == list(range(200))
"""


def test_a_stream_that_is_being_captured_is_refused(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "capture=1")
    (told,) = driver.job(CAPTURE, folder).result().splitlines()
    assert "the current stream is being captured into a CUDA graph" in told and "before the capture begins" in told
    assert REAL or driver.calls()["cuMemcpyHtoDAsync_v2"] <= 1
