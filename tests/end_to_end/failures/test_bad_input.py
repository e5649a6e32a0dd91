"""Tests bad input: one clear error names the sample, the place and the remedy, or the sample is skipped on request."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from batches import ids
from coordinators import coordinator_at
from image_jobs import N
from jobs import Start
from photos import make_folder, photo
from PIL import Image


def truncated(path: Path) -> None:
    photo(1, 300, 300).save(path, "JPEG", quality=95)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def huge(path: Path) -> None:
    # This is a real PNG of 20,000 x 20,000 pixels, with one bit each.
    Image.new("1", (20_000, 20_000)).save(path, "PNG")


BAD = {
    "truncated": truncated,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("this is no image"),
    "huge": huge,
    "missing": lambda path: None,
}
REMEDY = {"truncated": "skip", "empty": "skip", "text": "skip", "huge": "max_pixels", "missing": "skip"}


@pytest.fixture
def spoilt(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[coprep.Pipeline, Path, str]:
    """Returns 40 samples with a bad one at number 17, the bad file, and the kind of damage."""
    make_folder(tmp_path / "photos", 40, classes=1)
    files = sorted((tmp_path / "photos").rglob("*.jpg"))
    kind = request.param
    files[17].unlink()
    BAD[kind](files[17])
    return coprep.Files(files).decode().random_resized_crop(32), files[17], kind


@pytest.mark.parametrize("spoilt", BAD, indirect=True)
def test_a_bad_sample_is_one_clear_error(socket_path: Path, spoilt: tuple[coprep.Pipeline, Path, str]) -> None:
    pipeline, path, kind = spoilt
    train = coprep.DataLoader(pipeline, batch_size=8, framework="numpy", with_index=True)
    with train, pytest.raises(coprep.SampleError) as caught:
        list(train)
    error = caught.value
    assert error.id == 17 and error.path == str(path)
    assert "17" in str(error) and str(path) in str(error) and REMEDY[kind] in str(error)


@pytest.mark.parametrize("spoilt", BAD, indirect=True)
def test_a_bad_sample_is_skipped_if_asked(socket_path: Path, spoilt: tuple[coprep.Pipeline, Path, str]) -> None:
    pipeline, _, _ = spoilt
    with coprep.DataLoader(
        pipeline, batch_size=8, shuffle=True, on_error="skip", framework="numpy", with_index=True
    ) as train:
        for _ in range(3):
            assert sorted(ids(train)) == [i for i in range(40) if i != 17]
        (stream,) = coprep.status()["streams"]
        assert stream["jobs"][0]["skipped"] == train.stats()["skipped"] == 1


@pytest.mark.parametrize("cache", ["off", "encoded", "decoded"])
def test_a_bad_sample_is_skipped_with_any_cache(socket_path: Path, tmp_path: Path, cache: str) -> None:
    folder = make_folder(tmp_path / "photos", 40)
    next(folder.rglob("*.jpg")).write_bytes(b"no")
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    with coprep.DataLoader(
        data, batch_size=8, cache=cache, on_error="skip", framework="numpy", with_index=True
    ) as train:
        assert [len(ids(train)) for _ in range(3)] == [39] * 3


def test_a_job_that_catches_the_error_gets_the_rest(socket_path: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", 40, classes=1)
    sorted(folder.rglob("*.jpg"))[5].write_bytes(b"no")
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    with coprep.DataLoader(data, batch_size=8, framework="numpy", with_index=True) as train:
        seen, errors, batches = [], 0, iter(train)
        while True:
            try:
                seen += next(batches)[-1].tolist()
            except coprep.SampleError:
                errors += 1
            except StopIteration:
                break
    assert (sorted(seen), errors) == ([i for i in range(40) if i != 5], 1)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_all_samples_bad_is_an_error_not_a_hang(socket_path: Path, tmp_path: Path, on_error: str) -> None:
    folder = make_folder(tmp_path / "photos", 20)
    for file in folder.rglob("*.jpg"):
        file.write_bytes(b"no")
    data = coprep.ImageFolder(folder).decode().random_resized_crop(32)
    with coprep.DataLoader(data, batch_size=8, on_error=on_error, framework="numpy", timeout=20) as train:
        for _ in range(3):
            with pytest.raises(coprep.SampleError, match="not a known image format"):
                list(train)


class FailsFrom:
    """A dataset whose samples fail from some moment on."""

    fails = False

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        if self.fails:
            raise ValueError(f"no sample {i}")
        return i


@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_samples_of_a_dataset_bad_is_its_error(socket_path: Path, num_workers: int) -> None:
    data = FailsFrom()
    options: dict[str, Any] = {"on_error": "skip", "framework": "numpy", "num_workers": num_workers, "timeout": 20}
    with coprep.DataLoader(data, batch_size=4, **options) as train:
        assert sum(len(batch) for batch in train) == 8
        data.fails = True
        for _ in range(2):
            with pytest.raises(ValueError, match="no sample"):
                list(train)


def test_a_pixel_and_colour_modes(socket_path: Path, tmp_path: Path) -> None:
    modes = {"1x1.png": Image.new("RGB", (1, 1), (10, 20, 30))}
    modes |= {f"{m}.png": photo(1, 64, 64).convert(m) for m in ("L", "LA", "RGBA", "P", "1")}
    modes |= {f"{m}.jpg": photo(1, 64, 64).convert(m) for m in ("L", "CMYK", "RGB")}
    modes["16bit.png"] = Image.fromarray((np.arange(64 * 64, dtype=np.uint16) * 16).reshape(64, 64))
    modes["photo.webp"] = photo(1, 64, 64)
    paths = []
    for name, image in modes.items():
        image.save(tmp_path / name)
        paths.append(tmp_path / name)
    data = coprep.Files(paths).decode().resize((8, 8))
    with coprep.DataLoader(data, batch_size=len(paths), framework="numpy") as train:
        images, labels = next(iter(train))
    assert images.shape == (len(paths), 3, 8, 8)
    assert (images[0].reshape(3, -1).T == [10, 20, 30]).all()
    assert (labels == 0).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root / "nothing", "nothing"),
        (lambda root: root, "class"),
    ],
)
def test_an_unusable_folder_is_one_clear_error(socket_path: Path, tmp_path: Path, make, words: str) -> None:
    data = coprep.ImageFolder(make(tmp_path / "photos")).decode().random_resized_crop(32)
    (tmp_path / "photos").mkdir()
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        next(iter(coprep.DataLoader(data, batch_size=4)))
    assert words in str(caught.value)


def test_a_loader_that_failed_does_not_trouble_others(
    pipeline: coprep.Pipeline, socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    failed = coprep.DataLoader(coprep.ImageFolder(tmp_path / "photos").decode().random_resized_crop(32), batch_size=4)
    with pytest.raises(FileNotFoundError, match="no class folders"):
        next(iter(failed))
    coprep.stop()
    with coordinator_at(tmp_path / "other", monkeypatch), coprep.DataLoader(pipeline, batch_size=4) as loader:
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(coprep.CoprepError, match="no coordinator"):
            coprep.status(socket_path)
    failed.close()


def test_a_cache_larger_than_memory_is_one_clear_error(pipeline: coprep.Pipeline, tmp_path: Path) -> None:
    # The files are sparse, and together larger than the cache. The needed size is known from their sizes alone.
    (file,) = make_folder(tmp_path / "large", 1).rglob("*.jpg")
    with open(file, "r+b") as f:
        f.truncate(1 << 30)
    data = coprep.Files([file] * 4000).decode().random_resized_crop(32)
    with pytest.raises(MemoryError, match="cache"):
        next(iter(coprep.DataLoader(data, batch_size=4, cache="encoded", cache_bytes="3TiB", framework="numpy")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"subset": [0, 999]}, "999"),
        ({"subset": []}, "empty"),
        ({"on_error": "ignore"}, "on_error"),
        ({"order": "chaotic"}, "order"),
        ({"cache": "ram"}, "cache"),
        ({"cohort": "a"}, "cohort"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(pipeline: coprep.Pipeline, arguments: dict, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        next(iter(coprep.DataLoader(pipeline, **{"batch_size": 4, "framework": "numpy", **arguments})))


@pytest.mark.parametrize("size", [N + 1, 10**9, 10**10, 2**63 - 1])
def test_a_batch_size_beyond_the_dataset_takes_memory_for_the_dataset_alone(
    pipeline: coprep.Pipeline, size: int
) -> None:
    for data in (pipeline, ud.Numbers(N)):
        with coprep.DataLoader(data, size, framework="numpy", with_index=True, num_workers=1) as alone:
            assert len(alone) == 1 and sorted(ids(alone)) == list(range(N))
            (stream,) = coprep.status()["streams"]
            assert stream["staging_bytes"] <= 256 << 20
        with coprep.DataLoader(data, 4, framework="numpy", with_index=True, num_workers=1) as running:
            batches = iter(running)
            taken = next(batches)[-1].tolist()
            with coprep.DataLoader(data, size, framework="numpy", with_index=True, num_workers=1) as joining:
                assert sorted(ids(joining)) == list(range(N))
            taken += [sample for *_, numbers in batches for sample in numbers.tolist()]
        assert sorted(taken) == list(range(N))


class Endless(ud.Numbers):
    """A dataset that claims more samples than anybody will draw."""

    def __init__(self, length: int) -> None:
        super().__init__(4)
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("length", [2**32, 2**40, 2**63 - 1])
def test_a_length_beyond_the_ids_is_one_clear_error(socket_path: Path, length: int) -> None:
    with pytest.raises(ValueError, match=f"Endless .* has {length:,} samples, .*IterableDataset"):
        next(iter(coprep.DataLoader(Endless(length), 4, framework="numpy")))


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("cache_bytes", -1, "cache_bytes is -1: it must be from 0"),
        ("cache_bytes", 1.5, "cache_bytes must be an integer, not 1.5"),
        ("cache_bytes", "8X", 'cache_bytes: "8X" is not a size: .* such as 8G'),
        ("name", 5, "name must be text, not 5"),
        ("group", 5, "group must be text, not 5"),
        ("socket", 5, "socket must be a path, not 5"),
        ("timeout", "5", "timeout must be a number of seconds, not '5'"),
        ("timeout", None, "timeout must be a number of seconds, not None; 0 means the default"),
        ("prefetch_factor", "2", "prefetch_factor must be an integer, not '2'"),
        ("generator", 3, "generator must be a torch.Generator, not 3"),
        ("subset", 5, "subset must be sample ids or a boolean mask, not 5"),
        ("collate_fn", 3, "collate_fn must be a function, .* not 3"),
        ("transform", 3, "transform must be a function, .* not 3"),
        ("worker_init_fn", 3, "worker_init_fn must be a function, .* not 3"),
        ("rank", 0, "rank and world_size go together"),
        ("world_size", 2, "rank and world_size go together"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_written(argument: str, value: object, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        coprep.DataLoader(ud.Numbers(8), **{argument: value})  # type: ignore[arg-type]


def test_the_name_of_a_cohort_is_text() -> None:
    with pytest.raises(TypeError, match="cohort must be text, not 5"):
        coprep.DataLoader(ud.Numbers(8), cohort=5, cohort_size=2)  # type: ignore[arg-type]


def test_ranks_that_disagree_are_told(pipeline: coprep.Pipeline) -> None:
    options: dict = {"world_size": 2, "group": "g", "framework": "numpy", "timeout": 30}
    with coprep.DataLoader(pipeline, batch_size=4, rank=0, **options) as first:
        len(first)
        with (
            coprep.DataLoader(pipeline, batch_size=8, rank=1, **options) as second,
            pytest.raises(ValueError, match=r"batch_size.*group"),
        ):
            next(iter(second))


def test_what_a_job_of_several_ranks_cannot_have_is_said_to_its_first_rank(pipeline: coprep.Pipeline) -> None:
    with (
        coprep.DataLoader(pipeline, batch_size=4, rank=0, world_size=2, subset=[7]) as train,
        pytest.raises(ValueError, match="2 ranks"),
    ):
        next(iter(train))


NAMED = """
import os, sys
sys.argv = {argv}
os.environ.update(RANK="", WORLD_SIZE="", LOCAL_WORLD_SIZE="")
import coprep
with coprep.DataLoader(range(8), 4, num_workers=1, framework="numpy") as loader:
    print(sorted(i for batch in loader for i in batch.tolist()), coprep.status()["streams"][0]["jobs"][0]["name"])
"""


@pytest.mark.parametrize(
    ("argv", "name"), [("[]", "python"), ("['']", "python"), (r"['/data/tr\udce4in.py']", "tr?in.py")]
)
def test_names_that_are_missing_or_no_text_and_empty_variables_are_no_obstacle(
    start: Start, argv: str, name: str
) -> None:
    assert start(NAMED.format(argv=argv)).result() == f"{[*range(8)]} {name}"


def test_a_coordinator_does_not_inherit_that_its_first_job_ignores_signals(start: Start) -> None:
    ignoring = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
    )
    assert start(ignoring + NAMED.format(argv="['a.py']")).result() == f"{[*range(8)]} a.py"
    status = Path(f"/proc/{coprep.status()['pid']}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    of_libc = {32, 33}  # no program can set them, so that they stay what this test was started with
    # The runtime of Rust ignores SIGPIPE.
    assert {number for number in range(1, 65) if ignored >> (number - 1) & 1} - of_libc == {signal.SIGPIPE}
