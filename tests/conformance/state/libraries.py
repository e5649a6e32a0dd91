"""Switches and registries of the standard library, Pillow and numpy."""

from __future__ import annotations

import calendar
import codecs
import contextlib
import copyreg
import csv
import decimal
import http.client
import io
import json
import locale
import logging
import mimetypes
import pickle
import random
import shutil
import socket
import sqlite3
import ssl
import struct
import tempfile
import urllib.request
import urllib.response
import warnings
import xml.etree.ElementTree as ElementTree
import zlib
from typing import Any

import numpy as np
from PIL import Image, ImageFile, PngImagePlugin

from state.kind import Kind, attempt


def jpeg() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "JPEG")
    return file.getvalue()


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """Returns a PNG of 8 x 8 pixels, with further chunks."""
    Image.new("L", (8, 8)).save(file := io.BytesIO(), "PNG")
    head, rest = file.getvalue()[:33], file.getvalue()[33:]
    more = [struct.pack(">I", len(b)) + a + b + struct.pack(">I", zlib.crc32(a + b)) for a, b in chunks]
    return head + b"".join(more) + rest


ENTERED = contextlib.ExitStack()
CUT_JPEG = jpeg()[:2000]
SMALL_PNG = png()
PNG_WITH_TEXT = png((b"zTXt", b"note\0\0" + zlib.compress(b"x" * 1000)))


def gray(image: bytes) -> Any:
    return Image.open(io.BytesIO(image)).convert("L").getpixel((0, 0))


class TruncatedImages(Kind):
    """ImageFile.LOAD_TRUNCATED_IMAGES = True"""

    values = (True, False)

    def set(self, value: bool) -> None:
        ImageFile.LOAD_TRUNCATED_IMAGES = value

    def __getitem__(self, index: int) -> str:
        return attempt(gray, CUT_JPEG)


class MaxImagePixels(Kind):
    """Image.MAX_IMAGE_PIXELS = None"""

    values = (10, None)

    def set(self, value: int | None) -> None:
        Image.MAX_IMAGE_PIXELS = value

    def __getitem__(self, index: int) -> str:
        return attempt(gray, SMALL_PNG)


class MaxTextChunk(Kind):
    """PngImagePlugin.MAX_TEXT_CHUNK = n"""

    values = (100, 2000)

    def set(self, value: int) -> None:
        PngImagePlugin.MAX_TEXT_CHUNK = value

    def __getitem__(self, index: int) -> str:
        return attempt(gray, PNG_WITH_TEXT)


class ImageOpener(Kind):
    """Image.register_open, as by pillow_heif.register_heif_opener()"""

    def set(self, value: int) -> None:
        def opened(file: Any, name: Any) -> Image.Image:
            return Image.new("L", (value, value))

        Image.register_open("STATE", opened, lambda prefix: prefix.startswith(b"state"))  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> str:
        try:
            return str(Image.open(io.BytesIO(b"state of an image")).size)
        except Image.UnidentifiedImageError:
            return "unidentified"


class ImageExtension(Kind):
    """Image.register_extension"""

    values = ("THREE", "FIVE")

    def set(self, value: str) -> None:
        Image.register_extension(value, ".state")

    def __getitem__(self, index: int) -> str:
        return Image.registered_extensions().get(".state", "unknown")


class NumpyErrors(Kind):
    """np.seterr(all="raise")"""

    values = ("raise", "ignore")

    def set(self, value: Any) -> None:
        np.seterr(all=value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: float(np.float32(1) / np.float32(0)))


class NumpyErrorsEntered(Kind):
    """np.errstate(...) entered around the whole program"""

    values = ("raise", "ignore")

    def set(self, value: Any) -> None:
        ENTERED.enter_context(np.errstate(all=value))

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: float(np.float32(1) / np.float32(0)))


class NumpyPrinting(Kind):
    """np.set_printoptions(precision=n)"""

    def set(self, value: int) -> None:
        np.set_printoptions(precision=value)

    def __getitem__(self, index: int) -> str:
        return str(np.array([1 / 3]))


class NumpyPrintingUnused(Kind):
    """np.set_printoptions, where nothing is printed"""

    # It cannot be told whether the code of libraries makes text of arrays.
    counts = None

    def set(self, value: int) -> None:
        np.set_printoptions(precision=value)

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index)


class CsvLimit(Kind):
    """csv.field_size_limit(n)"""

    values = (10, 100)

    def set(self, value: int) -> None:
        csv.field_size_limit(value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: len(next(csv.reader(["x" * 50]))))


class CsvDialect(Kind):
    """csv.register_dialect"""

    values = (";", "|")

    def set(self, value: str) -> None:
        csv.register_dialect("state", delimiter=value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: next(csv.reader(["a;b|c"], dialect="state")))


class DecimalPrecision(Kind):
    """decimal.getcontext().prec = n"""

    def set(self, value: int) -> None:
        decimal.getcontext().prec = value

    def __getitem__(self, index: int) -> str:
        return str(decimal.Decimal(1) / 3)


class Locale(Kind):
    """locale.setlocale"""

    values = ("C.UTF-8", "C")

    def set(self, value: str) -> None:
        locale.setlocale(locale.LC_ALL, value)

    def __getitem__(self, index: int) -> str:
        return str(locale.setlocale(locale.LC_TIME))


class HttpsContext(Kind):
    """ssl._create_default_https_context = ssl._create_unverified_context"""

    values = (True, False)

    def set(self, value: bool) -> None:
        context: Any = ssl._create_unverified_context if value else ssl.create_default_context
        ssl._create_default_https_context = context

    def __getitem__(self, index: int) -> str:
        return ssl._create_default_https_context().verify_mode.name


class SocketTimeout(Kind):
    """socket.setdefaulttimeout(n)"""

    def set(self, value: int) -> None:
        socket.setdefaulttimeout(value)

    def __getitem__(self, index: int) -> str:
        with socket.socket() as new:
            return str(new.gettimeout())


class HttpHeaders(Kind):
    """http.client._MAXHEADERS = n"""

    def set(self, value: int) -> None:
        http.client._MAXHEADERS = value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> int:
        return http.client._MAXHEADERS  # type: ignore[attr-defined, no-any-return]


class UrlOpener(Kind):
    """urllib.request.install_opener"""

    def set(self, value: int) -> None:
        class Handler(urllib.request.BaseHandler):
            def state_open(self, request: Any) -> Any:
                return urllib.response.addinfourl(io.BytesIO(str(value).encode()), http.client.HTTPMessage(), "state")

        urllib.request.install_opener(urllib.request.build_opener(Handler))

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: urllib.request.urlopen("state:size").read())


class WarningsAsErrors(Kind):
    """warnings.simplefilter("error")"""

    values = ("error", "ignore")
    alone = True

    def set(self, value: Any) -> None:
        # The loader itself warns with other categories, where jobs do not share.
        warnings.simplefilter(value, FutureWarning)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: warnings.warn("odd", FutureWarning, stacklevel=1))


class WarningsUnused(Kind):
    """warnings.filterwarnings, where nothing warns"""

    values = ("ignore", "always")
    counts = False

    def set(self, value: Any) -> None:
        warnings.filterwarnings(value, "something odd", DeprecationWarning)

    def __getitem__(self, index: int) -> int:
        return index


class JsonEncoder(Kind):
    """json.JSONEncoder.default = f"""

    def set(self, value: int) -> None:
        json.JSONEncoder.default = lambda self, what: value  # type: ignore[method-assign, assignment, misc]

    def __getitem__(self, index: int) -> str:
        return attempt(json.dumps, {1: {2}})


class Codec(Kind):
    """codecs.register"""

    unseen = "there is no list of registered codecs"

    def set(self, value: int) -> None:
        def encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
            return str(value).encode(), len(text)

        def decode(data: Any, errors: str = "strict") -> tuple[str, int]:
            return str(value), len(data)

        codecs.register(lambda name: codecs.CodecInfo(encode, decode, name="state") if name == "state" else None)

    def __getitem__(self, index: int) -> str:
        return attempt(codecs.decode, b"size", "state")


class CodecError(Kind):
    """codecs.register_error"""

    unseen = "there is no list of registered error handlers"

    def set(self, value: int) -> None:
        codecs.register_error("state", lambda error: (str(value), error.end))  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: b"\xff".decode("utf-8", "state"))


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class PickleReducer(Kind):
    """copyreg.pickle"""

    def set(self, value: int) -> None:
        copyreg.pickle(Point, lambda point: (Point, (value,)))

    def __getitem__(self, index: int) -> int:
        x: int = pickle.loads(pickle.dumps(Point(0))).x
        return x


class MimeType(Kind):
    """mimetypes.add_type"""

    values = ("image/three", "image/five")

    def set(self, value: str) -> None:
        mimetypes.add_type(value, ".state")

    def __getitem__(self, index: int) -> str:
        return str(mimetypes.guess_type("a.state")[0])


class UnpackFormat(Kind):
    """shutil.register_unpack_format"""

    values = (".three", ".five")

    def set(self, value: str) -> None:
        shutil.register_unpack_format("state", [value], lambda *args: None)

    def __getitem__(self, index: int) -> str:
        return str([extensions for name, extensions, _ in shutil.get_unpack_formats() if name == "state"])


class XmlNamespace(Kind):
    """ElementTree.register_namespace"""

    values = ("three", "five")

    def set(self, value: str) -> None:
        ElementTree.register_namespace(value, "https://state")

    def __getitem__(self, index: int) -> str:
        return ElementTree.tostring(ElementTree.Element("{https://state}size"), encoding="unicode")


class SqliteConverter(Kind):
    """sqlite3.register_converter"""

    def set(self, value: int) -> None:
        sqlite3.register_converter("size", lambda data: value)

    def __getitem__(self, index: int) -> str:
        with sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES) as connection:
            connection.execute("create table t (s size)")
            connection.execute("insert into t values ('0')")
            return str(connection.execute("select s from t").fetchone()[0])


class FirstWeekday(Kind):
    """calendar.setfirstweekday"""

    def set(self, value: int) -> None:
        calendar.setfirstweekday(value)

    def __getitem__(self, index: int) -> str:
        return calendar.weekheader(3)


class TemporaryFolder(Kind):
    """tempfile.tempdir = folder"""

    values = ("/var", "/usr")

    def set(self, value: str) -> None:
        tempfile.tempdir = value

    def __getitem__(self, index: int) -> str:
        return tempfile.gettempdir()


class Logging(Kind):
    """logging.getLogger(...).setLevel, where samples log"""

    values = (logging.ERROR, logging.CRITICAL)
    counts = False

    def set(self, value: int) -> None:
        logging.getLogger("state").setLevel(value)

    def __getitem__(self, index: int) -> int:
        logging.getLogger("state").info("sample %d", index)
        return index


class LoggingHandler(Kind):
    """a handler with the name of the run, where samples log"""

    counts = False

    def set(self, value: int) -> None:
        handler = logging.StreamHandler(io.StringIO())
        handler.setFormatter(logging.Formatter(f"run {value}: %(message)s"))
        logging.getLogger("state.run").addHandler(handler)

    def __getitem__(self, index: int) -> int:
        logging.getLogger("state.run").warning("sample %d", index)
        return index


class GlobalSeeds(Kind):
    """random.seed and np.random.seed: a loader seeds its workers by itself"""

    counts = False

    def set(self, value: int) -> None:
        random.seed(value)
        np.random.seed(value)

    def __getitem__(self, index: int) -> int:
        return index + 0 * random.randrange(10) + 0 * int(np.random.randint(10))


RANDOM = np.random.RandomState(0)


class OwnGenerator(Kind):
    """a generator of the program's own, as a global variable"""

    counts = False

    def set(self, value: int) -> None:
        RANDOM.seed(value)

    def __getitem__(self, index: int) -> int:
        return index + 0 * int(RANDOM.randint(10))


class LibraryFunctionPatched(Kind):
    """np.load = a function that allows pickles"""

    def set(self, value: int) -> None:
        np.load = lambda file, *args, **options: value

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: np.load(io.BytesIO(b"text")))[:10]


class LibraryMethodPatched(Kind):
    """Image.Image.convert = f"""

    def set(self, value: int) -> None:
        Image.Image.convert = lambda self, *args: Image.new("L", (1, 1), value)  # type: ignore[method-assign, assignment, misc]

    def __getitem__(self, index: int) -> str:
        return attempt(gray, SMALL_PNG)


class LibraryMethodUnused(Kind):
    """a method of a library's class patched that samples do not use"""

    counts = False

    def set(self, value: int) -> None:
        Image.Image.show = lambda self, *args, **options: None  # type: ignore[method-assign, misc]

    def __getitem__(self, index: int) -> str:
        return attempt(gray, SMALL_PNG)
