"""Transport of small objects from a worker to the jobs: exceptions, and the structure of samples.

A worker received the classes of the main script by value and cannot import them by name, while each job has its own.
Such a class therefore travels by name, and is looked up in the job's main script.
"""

from __future__ import annotations

import io
import os
import pickle
import traceback
from typing import Any

from coprep._names import MAINS, class_at, find_in_main, name_in_main, path_of

_HERE = os.path.dirname(__file__)
MOST_EXCEPTION = 1 << 20
"""Longest packed exception, in bytes, that travels whole. The coordinator passes on no longer one."""
_VALUE = 100_000
"""Most characters or bytes of a value that are kept when an exception is shortened."""
_TEXT, _LINE = 60_000, 16_000
"""Most characters of an exception's description, and of one entry in it."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        if not isinstance(obj, type):
            return None
        if obj.__module__ in MAINS:
            name = name_in_main(obj)
            if name is None:
                raise pickle.PicklingError(
                    f"samples are of a class {obj.__qualname__}, and another class of the main script has this name: "
                    "give it a name of its own, at the top level of the script or of a module"
                )
            return MAINS[0], name
        path = path_of(obj)
        return (obj.__module__, path) if path is not None else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        module, path = pid
        return find_in_main(path) if module == MAINS[0] else class_at(module, path)


def dumps(obj: Any) -> bytes:
    """Returns a packed object."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(obj)
    return stream.getvalue()


def loads(data: bytes) -> Any:
    """Returns the object that :func:`dumps` has packed."""
    return _Unpickler(io.BytesIO(data)).load()


def dump_exception(error: BaseException) -> bytes:
    """Returns an exception as bytes: whole or, if too long, with its long texts cut; empty if it cannot travel."""
    for form in (_whole, _cut_short, _text_alone):
        try:
            data = dumps((type(error), *form(error)))
            if type(error).__module__ not in MAINS:
                loads(data)
            # A class of the main script is found in the job, not here, so it cannot be tried out.
        except Exception:
            # Any class of exceptions may fail to pickle, and the next form is simpler.
            continue
        if len(data) <= MOST_EXCEPTION:
            return data
    return b""


Form = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and state of an exception."""


def _whole(error: BaseException) -> Form:
    # `args` is not all: an OSError keeps its file apart, an ImportError its module. Their own pickling includes these.
    reduced: Any = _builtin(type(error)).__reduce__(error)
    return reduced[1], reduced[2] if len(reduced) > 2 and reduced[2] else {}


def _cut_short(error: BaseException) -> Form:
    args, state = _whole(error)
    return tuple(map(_shortened, args)), {name: _shortened(value) for name, value in state.items()}


def _text_alone(error: BaseException) -> Form:
    return (_shortened(str(error)),), {}


def _builtin(kind: type[BaseException]) -> type[BaseException]:
    """Returns the first class, among ``kind`` and its bases, that Python itself defines."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def load_exception(data: bytes) -> BaseException | None:
    """Returns the exception again. It is made without its own ``__init__``, which may take other arguments."""
    try:
        kind, args, state = loads(data)
        error: BaseException = kind.__new__(kind, *args)
        try:
            # This sets the attributes that Python's own exceptions have beside `args`, such as
            # UnicodeDecodeError.object.
            _builtin(kind).__init__(error, *args)
        except Exception:
            error.args = args
        error.__setstate__(state)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def describe(error: BaseException) -> str:
    """Returns type, text and traceback, causes included, without the frames of this package.

    Long texts are cut, with a note.
    """
    trace = traceback.TracebackException.from_exception(error)
    _hide_frames(trace)
    text = cut("".join(cut(line, _LINE) for line in trace.format()).rstrip(), _TEXT)
    # File names may contain bytes that are not text, which no message can carry.
    return text.encode("utf-8", "backslashreplace").decode()


def _hide_frames(trace: traceback.TracebackException | None) -> None:
    if trace is None:
        return
    trace.stack[:] = [frame for frame in trace.stack if os.path.dirname(frame.filename) != _HERE]
    for other in (trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())):
        _hide_frames(other)


def cut(text: str, most: int) -> str:
    """Returns the text or, if it is longer than ``most`` characters, its beginning and its end."""
    left, half = len(text) - most, most // 2
    return text if left <= 0 else f"{text[:half]} ... [{left:,} characters left out by coprep] ... {text[-half:]}"


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value, _VALUE)
    left, half = len(value) - _VALUE if isinstance(value, bytes) else 0, _VALUE // 2
    if left <= 0:
        return value
    return value[:half] + f" ... [{left:,} bytes left out by coprep] ... ".encode() + value[-half:]
