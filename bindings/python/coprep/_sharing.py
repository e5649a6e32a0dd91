"""Decides which samples jobs share and in which order, and the options of a job that follow from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coprep import _arguments as arguments
from coprep._options import Cohort, JobOptions
from coprep._orders import OwnOrder, own_order
from coprep._ranks import GivenRank, may_be_one_of_several

if TYPE_CHECKING:
    # For types only: the module needs more than NumPy, and only programs with a Python dataset load it.
    from coprep._iterables import Batches

_members = itertools.count()
"""Counts the loaders with samplers of their own that ``COPREP_COHORT`` makes members of a cohort."""


def why_not_iterated(
    dataset: Any, cohort: Cohort | None, rank: GivenRank, with_index: bool, batches: Callable[[], Batches]
) -> str | None:
    """Returns why the batches of an iterable dataset are not shared, or ``None`` if its cohort shares them.

    Args:
        with_index: whether the user wants ids with the batches. These batches have none.
        batches: returns the dataset in the form that travels to the process that iterates it.
    """
    why = f"{type(dataset).__name__} is an IterableDataset, whose samples have no ids"
    if cohort is None:
        return f"{why}, so that only a cohort can share it"
    if rank.has_others():
        return f"{why}, and each rank has its own"
    if with_index:
        return why
    from coprep._fingerprint import fingerprint

    private: list[Any] = []
    fingerprint(batches().code(), private)
    if private:
        # The members of the cohort could not find each other.
        return f"{why}, and {private[0].path} cannot be compared with that of other jobs: {private[0].reason}"
    return None


def order_of(
    dataset: Any, sampler: Any, batch_sampler: Any, cohort: Cohort | None, rank: GivenRank
) -> arguments.Order | OwnOrder | str:
    """Returns the order that jobs share by one of these samplers, or the reason why they cannot share it."""
    order = arguments.order_of(sampler if sampler is not None else batch_sampler, dataset)
    if isinstance(order, arguments.Order):
        if (order.world_size or 1) > 1 and rank.world_size is None and not may_be_one_of_several():
            order = (
                f"it gives the samples of one of {order.world_size} ranks; neither torch.distributed nor a launcher "
                "knows of them (if this process is one, leave the sampler out and give rank= and world_size=)"
            )
        elif order.batch_size is None or sampler is None:
            return order
        else:
            order = "it gives lists of ids, of which the dataset makes batches"
    if cohort is None or not hasattr(dataset, "__len__"):
        return order
    if rank.has_others():
        return f"{order}, and each rank has its own"
    return own_order(sampler, batch_sampler)


def with_order(options: JobOptions, order: arguments.Order) -> JobOptions:
    """Returns the options of a job with this order. Its subset is left to the caller."""
    if order.draws is not None:
        _refuse_reuse(options)
    return options._replace(
        shuffle=order.shuffle,
        draws=order.draws,
        seed=order.seed if options.seed is None else options.seed,
        batch_size=options.batch_size if order.batch_size is None else order.batch_size,
        drop_last=options.drop_last or order.drop_last,
    )


def with_own_order(options: JobOptions, order: OwnOrder) -> JobOptions:
    """Returns the options of a job that proposes the order of each epoch to its cohort."""
    _refuse_reuse(options)
    size = options.batch_size if order.batch_size is None else order.batch_size
    return options._replace(proposes_order=True, batch_size=size)


def of_iteration(options: JobOptions) -> JobOptions:
    """Returns the options of a job that shares the iteration of an iterable dataset with its cohort."""
    if options.cache not in (None, "auto", "off") or options.reuse:
        raise ValueError(
            "the batches of an IterableDataset have no ids, so that none can be cached: leave cache and reuse out"
        )
    # To the coordinator each batch is one sample.
    return options._replace(batch_size=1, drop_last=False, relaxed=False, cache="off", cache_bytes=None)


def numbered(cohort: Cohort) -> Cohort:
    """Returns the cohort of one loader of a program whose loaders all have the same ``COPREP_COHORT``.

    Two loaders on one dataset would be taken for two jobs. Therefore each loader with a sampler of its own or an
    iterable dataset gets a number, in the order in which the program makes them.
    """
    number = next(_members)
    return cohort._replace(name=f"{cohort.name}, loader {number + 1}") if number else cohort


def _refuse_reuse(options: JobOptions) -> None:
    if options.reuse:
        raise ValueError(
            "reuse counts the epochs that a prepared sample is used for, and this sampler may give a sample many "
            "times in one, or not at all: leave reuse out, or give cache='prepared'"
        )
