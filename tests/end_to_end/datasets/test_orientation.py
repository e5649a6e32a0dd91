"""Tests that images are turned as Pillow turns them, wherever and however a file tells its orientation."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coprep
import numpy as np
from PIL import Image, ImageOps

SIDE = 32
SHORT, LONG = 3, 4
PICTURE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (16, SIDE, 3), np.uint8))


def entry(order: str, tag: int, kind: int, values: list[int], code: str) -> bytes:
    """Returns an entry of a directory whose values fit into its four bytes."""
    data = struct.pack(f"{order}{len(values)}{code}", *values)
    return struct.pack(f"{order}HHI", tag, kind, len(values)) + data.ljust(4, b"\0")


def directory(order: str, *entries: bytes, magic: bytes = b"", after: bytes = b"") -> bytes:
    """Returns EXIF with one directory, after which ``after`` lies."""
    magic = magic or (b"II*\0" if order == "<" else b"MM\0*")
    count = struct.pack(f"{order}H", len(entries))
    return magic + struct.pack(f"{order}I", 8) + count + b"".join(entries) + bytes(4) + after


def exif(value: int, order: str = "<", kind: int = SHORT, code: str = "H", count: int = 1, magic: bytes = b"") -> bytes:
    return directory(order, entry(order, 0x0112, kind, [value] * count, code), magic=magic)


def xmp(attribute: str) -> bytes:
    """Returns XMP with an attribute or an element."""
    head = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description '
    return f"{head}{attribute}</rdf:Description></rdf:RDF></x:xmpmeta>".encode()


XMP_6 = xmp('tiff:Orientation="6">')


def saved(form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    PICTURE.save(file, form, **options)
    return file.getvalue()


def jpeg(*bodies: bytes, marker: int = 0xE1, file: bytes = b"") -> bytes:
    """Returns a JPEG with APP1 segments after its first marker."""
    file = file or saved("JPEG")
    segments = [struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for body in bodies]
    return file[:2] + b"".join(segments) + file[2:]


def app1(data: bytes) -> bytes:
    return b"Exif\0\0" + data


def app1_xmp(data: bytes) -> bytes:
    return b"http://ns.adobe.com/xap/1.0/\0" + data


def png(*chunks: tuple[bytes, bytes], at_end: bool = False) -> bytes:
    """Returns a PNG with chunks before the pixels, or after them."""
    file = saved("PNG")
    at = len(file) - 12 if at_end else 33
    packed = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return file[:at] + b"".join(packed) + file[at:]


def profile(data: bytes) -> bytes:
    """Returns EXIF as ImageMagick writes it into a text of a PNG."""
    digits = data.hex()
    lines = "\n".join(digits[i : i + 72] for i in range(0, len(digits), 72))
    return f"\nexif\n{len(data):8}\n{lines}\n".encode()


PROFILE = b"Raw profile type exif\0"
XMP_KEY = b"XML:com.adobe.xmp\0"


def webp(*chunks: tuple[bytes, bytes], flags: int | None = None, before: bool = False) -> bytes:
    """Returns a WebP of the extended format with chunks after the pixels, or before them."""
    file = saved("WEBP", lossless=True)
    parts = [kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2) for kind, body in chunks]
    size = struct.pack("<I", SIDE - 1)[:3] + struct.pack("<I", 15)[:3]
    if flags is None:
        flags = sum({b"EXIF": 8, b"XMP ": 4}.get(kind, 0) for kind in {kind for kind, _ in chunks})
    head = b"VP8X" + struct.pack("<I", 10) + bytes([flags, 0, 0, 0]) + size
    body = head + (b"".join(parts) + file[12:] if before else file[12:] + b"".join(parts))
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def of_pillow(value: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0110], tags[0x0112] = "a camera whose name is longer than four bytes", value
    return tags


def outside(order: str, length: int, place: int) -> bytes:
    """Returns EXIF with a name of ``length`` bytes at ``place`` before the orientation 6."""
    name = struct.pack(f"{order}HHII", 0x0110, 2, length, place)
    return directory(order, name, entry(order, 0x0112, SHORT, [6], "H"), after=b"camera\0\0")


FILES: dict[str, bytes] = {
    **{f"jpeg, Pillow, {value}": saved("JPEG", exif=of_pillow(value)) for value in range(10)},
    **{f"png, Pillow, {value}": saved("PNG", exif=of_pillow(value)) for value in (2, 5, 7, 8)},
    **{f"webp, Pillow, {value}": saved("WEBP", lossless=True, exif=of_pillow(value)) for value in (3, 4, 6, 8)},
    "jpeg, no metadata": saved("JPEG"),
    "jpeg, XMP by Pillow": saved("JPEG", xmp=XMP_6),
    "webp, XMP by Pillow": saved("WEBP", lossless=True, xmp=XMP_6),
    # The spelling of the tag.
    **{
        f"{form}, {name}": make(data)
        for form, make in {
            "jpeg": lambda data: jpeg(app1(data)),
            "png": lambda data: png((b"eXIf", data)),
            "webp": lambda data: webp((b"EXIF", data)),
        }.items()
        for name, data in {
            "big-endian": exif(6, ">"),
            "LONG": exif(6, kind=LONG, code="I"),
            "LONG, big-endian": exif(6, ">", LONG, "I"),
            "BYTE": exif(6, kind=1, code="B"),
            "SBYTE": exif(6, kind=6, code="b"),
            "SSHORT, big-endian": exif(6, ">", 8, "h"),
            "SLONG": exif(6, kind=9, code="i"),
            "UNDEFINED": exif(6, kind=7, code="B"),
            "a type that does not exist": exif(6, kind=99),
            "a type that does not exist, then SHORT": directory(
                "<", entry("<", 0x0112, 99, [3], "H"), entry("<", 0x0112, SHORT, [6], "H")
            ),
            "two values": exif(6, count=2),
            "three values, of which none is there": directory("<", struct.pack("<HHII", 0x0112, SHORT, 3, 5000)),
            "no value": exif(6, count=0),
            "the tag twice": directory("<", entry("<", 0x0112, SHORT, [6], "H"), entry("<", 0x0112, SHORT, [3], "H")),
            "value 0": exif(0),
            "value 9": exif(9),
            "value 262 (6 in its lower byte)": exif(262),
            "its own prefix": b"Exif\0\0" + exif(6),
            "the magic in the other byte order": exif(6, magic=b"II\0*"),
            "a directory that ends within the tag": exif(6)[:19],
            "a directory that ends within an earlier tag": outside("<", 8, 38)[:15],
            "more tags promised than there": exif(6)[:8] + b"\x09\0" + exif(6)[10:],
            "no end of the directory": exif(6)[:22],
            "a name elsewhere": outside(">", 8, 38),
            "a name that is cut off": outside("<", 8, 44),
            "a name longer than the file": outside("<", 80_000, 38),
            "a directory beyond the end": b"II*\0" + struct.pack("<I", 900),
        }.items()
    },
    # Where it lies.
    "jpeg, two segments of EXIF": jpeg(app1(exif(6)), app1(exif(3))),
    "jpeg, EXIF that goes on in a second segment": jpeg(app1(outside("<", 8, 38)[:20]), app1(outside("<", 8, 38)[20:])),
    "jpeg, XMP before EXIF": jpeg(app1_xmp(xmp('tiff:Orientation="3">')), app1(exif(6))),
    "jpeg, XMP alone": jpeg(app1_xmp(XMP_6)),
    "jpeg, XMP as an element": jpeg(app1_xmp(xmp("><tiff:Orientation>8</tiff:Orientation>"))),
    "jpeg, XMP of two segments": jpeg(app1_xmp(XMP_6), app1_xmp(xmp('tiff:Orientation="3">'))),
    "jpeg, XMP in single quotes": jpeg(app1_xmp(xmp("tiff:Orientation='6'>"))),
    "jpeg, XMP beside EXIF without the tag": jpeg(app1(directory("<")), app1_xmp(XMP_6)),
    "jpeg, XMP beside EXIF of value 1": jpeg(app1(exif(1)), app1_xmp(XMP_6)),
    "jpeg, XMP beside EXIF of BYTE": jpeg(app1(exif(3, kind=1, code="B")), app1_xmp(XMP_6)),
    "jpeg, EXIF in APP3": jpeg(app1(exif(6)), marker=0xE3),
    "jpeg, EXIF in front of JFIF and fill bytes": saved("JPEG")[:2] + b"\xff\xff" + jpeg(app1(exif(6)))[2:],
    "jpeg, progressive": jpeg(app1(exif(6)), file=saved("JPEG", progressive=True)),
    "png, EXIF after the pixels": png((b"eXIf", exif(6)), at_end=True),
    "png, EXIF twice": png((b"eXIf", exif(6)), (b"eXIf", exif(3))),
    "png, tEXt exif": png((b"tEXt", b"exif\0" + exif(6))),
    "png, profile as tEXt": png((b"tEXt", PROFILE + profile(b"Exif\0\0" + exif(6)))),
    "png, profile as zTXt": png((b"zTXt", PROFILE + b"\0" + zlib.compress(profile(exif(6))))),
    "png, profile as iTXt": png((b"iTXt", PROFILE + bytes(4) + profile(exif(6)))),
    "png, profile as zTXt after the pixels": png(
        (b"zTXt", PROFILE + b"\0" + zlib.compress(profile(exif(6)))), at_end=True
    ),
    "png, profile beside eXIf": png((b"tEXt", PROFILE + profile(exif(6))), (b"eXIf", exif(3))),
    "png, profile of damaged zlib": png((b"zTXt", PROFILE + b"\0" + b"nothing")),
    "png, XMP": png((b"iTXt", XMP_KEY + bytes(4) + XMP_6)),
    "png, XMP, compressed": png((b"iTXt", XMP_KEY + b"\1\0\0\0" + zlib.compress(XMP_6))),
    "png, XMP that is not UTF-8": png((b"iTXt", XMP_KEY + bytes(4) + XMP_6 + b"\xff")),
    "png, XMP as tEXt": png((b"tEXt", XMP_KEY + XMP_6)),
    "png, XMP after the pixels": png((b"iTXt", XMP_KEY + bytes(4) + XMP_6), at_end=True),
    "webp, EXIF before the pixels": webp((b"EXIF", exif(6)), before=True),
    "webp, a chunk of odd length before EXIF": webp((b"ABCD", b"odd"), (b"EXIF", exif(6))),
    "webp, EXIF twice": webp((b"EXIF", exif(6)), (b"EXIF", exif(3))),
    "webp, EXIF that the flags deny": webp((b"EXIF", exif(6)), flags=0),
    "webp, XMP": webp((b"XMP ", XMP_6)),
    "webp, XMP that the flags deny": webp((b"XMP ", XMP_6), flags=0),
    "webp, both": webp((b"XMP ", XMP_6), (b"EXIF", exif(3))),
}


def on_canvas(image: Image.Image) -> np.ndarray:
    """Returns an image in the middle of a square, as a crop that is larger than it gives it."""
    canvas = Image.new("RGB", (SIDE, SIDE))
    canvas.paste(image, ((SIDE - image.width) // 2, (SIDE - image.height) // 2))
    return np.asarray(canvas)


def turned_by_pillow(file: bytes) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return on_canvas(ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB"))


def turned_by_coprep(paths: list[Path]) -> np.ndarray:
    pipeline = coprep.Files(paths).decode(apply_exif_orientation=True).center_crop(SIDE)
    with coprep.DataLoader(pipeline, batch_size=len(paths), framework="numpy") as loader:
        ((images, _labels),) = list(loader)
    found: np.ndarray = images.transpose(0, 2, 3, 1)
    return found


def written(folder: Path, files: dict[str, bytes]) -> list[Path]:
    paths = [folder / str(number) for number in range(len(files))]
    for path, file in zip(paths, files.values(), strict=True):
        path.write_bytes(file)
    return paths


def test_every_image_is_turned_as_pillow_turns_it(socket_path: Path, tmp_path: Path) -> None:
    found = turned_by_coprep(written(tmp_path, FILES))
    other = [
        name
        for name, image in zip(FILES, found, strict=True)
        if not np.array_equal(image, turned_by_pillow(FILES[name]))
    ]
    assert not other


def test_metadata_that_pillow_refuses_turn_nothing(socket_path: Path, tmp_path: Path) -> None:
    makers: dict[str, Callable[[bytes], bytes]] = {
        "jpeg": lambda data: jpeg(app1(data)),
        "png": lambda data: png((b"eXIf", data)),
        "webp": lambda data: webp((b"EXIF", data)),
    }
    refused = {"no TIFF": b"JUNKJUNK" + exif(6), "BigTIFF": b"II+\0" + exif(6)[4:], "a header of 4 bytes": b"II*\0"}
    files = {f"{form}, {name}": make(data) for form, make in makers.items() for name, data in refused.items()}
    found = turned_by_coprep(written(tmp_path, files))
    for (name, file), image in zip(files.items(), found, strict=True):
        assert np.array_equal(image, on_canvas(Image.open(io.BytesIO(file)).convert("RGB"))), name
