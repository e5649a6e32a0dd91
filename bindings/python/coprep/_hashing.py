"""Digests of objects, equal in every process whose objects are equal.

Data is hashed as a pickle stream without a memo, so that it makes no difference which of several equal objects are the
same object. Functions and classes count by their name, and functions by what they do: what they read counts elsewhere.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import functools
import hashlib
import io
import mmap
import os
import pickle
import random
import re
import sys
import threading
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import numpy.typing as npt

from coprep._caches import HOOK, identified, reducer_of
from coprep._codes import digest_of_code
from coprep._content import COLUMNS, array_digest, column_digest, tensor_digest
from coprep._generators import kind_of
from coprep._memory import Mappings, address_of
from coprep._modules import digest_of as _hash
from coprep._names import MAINS, main_name
from coprep._private import Private, path_to, reason_of, token_of, tokens_within
from coprep._reach.memory import calls_python, is_followed_code, is_seeded, records
from coprep._reach.memory import cell as contents

Handler = Callable[[Any], bytes | None]

STRINGS = 1000
"""Most strings that are kept as possible relative paths."""
LONG = 64
"""Shortest list that is not pickled element by element, if its elements are alike."""
LOCATED = 16
"""Most private objects of a value whose paths are looked for."""
STREAM = 2 << 30
"""Bytes of a pickle without memo above which shared objects are assumed to be repeated too often."""
NESTED, NESTED_DEPTH = 4 << 20, 8
"""Most bytes of the pickles of values that are hashed within others, at this depth and below."""

_OF_LAUNCHERS = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|HOSTNAME|.*RANK|.*WORLD_SIZE|CUDA_VISIBLE_DEVICES|JOB_ID|"
    r"(COPREP|SLURM|OMPI|PMI|PMIX|PBS|LSB|MASTER|TORCHELASTIC|ROLE|RAY|WANDB|MLFLOW|COMET|CLEARML|TERM|SSH|TMUX|STY|"
    r"XDG_SESSION|WINDOWID|VSCODE|PYTEST|KUBERNETES|JUPYTER|JPY)(_.*)?"
)
"""Names of variables that launchers, shells and trackers set, and that differ between jobs which share."""
_OF_PYTHON = "numpy.frompyfunc has made it of a function that it does not show"
_SHARED = "memory that processes share: a write of one job would reach the samples of others"


class _RepeatsTooOften(Exception):
    pass


class _Sink:
    """Hashes a pickle stream and the buffers beside it."""

    def __init__(self, limit: int | None) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._buffers: list[bytes] = []
        self._limit = limit
        self.written = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        if len(data) < 1 << 20:  # Large bytes come alone, and hashing them takes no longer than holding them.
            self.written += len(data)
            if self._limit is not None and self.written > self._limit:
                raise _RepeatsTooOften
        return len(data)

    def buffer(self, buffer: pickle.PickleBuffer) -> None:
        try:
            raw = buffer.raw()
        except BufferError:
            raw = memoryview(memoryview(buffer).tobytes())
        self._buffers.append(_hash(raw))

    def digest(self) -> bytes:
        digest = self._hash.digest()
        return _hash(digest, *self._buffers) if self._buffers else digest


class _Pickler(pickle.Pickler):
    """Pickles as cloudpickle does, except functions, classes and modules, for which there are handlers."""

    def __init__(self, sink: _Sink, hasher: Hasher, handlers: dict[type, Handler | None], fast: bool) -> None:
        super().__init__(sink, protocol=5, buffer_callback=sink.buffer)
        self.fast = fast
        self.dispatch_table = hasher.reducers
        self._hasher = hasher
        self._handlers = handlers

    def persistent_id(self, obj: Any) -> bytes | None:
        # This is called for each string and number of the data, so it must stay this short.
        try:
            handler = self._handlers[type(obj)]
        except KeyError:
            handler = self._handlers[type(obj)] = self._hasher.handler(type(obj))
        return None if handler is None else handler(obj)


class _Lenient(_Pickler):
    """Pickles an object that refuses as one that equals no other. Asking each object first takes longer."""

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        try:
            reducer = self._hasher.reducers.get(cls)
            reduced: Any = obj.__reduce_ex__(5) if reducer is None else reducer(obj)
        except (MemoryError, RecursionError):
            # The depth at which the stack is full depends on the caller, so the value as a whole cannot be compared.
            raise
        except Exception as error:
            return identified, (cls, self._hasher.private(obj, _reason(error)))
        # It is pickled by the name of a global variable, which may be another object.
        return (identified, (cls, reduced)) if isinstance(reduced, str) else reduced


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    # Pickle's own messages say what is refused. The message of another error may mean nothing without its type.
    is_pickles = text and isinstance(error, (TypeError, pickle.PicklingError))
    return text if is_pickles else f"{type(error).__name__}: {text}"


_ATTEMPTS = ((_Pickler, True), (_Lenient, True), (_Pickler, False), (_Lenient, False))
"""Ways to pickle a value, each with whether it is without a memo, from the quickest to the one that takes all."""


def _needs_memo(error: Exception) -> bool:
    is_cyclic = isinstance(error, ValueError) and str(error).startswith("fast mode: can't pickle cyclic")
    return is_cyclic or isinstance(error, (RecursionError, _RepeatsTooOften))


class Hasher:
    """Hashes values, and notes the libraries and possible paths in them.

    Args:
        found: is given the objects that cannot be compared with those of other processes.
        followed: ids of functions whose reads count elsewhere.
    """

    def __init__(self, found: list[Private], followed: Container[int] = ()) -> None:
        self.functions: dict[str, Any] = {}
        """Functions of the user's in the values that were not followed, by name."""
        self._followed = followed
        self.strings: set[str] = set()
        self.modules: dict[str, None] = {}
        """Modules of the classes of all objects."""
        self.reducers = dict(cloudpickle.Pickler.dispatch_table)  # looked up for each object: quicker than a ChainMap
        self._found = found
        self._private: list[tuple[Any, str]] = []
        self._mappings = Mappings()
        self._fast: dict[type, Handler | None] = {str: self.note_string, list: self._list}
        self._memoizing: dict[type, Handler | None] = {
            str: self._string_by_value,
            bytes: lambda obj: b"b" + obj,
            list: self._list,
        }
        self._digests: dict[int, bytes] = {}  # digests that are the same wherever the object is met
        self._entered: dict[int, Any] = {}
        """Functions whose defaults and closures are hashed already, by their id. They may hold each other."""
        self._met: dict[int, tuple[int, Any]] = {}
        """Functions that a factory may have made, numbered as they are met, by their id."""
        self._unlike: dict[int, Any] = {}
        """Long lists that have to be pickled element by element, by their id."""
        self._depth = 0
        """Number of values, each within another one, that are being hashed."""
        self._nested = 0
        """Bytes of values that were hashed deep within another one."""
        self._open: dict[int, int] = {}  # sets that contain the object being hashed
        self._keep: list[Any] = []  # keeps hashed objects alive, so that no other object gets their id

    def named(self, name: str, value: Any) -> bytes:
        """Returns the digest of a value, and notes where in it an object cannot be compared."""
        digest = self.plain(value)
        for index, (obj, reason) in enumerate(self._private):
            # Each search may go through the whole value, which may hold thousands of them.
            self._found.append(Private(name + (path_to(obj, value) if index < LOCATED else ""), reason))
        self._private.clear()
        return digest

    def note(self, module: Any) -> None:
        if isinstance(module, str) and module not in MAINS:
            self.modules[module] = None

    def plain(self, value: Any) -> bytes:
        """Returns the digest of a value."""
        told, known = len(self._private), [(noted, len(noted)) for noted in (self._entered, self._met)]
        last: Exception | None = None
        for pickler, fast in _ATTEMPTS:
            if last is not None:
                if fast and _needs_memo(last):
                    continue
                del self._private[told:]
                for noted, count in known:
                    while len(noted) > count:
                        noted.popitem()
            self._depth += 1
            try:
                return self._pickle(value, pickler, fast)
            except MemoryError:
                raise
            except RecursionError as error:
                if self._depth > 1:
                    # If each level tried all ways, it would never end.
                    raise
                last = error
            except Exception as error:
                last = error
            finally:
                self._depth -= 1
        self._private.append((value, _reason(last or TypeError())))
        return _hash(b"!", tokens_within(value))

    def _pickle(self, value: Any, pickler: type[_Pickler], fast: bool) -> bytes:
        sink = _Sink(STREAM if fast else None)
        pickler(sink, self, self._fast if fast else self._memoizing, fast).dump(value)
        # Each set and closure is pickled apart, so an object that several of them hold is pickled for each.
        if self._depth > NESTED_DEPTH:
            self._nested += sink.written
            if self._nested > NESTED:
                raise RecursionError("sets and functions in it hold each other in too many ways")
        return sink.digest()

    def private(self, obj: Any, reason: str) -> bytes:
        """Returns bytes that stand for an object which cannot be compared, and notes the reason."""
        self._private.append((obj, reason))
        self._keep.append(obj)
        return b"!" + token_of(obj)

    def handler(self, cls: type) -> Handler | None:
        """Returns the function that replaces the pickling of a class's instances, or ``None`` if they are pickled."""
        self.note(cls.__module__)
        identified = hasattr(cls, HOOK) and not issubclass(cls, type)
        for base, handler in self._handlers():
            if issubclass(cls, base) and not identified:
                return handler
        reason = reason_of(cls)
        if reason is not None and not identified:
            return lambda obj: self.private(obj, reason)
        reducer = reducer_of(cls)
        if reducer is not None:
            # A reducer is used instead of a handler, so that the pickler notices an object that leads back to itself.
            self.reducers[cls] = reducer
        return self._path if hasattr(cls, "__fspath__") else None

    def _handlers(self) -> Iterator[tuple[Any, Handler]]:
        yield (types.FunctionType, type, functools._lru_cache_wrapper), self._code
        yield types.ModuleType, self._module
        yield types.CodeType, lambda code: b"c" + digest_of_code(code)
        yield types.BuiltinFunctionType, self._builtin
        yield (set, frozenset), self._set
        yield np.ndarray, self._array
        yield np.ufunc, lambda obj: self.private(obj, _OF_PYTHON) if calls_python(obj) else None
        yield PurePath, self._pure_path
        yield (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator), self._generator
        yield TypeVar, lambda obj: b"v" + self.plain((obj.__name__, obj.__bound__, obj.__constraints__))
        yield functools.cached_property, lambda obj: b"p" + self.plain((type(obj), obj.func, obj.attrname))
        yield (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), self._file
        yield mmap.mmap, self._mmap
        yield contextvars.ContextVar, lambda obj: b"x" + self.plain((obj.name, _value_in_context(obj)))
        yield threading.local, self._thread_local
        yield os._Environ, lambda obj: b"e" + self.plain(environment_of(obj))
        omegaconf: Any = sys.modules.get("omegaconf")
        if hasattr(omegaconf, "Container"):
            yield omegaconf.Container, self._configuration
        torch: Any = sys.modules.get("torch")
        if hasattr(torch, "Tensor"):
            yield torch.Tensor, self._tensor
            yield torch.Generator, self._torch_generator
            yield torch.UntypedStorage, self._storage
            yield torch.TypedStorage, lambda obj: b"y" + self.plain((str(obj.dtype), obj._untyped_storage))

    def _generator(self, generator: Any) -> bytes | None:
        return b"R" + _hash(kind_of(generator).encode()) if is_seeded(generator) else None

    def _configuration(self, container: Any) -> bytes | None:
        # A part of a configuration is pickled with all of it, and a value that is written as ``${...}`` unresolved.
        to_container = sys.modules["omegaconf"].OmegaConf.to_container
        with contextlib.suppress(Exception):
            return b"o" + self.plain((type(container), to_container(container, resolve=True)))
        return None

    def _torch_generator(self, generator: Any) -> bytes:
        state = None if is_seeded(generator) else generator.get_state()
        return b"g" + self.plain((type(generator), generator.device.type, state))

    def note_string(self, text: str) -> None:
        # A relative path is short and has one line. An absolute one means the same in every working directory.
        if text[:1] != "/" and text not in self.strings and len(text) < 1024 and "\n" not in text:
            self.strings.add(text)
            if len(self.strings) == STRINGS:
                # From now on strings are pickled without a call for each.
                self._fast[str] = None

    def _string_by_value(self, text: str) -> bytes:
        # With a memo, the digest of a string would depend on whether an equal string is the same object.
        if len(self.strings) < STRINGS:
            self.note_string(text)
        return b"s" + text.encode("utf-8", "surrogatepass")

    def _list(self, elements: list[Any]) -> bytes | None:
        if len(elements) < LONG or id(elements) in self._unlike:
            return None
        about, cls = b"", type(elements[0])
        rows = elements if cls in COLUMNS or self._is_handled(cls) else records(elements)
        if rows is not elements:
            about = self._code(cls)
        digest = None if rows is None else column_digest(rows, self._note_texts)
        if rows is None or digest is None:
            self._unlike[id(elements)] = elements
            return None
        return b"l" + about + digest

    def _note_texts(self, texts: Sequence[str]) -> None:
        for text in texts[:STRINGS]:
            if len(self.strings) >= STRINGS:
                return
            self.note_string(text)

    def _is_handled(self, cls: type) -> bool:
        """Returns whether instances of a class are pickled in a way of their own."""
        ways = {"__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs_ex__"}
        own = any(ways & base.__dict__.keys() for base in cls.__mro__[:-1])
        own |= "__getnewargs__" in cls.__dict__ and not hasattr(cls, "_fields")
        return own or self.handler(cls) is not None or cls in self.reducers or cls in copyreg.dispatch_table

    def _path(self, path: os.PathLike[Any]) -> None:
        if len(self.strings) < STRINGS:
            self.note_string(os.fsdecode(path))

    def _pure_path(self, path: PurePath) -> bytes | None:
        self._path(path)
        if not type(path).__module__.startswith("pathlib"):
            return None
        return b"/" + _hash(type(path).__name__.encode(), os.fsencode(path))

    def _set(self, elements: set[Any] | frozenset[Any]) -> bytes:
        key = id(elements)
        if key in self._open:
            return b"o%d" % self._open[key]
        self._open[key] = len(self._open)
        try:
            digest = self._elements(elements)
            if type(elements) not in (set, frozenset):
                digest = _hash(digest, self.plain((type(elements), getattr(elements, "__dict__", None))))
        finally:
            del self._open[key]
        return (b"S" if isinstance(elements, set) else b"F") + digest

    def _elements(self, elements: set[Any] | frozenset[Any]) -> bytes:
        kinds = {type(e) for e in elements}
        # Such elements can be sorted, which takes less time than a digest of each.
        if len(kinds) == 1 and kinds <= {str, bytes, int}:
            return self.plain(sorted(elements))
        return _hash(*sorted(map(self.plain, elements)))

    def _array(self, array: npt.NDArray[Any]) -> bytes | None:
        # Subclasses may have attributes, and elements that are objects have no bytes of their own: both are pickled.
        if type(array) not in (np.ndarray, np.memmap) or array.dtype.hasobject:
            return None
        mapping = self._mappings.of_array(array)
        if mapping is not None and mapping.is_shared:
            return self.private(array, _SHARED)
        digest = self._digests.get(id(array))
        if digest is None:
            if array.dtype.kind in "US" and len(self.strings) < STRINGS:
                for text in array.flat[:STRINGS].tolist():
                    self._path(text)
            file = mapping and mapping.file_at(address_of(array))
            about = repr((array.dtype, array.dtype.str, array.shape, array.strides)).encode()
            digest = self._remember(array, b"a" + (_hash(file, about) if file else array_digest(array)))
        return digest

    def _mmap(self, mapped: mmap.mmap) -> bytes:
        try:
            array = np.frombuffer(mapped, np.uint8)
        except ValueError as error:
            return self.private(mapped, _reason(error))
        mapping = self._mappings.at(address_of(array))
        if mapping is not None and mapping.is_shared:
            return self.private(mapped, _SHARED)
        file = mapping and mapping.file_at(address_of(array))
        return b"M" + _hash(file or array_digest(array), b"%d" % len(mapped))

    def _thread_local(self, local: threading.local) -> bytes:
        """Returns the digest of this thread's values, without handles: most programs open these when they need them."""
        digests = [self.plain(type(local))]
        for name, value in vars(local).items():
            told = len(self._private)
            digest = None if value is None or isinstance(value, io.IOBase) else self.plain((name, value))
            # Something else that cannot be compared may hold settings beside a handle, and keeps its job from sharing.
            is_handle = not hasattr(value, "__dict__") and not isinstance(value, Iterable)
            if is_handle and len(self._private) > told:
                del self._private[told:]
            elif digest is not None:
                digests.append(digest)
        return b"l" + _hash(*digests)

    def _file(self, file: Any) -> bytes:
        """Returns the digest of an open file: its name, mode and position."""
        for name in ("stdin", "stdout", "stderr"):
            if file is getattr(sys, name) or file is getattr(sys, f"__{name}__"):
                return b"i" + name.encode()
        try:
            if isinstance(file.name, int):
                return self.private(file, "an open file without a name")
            self._path(file.name)
            position = None if file.closed else file.tell()
            about = type(file).__name__, os.fsdecode(file.name), getattr(file, "mode", None), position
        except (OSError, ValueError, AttributeError) as error:
            return self.private(file, f"an open file: {_reason(error)}")
        return b"i" + _hash(repr(about).encode("utf-8", "surrogatepass"))

    def _tensor(self, tensor: Any) -> bytes:
        if tensor.is_nested:
            # A nested tensor has no shape of its own, and its attributes only save work.
            parts = map(self._tensor, tensor.detach().unbind())
            return b"T" + _hash(repr((str(tensor.layout), tensor.requires_grad)).encode(), *parts)
        mapping = self._mappings.of_tensor(tensor)
        if mapping is not None and mapping.is_shared:
            return self.private(tensor, _SHARED)
        digest = self._digests.get(id(tensor))
        if digest is None:
            about = repr((str(tensor.dtype), tuple(tensor.shape), str(tensor.layout), tensor.device.type))
            about += repr((tensor.requires_grad, tensor.is_quantized))
            digest = self._remember(tensor, _hash(about.encode(), tensor_digest(tensor)))
        # Subclasses must differ from their base, and may have attributes.
        return b"t" + _hash(digest, self.plain((type(tensor), tensor.__dict__)))

    def _storage(self, storage: Any) -> bytes:
        torch = sys.modules["torch"]
        return b"u" + self.plain(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))

    def _remember(self, obj: Any, digest: bytes) -> bytes:
        self._keep.append(obj)
        self._digests[id(obj)] = digest
        return digest

    # --- code -------------------------------------------------------------------------------------------------

    def _builtin(self, function: types.BuiltinFunctionType) -> None:
        self.note(function.__module__)

    def _module(self, module: types.ModuleType) -> bytes:
        self.note(module.__name__)
        return b"m" + main_name(module.__name__).encode()

    def _code(self, code: Any) -> bytes:
        """Returns the digest of a function or class: its name, and what a function does."""
        known = self._digests.get(id(code)) if isinstance(code, type) else None
        if known is not None:
            return known
        for cls in getattr(code, "__mro__", (code,)):
            self.note(getattr(cls, "__module__", None))
        module, name = getattr(code, "__module__", None), getattr(code, "__qualname__", None)
        inner = getattr(code, "__code__", None) or getattr(getattr(code, "__wrapped__", None), "__code__", None)
        does = digest_of_code(inner) if isinstance(inner, types.CodeType) else b""
        is_followed = id(code) in self._followed or id(code) in self._entered
        if type(code) is types.FunctionType and not is_followed and is_followed_code(code):
            # An object's own way to be pickled may make it anew each time.
            self._entered[id(code)] = code
            self.functions[f"{main_name(str(module))}:{name}"] = code
            cells = [contents(cell) for cell in code.__closure__ or ()]
            does += self.plain((code.__defaults__, code.__kwdefaults__, cells))
        # A factory's functions differ in what counts elsewhere. Those in a set have no order.
        if type(code) is types.FunctionType and (code.__closure__ or code.__defaults__) and not self._open:
            does += b"%d" % self._met.setdefault(id(code), (len(self._met), code))[0]
        digest = b"r" + _hash(f"{main_name(str(module))}:{name}".encode(), does)
        return self._remember(code, digest) if isinstance(code, type) else digest


def environment_of(variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the variables but those that launchers, shells and trackers set."""
    return sorted((name, value) for name, value in variables.items() if _OF_LAUNCHERS.fullmatch(name) is None)


def _value_in_context(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return LookupError
