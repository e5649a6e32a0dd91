"""Tests that the modules of a user's dataset are imported once for a program, from when its first loader is made."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from coordinators import coordinator_pid, processes_of, stream
from coprep._preloading import ELEMENTS, MOST, modules_of
from jobs import Start
from user_jobs import HERE
from waiting import gone, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")

MODULE = """
import os, random, sys
from pathlib import Path
import numpy as np
from user_datasets import Numbers, note, noted

HERE = Path(__file__).parent
note(HERE / "imports", os.getpid())
{more}

class Data(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        note(HERE / "loads", os.getpid())
"""
"""Code of a module that records the processes that import it."""

JOB = """
import os, sys, coprep
from mine import *
options = dict(batch_size=8, framework="numpy", with_index=True, num_workers=1)
def loader(number, data=Data, **own):
    return coprep.DataLoader(data(24, root=str(number)), **{**options, **own})
def ids(loader):
    return sorted(i for batch in loader for i in batch[-1].tolist())
def whole(number, **own):
    one = loader(number, **own)
    assert ids(one) == list(range(24))
    return one
def say(*values):
    print(*values, flush=True)
    sys.stdin.readline()
"""


class Program:
    """A job in a folder of its own, whose module ``mine`` records its importers."""

    def __init__(self, start: Start, folder: Path, script: str, more: str = "") -> None:
        self.folder = folder
        (folder / "mine.py").write_text(MODULE.format(more=more))
        self.job = start(JOB + script, PYTHONPATH=f"{HERE}{os.pathsep}{folder}", PYTHONDONTWRITEBYTECODE="1")

    def others(self, what: str = "imports") -> list[int]:
        """Returns the processes other than the job that imported the module or loaded a dataset, in order."""
        return [pid for pid in map(int, ud.noted(self.folder / what)) if pid != self.job.process.pid]

    def on(self) -> None:
        """Lets the job continue after the line that it printed."""
        self.job.say("on")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def children(pid: int) -> list[int]:
    text = [(child / "children").read_text() for child in Path(f"/proc/{pid}/task").iterdir()]
    return [int(number) for line in text for number in line.split()]


def test_loaders_of_a_program_import_once(start: Start, tmp_path: Path) -> None:
    program = Program(start, tmp_path, 'train = whole(1); validate = whole(2); say("done")')
    assert program.job.line() == "done"
    (zygote,) = program.others()
    fork_servers = program.others("loads")
    assert len(set(fork_servers)) == 2 and {parent(fork_server) for fork_server in fork_servers} == {zygote}
    assert parent(zygote) == coordinator_pid()
    program.on()
    assert program.job.result() == ""


def test_loaders_of_another_environment_import_anew(start: Start, tmp_path: Path) -> None:
    script = """
first = whole(1)
os.environ["MARK"] = "other"
second = whole(2)
del os.environ["MARK"]
third = whole(3)
os.chdir("/")
fourth = whole(4)
"""
    program = Program(start, tmp_path, script)
    assert program.job.result() == ""
    first, second, third = program.others()
    assert len({first, second, third}) == 3


def test_a_module_that_was_changed_is_imported_anew_by_another_program(start: Start, tmp_path: Path) -> None:
    """The change is invisible in the module's file: it lies in a file that the module reads during its import."""
    (tmp_path / "settings").write_text("1")
    more = """
SETTING = int((HERE / "settings").read_text())
class Set(Numbers):
    def __getitem__(self, i):
        return SETTING, i
"""
    script = """
one = loader(os.environ["NUMBER"], Set)
((setting, _), _), *_ = list(one)
say(setting.tolist()[0])
"""
    (tmp_path / "mine.py").write_text(MODULE.format(more=more))
    jobs = []
    for number in (1, 2):
        (tmp_path / "settings").write_text(str(number))
        jobs.append(start(JOB + script, PYTHONPATH=f"{HERE}{os.pathsep}{tmp_path}", NUMBER=str(number)))
        assert jobs[-1].line() == str(number)
    for job in jobs:
        job.say("on")
        job.result()


def test_a_loader_that_is_only_made_lets_import_and_prepares_nothing(
    start: Start, tmp_path: Path, socket_path: Path
) -> None:
    script = """
one = loader(1)
say("made")
one.close()
say("closed")
two = loader(2)
say("made")
del two
say("gone")
"""
    program = Program(start, tmp_path, script)
    for number, (made, ended) in enumerate((("made", "closed"), ("made", "gone")), 1):
        assert program.job.line() == made
        until(lambda number=number: len(program.others()) == number, "it is imported")
        zygote = program.others()[-1]
        assert parent(zygote) == coordinator_pid()
        # For a moment it has a child that ends at once, by which it tests whether it may fork.
        until(lambda zygote=zygote: not children(zygote), "it has no fork server")
        assert coprep.status()["streams"] == []
        program.on()
        assert program.job.line() == ended
        until(lambda zygote=zygote: gone(zygote), "it is gone")
        assert set(processes_of(socket_path)) == {coordinator_pid(), program.job.process.pid}
        program.on()
    program.job.result()
    assert program.others("loads") == []


def test_what_was_imported_early_serves_the_first_batch(start: Start, tmp_path: Path) -> None:
    script = """
one = loader(1)
say("made")
assert ids(one) == list(range(24))
say("done")
"""
    program = Program(start, tmp_path, script)
    assert program.job.line() == "made"
    until(lambda: len(program.others()) == 1, "it is imported")
    program.on()
    assert program.job.line() == "done"
    (zygote,) = program.others()
    assert parent(program.others("loads")[0]) == zygote
    program.on()
    program.job.result()


def test_a_program_that_shares_a_stream_imports_nothing(start: Start, tmp_path: Path) -> None:
    program = Program(start, tmp_path, 'one = loader(1); one.seed; say("ready"); ids(one)')
    assert program.job.line() == "ready"
    environment = {"PYTHONPATH": f"{HERE}{os.pathsep}{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    second = start(JOB + "one = whole(1)", **environment)
    second.result()
    program.on()
    program.job.result()
    assert len(set(program.others()) - {second.process.pid}) == 1


def test_a_zygote_that_is_killed_is_replaced_and_nothing_is_lost(start: Start, tmp_path: Path) -> None:
    script = """
one, seen = loader(1, batch_size=1, shuffle=True), []
for batch in one:
    seen += batch[-1].tolist()
    if len(seen) == 2:
        say("begun")
assert sorted(seen) == list(range(24)), seen
two = whole(2)
say("done")
"""
    program = Program(start, tmp_path, script, "import time; Numbers.pause = 0.02")
    assert program.job.line() == "begun"
    (first,) = program.others()
    below = [first, *program.others("loads"), *stream()["worker_pids"]]
    os.kill(first, signal.SIGKILL)
    until(lambda: all(map(gone, below)), "its fork servers end with it, and their workers")
    program.on()
    assert program.job.line() == "done"
    until(lambda: program.others()[-1] != first, "there is another")
    program.on()
    program.job.result()


def test_nothing_outlives_a_coordinator_that_is_killed(start: Start, tmp_path: Path) -> None:
    program = Program(start, tmp_path, 'one = whole(1); two = loader(2); say("done"); os._exit(0)')
    assert program.job.line() == "done"
    others = [*program.others(), *program.others("loads")]
    os.kill(coordinator_pid(), signal.SIGKILL)
    until(lambda: all(map(gone, others)), "they end with it", 5)
    program.job.kill()


def test_many_loaders_leave_no_descriptor_and_no_zombie(start: Start, tmp_path: Path) -> None:
    script = """
kept = whole(0)
for turn in range(3):
    for number in range(8):
        whole(f"{turn}-{number}").close()
        loader(number).close()
    say("turn")
"""
    program = Program(start, tmp_path, script)
    assert program.job.line() == "turn"
    (zygote,) = set(program.others())
    before = [descriptors(pid) for pid in (coordinator_pid(), zygote)]
    for _ in range(2):
        program.on()
        assert program.job.line() == "turn"
        # Besides the stream's fork server, four idle ones remain.
        until(lambda: len(children(zygote)) == 5, "the others have ended")
        # A leak would show as many descriptors.
        for pid, most in zip((coordinator_pid(), zygote), before, strict=True):
            until(lambda pid=pid, most=most: descriptors(pid) <= most, "no descriptor is left")
    program.on()
    program.job.result()


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# --- modules that are hard to import -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("raise ValueError('not here')", "ValueError: not here"),
        ("import no_such_module", "make the module 'no_such_module' importable"),
        ("sys.exit(3)", "exit status: 1"),
        ("os._exit(3)", "exit status: 3"),
        ("os.kill(os.getpid(), 9)", "SIGKILL.* in each of 3 attempts"),
    ],
)
def test_an_import_that_fails_says_why_and_costs_no_other_loader(
    start: Start, tmp_path: Path, more: str, error: str
) -> None:
    (tmp_path / "theirs.py").write_text(
        f"import os, sys\nfrom user_datasets import Numbers\nif os.getpid() != int(os.environ['JOB']): {more}\n"
        "class Bad(Numbers): pass\n"
    )
    script = """
os.environ["JOB"] = str(os.getpid())
from theirs import Bad
one, seen = loader(1, batch_size=1), []
for batch in one:
    seen += batch[-1].tolist()
    if len(seen) == 2:
        try:
            next(iter(loader(2, Bad)))
        except Exception as error:
            message = " ".join(str(error).split())
assert seen == list(range(24)), seen
print(message)
three = whole(3)
"""
    program = Program(start, tmp_path, script)
    result = program.job.result()
    assert re.search(error, result), result


def test_a_module_that_starts_a_thread_finds_it_as_its_dataset_is_loaded(start: Start, tmp_path: Path) -> None:
    more = """
import queue, threading
asked, answers = queue.Queue(), queue.Queue()
def serve():
    while True:
        answers.put(asked.get() + 1)
threading.Thread(target=serve, daemon=True).start()
class Asking(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        asked.put(1)
        assert answers.get(timeout=60) == 2
"""
    program = Program(start, tmp_path, "one = whole(1, data=Asking); two = whole(2, data=Asking)", more)
    assert program.job.result() == ""


SEEDED = """
class Drawn(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        self.drawn = random.random(), float(np.random.random())
    def __getitem__(self, i):
        return self.drawn, i
"""


@pytest.mark.parametrize(
    "seeds",
    ["random.random(); np.random.random()", "random.seed(1)", "np.random.seed(1)", "random.seed(1); np.random.seed(1)"],
)
def test_what_is_drawn_as_a_dataset_is_loaded_is_as_in_a_new_process(start: Start, tmp_path: Path, seeds: str) -> None:
    script = """
for number in range(2):
    ((first, second), _), *_ = next(iter(loader(number, Drawn)))
    print(first.tolist()[0], second.tolist()[0])
"""
    program = Program(start, tmp_path, script, f"{SEEDED}\n{seeds}")
    (one, other) = (line.split() for line in program.job.result().splitlines())
    assert (one[0] == other[0]) == ("random.seed(1)" in seeds.split("; "))
    assert (one[1] == other[1]) == ("np.random.seed(1)" in seeds)
    assert len(set(program.others())) == 1


def test_what_a_module_removes_at_exit_stays_for_all_fork_servers(start: Start, tmp_path: Path) -> None:
    more = """
import tempfile
FOLDER = tempfile.TemporaryDirectory(dir=HERE)
class Kept(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        note(HERE / "loads", os.getpid())
        self.own = tempfile.TemporaryDirectory(dir=HERE)
        note(HERE / "own", self.own.name)
    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "own"}
    def __getitem__(self, i):
        assert os.path.isdir(FOLDER.name)
        return super().__getitem__(i)
"""
    # These are more fork servers than are kept idle, so the first ones end.
    program = Program(start, tmp_path, "for n in range(8): whole(n, data=Kept).close()", more)
    assert program.job.result() == ""
    first, own = program.others("loads")[0], Path(ud.noted(tmp_path / "own")[0])
    until(lambda: gone(first), "the first fork server ends")
    assert not own.exists(), "what it made itself is gone"


# --- which modules -----------------------------------------------------------------------------------------------


class OfThisModule:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class WithItsOwnState(OfThisModule):
    def __getstate__(self) -> dict[str, Any]:
        return {}


def local_class() -> Any:
    class Local(ud.Numbers):
        def __getitem__(self, i: int) -> Any:
            return functools.partial(np.add, threading.get_ident())

    return Local


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ud.Numbers(4), {"user_datasets"}),
        (OfThisModule(root=ud.Numbers(4)), {__name__, "user_datasets"}),
        (OfThisModule(steps=[ud.Scaled(), ud.negated]), {__name__, "user_datasets"}),
        (OfThisModule(steps={"a": (ud.Scaled(),)}), {__name__, "user_datasets"}),
        (OfThisModule(step=ud.Scaled().__call__), {__name__, "user_datasets"}),
        (OfThisModule(step=functools.partial(ud.negated, 1)), {__name__, "user_datasets"}),
        (OfThisModule(step=lambda: ud.negated(1)), {__name__, "user_datasets"}),
        (WithItsOwnState(root=ud.Numbers(4)), {__name__}),
        (OfThisModule(many=[0] * ELEMENTS + [ud.Numbers(4)]), {__name__}),
        (local_class()(4), {"user_datasets", "functools", "numpy", "threading"}),
        (None, set()),
    ],
)
def test_the_modules_that_a_dataset_needs_are_found(value: Any, names: set[str]) -> None:
    assert set(modules_of(value)) - {"builtins"} == names


def test_the_search_for_modules_ends() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert modules_of(endless) == ["builtins"]
    deep: Any = ud.Numbers(4)
    for _ in range(2 * MOST):
        deep = [deep]
    assert "user_datasets" not in modules_of(deep)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_zygote_whose_coordinator_has_ended_before_it_began_imports_nothing(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "large.py").write_text("from pathlib import Path\nPath(__file__).with_name('imported').touch()")
    ours, theirs = socket.socketpair()
    prelude = json.dumps({"imports": ["large"], "argv": ["-c"]})
    request = json.dumps({"do": "import", "prelude": prelude}).encode()
    ours.send(struct.pack("<I", len(request)) + request)
    if not is_there:
        ours.close()
    script = "from coprep._zygote import main; main()"
    zygote = subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    theirs.close()
    if is_there:
        until((tmp_path / "imported").exists, "it is imported")
        ours.close()
    assert zygote.wait(30) == 0
    assert (tmp_path / "imported").exists() == is_there
