"""Identity of datasets and transforms: equal in processes that would prepare the same samples, different otherwise.

Data is hashed as a pickle stream without a memo, so that it makes no difference which of several equal objects are the
same object. Code that other processes can import is represented by its name, and the files of the user's own modules
are hashed. All other code (``__main__``, lambdas, closures) is hashed by its structure. It forms a graph with cycles.
Each piece gets a number when it is first met, is hashed on its own, and refers to others by number.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import io
import mmap
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import numpy.typing as npt

from coprep._caches import HOOK, reducer_of
from coprep._imports import Import, resolved
from coprep._modules import Modules
from coprep._modules import digest_of as _hash
from coprep._names import MAINS, is_found_by_name
from coprep._packing import refuse_text_file
from coprep._reducing import is_dispatcher
from coprep._unpicklable import Holder, Named, attributes_of, cannot_travel, culprit_of

Handler = Callable[[Any], bytes | None]

DEPTH = 3
"""Levels of attributes and elements that get parts of their own."""
PARTS = 64
"""Most parts that values are broken into."""
ELEMENTS = 16
"""Longest list or tuple whose elements get parts of their own."""
STRINGS = 1000
"""Most strings that are kept as possible relative paths."""
STREAM = 2 << 30
"""Bytes of a pickle without memo above which shared objects are assumed to be repeated too often."""

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_GLOBAL_OPS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
# The interpreter, pickle and typing add these attributes to a class. They hold line numbers, caches and hints, which
# change no sample.
_NOT_CODE = {
    "__slotnames__",  # pickle notes it at the class when it first meets an instance
    *("__dict__", "__weakref__", "__module__", "__qualname__", "__classdictcell__", "_abc_impl"),
    *("__annotations__", "__annotations_cache__", "__annotate__", "__annotate_func__", "__conditional_annotations__"),
    *("__orig_bases__", "__parameters__", "__type_params__", "__static_attributes__", "__firstlineno__"),
}


def fingerprint(named: Mapping[str, Any], modules: Modules | None = None) -> list[tuple[str, bytes]]:
    """Returns the identity of objects, in named parts (16-byte digests), so that a difference can be named.

    Beside the objects' own parts (``dataset``, ``dataset.root``, ...) there are ``global NAME`` (data that code of the
    main script uses), ``code MODULE``, ``package NAME``, and ``working directory`` if a relative path is met.

    Args:
        modules: modules that were looked up before, to save a second look when several fingerprints are made at once.

    Raises:
        TypeError: an object cannot be pickled. The message names the part and the remedy.
    """
    walk = _Walk()
    parts = [*_Splitter(walk, PARTS - len(named)).parts(named.items())]
    for name, digests in sorted(walk.globals.items()):
        parts.append((f"global {name}", _hash(*sorted(digests))))
    parts += (modules or Modules()).parts(walk.modules)
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

    def parts(
        self, named: Iterable[tuple[str, Any]], depth: int = 0, holder: Holder | None = None
    ) -> Iterator[tuple[str, bytes]]:
        for name, value in named:
            head, children = self._split(value) if depth < DEPTH else (value, [])
            if len(children) > self._left:
                # With too many parts, the value is hashed as a whole, and a difference is named by the value alone.
                head, children = value, []
            self._left -= len(children)
            yield name, self._digest(name, head, holder)
            for suffix, child in children:
                inner = Holder(type(value), suffix) if type(value) not in (list, tuple) else holder
                yield from self.parts([(name + suffix, child)], depth + 1, inner)

    def _digest(self, name: str, value: Any, holder: Holder | None) -> bytes:
        try:
            return self._walk.closed(value)
        except Exception as e:
            found = culprit_of(value, e, self._error_of, lambda part: self._split(part)[1])
            failure = "cannot be compared with that of other jobs"
            raise cannot_travel(name, failure, e, found.holder or holder) from e

    def _error_of(self, value: Any) -> Exception | None:
        try:
            self._walk.closed(value)
        except Exception as error:
            return error
        return None

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
        return _hash(self._hash.digest(), *self._buffers)


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


class _Walk:
    """Hashes values, and collects the modules, globals and possible paths that it meets."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.globals: dict[str, set[bytes]] = {}
        self.strings: set[str] = set()
        self.reducers = dict(cloudpickle.Pickler.dispatch_table)  # looked up for each object: quicker than a ChainMap
        self._fast: dict[type, Handler | None] = {str: self._string}
        self._memoizing: dict[type, Handler | None] = {str: self._string_by_value, bytes: lambda obj: b"b" + obj}
        self._known: dict[int, bytes] = {}  # digests that are the same wherever the object is met
        self._numbers: dict[int, int] = {}  # numbers of unnamed code, in the order in which it is met
        self._queue: list[Any] = []  # unnamed code that is not hashed yet
        self._open: dict[int, int] = {}  # sets that contain the object being hashed
        self._keep: list[Any] = []  # keeps hashed objects alive, so that no other object gets their id

    def closed(self, value: Any) -> bytes:
        """Returns the digest of a value and all unnamed code that it leads to. Later numbers do not depend on it."""
        numbers, queue = self._numbers, self._queue
        self._numbers, self._queue = dict(numbers), []
        try:
            digests = [self.plain(value)]
            while self._queue:
                digests.append(self._structure(self._queue.pop(0)))
            return _hash(*digests)
        finally:
            self._numbers, self._queue = numbers, queue

    def plain(self, value: Any) -> bytes:
        """Returns the digest of a value in which unnamed code is represented by its number alone."""
        numbered, queued = len(self._numbers), len(self._queue)
        try:
            return self._pickle(value, fast=True)
        except (RecursionError, _RepeatsTooOften):
            pass
        except ValueError as e:
            if not str(e).startswith("fast mode: can't pickle cyclic"):
                raise
        # The failed attempt may have numbered and queued code. That is undone, so that equal values get equal numbers.
        while len(self._numbers) > numbered:
            self._numbers.popitem()
        del self._queue[queued:]
        return self._pickle(value, fast=False)

    def _pickle(self, value: Any, fast: bool) -> bytes:
        sink = _Sink(STREAM if fast else None)
        _Pickler(sink, self, self._fast if fast else self._memoizing, fast).dump(value)
        return sink.digest()

    def handler(self, cls: type) -> Handler | None:
        """Returns the function that replaces the pickling of a class's instances, or ``None`` if they are pickled."""
        self._note(cls.__module__)
        identified = hasattr(cls, HOOK) and not issubclass(cls, type)
        for base, handler in self._handlers():
            if issubclass(cls, base) and not identified:
                return handler
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
        yield io.TextIOWrapper, refuse_text_file
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
        digest = self._known.get(id(array))
        if digest is None:
            if array.dtype.kind in "US" and len(self.strings) < STRINGS:
                for text in array.flat[:STRINGS].tolist():
                    self._path(text)
            digest = self._remember(array, b"a" + (_mapped(array) or _content(array)))
        return digest

    def _tensor(self, tensor: Any) -> bytes:
        if tensor.is_nested:
            # A nested tensor has no shape of its own, and its attributes only save work.
            parts = map(self._tensor, tensor.detach().unbind())
            return b"T" + _hash(repr((str(tensor.layout), tensor.requires_grad)).encode(), *parts)
        digest = self._known.get(id(tensor))
        if digest is None:
            about = repr((str(tensor.dtype), tuple(tensor.shape), str(tensor.layout), tensor.device.type))
            about += repr((tensor.requires_grad, tensor.is_quantized))
            digest = self._remember(tensor, _hash(about.encode(), _tensor_content(tensor)))
        # Subclasses must differ from their base, and may have attributes.
        return b"t" + _hash(digest, self.plain((type(tensor), tensor.__dict__)))

    def _storage(self, storage: Any) -> bytes:
        torch = sys.modules["torch"]
        return b"u" + self.plain(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))

    def _remember(self, obj: Any, digest: bytes) -> bytes:
        self._keep.append(obj)
        self._known[id(obj)] = digest
        return digest

    # --- code -------------------------------------------------------------------------------------------------

    def _builtin(self, function: types.BuiltinFunctionType) -> None:
        self._note(function.__module__)

    def _module(self, module: types.ModuleType) -> bytes:
        # No other process can import this module, so its members are hashed.
        if sys.modules.get(module.__name__) is not module:
            return self._number(module)
        self._note(module.__name__)
        return b"m" + module.__name__.encode()

    def _code(self, code: Any) -> bytes:
        """Returns the digest of a function or class: its name, if other processes find it by that, or else a number."""
        known = self._known.get(id(code))
        if known is not None:
            return known
        for cls in getattr(code, "__mro__", (code,)):
            self._note(cls.__module__)
        if _importable(code):
            return self._remember(code, f"r{code.__module__}:{code.__qualname__}".encode())
        return self._number(code)

    def _number(self, code: Any) -> bytes:
        number = self._numbers.get(id(code))
        if number is None:
            number = self._numbers[id(code)] = len(self._numbers)
            self._keep.append(code)
            self._queue.append(code)
        return b"n%d" % number

    def _note(self, module: Any) -> None:
        if isinstance(module, str) and module not in MAINS:
            self.modules[module] = None

    def _structure(self, code: Any) -> bytes:
        """Returns the digest of code that has no name in other processes."""
        if is_dispatcher(code):
            # Its closure holds a cache, which changes by use.
            return self.plain(("dispatcher", code.__wrapped__, list(code.registry.items())))
        if isinstance(code, types.FunctionType):
            return self._function(code)
        if isinstance(code, functools._lru_cache_wrapper):
            return self.plain(("cache", code.__wrapped__, code.cache_parameters()))
        if isinstance(code, types.ModuleType):
            members = {k: v for k, v in vars(code).items() if not k.startswith("__")}
            return _hash(b"module", code.__name__.encode(), *self._members(members, f"module {code.__name__}"))
        return self._class(code)

    def _function(self, function: types.FunctionType) -> bytes:
        names, modules = _uses(function.__code__)
        for module, members in resolved(modules, function.__globals__.get("__package__")):
            self._note(module)
            for member in members:
                self._note(f"{module}.{member}")
        used = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
        if used.get("__name__") in MAINS:
            used["__name__"] = MAINS[0]  # in a process that the script spawned too
        self._note_submodules(function.__code__, used.values())
        where = f"function {function.__qualname__}"
        digests = self._members(used, where)
        for (name, value), digest in zip(used.items(), digests[1::2], strict=True):
            if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
                self.globals.setdefault(name, set()).add(digest)
        cells = dict(zip(function.__code__.co_freevars, map(_cell, function.__closure__ or ()), strict=True))
        rest = (function.__code__, function.__defaults__, function.__kwdefaults__, vars(function))
        return _hash(b"function", self.plain(rest), self.plain(len(used)), *digests, *self._members(cells, where))

    def _note_submodules(self, code: types.CodeType, values: Iterable[Any]) -> None:
        """Notes modules that are reached as attributes of a package, after ``import package.module``."""
        packages = [v.__name__ for v in values if isinstance(v, types.ModuleType)]
        attributes = _attributes(code)
        while packages:
            package = packages.pop()
            found = [n for n in (f"{package}.{a}" for a in attributes) if n in sys.modules]
            packages += found
            for name in found:
                self._note(name)

    def _class(self, cls: type) -> bytes:
        members = {k: v for k, v in vars(cls).items() if k not in _NOT_CODE}
        if isinstance(members.get("__doc__"), str):
            # A dataclass writes the modules of its fields' types into its docstring.
            members["__doc__"] = members["__doc__"].replace(f"{MAINS[1]}.", f"{MAINS[0]}.")
        if issubclass(cls, enum.Enum):
            members = {k: v for k, v in members.items() if k not in cls.__members__ and k != "_value2member_map_"}
            members["_member_map_"] = [(name, member.value) for name, member in cls.__members__.items()]
        about = self.plain((type(cls), cls.__bases__, cls.__qualname__))
        return _hash(b"class", about, *self._members(members, f"class {cls.__qualname__}"))

    def _members(self, members: Mapping[str, Any], where: str) -> list[bytes]:
        """Returns the names and digests of the members of a piece of code, sorted by name."""
        result = []
        for name, value in sorted(members.items()):
            try:
                result += [name.encode(), self.plain(value)]
            except Exception as e:
                raise TypeError(f"{name} in {where}: {e}") from e
        return result

    def _bytecode(self, code: types.CodeType) -> bytes:
        digest = self._known.get(id(code))
        if digest is not None:
            return digest
        # File names and line numbers are left out, since code that was moved prepares the same samples.
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_name)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        handled: bytes = getattr(code, "co_exceptiontable", b"")
        digest = _hash(repr(shape).encode(), repr(names).encode(), code.co_code, handled, self.plain(code.co_consts))
        return self._remember(code, b"c" + digest)


def _content(array: npt.NDArray[Any]) -> bytes:
    """Returns the digest of an array without objects."""
    about = repr((array.dtype, array.dtype.str, array.shape)).encode()
    if array.dtype.names is not None:  # There may be undefined bytes between fields.
        return _hash(about, *(_content(array[name]) for name in array.dtype.names))
    result = hashlib.blake2b(about, digest_size=16)
    if array.nbytes == 0:
        return result.digest()
    if array.flags.c_contiguous:
        result.update(array.view(np.ndarray).reshape(-1).view(np.uint8).data)
    else:
        blocks = np.nditer(array, flags=["external_loop", "buffered"], order="C", buffersize=1 << 18)
        for block in blocks:
            result.update(np.ascontiguousarray(block).view(np.uint8).data)
    return result.digest()


def _mapped(array: npt.NDArray[Any]) -> bytes | None:
    """Returns the digest of an array that maps a file: the file in its present state, and the part of it."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base.base, mmap.mmap):
        base = base.base
    # Data written to a private mapping is in no file.
    if not isinstance(base, np.memmap) or base.filename is None or base.mode == "c":
        return None
    try:
        file = os.stat(base.filename)
    except OSError:
        return None
    name = os.path.abspath(base.filename)
    offset = base.offset + array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    about = (name, offset, array.dtype, array.dtype.str, array.shape, array.strides, file.st_size, file.st_mtime_ns)
    return _hash(b"file", repr(about).encode("utf-8", "surrogatepass"))


def _tensor_content(tensor: Any) -> bytes:
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    if tensor.device.type == "meta":
        return b""
    if tensor.is_quantized:
        return _hash(_tensor_content(tensor.dequantize()), _tensor_content(tensor.int_repr()))
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    data = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return _content(data.view(torch.uint8).numpy()) if data.numel() else b""


# --- parts of code --------------------------------------------------------------------------------------------


def _importable(code: Any) -> bool:
    """Returns whether another process gets this function or class by its name."""
    if isinstance(code, type) and not code.__flags__ & _HEAP_TYPE:
        return True  # Some built-in types, such as that of None, are not an attribute of their module.
    return is_found_by_name(code)


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The cell is still empty.
        return types.CellType


def _uses(code: types.CodeType) -> tuple[set[str], set[Import]]:
    """Returns the globals used and the modules imported by code, including the code nested in it."""
    names: set[str] = set()
    imports: set[Import] = set()
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opname in _GLOBAL_OPS:
            names.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            # The two instructions before load the level and the names of the import.
            imports.add((step.argval, steps[i - 2].argval, steps[i - 1].argval or ()))
    for nested in _nested(code):
        more_names, more_imports = _uses(nested)
        names |= more_names
        imports |= more_imports
    return names, imports


def _attributes(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*map(_attributes, _nested(code)))


def _nested(code: types.CodeType) -> list[types.CodeType]:
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]
