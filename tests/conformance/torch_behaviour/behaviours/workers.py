"""Checks the information that workers receive, and the consequences of their end."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import coprep
import torch
from torch.utils import data as torch_data

from .parts_of_checks import Failing, Numbers, Own, Process, Slow, ints, raises
from .table import behaviour


def breaks(epoch: Any) -> None:
    """Asserts that the epoch ends with an error because a worker died."""
    try:
        try:
            list(epoch)
        finally:
            # PyTorch raises from a signal handler, which may run a little after the broken connection was seen.
            time.sleep(0.2)
    except (RuntimeError, OSError, EOFError) as error:
        traceback.clear_frames(error.__traceback__)
        return
    raise AssertionError("nothing was raised")


class Hanging(Numbers):
    """A dataset whose sample 1 does not come in time."""

    def __getitem__(self, index: int) -> int:
        if index == 1:
            time.sleep(3)
        return index


class Meeting(Numbers):
    """A dataset whose first samples wait until each worker has one."""

    def __init__(self, count: int, workers: int) -> None:
        super().__init__(count)
        self.workers = workers
        self.came, self.all_came = multiprocessing.Value("i", 0), multiprocessing.Semaphore(0)

    def __getitem__(self, index: int) -> int:
        with self.came.get_lock():
            self.came.value += 1
            if self.came.value == self.workers:
                self.all_came.release()
        self.all_came.acquire()
        self.all_came.release()
        return index


def leave() -> None:
    sys.exit(5)


def leave_at_once() -> None:
    os._exit(5)


def die_once(mark: str) -> None:
    """Kills this process with SIGKILL, as the kernel would, the first time it is called."""
    if not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


initialised: int | None = None


def initialise(worker: int) -> None:
    global initialised
    initialised = worker


class Initialised(Numbers):
    """A dataset whose samples are pairs: the worker's id, and the id that ``worker_init_fn`` received."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = torch_data.get_worker_info()
        return (-1 if info is None else info.id, -1 if initialised is None else initialised)


def shift_dataset(worker: int) -> None:
    info = torch_data.get_worker_info()
    assert info is not None
    info.dataset.offset = 100  # type: ignore[attr-defined]


def fail_to_start(worker: int) -> None:
    raise Own("the worker cannot start")


class Informed(Numbers):
    """A dataset whose samples are facts from ``get_worker_info``: id, number of workers, right dataset, right seed."""

    def __getitem__(self, index: int) -> tuple[int, int, bool, bool]:
        info = torch_data.get_worker_info()
        if info is None:
            return -1, -1, False, False
        dataset = isinstance(info.dataset, Informed) and info.dataset.count == self.count
        return info.id, info.num_workers, dataset, isinstance(info.seed, int)


@behaviour("worker_init_fn")
def init_fn(DataLoader: Any) -> None:
    """worker_init_fn is called in each worker with its id, before its first sample."""
    for worker, called_with in DataLoader(Initialised(8), batch_size=2, num_workers=2, worker_init_fn=initialise):
        assert (worker >= 0).all() and (worker == called_with).all()


@behaviour("worker_init_fn without workers")
def init_fn_without_workers(DataLoader: Any) -> None:
    """worker_init_fn is not called in the job."""
    list(DataLoader(Numbers(2), num_workers=0, worker_init_fn=fail_to_start))


@behaviour("worker_init_fn changes the dataset")
def init_fn_changes_dataset(DataLoader: Any) -> None:
    """worker_init_fn may change the worker's copy of the dataset; the job's stays."""
    data = Numbers(6)
    assert ints(DataLoader(data, batch_size=2, num_workers=2, worker_init_fn=shift_dataset)) == list(range(100, 106))
    assert data.offset == 0


@behaviour("exception in worker_init_fn")
def init_fn_error(DataLoader: Any) -> None:
    """An exception in worker_init_fn is raised in the job, with its origin."""
    with raises(Own, RuntimeError, texts=("the worker cannot start", "in fail_to_start")):
        list(DataLoader(Numbers(4), num_workers=2, worker_init_fn=fail_to_start))


@behaviour("more workers than processors")
def many_workers(DataLoader: Any) -> None:
    """More workers than processors give a UserWarning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DataLoader(Numbers(4), num_workers=1000)
        DataLoader(Numbers(4), num_workers=1)
    assert (
        len([w for w in caught if "excessive worker creation might get DataLoader running slow" in str(w.message)]) == 1
    )


@behaviour("get_worker_info")
def worker_info(DataLoader: Any) -> None:
    """In a worker, get_worker_info has id, num_workers, seed and the worker's dataset."""
    for ids, workers, dataset, seed in DataLoader(Informed(8), batch_size=2, num_workers=2):
        assert (ids >= 0).all() and (ids < workers).all() and dataset.all() and seed.all()


@behaviour("get_worker_info in the job")
def worker_info_in_the_job(DataLoader: Any) -> None:
    """In the job, get_worker_info is None, also in __getitem__ without workers."""
    loader = DataLoader(Informed(4), num_workers=2)
    assert torch_data.get_worker_info() is None
    list(loader)
    assert torch_data.get_worker_info() is None
    for ids, *_ in DataLoader(Informed(4), num_workers=0):
        assert (ids == -1).all()


@behaviour("persistent_workers")
def persistent_workers(DataLoader: Any) -> None:
    """With persistent_workers the same processes prepare the next epoch."""
    loader = DataLoader(Process(8), num_workers=2, persistent_workers=True)
    first, second = set(ints(loader)), set(ints(loader))
    assert first & second and os.getpid() not in first | second


@behaviour("persistent_workers, epochs")
def persistent_epochs(DataLoader: Any) -> None:
    """With persistent_workers each epoch is whole, also after one was left early."""
    loader = DataLoader(Numbers(9), batch_size=2, num_workers=2, persistent_workers=True)
    assert ints(loader) == list(range(9))
    next(iter(loader))
    for _ in range(2):
        assert ints(loader) == list(range(9))


@behaviour("persistent_workers, shuffled")
def persistent_shuffled(DataLoader: Any) -> None:
    """With persistent_workers each epoch has an order of its own."""
    loader = DataLoader(Numbers(20), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    orders = [ints(loader) for _ in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders) and len(set(map(tuple, orders))) == 3


class Counting(Numbers):
    """A dataset whose samples are the value of a tensor that the job shares with its workers."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int) -> int:
        return int(self.epoch)


def epochs_seen(DataLoader: Any, **options: Any) -> list[set[int]]:
    data = Counting(4)
    loader = DataLoader(data, num_workers=2, **options)
    seen = []
    for epoch in range(3):
        data.epoch.fill_(epoch)
        seen.append(set(ints(loader)))
    return seen


@behaviour("persistent_workers, a shared tensor")
def shared_tensor(DataLoader: Any) -> None:
    """Persistent workers see values that the job writes to a shared tensor of the dataset."""
    assert epochs_seen(DataLoader, persistent_workers=True) == [{0}, {1}, {2}]


@behaviour(
    "a worker is killed",
    difference="A worker that dies takes no job with it: its sample is prepared by another.",
)
def worker_is_killed(DataLoader: Any) -> None:
    """A worker that is killed once ends the epoch with an error, most often a RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        breaks(DataLoader(Failing(8, functools.partial(die_once, f"{folder}/mark")), num_workers=2))


@worker_is_killed.instead
def worker_is_killed_ours(DataLoader: Any) -> None:
    """When a worker is killed once, every sample still comes."""
    with tempfile.TemporaryDirectory() as folder:
        mark = f"{folder}/mark"
        assert ints(DataLoader(Failing(8, functools.partial(die_once, mark)), num_workers=2)) == list(range(8))
        assert os.path.exists(mark)


@behaviour(
    "a worker is killed from outside",
    difference="A worker that dies takes no job with it: its samples are prepared by another.",
)
def worker_is_killed_from_outside(DataLoader: Any) -> None:
    """Killing a worker ends the epoch with an error, most often a RuntimeError."""
    it = iter(DataLoader(Process(60), num_workers=2))
    os.kill(int(next(it)), signal.SIGKILL)
    breaks(it)


@worker_is_killed_from_outside.instead
def worker_is_killed_from_outside_ours(DataLoader: Any) -> None:
    """When a worker is killed, every sample still comes."""
    it = iter(DataLoader(Process(60), num_workers=2))
    os.kill(int(next(it)), signal.SIGKILL)
    assert len(list(it)) == 59


@behaviour(
    "a sample that ends its worker",
    difference="The sample is tried again elsewhere, and the error names it instead of a process id.",
)
def sample_ends_worker(DataLoader: Any) -> None:
    """os._exit in __getitem__ ends the epoch with an error, most often a RuntimeError."""
    breaks(DataLoader(Failing(8, leave_at_once), num_workers=2))


@sample_ends_worker.instead
def sample_ends_worker_ours(DataLoader: Any) -> None:
    """os._exit in __getitem__ raises a SampleError that names the sample."""
    with raises(coprep.SampleError) as caught:
        list(DataLoader(Failing(8, leave_at_once), num_workers=2))
    assert getattr(caught.error, "id", None) == 3


@behaviour(
    "a sample that calls sys.exit",
    difference="The sample is tried again elsewhere, and the error names it instead of a process id.",
)
def sample_exits(DataLoader: Any) -> None:
    """sys.exit in __getitem__ ends the epoch with an error, most often a RuntimeError."""
    breaks(DataLoader(Failing(8, leave), num_workers=2))


@sample_exits.instead
def sample_exits_ours(DataLoader: Any) -> None:
    """sys.exit in __getitem__ raises a SampleError that names the sample."""
    with raises(coprep.SampleError) as caught:
        list(DataLoader(Failing(8, leave), num_workers=2))
    assert getattr(caught.error, "id", None) == 3


class WorkerOfSample(Numbers):
    """A dataset whose samples are pairs: the worker that made it, and the id."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = torch_data.get_worker_info()
        return (-1 if info is None else info.id), index


@behaviour(
    "which worker makes a batch",
    difference="Whichever worker is free makes the next sample, so that a slow sample holds up no others.",
)
def worker_of_a_batch(DataLoader: Any) -> None:
    """Batch k is made by worker k modulo num_workers, alone."""
    for k, (workers, _) in enumerate(DataLoader(WorkerOfSample(16), batch_size=4, num_workers=2)):
        assert set(workers.tolist()) == {k % 2}


@worker_of_a_batch.instead
def worker_of_a_batch_ours(DataLoader: Any) -> None:
    """Any worker makes any sample; the order of the samples holds."""
    made = list(DataLoader(WorkerOfSample(16), batch_size=4, num_workers=2))
    assert [int(i) for _, ids in made for i in ids] == list(range(16))
    assert {int(worker) for workers, _ in made for worker in workers} <= {0, 1}


@behaviour(
    "the iterator's _workers",
    difference="Workers serve all jobs of the stream, and an iterator is of one job.",
)
def workers_of_the_iterator(DataLoader: Any) -> None:
    """An iterator has its worker processes in _workers; _shutdown_workers ends them."""
    it = iter(DataLoader(Numbers(8), num_workers=2))
    assert len(it._workers) == 2
    it._shutdown_workers()
    assert not any(process.is_alive() for process in it._workers)


@workers_of_the_iterator.instead
def workers_of_the_iterator_ours(DataLoader: Any) -> None:
    """An iterator's _workers is empty; _shutdown_workers ends the pass, and the next one is whole."""
    loader = DataLoader(Numbers(8), num_workers=2)
    it = iter(loader)
    assert int(next(it)) == 0 and it._workers == []
    it._shutdown_workers()
    assert list(it) == [] and ints(loader) == list(range(8))


@behaviour("timeout")
def timeout(DataLoader: Any) -> None:
    """A batch that does not come within the timeout raises RuntimeError."""
    with raises(RuntimeError):
        list(DataLoader(Hanging(4), num_workers=1, timeout=0.5))


@behaviour("timeout that suffices")
def timeout_suffices(DataLoader: Any) -> None:
    """With a timeout that is long enough, all samples come."""
    assert ints(DataLoader(Slow(4), num_workers=2, timeout=20)) == list(range(4))


@behaviour("dataset that waits for all workers")
def meeting_of_workers(DataLoader: Any) -> None:
    """All workers begin at once: a dataset may wait until each of them has a sample."""
    assert ints(DataLoader(Meeting(3, 3), num_workers=3)) == [0, 1, 2]
