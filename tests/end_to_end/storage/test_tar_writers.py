"""Tests tar shards of many writers: the samples are those that Python's `tarfile` reads, whatever lies between them."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import coprep
import pytest
from photos import make_folder
from shards import FORMATS

SAMPLES = 3
Write = Callable[[Path, list[Path]], object]
"""Writes a shard at a path. The images are its samples, or some of them."""


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_folder(tmp_path_factory.mktemp("photos"), SAMPLES).rglob("*.jpg"))


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def sample(key: str, image: Path, label: int, **fields: object) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [
        member(f"{key}.jpg", image.read_bytes(), **fields),
        member(f"{key}.cls", str(label).encode(), **fields),
    ]


def typed(kind: bytes, name: str = "odd.jpg", content: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    return member(name, content, type=kind)


BETWEEN = {
    "nothing": [],
    "a file without an ending": [member("README", b"x" * 700)],
    "a hidden file": [member("d/._a.jpg", b"x")],
    "a file that no sample needs": [member("a.b/c.txt", b"x" * 512)],
    "a folder": [typed(tarfile.DIRTYPE, "d/")],
    "a folder with the name of an image": [typed(tarfile.DIRTYPE, "d/a.jpg")],
    "a symbolic link": [member("l.jpg", type=tarfile.SYMTYPE, linkname="0.jpg")],
    "a hard link": [member("l.jpg", type=tarfile.LNKTYPE, linkname="0.jpg")],
    "a link to a long name": [member("l.jpg", type=tarfile.SYMTYPE, linkname="long/" * 60 + "0.jpg")],
    "a pipe": [typed(tarfile.FIFOTYPE)],
    "a device": [member("d.jpg", type=tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "the label of a volume": [typed(b"V", "volume")],
    "the rest of another volume": [typed(b"M", content=b"x" * 700)],
    "a list of a folder": [typed(b"D", "d/", b"Ya.jpg\0\0")],
    "a type that nobody knows": [typed(b"?", content=b"x" * 700)],
    "an image without a label": [member("odd.jpg", b"x" * 700)],
    "a label without an image": [member("odd.cls", b"1")],
    "a list of samples": [member("__index__.json", b"{}")],
}
NAMES = {
    "in folders": "a/b.c/{}",
    "with a dot before": "./{}",
    "of 100 bytes": "x" * 90 + "/{:05}",
    "of 150 bytes": "folder/" * 20 + "{}",
    "of 400 bytes": "folder/" * 56 + "{}",
    "of another script": "写真/{} ü",
    "that are not UTF-8": "\udcff\udce4{}",
    "with control characters": "a\x1b[31m\n{}",
}
NUMBERS = {
    "a time of long ago": {"mtime": -7},
    "a time with a fraction": {"mtime": 1_700_000_000.5},
    "a late time": {"mtime": 1 << 40},
    "a user of a large number": {"uid": 1 << 30, "gid": 1 << 30},
    "names of users": {"uname": "jürgen", "gname": "x" * 31},
    "records of its own": {"pax_headers": {"comment": "c" * 600, "SCHILY.xattr.user.x": "1"}},
    "the type of 1979": {"type": tarfile.AREGTYPE},
    "a contiguous file": {"type": tarfile.CONTTYPE},
}


def by_tarfile(form: str, keys: str = "{}", between: str = "nothing", **fields: object) -> Write:
    def write(path: Path, images: list[Path]) -> None:
        with tarfile.open(path, "w", format=FORMATS[form]) as archive:
            for number, image in enumerate(images):
                for info, content in [*BETWEEN[between], *sample(keys.format(number), image, number, **fields)]:
                    archive.addfile(info, io.BytesIO(content))

    return write


def refused(form: str, keys: str) -> bool:
    """``True`` if ``tarfile`` cannot write such names."""
    return form == "ustar" and len(keys) > 300


def by_program(*command: str) -> Write:
    """Writes with a program that runs in a folder with the samples."""

    def write(path: Path, images: list[Path]) -> None:
        folder = path.with_suffix("")
        folder.mkdir()
        for number, image in enumerate(images):
            for info, content in sample(str(number), image, number):
                (folder / info.name).write_bytes(content)
        # A file with a hole, which programs may write in pieces.
        with (folder / "9.jpg").open("wb") as file:
            file.truncate(1 << 20)
            file.write(b"x")
        (folder / "9.cls").write_text("9")
        (folder / "link.jpg").symlink_to("0.jpg")
        (folder / "twice.jpg").hardlink_to(folder / "1.jpg")
        if "--format=v7" not in command:
            (folder / "long" / ("x" * 90)).mkdir(parents=True)
        names = sorted(path.name for path in folder.iterdir())
        subprocess.run([*command, str(path), *names], cwd=folder, check=True, timeout=60)

    return write


def changed(change: Callable[[bytes], bytes], form: str = "gnu") -> Write:
    """Writes with ``tarfile``, and changes the bytes."""

    def write(path: Path, images: list[Path]) -> None:
        by_tarfile(form)(path, images)
        path.write_bytes(change(path.read_bytes()))

    return write


def with_field(at: int, field: bytes) -> Callable[[bytes], bytes]:
    """Puts a member that belongs to no sample first, with bytes in its header."""

    def change(content: bytes) -> bytes:
        header = bytearray(tarfile.TarInfo("README").tobuf(tarfile.GNU_FORMAT))
        header[at : at + len(field)] = field
        if at != 148:
            header[148:156] = b" " * 8
            header[148:156] = f"{sum(header):06o}\0 ".encode()
        return bytes(header) + content

    return change


def signed_sum() -> bytes:
    header = bytearray(tarfile.TarInfo("README").tobuf(tarfile.GNU_FORMAT))
    header[0], header[148:156] = 0xE4, b" " * 8
    total = sum(byte - 256 if byte > 127 else byte for byte in header)
    header[148:156] = f"{total:06o}\0 ".encode()
    return bytes(header)


def variants() -> Iterator[tuple[str, Write]]:
    for between in BETWEEN:
        yield f"{between} between samples", by_tarfile("gnu", between=between)
    for form in sorted(FORMATS):
        for what, keys in NAMES.items():
            if not refused(form, keys):
                yield f"names {what} in {form}", by_tarfile(form, keys)
        for what, fields in NUMBERS.items():
            if form == "pax" or what not in ("a time of long ago", "a late time", "a user of a large number"):
                yield f"{what} in {form}", by_tarfile(form, **fields)
    for form in ("v7", "ustar", "oldgnu", "gnu", "posix"):
        of_gnu = [] if form in ("v7", "ustar") else [["--sparse"], ["--label=volume"]]
        for more in ([], ["--blocking-factor=1"], *of_gnu):
            yield f"GNU tar {form} {more}", by_program("tar", f"--format={form}", *more, "-cf")
    for version in ("0.0", "0.1", "1.0"):
        yield f"GNU tar, sparse {version}", by_program("tar", f"--sparse-version={version}", "-Scf")
    yield "GNU tar, incremental", by_program("tar", "--incremental", "-cf")
    yield (
        "GNU tar, with a global header",
        by_program("tar", "--format=posix", "--pax-option=globexthdr.name=g,comment=x", "-cf"),
    )
    if shutil.which("bsdtar"):
        for form in ("v7", "ustar", "gnutar", "pax", "rpax"):
            yield f"bsdtar {form}", by_program("bsdtar", f"--format={form}", "-cf")
    yield (
        "no blocks of zeros at the end",
        changed(lambda content: content.rstrip(b"\0") + bytes(512 - len(content.rstrip(b"\0")) % 512)),
    )
    yield "more blocks of zeros", changed(lambda content: content + bytes(1 << 16))
    yield "another archive behind it", changed(lambda content: content + content)
    yield "other bytes behind it", changed(lambda content: content + b"x" * 3000)
    yield "an empty size", changed(with_field(124, bytes(12)))
    yield "a size with spaces", changed(with_field(124, b"        0 \0 "))
    yield "a size in bytes", changed(with_field(124, b"\x80" + bytes(11)))
    yield "a sum of signed bytes", changed(lambda content: signed_sum() + content)
    yield "an empty time", changed(with_field(136, bytes(12)))


def expected(path: Path) -> tuple[list[bytes], list[int], int]:
    """Returns what ``tarfile`` reads: images and labels of samples, and the number of samples that lack a part."""
    found: list[dict[str, bytes]] = []
    last = None
    with tarfile.open(path, errors="surrogateescape") as archive:
        for info in archive:
            folder, slash, base = info.name.rpartition("/")
            key, dot, ending = base.partition(".")
            if not info.isreg() or not dot or not key:
                continue
            if last != folder + slash + key:
                found.append({})
            last = folder + slash + key
            content = archive.extractfile(info)
            assert content is not None
            if not info.issparse():
                found[-1][ending] = content.read()
    usable = [parts for parts in found if {"jpg", "cls"} <= parts.keys()]
    return [x["jpg"] for x in usable], [int(x["cls"]) for x in usable], len(found) - len(usable)


def read(source: coprep.Pipeline, ids: list[int]) -> tuple[list[bytes], list[int]]:
    """Returns the pixels and the labels of samples."""
    options = {"batch_size": 1, "framework": "numpy", "shuffle": False, "subset": ids}
    with coprep.DataLoader(source.decode().center_crop(32), **options) as loader:
        batches = [(image.tobytes(), int(label[0])) for image, label in loader]
    return [image for image, _ in batches], [label for _, label in batches]


def test_samples_are_those_that_tarfile_reads_whatever_wrote_the_shard(
    socket_path: Path, tmp_path: Path, images: list[Path]
) -> None:
    rows = list(variants())
    assert len(rows) >= 60
    wrong = {}
    for number, (what, write) in enumerate(rows):
        path = tmp_path / f"{number}.tar"
        write(path, images)
        contents, labels, lacking = expected(path)
        assert set(range(SAMPLES)) <= set(labels), what
        files = []
        for position, content in enumerate(contents):
            files.append(tmp_path / f"{number}-{position}.jpg")
            files[-1].write_bytes(content)
        # The file of zeros is no image.
        kept = [i for i, content in enumerate(contents) if content.strip(b"\0x")]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                length = len(coprep.WebDataset(path))
                found = read(coprep.WebDataset(path), kept)
            except (ValueError, coprep.CoprepError) as error:
                wrong[what] = str(error)
                continue
        left_out = [str(x.message) for x in told if x.category is coprep.SkippedSampleWarning]
        asked = read(coprep.Files(files, labels), kept)
        if length != len(labels) or found != asked:
            wrong[what] = f"{length} samples of {len(labels)}: {found[1]}, {asked[1]}"
        elif bool(left_out) != bool(lacking) or (lacking and f"{lacking} sample" not in left_out[0]):
            wrong[what] = f"{lacking} are left out: {left_out}"
    assert not wrong, "\n".join(f"{what}: {why}" for what, why in wrong.items())
