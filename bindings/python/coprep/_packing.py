"""Conversion of samples and cached values into bytes and back.

Large buffers lie beside the pickle, so that reading need not copy them.
"""

from __future__ import annotations

import functools
import io
import linecache
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from coprep._names import MAINS, class_at, name_in_main, path_of
from coprep._tensors import Tensors

# The header: magic, number of buffers, bytes of the whole, bytes of the pickle. Then come the bytes of each buffer.
_HEADER = struct.Struct("<4sIQQ")
_LENGTH = struct.Struct("<Q")
_MAGIC = b"cpk1"
_ALIGN = 64


class Packed:
    """An object as bytes in several pieces. It refers to the object's own buffers, so the object must not change."""

    __slots__ = ("_pieces", "size")

    def __init__(self, data: bytes, buffers: list[memoryview]) -> None:
        lengths = [buffer.nbytes for buffer in buffers]
        start = _HEADER.size + _LENGTH.size * len(lengths)
        offsets = list(_offsets(start + len(data), lengths))
        self.size = offsets[-1] + lengths[-1] if offsets else start + len(data)
        head = _HEADER.pack(_MAGIC, len(lengths), self.size, len(data)) + struct.pack(f"<{len(lengths)}Q", *lengths)
        self._pieces: list[tuple[int, bytes | memoryview]] = [
            (0, head),
            (start, data),
            *zip(offsets, buffers, strict=True),
        ]

    def write_to(self, view: memoryview) -> int:
        """Writes the bytes to the beginning of ``view`` and returns their number.

        Raises:
            ValueError: ``view`` is too short.
        """
        target = view.cast("B")
        if target.nbytes < self.size:
            raise ValueError(f"{self.size} bytes do not fit into {target.nbytes}")
        for offset, piece in self._pieces:
            target[offset : offset + len(piece)] = piece
        return self.size


def pack(obj: Any, *, for_jobs: bool = False) -> Packed:
    """Turns ``obj`` into bytes.

    With ``for_jobs``, a class of the main script becomes, in a job, the class of that name in the job's own script.

    Classes and functions of the main script, and others that cannot be imported by name, travel by value. This needs
    ``cloudpickle``.
    """
    try:
        return _pickled(_Pickler, obj)
    except (pickle.PicklingError, AttributeError) as error:
        return _pickled(_by_value(error, for_jobs), obj)


def unpack(view: memoryview | bytes | bytearray) -> Any:
    """Returns the object whose bytes are at the beginning of ``view``.

    Arrays and tensors lie in ``view`` itself if it is writable; otherwise they are copies.

    Raises:
        ValueError: these are not the bytes of an object, or not all of them.
    """
    source = memoryview(view).cast("B")
    if source.nbytes < _HEADER.size:
        raise ValueError(f"no packed object: {source.nbytes} bytes are less than a header")
    magic, count, size, length = _HEADER.unpack_from(source)
    start = _HEADER.size + _LENGTH.size * count
    if magic != _MAGIC:
        raise ValueError("no packed object: it begins with other bytes")
    if not start + length <= size <= source.nbytes:
        raise ValueError(f"a packed object of {size} bytes is cut off: there are {source.nbytes}")
    lengths = struct.unpack_from(f"<{count}Q", source, _HEADER.size)
    offsets = list(_offsets(start + length, lengths))
    if size != (offsets[-1] + lengths[-1] if offsets else start + length):
        raise ValueError(f"a packed object of {size} bytes is damaged: its parts are of another size")
    buffers: list[Any] = [source[offset : offset + n] for offset, n in zip(offsets, lengths, strict=True)]
    if source.readonly:
        buffers = [bytearray(buffer) for buffer in buffers]
    return pickle.loads(source[start : start + length], buffers=buffers)


def _offsets(end: int, lengths: tuple[int, ...] | list[int]) -> Iterator[int]:
    for length in lengths:
        offset = -(-end // _ALIGN) * _ALIGN
        yield offset
        end = offset + length


def _pickled(pickler: Any, obj: Any) -> Packed:
    packed, tensors = _attempt(pickler, obj, Tensors())
    if tensors.overlap:
        packed, _ = _attempt(pickler, obj, Tensors(tensors))
    return packed


def _attempt(pickler: Any, obj: Any, tensors: Tensors) -> tuple[Packed, Tensors]:
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    attempt = pickler(stream, protocol=5, buffer_callback=buffers.append)
    attempt.tensors = tensors
    attempt.dump(obj)
    return Packed(stream.getvalue(), [buffer.raw() for buffer in buffers]), tensors


class _Pickler(pickle.Pickler):
    """Refuses objects that the main script defines: their names mean something else in another process."""

    tensors: Tensors

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)):
            if obj.__module__ in MAINS:
                raise pickle.PicklingError(f"{obj!r} is defined in the main script")
            return NotImplemented
        return _reduce(obj, self)


def _by_value(reason: Exception, for_jobs: bool) -> Any:
    try:
        return _by_value_pickler()[for_jobs]
    except ImportError:
        message = f"{reason}: define it in a module that can be imported, or install cloudpickle"
        raise pickle.PicklingError(message) from reason


@functools.cache
def _by_value_pickler() -> tuple[Any, Any]:
    """Returns two picklers that pickle classes by value. The second one does so for jobs."""
    import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]

    spawned = sys.modules.get("__mp_main__")
    if spawned is not None:
        # In a process that multiprocessing spawned, the main script has this name, which no other process can import.
        # cloudpickle handles only "__main__".
        cloudpickle.register_pickle_by_value(spawned)

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, io.TextIOWrapper):
                refuse_text_file(obj)
            if type(obj) is CodeType:
                return _code, (*self.dispatch_table[CodeType](obj), obj.co_filename, _lines_of(obj.co_filename))
            if isinstance(obj, type) and obj.__module__ not in MAINS and (path := path_of(obj)) is not None:
                # By value it would become another class than the one that the job's own code names.
                return class_at, (obj.__module__, path)
            reduced = _reduce(obj, self)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    @functools.lru_cache(maxsize=256)
    def class_by_value(cls: type) -> bytes:
        stream = io.BytesIO()
        by_value = ByValue(stream, protocol=5)
        by_value.tensors = Tensors()
        by_value.dump(cls)
        return stream.getvalue()

    class ForJobs(ByValue):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and obj.__module__ in MAINS and (name := name_in_main(obj)) is not None:
                return _class_of_main, (name, class_by_value(obj))
            return super().reducer_override(obj)

    return ByValue, ForJobs


def refuse_text_file(file: io.TextIOWrapper) -> None:
    """Raises an error for an open file, but not for the standard output and error.

    cloudpickle would make a copy of the whole text, whose positions are not those of the file.
    """
    if file not in (sys.stdout, sys.stderr):
        raise TypeError("cannot pickle an open file")


def _class_of_main(qualified_name: str, by_value: bytes) -> Any:
    """Returns the class of this process's main script or, if that has none, the class that came by value."""
    found: Any = sys.modules.get("__main__")
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and found.__module__ in MAINS else pickle.loads(by_value)


def _lines_of(filename: str) -> list[str] | None:
    """Returns source that is in no file, such as that of a notebook's cell or an interactive session."""
    return None if os.path.exists(filename) else linecache.getlines(filename) or None


def _code(
    make: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str, lines: list[str] | None
) -> CodeType:
    """Returns code that keeps its file and line in tracebacks, which cloudpickle leaves out."""
    if lines is not None:
        # An entry with no time is kept: `linecache` would drop one whose file is missing.
        linecache.cache.setdefault(filename, (sum(map(len, lines)), None, lines, filename))
    return make(*arguments).replace(co_filename=filename)


def _reduce(obj: Any, pickler: Any) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(obj, getattr(torch, "Tensor", ())):
        return pickler.tensors.reduce(obj, torch)
    images: Any = sys.modules.get("PIL.Image")
    if images is not None and isinstance(obj, images.Image):
        return _reduce_image(obj)
    return NotImplemented


def _reduce_image(image: Any) -> Any:
    data = image.tobytes()
    palette = None
    if image.mode in ("P", "PA"):
        # The palette is taken in its own mode. By default Pillow converts it to RGB, without its transparency.
        palette = (bytes(image.getpalette(None)), image.palette.mode)
    return _image, (pickle.PickleBuffer(data), image.mode, image.size, palette, image.info)


def _image(data: Any, mode: str, size: tuple[int, int], palette: tuple[bytes, str] | None, info: Any) -> Any:
    from PIL import Image

    image = Image.frombytes(mode, size, data)
    if palette is not None:
        image.putpalette(*palette)
    image.info = info
    return image
