"""A process that runs a user's dataset. A fork server (``_fork_server.py``) forks it.

A worker writes a sample straight into its slot of the staging buffers. ``coordinator/protocol/src/code.rs`` describes
the messages.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from coprep import _exchange
from coprep._coprep import SampleTask, WorkerLink, keep_freed_memory
from coprep._generators import SampleSeeder
from coprep._iterables import Batches, EpochEnds, Reader
from coprep._opened import OpenedFiles
from coprep._output import detach
from coprep._packing import Packed, pack, unpack
from coprep._processes import end_with_parent, flush, is_hung_up, leave_parent
from coprep._program import Program
from coprep._seeding import INT64, SeedWatch, seed_by
from coprep._structure import MismatchError, Structure, pack_whole

_NO_SEED = 0x2545F4914F6CDD1D
"""Stands for the stream's seed in workers that start before there is a stream. Nobody would choose this number, so that
a seed that the user's code sets can be distinguished from it.
"""


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


class Start(NamedTuple):
    """A worker as its fork server starts it."""

    load_program: Callable[[], Program]
    """Returns the user's code, which may be in memory already."""
    layout: Layout | None
    """``None`` for a worker that only inspects samples."""
    socket: socket.socket
    task_table: int | None
    """Descriptor of the task table, if the worker gets its tasks there."""
    scratch: list[int]
    """Descriptors of the memory files for values of the cache."""
    number: int
    workers: int
    """Number of workers of the stream."""
    parent: int
    """Process id of the fork server."""
    seed: int | None = None
    """Seed of the stream, if the worker makes samples only to be compared."""


def run_worker(start: Start) -> NoReturn:
    """Runs a worker in this process, which has just been forked, and ends the process."""
    status = 1
    try:
        end_with_parent(start.parent)
        leave_parent()
        detach()
        _name_process(start.number)
        keep_freed_memory()
        # The name keeps it until the process has ended, so that the dataset's `__del__` does not run.
        worker = _Worker(start)
        worker.run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (BrokenPipeError, ConnectionResetError) as error:
        # If the coordinator has hung up, it needs this worker no more. Else the broken pipe is one of the dataset's.
        if not is_hung_up(start.socket):
            sys.stderr.write(f"worker {start.number}: {_exchange.describe(error)}\n")
    except BaseException as error:
        sys.stderr.write(f"worker {start.number}: {_exchange.describe(error)}\n")
    finally:
        _end_children()
        flush()
        # Not `sys.exit`, which would call the functions that the job registered for its own exit.
        os._exit(status & 0xFF)


def _name_process(number: int) -> None:
    """Lets ``multiprocessing`` know this process as a child, as it knows PyTorch's workers."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    parent, sentinel = process.current_process().name, os.pidfd_open(os.getppid())
    process._parent_process = process._ParentProcess(parent, os.getppid(), sentinel)
    process._current_process = process.BaseProcess(name=f"Process-{number + 1}")
    process._current_process._parent_pid = os.getppid()


def _end_children() -> None:
    """Ends the processes that user code has started by ``multiprocessing``, as they end with PyTorch's workers."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        with contextlib.suppress(BaseException):
            util._exit_function()


class _Worker:
    def __init__(self, start: Start) -> None:
        program, layout = start.load_program(), start.layout
        # The descriptors stay open until the process ends.
        self._socket = start.socket
        self._link = WorkerLink(start.socket.fileno(), start.task_table, 0 if layout is None else layout.seed)
        self._program = program
        self._fetch, self._transform = program.fetch(), program.transform
        self._asks_for_several = program.fetch_several() is not None
        # The samples that the dataset is asked for together, and their values that are not taken yet, by id.
        self._together: tuple[list[int], int] = ([], 0)
        self._to_make: frozenset[int] = frozenset()
        self._made: dict[int, list[Any]] = {}
        seed = start.seed if layout is None else layout.seed
        self._seed = 0 if seed is None else seed
        self._seeder = SampleSeeder(program)
        # The one worker of an iterable dataset iterates it for all jobs.
        self._reader = Reader(program.dataset, self._seed) if isinstance(program.dataset, Batches) else None
        self._scratch = [_Scratch(descriptor) for descriptor in start.scratch]
        self._opened = OpenedFiles()
        if layout is not None:
            self._structure: Structure = _exchange.loads(layout.structure)
            self._views = _views(layout, self._structure)
            self._blobs = _blobs(layout, self._structure)
            self._memory = memoryview(layout.memory)
        worker_seed = (_NO_SEED if seed is None else seed + start.number) & INT64
        _prepare_torch(start.number, start.workers, worker_seed, program.dataset)
        self._broken: Exception | None = None
        self._lost_seeds: list[str] = []
        if program.worker_init_fn is not None:
            self._initialise(program.worker_init_fn, start.number, worker_seed)

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
                kind = received[:1]
                answer = self._probe(received) if kind == b"P" else self._remake(received)
                self._link.answer(kind + json.dumps(answer).encode())

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
                value = self._fetched(task)
                link.note_made()
            else:
                scratch = self._scratch_of(task.is_first)
                if task.cached_size and scratch is not None:
                    value = unpack(scratch.view(task.cached_at, task.cached_size))
                else:
                    # The cached value must not depend on who asked first, so the stream's seed is not used here.
                    self._seeder.seed_all(0, sample, 0)
                    if task.keep and scratch is not None:
                        self._opened.begin()
                        value = self._fetch(sample)
                        kept = scratch.keep(pack(value), self._opened.end())
                    else:
                        value = self._fetch(sample)
                link.note_made()
                stage = "transform"
                self._seeder.seed_by(task.key)
                value = self._transform(value)
            slot = self._wait_for_slot() if task.slot is None else task.slot
            packed, is_whole = self._write(value, slot)
        except EpochEnds as end:
            link.report_raised(json.dumps({"stage": "end", "message": str(end.batches), "exception": ""}).encode())
            return
        except Exception as error:
            if self._reader is not None:
                # PyTorch reports the end of one of its workers by a signal handler, which may raise anywhere.
                self._reader.end_with_workers()
            link.report_raised(json.dumps(_raised(sample, stage, error)).encode())
            return
        if packed is None:
            link.report_done(*kept, 0)
        elif (size := self._write_blob(packed, *slot, has_marker=is_whole)) is not None:
            link.report_done(*kept, size)

    def _fetched(self, task: SampleTask) -> Any:
        """Returns a sample of the dataset, which a call for all samples of its minibatch may have made."""
        if self._asks_for_several:
            if task.is_first and (together := self._link.together()) != self._together:
                self._together, self._to_make, self._made = together, frozenset(together[0]), {}
            if not self._made.get(task.id) and task.id in self._to_make:
                self._make_together()
            if values := self._made.get(task.id):
                return values.pop(0)
        self._seeder.seed_by(task.key)
        return self._fetch(task.id)

    def _make_together(self) -> None:
        samples, key = self._together
        # After an error the dataset is asked for each sample by itself.
        self._made, self._to_make = {}, frozenset()
        self._seeder.seed_by(key)
        values = self._program.together(samples)
        if values is None:
            return
        self._to_make = frozenset(samples)
        self._link.share_time(len(samples))
        for sample, value in zip(samples, values, strict=True):
            self._made.setdefault(sample, []).append(value)

    def _write(self, value: Any, slot: tuple[int, int]) -> tuple[Packed | None, bool]:
        """Writes the parts of a sample that its slot has fields for.

        Returns:
            The rest of the sample, packed, and whether that is all of a sample of another structure.
        """
        try:
            return self._structure.write(value, self._views, slot), False
        except MismatchError:
            return pack_whole(value), True

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

    def _write_blob(self, packed: Packed, buffer: int, slot: int, *, has_marker: bool) -> int | None:
        """Writes the packed part of a sample to its slot, or behind the buffers if it is larger than a slot.

        Args:
            has_marker: whether it lies behind the buffers in any case where other samples have no such part. That
                tells it from theirs.

        Returns:
            The bytes that it takes, or ``None`` if the sample is no longer needed, or there is no room for it.
        """
        room = 0 if self._blobs is None else self._blobs.shape[-1]
        must_be_large = has_marker and not self._structure.has_blob
        if self._blobs is not None and packed.size <= room and not must_be_large:
            packed.write_to(self._blobs[buffer, slot].data)
            return packed.size
        size = max(packed.size, room + 1) if must_be_large else packed.size
        at = self._link.wait_for_room(size)
        if at is None:
            return None
        packed.write_to(self._memory[at : at + packed.size])
        return size

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
        pair: dict[int, Any] | None = None
        while ids:
            sample = ids.pop(0)
            stage = "dataset"
            try:
                if self._broken is not None:
                    raise self._broken
                self._seeder.seed_all(self._seed, sample, 0)
                if pair is None:
                    pair = self._program.first([sample, *ids[:1]])
                value = pair.pop(sample) if sample in pair else self._fetch(sample)
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
            none = IndexError("the dataset is empty, or has no sample of the subset")
            return {"raised": raised or _raised(0, "dataset", none)}
        # A slot holds three of four samples, and not the largest of all, for which most slots would be too large.
        blobs.sort()
        return {
            **found,
            "blob": blobs[len(blobs) * 3 // 4],
            "kept": sum(sizes) // max(1, len(sizes)),
            "at_once": self._asks_for_several,
        }

    # Making samples only to be compared.

    def _remake(self, message: bytes) -> dict[str, Any]:
        times, ids = message[1], [sample for (sample,) in struct.iter_unpack("<I", message[2:])]
        return {"digests": [self._digest(sample, times) for sample in ids]}

    def _digest(self, sample: int, times: int) -> str | None:
        """Returns a digest of a sample, or ``None`` if it cannot be compared, or is another each time."""
        from coprep._hashing import Hasher

        found = set()
        for _ in range(times):
            private: list[Any] = []
            try:
                value = self._program.sample(self._seed, sample, 0, self._seeder.seed_all)
                found.add(Hasher(private).named("sample", _without_order(value)).hex())
            except Exception:
                return None
            if private or self._broken is not None:
                return None
        return found.pop() if len(found) == 1 else None


_FURTHER_PROBES = 15
"""Number of samples of variable size to probe beyond the required ones."""
_PROBE_TIME = 0.02
"""Seconds that a probe may take before it does without further samples."""


def _without_order(value: Any) -> Any:
    """Returns a sample with its lists of texts sorted. They may come from a set, which has another order elsewhere."""
    if type(value) is dict:
        return {key: _without_order(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        parts = [_without_order(part) for part in value]
        return type(value)(sorted(parts) if all(type(part) is str for part in parts) else parts)
    return value


def _describe(value: Any, whole: bool, lost_seeds: list[str]) -> tuple[dict[str, Any], int]:
    """Returns the description of a sample for the coordinator, and the size in bytes of its variable part."""
    structure = Structure.of(value, whole=True) if whole else Structure.fitting(value)
    structure.lost_seeds = lost_seeds
    views = [np.empty((1, 1, *field.shape), field.storage) for field in structure.fields]
    packed = structure.write(value, views, (0, 0))
    travels = _exchange.dumps(structure)
    # Other workers and jobs load it too. If they could not, the error would tell neither the sample nor its class.
    _exchange.loads(travels)
    description = {
        "fields": [(field.name, field.dtype, field.shape) for field in structure.fields],
        "structure": travels.hex(),
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

    def keep(self, packed: Packed, files: bytes) -> tuple[int, int]:
        """Writes a value and the list of its files behind the others. Returns the offset and size of both in bytes."""
        # Aligned, so that arrays can be used in place.
        at = -(-self._end // 64) * 64
        behind = at + packed.size
        self._end = behind + len(files)
        self._reach(self._end)
        assert self._memory is not None
        packed.write_to(memoryview(self._memory)[at:behind])
        self._memory[behind : self._end] = files
        return at, self._end - at

    def _reach(self, end: int) -> None:
        if end and (self._memory is None or len(self._memory) < end):
            size = os.fstat(self._file).st_size
            if size < end:
                # Doubling keeps the number of new mappings small if a chunk keeps many values.
                size = max(end, 2 * size, 1 << 20)
                os.ftruncate(self._file, size)
            # Values that are still in use keep the old mapping alive.
            self._memory = mmap.mmap(self._file, size)
