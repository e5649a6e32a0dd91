"""Processes that run a user's dataset: a fork server, which loads it once, and the workers that it forks.

A zygote (``_zygote.py``) forks the fork servers. ``coordinator/protocol/src/code.rs`` describes the messages. A fork
server runs user code only to load the dataset, so that its workers begin as in a fork of the training script. Only
workers make samples.

A worker writes a sample straight into its slot of the staging buffers. It ends with its fork server, the fork server
with its zygote, and the zygote with the coordinator.
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
from coprep._coprep import SampleTask, WorkerLink, keep_freed_memory
from coprep._iterables import Batches, EpochEnds, Reader
from coprep._output import tolerate_failures
from coprep._packing import Packed, pack, unpack
from coprep._seeding import INT64, SeedWatch, seed_all, seed_by
from coprep._structure import Structure

_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_NO_SEED = 0x2545F4914F6CDD1D
"""Stands for the stream's seed in workers that start before there is a stream. Nobody would choose this number, so that
a seed that the user's code sets can be distinguished from it.
"""


class Program(NamedTuple):
    """The user's code that workers run. It travels once per stream."""

    dataset: Any
    """The dataset, or ``module:factory``."""
    transform: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], None] | None
    whole: bool
    """Whether samples travel as they are, because the job collates them."""
    batched: bool
    """Whether samples become batches. Then ``__getitems__`` is used if the dataset has it, as PyTorch does."""

    def fetch(self) -> Callable[[int], Any]:
        """Returns the function that makes a sample of the dataset from its id."""
        at_once = getattr(self.dataset, "__getitems__", None) if self.batched else None
        return (lambda sample: at_once([sample])[0]) if at_once else self.dataset.__getitem__


class Delivery(NamedTuple):
    """Head of the file that the job sends to the fork server. The program follows at :data:`PROGRAM`."""

    spawn: bool
    """Whether each worker loads the dataset anew, instead of finding it in memory."""
    samples: int | None
    """Number of samples of the dataset, or ``None`` if only the fork server can determine it."""
    argv: list[str]
    """The job's ``sys.argv``."""


PROGRAM = 1 << 16
"""Offset of the program in the file that the job sends. All workers use the program's arrays in place."""


class Layout(NamedTuple):
    """Layout of the staging buffers in their shared memory."""

    buffers: int
    slots: int
    stride: int
    offsets: list[int]
    blob: int
    seed: int
    structure: bytes
    memory: mmap.mmap


def enter() -> socket.socket:
    """Makes this process end with its parent. Returns the socket for its orders, which it got as standard input."""
    tolerate_failures()
    end_with_parent(os.getppid())
    # Ctrl-C in the terminal of a coordinator reaches its children too, but the coordinator decides when they end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The coordinator blocks signals that it reads from a descriptor, and its children inherit the mask.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    control = socket.socket(fileno=os.dup(0))
    # User code that reads the standard input must not read the coordinator's messages.
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    if _is_hung_up(control):
        # The parent ended before this process was tied to it. The imports, which may take long, would serve nobody.
        os._exit(0)
    return control


def run_fork_server(control: socket.socket) -> NoReturn:
    """Runs a fork server until the coordinator hangs up, and ends the process."""
    status = 0
    try:
        _ForkServer(control).run()
    except ConnectionError:
        # The coordinator hung up while it was sent something, which is the usual end.
        pass
    except BaseException:
        status = 1
        traceback.print_exc()
    end(status)


def end(status: int) -> NoReturn:
    """Ends a fork server or a zygote without taking the interpreter apart.

    Otherwise libraries would report their leaks, which concern nobody (nanobind writes dozens of lines). Functions that
    user code registered with ``atexit`` are called.
    """
    # A function of user code may raise anything, even SystemExit, and the process ends nevertheless.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def load_program(data: memoryview) -> Program:
    """Unpacks the program. If its dataset is named by a factory, calls the factory."""
    program: Program = unpack(data)
    if isinstance(program.dataset, str):
        program = program._replace(dataset=call_factory(program.dataset))
    return program


def call_factory(name: str) -> Any:
    """Returns the dataset that ``module:factory`` makes."""
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found()


def fork() -> int:
    """Calls ``os.fork`` without its warning about threads."""
    # Text that is still buffered would be written twice.
    _flush()
    with warnings.catch_warnings():
        # A user whose code starts threads while it is loaded has to ask for spawn.
        warnings.simplefilter("ignore")
        return os.fork()


def end_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the call, and then no signal comes.
    if os.getppid() != parent:
        os._exit(1)


class _Channel:
    """Messages over a socket, each with its length before it. Some come with file descriptors."""

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
        """Returns whether a message has come whole."""
        received = self._received
        return len(received) >= 4 and len(received) >= 4 + int(_LENGTH.unpack_from(received)[0])

    def receive(self) -> bytes | None:
        """Waits for the next message and returns it, or ``None`` if the other side is gone."""
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
    """A process that forks others on request, and reports how they end."""

    def __init__(self, control: socket.socket) -> None:
        self._channel = _Channel(control)
        self._children: dict[int, tuple[int, int]] = {}  # number and process id, by descriptor of the process

    def run(self) -> None:
        """Carries out requests until the other side hangs up. No child is left then, whatever happens."""
        try:
            while True:
                control = self._channel.socket.fileno()
                ready, _, _ = select.select([control, *self._children], [], [])
                for process in set(ready) - {control}:
                    self._reap(process)
                if control not in ready:
                    continue
                while self._handle_message():
                    # Several messages may come in one read, and the socket is not readable again for the later ones.
                    if not self._channel.has_message():
                        break
                else:
                    return
        finally:
            # All are killed before the first is awaited, so that they end at the same time.
            for _, pid in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for _, pid in self._children.values():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def close(self) -> None:
        """Closes the parent's descriptors, in a child that was forked from it."""
        self._channel.socket.close()
        for other in self._children:
            os.close(other)

    def _handle_message(self) -> bool:
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
            self._report_failure(what, request.get("worker"), error)
        return True

    def _report_failure(self, what: str, worker: int | None, error: Exception) -> None:
        """Reports that a request failed. ``worker`` is the number of the worker that it was about, if any."""
        raise NotImplementedError

    def _send_event(self, event: str, descriptors: tuple[int, ...] = (), **values: Any) -> None:
        self._channel.send(json.dumps({"event": event, **values}).encode(), descriptors)

    def _adopt(self, pid: int, number: int) -> None:
        try:
            process = os.pidfd_open(pid)
        except OSError:
            # Without a descriptor nobody would see the child end.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[process] = (number, pid)

    def _end_child(self, number: int) -> None:
        for other, pid in self._children.values():
            if other == number:
                # The child stays listed until `_reap` reports its end.
                os.kill(pid, signal.SIGKILL)

    def _reap(self, process: int) -> None:
        number, pid = self._children.pop(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        self._ended(number, status)

    def _ended(self, number: int, status: int) -> None:
        raise NotImplementedError


class _ForkServer(Parent):
    def __init__(self, control: socket.socket) -> None:
        super().__init__(control)
        self._sent = memoryview(b"")
        self._program: Program | None = None
        self._layout: Layout | None = None

    def _load(self) -> None:
        with os.fdopen(self._channel.descriptors.pop(0), "rb") as file:
            # The mapping is private and writable: user code that writes to its arrays gets its own copy of the page.
            self._sent = memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        delivery = Delivery(*pickle.loads(self._sent))
        sys.argv[:] = delivery.argv
        samples = delivery.samples
        if not delivery.spawn or samples is None:
            program = load_program(self._sent[PROGRAM:])
            before = os.listdir("/proc/self/fd")
            samples = len(program.dataset)
            if not delivery.spawn:
                # A file that `__len__` opened would have one position in all workers, which each of them moves.
                is_clean = sorted(os.listdir("/proc/self/fd")) == sorted(before)
                self._program = program if is_clean else load_program(self._sent[PROGRAM:])
        # The collector writes to the objects that it visits, which would copy their pages in every worker. Frozen
        # objects are not visited.
        gc.collect()
        gc.freeze()
        self._send_event("loaded", samples=samples)

    def _map(self, **layout: Any) -> None:
        self._unmap()
        file = self._channel.descriptors.pop(0)
        # The whole file, since large samples lie behind the buffers.
        memory = mmap.mmap(file, 0)
        # Most of the file may have no memory yet. A core dump would read all of it, and so allocate that memory.
        memory.madvise(mmap.MADV_DONTDUMP)
        os.close(file)
        structure = bytes.fromhex(layout.pop("structure"))
        self._layout = Layout(memory=memory, structure=structure, **layout)
        self._send_event("mapped")

    def _unmap(self) -> None:
        if self._layout is not None:
            self._layout.memory.close()
            self._layout = None

    def _fork(self, worker: int, id: int, workers: int, scratch: int, task_table: bool) -> None:
        listed = self._channel.descriptors.pop(0) if task_table else None
        files = [self._channel.descriptors.pop(0) for _ in range(scratch)]
        ours, theirs = socket.socketpair()
        fork_server = os.getpid()
        pid = fork()
        if pid == 0:
            self.close()
            theirs.close()
            _run_worker(self, ours, listed, files, id, workers, fork_server)
        ours.close()
        for descriptor in files if listed is None else [listed, *files]:
            os.close(descriptor)
        self._adopt(pid, worker)
        self._send_event("forked", (theirs.fileno(),), worker=worker, pid=pid)
        theirs.close()

    def _kill(self, worker: int) -> None:
        self._end_child(worker)

    def _report_failure(self, what: str, worker: int | None, error: Exception) -> None:
        self._send_event("failed", worker=worker, message=_failed(what, error))

    def _ended(self, number: int, status: int) -> None:
        self._send_event("exited", worker=number, how=_how_it_ended(status))


def _how_it_ended(status: int) -> str:
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
    server: _ForkServer,
    sock: socket.socket,
    task_table: int | None,
    scratch: list[int],
    number: int,
    workers: int,
    parent: int,
) -> None:
    status = 1
    try:
        end_with_parent(parent)
        keep_freed_memory()
        _Worker(server, sock, task_table, scratch, number, workers).run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (BrokenPipeError, ConnectionResetError) as error:
        # If the coordinator has hung up, it needs this worker no more. Else the broken pipe is one of the dataset's.
        if not _is_hung_up(sock):
            sys.stderr.write(f"worker {number}: {_exchange.describe(error)}\n")
    except BaseException as error:
        sys.stderr.write(f"worker {number}: {_exchange.describe(error)}\n")
    finally:
        _flush()
        # Not `sys.exit`, which would call the functions that the fork server registered for its own exit.
        os._exit(status & 0xFF)


def _is_hung_up(sock: socket.socket) -> bool:
    watch = select.poll()
    watch.register(sock, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in watch.poll(0))


class _Worker:
    def __init__(
        self,
        server: _ForkServer,
        sock: socket.socket,
        task_table: int | None,
        scratch: list[int],
        number: int,
        workers: int,
    ) -> None:
        program, layout = server._program, server._layout
        if program is None:
            program = load_program(server._sent[PROGRAM:])
        # The descriptors stay open until the process ends.
        self._socket = sock
        self._link = WorkerLink(sock.fileno(), task_table, 0 if layout is None else layout.seed)
        self._program = program
        self._fetch, self._transform = program.fetch(), program.transform
        self._seed = 0 if layout is None else layout.seed
        # The one worker of an iterable dataset iterates it for all jobs.
        self._reader = Reader(program.dataset, self._seed) if isinstance(program.dataset, Batches) else None
        self._scratch = [_Scratch(descriptor) for descriptor in scratch]
        if layout is not None:
            self._structure: Structure = _exchange.loads(layout.structure)
            self._views = _views(layout, self._structure)
            self._blobs = _blobs(layout, self._structure)
            self._memory = memoryview(layout.memory)
        # Without a layout the worker starts before there is a stream.
        worker_seed = (_NO_SEED if layout is None else self._seed + number) & INT64
        _prepare_torch(number, workers, worker_seed, program.dataset)
        self._broken: Exception | None = None
        self._lost_seeds: list[str] = []
        if program.worker_init_fn is not None:
            self._initialise(program.worker_init_fn, number, worker_seed)

    def _initialise(self, worker_init_fn: Callable[[int], None], number: int, seed: int) -> None:
        # Each worker has a seed of its own, as with PyTorch.
        seed_by(seed)
        watch = SeedWatch(seed)
        try:
            with watch.watching():
                worker_init_fn(number)
        except Exception as error:
            self._broken = error
        self._lost_seeds = watch.found()

    def run(self) -> None:
        while (received := self._link.next()) is not None:
            if isinstance(received, SampleTask):
                self._make(received)
            else:
                self._link.answer(b"P" + json.dumps(self._probe(received)).encode())

    def _make(self, task: SampleTask) -> None:
        """Makes a sample and writes it to its slot, or reports its exception."""
        link, kept, sample = self._link, (0, 0), task.id
        stage = "dataset"
        try:
            if self._broken is not None:
                raise self._broken
            if self._reader is not None:
                # In a cohort the number of the visit is the epoch.
                value = self._reader.batch(task.visit, sample)
                link.note_made()
            elif self._transform is None:
                seed_by(task.key)
                value = self._fetch(sample)
                link.note_made()
            else:
                scratch = self._scratch_of(task.is_first)
                if task.cached_size and scratch is not None:
                    value = unpack(scratch.view(task.cached_at, task.cached_size))
                else:
                    # The cached value must not depend on who asked first, so the stream's seed is not used here.
                    seed_all(0, sample, 0)
                    value = self._fetch(sample)
                    if task.keep and scratch is not None:
                        kept = scratch.keep(pack(value))
                link.note_made()
                stage = "transform"
                seed_by(task.key)
                value = self._transform(value)
            slot = self._wait_for_slot() if task.slot is None else task.slot
            packed = self._structure.write(value, self._views, slot)
        except EpochEnds as end:
            link.report_raised(json.dumps({"stage": "end", "message": str(end.batches), "exception": ""}).encode())
            return
        except Exception as error:
            if self._reader is not None:
                # PyTorch reports the end of one of its workers by a signal handler, which may raise anywhere.
                self._reader.end_with_workers()
            link.report_raised(json.dumps(_raised(sample, stage, error)).encode())
            return
        if packed is None or self._write_blob(packed, *slot):
            link.report_done(*kept, 0 if packed is None else packed.size)

    def _scratch_of(self, first: bool) -> _Scratch | None:
        """Returns the memory file of the chunk that is being made, or ``None`` if this worker has no such files.

        Args:
            first: the sample is the chunk's first one, with which its file begins anew.
        """
        if not self._scratch:
            return None
        which, end = self._link.scratch()
        scratch = self._scratch[which]
        if first:
            scratch.begin(end)
        return scratch

    def _wait_for_slot(self) -> tuple[int, int]:
        slot = self._link.wait_for_slot()
        if slot is None:
            # The coordinator is gone, and nobody needs this worker.
            raise SystemExit(0)
        return slot

    def _write_blob(self, packed: Packed, buffer: int, slot: int) -> bool:
        """Writes the packed part of a sample to its slot, or behind the buffers if it is larger than a slot.

        Returns:
            ``False`` if the sample is no longer needed, or there is no room for it.
        """
        if self._blobs is not None and packed.size <= self._blobs.shape[-1]:
            packed.write_to(self._blobs[buffer, slot].data)
            return True
        at = self._link.wait_for_room(packed.size)
        if at is None:
            return False
        packed.write_to(self._memory[at : at + packed.size])
        return True

    # Probing samples for their structure and size.

    def _probe(self, message: bytes) -> dict[str, Any]:
        if self._reader is not None:
            # Batches travel whole, so that none needs a probe, and no iteration has to begin for one.
            description, blob = _describe([], True, [])
            return {**description, "blob": blob, "kept": 0}
        split, may_probe_more, enough = bool(message[1] & 1), bool(message[1] & 2), message[2]
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
                description, blob = _describe(value, self._program.whole, self._lost_seeds)
                found = found or description
                blobs.append(blob)
            except Exception as error:
                raised = raised or _raised(sample, stage, error)
                continue
            if len(blobs) == enough:
                # A sample of variable size may have any size. A few more are probed, as long as it is quick.
                if blob == 0 or not may_probe_more:
                    break
                ids = ids[:: max(1, len(ids) // _FURTHER_PROBES)]
            if len(blobs) >= enough + _FURTHER_PROBES or (
                len(blobs) >= enough and time.monotonic() - began > _PROBE_TIME
            ):
                break
        if not found:
            return {"raised": raised or _raised(0, "dataset", IndexError("the dataset is empty"))}
        # A slot holds three of four samples, and not the largest of all, for which most slots would be too large.
        blobs.sort()
        return {**found, "blob": blobs[len(blobs) * 3 // 4], "kept": sum(sizes) // max(1, len(sizes))}


_FURTHER_PROBES = 15
"""Number of samples of variable size to probe beyond the required ones."""
_PROBE_TIME = 0.05
"""Seconds that a probe may take before it does without further samples."""


def _describe(value: Any, whole: bool, lost_seeds: list[str]) -> tuple[dict[str, Any], int]:
    """Returns the description of a sample for the coordinator, and the size in bytes of its variable part."""
    structure = Structure.of(value, whole=whole)
    structure.lost_seeds = lost_seeds
    views = [np.empty((1, 1, *field.shape), field.storage) for field in structure.fields]
    packed = structure.write(value, views, (0, 0))
    description = {
        "fields": [(field.name, field.dtype, field.shape) for field in structure.fields],
        "structure": _exchange.dumps(structure).hex(),
    }
    return description, 0 if packed is None else packed.size


def _raised(sample: int, stage: str, error: Exception) -> dict[str, Any]:
    return {
        "id": sample,
        "stage": stage,
        "message": _exchange.describe(error),
        "exception": _exchange.dump_exception(error).hex(),
    }


def _views(layout: Layout, structure: Structure) -> list[npt.NDArray[Any]]:
    """Returns one array per field over all buffers and slots."""
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
    """Sets up PyTorch as in its own workers: one thread, and ``get_worker_info``."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(1)
    with contextlib.suppress(Exception):
        from torch.utils.data._utils import worker as torch_worker

        info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)
        torch_worker._worker_info = info


class _Scratch:
    """A memory file shared with the coordinator: cached values come in, values to be cached go out."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None
        self._end = 0

    def begin(self, end: int) -> None:
        """Begins a new chunk, of which ``end`` bytes have come in."""
        self._end = end
        self._reach(end)

    def view(self, at: int, size: int) -> memoryview:
        """Returns a cached value that came in. It may be written to, since nobody else reads it again."""
        assert self._memory is not None
        return memoryview(self._memory)[at : at + size]

    def keep(self, packed: Packed) -> tuple[int, int]:
        """Writes a value behind the others, and returns its offset and size in bytes."""
        # Aligned, so that arrays can be used in place.
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
                # Doubling keeps the number of new mappings small if a chunk keeps many values.
                size = max(end, 2 * size, 1 << 20)
                os.ftruncate(self._file, size)
            # Values that are still in use keep the old mapping alive.
            self._memory = mmap.mmap(self._file, size)
