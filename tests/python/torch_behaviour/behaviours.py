"""What ``torch.utils.data.DataLoader`` does with map-style datasets, one check per behaviour.

A check takes a loader class and asserts. Where coprep is meant to differ, the behaviour has a second check
(``instead``) and says why. Datasets are small, and of module level where that is not the point, so that workers can
import them.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import coprep
import numpy as np
import torch
from torch.utils import data as torch_data

Loader = Literal["torch", "coprep"]
Check = Callable[[Any], None]

# --- the table -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Behaviour:
    """A behaviour: its check, and where coprep differs on purpose, the reason and coprep's own check."""

    name: str
    check: Check
    difference: str = ""
    ours: Check | None = None

    @property
    def key(self) -> str:
        """The check's function, by which one behaviour is picked."""
        return self.check.__name__

    @property
    def statement(self) -> str:
        return self.check.__doc__ or ""

    @property
    def our_statement(self) -> str:
        return (self.ours and self.ours.__doc__) or ""

    def instead(self, check: Check) -> Check:
        """The check that holds for coprep."""
        self.ours = check
        return check

    def run(self, loader: Loader) -> None:
        """Raises if the behaviour is not as stated."""
        check = self.ours if loader == "coprep" and self.ours else self.check
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check({"torch": torch_data, "coprep": coprep}[loader].DataLoader)
        if loader == "coprep":
            # Loaders end with their last reference; the next check finds none of this one's.
            gc.collect()


BEHAVIOURS: list[Behaviour] = []


def behaviour(name: str, difference: str = "") -> Callable[[Check], Behaviour]:
    def register(check: Check) -> Behaviour:
        BEHAVIOURS.append(Behaviour(name, check, difference))
        return BEHAVIOURS[-1]

    return register


# --- what the checks are made of -----------------------------------------------------------------------------


class raises:  # noqa: N801 - used as a verb
    """The block raises one of ``kinds``, and somewhere in its traceback, causes included, each of ``texts`` stands."""

    error: BaseException

    def __init__(self, *kinds: type[BaseException], texts: tuple[str, ...] = ()) -> None:
        self.kinds = kinds
        self.texts = texts

    def __enter__(self) -> raises:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        names = " or ".join(k.__name__ for k in self.kinds)
        assert error is not None, f"nothing was raised: {names} should be"
        if not isinstance(error, self.kinds):
            return False
        story = "".join(traceback.format_exception(error))
        for text in self.texts:
            assert text in story, f"{text!r} is not in: {story}"
        # The frames hold the iterator in a cycle. Found by the collector, PyTorch's takes 5 s per worker to end.
        traceback.clear_frames(trace)
        self.error = error.with_traceback(None)
        return True


def breaks(epoch: Any) -> None:
    """The epoch ends with an error because a worker died."""
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


def same(a: Any, b: Any) -> bool:
    """Equal in types, dtypes, shapes and values, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def ints(loader: Any) -> list[int]:
    """All samples of an epoch, which are numbers."""
    return [int(x) for batch in loader for x in (batch if hasattr(batch, "__len__") and len(batch) else [batch])]


def sizes(loader: Any) -> list[int]:
    return [len(batch) for batch in loader]


def quietly(error: type[Exception], action: Callable[[], Any]) -> Any:
    try:
        return action()
    except error:
        return None


def collates(DataLoader: Any, *batches: list[Any]) -> None:
    """The default collation of these batches, all of one size, is PyTorch's: of each in the job, of all in a worker."""
    for samples in batches:
        (found,) = DataLoader(samples, batch_size=len(samples), num_workers=0)
        wanted = torch_data.default_collate(samples)
        assert same(found, wanted), f"{found!r} should be {wanted!r}"
    # Samples of one loader look alike: each has one of every batch.
    together = list(zip(*batches, strict=True))
    (found,) = DataLoader(together, batch_size=len(together), num_workers=1)
    wanted = torch_data.default_collate(together)
    assert same(found, wanted), f"in a worker: {found!r} should be {wanted!r}"


def converts(DataLoader: Any, samples: list[Any]) -> None:
    """Without batching, each of these samples comes as PyTorch's default conversion has it."""
    expected = [torch_data.default_convert(sample) for sample in samples]
    for workers in (0, 1):
        found = list(DataLoader(samples, batch_size=None, num_workers=workers))
        assert same(found, expected), f"{workers} workers: {found!r} should be {expected!r}"


def script(DataLoader: Any, code: str) -> str:
    """What a program prints that has its datasets in ``__main__``."""
    source = f"from {DataLoader.__module__} import DataLoader\n" + textwrap.dedent(code)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.py"
        path.write_text(source)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Numbers:
    """0, 1, 2, ... from ``offset`` on. No subclass of anything."""

    def __init__(self, count: int, offset: int = 0) -> None:
        self.count = count
        self.offset = offset

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return int(index) + self.offset


class Pictures(torch_data.Dataset[tuple[torch.Tensor, int]]):
    """(picture, label) pairs; the picture is filled with the label."""

    def __init__(self, count: int, size: int = 4) -> None:
        self.count = count
        self.size = size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, self.size, self.size), float(index)), index


class Randoms(Numbers):
    """What the three random number generators give in ``__getitem__``."""

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))


class Process(Numbers):
    """The process each sample was made in."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.005)
        return os.getpid()


class Slow(Numbers):
    """The first sample takes long."""

    def __getitem__(self, index: int) -> int:
        if index == 0:
            time.sleep(0.3)
        return index


class Hanging(Numbers):
    """Sample 1 does not come in time."""

    def __getitem__(self, index: int) -> int:
        if index == 1:
            time.sleep(3)
        return index


class Keyed:
    """Keys are words."""

    def __init__(self, **values: int) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: str) -> int:
        return self.values[key]


class Endless:
    """Has no length."""

    def __getitem__(self, index: int) -> int:
        return index * 2


class AtOnce(Numbers):
    """Samples are had by lists of ids; one by one they are wrong."""

    def __getitem__(self, index: int) -> int:
        return -1

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [int(i) * 10 for i in indices]


class Stream(torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Failing(Numbers):
    """``fail`` raises at sample 3."""

    def __init__(self, count: int, fail: Callable[[], Any]) -> None:
        super().__init__(count)
        self.fail = fail

    def __getitem__(self, index: int) -> int:
        if index == 3:
            self.fail()
        return index


class Own(Exception):  # noqa: N818 - the name of the class is not the point
    """Of the user's own."""


class Several(Exception):  # noqa: N818
    """Cannot be made from one string."""

    def __init__(self, what: str, where: int) -> None:
        super().__init__(f"{what} at {where}")


class Locked(Exception):  # noqa: N818
    """Holds what cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def value_error() -> None:
    raise ValueError("the value is bad")


def key_error() -> None:
    raise KeyError("the key is bad")


def index_error() -> None:
    raise IndexError("the index is bad")


def own_error() -> None:
    raise Own("my own")


def several_error() -> None:
    raise Several("too much", 3)


def locked_error() -> None:
    raise Locked("locked up")


def chained_error() -> None:
    try:
        value_error()
    except ValueError as error:
        raise Own("the second") from error


def local_error() -> None:
    class Local(Exception):  # noqa: N818
        pass

    raise Local("of a function")


def stop_iteration() -> None:
    raise StopIteration("enough")


def leave() -> None:
    sys.exit(5)


def leave_at_once() -> None:
    os._exit(5)


def die_once(mark: str) -> None:
    """Killed as by the kernel, the first time."""
    if not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    x: int
    y: float


class Labelled(dict):  # type: ignore[type-arg]
    """A mapping of the user's own."""


class Bag:
    """A batch of the user's own."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples


class Backwards(torch_data.Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count - 1, -1, -1))

    def __len__(self) -> int:
        return self.count


class Lengthless:
    """An iterable that is no sampler and has no length."""

    def __iter__(self) -> Iterator[int]:
        return iter([2, 0, 1])


class NumpyIndices(Lengthless):
    def __iter__(self) -> Iterator[Any]:
        return iter(np.array([2, 0, 1]))


def identity(samples: Any) -> Any:
    return samples


def summed(samples: list[int]) -> int:
    assert isinstance(samples, list)
    return sum(samples)


def bad_collate(samples: Any) -> Any:
    raise Own("cannot put these together")


def scale(samples: list[int], by: int) -> torch.Tensor:
    return torch.tensor(samples) * by


initialised: int | None = None


def initialise(worker: int) -> None:
    global initialised
    initialised = worker


class Initialised(Numbers):
    """(id of the worker, id that ``worker_init_fn`` was called with)."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = torch_data.get_worker_info()
        return (-1 if info is None else info.id, -1 if initialised is None else initialised)


def shift_dataset(worker: int) -> None:
    info = torch_data.get_worker_info()
    assert info is not None
    info.dataset.offset = 100  # type: ignore[attr-defined]


def seed_nothing(worker: int) -> None:
    random.seed(worker)
    np.random.seed(worker)


def fail_to_start(worker: int) -> None:
    raise Own("the worker cannot start")


class Informed(Numbers):
    """What ``get_worker_info`` says: id, number of workers, whether its dataset and seed are what they should be."""

    def __getitem__(self, index: int) -> tuple[int, int, bool, bool]:
        info = torch_data.get_worker_info()
        if info is None:
            return -1, -1, False, False
        dataset = isinstance(info.dataset, Informed) and info.dataset.count == self.count
        return info.id, info.num_workers, dataset, isinstance(info.seed, int)


# --- order and batching --------------------------------------------------------------------------------------


@behaviour("sequential")
def sequential(DataLoader: Any) -> None:
    """Samples come in the order of the dataset."""
    for workers in (0, 2):
        assert ints(DataLoader(Numbers(10), num_workers=workers)) == list(range(10))


@behaviour("shapes, one by one")
def shapes_of_one(DataLoader: Any) -> None:
    """The default batch size is 1: a batch has a first dimension of one."""
    for i, (picture, label) in enumerate(DataLoader(Pictures(4), num_workers=2)):
        assert picture.shape == (1, 3, 4, 4) and label.shape == (1,)
        assert (picture == i).all() and int(label) == i


@behaviour("shapes of batches")
def shapes_of_batches(DataLoader: Any) -> None:
    """Samples of a batch are stacked along a new first dimension; numbers become int64."""
    for b, (picture, label) in enumerate(DataLoader(Pictures(8), batch_size=4, num_workers=2)):
        assert picture.shape == (4, 3, 4, 4) and picture.dtype == torch.float32
        assert label.dtype == torch.int64 and label.tolist() == list(range(4 * b, 4 * b + 4))
        assert (picture[:, 0, 0, 0] == label).all()


@behaviour("batches are lists")
def batches_of_tuples_are_lists(DataLoader: Any) -> None:
    """A batch of tuples is a list of what was collated."""
    (batch,) = DataLoader(Pictures(4), batch_size=4, num_workers=2)
    assert type(batch) is list and len(batch) == 2


@behaviour("last short batch")
def last_short_batch(DataLoader: Any) -> None:
    """The last batch has what is left."""
    assert sizes(DataLoader(Numbers(10), batch_size=4, num_workers=2)) == [4, 4, 2]


@behaviour("drop_last")
def drop_last(DataLoader: Any) -> None:
    """With drop_last a last batch that is short is left out, and a full one is not."""
    assert sizes(DataLoader(Numbers(10), batch_size=4, drop_last=True, num_workers=2)) == [4, 4]
    assert sizes(DataLoader(Numbers(8), batch_size=4, drop_last=True, num_workers=2)) == [4, 4]


@behaviour("batch larger than the dataset")
def batch_larger_than_dataset(DataLoader: Any) -> None:
    """One short batch; with drop_last none."""
    assert sizes(DataLoader(Numbers(3), batch_size=8, num_workers=2)) == [3]
    assert sizes(DataLoader(Numbers(3), batch_size=8, drop_last=True, num_workers=2)) == []


@behaviour("len")
def length(DataLoader: Any) -> None:
    """len is the number of batches: rounded up, with drop_last down."""
    assert len(DataLoader(Numbers(10))) == 10
    assert len(DataLoader(Numbers(10), batch_size=4)) == 3
    assert len(DataLoader(Numbers(10), batch_size=4, drop_last=True)) == 2
    assert len(DataLoader(Numbers(10), batch_size=None)) == 10


@behaviour("len with samplers")
def length_with_samplers(DataLoader: Any) -> None:
    """len follows the length of the sampler, or of the batch sampler."""
    data = Numbers(10)
    assert len(DataLoader(data, batch_size=2, sampler=[1, 2, 3])) == 2
    assert len(DataLoader(data, batch_sampler=[[1, 2], [3], [4, 5, 6]])) == 3
    assert len(DataLoader(data, batch_size=7, sampler=torch_data.RandomSampler(data, num_samples=20))) == 3


@behaviour("len of the iterator")
def length_of_iterator(DataLoader: Any) -> None:
    """len of an iterator is the number of batches of the epoch."""
    assert len(iter(DataLoader(Numbers(10), batch_size=4))) == 3


@behaviour("end of an epoch")
def end_of_epoch(DataLoader: Any) -> None:
    """The iterator is its own iterator, and stays at its end."""
    it = iter(DataLoader(Numbers(2), num_workers=2))
    assert iter(it) is it
    assert ints(it) == [0, 1]
    for _ in range(2):
        with raises(StopIteration):
            next(it)


@behaviour("epochs")
def epochs(DataLoader: Any) -> None:
    """Each pass is an epoch: every sample exactly once."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(7), batch_size=3, num_workers=workers)
        for _ in range(3):
            assert ints(loader) == list(range(7))


@behaviour("number of workers")
def any_number_of_workers(DataLoader: Any) -> None:
    """0, 1, 2 and 4 workers give the same."""
    for workers in (0, 1, 2, 4):
        batches = [label.tolist() for _, label in DataLoader(Pictures(10), batch_size=4, num_workers=workers)]
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@behaviour("more workers than samples")
def more_workers_than_samples(DataLoader: Any) -> None:
    """Workers that have nothing to do do no harm."""
    assert ints(DataLoader(Numbers(2), num_workers=4)) == [0, 1]


@behaviour(
    "where samples are prepared by default",
    difference="Preparing in the job shares nothing between jobs; num_workers=0 asks for it.",
)
def default_is_the_job(DataLoader: Any) -> None:
    """Without num_workers, samples are prepared in the job itself."""
    loader = DataLoader(Process(3))
    assert loader.num_workers == 0
    assert set(ints(loader)) == {os.getpid()}


@default_is_the_job.instead
def default_is_the_coordinator(DataLoader: Any) -> None:
    """Without num_workers, samples are prepared in the coordinator's workers."""
    assert os.getpid() not in ints(DataLoader(Process(3)))


@behaviour("no workers")
def no_workers_is_the_job(DataLoader: Any) -> None:
    """num_workers=0 prepares in the job itself."""
    assert set(ints(DataLoader(Process(3), num_workers=0))) == {os.getpid()}


@behaviour("workers are processes")
def workers_are_processes(DataLoader: Any) -> None:
    """With workers, samples are prepared in other processes."""
    assert os.getpid() not in ints(DataLoader(Process(4), num_workers=2))


@behaviour("order despite slow samples")
def in_order(DataLoader: Any) -> None:
    """A batch that is slow is waited for: the order holds."""
    assert ints(DataLoader(Slow(8), num_workers=2)) == list(range(8))


@behaviour("in_order=False")
def out_of_order(DataLoader: Any) -> None:
    """With in_order=False every sample comes, in whatever order."""
    assert sorted(ints(DataLoader(Slow(8), num_workers=2, in_order=False))) == list(range(8))


@behaviour("empty dataset")
def empty_dataset(DataLoader: Any) -> None:
    """A dataset of length 0 has no batches."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(0), batch_size=2, num_workers=workers)
        assert len(loader) == 0 and list(loader) == []


@behaviour("empty dataset, shuffled")
def empty_dataset_shuffled(DataLoader: Any) -> None:
    """A dataset of length 0 is refused (ValueError) or has no batches; nothing else happens."""
    assert not quietly(ValueError, lambda: list(DataLoader(Numbers(0), shuffle=True, num_workers=2)))


@behaviour("batches can be kept")
def batches_can_be_kept(DataLoader: Any) -> None:
    """A batch stays as it was while others come."""
    batches = list(DataLoader(Pictures(40), batch_size=4, num_workers=2))
    assert all((picture[:, 0, 0, 0] == label).all() for picture, label in batches)
    assert [int(x) for _, label in batches for x in label] == list(range(40))


@behaviour("batches can be written to")
def batches_can_be_written_to(DataLoader: Any) -> None:
    """Writing to a batch changes neither the dataset nor later epochs."""
    loader = DataLoader(Pictures(8), batch_size=4, num_workers=2)
    for _ in range(2):
        for picture, label in loader:
            assert (picture[:, 0, 0, 0] == label).all()
            picture.add_(1)


@behaviour("large samples")
def large_samples(DataLoader: Any) -> None:
    """Samples of megabytes come as others do."""
    seen = 0
    for picture, label in DataLoader(Pictures(6, size=600), batch_size=2, num_workers=2):
        assert picture.shape == (2, 3, 600, 600)
        assert (picture.amin((1, 2, 3)) == label).all() and (picture.amax((1, 2, 3)) == label).all()
        seen += len(label)
    assert seen == 6


@behaviour("another thread")
def another_thread(DataLoader: Any) -> None:
    """A loader may be iterated in a thread that is not the main one."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(ints(DataLoader(Numbers(6), batch_size=2, num_workers=2))))
    thread.start()
    thread.join(30)
    assert found == list(range(6))


# --- shuffling and seeds -------------------------------------------------------------------------------------


@behaviour("shuffle")
def shuffle(DataLoader: Any) -> None:
    """shuffle=True gives a permutation."""
    for workers in (0, 2):
        order = ints(DataLoader(Numbers(20), batch_size=3, shuffle=True, num_workers=workers))
        assert sorted(order) == list(range(20)) and order != list(range(20))


@behaviour("shuffle keeps samples whole")
def shuffle_keeps_samples_whole(DataLoader: Any) -> None:
    """Shuffled pictures keep their labels."""
    for picture, label in DataLoader(Pictures(20), batch_size=4, shuffle=True, num_workers=2):
        assert (picture[:, 0, 0, 0] == label).all()


@behaviour("shuffle anew")
def shuffle_anew(DataLoader: Any) -> None:
    """Each epoch has an order of its own."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(20), batch_size=4, shuffle=True, num_workers=workers)
        assert len({tuple(ints(loader)) for _ in range(3)}) == 3


@behaviour("shuffle with drop_last")
def shuffle_with_drop_last(DataLoader: Any) -> None:
    """What is dropped is random too: no sample comes twice, and the full batches come."""
    order = ints(DataLoader(Numbers(20), batch_size=6, shuffle=True, drop_last=True, num_workers=2))
    assert len(order) == 18 and len(set(order)) == 18


def order_of(DataLoader: Any, seed: int, workers: int = 2, epochs: int = 2) -> list[list[int]]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    loader = DataLoader(Numbers(20), batch_size=4, shuffle=True, num_workers=workers, generator=generator)
    return [ints(loader) for _ in range(epochs)]


@behaviour("generator repeats the order")
def generator_repeats_order(DataLoader: Any) -> None:
    """Generators of the same seed give the same orders, epoch by epoch."""
    for workers in (0, 2):
        assert order_of(DataLoader, 7, workers) == order_of(DataLoader, 7, workers)


@behaviour("order and number of workers")
def order_whatever_the_workers(DataLoader: Any) -> None:
    """The order for a seed does not depend on the number of workers."""
    assert order_of(DataLoader, 7, 0) == order_of(DataLoader, 7, 1) == order_of(DataLoader, 7, 3)


@behaviour("another seed, another order")
def another_seed(DataLoader: Any) -> None:
    """Generators of different seeds give different orders."""
    assert order_of(DataLoader, 7, epochs=1) != order_of(DataLoader, 8, epochs=1)


@behaviour(
    "the order for a seed",
    difference="Any sample's place must be known without the whole permutation, and must not change with PyTorch.",
)
def order_is_randperm(DataLoader: Any) -> None:
    """The order for a seed is what torch.randperm gives."""
    generator = torch.Generator()
    generator.manual_seed(7)
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    assert order_of(DataLoader, 7, epochs=1) == [torch.randperm(20, generator=generator).tolist()]


@order_is_randperm.instead
def order_is_a_permutation(DataLoader: Any) -> None:
    """The order for a seed is coprep's own permutation, the same each time."""
    (order,) = order_of(DataLoader, 7, epochs=1)
    assert sorted(order) == list(range(20))
    assert [order] == order_of(DataLoader, 7, epochs=1)


@behaviour(
    "two loaders of one generator",
    difference="A generator stands for its seed, so that jobs that give the same seed share.",
)
def one_generator_for_two(DataLoader: Any) -> None:
    """Two loaders that draw from one generator have different orders."""
    generator = torch.Generator()
    generator.manual_seed(7)
    loaders = [DataLoader(Numbers(20), shuffle=True, num_workers=2, generator=generator) for _ in range(2)]
    assert ints(loaders[0]) != ints(loaders[1])


@one_generator_for_two.instead
def one_seed_for_two(DataLoader: Any) -> None:
    """Two loaders of one generator have the order of its initial seed, both."""
    generator = torch.Generator()
    generator.manual_seed(7)
    loaders = [DataLoader(Numbers(20), shuffle=True, num_workers=2, generator=generator) for _ in range(2)]
    assert ints(loaders[0]) == ints(loaders[1])


@behaviour(
    "torch.manual_seed",
    difference="Jobs that give no seed take that of the jobs that run already, to share; seed= fixes the order.",
)
def global_seed(DataLoader: Any) -> None:
    """torch.manual_seed before an epoch fixes its order."""
    loader = DataLoader(Numbers(20), shuffle=True, num_workers=2)
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        orders.append(ints(loader))
    assert orders[0] == orders[1]


@global_seed.instead
def seed_argument(DataLoader: Any) -> None:
    """seed= fixes the orders; torch.manual_seed does not."""
    orders = []
    for _ in range(2):
        loader = DataLoader(Numbers(20), shuffle=True, num_workers=2, seed=5)
        orders.append([ints(loader) for _ in range(2)])
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]


def drawn(loader: Any) -> list[tuple[float, ...]]:
    """The numbers each sample drew from random, numpy and torch."""
    return [tuple(row) for batch in loader for row in torch.stack([c.double() for c in batch], 1).tolist()]


@behaviour("random numbers of samples")
def random_numbers_differ(DataLoader: Any) -> None:
    """random, numpy and torch give each sample numbers of its own."""
    for workers in (0, 2):
        rows = drawn(DataLoader(Randoms(12), batch_size=2, num_workers=workers))
        assert all(len(set(column)) == 12 for column in zip(*rows, strict=True)), rows


@behaviour("random numbers of epochs")
def random_numbers_differ_by_epoch(DataLoader: Any) -> None:
    """random, numpy and torch give other numbers in the next epoch."""
    loader = DataLoader(Randoms(6), batch_size=2, num_workers=2)
    first, second = drawn(loader), drawn(loader)
    assert all(not set(a) & set(b) for a, b in zip(zip(*first, strict=True), zip(*second, strict=True), strict=True))


@behaviour("random numbers are repeated")
def random_numbers_repeat(DataLoader: Any) -> None:
    """Generators of the same seed give the same random numbers in __getitem__, epoch by epoch."""
    runs = []
    for _ in range(2):
        generator = torch.Generator()
        generator.manual_seed(3)
        loader = DataLoader(Randoms(6), batch_size=2, num_workers=2, generator=generator)
        runs.append([drawn(loader) for _ in range(2)])
    assert runs[0] == runs[1]


@behaviour("random numbers of another seed")
def random_numbers_of_another_seed(DataLoader: Any) -> None:
    """Generators of different seeds give different random numbers in __getitem__."""
    runs = []
    for seed in (3, 4):
        generator = torch.Generator()
        generator.manual_seed(seed)
        runs.append(drawn(DataLoader(Randoms(6), batch_size=2, num_workers=2, generator=generator)))
    assert not set(runs[0]) & set(runs[1])


@behaviour("random numbers of the job")
def random_state_of_the_job(DataLoader: Any) -> None:
    """What workers draw from random and numpy does not disturb the job's own."""
    before = random.getstate(), np.random.get_state()[1].tolist()
    drawn(DataLoader(Randoms(6), batch_size=2, num_workers=2))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# --- without batching ----------------------------------------------------------------------------------------


@behaviour("batch_size=None")
def no_batching(DataLoader: Any) -> None:
    """Without batching, samples come as they are, one by one."""
    for workers in (0, 2):
        assert list(DataLoader(Numbers(5), batch_size=None, num_workers=workers)) == [0, 1, 2, 3, 4]


@behaviour("batch_size=None, shapes")
def no_batching_shapes(DataLoader: Any) -> None:
    """Without batching, there is no batch dimension."""
    for i, (picture, label) in enumerate(DataLoader(Pictures(4), batch_size=None, num_workers=2)):
        assert picture.shape == (3, 4, 4) and type(label) is int and label == i


@behaviour("batch_size=None with shuffle")
def no_batching_shuffled(DataLoader: Any) -> None:
    """Without batching, shuffle still shuffles."""
    order = list(DataLoader(Numbers(20), batch_size=None, shuffle=True, num_workers=2))
    assert sorted(order) == list(range(20)) and order != list(range(20))


@behaviour("batch_size=None with a sampler")
def no_batching_with_sampler(DataLoader: Any) -> None:
    """Without batching, what the sampler gives goes to the dataset."""
    assert list(DataLoader(Numbers(9), batch_size=None, sampler=[3, 1, 3], num_workers=2)) == [3, 1, 3]


class Bulk(Numbers):
    """Prepares whole batches: its index is a list."""

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor(index) * 2


@behaviour("batches made by the dataset")
def bulk_loading(DataLoader: Any) -> None:
    """Without batching, a batch sampler as the sampler lets the dataset make whole batches."""
    data = Bulk(7)
    sampler = torch_data.BatchSampler(torch_data.SequentialSampler(data), 3, drop_last=False)
    batches = list(DataLoader(data, batch_size=None, sampler=sampler, num_workers=2))
    assert [b.tolist() for b in batches] == [[0, 2, 4], [6, 8, 10], [12]]


@behaviour("conversion of arrays")
def convert_arrays(DataLoader: Any) -> None:
    """Without batching, NumPy arrays and scalars become tensors."""
    converts(DataLoader, [np.arange(3), np.float32(1.5), np.array(2.0), np.array([True])])


@behaviour("conversion of other types")
def convert_others(DataLoader: Any) -> None:
    """Without batching, numbers, strings, bytes, None and tensors come as they are."""
    converts(DataLoader, [1, 2.5, "word", b"bytes", None, True, torch.ones(2)])


@behaviour("conversion of containers")
def convert_containers(DataLoader: Any) -> None:
    """Without batching, arrays in dicts, lists, tuples and named tuples become tensors; tuples become lists."""
    array = np.arange(3)
    converts(DataLoader, [{"a": array, "b": "x"}, [array, 1], (array, "y"), Point(array, 2), {"d": [(array,)]}])


@behaviour("conversion of string arrays")
def convert_string_arrays(DataLoader: Any) -> None:
    """Without batching, NumPy arrays of strings stay arrays."""
    converts(DataLoader, [np.array(["a", "b"]), np.array([b"c"])])


@behaviour("batch_size=None with a collate_fn")
def no_batching_with_collate(DataLoader: Any) -> None:
    """Without batching, collate_fn is called with each sample."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(3), batch_size=None, collate_fn=str, num_workers=workers)
        assert list(loader) == ["0", "1", "2"]


# --- collation -----------------------------------------------------------------------------------------------


@behaviour("collation of tensors")
def collate_tensors(DataLoader: Any) -> None:
    """Tensors are stacked and keep their dtype."""
    dtypes = (torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32, torch.float64)
    collates(DataLoader, *([torch.tensor([[i, 2]], dtype=dtype) for i in range(3)] for dtype in dtypes))


@behaviour("collation of rarer tensors")
def collate_rarer_tensors(DataLoader: Any) -> None:
    """Booleans, bfloat16 and complex numbers keep their dtype."""
    dtypes = (torch.bool, torch.bfloat16, torch.complex64)
    collates(DataLoader, *([torch.tensor([i, 1], dtype=dtype) for i in range(3)] for dtype in dtypes))


@behaviour("collation of scalar and empty tensors")
def collate_edge_tensors(DataLoader: Any) -> None:
    """Tensors of no dimension and of no elements are stacked."""
    collates(DataLoader, [torch.tensor(i) for i in range(3)], [torch.empty(0, 4) for _ in range(3)])


@behaviour("collation of views")
def collate_views(DataLoader: Any) -> None:
    """Tensors and arrays that are not contiguous are collated by what they show."""
    tensor, array = torch.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4)
    collates(DataLoader, [tensor.t(), tensor[:, 1:].t()[[0, 1, 2, 0]]], [array[:, ::2], array[:, 1:3]])


@behaviour("collation of arrays")
def collate_arrays(DataLoader: Any) -> None:
    """NumPy arrays become tensors of the same dtype."""
    dtypes = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
    collates(DataLoader, *([np.array([i, 1], dtype=dtype) for i in range(3)] for dtype in dtypes))


@behaviour("collation of memory maps")
def collate_memmap(DataLoader: Any) -> None:
    """A NumPy memory map as the dataset is collated as an array is."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples.bin")
        np.arange(12, dtype="float32").tofile(path)
        rows = np.memmap(path, dtype="float32", mode="r", shape=(4, 3))
        batches = list(DataLoader(rows, batch_size=2, num_workers=2))
    assert same(torch.cat(batches), torch.arange(12, dtype=torch.float32).reshape(4, 3))


@behaviour("collation of NumPy scalars")
def collate_numpy_scalars(DataLoader: Any) -> None:
    """NumPy scalars become one tensor of their dtype."""
    kinds = (np.float32, np.float64, np.int16, np.int64, np.uint8, np.bool_)
    collates(DataLoader, *([kind(i) for i in range(3)] for kind in kinds))


@behaviour("collation of numbers")
def collate_numbers(DataLoader: Any) -> None:
    """int becomes int64, float becomes float64, bool becomes bool."""
    collates(DataLoader, [1, 2], [1.5, 2.5], [True, False], [-(2**63), 2**63 - 1])


@behaviour(
    "collation of ints among floats", "Numbers of one kind are not turned into another: the error names the sample."
)
def collate_mixed_numbers(DataLoader: Any) -> None:
    """The first sample decides: floats with an int become float64, ints with a float become float32."""
    collates(DataLoader, [1.5, 2], [1, 2.5])


@collate_mixed_numbers.instead
def collate_mixed_numbers_ours(DataLoader: Any) -> None:
    """They raise an error; with collate_fn=default_collate they are PyTorch's."""
    for samples in ([1.5, 2], [1, 2.5]):
        with raises(ValueError, texts=("sample 1", "collate_fn")):
            list(DataLoader(samples, batch_size=2, num_workers=1))
        (found,) = DataLoader(samples, batch_size=2, num_workers=1, collate_fn=torch_data.default_collate)
        assert same(found, torch_data.default_collate(samples))


@behaviour("collation of strings")
def collate_strings(DataLoader: Any) -> None:
    """Strings and bytes come as a list."""
    collates(DataLoader, ["a", "", "déjà"], [b"a", b"", b"\x00"])


@behaviour("collation of tuples")
def collate_tuples(DataLoader: Any) -> None:
    """Tuples become a list of columns; a column of strings is a tuple."""
    collates(DataLoader, [(i, float(i), str(i), torch.tensor([i])) for i in range(3)])


@behaviour("collation of lists")
def collate_lists(DataLoader: Any) -> None:
    """Lists become a list of columns."""
    collates(DataLoader, [[i, float(i)] for i in range(3)])


@behaviour("collation of dicts")
def collate_dicts(DataLoader: Any) -> None:
    """Dicts become a dict of columns, keys in their order."""
    collates(DataLoader, [{"b": i, "a": torch.ones(2) * i, "name": str(i), 3: i} for i in range(3)])


@behaviour("collation of named tuples")
def collate_named_tuples(DataLoader: Any) -> None:
    """Named tuples keep their type."""
    collates(DataLoader, [Point(i, np.ones(2) * i) for i in range(3)])


@behaviour("collation of nested samples")
def collate_nested(DataLoader: Any) -> None:
    """Containers in containers are collated all the way down."""
    samples = [{"a": (i, [np.ones(2) * i, {"z": str(i)}]), "p": Point((i,), {"q": float(i)})} for i in range(3)]
    collates(DataLoader, samples)


@behaviour("collation of mapping types")
def collate_mapping_types(DataLoader: Any) -> None:
    """OrderedDict, defaultdict and mappings of the user's own keep their type."""
    ordered = [OrderedDict(a=i, b=str(i)) for i in range(2)]
    collates(DataLoader, ordered, [defaultdict(int, a=i) for i in range(2)], [Labelled(a=i) for i in range(2)])


@behaviour("collation of empty containers")
def collate_empty_containers(DataLoader: Any) -> None:
    """Empty tuples, lists and dicts give empty ones."""
    collates(DataLoader, *([empty, empty] for empty in ((), [], {})))


@behaviour("collation of ranges")
def collate_ranges(DataLoader: Any) -> None:
    """Sequences that cannot be made from a list become a list of columns."""
    collates(DataLoader, [range(i, i + 2) for i in range(3)])


@behaviour("extra keys", "Nothing that the dataset gives is left out in silence: the error names the key.")
def collate_by_first_keys(DataLoader: Any) -> None:
    """Keys the first sample of a batch does not have are left out."""
    collates(DataLoader, [{"a": 1}, {"a": 2, "b": 3}])


@collate_by_first_keys.instead
def collate_by_first_keys_ours(DataLoader: Any) -> None:
    """They raise an error that names the key."""
    with raises(ValueError, texts=("sample 1", "'b'")):
        list(DataLoader([{"a": 1}, {"a": 2, "b": 3}], batch_size=2, num_workers=1))


@behaviour("missing keys")
def collate_missing_keys(DataLoader: Any) -> None:
    """A sample without a key that the first one has is a KeyError."""
    with raises(KeyError, ValueError, RuntimeError, texts=("b",)):
        list(DataLoader([{"a": 1, "b": 2}, {"a": 2}], batch_size=2, num_workers=2))


@behaviour("types that cannot be collated")
def collate_bad_types(DataLoader: Any) -> None:
    """Objects, sets and None raise TypeError."""
    for sample in (object, {1, 2}, None):
        with raises(TypeError):
            list(DataLoader([sample, sample], batch_size=2, num_workers=2))


@behaviour("arrays that cannot be collated")
def collate_bad_arrays(DataLoader: Any) -> None:
    """NumPy arrays of strings and of objects raise TypeError."""
    for array in (np.array(["a"]), np.array([b"a"]), np.array([object], dtype=object)):
        with raises(TypeError):
            list(DataLoader([array, array], batch_size=2, num_workers=2))


@behaviour("types that cannot be collated, in tuples")
def collate_bad_types_nested(DataLoader: Any) -> None:
    """None within a tuple raises TypeError."""
    with raises(TypeError):
        list(DataLoader([(1, None), (2, None)], batch_size=2, num_workers=2))


@behaviour("PIL images", difference="Images are what most datasets have; coprep makes tensors of them.")
def collate_pil(DataLoader: Any) -> None:
    """PIL images are refused with TypeError."""
    with raises(TypeError):
        list(DataLoader([pil_image(i) for i in range(4)], batch_size=2, num_workers=2))


@collate_pil.instead
def collate_pil_ours(DataLoader: Any) -> None:
    """PIL images become tensors."""
    batches = list(DataLoader([pil_image(i) for i in range(4)], batch_size=2, num_workers=2))
    assert [len(b) for b in batches] == [2, 2]
    assert all(torch.as_tensor(b[0]).sum() == 30 * 20 * 3 * i * 2 for i, b in enumerate(batches))


def pil_image(value: int) -> Any:
    from PIL import Image

    return Image.new("RGB", (30, 20), (value, value, value))


@behaviour("dataclasses", difference="A dataclass is collated field by field, as a named tuple is.")
def collate_dataclass(DataLoader: Any) -> None:
    """Dataclasses are refused with TypeError."""
    with raises(TypeError):
        list(DataLoader([Record(i, i / 2) for i in range(2)], batch_size=2, num_workers=2))


@collate_dataclass.instead
def collate_dataclass_ours(DataLoader: Any) -> None:
    """Dataclasses are collated field by field."""
    (batch,) = DataLoader([Record(i, i / 2) for i in range(2)], batch_size=2, num_workers=2)
    fields = batch if isinstance(batch, dict) else vars(batch)
    assert same([fields["x"], fields["y"]], [torch.tensor([0, 1]), torch.tensor([0, 0.5], dtype=torch.float64)])


@behaviour("unequal shapes", difference="The error says which sample does not fit.")
def unequal_shapes(DataLoader: Any) -> None:
    """Samples of unequal shapes in one batch raise RuntimeError."""
    with raises(RuntimeError):
        list(DataLoader([torch.ones(2), torch.ones(2), torch.ones(3)], batch_size=3, num_workers=2))


@unequal_shapes.instead
def unequal_shapes_ours(DataLoader: Any) -> None:
    """Samples of unequal shapes in one batch raise an error that names the sample."""
    with raises(RuntimeError, ValueError) as caught:
        list(DataLoader([torch.ones(2), torch.ones(2), torch.ones(3)], batch_size=3, num_workers=2))
    assert "2" in str(caught.error) or getattr(caught.error, "id", None) == 2


@behaviour("unequal lengths")
def unequal_lengths(DataLoader: Any) -> None:
    """Lists of unequal lengths in one batch raise an error."""
    with raises(RuntimeError, ValueError):
        list(DataLoader([[1, 2], [1]], batch_size=2, num_workers=2))


ALIKE = (
    "The first sample says what a batch is like, before any batch is made, so that samples are written straight into "
    "it; collate_fn=default_collate asks for PyTorch's way."
)


@behaviour("unequal shapes in different batches", ALIKE)
def unequal_shapes_apart(DataLoader: Any) -> None:
    """Samples of unequal shapes in different batches are fine."""
    samples = [torch.ones(2), torch.ones(2), torch.ones(3), torch.ones(3)]
    assert [b.shape for b in DataLoader(samples, batch_size=2, num_workers=2)] == [(2, 2), (2, 3)]


@unequal_shapes_apart.instead
def unequal_shapes_apart_ours(DataLoader: Any) -> None:
    """They raise an error that names the remedy, and are fine with collate_fn=default_collate."""
    samples = [torch.ones(2), torch.ones(2), torch.ones(3), torch.ones(3)]
    with raises(ValueError, texts=("sample 2", "collate_fn")):
        list(DataLoader(samples, batch_size=2, num_workers=2))
    loader = DataLoader(samples, batch_size=2, num_workers=2, collate_fn=torch_data.default_collate)
    assert [b.shape for b in loader] == [(2, 2), (2, 3)]


@behaviour("collate_fn")
def own_collate(DataLoader: Any) -> None:
    """collate_fn is called with the list of a batch's samples, and its result is the batch."""
    for workers in (0, 2):
        assert list(DataLoader(Numbers(6), batch_size=4, collate_fn=summed, num_workers=workers)) == [6, 9]


@behaviour("collate_fn: samples as they are")
def identity_collate(DataLoader: Any) -> None:
    """A collate_fn that returns its argument gives the samples themselves, of whatever type."""
    samples = [(1, "a"), None, {"x": np.arange(2)}, Point(1, 2), [torch.ones(2), {3, 4}]]
    for workers in (0, 2):
        batches = list(DataLoader(samples, batch_size=2, collate_fn=identity, num_workers=workers))
        assert same(batches, [samples[:2], samples[2:4], samples[4:]]), batches


@behaviour("collate_fn: a batch of an own type")
def own_batch_type(DataLoader: Any) -> None:
    """A collate_fn may return an object of a class of the user's own."""
    batches = list(DataLoader(Numbers(4), batch_size=2, collate_fn=Bag, num_workers=2))
    assert all(type(b) is Bag for b in batches) and [b.samples for b in batches] == [[0, 1], [2, 3]]


@behaviour("collate_fn: unequal shapes")
def own_collate_pads(DataLoader: Any) -> None:
    """A collate_fn may pad samples of unequal shapes."""
    samples = [torch.ones(n) for n in (1, 3, 2)]
    pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    (batch,) = DataLoader(samples, batch_size=3, collate_fn=pad, num_workers=2)
    assert batch.shape == (3, 3) and batch.sum() == 6


@behaviour("collate_fn: partial, lambda, closure")
def collate_callables(DataLoader: Any) -> None:
    """A collate_fn may be a partial, a lambda or a function that uses variables around it."""
    by = 3
    for function in (functools.partial(scale, by=3), lambda samples: torch.tensor(samples) * by):
        (batch,) = DataLoader(Numbers(4), batch_size=4, collate_fn=function, num_workers=2)
        assert batch.tolist() == [0, 3, 6, 9]


@behaviour("collate_fn: PyTorch's own")
def default_collate_given(DataLoader: Any) -> None:
    """torch.utils.data.default_collate as the collate_fn is the default."""
    data, fn = Pictures(6), torch_data.default_collate
    given = list(DataLoader(data, batch_size=4, collate_fn=fn, num_workers=2))
    assert same(given, list(DataLoader(data, batch_size=4, num_workers=2)))


@behaviour("exception in collate_fn")
def collate_error(DataLoader: Any) -> None:
    """An exception in collate_fn is raised in the job, with its type and where it was raised."""
    for workers in (0, 2):
        with raises(Own, texts=("cannot put these together", "in bad_collate")):
            list(DataLoader(Numbers(4), batch_size=2, collate_fn=bad_collate, num_workers=workers))


# --- samplers ------------------------------------------------------------------------------------------------


@behaviour("SequentialSampler")
def sequential_sampler(DataLoader: Any) -> None:
    """SequentialSampler gives the dataset's order."""
    data = Numbers(7)
    assert ints(DataLoader(data, batch_size=3, sampler=torch_data.SequentialSampler(data), num_workers=2)) == list(
        range(7)
    )


@behaviour("RandomSampler")
def random_sampler(DataLoader: Any) -> None:
    """RandomSampler gives a permutation, a new one each epoch."""
    data = Numbers(20)
    loader = DataLoader(data, batch_size=3, sampler=torch_data.RandomSampler(data), num_workers=2)
    first, second = ints(loader), ints(loader)
    assert sorted(first) == sorted(second) == list(range(20)) and first != second


@behaviour("RandomSampler with a generator")
def random_sampler_generator(DataLoader: Any) -> None:
    """A RandomSampler's generator repeats its order."""
    data = Numbers(20)
    orders = []
    for _ in range(2):
        generator = torch.Generator()
        generator.manual_seed(11)
        sampler = torch_data.RandomSampler(data, generator=generator)
        orders.append(ints(DataLoader(data, batch_size=3, sampler=sampler, num_workers=2)))
    assert orders[0] == orders[1]


@behaviour("RandomSampler with replacement")
def random_sampler_replacement(DataLoader: Any) -> None:
    """With replacement, num_samples are drawn, and some come several times."""
    data = Numbers(10)
    sampler = torch_data.RandomSampler(data, replacement=True, num_samples=50)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
    order = ints(loader)
    assert len(loader) == 7 and len(order) == 50 and set(order) <= set(range(10))


@behaviour("RandomSampler, fewer samples")
def random_sampler_fewer(DataLoader: Any) -> None:
    """num_samples less than the dataset has gives that many different ones."""
    data = Numbers(20)
    loader = DataLoader(data, batch_size=3, sampler=torch_data.RandomSampler(data, num_samples=5), num_workers=2)
    order = ints(loader)
    assert len(loader) == 2 and len(order) == 5 == len(set(order)) and set(order) <= set(range(20))


@behaviour("RandomSampler, more samples")
def random_sampler_more(DataLoader: Any) -> None:
    """num_samples more than the dataset has goes through it several times."""
    data = Numbers(6)
    order = ints(DataLoader(data, sampler=torch_data.RandomSampler(data, num_samples=15), num_workers=2))
    assert sorted(order[:6]) == sorted(order[6:12]) == list(range(6)) and len(order) == 15


@behaviour("SubsetRandomSampler")
def subset_random_sampler(DataLoader: Any) -> None:
    """SubsetRandomSampler gives its indices, shuffled anew each epoch."""
    chosen = list(range(1, 40, 2))
    loader = DataLoader(Numbers(40), batch_size=3, sampler=torch_data.SubsetRandomSampler(chosen), num_workers=2)
    first, second = ints(loader), ints(loader)
    assert len(loader) == 7 and sorted(first) == sorted(second) == chosen and first != second


@behaviour("WeightedRandomSampler")
def weighted_random_sampler(DataLoader: Any) -> None:
    """WeightedRandomSampler draws as many as it is told, none of weight 0."""
    sampler = torch_data.WeightedRandomSampler([0.0, 1.0, 0.0, 3.0], 20)
    loader = DataLoader(Numbers(4), batch_size=6, sampler=sampler, num_workers=2)
    order = ints(loader)
    assert len(loader) == 4 and len(order) == 20 and set(order) <= {1, 3}


@behaviour("a sampler of one's own")
def own_sampler(DataLoader: Any) -> None:
    """A Sampler subclass sets the order, in every epoch."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(6), batch_size=4, sampler=Backwards(6), num_workers=workers)
        assert [ints(loader) for _ in range(2)] == [[5, 4, 3, 2, 1, 0]] * 2


@behaviour("a list as the sampler")
def list_sampler(DataLoader: Any) -> None:
    """Any iterable of indices is a sampler, and may repeat them."""
    assert ints(DataLoader(Numbers(9), batch_size=2, sampler=[8, 1, 1, 4, 8], num_workers=2)) == [8, 1, 1, 4, 8]


@behaviour("a sampler without a length")
def lengthless_sampler(DataLoader: Any) -> None:
    """A sampler without a length is fine, but the loader then has none: TypeError."""
    loader = DataLoader(Numbers(3), batch_size=2, sampler=Lengthless(), num_workers=2)
    assert [ints(loader) for _ in range(2)] == [[2, 0, 1]] * 2
    with raises(TypeError):
        len(loader)


@behaviour("a sampler of NumPy integers")
def numpy_indices(DataLoader: Any) -> None:
    """Indices may be NumPy integers."""
    assert ints(DataLoader(Numbers(3), batch_size=2, sampler=NumpyIndices(), num_workers=2)) == [2, 0, 1]


@behaviour("a sampler of negative indices")
def negative_indices(DataLoader: Any) -> None:
    """Indices go to the dataset as they are: a list counts negative ones from its end."""
    assert ints(DataLoader([10, 20, 30], batch_size=2, sampler=[-1, 0, -2], num_workers=2)) == [30, 10, 20]


@behaviour("a sampler of keys")
def key_sampler(DataLoader: Any) -> None:
    """Indices may be keys of any type that the dataset takes."""
    loader = DataLoader(Keyed(one=1, two=2, three=3), batch_size=2, sampler=["two", "one"], num_workers=2)
    assert ints(loader) == [2, 1]


@behaviour("an index out of range")
def index_out_of_range(DataLoader: Any) -> None:
    """An index the dataset does not have raises what the dataset raises."""
    with raises(IndexError):
        list(DataLoader(Numbers(3), sampler=[0, 3], num_workers=2))


@behaviour("a sampler with drop_last")
def sampler_with_drop_last(DataLoader: Any) -> None:
    """drop_last is of what the sampler gives."""
    loader = DataLoader(Numbers(9), batch_size=2, sampler=[5, 4, 3], drop_last=True, num_workers=2)
    assert len(loader) == 1 and ints(loader) == [5, 4]


@behaviour("BatchSampler")
def batch_sampler(DataLoader: Any) -> None:
    """BatchSampler as the batch_sampler sets batches and order."""
    data = Numbers(7)
    batches = torch_data.BatchSampler(Backwards(7), 3, drop_last=False)
    loader = DataLoader(data, batch_sampler=batches, num_workers=2)
    assert len(loader) == 3 and [b.tolist() for b in loader] == [[6, 5, 4], [3, 2, 1], [0]]


@behaviour("BatchSampler over RandomSampler")
def batch_sampler_random(DataLoader: Any) -> None:
    """A random sampler in a BatchSampler gives a permutation in full batches."""
    data = Numbers(20)
    batches = torch_data.BatchSampler(torch_data.RandomSampler(data), 5, drop_last=True)
    found = [b.tolist() for b in DataLoader(data, batch_sampler=batches, num_workers=2)]
    assert [len(b) for b in found] == [5] * 4 and sorted(itertools.chain(*found)) == list(range(20))


@behaviour("batches of unequal size")
def list_batch_sampler(DataLoader: Any) -> None:
    """Any iterable of lists of indices is a batch sampler; its batches may differ in size."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(9), batch_sampler=[[0], [3, 2, 1], [8, 8]], num_workers=workers)
        assert [[b.tolist() for b in loader] for _ in range(2)] == [[[0], [3, 2, 1], [8, 8]]] * 2


@behaviour("DistributedSampler")
def distributed_sampler(DataLoader: Any) -> None:
    """The ranks of a DistributedSampler have equally many samples, and all of them together."""
    for shuffle in (False, True):
        found = distributed(DataLoader, 12, shuffle)
        assert [len(x) for x in found] == [6, 6] and sorted(found[0] + found[1]) == list(range(12))


def distributed(DataLoader: Any, count: int, shuffle: bool, drop_last: bool = False) -> list[list[int]]:
    """What two ranks get that advance together."""
    data = Numbers(count)
    samplers = [
        torch_data.DistributedSampler(data, num_replicas=2, rank=rank, shuffle=shuffle, seed=4, drop_last=drop_last)
        for rank in range(2)
    ]
    loaders = [DataLoader(data, batch_size=2, sampler=sampler, num_workers=2) for sampler in samplers]
    assert len(loaders[0]) == len(loaders[1])
    found: list[list[int]] = [[], []]
    for batches in zip(*loaders, strict=True):
        for mine, batch in zip(found, batches, strict=True):
            mine += batch.tolist()
    return found


@behaviour(
    "DistributedSampler that does not divide", "No sample comes twice in an epoch: one rank's last batch is shorter."
)
def distributed_sampler_odd(DataLoader: Any) -> None:
    """Samples that cannot be shared out evenly: one comes twice, or with drop_last not at all."""
    found = distributed(DataLoader, 11, shuffle=True)
    assert [len(x) for x in found] == [6, 6] and set(found[0] + found[1]) == set(range(11))
    found = distributed(DataLoader, 11, shuffle=True, drop_last=True)
    assert [len(x) for x in found] == [5, 5] and len(set(found[0] + found[1])) == 10


@distributed_sampler_odd.instead
def distributed_sampler_odd_ours(DataLoader: Any) -> None:
    """Every sample comes once, in equally many batches, with the sampler's drop_last too."""
    for drop_last in (False, True):
        found = distributed(DataLoader, 11, shuffle=True, drop_last=drop_last)
        assert sorted(found[0] + found[1]) == list(range(11)) and sorted(map(len, found)) == [5, 6]


@behaviour("DistributedSampler.set_epoch")
def distributed_sampler_epochs(DataLoader: Any) -> None:
    """set_epoch gives each epoch an order of its own."""
    data = Numbers(20)
    sampler = torch_data.DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        orders.append(ints(loader))
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20)) and orders[0] != orders[1]


@behaviour(
    "warning about a sampler of one's own",
    difference="An order that only one job knows cannot be shared; that is said once.",
)
def own_sampler_is_silent(DataLoader: Any) -> None:
    """A sampler of one's own gives no warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert ints(DataLoader(Numbers(4), sampler=Backwards(4), num_workers=1)) == [3, 2, 1, 0]
    assert not said


@own_sampler_is_silent.instead
def own_sampler_warns(DataLoader: Any) -> None:
    """A sampler of one's own gives one UnsharedWarning."""
    code = """
        import warnings
        class Backwards:
            def __iter__(self): return iter([3, 2, 1, 0])
            def __len__(self): return 4
        if __name__ == "__main__":
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                loader = DataLoader([0, 1, 2, 3], sampler=Backwards(), num_workers=1)
                found = [[int(b) for b in loader] for _ in range(2)]
            print(found, [w.category.__name__ for w in said])
    """
    assert script(DataLoader, code) == "[[3, 2, 1, 0], [3, 2, 1, 0]] ['UnsharedWarning']"


# --- arguments -----------------------------------------------------------------------------------------------


@behaviour("sampler and shuffle")
def sampler_excludes_shuffle(DataLoader: Any) -> None:
    """sampler with shuffle=True is a ValueError; with shuffle=False it is not."""
    with raises(ValueError, texts=("sampler", "shuffle")):
        DataLoader(Numbers(4), sampler=[0, 1], shuffle=True)
    assert ints(DataLoader(Numbers(4), sampler=[0, 1], shuffle=False)) == [0, 1]


@behaviour("batch_sampler and the rest")
def batch_sampler_excludes(DataLoader: Any) -> None:
    """batch_sampler with batch_size, shuffle, sampler or drop_last is a ValueError."""
    for other in ({"batch_size": 2}, {"shuffle": True}, {"sampler": [0]}, {"drop_last": True}, {"batch_size": None}):
        with raises(ValueError, texts=("batch_sampler",)):
            DataLoader(Numbers(4), batch_sampler=[[0, 1]], **other)


@behaviour("batch_size=None and drop_last")
def no_batching_excludes_drop_last(DataLoader: Any) -> None:
    """batch_size=None with drop_last is a ValueError."""
    with raises(ValueError, texts=("batch_size", "drop_last")):
        DataLoader(Numbers(4), batch_size=None, drop_last=True)


@behaviour("bad batch_size")
def bad_batch_size(DataLoader: Any) -> None:
    """A batch size that is not a positive integer is an error."""
    for size in (0, -1, 1.5, "4"):
        with raises(ValueError, TypeError, texts=("batch_size",)):
            DataLoader(Numbers(4), batch_size=size)


@behaviour("bad num_workers")
def bad_num_workers(DataLoader: Any) -> None:
    """A negative num_workers is a ValueError."""
    with raises(ValueError, texts=("num_workers",)):
        DataLoader(Numbers(4), num_workers=-1)


@behaviour("bad timeout")
def bad_timeout(DataLoader: Any) -> None:
    """A negative timeout is a ValueError."""
    with raises(ValueError, texts=("timeout",)):
        DataLoader(Numbers(4), timeout=-1)


@behaviour("bad prefetch_factor")
def bad_prefetch_factor(DataLoader: Any) -> None:
    """A negative prefetch_factor is a ValueError."""
    with raises(ValueError, texts=("prefetch_factor",)):
        DataLoader(Numbers(4), num_workers=2, prefetch_factor=-1)


@behaviour("prefetch_factor without workers")
def prefetch_factor_without_workers(DataLoader: Any) -> None:
    """prefetch_factor with num_workers=0 is a ValueError."""
    with raises(ValueError, texts=("prefetch_factor",)):
        DataLoader(Numbers(4), num_workers=0, prefetch_factor=2)


@behaviour("prefetch_factor")
def prefetch_factor(DataLoader: Any) -> None:
    """prefetch_factor changes nothing of what comes."""
    for factor in (1, 8):
        loader = DataLoader(Numbers(10), batch_size=2, num_workers=2, prefetch_factor=factor)
        assert loader.prefetch_factor == factor and ints(loader) == list(range(10))


@behaviour("persistent_workers without workers")
def persistent_without_workers(DataLoader: Any) -> None:
    """persistent_workers with num_workers=0 is a ValueError."""
    with raises(ValueError, texts=("persistent_workers",)):
        DataLoader(Numbers(4), num_workers=0, persistent_workers=True)


@behaviour("multiprocessing_context")
def contexts(DataLoader: Any) -> None:
    """multiprocessing_context may be fork or spawn, by name or as the context."""
    for context in ("fork", torch.multiprocessing.get_context("fork"), "spawn"):
        loader = DataLoader(Numbers(4), batch_size=2, num_workers=1, multiprocessing_context=context)
        assert ints(loader) == list(range(4))


@behaviour("unknown multiprocessing_context")
def unknown_context(DataLoader: Any) -> None:
    """A start method that does not exist is a ValueError."""
    with raises(ValueError, texts=("multiprocessing_context",)):
        DataLoader(Numbers(4), num_workers=1, multiprocessing_context="thread")


@behaviour("bad multiprocessing_context")
def bad_context(DataLoader: Any) -> None:
    """A multiprocessing_context of a wrong type is a TypeError."""
    for context in (1, object()):
        with raises(TypeError, texts=("multiprocessing_context",)):
            DataLoader(Numbers(4), num_workers=1, multiprocessing_context=context)


@behaviour("multiprocessing_context without workers")
def context_without_workers(DataLoader: Any) -> None:
    """multiprocessing_context with num_workers=0 is a ValueError."""
    with raises(ValueError, texts=("multiprocessing_context",)):
        DataLoader(Numbers(4), num_workers=0, multiprocessing_context="fork")


@behaviour("arguments by position")
def positional_arguments(DataLoader: Any) -> None:
    """Arguments up to generator may be given by position, in PyTorch's order."""
    loader = DataLoader(Numbers(5), 2, False, None, None, 0, identity, False, True, 0, None, None, None)
    assert list(loader) == [[0, 1], [2, 3]]


@behaviour("arguments by name only")
def keyword_arguments(DataLoader: Any) -> None:
    """What comes after generator is given by name, and a name that does not exist is a TypeError."""
    with raises(TypeError):
        DataLoader(Numbers(5), 2, False, None, None, 2, None, False, True, 0, None, None, None, 2)
    with raises(TypeError):
        DataLoader(Numbers(5), no_such_argument=1)


@behaviour("attributes")
def attributes(DataLoader: Any) -> None:
    """What was given can be read."""
    data, generator = Numbers(10), torch.Generator()
    given = {
        "dataset": data,
        "batch_size": 4,
        "num_workers": 2,
        "collate_fn": identity,
        "pin_memory": False,
        "drop_last": True,
        "timeout": 5,
        "worker_init_fn": initialise,
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory_device": "",
        "in_order": False,
    }
    loader = DataLoader(**given)
    for name, value in given.items():
        assert getattr(loader, name) is value or getattr(loader, name) == value, name


@behaviour("default attributes")
def default_attributes(DataLoader: Any) -> None:
    """Defaults are PyTorch's."""
    loader = DataLoader(Numbers(10))
    assert (loader.batch_size, loader.drop_last, loader.pin_memory, loader.timeout) == (1, False, False, 0)
    assert loader.generator is None and loader.worker_init_fn is None and loader.multiprocessing_context is None
    assert loader.persistent_workers is False and loader.in_order is True
    assert callable(loader.collate_fn)


@behaviour("sampler attributes")
def sampler_attributes(DataLoader: Any) -> None:
    """sampler and batch_sampler are those given, else PyTorch's that fit the other arguments."""
    data, own, batches = Numbers(10), Backwards(10), [[0, 1], [2]]
    loader = DataLoader(data, batch_size=4, drop_last=True)
    assert isinstance(loader.sampler, torch_data.SequentialSampler)
    assert isinstance(loader.batch_sampler, torch_data.BatchSampler)
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (4, True)
    assert isinstance(DataLoader(data, shuffle=True).sampler, torch_data.RandomSampler)
    assert DataLoader(data, sampler=own).sampler is own
    loader = DataLoader(data, batch_sampler=batches)
    assert loader.batch_sampler is batches and loader.batch_size is None and loader.drop_last is False
    assert DataLoader(data, batch_size=None).batch_sampler is None


@behaviour("attributes that are fixed")
def fixed_attributes(DataLoader: Any) -> None:
    """dataset, batch_size, sampler, batch_sampler, drop_last and persistent_workers cannot be set: ValueError."""
    loader = DataLoader(Numbers(4))
    for name in ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"):
        with raises(ValueError, texts=(name,)):
            setattr(loader, name, None)


# --- workers -------------------------------------------------------------------------------------------------


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
    """An exception in worker_init_fn is raised in the job, with where it was raised."""
    with raises(Own, RuntimeError, texts=("the worker cannot start", "in fail_to_start")):
        list(DataLoader(Numbers(4), num_workers=2, worker_init_fn=fail_to_start))


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


@behaviour("timeout")
def timeout(DataLoader: Any) -> None:
    """A batch that does not come within the timeout raises RuntimeError."""
    start = time.monotonic()
    with raises(RuntimeError):
        list(DataLoader(Hanging(4), num_workers=1, timeout=0.5))
    assert time.monotonic() - start < 20


@behaviour("timeout that suffices")
def timeout_suffices(DataLoader: Any) -> None:
    """With a timeout that is long enough everything comes."""
    assert ints(DataLoader(Slow(4), num_workers=2, timeout=20)) == list(range(4))


# --- exceptions ----------------------------------------------------------------------------------------------


@behaviour("ValueError in __getitem__")
def value_error_in_sample(DataLoader: Any) -> None:
    """A ValueError is raised in the job with the worker's traceback."""
    with raises(ValueError, texts=("Traceback", "in __getitem__", "in value_error", "the value is bad")):
        list(DataLoader(Failing(6, value_error), batch_size=2, num_workers=2))


@behaviour(
    "the message of an exception",
    difference="The exception is the one that was raised; its cause has the sample, the worker and the traceback.",
)
def error_message(DataLoader: Any) -> None:
    """The worker's traceback takes the place of the exception's message."""
    with raises(ValueError) as caught:
        list(DataLoader(Failing(6, value_error), num_workers=2))
    assert "in DataLoader worker process" in str(caught.error) and "in __getitem__" in str(caught.error)


@error_message.instead
def error_message_ours(DataLoader: Any) -> None:
    """The exception has its own arguments, and a SampleError as its cause."""
    with raises(ValueError) as caught:
        list(DataLoader(Failing(6, value_error), num_workers=2))
    cause = caught.error.__cause__
    assert caught.error.args == ("the value is bad",)
    assert isinstance(cause, coprep.SampleError) and cause.id == 3 and hasattr(cause, "worker")
    assert "in __getitem__" in str(cause)


@behaviour("KeyError in __getitem__")
def key_error_in_sample(DataLoader: Any) -> None:
    """A KeyError is raised in the job with the worker's traceback, readable."""
    with raises(KeyError, texts=("in __getitem__", "in key_error", "the key is bad")):
        list(DataLoader(Failing(6, key_error), batch_size=2, num_workers=2))


@behaviour("IndexError in __getitem__")
def index_error_in_sample(DataLoader: Any) -> None:
    """An IndexError does not end the epoch: it is raised in the job."""
    with raises(IndexError, texts=("in __getitem__", "the index is bad")):
        list(DataLoader(Failing(6, index_error), batch_size=2, num_workers=2))


@behaviour("an exception of one's own in __getitem__")
def own_error_in_sample(DataLoader: Any) -> None:
    """An exception of a class of the user's own keeps its class."""
    with raises(Own, texts=("in __getitem__", "in own_error", "my own")):
        list(DataLoader(Failing(6, own_error), batch_size=2, num_workers=2))


@behaviour("a chained exception in __getitem__")
def chained_error_in_sample(DataLoader: Any) -> None:
    """The cause of an exception is told too."""
    with raises(Own, texts=("in value_error", "the value is bad", "the second")):
        list(DataLoader(Failing(6, chained_error), batch_size=2, num_workers=2))


@behaviour("an exception without workers")
def error_without_workers(DataLoader: Any) -> None:
    """Without workers, an exception comes as it was raised."""
    with raises(Own, texts=("in __getitem__", "in own_error")) as caught:
        list(DataLoader(Failing(6, own_error), batch_size=2, num_workers=0))
    assert caught.error.args == ("my own",)


@behaviour("an exception of several arguments")
def several_error_in_sample(DataLoader: Any) -> None:
    """An exception that cannot be made from one string is raised, at least as RuntimeError."""
    with raises(Several, RuntimeError, texts=("in several_error", "too much at 3")):
        list(DataLoader(Failing(6, several_error), batch_size=2, num_workers=2))


@behaviour("an exception that cannot be pickled")
def locked_error_in_sample(DataLoader: Any) -> None:
    """An exception that holds what cannot be pickled is raised, at least as RuntimeError."""
    with raises(Locked, RuntimeError, texts=("in locked_error", "locked up")):
        list(DataLoader(Failing(6, locked_error), batch_size=2, num_workers=2))


@behaviour(
    "an exception of a local class",
    difference="The worker says what it can; the job does not wait for an answer that was lost.",
)
def local_error_in_sample(DataLoader: Any) -> None:
    """An exception of a class that cannot be imported never arrives: the job waits, or times out."""
    with raises(RuntimeError, texts=("timed out",)):
        list(DataLoader(Failing(6, local_error), batch_size=2, num_workers=1, timeout=0.5))


@local_error_in_sample.instead
def local_error_in_sample_ours(DataLoader: Any) -> None:
    """An exception of a class that cannot be imported is raised, with the worker's traceback."""
    with raises(Exception, texts=("in local_error", "of a function")):
        list(DataLoader(Failing(6, local_error), batch_size=2, num_workers=1, timeout=30))


@behaviour(
    "StopIteration in __getitem__",
    difference="An epoch that lacks samples must not look like one that has all.",
)
def stop_iteration_in_sample(DataLoader: Any) -> None:
    """StopIteration in __getitem__ ends the epoch without a word."""
    for workers in (0, 2):
        it, seen = iter(DataLoader(Failing(6, stop_iteration), num_workers=workers)), []
        with raises(StopIteration):
            while True:
                seen.append(int(next(it)))
        assert seen == [0, 1, 2]


@stop_iteration_in_sample.instead
def stop_iteration_in_sample_ours(DataLoader: Any) -> None:
    """StopIteration in __getitem__ raises RuntimeError."""
    for workers in (0, 2):
        with raises(RuntimeError):
            list(DataLoader(Failing(6, stop_iteration), num_workers=workers))


@behaviour("after an exception, the next batch")
def next_after_error(DataLoader: Any) -> None:
    """After an exception the iterator goes on with the next batch."""
    for workers in (0, 2):
        it = iter(DataLoader(Failing(6, value_error), num_workers=workers))
        assert [int(next(it)) for _ in range(3)] == [0, 1, 2]
        with raises(ValueError):
            next(it)
        assert ints(it) == [4, 5]


@behaviour("after an exception, a new epoch")
def epoch_after_error(DataLoader: Any) -> None:
    """After an exception a new epoch can be begun."""
    for options in ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = DataLoader(Failing(6, value_error), **options)
        for _ in range(2):
            seen = []
            with raises(ValueError):
                for batch in loader:
                    seen.append(int(batch))
            assert seen == [0, 1, 2]


@behaviour("after break, a new epoch")
def epoch_after_break(DataLoader: Any) -> None:
    """After an epoch that was left early the next one is whole."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(9), batch_size=2, num_workers=workers)
        for _ in range(2):
            for batch in loader:
                assert batch.tolist() == [0, 1]
                break
        assert ints(loader) == list(range(9))


@behaviour("exception in __len__")
def error_in_len(DataLoader: Any) -> None:
    """An exception in the dataset's __len__ is raised as it is."""
    with raises(Own):
        list(DataLoader(BadLength(3), num_workers=2))


class BadLength(Numbers):
    def __len__(self) -> int:
        raise Own("no length")


# --- several iterators and loaders ---------------------------------------------------------------------------


@behaviour(
    "two iterators of one loader",
    difference="A loader is one position in its stream, which a checkpoint holds; a second loader costs little.",
)
def two_iterators(DataLoader: Any) -> None:
    """Two iterators of one loader are independent."""
    loader = DataLoader(Numbers(6), num_workers=2)
    assert [(int(a), int(b)) for a, b in zip(loader, loader, strict=True)] == [(i, i) for i in range(6)]


@two_iterators.instead
def two_iterators_ours(DataLoader: Any) -> None:
    """The older of two iterators of one loader raises RuntimeError; the newer is whole."""
    loader = DataLoader(Numbers(6), num_workers=2)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with raises(RuntimeError):
        next(older)
    assert ints(newer) == list(range(6))


@behaviour("several loaders")
def several_loaders(DataLoader: Any) -> None:
    """Several loaders, of the same dataset and of others, run side by side."""
    data = Numbers(6)
    loaders = [DataLoader(d, batch_size=2, num_workers=2) for d in (data, data, Numbers(6, offset=10))]
    found: list[list[int]] = [[], [], []]
    for batches in zip(*loaders, strict=True):
        for mine, batch in zip(found, batches, strict=True):
            mine += batch.tolist()
    assert found == [list(range(6)), list(range(6)), list(range(10, 16))]


@behaviour("training and validation")
def training_and_validation(DataLoader: Any) -> None:
    """Between epochs of one loader another is iterated, and both stay right."""
    train = DataLoader(Numbers(10), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    check = DataLoader(Numbers(4, offset=50), batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert sorted(ints(train)) == list(range(10))
        assert ints(check) == list(range(50, 54))


@behaviour("a loader within a loop of another")
def nested_loaders(DataLoader: Any) -> None:
    """Another loader may be iterated within the loop over one."""
    outer, inner = DataLoader(Numbers(3), num_workers=1), DataLoader(Numbers(2, offset=5), num_workers=1)
    assert [(int(a), int(b)) for a in outer for b in inner] == [(a, b) for a in range(3) for b in (5, 6)]


# --- datasets ------------------------------------------------------------------------------------------------


@behaviour("sequences as datasets")
def sequences(DataLoader: Any) -> None:
    """Lists, ranges, arrays and tensors are datasets."""
    for data in (list(range(5)), range(5), np.arange(5), torch.arange(5)):
        assert ints(DataLoader(data, batch_size=2, num_workers=2)) == list(range(5))


@behaviour("TensorDataset")
def tensor_dataset(DataLoader: Any) -> None:
    """TensorDataset gives rows of its tensors."""
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    found = list(DataLoader(torch_data.TensorDataset(x, y), batch_size=4, num_workers=2))
    assert same(found, [[x[:4], y[:4]], [x[4:], y[4:]]])


@behaviour("Subset")
def subset(DataLoader: Any) -> None:
    """Subset gives its indices of the dataset, in their order."""
    data = torch_data.Subset(Pictures(10), [7, 2, 2, 9])
    assert [int(x) for _, label in DataLoader(data, batch_size=3, num_workers=2) for x in label] == [7, 2, 2, 9]


@behaviour("ConcatDataset")
def concat_dataset(DataLoader: Any) -> None:
    """ConcatDataset gives one dataset after the other."""
    data = torch_data.ConcatDataset([Pictures(2), Pictures(3)])
    assert [int(x) for _, label in DataLoader(data, batch_size=2, num_workers=2) for x in label] == [0, 1, 0, 1, 2]


@behaviour("StackDataset")
def stack_dataset(DataLoader: Any) -> None:
    """StackDataset gives the samples of several datasets together, also by name."""
    data = torch_data.StackDataset(a=Numbers(4), b=Numbers(4, offset=10))
    found = list(DataLoader(data, batch_size=4, num_workers=2))
    assert same(found, [{"a": torch.arange(4), "b": torch.arange(10, 14)}])


@behaviour("random_split")
def split(DataLoader: Any) -> None:
    """The parts of random_split have no sample in common and have all together."""
    parts = torch_data.random_split(Pictures(10), [7, 3])
    found = [[int(x) for _, label in DataLoader(p, batch_size=2, num_workers=2) for x in label] for p in parts]
    assert [len(x) for x in found] == [7, 3] and sorted(found[0] + found[1]) == list(range(10))


@behaviour("__getitems__")
def getitems(DataLoader: Any) -> None:
    """A dataset that has __getitems__ is asked for several samples at once."""
    for workers in (0, 2):
        assert ints(DataLoader(AtOnce(5), batch_size=2, num_workers=workers)) == [0, 10, 20, 30, 40]


@behaviour("__getitems__ without batching")
def getitems_without_batching(DataLoader: Any) -> None:
    """Without batching, __getitems__ is not used."""
    assert list(DataLoader(AtOnce(2), batch_size=None, num_workers=2)) == [-1, -1]


@behaviour("IterableDataset", difference="Samples without an index cannot be cached, shared or resumed.")
def iterable_dataset(DataLoader: Any) -> None:
    """An IterableDataset is iterated."""
    assert ints(DataLoader(Stream(), batch_size=2)) == list(range(5))


@iterable_dataset.instead
def iterable_dataset_ours(DataLoader: Any) -> None:
    """An IterableDataset is refused: TypeError."""
    with raises(TypeError, texts=("IterableDataset",)):
        list(DataLoader(Stream(), batch_size=2))


@behaviour("a dataset without a length")
def endless_dataset(DataLoader: Any) -> None:
    """A dataset without a length needs a sampler; otherwise it is a TypeError."""
    assert ints(DataLoader(Endless(), sampler=[3, 1], num_workers=2)) == [6, 2]
    with raises(TypeError):
        list(DataLoader(Endless(), num_workers=2))


@behaviour("a dataset of a local class")
def local_dataset(DataLoader: Any) -> None:
    """A dataset's class may be defined in a function, and use variables around it."""
    factor = 3

    class Local(torch_data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index * factor

    assert ints(DataLoader(Local(), batch_size=2, num_workers=2)) == [0, 3, 6, 9]


@behaviour("a dataset that holds a lambda")
def lambda_dataset(DataLoader: Any) -> None:
    """A dataset may hold lambdas, as transforms often do."""
    assert ints(DataLoader(Mapped(lambda i: i + 7), batch_size=2, num_workers=2)) == [7, 8, 9]


class Mapped(Numbers):
    def __init__(self, transform: Callable[[int], int]) -> None:
        super().__init__(3)
        self.transform = transform

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


@behaviour("a dataset that cannot be pickled")
def unpicklable_dataset(DataLoader: Any) -> None:
    """A dataset that cannot be pickled cannot go to a spawned worker, and that is said."""
    data = Numbers(3)
    data.lock = threading.Lock()  # type: ignore[attr-defined]
    with raises(TypeError, ValueError, RuntimeError, pickle.PicklingError, texts=("pickle",)):
        list(DataLoader(data, num_workers=1, multiprocessing_context="spawn"))


@behaviour("changing a dataset, without workers")
def changed_dataset_without_workers(DataLoader: Any) -> None:
    """Without workers, a change to the dataset is seen at once."""
    data = Numbers(4)
    it = iter(DataLoader(data, num_workers=0))
    assert int(next(it)) == 0
    data.offset = 10
    assert ints(it) == [11, 12, 13]


@behaviour("changing a dataset between epochs")
def changed_dataset(DataLoader: Any) -> None:
    """A change to the dataset's attributes is seen in the next epoch."""
    data = Numbers(4)
    loader = DataLoader(data, batch_size=2, num_workers=2)
    assert ints(loader) == [0, 1, 2, 3]
    data.offset = 10
    assert ints(loader) == [10, 11, 12, 13]


@behaviour("a dataset that grows or shrinks")
def changed_length(DataLoader: Any) -> None:
    """A change to the dataset's length is seen by len and in the next epoch."""
    for options in ({}, {"shuffle": True}):
        data = Numbers(4)
        loader = DataLoader(data, batch_size=2, num_workers=2, **options)
        for count in (4, 7, 2):
            data.count = count
            assert len(loader) == (count + 1) // 2
            assert sorted(ints(loader)) == list(range(count))


@behaviour("changes in workers stay there")
def changes_in_workers(DataLoader: Any) -> None:
    """What __getitem__ changes in a worker does not change the job's dataset."""
    data = Remembering(6)
    assert ints(DataLoader(data, batch_size=2, num_workers=2)) == list(range(6))
    assert data.seen == []


class Remembering(Numbers):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.seen: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.seen.append(index)
        return index


# --- memory and programs -------------------------------------------------------------------------------------


@behaviour("pin_memory")
def pin_memory(DataLoader: Any) -> None:
    """pin_memory gives the same values; they are pinned if there is an accelerator."""
    pinned = torch.accelerator.is_available()
    for workers in (0, 2):
        for picture, label in DataLoader(Pictures(4), batch_size=2, pin_memory=True, num_workers=workers):
            assert (picture[:, 0, 0, 0] == label).all()
            assert not pinned or (picture.is_pinned() and label.is_pinned())


@behaviour("pin_memory of containers")
def pin_memory_containers(DataLoader: Any) -> None:
    """pin_memory keeps containers and strings as they are."""
    samples = [{"a": torch.ones(2) * i, "name": str(i), "p": Point(i, [np.ones(1)])} for i in range(2)]
    expected = torch_data.default_collate(samples)
    (batch,) = DataLoader(samples, batch_size=2, pin_memory=True, num_workers=2)
    assert same(batch, expected)


@behaviour("a dataset of __main__")
def main_dataset(DataLoader: Any) -> None:
    """A program's dataset and collate_fn may be in the program itself."""
    code = """
        class Squares:
            def __len__(self): return 4
            def __getitem__(self, i): return i * i
        def collate(samples): return list(samples)
        if __name__ == "__main__":
            print(list(DataLoader(Squares(), batch_size=2, collate_fn=collate, num_workers=2)))
    """
    assert script(DataLoader, code) == "[[0, 1], [4, 9]]"


@behaviour("a program that ends early")
def early_end(DataLoader: Any) -> None:
    """A program that ends in the middle of an epoch ends well."""
    code = """
        if __name__ == "__main__":
            it = iter(DataLoader(range(1000), batch_size=2, num_workers=2))
            print(next(it).tolist())
    """
    assert script(DataLoader, code) == "[0, 1]"
