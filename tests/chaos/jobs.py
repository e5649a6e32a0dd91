"""The jobs of a history. Each of their processes records every batch in a log of its own as soon as the batch comes."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import mmap
import os
import pickle
import random
import signal
import struct
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coprep
import numpy as np
from coprep import _arguments as arguments
from coprep._loader import _leave_jobs
from coprep._options import Draws

from tests.chaos import data as datasets
from tests.chaos import keys
from tests.chaos.plan import BUCKET, SHARDS, Data, Job, Plan

POINT = struct.Struct("<4i")
"""Message to the runner that a job has taken a batch: job, rank, epoch and batch."""
WRITTEN = 7
"""Value that a job writes into all elements of a batch."""
EMPTY = 8
"""Bytes of a state's bitmap if no sample of its epoch was given."""
ENDED, CRASHED, PAUSED = 0, 3, 4
"""Exit codes."""


@dataclass(frozen=True)
class Room:
    """The folders of a history, and the timeout of its loaders."""

    folder: Path
    """Folder of logs and states."""
    images: Path
    """Folder of the campaign's images: ``folder-N/class/*.jpg``, and ``list/*.jpg``."""
    copy: Path | None
    """Folder of the history's own copy of the list, or ``None`` if none of its files is changed."""
    timeout: float
    """Seconds that a loader waits for a batch."""

    @property
    def keys(self) -> Path:
        """File with the generation of the keys that jobs give."""
        return self.folder / "keys"

    @property
    def wake(self) -> Path:
        """File that the runner makes when jobs that sleep shall go on."""
        return self.folder / "wake"

    def log(self, job: int, rank: int, attempt: int) -> Path:
        return self.folder / f"job{job}-rank{rank}-run{attempt}.jsonl"

    def state(self, job: int, rank: int) -> Path:
        return self.folder / f"job{job}-rank{rank}.state"

    def file(self, i: int) -> Path:
        return (self.copy or self.images / "list") / f"{i:04}.jpg"


@dataclass(frozen=True)
class Part:
    """Identifies a process of a job: the job, the rank, and the number of the run, from 0."""

    job: int
    rank: int
    attempt: int


class Fatal(Exception):
    """Raised when the job cannot go on. Its log says why."""


class Left(Exception):
    """Raised when the job ends here and another process is to go on from its state."""


class Log:
    """A log of records. Each is appended with one system call, so that none is lost with the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, what: str, **more: Any) -> None:
        os.write(self._file, (json.dumps({"what": what, "t": round(time.monotonic(), 4), **more}) + "\n").encode())


def pipeline_of(data: Data, room: Room, give_keys: Callable[[], Any] | None = None) -> Any:
    """Returns the dataset of a loader. `give_keys` returns the keys of the store, if jobs give them."""
    if not data.is_native:
        kinds = {"pickled": datasets.Pickled, "together": datasets.Together}
        kind = kinds.get(data.kind, datasets.Values)
        misbehaviour = datasets.Misbehaviour(
            data.slow, data.slow_s, data.failing, data.deadly, data.deadly_once, marks=str(room.folder)
        )
        values = kind(data.samples, data.width, misbehaviour)
        if not data.is_iterable:
            return values
        from tests.chaos.iterated import Iterated

        return Iterated(values)
    if data.is_remote:
        source = stored_source(data, give_keys)
    elif data.kind == "folder":
        source = coprep.ImageFolder(room.images / f"folder-{data.samples}")
    else:
        source = coprep.Files([room.file(i) for i in range(data.samples)], range(data.samples))
    decoded = source.decode()
    if data.operators == "fixed":
        return decoded.resize(24).center_crop(16)
    cropped = decoded.random_resized_crop(16).random_horizontal_flip()
    if data.operators == "crop":
        return cropped
    return cropped.normalize((datasets.MEAN,) * 3, (datasets.STD,) * 3)


def stored_source(data: Data, give_keys: Callable[[], Any] | None) -> Any:
    """Returns the source of a dataset that lies in the object store."""
    options: dict[str, Any] = {"credential_provider": give_keys}
    if data.kind == "objects":
        return coprep.ImageFolder(f"s3://{BUCKET}/folder-{data.samples}", **options)
    if data.kind == "urls":
        urls = [f"s3://{BUCKET}/list/{i:04}.jpg" for i in range(data.samples)]
        return coprep.Files(urls, range(data.samples), **options)
    root = f"s3://{BUCKET}" if data.kind == "shards" else f"{os.environ['AWS_ENDPOINT_URL']}/{BUCKET}"
    shards = [f"{root}/shards-{data.samples}/{number}.tar" for number in range(SHARDS)]
    return coprep.WebDataset(shards, **options)


def weight_of(i: int) -> float:
    """Returns the weight of a sample in jobs that draw with unequal weights."""
    return 0.0 if i % 5 == 0 else 1.0 + i % 3


def ids_of(job: Job, samples: int) -> list[int]:
    """Returns the ids of a job's samples."""
    if job.weighted:
        return [i for i in range(samples) if weight_of(i)]
    if job.subset is None:
        return list(range(samples))
    fold, folds = job.subset
    return [i for i in range(samples) if i % folds != fold]


def label_of(data: Data, i: int) -> int:
    """Returns the label of a native pipeline's sample."""
    return i * 4 // data.samples if data.kind in ("folder", "objects") else i


def options_of(plan: Plan, part: Part, room: Room) -> dict[str, Any]:
    """Returns the arguments of a job's loader."""
    job = plan.jobs[part.job]
    data = plan.datas[job.data]
    options: dict[str, Any] = {
        "batch_size": job.batch_size,
        "shuffle": job.shuffle,
        "order": "relaxed" if job.relaxed else "deterministic",
        "on_error": "skip" if job.skip else "raise",
        "drop_last": job.drop_last,
        "subset": ids_of(job, data.samples) if job.subset else None,
        "seed": job.seed,
        "rank": part.rank,
        "world_size": job.ranks,
        "group": f"job{part.job}",
        "cache": job.cache,
        "cache_bytes": job.cache_bytes,
        "cache_policy": "lru" if job.lru else "no-eviction",
        "reuse": job.reuse,
        "timeout": room.timeout,
        "framework": "numpy",
        "with_index": True,
        "name": f"job{part.job}",
    }
    if job.cohort:
        options |= {"cohort": "chaos", "cohort_size": job.cohort}
    if job.sampler:
        options |= {"sampler": datasets.Sampler(ids_of(job, data.samples)), "shuffle": None, "subset": None}
    if not data.is_native:
        # With a Python dataset a loader waits three times as long for a batch.
        options |= {"num_workers": job.workers, "timeout": room.timeout / 2}
    if data.is_iterable:
        # An iterable dataset has no ids. Its samples tell theirs.
        options |= {"shuffle": None, "with_index": False}
    if data.kind == "transform":
        options["transform"] = datasets.Shift()
    if data.kind == "pickled":
        options["collate_fn"] = datasets.as_list
    return options


def draw_with_replacement(loader: coprep.DataLoader, job: Job, samples: int) -> None:
    """Gives a loader the order that it would take from a sampler, since importing PyTorch for one takes too long."""
    weights = np.array([weight_of(i) for i in range(samples)]).tobytes() if job.weighted else None
    loader._apply(arguments.Order(shuffle=True, draws=Draws(job.draws, weights)))


class Held:
    """The batches that a job keeps. Each is verified again before it is dropped."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._batches: deque[tuple[Any, list[int], bool]] = deque()

    def keep(self, batch: Any, ids: list[int], written: bool) -> None:
        self._batches.append((batch, ids, written))
        while len(self._batches) > self._training.job.hold:
            self._drop()

    def empty(self) -> None:
        while self._batches:
            self._drop()

    def _drop(self) -> None:
        batch, ids, written = self._batches.popleft()
        is_intact = (fields_of(batch)[0] == WRITTEN).all() if written else not self._training.wrong(batch, ids)
        if not is_intact:
            self._training.log("wrong", ids=ids, when="held, written" if written else "held")


def fields_of(batch: Any) -> Any:
    """Returns a batch without its ids: images and labels, values and labels, or a list of samples."""
    return batch[:-1] if len(batch) == 3 else batch[0]


class Training:
    """One process of a job, from its first loader to its last batch."""

    def __init__(self, plan: Plan, part: Part, room: Room, points: int | None, barrier: Any) -> None:
        self.plan, self.part, self.room = plan, part, room
        self.job = plan.jobs[part.job]
        self.data = plan.datas[self.job.data]
        self.log = Log(room.log(part.job, part.rank, part.attempt))
        self._points = points
        self._barrier = barrier
        self._held = Held(self)
        self._taken = 0
        self._ballast = bytearray(self.job.ballast)

    def run(self) -> None:
        dataset = pipeline_of(self.data, self.room, self._keys())
        options = options_of(self.plan, self.part, self.room)
        # A job that shares nothing would test nothing.
        warnings.simplefilter("error", coprep.UnsharedWarning)
        # Another job may have another dataset of the same class and length. But equal datasets make equal samples.
        warnings.filterwarnings("ignore", r"not shared with [^:]*: (?!sample )", coprep.UnsharedWarning)
        loader = coprep.DataLoader(dataset, **options)
        if self.job.draws:
            draw_with_replacement(loader, self.job, self.data.samples)
        self.log("open", pid=os.getpid())
        for _ in range(self.job.threads):
            threading.Thread(target=_disturb, daemon=True).start()
        first = self._resume(loader)
        second = None
        if self.job.second:
            options |= {"shuffle": False, "seed": None, "name": f"job{self.part.job}b"}
            second = coprep.DataLoader(dataset, **options)
        for epoch in range(first, self.job.epochs):
            self._epoch(loader, epoch, second if self.job.second == "zip" else None)
            if second is not None and self.job.second == "validate":
                for _ in self._batches(second, 1, epoch):
                    pass
        self.log("stats", **{k: v for k, v in loader.stats(0).items() if k in ("reconnects", "copies", "wait_s")})
        if self.job.close:
            self._close(loader, second)

    def _keys(self) -> Callable[[], Any] | None:
        """Returns the function that gives this job's keys of the store, or ``None`` if it gives none."""
        valid_s = self.plan.keys_s
        return keys.provider(self.room.keys, self.part.job, valid_s) if valid_s else None

    def _close(self, *loaders: coprep.DataLoader | None) -> None:
        """Closes the loaders, and logs the mappings of shared memory that are still there."""
        for loader in loaders:
            if loader is not None:
                loader.close()
        self._held.empty()
        # A batch in a reference cycle would keep its mapping, which would look like a leak.
        gc.collect()
        maps = [line.split()[-2:] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line]
        self.log("closed", maps=[" ".join(one) for one in maps])

    def _resume(self, loader: coprep.DataLoader) -> int:
        """Loads the state of the job's former process, if there is one. Returns the epoch to begin with."""
        path = self.room.state(self.part.job, self.part.rank)
        if self.part.attempt == 0 or not path.exists():
            return 0
        epoch, state, name = pickle.loads(path.read_bytes())
        loader.load_state_dict(state)
        self.log("resumed", epoch=epoch, name=name)
        return int(epoch)

    def _epoch(self, loader: coprep.DataLoader, epoch: int, beside: coprep.DataLoader | None) -> None:
        job = self.job
        other = self._batches(beside, 1, epoch) if beside is not None else iter(())
        if self._ballast:
            # Every page is written, so that a process that was forked before has copies of its own.
            self._ballast[:: mmap.PAGESIZE] = bytes([epoch % 256]) * len(self._ballast[:: mmap.PAGESIZE])
        self._stop_at(loader, epoch, 0)
        for taken, _ in enumerate(self._batches(loader, 0, epoch), 1):
            self._step(epoch, taken)
            if job.leave == (epoch, taken):
                self.log("left", loader=0)
                return
            self._stop_at(loader, epoch, taken)
            next(other, None)
        for _ in other:
            pass

    def _stop_at(self, loader: coprep.DataLoader, epoch: int, taken: int) -> None:
        job, part = self.job, self.part
        if job.idle and job.idle[:2] == (epoch, taken):
            time.sleep(job.idle[2])
        while job.sleep == (epoch, taken) and not self.room.wake.exists():
            time.sleep(0.01)
        leaves = job.resume == (epoch, taken) and part.attempt == 0
        if leaves or (job.saves and taken % job.saves == 0):
            path = self.room.state(part.job, part.rank)
            state = loader.state_dict()
            name = f"attempt {part.attempt}, epoch {epoch}, batch {taken}"
            # The rename below keeps the old state whole if the job is killed while it writes.
            path.with_suffix(".new").write_bytes(pickle.dumps((epoch, state, name)))
            is_fresh = len(state["delivered"]) <= EMPTY
            # Logged before the state takes effect, and with a name: a job may be killed between the two.
            self.log("state", epoch=epoch, is_fresh=is_fresh, all_ranks=state["all_ranks"], name=name)
            path.with_suffix(".new").rename(path)
        if leaves:
            raise Left

    def _step(self, epoch: int, taken: int) -> None:
        """Reports the batch to the runner, pauses as long as a training step, and meets the other ranks."""
        if self._points is not None:
            # If the runner is behind, the report is lost, and perhaps a fault with it. The job must not wait.
            with contextlib.suppress(BlockingIOError):
                os.write(self._points, POINT.pack(self.part.job, self.part.rank, epoch, taken))
        if self.job.pause_s:
            time.sleep(self.job.pause_s)
        if self._barrier is not None:
            try:
                # Longer than any loader waits, so that a rank whose batch does not come reports that first.
                self._barrier.wait(2 * self.room.timeout)
            except Exception as error:
                raise Fatal("the other ranks do not come to the barrier") from error

    def _batches(self, loader: coprep.DataLoader, number: int, epoch: int) -> Any:
        """Yields the ids of each batch of an epoch after recording and verifying the batch.

        Errors of samples are recorded. Any other error is raised.
        """
        self.log("epoch", loader=number, epoch=epoch, theirs=loader.epoch)
        iterator = iter(loader)
        errors = 0
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                cause = error if isinstance(error, coprep.SampleError) else error.__cause__
                # After a kill a sample may fail again. The bound ends an epoch that only ever gives errors.
                if not isinstance(cause, coprep.SampleError) or errors > 3 * self.data.samples:
                    raise
                errors += 1
                self.log("error", loader=number, id=cause.id, type=type(error).__name__, text=str(error)[:300])
                continue
            ids = [int(i) for i in batch[-1]]
            self.log("batch", loader=number, ids=ids)
            self._look(batch, ids)
            # Otherwise the generator would keep the batch's buffer until the job asks for the next batch.
            del batch
            yield ids
        self.log("end", loader=number)

    def _look(self, batch: Any, ids: list[int]) -> None:
        if wrong := self.wrong(batch, ids):
            self.log("wrong", ids=wrong, when="taken")
        written = self.job.write and self._taken % 2 == 0 and self.data.kind != "pickled"
        self._taken += 1
        if written:
            fields_of(batch)[0][...] = WRITTEN
        if self.job.hold:
            self._held.keep(batch, ids, written)

    def wrong(self, batch: Any, ids: list[int]) -> list[int]:
        """Returns the ids of the samples in a batch that have wrong contents."""
        fields = fields_of(batch)
        if not ids:
            return []
        if self.data.kind == "pickled":
            return datasets.wrong_pickled(fields, ids)
        values, labels = fields[:2]
        if not self.data.is_native:
            return datasets.wrong_values(values, labels, ids, self.data.kind == "transform")
        wrong = datasets.wrong_images(values, ids, self.data.operators == "float")
        expected = np.array([label_of(self.data, i) for i in ids])
        return wrong + [int(i) for i in np.array(ids)[np.asarray(labels) != expected]]


def _disturb() -> None:
    """Runs in a thread beside the training: a fork may happen while it holds a lock of the allocator or of Python."""
    lock = threading.Lock()
    while True:
        with lock:
            bytearray(random.randrange(1, 1 << 16))
            json.dumps({"some": list(range(20))})
        time.sleep(random.random() / 500)


def main(plan: Plan, part: Part, room: Room, points: int | None, barrier: Any) -> None:
    """Runs a process of a job, then ends the process. The caller has forked it for this."""
    code = CRASHED
    errors = os.open(room.folder / f"job{part.job}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    # The runner sends this signal to a job that still runs at the deadline.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    sys.argv = [f"chaos-job{part.job}"]
    training = Training(plan, part, room, points, barrier)
    try:
        training.run()
        training.log("done")
        code = ENDED
    except Left:
        training.log("paused")
        code = PAUSED
    except BaseException as error:  # noqa: BLE001 - the log has to tell any error
        trace = traceback.format_exc()[-4000:]
        training.log("crash", type=type(error).__name__, text=str(error)[:2000], trace=trace)
    finally:
        # This process is a fork of the runner, whose exit handlers must not run here. A program runs this one.
        if code != CRASHED:
            _leave_jobs()
        os._exit(code)
