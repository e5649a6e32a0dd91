"""States of a loader as dictionaries that a checkpoint can hold."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from coprep._options import Draws, ResumeFrom

if TYPE_CHECKING:
    from coprep._coprep import JobState

STATE_VERSION = 2
"""Version of the states that this loader takes. Version 1 has bytes where version 2 has text; both can be loaded."""
_OF_DATASET = "dataset"
"""The numbering of a state whose ids are of the dataset that the loader had a part of, and not positions there."""
EMPTY_SET = b"\x3a\x30\x00\x00\x00\x00\x00\x00"
"""The empty set as a Roaring bitmap, in its portable format."""


def to_dict(state: JobState, draws: Draws | None, *, of_dataset: bool) -> dict[str, Any]:
    """Returns a state that can be written as JSON.

    Args:
        draws: the draws with replacement of the job. The state is valid for equal ones only.
        of_dataset: whether ids are those of the dataset that the loader has a part of.
    """
    result: dict[str, Any] = {
        "version": STATE_VERSION,
        "epoch": state["epoch"],
        "delivered": base64.b64encode(state["delivered"]).decode(),
        "seed": state["seed"],
        "samples": state["samples"],
        "all_ranks": state["all_ranks"],
    }
    if draws is not None:
        result["draws"] = draws.identity
    if of_dataset:
        result["numbering"] = _OF_DATASET
    if state["order"] is not None:
        result["order"] = base64.b64encode(state["order"]).decode()
    if state["carried"]:
        result["carried"] = [[epoch, before, base64.b64encode(ids).decode()] for epoch, before, ids in state["carried"]]
    return result


def from_dict(state: dict[str, Any], *, seed: int | None, draws: Draws | None, has_own_order: bool) -> ResumeFrom:
    """Returns the state that :func:`to_dict` has written, for a loader that can go on with it.

    Args:
        seed: the seed that the loader was given, or ``None``.
        draws: the loader's draws with replacement, or ``None``.
        has_own_order: whether the loader has a sampler of its own, which proposes the order of each epoch.

    Raises:
        ValueError: the state is of another version, or the loader cannot go on with it.
    """
    if state.get("version") not in (1, STATE_VERSION):
        raise ValueError(f"not a state of this version of coprep: version {state.get('version')!r}")
    if seed is not None and seed != state["seed"]:
        raise ValueError(f"the state was taken with seed {state['seed']}, and this loader has seed {seed}")
    if state.get("draws") != (draws and draws.identity):
        raise ValueError(
            "the state was taken of other draws than this loader's: give the sampler the weights and num_samples "
            "that it had, or leave it out if there was none"
        )
    delivered, order = _ids_given(state["delivered"]), state.get("order")
    # A state with no ids is the beginning of an epoch, which has no order yet.
    if delivered != EMPTY_SET and (order is not None) != has_own_order:
        raise ValueError(
            "the state was taken with another kind of sampler: a sampler of its own in a cohort goes on with the "
            "same only"
        )
    order = None if order is None else _decoded("order", order)
    # Absent if the epoch does not continue another one, and in the states of older versions.
    carried = [(epoch, before, _decoded("carried", ids)) for epoch, before, ids in state.get("carried", ())]
    of_dataset = bool(state.get("numbering") == _OF_DATASET)
    return ResumeFrom(state["epoch"], delivered, state["seed"], state["samples"], order, carried, of_dataset)


def _ids_given(delivered: bytes | str) -> bytes:
    """Returns the bitmap of a state's ids, which is text since version 2."""
    return delivered if isinstance(delivered, bytes) else _decoded("delivered", delivered)


def _decoded(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"not a state of a loader: {key!r} is damaged") from None
