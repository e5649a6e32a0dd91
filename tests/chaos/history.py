"""Runs one history: starts its jobs, carries out its faults, waits for the end, and calls all checks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coprep

from tests.chaos import checks, faults, jobs
from tests.chaos.checks import Finding
from tests.chaos.keys import Keys
from tests.chaos.plan import NEW_KEYS, At, Fault, Plan
from tests.chaos.store import BREAKING, PROGRAM, Store

TICK_S = 0.004
"""Seconds between two looks at the schedule."""
SETTLE_S = 10.0
"""Seconds to wait for a condition. If it does not hold by then, it never will."""
PROBES = 5
"""Number of jobs that attach and leave between two counts of the coordinator's descriptors."""


@dataclass(frozen=True)
class Settings:
    """Settings that all histories of a campaign have in common."""

    images: Path
    out: Path
    """Folder with a folder for each history, which stays if there is a finding."""
    runtime: Path
    """Folder with a folder for each history's socket. Its path must be short, since that of a socket is limited."""
    command: str
    """Path of the ``coprep`` program."""
    timeout: float = 15.0
    """Seconds that a loader waits for a batch."""
    deadline: float = 120.0
    """Seconds within which a history must end."""
    verbose: bool = False
    has_failpoints: bool = False
    """``True`` if the command was built with failpoints."""
    object_server: str = ""
    """Path of the program of the object store, or ``""`` if it is not built."""


@dataclass
class Result:
    seed: int
    findings: list[Finding] = field(default_factory=list)
    skipped: str = ""
    """The reason why the history could not be run here, or ``""``."""
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    """Numbers of the faults that met a process or a file, by kind and target."""
    batches: int = 0
    reconnects: int = 0
    is_isolated: bool = True

    def dumps(self) -> str:
        return json.dumps({**vars(self), "findings": [vars(one) for one in self.findings]})

    @staticmethod
    def loads(text: str) -> Result:
        raw = json.loads(text)
        return Result(
            **{**raw, "findings": [Finding(**one) for one in raw["findings"]], "fired": Counter(raw["fired"])}
        )


@dataclass(frozen=True)
class Later:
    """An action that is planned for a moment of the history."""

    moment: float
    """Seconds since the history began."""
    action: Callable[[], object]
    is_owed: bool = False
    """``True`` if the action is carried out even if the history ends before its moment."""


@dataclass
class Running:
    """A process of a job."""

    part: jobs.Part
    pid: int
    status: int | None = None
    """Exit code from ``os.waitstatus_to_exitcode``, or ``None`` while the process runs."""


class History:
    """One history, run in a process of its own."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.plan, self.settings = plan, settings
        self.result = Result(plan.seed)
        self.out = settings.out / str(plan.seed)
        self.runtime = settings.runtime / str(plan.seed)
        self.runtime.mkdir(mode=0o700)
        self.socket = self.runtime / "s"
        self.server_log = self.out / "coordinator.log"
        self.panicking = self.out / "panicking"
        """Folder in which each coordinator that may panic leaves a file, so that only the first few panic."""
        has_changes = any(fault.kind == "files" for fault in plan.faults)
        self.room = jobs.Room(self.out, settings.images, self.out / "files" if has_changes else None, settings.timeout)
        self.began = time.monotonic()
        self.processes: list[Running] = []
        self.to_start: list[tuple[float, int, int]] = [(job.start_s, n, 0) for n, job in enumerate(plan.jobs)]
        """Starts to come: the moment, the number of the job, and the number of its run, from 0."""
        self.later: list[Later] = []
        self.waiting: list[Fault] = []
        """Faults that wait for an event."""
        self.points: tuple[int, int] = (-1, -1)
        """The pipe on which jobs report their batches."""
        self.killed: set[int] = set()
        """Ids of processes that a fault or the runner has killed."""
        self.cut: set[int] = set()
        """Numbers of jobs that were killed and are not started again."""
        self.ended: list[tuple[int, str, int]] = []
        """Id, name and exit code of the processes that ended and were not jobs."""
        self.limit: faults.MemoryLimit | None = None
        self.store: Store | None = None
        self.barriers: list[object] = []
        """Barriers of all jobs. They are kept, since the memory of a dropped one would be reused for the next one while
        ranks still wait at it.
        """
        self.panics: set[str] = set()
        """Texts of the panics in the logs of coordinators."""

    # Reporting.

    def now(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        line = f"{self.now():7.3f} {text}"
        with open(self.out / "history.txt", "a") as file:
            print(line, file=file)
        if self.settings.verbose:
            print(line, flush=True)

    def find(self, *found: Finding) -> None:
        for one in found:
            self.say(f"FINDING {one.kind}: {one.text}")
        self.result.findings += found

    # The course of a history.

    def run(self) -> Result:
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        (self.out / "plan.json").write_text(self.plan.dumps())
        try:
            self._prepare()
            self._play()
            self._check_jobs()
            self._check_machine()
        except faults.Unable as error:
            self.result.skipped = str(error)
        finally:
            self._clear()
        self.result.seconds = self.now()
        return self.result

    def _prepare(self) -> None:
        plan = self.plan
        if plan.failpoints and not self.settings.has_failpoints:
            raise faults.Unable("the command was built without failpoints")
        if plan.is_remote and not self.settings.object_server:
            raise faults.Unable(f"{PROGRAM} is not built")
        if any(data.is_iterable for data in plan.datas):
            # Imported here once, so that the jobs, which are forked, need not import it each.
            faults.import_torch()
        if plan.failpoints:
            self.panicking.mkdir()
        faults.adopt()
        self.result.is_isolated = faults.isolate(plan, self.runtime)
        if plan.memory:
            self.limit = faults.MemoryLimit(f"{os.getpid()}-{plan.seed}", plan.memory)
        faults.copy_files(plan, self.room)
        if plan.is_remote:
            keys = Keys(self.room.keys, len(plan.jobs)) if plan.keys_s else None
            self.store = Store(self.settings.object_server, self.settings.images, keys)
        os.environ |= self._environment()
        # A job must not wait for the runner, so it drops its report if the pipe is full.
        self.points = os.pipe2(os.O_NONBLOCK)
        if plan.served:
            faults.serve(plan, self.settings.command, self.server_log, self.limit)
            self._until(self.socket.exists)
        self.began = time.monotonic()
        for fault in plan.faults:
            if fault.at.event == "start":
                self.later.append(Later(fault.at.seconds, functools.partial(self._fire, fault)))
            else:
                self.waiting.append(fault)

    def _environment(self) -> dict[str, str]:
        plan = self.plan
        chosen = {
            "COPREP_SOCKET": str(self.socket),
            "COPREP_BIN": self.settings.command,
            "COPREP_STAGING": plan.staging,
            "COPREP_CACHE": plan.cache,
            "COPREP_WORKERS": str(plan.pool),
            "COPREP_IDLE": "1" if plan.ending == "idle" else "60",
            "COPREP_CACHE_FORM": plan.cache_form,
            "COPREP_CACHE_NAME": f"chaos-{plan.seed}" if plan.cache_name else None,
            # The indexes of shards are kept here.
            "XDG_CACHE_HOME": str(self.out / "indexes") if plan.is_remote else None,
            "COPREP_DISK_CACHE": str(self.out / "disk") if plan.disk else None,
            "COPREP_DISK_BYTES": "4M" if plan.disk else None,
            "FAILPOINTS": plan.failpoints or None,
            "FAILPOINTS_FOLDER": str(self.panicking) if plan.failpoints else None,
        }
        if self.store is not None:
            chosen |= self.store.environment()
        return {name: value for name, value in chosen.items() if value is not None}

    def _play(self) -> None:
        """Runs the jobs and faults until every job has ended, or until the deadline."""
        while self.to_start or any(one.status is None for one in self.processes):
            if self.now() > self.settings.deadline:
                self._give_up()
                return
            self._start_due()
            self._fire_due()
            # This is the loop's pause. It ends early when a job reports a batch.
            self._hear(TICK_S)
            self._reap()
            self._wake()
        # Processes that are still stopped go on, so that they can end.
        for one in self.later:
            if one.is_owed:
                one.action()

    def _wake(self) -> None:
        """Wakes the jobs that sleep when no other jobs are left."""
        left = [one.part.job for one in self.processes if one.status is None] + [job for _, job, _ in self.to_start]
        if all(self.plan.jobs[job].sleep for job in left):
            self.room.wake.touch()

    def _start_due(self) -> None:
        for entry in list(self.to_start):
            moment, job, attempt = entry
            if self.now() >= moment:
                self.to_start.remove(entry)
                self._start(job, attempt)

    def _start(self, job: int, attempt: int) -> None:
        ranks = self.plan.jobs[job].ranks
        meets = self.plan.jobs[job].barrier and ranks > 1
        barrier = multiprocessing.get_context("fork").Barrier(ranks) if meets else None
        self.barriers.append(barrier)
        for rank in range(ranks):
            part = jobs.Part(job, rank, attempt)
            pid = os.fork()
            if pid == 0:
                self._become(part, barrier)
            self.processes.append(Running(part, pid))
        self.say(f"job {job} starts, run {attempt}")

    def _become(self, part: jobs.Part, barrier: Any) -> None:
        """Turns this process, a child that was forked for it, into a process of a job."""
        try:
            os.close(self.points[0])
            if self.limit is not None:
                self.limit.join()
            if self.plan.descriptors:
                faults.limit_descriptors(self.plan.descriptors)
            # A job that no fault waits for reports nothing, so that the pipe does not fill.
            is_awaited = any(f.at.event == "batch" and f.at.job == part.job for f in self.plan.faults)
            jobs.main(self.plan, part, self.room, self.points[1] if is_awaited else None, barrier)
        finally:
            os._exit(jobs.CRASHED)

    # Faults.

    def _fire_due(self) -> None:
        now = self.now()
        due = [one for one in self.later if now >= one.moment]
        self.later = [one for one in self.later if now < one.moment]
        for one in due:
            one.action()
        awaited = [fault for fault in self.waiting if fault.at.event == "appears"]
        if awaited:
            below = faults.descendants(os.getpid())
            for fault in awaited:
                if faults.targets(below, fault.target.removesuffix("_and_server")):
                    self._schedule(fault)

    def _schedule(self, fault: Fault) -> None:
        self.waiting.remove(fault)
        if fault.at.seconds == 0:
            self._fire(fault)
        else:
            self.later.append(Later(self.now() + fault.at.seconds, functools.partial(self._fire, fault)))

    def _hear(self, seconds: float) -> None:
        """Waits for a job to come to a point that a fault waits for."""
        if not select.select([self.points[0]], [], [], seconds)[0]:
            return
        with contextlib.suppress(BlockingIOError):
            for job, _, epoch, batch in jobs.POINT.iter_unpack(os.read(self.points[0], jobs.POINT.size * 256)):
                here = At("batch", 0.0, job, epoch, batch)
                for fault in list(self.waiting):
                    if dataclasses.replace(fault.at, seconds=0.0) == here:
                        self._schedule(fault)

    def _fire(self, fault: Fault) -> None:
        if fault.kind == "files":
            faults.change_files(fault, self.room)
            self._fired(fault, f"{len(fault.ids)} files")
        elif fault.kind == "fill":
            faults.fill(self.runtime)
            self._fired(fault, "the runtime directory")
        elif fault.kind in ("store", "objects"):
            self._fire_at_store(fault)
        elif fault.target == "job":
            self._fire_at_job(fault, fault.which)
        elif fault.target.startswith("giver"):
            self._fire_at_giver(fault)
        else:
            found = faults.targets(faults.descendants(os.getpid()), fault.target)
            if found:
                self._signal(fault, found[fault.which % len(found)])

    def _fire_at_store(self, fault: Fault) -> None:
        """Makes the store fail for a time, or changes its objects. One that fails already is left alone."""
        store = self.store
        if store is None or not store.is_running:
            return
        if fault.kind == "objects":
            store.change(self.plan.datas[fault.data], fault)
            self._fired(fault, f"{len(fault.ids)} objects")
            return
        ends: Callable[[], object] = store.fail
        if fault.target == "kill":
            self.killed.add(store.pid)
            store.kill()
            ends = store.start
        elif fault.target == "stop":
            store.stop()
            ends = store.go_on
        elif fault.target == "refuse":
            store.fail(refuse="503 SlowDown")
        elif fault.target == NEW_KEYS:
            store.take_new_keys()
            ends = store.refuse_old_keys
        else:
            store.fail(**BREAKING, seed=self.plan.seed)
        self._fired(fault, f"for {fault.seconds} s")
        # Jobs that end later need the store again.
        self.later.append(Later(self.now() + fault.seconds, ends, is_owed=True))

    def _fire_at_giver(self, fault: Fault) -> None:
        """Signals a job that a fork server was forked from, and the fork server too if the plan says so."""
        below = faults.descendants(os.getpid())
        givers = set(faults.targets(below, "giver"))
        found = [one for one in self.processes if one.pid in givers and one.status is None]
        if not found:
            return
        giver = found[fault.which % len(found)]
        if fault.target == "giver_and_server":
            servers = set(faults.targets(below, "fork_server"))
            for process in below:
                if process.parent == giver.pid and process.pid in servers:
                    self._signal(fault, process.pid)
        self._fire_at_job(fault, giver.part.job)

    def _fire_at_job(self, fault: Fault, number: int) -> None:
        alive = [one for one in self.processes if one.part.job == number and one.status is None]
        if not alive:
            return
        if fault.kind == "stop":
            self._signal(fault, alive[0].pid)
            return
        # A kill meets all ranks, since a launcher ends the others when one has died.
        for one in alive:
            self._signal(fault, one.pid)
        # If an earlier kill has planned a start already, one start is enough.
        if any(job == number for _, job, _ in self.to_start):
            return
        if fault.again:
            self.to_start.append((self.now() + fault.again, number, alive[0].part.attempt + 1))
        else:
            self.cut.add(number)

    def _signal(self, fault: Fault, pid: int) -> None:
        if fault.kind == "kill":
            self.killed.add(pid)
            self._look_at_log()
            if faults.send(pid, signal.SIGKILL):
                self._fired(fault, str(pid))
            return
        if faults.send(pid, signal.SIGSTOP):
            self._fired(fault, f"{pid} for {fault.seconds} s")
            go_on = functools.partial(faults.send, pid, signal.SIGCONT)
            self.later.append(Later(self.now() + fault.seconds, go_on, is_owed=True))

    def _fired(self, fault: Fault, what: str) -> None:
        self.result.fired[f"{fault.kind} {fault.target}".strip()] += 1
        self.say(f"{fault.kind} {fault.target}: {what}")

    # Ends of processes.

    def _reap(self) -> None:
        while True:
            try:
                # The process stays a zombie until its name has been read.
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            process = faults.read(dead.si_pid)
            status = os.waitstatus_to_exitcode(os.waitpid(dead.si_pid, 0)[1])
            self._ended(dead.si_pid, process.command if process else "?", status)

    def _ended(self, pid: int, command: str, status: int) -> None:
        one = next((one for one in self.processes if one.pid == pid), None)
        if one is None:
            self.ended.append((pid, command, status))
            self.say(f"{command} {pid} ended: {status}")
            return
        one.status = status
        self.say(f"job {one.part.job} rank {one.part.rank} ended: {status}")
        run = [p for p in self.processes if (p.part.job, p.part.attempt) == (one.part.job, one.part.attempt)]
        if all(p.status == jobs.PAUSED for p in run):
            self.to_start.append((self.now(), one.part.job, one.part.attempt + 1))
        if status < 0 and pid not in self.killed:
            self._end_ranks(run)

    def _end_ranks(self, run: list[Running]) -> None:
        """Kills the other ranks of a run, as a launcher does when one has died, for example by the memory limit."""
        for one in run:
            if one.status is None:
                self.killed.add(one.pid)
                faults.send(one.pid, signal.SIGKILL)

    def _give_up(self) -> None:
        """Reports the processes that still run at the deadline, with stacks and status, and kills them."""
        waiting = [one for one in self.processes if one.status is None]
        names = ", ".join(f"job {one.part.job} rank {one.part.rank}" for one in waiting)
        self.find(Finding("hang", f"after {self.settings.deadline:.0f} s still running: {names}"))
        below = faults.descendants(os.getpid())
        for one in waiting:
            # SIGUSR1 asks for the stacks, which a stopped process could not print.
            faults.send(one.pid, signal.SIGCONT)
            faults.send(one.pid, signal.SIGUSR1)
        with open(self.out / "stacks.txt", "w") as file:
            for process in below:
                print(process, faults.stacks(process.pid), sep="\n", file=file)
        status = [self.settings.command, "--socket", str(self.socket), "status", "--json"]
        # The coordinator may hang as well, and then it has no status to tell.
        with open(self.out / "status.json", "w") as file, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(status, stdout=file, stderr=file, timeout=5)
        # The jobs print their stacks before they are killed, for which this is ample.
        time.sleep(0.2)
        self.to_start.clear()
        for one in waiting:
            self.killed.add(one.pid)
            faults.send(one.pid, signal.SIGKILL)
        self._until(lambda: all(one.status is not None for one in self.processes))

    def _until(self, holds: Callable[[], bool], seconds: float = SETTLE_S) -> bool:
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(TICK_S)
            self._reap()
        return True

    # Checks.

    def _ranks(self, job: int) -> list[checks.Rank]:
        ranks = []
        for rank in range(self.plan.jobs[job].ranks):
            # In the order in which they were started, which is that of their attempts.
            processes = (one for one in self.processes if (one.part.job, one.part.rank) == (job, rank))
            logs = [log for log in map(self._log, processes) if log is not None]
            malformed = [line for log in logs for line in log.malformed]
            ranks.append(checks.read_rank([log.records for log in logs], malformed))
        return ranks

    def _log(self, process: Running) -> checks.Log | None:
        """Reads the log of a process, or returns ``None`` if the process ended before it had one."""
        path = self.room.log(process.part.job, process.part.rank, process.part.attempt)
        if not path.exists():
            return None
        return checks.parse(path.read_text(errors="replace"), is_killed=(process.status or 0) < 0)

    def _check_jobs(self) -> None:
        is_given_up = any(one.kind == "hang" for one in self.result.findings)
        said = [self._ranks(job) for job in range(len(self.plan.jobs))]
        # The kernel killed these for want of memory. Nobody starts them again.
        short = {
            one.part.job for one in self.processes if one.pid not in self.killed and self._may_be_killed(one.status)
        }
        for job, ranks in enumerate(said):
            dead = [one for one in self.processes if one.part.job == job and (one.status or 0) < 0]
            unexpected = [one for one in dead if one.pid not in self.killed and not self._may_be_killed(one.status)]
            self.find(*(Finding("job died", f"job {job}: signal {-(one.status or 0)}") for one in unexpected))
            is_cut = job in self.cut or is_given_up or bool(dead)
            others = [n for n, one in enumerate(self.plan.jobs) if one.cohort and n != job]
            gone = any(said[n][0].crash or n in self.cut or n in short for n in others)
            is_alone = bool(self.plan.jobs[job].cohort) and gone
            self.find(*checks.check_job(self.plan, job, ranks, is_cut, is_alone))
            self.result.batches += sum(len(p.batches) for r in ranks for passes in r.passes.values() for p in passes)
        self.find(*checks.check_cohort(self.plan, said))

    def _may_be_killed(self, status: int | None) -> bool:
        return status == -signal.SIGKILL and self.plan.is_short_of_memory

    def _look_at_log(self) -> None:
        """Reads the coordinator's log for panics and copies it.

        This has to happen before the coordinator ends, since the log goes with it or is begun anew by the next one.
        """
        for path in (self.runtime / "s.log", self.server_log):
            with contextlib.suppress(OSError):
                text = path.read_text(errors="replace")
                self.panics |= {one.text for one in checks.check_logs(self.plan, path.name, text)}
                if path.name == "s.log":
                    (self.out / f"coordinator-{len(self.killed)}.log").write_text(text)

    def _zombies(self) -> list[faults.Process]:
        """Returns the zombies of other parents. This process reaps its own."""
        return [p for p in faults.descendants(os.getpid()) if p.is_zombie and p.parent != os.getpid()]

    def _check_machine(self) -> None:
        # A job that was killed may have left a process that is just about to run the coordinator's program. Until then
        # it has another name, and would not be told to end. If it never gets so far, it is a process that is left.
        self._until(lambda: not self._orphans(), 5)
        coordinators = self._coordinators()
        if coordinators and self._find_idle():
            self._probe(coordinators[-1])
            # A panic in the probe may have ended the coordinator, and then there is another one.
            coordinators = self._coordinators()
        self._look_at_log()
        # A zombie whose parent is just being killed is reaped as soon as the parent has ended.
        if not self._until(lambda: not self._zombies(), 5):
            self.find(*checks.check_left("zombie", map(str, self._zombies())))
        self._end(coordinators)
        if self.store is not None:
            self.store.end()
        self.find(*(Finding("panic", text) for text in sorted(self.panics)))
        self._check_ends()
        is_gone = self._until(lambda: not faults.descendants(os.getpid()), 5)
        if not is_gone:
            self.find(*checks.check_left("process", (f"{p.command} ({p})" for p in faults.descendants(os.getpid()))))
        # A coordinator that was killed could not remove its files.
        if coordinators and coordinators[-1] not in self.killed:
            self.find(*checks.check_left("file", {p.name for p in self.runtime.iterdir()} - self._may_stay()))
        if self.result.is_isolated:
            self.find(*checks.check_left("/dev/shm entry", self._shared()))
        if self.limit is not None and not self.plan.is_short_of_memory and self.limit.kills():
            self.find(Finding("memory without bound", f"{self.limit.kills()} killed at {self.plan.memory >> 20} MiB"))

    def _may_stay(self) -> set[str]:
        may_stay = {"filling"}
        if self.plan.ending == "term" or self.plan.failpoints:
            # After a signal or a panic the coordinator leaves its log, which may tell why it was slow to end or died.
            may_stay.add("s.log")
        if any(one.pid in self.killed or self._may_be_killed(one.status) for one in self.processes):
            # A job leaves this file if it is killed while it starts a coordinator. The next job that starts one
            # removes the file.
            may_stay.add("s.starting")
        return may_stay

    def _orphans(self) -> list[faults.Process]:
        """Returns the processes whose parent has ended, besides coordinators."""
        jobs = {one.pid for one in self.processes} | {self.store.pid if self.store is not None else 0}
        return [
            p
            for p in faults.descendants(os.getpid())
            if p.parent == os.getpid() and p.pid not in jobs and p.command != "coprep" and not p.is_zombie
        ]

    def _coordinators(self) -> list[int]:
        return faults.targets(faults.descendants(os.getpid()), "coordinator")

    def _shared(self) -> list[str]:
        """Returns the entries of ``/dev/shm`` that should not be there.

        Named caches stay by design. PyTorch's loaders make semaphores for their workers, and a process that is killed
        meanwhile leaves one.
        """
        may_stay = ["chaos-"] if self.plan.cache_name else []
        if self.killed and any(self.plan.datas[job.data].is_iterable and job.workers for job in self.plan.jobs):
            may_stay.append("sem.")
        return [name for name in os.listdir("/dev/shm") if not any(part in name for part in may_stay)]

    def _find_idle(self) -> bool:
        """Waits until the coordinator has forgotten all jobs. Returns ``False`` if it has not, is gone, or is mute."""
        last: dict[str, Any] = {}

        def is_idle() -> bool:
            last.clear()
            try:
                last.update(coprep.status())
            except coprep.CoprepError as error:
                # The coordinator may be about to start, or to end.
                last["mute"] = str(error)
                return not self._coordinators()
            return not last["streams"]

        is_settled = self._until(is_idle)
        if not is_settled and "mute" in last and not self.plan.descriptors:
            self.find(Finding("coordinator is mute", last["mute"]))
        elif not is_settled and "mute" not in last:
            self.find(Finding("job not forgotten", f"{json.dumps(last['streams'])[:600]}"))
        return is_settled and "mute" not in last

    def _probe(self, coordinator: int) -> None:
        # A coordinator that is short of descriptors may refuse the probe's jobs.
        if not self.plan.probe or self.plan.descriptors:
            return
        before = faults.descriptors(coordinator)
        source = coprep.ImageFolder(self.settings.images / "folder-40").decode().resize(24).center_crop(16)
        # Without a cache, since a named one would stay.
        options: dict[str, Any] = {"batch_size": 20, "framework": "numpy", "cache": "off"}
        try:
            for _ in range(PROBES):
                with coprep.DataLoader(source, timeout=self.settings.timeout, **options) as loader:
                    if len(list(loader)) != 2:
                        self.find(Finding("probe", "a job that came afterwards was not given two batches"))
        except coprep.CoprepError as error:
            # Failpoints panic in these jobs too.
            costs_sample = self.plan.panics_cost_samples and isinstance(error, coprep.SampleError)
            if (
                self._coordinators()
                and not costs_sample
                and not checks.is_due(self.plan, type(error).__name__, str(error))
            ):
                self.find(Finding("probe", f"a job that came afterwards: {type(error).__name__}: {error}"))
            return
        if self._find_idle() and self._coordinators() == [coordinator]:
            # The coordinator may still be closing the last job's descriptors.
            self._until(lambda: not checks.check_descriptors(before, faults.descriptors(coordinator)), 2)
            self.find(*checks.check_descriptors(before, faults.descriptors(coordinator)))

    def _end(self, coordinators: list[int]) -> None:
        for pid in coordinators:
            if self.plan.ending != "idle":
                if self.plan.ending == "stop" and pid == coordinators[-1]:
                    self._stop()
                else:
                    faults.send(pid, signal.SIGTERM)
        if not self._until(lambda: not self._coordinators()):
            self._look_at_log()
            text = "\n".join(faults.stacks(pid) for pid in self._coordinators())
            (self.out / "stacks.txt").write_text(text)
            self.find(Finding("coordinator does not end", f"by {self.plan.ending}, after {SETTLE_S:.0f} s"))

    def _stop(self) -> None:
        stop = [self.settings.command, "--socket", str(self.socket), "stop"]
        # A panic may cost a connection, and one that has just been started may not listen yet.
        for _ in range(20):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if subprocess.run(stop, capture_output=True, timeout=SETTLE_S).returncode == 0:
                    return
            if not self._coordinators():
                return
            time.sleep(0.1)

    def _check_ends(self) -> None:
        """Checks the exit codes of coordinators that no fault has killed."""
        for pid, command, status in self.ended:
            if command == "coprep" and status != 0 and pid not in self.killed and not self._may_end(status):
                self.find(Finding("coordinator died", f"exit code {status}"))

    def _may_end(self, status: int) -> bool:
        # A coordinator that cannot start for want of descriptors, room or memory says so and ends with 1.
        return (
            self._may_be_killed(status)
            or bool(self.plan.failpoints and status > 0)
            or status == 1
            and bool(
                self.plan.descriptors or self.plan.small_disk or self.plan.is_short_of_memory or self._met_another()
            )
        )

    def _met_another(self) -> bool:
        """Returns whether a coordinator ended because another one serves: two jobs may start one at the same time."""
        logs = [path.read_text(errors="replace") for path in self.out.glob("coordinator*.log")]
        return any("another coordinator serves" in text for text in logs)

    def _clear(self) -> None:
        for process in faults.descendants(os.getpid()):
            faults.send(process.pid, signal.SIGKILL)
        self._until(lambda: not faults.descendants(os.getpid()), 5)
        if self.limit is not None:
            self.limit.remove()
        if self.room.copy is not None:
            shutil.rmtree(self.room.copy, ignore_errors=True)
