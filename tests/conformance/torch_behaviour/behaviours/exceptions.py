"""Checks how an exception in a dataset reaches the job, and how the job continues."""

from __future__ import annotations

import threading
from typing import Any

import coprep

from .parts_of_checks import Failing, Numbers, Own, ints, raises
from .table import behaviour


class Several(Exception):  # noqa: N818
    """An exception that cannot be made from one string."""

    def __init__(self, what: str, where: int) -> None:
        super().__init__(f"{what} at {where}")


class Locked(Exception):  # noqa: N818
    """An exception that holds a lock, which cannot be pickled."""

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
    """The worker's traceback replaces the exception's message."""
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
    """The traceback includes the cause of an exception."""
    with raises(Own, texts=("in value_error", "the value is bad", "the second")):
        list(DataLoader(Failing(6, chained_error), batch_size=2, num_workers=2))


@behaviour("an exception without workers")
def error_without_workers(DataLoader: Any) -> None:
    """Without workers, an exception arrives as it was raised."""
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
    """An exception that holds an object that cannot be pickled is raised, at least as RuntimeError."""
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
    """StopIteration in __getitem__ ends the epoch without an error."""
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


class AllFailing(Numbers):
    """A dataset whose samples all raise."""

    def __getitem__(self, index: int) -> int:
        raise Own(f"sample {index}")


@behaviour("an exception of the first sample")
def first_sample_error(DataLoader: Any) -> None:
    """An exception of the first sample is raised by next(), not by iter()."""
    for workers in (0, 2):
        it = iter(DataLoader(AllFailing(6), num_workers=workers))
        with raises(Own, texts=("sample 0", "in __getitem__")):
            next(it)


@behaviour("an exception of every sample")
def every_sample_error(DataLoader: Any) -> None:
    """If every sample raises, so does every batch, and then the epoch ends."""
    it = iter(DataLoader(AllFailing(6), batch_size=4, num_workers=2))
    for _ in range(2):
        with raises(Own):
            next(it)
    assert list(it) == []


@behaviour("after an exception, the next batch")
def next_after_error(DataLoader: Any) -> None:
    """After an exception the iterator continues with the next batch."""
    for workers in (0, 2):
        it = iter(DataLoader(Failing(6, value_error), num_workers=workers))
        assert [int(next(it)) for _ in range(3)] == [0, 1, 2]
        with raises(ValueError):
            next(it)
        assert ints(it) == [4, 5]


def around_an_exception(DataLoader: Any, workers: int) -> list[list[int]]:
    """Returns the batches of an epoch in which one sample of the second batch raises."""
    it = iter(DataLoader(Failing(6, value_error), batch_size=2, num_workers=workers))
    first = next(it).tolist()
    with raises(ValueError):
        next(it)
    return [first, *(batch.tolist() for batch in it)]


@behaviour(
    "an exception within a batch",
    difference="Workers prepare the other samples in any case, for jobs that leave failed ones out.",
)
def error_within_a_batch(DataLoader: Any) -> None:
    """A sample that raises takes its whole batch with it."""
    for workers in (0, 2):
        assert around_an_exception(DataLoader, workers) == [[0, 1], [4, 5]]


@error_within_a_batch.instead
def error_within_a_batch_ours(DataLoader: Any) -> None:
    """After the exception of each sample that raises, the rest of the batch comes; with num_workers=0 it does not."""
    assert around_an_exception(DataLoader, 2) == [[0, 1], [2], [4, 5]]
    assert around_an_exception(DataLoader, 0) == [[0, 1], [4, 5]]


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
    """After an epoch that was left early, the next one is whole."""
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
