"""Small objects from a worker to the jobs: exceptions, and the structure of samples.

What the main script defines is not importable by that name in a worker, which got it by value, and each job has its
own: it travels by name, and is looked up in the job's main script.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
from typing import Any

_HERE = os.path.dirname(__file__)
_MAINS = ("__main__", "__mp_main__")


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        if isinstance(obj, type) and obj.__module__ in _MAINS:
            return "main", obj.__qualname__
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return _find(pid[1])


def _find(qualified_name: str) -> Any:
    """A class of the main script: in a job the script's own, in a worker the one that came with the dataset."""
    found: Any = sys.modules["__main__"]
    try:
        for name in qualified_name.split("."):
            found = getattr(found, name)
    except AttributeError:
        cloudpickle: Any = sys.modules.get("cloudpickle.cloudpickle")
        for kind in list(getattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", ())):
            if kind.__module__ in _MAINS and kind.__qualname__ == qualified_name:
                return kind
        raise pickle.UnpicklingError(
            f"{qualified_name} is not defined in the main script: move it to a module"
        ) from None
    return found


def dumps(obj: Any) -> bytes:
    """As bytes."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(obj)
    return stream.getvalue()


def loads(data: bytes) -> Any:
    """From bytes."""
    return _Unpickler(io.BytesIO(data)).load()


def dump_exception(error: BaseException) -> bytes:
    """An exception as bytes; empty if it cannot travel."""
    for args, state in ((error.args, error.__dict__), ((str(error),), {})):
        try:
            data = dumps((type(error), args, state))
            loads(data)
        except Exception:
            if type(error).__module__ not in _MAINS:
                continue
            # Its class is found in the job, not here.
            try:
                data = dumps((type(error), args, state))
            except Exception:
                continue
        return data
    return b""


def load_exception(data: bytes) -> BaseException | None:
    """The exception again; made as it was, not by its ``__init__``, which may take other arguments."""
    try:
        kind, args, state = loads(data)
        error = kind.__new__(kind, *args)
        error.args = args
        error.__dict__.update(state)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def describe(error: BaseException) -> str:
    """Type, text and traceback, causes included, without the frames of this package."""
    told = traceback.TracebackException.from_exception(error)
    _hide_frames(told)
    return "".join(told.format()).rstrip()


def _hide_frames(told: traceback.TracebackException | None) -> None:
    if told is None:
        return
    told.stack[:] = [frame for frame in told.stack if os.path.dirname(frame.filename) != _HERE]
    for other in (told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())):
        _hide_frames(other)
