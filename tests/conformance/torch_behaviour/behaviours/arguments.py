"""Checks which arguments go together, which are refused, and which attributes can be read."""

from __future__ import annotations

from typing import Any

import coprep
import torch
from torch.utils import data as torch_data

from .parts_of_checks import Backwards, Numbers, identity, ints, raises
from .table import behaviour


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
    """prefetch_factor does not change the batches."""
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
    """Arguments after generator are given by name, and a name that does not exist is a TypeError."""
    with raises(TypeError):
        DataLoader(Numbers(5), 2, False, None, None, 2, None, False, True, 0, None, None, None, 2)
    with raises(TypeError):
        DataLoader(Numbers(5), no_such_argument=1)


@behaviour("attributes")
def attributes(DataLoader: Any) -> None:
    """The given arguments can be read as attributes."""
    data, generator = Numbers(10), torch.Generator()
    given = {
        "dataset": data,
        "batch_size": 4,
        "num_workers": 2,
        "collate_fn": identity,
        "pin_memory": False,
        "drop_last": True,
        "timeout": 5,
        "worker_init_fn": print,
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


@behaviour("words of errors")
def words_of_errors(DataLoader: Any) -> None:
    """Errors of arguments have the same words."""
    data = Numbers(4)
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "num_workers option should be non-negative", {"num_workers": -1}),
        (ValueError, "timeout option should be non-negative", {"timeout": -1}),
        (ValueError, "batch_size=None option disables auto-batching", {"batch_size": None, "drop_last": True}),
        (ValueError, "sampler option is mutually exclusive with shuffle", {"sampler": [0], "shuffle": True}),
        (ValueError, "batch_sampler option is mutually exclusive with", {"batch_sampler": [[0]], "batch_size": 2}),
        (
            ValueError,
            "multi-process loading (num_workers > 0), but got",
            {"num_workers": 0, "multiprocessing_context": "spawn"},
        ),
        (
            ValueError,
            "should specify a valid start method in",
            {"num_workers": 1, "multiprocessing_context": "no such method"},
        ),
        (
            TypeError,
            "multiprocessing_context option should be a valid context",
            {"num_workers": 1, "multiprocessing_context": object()},
        ),
    ]
    for kind, words, options in refused:
        with raises(kind, texts=(words,)):
            DataLoader(data, **options)


@behaviour("private attributes")
def private_attributes(DataLoader: Any) -> None:
    """Attributes that libraries look at are there: _auto_collation, _index_sampler, _dataset_kind, _iterator."""
    data = Numbers(4)
    for options, batched in (({}, True), ({"batch_size": None}, False), ({"batch_sampler": [[0, 1]]}, True)):
        for further in ({}, {"num_workers": 2, "persistent_workers": True}):
            loader = DataLoader(data, **options, **further)
            assert loader._auto_collation is batched and loader._iterator is None
            assert isinstance(loader._index_sampler, torch_data.Sampler) or loader._index_sampler == [[0, 1]]
            assert loader._dataset_kind == torch_data.dataloader._DatasetKind.Map
            list(loader)
            loader._iterator = None


@behaviour(
    "isinstance",
    difference="coprep works without PyTorch, and is no class of its; coprep.install() makes loaders that are.",
)
def is_instance(DataLoader: Any) -> None:
    """A loader is an instance of torch.utils.data.DataLoader."""
    assert isinstance(DataLoader(Numbers(4)), torch_data.DataLoader)


@is_instance.instead
def is_no_instance(DataLoader: Any) -> None:
    """A coprep.DataLoader is not; one made by torch.utils.data.DataLoader after coprep.install() is."""
    assert not isinstance(DataLoader(Numbers(4)), torch_data.DataLoader)
    coprep.install()
    try:
        loader: Any = torch_data.DataLoader(Numbers(4))  # type: ignore[arg-type]
    finally:
        coprep.uninstall()
    assert isinstance(loader, torch_data.DataLoader) and isinstance(loader, coprep.DataLoader)
