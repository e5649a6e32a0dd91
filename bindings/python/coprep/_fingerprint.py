"""Identity of datasets and transforms: equal in jobs whose memory makes the same samples, different otherwise.

Samples are made in the memory of one job, so everything is taken from memory. What counts is what reached code reads
(:mod:`coprep._reach`), and the code itself. Libraries count by their version, by what was set in them and by what was
replaced in them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from coprep._attributes import Named, attributes_of
from coprep._caches import HOOK
from coprep._codes import digest_of_code, digest_of_constant
from coprep._errors import UnsharedWarning
from coprep._generators import generators_of, kind_of
from coprep._hashing import Hasher
from coprep._modules import digest_of as _hash
from coprep._modules import is_users, parts_of, sources_of
from coprep._names import main_name, path_in
from coprep._patches import Patches
from coprep._private import Private
from coprep._reach import Bounds, Evaluation, Read, reach
from coprep._reach.memory import ENVIRONMENT, is_followed_code, is_plain, is_seeded, seeded
from coprep._switches import switches, switches_of
from coprep._told import Described

Part = tuple[str, bytes]

DEPTH = 3
"""Levels of attributes and elements of what counts whole that get parts of their own."""
ROUNDS = 8
"""Most times that objects are looked at until nothing else counts whole."""
PARTS = 256
"""Most parts for what is read. More are put together."""
ELEMENTS = 16
"""Longest list or tuple whose elements get parts of their own."""
_OF_LIBRARIES = ("switch ", "replaced ")
"""Beginnings of the names of values that have one part each."""


def fingerprint(named: Mapping[str, Any], private: list[Private] | None = None) -> list[Part]:
    """Returns the identity of objects, in named parts (16-byte digests), so that a difference can be named.

    Beside what is read (``dataset.root``, ``config.SIZE``, ...) there are ``code MODULE`` (the reached functions of a
    module), ``package NAME``, ``replaced NAME`` (the user's code in a library) and ``switch NAME``.

    Args:
        private: is given the objects that cannot be compared with those of other processes. Parts that lead to one have
            digests that no other process has.
    """
    return Counted(named).parts([] if private is None else private)


class Counted:
    """Finds what counts of objects: once, and anew after something that was followed has been replaced.

    Args:
        named: the objects by name.
        dataset: the dataset of the workers that use them, if it is not among them.
    """

    def __init__(self, named: Mapping[str, Any], dataset: Any = None) -> None:
        self.named = named
        self._of_workers = named.get("dataset", dataset)
        self.uses_directory = False
        """``True`` if the objects, or the code that they reach, hold a relative path that leads to something."""
        self._known: _Known | None = None
        self._generators: dict[int, Any] = {}
        self._last: list[Part] | None = None

    def parts(self, private: list[Private]) -> list[Part]:
        """Returns the identity of the objects in their present state."""
        if self._last is None:
            self._find_generators()
        found: list[Private] = []
        parts = self._parts(found)
        # The state of a generator that was made since the last time has counted. Finding it takes longer than all else.
        if self._last not in (None, parts) and self._find_generators():
            found.clear()
            parts = self._parts(found)
        self._last = parts
        private += found
        return parts

    def _find_generators(self) -> bool:
        """Finds the generators that workers seed. Returns whether they are other ones than before."""
        # Workers seed the generators of the dataset and its transform, and these alone.
        roots = {"dataset": self._of_workers, **self.named}
        roots.pop("worker_init_fn", None)
        before, self._generators = self._generators, {id(one): one for one in generators_of(roots).values()}
        return before.keys() != self._generators.keys()

    def _parts(self, private: list[Private]) -> list[Part]:
        with seeded(self._generators.values()):
            return self._parts_by_code(private)

    def _parts_by_code(self, private: list[Private]) -> list[Part]:
        try:
            known, parts = self._known, None if self._known is None else self._known.parts_now(private)
            if known is None or parts is None:
                with _young_collected():
                    known, parts = _found(self.named, self._of_workers, private)
            self._known, self.uses_directory = known, known.uses_directory
            return parts
        except MemoryError:
            raise
        except Exception as error:
            # The analysis must never keep a job from its samples.
            what = " and ".join(self.named) or "the program"
            warnings.warn(
                f"what counts of {what} was not found ({type(error).__name__}: {error}): so all that the program has "
                "defined counts, and jobs that differ in any of it share nothing",
                UnsharedWarning,
                stacklevel=2,
            )
            self._known = None
            self.uses_directory = True
            return _all_parts(self.named, private)

    @property
    def may_read_worker_info(self) -> bool:
        """Returns whether the objects may look at the dataset in ``torch.utils.data.get_worker_info()``."""
        return self.run is None or self.run.reads_worker_info

    @property
    def run(self) -> Evaluation | None:
        """Returns what was found, or ``None`` if all that the job has defined counts, since it was too much."""
        return None if self._known is None else self._known.run

    def told(self) -> Described:
        """Returns the descriptions of the parts, for people."""
        return Described(self.run, _name_of)


class _Known:
    """The members that count, as they were found."""

    def __init__(self, run: Evaluation, whole: Mapping[str, Any]) -> None:
        self.run = run
        self.uses_directory = False
        self._whole = whole
        self._contents: dict[str, bytes] = {}
        """Digests of objects that were followed although they count whole."""
        self.missing: dict[str, Any] = {}
        """Objects that have to count whole beside that, after :meth:`parts`."""

    def parts_now(self, private: list[Private]) -> list[Part] | None:
        """Returns the present identity, or ``None`` if other code may be reached than when this was found."""
        run = self.run
        reads = [read.now() for read in run.reads.values()]
        if None in reads or run.imports.keys() & sys.modules.keys() or not run.watched.are_present():
            return None
        return self.parts([read for read in reads if read is not None], private)

    def parts(self, reads: Iterable[Read], private: list[Private]) -> list[Part] | None:
        """Returns the identity with these values, or ``None`` if other code may be reached than when this was found."""
        run = self.run
        found: list[Private] = []
        hasher = Hasher(found, run.functions)
        parts = [*_Splitter(hasher).parts(reads)]
        contents = {name: digest for name, digest in parts if name in run.followed}
        if contents != (self._contents or contents):
            return None
        self._contents = contents
        hasher.modules.update(run.modules)
        files = sources_of(run.imports, skip_present=True)
        hasher.modules.update(dict.fromkeys(files.libraries | files.present))
        switched, also = _set_and_replaced(hasher, self._whole)
        # A file that is imported later uses modules that are there in a way that is not known.
        also |= hasher.functions | {name: sys.modules[name] for name in sorted(files.present) if is_users(name)}
        self.missing = {name: value for name, value in also.items() if name not in self._whole}
        if self.missing:
            return None
        private += found
        parts = _put_together(parts)
        parts += [(f"code {module}", digest) for module, digest in sorted(_codes(run).items())]
        parts += [*files.parts, *parts_of(hasher.modules), *switched]
        if files.names_environment:
            parts.append((ENVIRONMENT, hasher.named(ENVIRONMENT, os.environ)))
        self.uses_directory = _lead_somewhere(hasher, run.strings)
        return _unique(parts)


@contextlib.contextmanager
def _young_collected() -> Iterator[None]:
    """Lets the garbage collector pass over older objects: many new ones, such as syntax trees, call it often."""
    if gc.get_freeze_count():
        # The program's own frozen objects would be thawed with the others.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _found(named: Mapping[str, Any], dataset: Any, private: list[Private]) -> tuple[_Known, list[Part]]:
    """Finds what counts of objects, and returns it with their identity."""
    whole: dict[str, Any] = {}
    run = None
    for _ in range(ROUNDS):
        run = reach(named, whole, dataset, run)
        known = _Known(run, whole)
        parts = known.parts(known.run.reads.values(), private)
        if parts is not None:
            return known, parts
        whole |= known.missing
    raise Bounds("objects change while they are looked at")


def _all_parts(named: Mapping[str, Any], private: list[Private]) -> list[Part]:
    """Returns the identity of objects with all modules of the user's."""
    hasher = Hasher(private)
    parts = [(name, hasher.named(name, value)) for name, value in {**named, ENVIRONMENT: os.environ}.items()]
    for module in sorted(filter(is_users, list(sys.modules))):
        members = {name: value for name, value in vars(sys.modules[module]).items() if name[:2] != "__"}
        classes = {name: dict(vars(value)) for name, value in members.items() if isinstance(value, type)}
        name = f"module {main_name(module)}"
        parts.append((name, hasher.named(name, [sorted(members.items(), key=_first), classes])))
    switched, _ = _set_and_replaced(hasher, ())
    parts += [*parts_of(hasher.modules), *switched]
    return _unique(parts)


def _first(item: tuple[str, Any]) -> str:
    return item[0]


def _lead_somewhere(hasher: Hasher, constants: Iterable[str]) -> bool:
    """Returns whether a string is a relative path that leads to something."""
    for text in constants:
        # "." and ".." stand for a folder less often than they separate words.
        if text not in (".", ".."):
            hasher.note_string(text)
    return any(map(os.path.exists, hasher.strings))


def _unique(parts: list[Part]) -> list[Part]:
    result: dict[str, bytes] = {}
    for name, digest in parts:
        unique, n = name, 2
        while result.get(unique, digest) != digest:
            unique, n = f"{name} ({n})", n + 1
        result[unique] = digest
    return list(result.items())


def _put_together(parts: list[Part]) -> list[Part]:
    """Puts parts together until there are few enough: those of the objects that have most, such as long containers."""
    while len(parts) > PARTS:
        owners: dict[str, list[Part]] = {}
        for part in parts:
            owners.setdefault(part[0].rpartition(".")[0] or part[0].strip("."), []).append(part)
        most = sorted(owners, key=lambda owner: (-len(owners[owner]), owner))
        left, together = len(parts), set()
        for owner in most:
            if left <= PARTS or len(owners[owner]) == 1:
                break
            together.add(owner)
            left -= len(owners[owner]) - 1
        if not together:
            if all("." not in name for name, _ in parts):
                break
            # No two of them have the same owner, so the owners of these are next.
            together.update(most)
        parts = []
        for owner, its_own in owners.items():
            if owner in together:
                parts.append(
                    (owner, _hash(*(name.encode(errors="surrogatepass") + digest for name, digest in its_own)))
                )
            else:
                parts += its_own
    return parts


def _codes(run: Evaluation) -> dict[str, bytes]:
    """Returns the digest of the reached code of each module."""
    pieces: dict[str, list[bytes]] = {}
    for (module, name), codes in run.codes.items():
        pieces.setdefault(main_name(module), []).extend(name.encode() + digest_of_code(code) for code in codes)
    return {module: _hash(*sorted(found)) for module, found in pieces.items()}


def _set_and_replaced(hasher: Hasher, counted: Container[str]) -> tuple[list[Part], dict[str, Any]]:
    """Returns what was set in libraries, and the user's code in them, which they may call.

    Args:
        counted: names of what has parts already.
    """
    switched = {name: (value, hasher.named(name, value)) for name, value in switches()}
    replaced: dict[str, Any] = {}
    patches = Patches(is_users)
    known = -1
    while len(hasher.modules) != known:
        known = len(hasher.modules)
        replaced |= {f"replaced {name}": value for name, value in patches.of([*hasher.modules, "builtins"]).items()}
        for name, value in switches_of(hasher.modules):
            if name not in switched:
                switched[name] = value, hasher.named(name, value)
    also = replaced | {name: value for name, (value, _) in switched.items() if not is_plain(value)}
    parts = [(name, digest) for name, (_, digest) in switched.items() if name not in counted]
    return [*parts, *((name, hasher.named(name, value)) for name, value in replaced.items())], also


def _name_of(read: Read) -> str:
    """Returns the name of the part for what is read."""
    return read.path if read.how in ("value", "content") else f"{read.path} ({read.how})"


def _place(function: Any) -> tuple[str, str]:
    """Returns the module in which a function was defined, and its name there."""
    return main_name(function.__module__ or ""), function.__qualname__


def _which(function: Any) -> bytes:
    """Returns what tells a function from others that are reached, too. They may stand in another order."""
    if not isinstance(function, FunctionType):
        return b""
    name = ":".join(_place(function))
    # Several lambdas have one name.
    return name.encode() + (digest_of_code(function.__code__) if "<" in name else b"")


def _other(read: Read) -> str:
    """Returns the path at which an object was met before, if it is not that of the read."""
    first = read.about[1]
    return "" if first == read.path else first


# --- parts ---------------------------------------------------------------------------------------------------------


class _Splitter:
    """Breaks what counts into parts, as long as there are not too many."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._left = PARTS

    def parts(self, reads: Iterable[Read]) -> Iterator[Part]:
        for read in reads:
            value = read.value
            name = _name_of(read)
            if read.how == "type":
                cls = value if isinstance(value, type) else type(value)
                self._hasher.note(cls.__module__)
                kind = kind_of(value) if is_seeded(value) else f"{main_name(cls.__module__)}:{cls.__qualname__}"
                function = getattr(value, "__func__", None) if cls is MethodType else None
                yield name, _hash(f"{kind}:{_other(read)}".encode(), _which(function))
            elif read.how == "code":
                if not is_followed_code(value):
                    yield name, self._hasher.named(read.path, value)
                # Most paths say which function it is. The elements of a set, which have no order, count as its content.
                elif "{}" not in name and read.path not in (value.__qualname__, path_in(*_place(value))):
                    yield name, _hash(_other(read).encode(), _which(value))
                elif _other(read):
                    yield name, _hash(_other(read).encode())
            elif read.how == "content":
                yield from self._split([(read.path, value)])
            else:
                yield name, self._digest(read.path, value)

    def _digest(self, name: str, value: Any) -> bytes:
        is_number = type(value) in (int, float, bool, type(None))
        return _hash(digest_of_constant(value)) if is_number else self._hasher.named(name, value)

    def _split(self, named: Iterable[tuple[str, Any]], depth: int = 0) -> Iterator[Part]:
        for name, value in named:
            is_split = depth < DEPTH and not name.startswith(_OF_LIBRARIES)
            head, children = self._children(value) if is_split else (value, [])
            if len(children) > self._left:
                # With too many parts, the value is hashed as a whole, and a difference is named by the value alone.
                head, children = value, []
            self._left -= len(children)
            yield name, self._digest(name, head)
            for suffix, child in children:
                yield from self._split([(name + suffix, child)], depth + 1)

    def _children(self, value: Any) -> tuple[Any, Named]:
        """Returns a stand-in for the value itself, and its parts by the suffix of their name."""
        cls = type(value)
        if cls in (list, tuple) and len(value) <= ELEMENTS:
            return (cls, len(value)), [(f"[{i}]", v) for i, v in enumerate(value)]
        if self._hasher.handler(cls) is None and not hasattr(cls, HOOK):
            attributes = attributes_of(value)
            if attributes is not None:
                return cls, attributes
        return value, []
