"""The rank of this process within its job, as its arguments, ``torch.distributed`` or its launcher say."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "HOROVOD_SIZE")
"""Variables in which launchers say how many processes they have started."""

_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets in each rank."""
_OF_A_LAUNCH = (
    _OF_TORCHRUN,
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
)
"""Variables that the ranks of a launch have in common. None of them alone tells it from all others: by default, the run
id of torchrun is "none"."""


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
        return RankId(rank, world_size, self._group())

    def _group(self) -> str:
        """Returns the name that the ranks of this job have in common.

        Two launches may give the same name, so it is that of the launch as well where a launcher says it. Ranks that
        were started one by one have only the name.
        """
        if self.group is None:
            return _launch()
        return " ".join([self.group, *([agreed] if (agreed := _agreed()) else _said_by_launchers())])

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
    return is_child or _has_process_group() or any(os.environ.get(name) not in (None, "", "1") for name in _SIZES)


def _has_process_group() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


def _found() -> tuple[int, int]:
    env = os.environ
    if _has_process_group():
        torch = sys.modules["torch"]
        found = torch.distributed.get_rank(), torch.distributed.get_world_size()
    elif env.get("RANK") and env.get("WORLD_SIZE"):
        found = int(env["RANK"]), int(env["WORLD_SIZE"])
    else:
        return 0, 1
    local = int(env.get("LOCAL_WORLD_SIZE") or found[1])
    if local != found[1]:
        raise ValueError(
            f"this job has {found[1]} ranks, {local} of them on this node: ranks share a loader within a node only. "
            "Give each node its part of the samples (subset=) and the ranks of the node (rank=, world_size=)"
        )
    return found


def _launch() -> str:
    """Returns a name that all processes of one launch on this node share, and those of no other launch."""
    agreed = _agreed()
    if agreed is not None:
        return agreed
    said = _said_by_launchers()
    # Ranks that were started by hand may have different parents, so these are looked at only if nothing else is known.
    return " ".join(said) or f"parent={_process(os.getppid())}"


def _said_by_launchers() -> list[str]:
    """Returns the facts that launchers tell of a launch. Two launches may share some of them, but not all."""
    env = os.environ
    said = [f"{name}={env[name]}" for name in _OF_A_LAUNCH if name in env]
    if _OF_TORCHRUN in env:
        # By default, torchrun sets the same variables each time, and ranks of an earlier one may not have ended yet.
        said.append(f"agent={_process(_agent())}")
    # Several launches may run in one allocation, one after another or at once.
    return [] if all(text.startswith("SLURM_JOB_ID=") for text in said) else said


def _agent() -> int:
    """Returns torchrun's agent, which has started the ranks: the first ancestor that is no rank."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if not any(variable.startswith(f"{_OF_TORCHRUN}=".encode()) for variable in variables):
                return pid
            pid = int(_stat(pid)[1])
        except (OSError, IndexError):
            # It has just ended, or belongs to another user.
            break
    return pid


def _process(pid: int) -> str:
    """Returns the name of a process, which no later one has."""
    try:
        return f"{pid}@{_stat(pid)[19]}"
    except (OSError, IndexError):
        return str(pid)


def _stat(pid: int) -> list[str]:
    """Returns the fields of ``/proc/PID/stat`` from the third on, the process's state (proc_pid_stat(5))."""
    with open(f"/proc/{pid}/stat") as file:
        # The second field is the program's name in parentheses, which may have spaces and parentheses.
        return file.read().rpartition(")")[2].split()


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
