"""Tests tokens and arrays: the batches are those of NumPy, from files and stores, and bad files are named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from batches import batches
from object_server import ObjectServer

WINDOW, STRIDE = 33, 32
NUMPY: dict[str, Any] = {"framework": "numpy", "batch_size": 8, "shuffle": False}
RNG = np.random.default_rng(1)


@pytest.fixture
def files(tmp_path: Path) -> list[np.ndarray]:
    """The tokens of two files, ``tokens/a.bin`` and ``tokens/b.bin``."""
    (tmp_path / "tokens").mkdir()
    found = []
    for name, count in (("a", 1000), ("b", 333)):
        found.append(RNG.integers(0, 2**16, count, dtype=np.uint16))
        found[-1].tofile(tmp_path / "tokens" / f"{name}.bin")
    return found


def windows(files: list[np.ndarray]) -> np.ndarray:
    starts = [range(0, len(tokens) - WINDOW + 1, STRIDE) for tokens in files]
    return np.stack([t[i : i + WINDOW] for t, own in zip(files, starts, strict=True) for i in own])


def joined(loader: coprep.DataLoader) -> np.ndarray:
    """Returns the samples of an epoch. There are no labels."""
    with loader:
        found = list(loader)
    assert all(isinstance(batch, np.ndarray) for batch in found)
    return np.concatenate(found)


def test_windows_of_files_and_stores_are_those_of_numpy(
    socket_path: Path, tmp_path: Path, server: ObjectServer, files: list[np.ndarray]
) -> None:
    server.load("bucket", "tokens", tmp_path / "tokens")
    expected = windows(files)
    for root in (str(tmp_path), "s3://bucket", f"{server.address}/bucket"):
        tokens = coprep.Tokens(f"{root}/tokens/{{a,b}}.bin", WINDOW, stride=STRIDE)
        assert len(tokens) == len(expected)
        found = joined(coprep.DataLoader(tokens, **NUMPY))
        assert found.dtype == np.uint16 and np.array_equal(found, expected)
        wide = coprep.Tokens(f"{root}/tokens/{{a,b}}.bin", WINDOW, stride=STRIDE, out=np.int64)
        found = joined(coprep.DataLoader(wide, **NUMPY))
        assert found.dtype == np.int64 and np.array_equal(found, expected)


def test_arrays_of_one_dimension_are_tokens(
    socket_path: Path, tmp_path: Path, server: ObjectServer, files: list[np.ndarray]
) -> None:
    for name, tokens in zip("ab", files, strict=True):
        np.save(tmp_path / "tokens" / f"{name}.npy", tokens)
    server.load("bucket", "tokens", tmp_path / "tokens")
    for root in (str(tmp_path), "s3://bucket"):
        # A file with and one without a header.
        tokens = coprep.Tokens([f"{root}/tokens/a.npy", f"{root}/tokens/b.bin"], WINDOW, stride=STRIDE)
        assert np.array_equal(joined(coprep.DataLoader(tokens, **NUMPY)), windows(files))
        as_it_is = coprep.Tokens(f"{root}/tokens/a.npy", WINDOW, "uint8", stride=STRIDE, offset=0)
        first = joined(coprep.DataLoader(as_it_is, **NUMPY))[0]
        assert first.tobytes() == (tmp_path / "tokens" / "a.npy").read_bytes()[:WINDOW]


def test_files_of_other_formats_are_not_taken_for_tokens(
    socket_path: Path, tmp_path: Path, server: ObjectServer, files: list[np.ndarray]
) -> None:
    folder = tmp_path / "tokens"
    np.savez(folder / "plain.npz", files[0])
    np.savez_compressed(folder / "compressed.npz", files[0])
    (folder / "a.bin.gz").write_bytes(gzip.compress(files[0].tobytes()))
    (folder / "a.bin.xz").write_bytes(lzma.compress(files[0].tobytes()))
    (folder / "a.bin.bz2").write_bytes(bz2.compress(files[0].tobytes()))
    for protocol in (2, 3, 4, 5):
        (folder / f"a{protocol}.pkl").write_bytes(pickle.dumps(files[0], protocol))
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(folder / "plain.npz", "plain.npz")
    np.save(folder / "rows.npy", files[0].reshape(100, 10))
    server.load("bucket", "tokens", folder)
    for root in (str(tmp_path), "s3://bucket"):
        for name, part in [
            ("plain.npz", "a zip file"),
            ("compressed.npz", "a zip file"),
            ("a.bin.gz", "a gzip file"),
            ("a.bin.xz", "an xz file"),
            ("a.bin.bz2", "a bzip2 file"),
            *((f"a{protocol}.pkl", "a pickle") for protocol in (2, 3, 4, 5)),
            ("a.tar", "a tar file"),
            ("rows.npy", r"coprep\.Arrays"),
        ]:
            with pytest.raises(ValueError, match=f"(?s){name}.*{part}"):
                len(coprep.Tokens(f"{root}/tokens/{name}", WINDOW))


@pytest.mark.parametrize("cache", ["off", "encoded", "decoded", "auto"])
def test_a_shuffled_epoch_has_each_window_once_however_it_is_cached(
    socket_path: Path, tmp_path: Path, files: list[np.ndarray], cache: str
) -> None:
    tokens = coprep.Tokens(sorted((tmp_path / "tokens").iterdir()), WINDOW, stride=STRIDE, out="int32")
    options: dict[str, Any] = {"framework": "numpy", "batch_size": 8, "with_index": True, "cache": cache}
    with coprep.DataLoader(tokens, shuffle=True, **options) as loader:
        for _ in range(3):
            epoch = list(loader)
            rows, ids = (np.concatenate(parts) for parts in zip(*epoch, strict=True))
            assert sorted(ids.tolist()) == list(range(len(tokens)))
            assert np.array_equal(rows, windows(files)[ids])


def test_tokens_of_torch(socket_path: Path, tmp_path: Path, files: list[np.ndarray]) -> None:
    torch = pytest.importorskip("torch")
    tokens = coprep.Tokens(tmp_path / "tokens" / "a.bin", WINDOW, torch.uint16, out=torch.int64)
    with coprep.DataLoader(tokens, batch_size=4) as loader:
        batch = next(iter(loader))
    assert batch.dtype == torch.int64 and batch.shape == (4, WINDOW)
    with pytest.raises(ValueError, match="tokens and arrays have their own types"):
        coprep.DataLoader(tokens, dtype=torch.float32)


def test_tokens_are_a_pipeline_like_others() -> None:
    plain = coprep.Tokens("s3://b/x.bin", 2049)
    assert plain == coprep.Tokens(["s3://b/x.bin"], window=2049, stride=2049, out="uint16")
    full = coprep.Tokens("s3://b/x.bin", 2049, np.dtype("<u4"), stride=2048, out="int64", offset=1024, tail="overlap")
    assert pickle.loads(pickle.dumps(full)) == full != plain
    as_it_is = coprep.Tokens("s3://b/x.bin", 2049, offset=0)
    assert pickle.loads(pickle.dumps(as_it_is)) == as_it_is != plain and repr(as_it_is).endswith("2049, offset=0)")
    shown = 'Tokens("s3://b/x.bin", window=2049, dtype="uint32", stride=2048, out="int64", offset=1024, tail="overlap")'
    assert repr(full) == shown
    rows = coprep.Arrays(["s3://b/x.npy", "s3://b/y.npy"], [1, 2])
    assert pickle.loads(pickle.dumps(rows)) == rows != coprep.Arrays("s3://b/x.npy")


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        (("x.bin", 8, ">u2"), {}, "big-endian"),
        (("x.bin", 8, np.dtype(">i4")), {}, "big-endian"),
        (("x.bin", 8, "float32"), {}, "coprep.Arrays"),
        (("x.bin", 8, "token"), {}, "no type that a tensor may have"),
        (("x.bin", 8), {"out": "uint8"}, "choose uint16, int32, int64"),
        (("x.bin", 0), {}, "1 or more"),
        (("x.bin", 8), {"tail": "pad"}, "overlap"),
        (("x.bin", -1), {}, "must be from 0"),
        (([], 8), {}, "the list of files is empty"),
        (("ftp://h/x.bin", 8), {}, "not a storage that coprep reads"),
    ],
)
def test_tokens_that_are_not_accepted_are_told_at_once(
    arguments: tuple[Any, ...], options: dict[str, Any], part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        coprep.Tokens(*arguments, **options)


def test_operators_do_not_belong_to_tensors() -> None:
    for tensors in (coprep.Tokens("x.bin", 8), coprep.Arrays("x.npy")):
        with pytest.raises(ValueError, match="tensors already"):
            tensors.decode()
    with pytest.raises(ValueError, match="no resize"):
        coprep.Files(["x.npy"]).decode_npy().resize(3)
    with pytest.raises(ValueError, match=r"coprep\.Files"):
        coprep.ImageFolder("/").decode_npy()


def test_files_that_do_not_fit_are_named(socket_path: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(b"x" * 101)
    for pipeline, part in [
        (coprep.Tokens(tmp_path / "odd.bin", 8), "no multiple of the 2 bytes"),
        (coprep.Tokens(tmp_path / "odd.bin", 102, "uint8"), "101 tokens, fewer than window=102"),
        (coprep.Tokens(tmp_path / "gone.bin", 8), "gone.bin"),
        (coprep.Arrays(tmp_path / "odd.bin"), "does not begin as a .npy file"),
    ]:
        with pytest.raises((ValueError, coprep.CoprepError, OSError), match=part):
            len(pipeline)


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_rows_of_arrays_are_those_of_numpy(socket_path: Path, tmp_path: Path, server: ObjectServer) -> None:
    (tmp_path / "rows").mkdir()
    parts = [RNG.normal(size=(count, 3, 5)).astype(np.float32) for count in (20, 7)]
    for name, part in zip("ab", parts, strict=True):
        np.save(tmp_path / "rows" / f"{name}.npy", part)
    server.load("bucket", "rows", tmp_path / "rows")
    whole, labels = np.concatenate(parts), list(range(100, 127))
    for root in (str(tmp_path), "s3://bucket"):
        names = [f"{root}/rows/{name}.npy" for name in "ab"]
        assert np.array_equal(joined(coprep.DataLoader(coprep.Arrays(names), **NUMPY)), whole)
        with coprep.DataLoader(coprep.Arrays(names, labels), **NUMPY) as loader:
            rows, told = (np.concatenate(parts) for parts in zip(*loader, strict=True))
        assert np.array_equal(rows, whole) and told.tolist() == labels


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"])
def test_every_type_of_numpy_is_kept(socket_path: Path, tmp_path: Path, dtype: str) -> None:
    rows = RNG.integers(0, 2, (9, 4)).astype(dtype)
    np.save(tmp_path / "x.npy", rows)
    found = joined(coprep.DataLoader(coprep.Arrays(tmp_path / "x.npy"), **NUMPY))
    assert found.dtype == rows.dtype and np.array_equal(found, rows)


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (np.zeros((3, 2), order="F"), "ascontiguousarray"),
        (np.zeros((3, 2), ">f4"), "newbyteorder"),
        (np.array([{}, {}]), r"\|O"),
        (np.zeros(3, [("x", "f4")]), "structured"),
        (np.float32(1), "no rows"),
    ],
)
def test_arrays_that_are_no_tensors_are_refused_with_a_remedy(
    socket_path: Path, tmp_path: Path, array: Any, part: str
) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=part):
        len(coprep.Arrays(tmp_path / "x.npy"))


def test_each_npy_file_is_a_sample_in_folders_and_shards(socket_path: Path, tmp_path: Path) -> None:
    arrays = [RNG.integers(0, 9, (4, 5)).astype(np.int16) for _ in range(12)]
    paths = [tmp_path / f"{i:02}.npy" for i in range(12)]
    with tarfile.open(tmp_path / "x.tar", "w") as shard:
        for i, (path, array) in enumerate(zip(paths, arrays, strict=True)):
            np.save(path, array)
            for name, content in ((path.name, saved(array)), (f"{i:02}.cls", str(i % 3).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    listed = coprep.Files(paths, [i % 3 for i in range(12)]).decode_npy()
    sharded = coprep.WebDataset(tmp_path / "x.tar", image="npy").decode_npy()
    assert repr(sharded).endswith('image="npy").decode_npy()') and pickle.loads(pickle.dumps(sharded)) == sharded
    both = [batches(coprep.DataLoader(pipeline, **NUMPY), epochs=1) for pipeline in (listed, sharded)]
    assert both[0] == both[1]
    with coprep.DataLoader(listed, **NUMPY) as loader:
        found, labels = (np.concatenate(parts) for parts in zip(*loader, strict=True))
    assert np.array_equal(found, arrays) and labels.tolist() == [i % 3 for i in range(12)]


def test_an_array_of_another_shape_is_one_bad_sample(socket_path: Path, tmp_path: Path) -> None:
    for i in range(8):
        np.save(tmp_path / f"{i}.npy", np.full((2, 3 if i != 5 else 4), i))
    pipeline = coprep.Files([tmp_path / f"{i}.npy" for i in range(8)]).decode_npy()
    with (
        pytest.raises(coprep.SampleError, match=r"5\.npy.*shape \[2, 4\]"),
        coprep.DataLoader(pipeline, **NUMPY) as loader,
    ):
        list(loader)
    with (
        pytest.warns(coprep.SkippedSampleWarning),
        coprep.DataLoader(pipeline, on_error="skip", **NUMPY) as loader,
    ):
        found = np.concatenate([arrays for arrays, _ in loader])
    assert found[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 6, 7]
