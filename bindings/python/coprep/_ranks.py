"""The rank of this process within its job, as its arguments, ``torch.distributed`` or its launcher say."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "HOROVOD_SIZE")
"""Variables in which launchers say how many processes they have started."""


class RankId(NamedTuple):
    """The rank of this process within its job."""

    rank: int
    world_size: int
    group: str
    """Name that the ranks of this job have in common and no other job has."""


class GivenRank(NamedTuple):
    """The rank of this process as far as the user gave it."""

    rank: int | None
    world_size: int | None
    group: str | None

    def resolve(self) -> RankId:
        """Returns the rank as given, or as ``torch.distributed`` or else the launcher's environment sets it.

        Raises:
            ValueError: the ranks are on several nodes.
        """
        rank, world_size = self.rank, self.world_size
        if rank is None or world_size is None:
            rank, world_size = _found()
        return RankId(rank, world_size, _launch() if self.group is None else self.group)

    def has_others(self) -> bool:
        """Returns whether the job of this process has other ranks, on whatever nodes."""
        try:
            return self.resolve().world_size > 1
        except ValueError:
            # Only ranks on several nodes are refused, so there are others.
            return True


def may_be_one_of_several() -> bool:
    """Returns whether this process was started with others, so that a rank which its code names may be its own."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    is_child = multiprocessing is not None and multiprocessing.parent_process() is not None
    return is_child or _has_process_group() or any(os.environ.get(name, "1") != "1" for name in _SIZES)


def _has_process_group() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


def _found() -> tuple[int, int]:
    env = os.environ
    if _has_process_group():
        torch = sys.modules["torch"]
        found = torch.distributed.get_rank(), torch.distributed.get_world_size()
    elif "RANK" in env and "WORLD_SIZE" in env:
        found = int(env["RANK"]), int(env["WORLD_SIZE"])
    else:
        return 0, 1
    local = int(env.get("LOCAL_WORLD_SIZE", found[1]))
    if local != found[1]:
        raise ValueError(
            f"this job has {found[1]} ranks, {local} of them on this node: ranks share a loader within a node only. "
            "Give each node its part of the samples (subset=) and the ranks of the node (rank=, world_size=)"
        )
    return found


def _launch() -> str:
    """Returns a name that all processes of one launch share."""
    env = os.environ
    for variable in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE"):
        if env.get(variable, "none") != "none":
            return f"{variable}={env[variable]}"
    if "MASTER_PORT" in env:
        return f"{env.get('MASTER_ADDR', '')}:{env['MASTER_PORT']}"
    # Ranks that were started by hand may have different parents.
    return _agreed() or f"parent={os.getppid()}"


def _agreed() -> str | None:
    """Returns a name on which the ranks of ``torch.distributed`` agree, or ``None`` if they cannot agree."""
    if not _has_process_group():
        return None
    torch = sys.modules["torch"]
    try:
        store = torch.distributed.distributed_c10d._get_default_store()
        # The first rank to come sets the name, and later ones receive it. No rank waits for another.
        return f"store={store.compare_set('coprep/group', '', os.urandom(16).hex()).decode()}"
    except (AttributeError, RuntimeError):
        # This version of PyTorch, or this kind of store, does not offer it.
        return None
