"""Processes that run a user's dataset: a host, which loads it once, and the workers that the host forks.

A host is forked by a zygote (``_zygote.py``). See ``coordinator/protocol/src/code.rs`` for what is said. User code runs
in the host only where it loads the dataset, so that workers begin as they would in a fork of the training script;
samples are made in workers only.

A worker writes a sample straight into its slot of the staging buffers. It ends with its host, the host with its zygote,
and that with the coordinator.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from coprep import _exchange
from coprep._coprep import WorkerLink, keep_freed_memory
from coprep._iterables import Batches, EpochEnds, Reader
from coprep._packing import Packed, pack, unpack
from coprep._seeding import INT64, SeedWatch, seed_all, seed_by
from coprep._structure import Structure

_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_NO_SEED = 0x2545F4914F6CDD1D


class Program(NamedTuple):
    """What is run. Travels once per stream."""

    dataset: Any
    """The dataset, or ``module:factory``."""
    transform: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], None] | None
    whole: bool
    """Samples are collated in the job: they travel as they are."""
    batched: bool
    """Batches are made: where there is ``__getitems__``, it is used, as PyTorch does."""

    def fetch(self) -> Callable[[int], Any]:
        """What gives a sample."""
        at_once = getattr(self.dataset, "__getitems__", None) if self.batched else None
        return (lambda sample: at_once([sample])[0]) if at_once else self.dataset.__getitem__


class Delivery(NamedTuple):
    """What the job sends."""

    spawn: bool
    """Each worker loads the dataset anew, instead of finding it in memory."""
    samples: int | None
    argv: list[str]


PROGRAM = 1 << 16
"""Where the program begins in what the job sends. Its arrays are looked at where they lie, by all workers."""


class Layout(NamedTuple):
    """The staging buffers."""

    buffers: int
    slots: int
    stride: int
    offsets: list[int]
    blob: int
    seed: int
    structure: bytes
    memory: mmap.mmap


def enter() -> socket.socket:
    """Begin as a process that ends with its parent, and is told by a socket, its standard input, what to do."""
    end_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    if _is_hung_up(control):
        # The parent ended before this process was tied to it. Imports, which may take long, would be for nobody.
        os._exit(0)
    return control


def run_host(control: socket.socket) -> NoReturn:
    """Be a host, until the coordinator hangs up."""
    status = 0
    try:
        _Host(control).run()
    except ConnectionError:
        # The coordinator has hung up while it was told something.
        pass
    except BaseException:
        status = 1
        traceback.print_exc()
    end(status)


def end(status: int) -> NoReturn:
    """End a host or a zygote without taking the interpreter apart.

    What libraries say of their leaks then concerns nobody (nanobind says dozens of lines). What user code registered to
    be done at exit is done.
    """
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def load_program(data: memoryview) -> Program:
    """Unpack what is to be run; a factory is called."""
    program: Program = unpack(data)
    if isinstance(program.dataset, str):
        program = program._replace(dataset=call_factory(program.dataset))
    return program


def call_factory(name: str) -> Any:
    """The dataset that ``module:factory`` makes."""
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found()


def fork() -> int:
    """``os.fork``, without what it says of threads."""
    _flush()
    with warnings.catch_warnings():
        # User code that starts some while it is loaded asks for spawn.
        warnings.simplefilter("ignore")
        return os.fork()


def end_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class _Channel:
    """The host's messages, each with its length before it. Some come with descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.descriptors: list[int] = []
        self._received = bytearray()

    def send(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        data = _LENGTH.pack(len(message)) + message
        if descriptors:
            sent = socket.send_fds(self.socket, [data], list(descriptors))
            data = data[sent:]
        self.socket.sendall(data)

    def has_message(self) -> bool:
        """Whether one has come whole."""
        received = self._received
        return len(received) >= 4 and len(received) >= 4 + int(_LENGTH.unpack_from(received)[0])

    def receive(self) -> bytes | None:
        """The next message; None: the other side is gone."""
        received = self._received
        while True:
            if self.has_message():
                end = 4 + _LENGTH.unpack_from(received)[0]
                message = bytes(received[4:end])
                del received[:end]
                return message
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
            self.descriptors += descriptors
            if not data:
                return None
            received += data


class Parent:
    """A process that forks others when it is told to, and tells how they ended."""

    def __init__(self, control: socket.socket) -> None:
        self._channel = _Channel(control)
        self._children: dict[int, tuple[int, int]] = {}  # by descriptor of the process: number, id

    def run(self) -> None:
        """Until the other side hangs up. Whatever happens, no child stays."""
        try:
            while True:
                control = self._channel.socket.fileno()
                ready, _, _ = select.select([control, *self._children], [], [])
                for process in set(ready) - {control}:
                    self._reap(process)
                if control not in ready:
                    continue
                while self._turn():
                    # What has come with it makes the socket readable no more.
                    if not self._channel.has_message():
                        break
                else:
                    return
        finally:
            for _, pid in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for _, pid in self._children.values():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def close(self) -> None:
        """In a child: let go of what is the parent's."""
        self._channel.socket.close()
        for other in self._children:
            os.close(other)

    def _turn(self) -> bool:
        try:
            message = self._channel.receive()
        except ConnectionResetError:
            message = None
        if message is None:
            return False
        request = json.loads(message)
        what = request.pop("do")
        try:
            getattr(self, f"_{what}")(**request)
        except BrokenPipeError:
            return False
        except Exception as error:
            self._cannot(what, error)
        return True

    def _cannot(self, what: str, error: Exception) -> None:
        raise NotImplementedError

    def _say(self, event: str, descriptors: tuple[int, ...] = (), **values: Any) -> None:
        self._channel.send(json.dumps({"event": event, **values}).encode(), descriptors)

    def _adopt(self, pid: int, number: int) -> None:
        try:
            process = os.pidfd_open(pid)
        except OSError:
            # Nobody would see it end.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[process] = (number, pid)

    def _end_child(self, number: int) -> None:
        for other, pid in self._children.values():
            if other == number:
                os.kill(pid, signal.SIGKILL)

    def _reap(self, process: int) -> None:
        number, pid = self._children.pop(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        self._ended(number, status)

    def _ended(self, number: int, status: int) -> None:
        raise NotImplementedError


class _Host(Parent):
    def __init__(self, control: socket.socket) -> None:
        super().__init__(control)
        self._sent = memoryview(b"")
        self._program: Program | None = None
        self._layout: Layout | None = None

    def _load(self) -> None:
        with os.fdopen(self._channel.descriptors.pop(0), "rb") as file:
            self._sent = memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        delivery = Delivery(*pickle.loads(self._sent))
        sys.argv[:] = delivery.argv
        samples = delivery.samples
        if not delivery.spawn or samples is None:
            program = load_program(self._sent[PROGRAM:])
            samples = len(program.dataset)
            if not delivery.spawn:
                self._program = program
        # What is there now is not looked at by the collector, which would copy its pages in every worker.
        gc.collect()
        gc.freeze()
        self._say("loaded", samples=samples)

    def _map(self, **layout: Any) -> None:
        self._unmap()
        file = self._channel.descriptors.pop(0)
        # The whole file: large samples lie behind the buffers.
        memory = mmap.mmap(file, 0)
        # Most of it may have no memory yet. Who writes a core dump would look at all of it, and so take some.
        memory.madvise(mmap.MADV_DONTDUMP)
        os.close(file)
        structure = bytes.fromhex(layout.pop("structure"))
        self._layout = Layout(memory=memory, structure=structure, **layout)
        self._say("mapped")

    def _unmap(self) -> None:
        if self._layout is not None:
            self._layout.memory.close()
            self._layout = None

    def _fork(self, worker: int, id: int, workers: int, scratch: int, worklist: bool) -> None:
        listed = self._channel.descriptors.pop(0) if worklist else None
        files = [self._channel.descriptors.pop(0) for _ in range(scratch)]
        ours, theirs = socket.socketpair()
        host = os.getpid()
        pid = fork()
        if pid == 0:
            self.close()
            theirs.close()
            _run_worker(self, ours, listed, files, id, workers, host)
        ours.close()
        for descriptor in files if listed is None else [listed, *files]:
            os.close(descriptor)
        self._adopt(pid, worker)
        self._say("forked", (theirs.fileno(),), worker=worker, pid=pid)
        theirs.close()

    def _kill(self, worker: int) -> None:
        self._end_child(worker)

    def _cannot(self, what: str, error: Exception) -> None:
        self._say("failed", message=_failed(what, error))

    def _ended(self, number: int, status: int) -> None:
        self._say("exited", worker=number, how=_how(status))


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in signal.valid_signals() else "unknown"
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"was killed by signal {number}, {name}{hint}"
    return f"exited with status {os.waitstatus_to_exitcode(status)}"


def _failed(what: str, error: Exception) -> str:
    if what != "load":
        return f"the process that runs the dataset cannot {what}: {_exchange.describe(error)}"
    remedy = "run with num_workers=0 to see where"
    if isinstance(error, ModuleNotFoundError):
        remedy = (
            f"make the module {error.name!r} importable in a new process that has this job's sys.path "
            "(install it, or put its folder into PYTHONPATH)"
        )
    elif isinstance(error, AttributeError):
        remedy = "what the dataset is made of must be defined when its module is imported"
    return f"the dataset cannot be loaded in a worker process: {_exchange.describe(error)}\nRemedy: {remedy}"


# --- a worker -------------------------------------------------------------------------------------------------


def _run_worker(
    host: _Host, sock: socket.socket, worklist: int | None, scratch: list[int], number: int, workers: int, parent: int
) -> None:
    status = 1
    try:
        end_with_parent(parent)
        keep_freed_memory()
        _Worker(host, sock, worklist, scratch, number, workers).run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (BrokenPipeError, ConnectionResetError) as error:
        # The coordinator wants nothing of this worker any more. Any other pipe is the dataset's.
        if not _is_hung_up(sock):
            sys.stderr.write(f"worker {number}: {_exchange.describe(error)}\n")
    except BaseException as error:
        sys.stderr.write(f"worker {number}: {_exchange.describe(error)}\n")
    finally:
        _flush()
        # Without what the host registered to be done at its exit.
        os._exit(status & 0xFF)


def _is_hung_up(sock: socket.socket) -> bool:
    watch = select.poll()
    watch.register(sock, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in watch.poll(0))


class _Worker:
    def __init__(
        self, host: _Host, sock: socket.socket, worklist: int | None, scratch: list[int], number: int, workers: int
    ) -> None:
        program, layout = host._program, host._layout
        if program is None:
            program = load_program(host._sent[PROGRAM:])
        # Descriptors are closed with the process.
        self._socket = sock
        self._link = WorkerLink(sock.fileno(), worklist, 0 if layout is None else layout.seed)
        self._program = program
        self._fetch, self._transform = program.fetch(), program.transform
        self._seed = 0 if layout is None else layout.seed
        # What can only be iterated is iterated by one process.
        self._reader = Reader(program.dataset, self._seed) if isinstance(program.dataset, Batches) else None
        self._scratch = [_Scratch(descriptor) for descriptor in scratch]
        if layout is not None:
            self._structure: Structure = _exchange.loads(layout.structure)
            self._views = _views(layout, self._structure)
            self._blobs = _blobs(layout, self._structure)
            self._memory = memoryview(layout.memory)
        # Before there is a stream: a number that nobody would choose, so that a seed of the user's is told apart.
        worker_seed = (_NO_SEED if layout is None else self._seed + number) & INT64
        _prepare_torch(number, workers, worker_seed, program.dataset)
        self._broken: Exception | None = None
        self._lost_seeds: list[str] = []
        if program.worker_init_fn is not None:
            self._initialise(program.worker_init_fn, number, worker_seed)

    def _initialise(self, worker_init_fn: Callable[[int], None], number: int, seed: int) -> None:
        # As PyTorch's workers are: each with a seed of its own.
        seed_by(seed)
        watch = SeedWatch(seed)
        try:
            with watch.watching():
                worker_init_fn(number)
        except Exception as error:
            self._broken = error
        self._lost_seeds = watch.found()

    def run(self) -> None:
        while (told := self._link.next()) is not None:
            if isinstance(told, tuple):
                self._sample(*told)
            else:
                self._link.answer(b"P" + json.dumps(self._probe(told)).encode())

    def _sample(
        self,
        first: bool,
        sample: int,
        place: tuple[int, int] | None,
        keep: bool,
        key: int,
        at: int,
        size: int,
        visit: int,
    ) -> None:
        link, kept = self._link, (0, 0)
        stage = "dataset"
        try:
            if self._broken is not None:
                raise self._broken
            if self._reader is not None:
                # The visit of a cohort is its epoch.
                value = self._reader.batch(visit, sample)
                link.made()
            elif self._transform is None:
                seed_by(key)
                value = self._fetch(sample)
                link.made()
            else:
                scratch = self._scratch_of(first)
                if size and scratch is not None:
                    value = unpack(scratch.view(at, size))
                else:
                    # What is kept must not depend on who asked first.
                    seed_all(0, sample, 0)
                    value = self._fetch(sample)
                    if keep and scratch is not None:
                        kept = scratch.keep(pack(value))
                link.made()
                stage = "transform"
                seed_by(key)
                value = self._transform(value)
            if place is None:
                place = self._place()
            packed = self._structure.write(value, self._views, place)
        except EpochEnds as end:
            link.raised(json.dumps({"stage": "end", "message": str(end.batches), "exception": ""}).encode())
            return
        except Exception as error:
            if self._reader is not None:
                # PyTorch says so by a signal handler, which may raise it anywhere.
                self._reader.end_with_workers()
            link.raised(json.dumps(_raised(sample, stage, error)).encode())
            return
        if packed is None or self._write_blob(packed, *place):
            link.done(*kept, 0 if packed is None else packed.size)

    def _scratch_of(self, first: bool) -> _Scratch | None:
        """Of the chunk that is being made; ``first``: its first sample."""
        if not self._scratch:
            return None
        which, end = self._link.scratch()
        scratch = self._scratch[which]
        if first:
            scratch.begin(end)
        return scratch

    def _place(self) -> tuple[int, int]:
        place = self._link.place()
        if place is None:
            raise SystemExit(0)
        return place

    def _write_blob(self, packed: Packed, buffer: int, slot: int) -> bool:
        """Write it to its slot, or where there is room if it is larger. False: nobody wants it, or there is no room."""
        if self._blobs is not None and packed.size <= self._blobs.shape[-1]:
            packed.write_to(self._blobs[buffer, slot].data)
            return True
        at = self._link.room(packed.size)
        if at is None:
            return False
        packed.write_to(self._memory[at : at + packed.size])
        return True

    # A look at what samples are like.

    def _probe(self, message: bytes) -> dict[str, Any]:
        if self._reader is not None:
            # Batches travel whole, so that none need be looked at, and no iteration begins for that.
            look, blob = _look([], True, [])
            return {**look, "blob": blob, "kept": 0}
        split, may_look_at_more, enough = bool(message[1] & 1), bool(message[1] & 2), message[2]
        ids = [sample for (sample,) in struct.iter_unpack("<I", message[3:])]
        found: dict[str, Any] = {}
        raised: dict[str, Any] | None = None
        sizes: list[int] = []
        blobs: list[int] = []
        began = time.monotonic()
        while ids:
            sample = ids.pop(0)
            stage = "dataset"
            try:
                if self._broken is not None:
                    raise self._broken
                seed_all(self._seed, sample, 0)
                value = self._fetch(sample)
                if split:
                    sizes.append(pack(value).size)
                if self._transform is not None:
                    stage = "transform"
                    value = self._transform(value)
                look, blob = _look(value, self._program.whole, self._lost_seeds)
                found = found or look
                blobs.append(blob)
            except Exception as error:
                raised = raised or _raised(sample, stage, error)
                continue
            if len(blobs) == enough:
                # What is of no fixed size may be of any. A few more are looked at, if that takes no time.
                if blob == 0 or not may_look_at_more:
                    break
                ids = ids[:: max(1, len(ids) // _FURTHER_LOOKS)]
            if len(blobs) >= enough + _FURTHER_LOOKS or (
                len(blobs) >= enough and time.monotonic() - began > _TIME_TO_LOOK
            ):
                break
        if not found:
            return {"raised": raised or _raised(0, "dataset", IndexError("the dataset is empty"))}
        # A slot is for most samples, and not for the largest of all.
        blobs.sort()
        return {**found, "blob": blobs[len(blobs) * 3 // 4], "kept": sum(sizes) // max(1, len(sizes))}


_FURTHER_LOOKS = 15
"""Samples of no fixed size that are looked at besides those that must be."""
_TIME_TO_LOOK = 0.05
"""Seconds for that."""


def _look(value: Any, whole: bool, lost_seeds: list[str]) -> tuple[dict[str, Any], int]:
    """What a sample is like, and how many bytes of it are of no fixed size."""
    structure = Structure.of(value, whole=whole)
    structure.lost_seeds = lost_seeds
    views = [np.empty((1, 1, *field.shape), field.storage) for field in structure.fields]
    packed = structure.write(value, views, (0, 0))
    look = {
        "fields": [(field.name, field.dtype, field.shape) for field in structure.fields],
        "structure": _exchange.dumps(structure).hex(),
    }
    return look, 0 if packed is None else packed.size


def _raised(sample: int, stage: str, error: Exception) -> dict[str, Any]:
    return {
        "id": sample,
        "stage": stage,
        "message": _exchange.describe(error),
        "exception": _exchange.dump_exception(error).hex(),
    }


def _views(layout: Layout, structure: Structure) -> list[npt.NDArray[Any]]:
    """One array per field over all buffers and slots."""
    views = []
    for field, offset in zip(structure.fields, layout.offsets, strict=False):
        one = np.empty(field.shape, field.storage)
        views.append(
            np.ndarray(
                (layout.buffers, layout.slots, *field.shape),
                field.storage,
                layout.memory,
                offset,
                (layout.stride, field.nbytes, *one.strides),
            )
        )
    return views


def _blobs(layout: Layout, structure: Structure) -> npt.NDArray[np.uint8] | None:
    if layout.blob == 0:
        return None
    shape, strides = (layout.buffers, layout.slots, layout.blob), (layout.stride, layout.blob, 1)
    offset = layout.offsets[len(structure.fields)]
    return np.ndarray(shape, np.uint8, layout.memory, offset, strides)


def _prepare_torch(number: int, workers: int, seed: int, dataset: Any) -> None:
    """What PyTorch's own workers do: one thread, and ``get_worker_info``."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(1)
    with contextlib.suppress(Exception):
        from torch.utils.data._utils import worker as torch_worker

        info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)
        torch_worker._worker_info = info


class _Scratch:
    """A memory file between the coordinator and this worker: what is cached comes in, what is to be kept goes out."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None
        self._end = 0

    def begin(self, end: int) -> None:
        """A new chunk, of which ``end`` bytes have come in."""
        self._end = end
        self._reach(end)

    def view(self, at: int, size: int) -> memoryview:
        """What came in. It may be written: nobody else looks at it again."""
        assert self._memory is not None
        return memoryview(self._memory)[at : at + size]

    def keep(self, packed: Packed) -> tuple[int, int]:
        """Where it lies, and how many bytes it takes."""
        at = -(-self._end // 64) * 64
        self._end = at + packed.size
        self._reach(self._end)
        assert self._memory is not None
        packed.write_to(memoryview(self._memory)[at : self._end])
        return at, packed.size

    def _reach(self, end: int) -> None:
        if end and (self._memory is None or len(self._memory) < end):
            size = os.fstat(self._file).st_size
            if size < end:
                size = max(end, 2 * size, 1 << 20)
                os.ftruncate(self._file, size)
            # Values that are still in use keep the mapping before.
            self._memory = mmap.mmap(self._file, size)
