"""Batches on a GPU for frameworks other than PyTorch: arrays that are taken over through DLPack."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_jobs import REAL, Driver, fake_only
from sharing_jobs import Serve

BITS = """
import sys
import gpu_seam
import coprep, numpy as np, torch
from dlpack_consumer import Taken

data = coprep.ImageFolder(sys.argv[1]).decode().resize((15, 15))
normalised = data.normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
options = dict(batch_size=32, shuffle=True, seed=7, with_index=True)
FORMS = [
    (None, None), ("float32", None), ("float32", "channels_last"), ("float16", None), ("bfloat16", "channels_last"),
]

def on_host(array):
    # A copy of an array's elements, which the default stream waits for.
    if gpu_seam.REAL:
        return torch.from_dlpack(array).cpu()
    taken = Taken(array.__dlpack__(stream=1, max_version=(1, 0)))
    gpu_seam.synchronize()
    bits = taken.bits()
    taken.delete()
    # NumPy has no bfloat16, and PyTorch takes no unsigned integers of its size.
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) if taken.is_bfloat else torch.from_numpy(bits)

for dtype, layout in FORMS:
    form = dict(dtype=dtype, memory_format=layout)
    pipeline = data if dtype is None else normalised
    host = coprep.DataLoader(pipeline, **options, **form)
    with coprep.DataLoader(pipeline, device="cuda", framework="dlpack", **options, **form) as device, host:
        compared = 0
        theirs = {}
        for images, labels, ids in host:
            theirs.update(zip(ids.tolist(), zip(images.clone(), labels.tolist())))
        for images, labels, ids in device:
            assert type(ids) is np.ndarray and images.shape == (len(ids), 3, 15, 15) and labels.dtype == "int64"
            assert images.dtype == (dtype or "uint8") and images.__dlpack_device__() == (2, 0)
            for image, label, id in zip(on_host(images), on_host(labels).tolist(), ids.tolist(), strict=True):
                assert torch.equal(image, theirs[id][0]) and label == theirs[id][1], (dtype, layout, id)
                compared += 1
        print(compared)
"""


def test_arrays_have_the_bits_of_the_host(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "" if REAL else "delay_us=2000")
    assert driver.job(BITS, folder).result().split() == ["200"] * 5


RULES = """
import gc, os, sys, time
import gpu_seam
import coprep, numpy as np
from coordinators import threads
from dlpack_consumer import Taken

def freed():
    trace = os.environ["FAKE_CUDA"].split("trace=")[1]
    return sum(line.split()[1:] == ["cuMemFree_v2", "0"] for line in open(trace))

def waits():
    trace = os.environ["FAKE_CUDA"].split("trace=")[1]
    return sum(line.split()[1] == "cuStreamWaitEvent" for line in open(trace))

def refused(**arguments):
    try:
        array.__dlpack__(**arguments)
    except (BufferError, ValueError) as error:
        return type(error).__name__
    return "given"

data = coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8))
loader = coprep.DataLoader(data, batch_size=50, device="cuda:0", framework="dlpack", with_index=True)
batches = iter(loader)
array, labels, ids = next(batches)
assert array.__dlpack_device__() == (2, 0) and "uint8[50, 3, 8, 8] on cuda:0" in repr(array), array

# The stream of the consumer waits until the array is filled, wherever its work goes. The GPU is slow.
first = None
for stream in (None, 1, 2, gpu_seam.new_stream(), -1):
    before = waits()
    taken = Taken(array.__dlpack__(stream=stream))
    assert waits() - before == (stream != -1), stream
    if stream != -1:
        gpu_seam.synchronize(0, stream or 0)
        bits = taken.bits()
        first = bits if first is None else first
        assert np.array_equal(bits, first) and bits.max() > bits.min()
    taken.delete()
print(*[refused(stream=stream) for stream in (0, -2)])

# The oldest version that is asked for; the device; copies.
versions = [array.__dlpack__(max_version=version) for version in (None, (0, 8), (1, 0), (1, 3), (2, 0))]
took = [Taken(capsule) for capsule in versions]
print(*[int(one.is_versioned) for one in took])
for one in took:
    one.delete()
print(*[refused(**a) for a in (dict(dl_device=(2, 0)), dict(dl_device=(1, 0)), dict(copy=True), dict(copy=False))])

# A capsule that nobody takes over gives its share back, and so does a consumer, once. Memory goes with the last.
before = freed()
capsule = array.__dlpack__()
del capsule
taken = Taken(array.__dlpack__())
again = Taken(array.__dlpack__())
print(freed() - before)
del array
gc.collect()
again.delete()
print(freed() - before)
gpu_seam.synchronize()
kept = taken.bits()
# It outlives its loader, whose thread frees its own memory when it ends.
del batches
loader.close()
del loader
gc.collect()
end = time.monotonic() + 20
while "coprep-upload" in threads():
    assert time.monotonic() < end
    time.sleep(0.01)
after_loader = freed()
assert np.array_equal(taken.bits(), kept) and np.array_equal(kept, first)
taken.delete()
print(freed() - after_loader)
del labels
gc.collect()
print(freed() - after_loader > 1)
"""


@fake_only
def test_consumers_get_what_dlpack_says_and_memory_is_freed_once(
    folder: Path, socket_path: Path, tmp_path: Path
) -> None:
    driver = Driver(tmp_path / "driver", "delay_us=3000")
    told = driver.job(RULES, folder).result().splitlines()
    assert told == [
        "ValueError ValueError",
        "0 0 1 1 1",
        "given BufferError BufferError given",
        "0",
        "0",
        "1",
        "True",
    ]


PYTHON_DATASET = """
import sys
import coprep, numpy as np

class Rows:
    def __len__(self):
        return 20
    def __getitem__(self, i):
        row = {"x": np.full((3, 5), i, np.float32), "y": i, "is_even": i % 2 == 0}
        return row | {"text": "words"} if kind == "text" else row

kind = sys.argv[1]
options = dict(batch_size=8, device="cuda", framework="dlpack", with_index=True)
if kind == "collate":
    options["collate_fn"] = list
elif kind == "in job":
    options["num_workers"] = 0
# PyTorch is not needed.
sys.modules["torch"] = None
try:
    with coprep.DataLoader(Rows(), **options) as loader:
        for batch, ids in loader:
            print(*[f"{name} {part.dtype}{list(part.shape)}" for name, part in batch.items()], type(ids).__name__)
except TypeError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["numbers", "text", "collate", "in job"])
def test_parts_of_python_samples_are_arrays_too(socket_path: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("cloudpickle")
    told = Driver(tmp_path / "driver").job(PYTHON_DATASET, kind).result().splitlines()
    if kind == "numbers":
        assert told[0] == "x float32[8, 3, 5] y int64[8] is_even bool[8] ndarray"
        assert told[2] == "x float32[4, 3, 5] y int64[4] is_even bool[4] ndarray" and len(told) == 3
    else:
        (error,) = told
        assert "framework='dlpack' gives none of these" in error


REFUSED = """
import sys
import coprep

data = coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8))
for options in [dict(), dict(device="cpu"), dict(device="mps"), dict(device="cuda", memory_format="channels_last")]:
    try:
        coprep.DataLoader(data, framework="dlpack", **options)
    except ValueError as error:
        print(error)
loader = coprep.DataLoader(data.normalize((0, 0, 0), (1, 1, 1)), device="cuda", framework="dlpack")
try:
    next(iter(loader))
except RuntimeError as error:
    print(error)
"""


@fake_only
def test_what_cannot_be_is_refused_with_a_remedy(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "fail=cuModuleLoadData:222")
    told = driver.job(REFUSED, folder).result().splitlines()
    remedies = [
        "add device='cuda'",
        "add device='cuda'",
        "or on a GPU of NVIDIA",
        "needs normalize",
        "Leave out normalize",
    ]
    assert len(told) == len(remedies)
    for text, remedy in zip(told, remedies, strict=True):
        assert remedy in text


SHARED = """
import sys, time
import gpu_seam
import coprep
from dlpack_consumer import Taken

data = coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8))
options = dict(batch_size=20, shuffle=True, seed=1, framework="dlpack", uploads="shared", with_index=True)
end = time.monotonic() + 60
with coprep.DataLoader(data, device="cuda", **options) as loader:
    for epoch in range(4):
        seen = []
        for images, labels, ids in loader:
            seen += ids.tolist()
            while not epoch and not any(gpu["rings"] for gpu in coprep.status()["gpus"]):
                assert time.monotonic() < end
                time.sleep(0.01)
        assert sorted(seen) == list(range(200))
    print(loader.stats()["shared_uploads"])
"""


def test_jobs_that_get_arrays_share_uploads(serve: Serve, folder: Path, tmp_path: Path) -> None:
    serve()
    jobs = [Driver(tmp_path / f"arrays{number}").job(SHARED, folder) for number in range(2)]
    assert all(int(started.result()) > 0 for started in jobs)
