"""Batches on a GPU have the bits of batches on the host, in every type and order, and each is uploaded once."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_jobs import REAL, Driver, fake_only

IMAGES = """
import sys
import gpu_seam
import coprep, torch

folder, side, batch_size, name, layout = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:6]
data = coprep.ImageFolder(folder).decode()
# Loaders with equal pipelines share a stream. One that comes later gets other crops.
data = data.resize((side, side)) if name == "uint8" else data.random_resized_crop(side).random_horizontal_flip()
form = {} if layout == "default" else {"memory_format": getattr(torch, layout)}
if name != "uint8":
    data = data.normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    form["dtype"] = getattr(torch, name)
options = dict(batch_size=batch_size, shuffle=True, seed=7, with_index=True)
compared = 0

def note(found, batch, loader):
    # Adds the samples of a batch by their ids, which are on the host, and checks its form.
    images, labels, ids = batch
    assert ids.device.type == "cpu" and images.dtype == getattr(torch, name), (ids.device, images.dtype)
    if loader is device:
        assert gpu_seam.gpu_of(labels) == 0 and images.device == labels.device
        gpu_seam.synchronize()
    if layout == "channels_last":
        assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.shape[0] == len(labels) == len(ids)
    bits = images.cpu().contiguous().flatten(1).view(torch.uint8)
    found.update(zip(ids.tolist(), zip(labels.tolist(), bits)))

host = coprep.DataLoader(data, **options, **form)
with coprep.DataLoader(data, device="cuda", **options, **form) as device, host:
    for epoch in range(2):
        ours, theirs = {}, {}
        # In turn: from a job that does not read, the coordinator may take back what is uploaded ahead.
        for batch, other in zip(device, host, strict=True):
            note(ours, batch, device)
            note(theirs, other, host)
        assert sorted(ours) == sorted(theirs) == list(range(200)), epoch
        for id, (label, bits) in ours.items():
            assert label == theirs[id][0] and torch.equal(bits, theirs[id][1]), (epoch, id)
            compared += 1
    print(compared, device.stats()["uploads"], device.stats()["uploaded_bytes"], device.stats().get("not_pinned"))
"""

AHEAD = 2
"""Batches that are uploaded before they are wanted."""
SAMPLE = 3 * 32 * 32 + 8
"""Bytes of a sample: an image of three planes of bytes, and a label of 64 bits."""
FORMS = [
    ("uint8", "default"),
    ("uint8", "channels_last"),
    ("float32", "default"),
    ("float32", "contiguous_format"),
    ("float32", "channels_last"),
    ("float16", "default"),
    ("float16", "channels_last"),
    ("bfloat16", "default"),
    ("bfloat16", "channels_last"),
]


@pytest.mark.parametrize(("dtype", "layout"), FORMS)
def test_images_have_the_bits_of_the_host(
    folder: Path, socket_path: Path, tmp_path: Path, dtype: str, layout: str
) -> None:
    driver = Driver(tmp_path / "driver")
    # 200 images in batches of 32: the last one is short.
    samples, uploads, uploaded, not_pinned = driver.job(IMAGES, folder, 32, 32, dtype, layout).result().split()
    assert (int(samples), not_pinned) == (400, "None")
    # Each batch is uploaded once, and at the end two of the next epoch are there already.
    assert 14 <= int(uploads) <= 14 + AHEAD
    assert 400 * SAMPLE <= int(uploaded) <= (400 + 32 * AHEAD) * SAMPLE
    if not REAL:
        assert driver.calls()["cuMemHostRegister_v2"] == 1
        assert "pageable" not in driver.answers("cuMemcpyHtoDAsync_v2")


LEFT = """
import itertools, sys
import gpu_seam
import coprep, torch

data = coprep.ImageFolder(sys.argv[1]).decode().resize((32, 32))
options = dict(batch_size=8, shuffle=True, seed=7, with_index=True)

def samples(batches, wait=lambda: None):
    found = {}
    for images, _, ids in batches:
        wait()
        found.update(zip(ids.tolist(), images.cpu()))
    return found

with coprep.DataLoader(data, **options) as host:
    expected = samples(host)
with coprep.DataLoader(data, device="cuda", **options) as device:
    for leaves in (3, 1, 20, 24, None, 2, None):
        found = samples(itertools.islice(device, leaves), gpu_seam.synchronize)
        assert len(found) == (200 if leaves is None else 8 * leaves), (leaves, len(found))
        assert all(torch.equal(image, expected[i]) for i, image in found.items()), leaves
    print(device.stats()["uploads"])
"""


def test_an_epoch_that_was_left_is_continued(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    uploads = Driver(tmp_path / "driver").job(LEFT, folder).result()
    # 100 batches are taken. At each of five breaks, those that were uploaded ahead are uploaded once more, or twice if
    # the thread is faster than the coordinator, which takes some back.
    assert 100 <= int(uploads) <= 100 + (2 * 5 + 1) * AHEAD


@pytest.mark.parametrize("side", [33, 31])
def test_images_of_any_size(folder: Path, socket_path: Path, tmp_path: Path, side: int) -> None:
    driver = Driver(tmp_path / "driver")
    assert driver.job(IMAGES, folder, side, 7, "bfloat16", "channels_last").result().startswith("400 ")


@fake_only
def test_nothing_reads_what_a_slow_gpu_has_not_written(folder: Path, socket_path: Path, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver", "delay_us=20000")
    assert driver.job(IMAGES, folder, 32, 32, "float16", "default").result().startswith("400 ")


@fake_only
def test_where_memory_cannot_be_pinned_batches_go_through_buffers(
    folder: Path, socket_path: Path, tmp_path: Path
) -> None:
    driver = Driver(tmp_path / "driver", "readonly=0;delay_us=2000")
    result = driver.job(IMAGES, folder, 32, 32, "float32", "default").result()
    assert result.startswith("400 ") and "it does not copy from memory that is pinned for reading only" in result
    assert driver.calls()["cuMemHostRegister_v2"] == 0
    assert "pageable" not in driver.answers("cuMemcpyHtoDAsync_v2")
