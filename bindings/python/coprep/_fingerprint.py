"""Identity of datasets and transforms: equal in jobs whose memory makes the same samples, different otherwise.

Samples are made in the memory of one job, so everything is taken from memory: files of code are not read.

Data is hashed as a pickle stream without a memo, so that it makes no difference which of several equal objects are the
same object. Functions and classes of the user's that are found under their name are represented by it. Each is hashed
once, by its structure, and so are the global variables that reached code reads. Other code of the user's (lambdas,
closures) gets a number when it is first met, is hashed on its own, and refers to others by number, since code forms a
graph with cycles. Libraries count by their version, by what was set in them and by what was replaced in them.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import hashlib
import io
import mmap
import os
import pickle
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

import cloudpickle
import numpy as np
import numpy.typing as npt

from coprep._attributes import Named, attributes_of
from coprep._bytecode import Path, Uses, uses_of
from coprep._caches import HOOK, identified, reducer_of
from coprep._codes import digest_of_code, digest_of_constant
from coprep._content import array_digest, tensor_digest
from coprep._memory import Mappings, address_of
from coprep._modules import digest_of as _hash
from coprep._modules import full_name, is_users, parts_of, sources_of
from coprep._names import MAINS, main_name, member_at, path_in
from coprep._patches import HEAP_TYPE, Patches
from coprep._private import Private, path_to, reason_of, token_of, tokens_within
from coprep._reducing import is_dispatcher
from coprep._snapshot import Snapshot, contents_of
from coprep._surroundings import Surroundings
from coprep._switches import switches, switches_of

Handler = Callable[[Any], bytes | None]

DEPTH = 3
"""Levels of attributes and elements that get parts of their own."""
PARTS = 64
"""Most parts that values are broken into, and most global variables that get parts of their own."""
ELEMENTS = 16
"""Longest list or tuple whose elements get parts of their own."""
STRINGS = 1000
"""Most strings that are kept as possible relative paths."""
STREAM = 2 << 30
"""Bytes of a pickle without memo above which shared objects are assumed to be repeated too often."""

_SHARED = "memory that processes share: a write of one job would reach the samples of others"
# The interpreter, pickle and libraries add these attributes to a class. They hold line numbers, caches and hints, which
# change no sample.
_NOT_CODE = {
    "__slotnames__",  # pickle notes it at the class when it first meets an instance
    *("__dict__", "__weakref__", "__module__", "__qualname__", "__classdictcell__", "_abc_impl"),
    *("__annotations__", "__annotations_cache__", "__annotate__", "__annotate_func__", "__conditional_annotations__"),
    *("__orig_bases__", "__parameters__", "__type_params__", "__static_attributes__", "__firstlineno__"),
    *("__pydantic_core_schema__", "__pydantic_serializer__", "__pydantic_validator__", "__signature__"),
}


def fingerprint(named: Mapping[str, Any], private: list[Private] | None = None) -> list[tuple[str, bytes]]:
    """Returns the identity of objects, in named parts (16-byte digests), so that a difference can be named.

    Beside the objects' own parts (``dataset``, ``dataset.root``, ...) there are ``code MODULE`` (the functions and
    classes of a module that are reached), ``global NAME`` (data that these read), ``package NAME``, ``replaced NAME``
    (the user's code in a library), ``switch NAME``, and ``working directory`` if a relative path is met.

    Args:
        private: is given the objects that cannot be compared with those of other processes. Parts that lead to one have
            digests that no other process has.
    """
    walk = _Walk([] if private is None else private)
    parts = [*_Splitter(walk, PARTS - len(named)).parts(named.items())]
    parts += walk.rest()
    if any(os.path.exists(s) for s in walk.strings):
        parts.append(("working directory", _hash(os.fsencode(os.getcwd()))))
    return _unique(parts)


def _unique(parts: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    result: dict[str, bytes] = {}
    for name, digest in parts:
        unique, n = name, 2
        while unique in result:
            unique, n = f"{name} ({n})", n + 1
        result[unique] = digest
    return list(result.items())


# --- parts ----------------------------------------------------------------------------------------------------


class _Splitter:
    """Breaks values into parts, as long as there are not too many."""

    def __init__(self, walk: _Walk, left: int) -> None:
        self._walk = walk
        self._left = left

    def parts(self, named: Iterable[tuple[str, Any]], depth: int = 0) -> Iterator[tuple[str, bytes]]:
        for name, value in named:
            head, children = self._split(value) if depth < DEPTH else (value, [])
            if len(children) > self._left:
                # With too many parts, the value is hashed as a whole, and a difference is named by the value alone.
                head, children = value, []
            self._left -= len(children)
            yield name, self._walk.named(name, head)
            for suffix, child in children:
                yield from self.parts([(name + suffix, child)], depth + 1)

    def _split(self, value: Any) -> tuple[Any, Named]:
        """Returns a stand-in for the value itself, and its parts by the suffix of their name."""
        cls = type(value)
        if cls in (list, tuple) and len(value) <= ELEMENTS:
            return (cls, len(value)), [(f"[{i}]", v) for i, v in enumerate(value)]
        if self._walk.handler(cls) is None and not hasattr(cls, HOOK):
            attributes = attributes_of(value)
            if attributes is not None:
                return cls, attributes
        return value, []


# --- data -----------------------------------------------------------------------------------------------------


class _RepeatsTooOften(Exception):
    pass


class _Sink:
    """Hashes a pickle stream and the buffers beside it."""

    def __init__(self, limit: int | None) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._buffers: list[bytes] = []
        self._limit = limit
        self._written = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        if len(data) < 1 << 20:  # Large bytes come alone, and hashing them takes no longer than holding them.
            self._written += len(data)
            if self._limit is not None and self._written > self._limit:
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

    def __init__(self, sink: _Sink, walk: _Walk, handlers: dict[type, Handler | None], fast: bool) -> None:
        super().__init__(sink, protocol=5, buffer_callback=sink.buffer)
        self.fast = fast
        self.dispatch_table = walk.reducers
        self._walk = walk
        self._handlers = handlers

    def persistent_id(self, obj: Any) -> bytes | None:
        # This is called for each string and number of the data, so it must stay this short.
        try:
            handler = self._handlers[type(obj)]
        except KeyError:
            handler = self._handlers[type(obj)] = self._walk.handler(type(obj))
        return None if handler is None else handler(obj)


class _Lenient(_Pickler):
    """Pickles an object that refuses as one that equals no other. Asking each object first takes longer."""

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        try:
            reducer = self._walk.reducers.get(cls)
            reduced: Any = obj.__reduce_ex__(5) if reducer is None else reducer(obj)
        except (MemoryError, RecursionError):
            # The depth at which the stack is full depends on the caller, so the value as a whole cannot be compared.
            raise
        except Exception as error:
            return identified, (cls, self._walk.private(obj, _reason(error)))
        # It is pickled by the name of a global variable, which may be another object.
        return (identified, (cls, reduced)) if isinstance(reduced, str) else reduced


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    # Pickle's own messages say what is refused. The message of another error may mean nothing without its type.
    is_pickles = text and isinstance(error, (TypeError, pickle.PicklingError))
    return text if is_pickles else f"{type(error).__name__}: {text}"


class _Known(NamedTuple):
    """A code object and the names that it reads."""

    reference: weakref.ref[types.CodeType]
    uses: Uses


_codes: dict[int, _Known] = {}
"""What code objects read, by their id, as long as they live."""


def _uses(code: types.CodeType) -> Uses:
    known = _codes.get(id(code))
    if known is None or known.reference() is not code:
        key = id(code)
        known = _codes[key] = _Known(weakref.ref(code, lambda _: _codes.pop(key, None)), uses_of(code))
    return known.uses


_ATTEMPTS = ((_Pickler, True), (_Lenient, True), (_Pickler, False), (_Lenient, False))
"""Ways to pickle a value, each with whether it is without a memo, from the quickest to the one that takes all."""
_MISSING = object()


def _needs_memo(error: Exception) -> bool:
    is_cyclic = isinstance(error, ValueError) and str(error).startswith("fast mode: can't pickle cyclic")
    return is_cyclic or isinstance(error, (RecursionError, _RepeatsTooOften))


class _Closure(NamedTuple):
    """All code that some code leads to by names alone, with digests that hold as long as none of it changes."""

    snapshot: Snapshot
    pieces: dict[tuple[str, str], Any]
    changing: list[tuple[str, str]]
    """The pieces that hold data. They are hashed anew each time, so `code` has no digest of them."""
    globals: dict[tuple[str, str], dict[str, Any]]
    """The variables that the code reads, with the dict that each is in."""
    code: dict[str, list[bytes]]
    modules: dict[str, None]
    lazy: dict[str, None]
    strings: set[str]

    def holds(self, roots: dict[tuple[str, str], Any]) -> bool:
        """Returns whether nothing has changed since the code was looked at."""
        is_same = all(self.pieces[key] is value for key, value in roots.items())
        return is_same and not self.lazy.keys() & sys.modules.keys() and self.snapshot.is_present()


CLOSURES = 64
"""Most closures that are kept. A program has one or two for each loader."""
_closures: dict[frozenset[tuple[str, str]], _Closure] = {}


def _closure_of(roots: dict[tuple[str, str], Any]) -> _Closure:
    key = frozenset(roots)
    closure = _closures.get(key)
    if closure is None or not closure.holds(roots):
        closure = _closures[key] = _Walk([]).close(roots)
        if len(_closures) > CLOSURES:
            del _closures[next(iter(_closures))]
    return closure


class _Walk:
    """Hashes values, and collects the code, globals, modules and possible paths that they lead to."""

    def __init__(self, found: list[Private]) -> None:
        self.strings: set[str] = set()
        self.reducers = dict(cloudpickle.Pickler.dispatch_table)  # looked up for each object: quicker than a ChainMap
        self._modules: dict[str, None] = {}
        self._is_users: dict[Any, bool] = {}
        self._lazy: dict[str, None] = {}  # modules that functions import and that are not imported yet
        self._pieces: dict[tuple[str, str], Any] = {}  # functions, classes and modules, by module and name
        self._globals: dict[tuple[str, str], Any] = {}  # data that code reads, by module and name
        self._unnamed_globals: dict[str, set[bytes]] = {}  # the same, where there is no such module
        self._data: dict[tuple[str, str], bytes] = {}  # digests of these globals
        self._code_of: dict[str, list[bytes]] = {}  # digests of the pieces of each module
        self._scopes: dict[tuple[str, str], dict[str, Any]] = {}  # where these globals are
        self._snapshot: Snapshot | None = None  # in a walk that looks for a closure
        self._is_fixed = True  # whether the present piece holds no data
        self._todo: deque[tuple[dict[tuple[str, str], Any], tuple[str, str]]] = deque()
        self._found = found
        self._private: list[tuple[Any, str]] = []
        self._reads: dict[tuple[int, Path], bytes] = {}  # digests of what code reads from the globals of a module
        self._mappings = Mappings()
        self._surroundings = Surroundings()
        self._fast: dict[type, Handler | None] = {str: self._string}
        self._memoizing: dict[type, Handler | None] = {str: self._string_by_value, bytes: lambda obj: b"b" + obj}
        self._digests: dict[int, bytes] = {}  # digests that are the same wherever the object is met
        self._numbers: dict[int, int] = {}  # numbers of unnamed code, in the order in which it is met
        self._queue: list[Any] = []  # unnamed code that is not hashed yet
        self._open: dict[int, int] = {}  # sets that contain the object being hashed
        self._keep: list[Any] = []  # keeps hashed objects alive, so that no other object gets their id

    def named(self, name: str, value: Any) -> bytes:
        """Returns the digest of a value, and notes where in it an object cannot be compared."""
        digest = self.closed(value)
        self._tell(name, value)
        return digest

    def _tell(self, name: str, value: Any) -> None:
        for obj, reason in self._private:
            self._found.append(Private(name + path_to(obj, value), reason))
        self._private.clear()

    def rest(self) -> Iterator[tuple[str, bytes]]:
        """Yields the parts of all that the values led to."""
        switched = {name: self.named(name, value) for name, value in switches()}
        replaced: dict[str, bytes] = {}
        patches = Patches(self._of_user)
        is_complete = False
        self._take_closure()
        while not is_complete:
            self._hash_reached()
            known = len(self._modules)
            for name, value in patches.of([*self._modules, "builtins"]).items():
                if name not in replaced:
                    replaced[name] = self.named(f"replaced {name}", value)
            for name, value in switches_of(self._modules):
                if name not in switched:
                    switched[name] = self.named(name, value)
            files = self._files_of_imports()
            is_complete = not self._todo and len(self._modules) == known
        yield from sorted(_global_parts(self._data))
        yield from ((f"global {name}", _hash(*sorted(found))) for name, found in sorted(self._unnamed_globals.items()))
        yield from ((f"code {module}", _hash(*sorted(pieces))) for module, pieces in sorted(self._code_of.items()))
        yield from files
        yield from parts_of(self._modules)
        yield from ((f"replaced {name}", digest) for name, digest in sorted(replaced.items()))
        for name, value in self._surroundings.found():
            yield name, _hash(value.encode("utf-8", "surrogateescape"))
        yield from switched.items()

    def _take_closure(self) -> None:
        """Takes the digests of the code that the reached code leads to by names alone, if they are known already."""
        roots = {key: self._pieces[key] for where, key in self._todo if where is self._pieces}
        closure = _closure_of(roots)
        for key in closure.pieces.keys() - self._pieces.keys():
            self._pieces[key] = closure.pieces[key]
        self._todo = deque(entry for entry in self._todo if entry[0] is self._globals)
        self._todo += ((self._pieces, key) for key in closure.changing)
        for (module, name), scope in closure.globals.items():
            self._add(self._globals, module, name, scope[name])
        for module, digests in closure.code.items():
            self._code_of[module] = list(digests)
        self._modules.update(closure.modules)
        self._lazy.update(closure.lazy)
        self.strings |= closure.strings

    def close(self, roots: dict[tuple[str, str], Any]) -> _Closure:
        """Returns all code that other code leads to by names alone. Nothing else is hashed by this walk."""
        self._snapshot = Snapshot()
        for (module, name), value in roots.items():
            self._add(self._pieces, module, name, value)
        changing: list[tuple[str, str]] = []
        while self._todo:
            where, (module, name) = self._todo.popleft()
            if where is self._globals:
                continue
            self._is_fixed = True
            found: tuple[dict[Any, Any], ...] = (
                self._pieces,
                self._scopes,
                self._globals,
                self._modules,
                self._lazy,
                self._reads,
                self._digests,
            )
            sizes = [len(one) for one in found]
            waiting = len(self._todo)
            digest = self._closed(self._pieces[module, name], self._structure)
            if self._is_fixed and not self._private:
                self._code_of.setdefault(module, []).append(digest + name.encode())
                continue
            # It holds data. What this leads to is found anew each time.
            changing.append((module, name))
            self._private.clear()
            for one, size in zip(found, sizes, strict=True):
                while len(one) > size:
                    one.popitem()
            while len(self._todo) > waiting:
                self._todo.pop()
        scopes = {key: self._scopes[key] for key in self._globals}
        return _Closure(
            self._snapshot, self._pieces, changing, scopes, self._code_of, self._modules, self._lazy, self.strings
        )

    def _hash_reached(self) -> None:
        """Hashes the code and the global variables that were reached, and those that they lead to."""
        while self._todo:
            where, (module, name) = self._todo.popleft()
            value = where[module, name]
            if where is self._globals:
                self._data[module, name] = self._global_digest(f"global {path_in(module, name)}", value)
            else:
                digest = self._closed(value, self._structure)
                self._code_of.setdefault(module, []).append(digest + name.encode())
                self._tell(f"code {path_in(module, name)}", value)

    def _global_digest(self, name: str, value: Any) -> bytes:
        # Most global variables are constants, for which pickling would take long.
        return _hash(digest_of_constant(value)) if type(value) in (int, float, bool) else self.named(name, value)

    def _files_of_imports(self) -> list[tuple[str, bytes]]:
        """Returns the files of modules that functions will import, and follows what these files lead to in memory."""
        if not self._lazy:
            return []
        files = sources_of(self._lazy, skip_present=True)
        for name in files.libraries | files.present:
            self._note(name)
            if name in files.present and self._of_user(name):
                # It is imported by a file, whose use of it is not known.
                self._member(name, ())
        return files.parts

    def closed(self, value: Any) -> bytes:
        """Returns the digest of a value and all unnamed code that it leads to. Later numbers do not depend on it."""
        return self._closed(value, self.plain)

    def _closed(self, value: Any, hashed: Callable[[Any], bytes]) -> bytes:
        numbers, queue = self._numbers, self._queue
        self._numbers, self._queue = dict(numbers), []
        try:
            digests = [hashed(value)]
            while self._queue:
                digests.append(self._structure(self._queue.pop(0)))
            return _hash(*digests) if len(digests) > 1 else digests[0]
        finally:
            self._numbers, self._queue = numbers, queue

    def plain(self, value: Any) -> bytes:
        """Returns the digest of a value in which unnamed code is represented by its number alone."""
        numbered, queued, told = len(self._numbers), len(self._queue), len(self._private)
        last: Exception | None = None
        for pickler, fast in _ATTEMPTS:
            if last is not None:
                if fast and _needs_memo(last):
                    continue
                # The failed attempt may have numbered and queued code. That is undone, so that equal values get equal
                # numbers.
                while len(self._numbers) > numbered:
                    self._numbers.popitem()
                del self._queue[queued:], self._private[told:]
            try:
                return self._pickle(value, pickler, fast)
            except MemoryError:
                raise
            except Exception as error:
                last = error
        self._private.append((value, _reason(last or TypeError())))
        return _hash(b"!", tokens_within(value))

    def _pickle(self, value: Any, pickler: type[_Pickler], fast: bool) -> bytes:
        sink = _Sink(STREAM if fast else None)
        pickler(sink, self, self._fast if fast else self._memoizing, fast).dump(value)
        return sink.digest()

    def private(self, obj: Any, reason: str) -> bytes:
        """Returns bytes that stand for an object which cannot be compared, and notes the reason."""
        self._private.append((obj, reason))
        self._keep.append(obj)
        return b"!" + token_of(obj)

    def handler(self, cls: type) -> Handler | None:
        """Returns the function that replaces the pickling of a class's instances, or ``None`` if they are pickled."""
        self._note(cls.__module__)
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
        yield types.CodeType, self._bytecode
        yield types.BuiltinFunctionType, self._builtin
        yield (set, frozenset), self._set
        yield np.ndarray, self._array
        yield PurePath, self._pure_path
        yield TypeVar, lambda obj: b"v" + self.plain((obj.__name__, obj.__bound__, obj.__constraints__))
        yield functools.cached_property, lambda obj: b"p" + self.plain((type(obj), obj.func, obj.attrname))
        yield (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), self._file
        yield mmap.mmap, self._mmap
        yield contextvars.ContextVar, lambda obj: b"x" + self.plain((obj.name, _value_in_context(obj)))
        yield threading.local, self._thread_local
        torch: Any = sys.modules.get("torch")
        if hasattr(torch, "Tensor"):
            yield torch.Tensor, self._tensor
            yield torch.Generator, lambda obj: b"g" + self.plain((type(obj), obj.device.type, obj.get_state()))
            yield torch.UntypedStorage, self._storage
            yield torch.TypedStorage, lambda obj: b"y" + self.plain((str(obj.dtype), obj._untyped_storage))

    def _string(self, text: str) -> None:
        # A relative path is short and has one line. An absolute one means the same in every working directory.
        if text[:1] != "/" and text not in self.strings and len(text) < 1024 and "\n" not in text:
            self.strings.add(text)
            if len(self.strings) == STRINGS:
                # From now on strings are pickled without a call for each.
                self._fast[str] = None

    def _string_by_value(self, text: str) -> bytes:
        # With a memo, the digest of a string would depend on whether an equal string is the same object.
        if len(self.strings) < STRINGS:
            self._string(text)
        return b"s" + text.encode("utf-8", "surrogatepass")

    def _path(self, path: os.PathLike[Any]) -> None:
        if len(self.strings) < STRINGS:
            self._string(os.fsdecode(path))

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
        # A set has no order, so the numbers that code gets must not depend on which element comes first.
        return _hash(*sorted(map(self.closed, elements)))

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
        self._note(function.__module__)

    def _module(self, module: types.ModuleType) -> bytes:
        name = module.__name__
        # No other process can import this module, so its members are hashed.
        if sys.modules.get(name) is not module:
            return self._number(module)
        return self._member(name, ())

    def _code(self, code: Any) -> bytes:
        """Returns the digest of a function or class: its name, if it is found by that, or else a number."""
        known = self._digests.get(id(code))
        if known is not None:
            return known
        for cls in getattr(code, "__mro__", (code,)):
            self._note(getattr(cls, "__module__", None))
        # A function that remembers the results of a `functools.partial` has no name.
        module: Any = getattr(code, "__module__", None)
        name: Any = getattr(code, "__qualname__", None)
        if isinstance(code, type) and not code.__flags__ & HEAP_TYPE:
            pass  # Some built-in types, such as that of None, are not an attribute of their module.
        elif not isinstance(name, str) or member_at(sys.modules.get(module), name) is not code:
            return self._number(code)
        elif self._of_user(module):
            self._note_members(sys.modules[module])
            if "." in name:
                self._note_members(member_at(sys.modules[module], name.rpartition(".")[0]))
            module = main_name(module)
            self._add(self._pieces, module, name, code)
        return self._remember(code, f"r{module}:{name}".encode())

    def _named(self, code: Any) -> bytes:
        return self._module(code) if isinstance(code, types.ModuleType) else self._code(code)

    def _add(self, where: dict[tuple[str, str], Any], module: str, name: str, value: Any) -> None:
        if (module, name) not in where:
            where[module, name] = value
            self._todo.append((where, (module, name)))

    def _number(self, code: Any) -> bytes:
        number = self._numbers.get(id(code))
        if number is None:
            number = self._numbers[id(code)] = len(self._numbers)
            self._keep.append(code)
            self._queue.append(code)
        return b"n%d" % number

    def _of_user(self, module: Any) -> bool:
        known = self._is_users.get(module)
        if known is None:
            known = self._is_users[module] = is_users(module)
        return known

    def _note(self, module: Any) -> None:
        """Counts a module, if it is a library's. If it is the user's, its members count as they are reached."""
        if isinstance(module, str) and module not in MAINS:
            self._modules[module] = None

    def _note_members(self, holder: Any) -> None:
        if self._snapshot is not None:
            self._snapshot.add_members(holder)

    def _structure(self, code: Any) -> bytes:
        """Returns the digest of code by what it does."""
        if is_dispatcher(code):
            # Its closure holds a cache, which changes by use.
            self._is_fixed = False
            return self.plain(("dispatcher", code.__wrapped__, list(code.registry.items())))
        if isinstance(code, types.FunctionType):
            return self._function(code)
        if isinstance(code, functools._lru_cache_wrapper):
            return self.plain(("cache", code.__wrapped__, code.cache_parameters()))
        if isinstance(code, types.ModuleType):
            members = {k: v for k, v in vars(code).items() if not k.startswith("__")}
            name = main_name(code.__name__)
            if sys.modules.get(code.__name__) is code:
                self._note_members(code)
                values = [self._global(vars(code), code.__name__, name) for name in sorted(members)]
                return _hash(b"module", name.encode(), *map(str.encode, sorted(members)), *values)
            self._is_fixed = False
            return _hash(b"module", name.encode(), self.plain(sorted(members.items(), key=_first)))
        return self._class(code)

    def _function(self, function: types.FunctionType) -> bytes:
        code, scope = function.__code__, function.__globals__
        state = [function.__defaults__, function.__kwdefaults__, vars(function), function.__closure__]
        if self._snapshot is not None:
            self._snapshot.add_function(function)
            self._snapshot.add_scope(scope)
        if any(state):
            cells = list(map(contents_of, function.__closure__ or ()))
            held = [function.__defaults__ or (), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
            self._is_fixed = self._is_fixed and all(map(_is_fixed, held + cells))
            rest = self.plain((code, function.__defaults__, function.__kwdefaults__, vars(function), cells))
        else:
            rest = self._bytecode(code)
        home = scope.get("__name__")
        if not self._of_user(home) and isinstance(home, str) and home in sys.modules:
            # A library made it of the user's code, such as a decorator does. The library counts by its version.
            self._note(home)
            return _hash(b"wrapper", home.encode(), rest)
        uses = _uses(code)
        if self._surroundings.note(uses, scope):
            self._is_fixed = False
        digests = [self._read(scope, home, path) for path in uses.names]
        for used in uses.imports:
            with contextlib.suppress(ImportError):
                digests += self._import(full_name(used, scope.get("__package__")), used.members, used.reads)
        return _hash(rest, repr(digests).encode())

    def _read(self, scope: dict[str, Any], home: Any, path: Path) -> bytes:
        """Returns the digest of a global variable, or of the part of it that code reads by constant names."""
        key = id(scope), path
        known = self._reads.get(key)
        if known is None:
            known = self._reads[key] = self._read_anew(scope, home, path)
        return known

    def _read_anew(self, scope: dict[str, Any], home: Any, path: Path) -> bytes:
        name = path[0]
        value = scope.get(name, _MISSING)
        if value is _MISSING:
            return b""  # It is a built-in, or is set later.
        if name == "__name__" and value in MAINS:
            return MAINS[0].encode()  # in a process that the script spawned too
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return name.encode() + self._member(value.__name__, path[1:])
        if len(path) > 1:
            return self._read(scope, home, path[:1])
        # In a process that a script spawned, its functions have other globals than the module that is found there.
        if home == MAINS[1] or (home in sys.modules and vars(sys.modules[home]) is scope):
            return name.encode() + self._global(scope, home, name)
        self._is_fixed = False
        digest = self.plain(value)
        if not isinstance(value, _CODE):
            self._unnamed_globals.setdefault(name, set()).add(digest)
        return name.encode() + digest

    def _global(self, scope: dict[str, Any], module: str, name: str) -> bytes:
        """Returns the digest of a member of a module: that of code itself, or the name of data."""
        value = scope[name]
        if value is os.environ or value is sys.argv:
            return name.encode()  # It counts as far as code reads it.
        if isinstance(value, _CODE):
            return self.plain(value) if isinstance(value, types.BuiltinFunctionType) else self._named(value)
        module = main_name(module)
        self._scopes.setdefault((module, name), scope)
        self._add(self._globals, module, name, value)
        return f"g{module}:{name}".encode()

    def _member(self, module: str, path: Path) -> bytes:
        """Returns the digest of what code reads from a module by these names; of all its members, if there is none."""
        self._note(module)
        holder = sys.modules[module]
        if not self._of_user(module):
            # Its other modules count too, as in ``import package.module``.
            inner = getattr(holder, path[0], None) if path and path[0] in vars(holder) else None
            if isinstance(inner, types.ModuleType) and sys.modules.get(inner.__name__) is inner:
                self._member(inner.__name__, path[1:])
            return b"m" + module.encode()
        self._note_members(holder)
        if not path:
            self._add(self._pieces, main_name(module), "*", holder)
            return b"m" + main_name(module).encode()
        # The module may answer itself, or lack a module of its package that will be imported.
        name = path[0] if path[0] in vars(holder) else "__getattr__"
        value = vars(holder).get(name, _MISSING)
        if value is _MISSING:
            return b"-" + self._future(f"{module}.{path[0]}")
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return self._member(value.__name__, path[1:])
        return self._global(vars(holder), module, name)

    def _import(self, module: str, members: tuple[str, ...], reads: tuple[Path, ...]) -> Iterator[bytes]:
        """Yields the digests of what a function imports when it is called."""
        yield self._future(module)
        root = module if members else module.partition(".")[0]
        if root in sys.modules and self._of_user(root):
            yield from (self._member(root, path) for path in reads)
            return
        # A library counts the same whether it is imported already or not.
        yield from (self._future(f"{module}.{member}") for member in members)

    def _future(self, module: str) -> bytes:
        """Returns the name of a module, and notes it if it is not imported yet."""
        if module in sys.modules:
            self._note(module)
        elif module not in self._lazy:
            self._lazy[module] = None
        return module.encode()

    def _class(self, cls: type) -> bytes:
        members = {k: v for k, v in vars(cls).items() if k not in _NOT_CODE}
        self._note_members(cls)
        self._is_fixed = self._is_fixed and all(map(_is_fixed, members.values()))
        if isinstance(members.get("__doc__"), str):
            # A dataclass writes the modules of its fields' types into its docstring.
            members["__doc__"] = members["__doc__"].replace(f"{MAINS[1]}.", f"{MAINS[0]}.")
        if issubclass(cls, enum.Enum):
            members = {k: v for k, v in members.items() if k not in cls.__members__ and k != "_value2member_map_"}
            members["_member_map_"] = [(name, member.value) for name, member in cls.__members__.items()]
        return self.plain((type(cls), cls.__bases__, cls.__qualname__, sorted(members.items(), key=_first)))

    def _bytecode(self, code: types.CodeType) -> bytes:
        if len(self.strings) < STRINGS:
            for text in _uses(code).strings:
                self._string(text)
        return b"c" + digest_of_code(code)


_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, functools._lru_cache_wrapper)


_CONSTANT = (str, bytes, int, float, complex, bool, type(None), type(...))
_FIXED = (*_CODE, staticmethod, classmethod, property, types.MemberDescriptorType, types.GetSetDescriptorType)


def _is_fixed(value: Any) -> bool:
    """Returns whether a value holds nothing that may change. Code may, but is looked at on its own."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_fixed, value))
    return type(value) in _CONSTANT or isinstance(value, _FIXED)


def _value_in_context(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return LookupError


def _first(item: tuple[str, Any]) -> str:
    return item[0]


def _global_parts(data: dict[tuple[str, str], bytes]) -> Iterator[tuple[str, bytes]]:
    if len(data) <= PARTS:
        yield from ((f"global {path_in(*where)}", digest) for where, digest in data.items())
        return
    by_module: dict[str, list[bytes]] = {}
    for (module, name), digest in sorted(data.items()):
        by_module.setdefault(module, []).append(_hash(name.encode(), digest))
    yield from ((f"globals of {module}", _hash(*digests)) for module, digests in by_module.items())
