"""Checks the order of samples, and their distribution over batches."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import data as torch_data

from .parts_of_checks import Numbers, Pictures, Process, Slow, ints, raises
from .table import behaviour


def sizes(loader: Any) -> list[int]:
    return [len(batch) for batch in loader]


def quietly(error: type[Exception], action: Callable[[], Any]) -> Any:
    try:
        return action()
    except error:
        return None


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
    """A batch of tuples is a list of collated columns."""
    (batch,) = DataLoader(Pictures(4), batch_size=4, num_workers=2)
    assert type(batch) is list and len(batch) == 2


@behaviour("last short batch")
def last_short_batch(DataLoader: Any) -> None:
    """The last batch has the remaining samples."""
    assert sizes(DataLoader(Numbers(10), batch_size=4, num_workers=2)) == [4, 4, 2]


@behaviour("drop_last")
def drop_last(DataLoader: Any) -> None:
    """With drop_last a last batch that is short is left out, and a full one is not."""
    assert sizes(DataLoader(Numbers(10), batch_size=4, drop_last=True, num_workers=2)) == [4, 4]
    assert sizes(DataLoader(Numbers(8), batch_size=4, drop_last=True, num_workers=2)) == [4, 4]


@behaviour("batch larger than the dataset")
def batch_larger_than_dataset(DataLoader: Any) -> None:
    """A batch size above the dataset's length gives one short batch, or none with drop_last."""
    assert sizes(DataLoader(Numbers(3), batch_size=8, num_workers=2)) == [3]
    assert sizes(DataLoader(Numbers(3), batch_size=8, drop_last=True, num_workers=2)) == []


@behaviour("len")
def length(DataLoader: Any) -> None:
    """len is the number of batches: rounded up, or down with drop_last."""
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
    """0, 1, 2 and 4 workers give the same batches."""
    for workers in (0, 1, 2, 4):
        batches = [label.tolist() for _, label in DataLoader(Pictures(10), batch_size=4, num_workers=workers)]
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@behaviour("more workers than samples")
def more_workers_than_samples(DataLoader: Any) -> None:
    """Workers without samples do no harm."""
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
    """The loader waits for a slow batch, so the order holds."""
    assert ints(DataLoader(Slow(8), num_workers=2)) == list(range(8))


@behaviour("in_order=False")
def out_of_order(DataLoader: Any) -> None:
    """With in_order=False every sample comes, in any order."""
    assert sorted(ints(DataLoader(Slow(8), num_workers=2, in_order=False))) == list(range(8))


@behaviour("empty dataset")
def empty_dataset(DataLoader: Any) -> None:
    """A dataset of length 0 has no batches."""
    for workers in (0, 2):
        loader = DataLoader(Numbers(0), batch_size=2, num_workers=workers)
        assert len(loader) == 0 and list(loader) == []


@behaviour("empty dataset, shuffled")
def empty_dataset_shuffled(DataLoader: Any) -> None:
    """A dataset of length 0 is refused (ValueError) or has no batches; no other outcome is allowed."""
    assert not quietly(ValueError, lambda: list(DataLoader(Numbers(0), shuffle=True, num_workers=2)))


@behaviour("batches can be kept")
def batches_can_be_kept(DataLoader: Any) -> None:
    """A batch keeps its values while others come."""
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
    """Samples of megabytes come like any others."""
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
