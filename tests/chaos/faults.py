"""Carries out the faults of a plan: signals to processes, changes of files, and limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import data as datasets
from tests.chaos.jobs import Room
from tests.chaos.plan import RUNTIME_BYTES, SHM_BYTES, Fault, Plan

CGROUPS = Path("/sys/fs/cgroup/memory")
"""Folder of the memory control groups, if they are of version 1."""
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x20000
_MS_PRIVATE_ALL = (1 << 18) | (1 << 14)
_LIBC = ctypes.CDLL(None, use_errno=True)


# --- processes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    state: str
    command: str
    session: int = 0

    @property
    def is_zombie(self) -> bool:
        return self.state == "Z"


def adopt() -> None:
    """Makes this process the parent of all its descendants that become orphans from now on."""
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def read(pid: int) -> Process | None:
    """Returns the present state of a process, or ``None`` if there is no such process."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        state, parent, _, session = text.rsplit(")", 1)[1].split()[:4]
        return Process(pid, int(parent), state, text[text.index("(") + 1 : text.rindex(")")], int(session))
    return None


def descendants(of: int) -> list[Process]:
    """Returns the processes below this one, parents first."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := read(int(name))):
            children.setdefault(process.parent, []).append(process)

    def below(pid: int) -> Iterator[Process]:
        for child in children.get(pid, ()):
            yield child
            yield from below(child.pid)

    return list(below(of))


def targets(below: list[Process], target: str) -> list[int]:
    """Returns the ids of the living processes of a kind.

    Args:
        below: all processes of the history.
        target: ``coordinator``, ``fork_server``, ``worker``, or ``giver``: a job that a fork server was forked from.
    """
    alive = [p for p in below if not p.is_zombie]
    coordinators = {p.pid for p in alive if p.command == "coprep"}
    if target == "coordinator":
        return sorted(coordinators)
    # A fork server has a session of its own. So has a coordinator, until it runs its program and has that name.
    fork_servers = [p for p in alive if p.session == p.pid and p.command != "coprep"]
    if target == "giver":
        return sorted({p.parent for p in fork_servers})
    servers = {p.pid for p in fork_servers}
    return sorted({p.pid for p in alive if p.parent in servers} if target == "worker" else servers)


def send(pid: int, number: signal.Signals) -> bool:
    """Sends a signal. Returns ``False`` if the process is not there any more."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def descriptors(pid: int) -> Counter[str]:
    """Counts the descriptors of a process by the name of their file, with all numbers in it replaced by ``N``."""
    found: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found[re.sub(r"\d+", "N", os.readlink(path))] += 1
    return found


def stacks(pid: int) -> str:
    """Returns the wait channel, system call and kernel stack of each thread, as far as the kernel tells them."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            name, wait = (task / "comm").read_text().strip(), (task / "wchan").read_text().strip()
            call = (task / "syscall").read_text().split()[:3]
            lines.append(f"  thread {task.name} {name}: {wait}, system call {' '.join(call)}")
            with contextlib.suppress(OSError):
                lines += [f"    {line}" for line in (task / "stack").read_text().splitlines()[:6]]
    return "\n".join(lines)


# --- a history's own machine ---------------------------------------------------------------------------------


class Unable(Exception):
    """Raised when this machine lacks something that a history needs. The message names it."""


def import_torch() -> None:
    """Imports PyTorch.

    Raises:
        Unable: it is not installed.
    """
    try:
        import torch.utils.data  # noqa: F401
    except ModuleNotFoundError as error:
        raise Unable("PyTorch is not installed") from error


def isolate(plan: Plan, runtime: Path) -> bool:
    """Gives this process, and all it starts, a ``/dev/shm`` of its own, and a small runtime directory if planned.

    Returns:
        ``False`` if the rights for it are missing and the plan can do without.

    Raises:
        Unable: the rights are missing, and the plan needs a small file system.
    """
    try:
        _check(_LIBC.unshare(_CLONE_NEWNS), "unshare")
        _check(_LIBC.mount(None, b"/", None, _MS_PRIVATE_ALL, None), "mount")
        # Even a roomy one is the history's own, so that anything left in it is a leak of this history.
        _mount(Path("/dev/shm"), SHM_BYTES if plan.small_shm else 1 << 30)
        if plan.small_disk:
            _mount(runtime, RUNTIME_BYTES)
    except OSError as error:
        if plan.small_disk or plan.small_shm:
            raise Unable(f"no mount namespace: {error}") from error
        return False
    return True


def _mount(folder: Path, size: int) -> None:
    options = f"size={size},mode=0700".encode()
    _check(_LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options), f"mount {folder}")


class MemoryLimit:
    """A memory control group. The kernel kills its members when they need more than its limit.

    Raises:
        Unable: the group cannot be made.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.path = CGROUPS / f"coprep-{name}"
        try:
            self.path.mkdir()
            (self.path / "memory.limit_in_bytes").write_text(str(limit))
        except OSError as error:
            raise Unable(f"no control group of memory: {error}") from error

    def join(self) -> None:
        """Makes this process a member, and with it all processes that it starts later."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self) -> int:
        """Returns the number of processes that were killed because of the limit."""
        text = (self.path / "memory.oom_control").read_text()
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)

    def remove(self) -> None:
        # A group that still has members cannot be removed, which must not cost the history its result.
        with contextlib.suppress(OSError):
            self.path.rmdir()


def limit_descriptors(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


# --- files ---------------------------------------------------------------------------------------------------


def copy_files(plan: Plan, room: Room) -> None:
    """Makes the history's own list of files. It copies the files that will be changed, and links the others."""
    if room.copy is None:
        return
    room.copy.mkdir()
    changed = {i for fault in plan.faults if fault.kind == "files" for i in fault.ids}
    for i in range(max(data.samples for data in plan.datas)):
        source, target = room.images / "list" / f"{i:04}.jpg", room.file(i)
        if i in changed:
            shutil.copy(source, target)
        else:
            os.link(source, target)


def change_files(fault: Fault, room: Room) -> None:
    for i in fault.ids:
        _change(room.file(i), i, fault.target)


def _change(path: Path, i: int, what: str) -> None:
    if what == "cut_in_place":
        # Without a rename, a process that has the file open sees it shrink.
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
        return
    new = path.with_suffix(".new")
    if what in ("cut", "emptied", "grown"):
        content = path.read_bytes() if path.is_file() else b""
        new.write_bytes({"cut": content[: len(content) // 2], "emptied": b"", "grown": content + bytes(500_000)}[what])
    elif what == "changed":
        datasets.write_image(f"{new}.jpg", i, version=1)
        Path(f"{new}.jpg").rename(new)
    elif what == "dangling":
        new.symlink_to("nowhere")
    elif what == "zero":
        new.symlink_to("/dev/zero")
    elif what == "fifo":
        os.mkfifo(new)
    if what in ("removed", "folder"):
        _remove(path)
        if what == "folder":
            path.mkdir()
    else:
        if path.is_dir() and not path.is_symlink():
            _remove(path)
        new.rename(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def fill(folder: Path) -> None:
    """Fills the file system of a folder."""
    # The error of a write to the full disk ends the loop.
    with contextlib.suppress(OSError), open(folder / "filling", "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


# --- the coordinator that the runner starts ------------------------------------------------------------------


def serve(plan: Plan, command: str, log: Path, limits: MemoryLimit | None) -> subprocess.Popen[bytes]:
    """Starts ``coprep serve``, whose settings are in the environment."""
    reader = -1
    if plan.log == "closed":
        # This process closes both ends below. Then nobody reads, and each write of the coordinator fails.
        reader, target = os.pipe()
    else:
        target = os.open("/dev/full" if plan.log == "full" else log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def enter() -> None:
        if plan.descriptors:
            limit_descriptors(plan.descriptors)
        if limits is not None:
            limits.join()

    server = subprocess.Popen(
        [command, "serve", "--idle", "1" if plan.ending == "idle" else "60"],
        stdin=subprocess.DEVNULL,
        stdout=target,
        stderr=target,
        preexec_fn=enter,
    )
    for file in {reader, target} - {-1}:
        os.close(file)
    return server
