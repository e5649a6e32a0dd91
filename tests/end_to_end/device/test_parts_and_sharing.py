"""Batches of any size, jobs that share a stream whatever their images become, and datasets in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_jobs import Driver, fake_only

PARTS = """
import json, sys
import gpu_seam
import coprep, torch

folder, sizes = sys.argv[1], json.loads(sys.argv[2])
data = coprep.ImageFolder(folder).decode().resize((24, 24))
mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The first job decides how many samples a staging buffer has.
first = coprep.DataLoader(data, batch_size=16, shuffle=True, seed=3, with_index=True)
len(first)
normalised = data.normalize(mean, std)
loaders = [
    coprep.DataLoader(
        normalised, batch_size=size, shuffle=True, seed=3, with_index=True, device="cuda:0", drop_last=size == 60,
        dtype=torch.bfloat16 if i % 2 else torch.float32, memory_format=torch.channels_last if i % 2 else None,
    )
    for i, size in enumerate(sizes)
]
def expected(images):
    scale = lambda numbers: torch.tensor(numbers).view(3, 1, 1)
    return (images.float() / 255 - scale(mean)) / scale(std)

plain = {}
for images, labels, ids in first:
    plain.update(zip(ids.tolist(), images.clone()))
for loader, size in zip(loaders, sizes):
    lengths, seen = [], []
    for images, labels, ids in loader:
        gpu_seam.synchronize()
        lengths.append(len(ids))
        for image, id in zip(images.cpu(), ids.tolist()):
            assert torch.equal(image, expected(plain[id]).to(image.dtype)), (size, id)
        seen += ids.tolist()
    assert len(set(seen)) == len(seen) == sum(lengths)
    print(json.dumps([len(seen), lengths[0], lengths[-1], len(coprep.status()["streams"])]), flush=True)
"""


def test_batches_of_any_size_straddle_staging_buffers(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver")
    report = driver.job(PARTS, folder, "[7, 16, 60, 50, 200]").result().splitlines()
    # Samples of the epoch, the first and the last batch, and streams: all jobs share one, whatever their images become.
    assert report == ["[200, 7, 4, 1]", "[200, 16, 8, 1]", "[180, 60, 60, 1]", "[200, 50, 50, 1]", "[200, 200, 200, 1]"]


DATASET = """
import sys
import gpu_seam
import coprep, numpy as np, torch
from typing import NamedTuple

class Sample(NamedTuple):
    picture: object
    half: object
    yes: bool
    number: int
    nothing: object

class Pictures:
    def __len__(self):
        return 50
    def __getitem__(self, i):
        sample = {"a": np.full((3, 5), i / 7, np.float64), "b": Sample(
            torch.full((4,), i, dtype=torch.int16), torch.full((2, 2), i / 3, dtype=torch.bfloat16), i % 2 == 0, i,
            np.empty((0, 2), np.float32))}
        if kind == "text":
            sample["text"] = f"sample {i}"
        return sample

def collate(samples):
    return [s["a"] for s in samples][0], {"a": torch.stack([torch.from_numpy(s["a"]) for s in samples])}, "text"

kind = sys.argv[1]
options = dict(batch_size=8, with_index=True, seed=1, num_workers=0 if kind == "in job" else 2)
options["collate_fn"] = collate if kind == "collate" else None

def flat(part):
    if isinstance(part, dict):
        return [x for value in part.values() for x in flat(value)]
    if isinstance(part, (list, tuple)):
        return [x for value in part for x in flat(value)]
    return [part]

host = coprep.DataLoader(Pictures(), **options)
with coprep.DataLoader(Pictures(), device="cuda", **options) as device, host:
    for ours, theirs in zip(device, host, strict=True):
        gpu_seam.synchronize()
        assert ours[1].device.type == "cpu" and ours[1].tolist() == theirs[1].tolist()
        assert type(ours[0]) is type(theirs[0])
        for a, b in zip(flat(ours[0]), flat(theirs[0]), strict=True):
            if isinstance(b, torch.Tensor):
                assert gpu_seam.gpu_of(a) == 0 or not a.numel()
                assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.cpu(), b), (a, b)
            else:
                assert type(a) is type(b) and (a == b if isinstance(b, str) else (a == b).all())
    print(device.stats()["uploads"])
"""


@pytest.mark.parametrize("kind", ["numbers", "text", "collate", "in job"])
def test_parts_of_python_samples_lie_on_the_gpu(socket_path: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("cloudpickle")
    uploads = Driver(tmp_path / "driver").job(DATASET, kind).result()
    # Batches of one stream may have several parts. Text, and results of functions, are collated on the host.
    assert int(uploads) >= 7 if kind == "numbers" else uploads == "0"


UNEVEN = """
import gpu_seam
import coprep, torch
from torch.utils.data._utils.collate import default_collate_fn_map

class Uneven:
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return torch.full((2 + (i > 11),), float(i))

def given(**options):
    with coprep.DataLoader(Uneven(), batch_size=4, num_workers=2, device="cuda", **options) as loader:
        batches = iter(loader)
        while True:
            try:
                batch = next(batches, None)
            except ValueError as error:
                yield str(error)
                return
            if batch is None:
                return
            gpu_seam.synchronize()
            assert gpu_seam.gpu_of(batch) == 0
            yield [int(row[0]) for row in batch.cpu()]

in_order = [list(range(first, first + 4)) for first in range(0, 24, 4)]
*even, error = given()
assert even == in_order[:3], even
assert error.startswith("sample 12 has another structure") and "collate_fn=" in error, error
assert list(given(collate_fn=torch.utils.data.default_collate)) == in_order
own = default_collate_fn_map[torch.Tensor]
default_collate_fn_map[torch.Tensor] = lambda batch, **options: own(batch[::-1], **options)
assert list(given()) == [batch[::-1] for batch in in_order]
"""


def test_a_sample_unlike_the_first_is_an_error_that_names_the_remedy(socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    Driver(tmp_path / "driver").job(UNEVEN).result()


UNSHARED = """
import gpu_seam
import coprep, torch, warnings

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))

warnings.simplefilter("ignore")
for batch in coprep.DataLoader(Stream(), batch_size=5, device=torch.device("cuda"), pin_memory=not gpu_seam.REAL):
    assert gpu_seam.gpu_of(batch) == 0
    print(batch.tolist())
"""


def test_a_loader_that_shares_nothing_moves_its_batches(socket_path: Path, tmp_path: Path) -> None:
    printed = Driver(tmp_path / "driver").job(UNSHARED).result().splitlines()
    assert printed == ["[0.0, 1.0, 2.0, 3.0, 4.0]", "[5.0, 6.0, 7.0, 8.0, 9.0]"]


TWO = """
import sys
import gpu_seam
import coprep

data = coprep.ImageFolder(sys.argv[1]).decode().resize((16, 16)).normalize((0, 0, 0), (1, 1, 1))
loaders = [coprep.DataLoader(data, batch_size=50, device=f"cuda:{gpu}") for gpu in (0, 1)]
for batches in zip(*loaders, strict=True):
    for gpu, (images, labels) in enumerate(batches):
        gpu_seam.synchronize(gpu)
        assert gpu_seam.gpu_of(images) == gpu_seam.gpu_of(labels) == gpu
        assert 0 <= images.min() < images.max() <= 1
print(repr(loaders[1]))
"""


@fake_only
def test_two_loaders_use_two_gpus(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "devices=2")
    assert "on cuda:1" in driver.job(TWO, folder).result()
    assert driver.calls()["cuModuleLoadData"] == 2
