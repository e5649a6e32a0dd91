"""Tests that a script's definitions work in processes that it spawns, and have the same identity there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import WAIT

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SCRIPT = """
import collections, enum, functools, json, logging, multiprocessing, os, sys
from dataclasses import dataclass, field
import numpy as np
import coprep

log = logging.getLogger(__name__)
SCALE = 3

class Mode(enum.Enum):
    ADD = "add"
    SUBTRACT = "subtract"

@dataclass
class Inner:
    size: int = 2

@dataclass
class Config:
    inner: Inner = field(default_factory=Inner)
    mode: Mode = Mode.ADD

Point = collections.namedtuple("Point", "x y")

class Base:
    def __len__(self):
        return 64

class Data(Base):
    def __init__(self):
        self.config = Config()
        self.offset = lambda i: i * SCALE

    def __getitem__(self, i):
        log.debug("sample %d of %s", i, __name__)
        return Point(self.offset(i), np.full(self.config.inner.size, i))

def transform(point):
    return Point(point.x + SCALE, point.y)

class Collate:
    def __call__(self, samples):
        assert all(type(sample) is Point for sample in samples)
        return [int(sample.y[0]) for sample in samples], [int(sample.x) for sample in samples]

def identity():
    from coprep._usercode import UserCode
    found = UserCode(Data(), transform, None, whole=True, batched=True, context="fork").identity()
    return [found.name, [(name, digest.hex()) for name, digest in found.dataset + found.rest]]

def train(rank, world_size, results):
    options = dict(batch_size=4, num_workers=2, collate_fn=Collate(), transform=transform, shuffle=True)
    # A spawned process spawns its workers by default, as with PyTorch, and this dataset cannot be pickled.
    options.update(multiprocessing_context="fork")
    if world_size > 1:
        options.update(rank=rank, world_size=world_size)
    seen = []
    with coprep.DataLoader(Data(), **options) as loader:
        stream = loader.seed and loader._native.attached()["stream"]
        print("attached", flush=True)
        for _ in range(2):
            for ids, values in loader:
                assert values == [3 * i + 3 for i in ids]
                seen += ids
    results.put([rank, __name__, stream, seen, identity()])

if __name__ == "__main__":
    method, ranks = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context(method if method in ("spawn", "forkserver") else "spawn")
    results = context.SimpleQueue()
    if method == "plain":
        train(0, 1, results)
    elif method == "torch":
        import torch.multiprocessing
        torch.multiprocessing.spawn(train, (ranks, results), nprocs=ranks)
    else:
        processes = [context.Process(target=train, args=(rank, ranks, results)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
    for _ in range(ranks):
        print(json.dumps(results.get()), flush=True)
"""


def begin(folder: Path, method: str, ranks: int) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), method, str(ranks)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def results(script: subprocess.Popen[str]) -> list[Any]:
    out, err = script.communicate(timeout=2 * WAIT)
    assert script.returncode == 0, err
    return sorted(json.loads(line) for line in out.splitlines() if line.startswith("["))


@pytest.mark.parametrize("method", ["torch", "forkserver"])
def test_ranks_that_a_script_spawns_share_what_it_defines(socket_path: Path, tmp_path: Path, method: str) -> None:
    if method == "torch":
        pytest.importorskip("torch")
    first, second = results(begin(tmp_path, method, 2))
    assert first[1] == second[1] == "__mp_main__"
    assert first[2] == second[2], "one stream"
    assert first[4] == second[4], "one identity"
    # There are two epochs, with each sample once in each.
    assert sorted(first[3] + second[3]) == sorted(2 * list(range(64)))


def test_a_spawned_process_shares_with_a_plain_run_of_the_script(socket_path: Path, tmp_path: Path) -> None:
    scripts = [begin(tmp_path, method, 1) for method in ("plain", "spawn")]
    (plain,), (spawned,) = map(results, scripts)
    assert (plain[1], spawned[1]) == ("__main__", "__mp_main__")
    assert plain[4] == spawned[4]
    assert plain[4][0] == "Data (__main__)"


EDITED = """
import sys
from pathlib import Path
import coprep, data

if __name__ == "__main__":
    options = dict(num_workers=1, multiprocessing_context=sys.argv[1], framework="numpy")
    for persistent in (False, True):
        with coprep.DataLoader(data.Data(), persistent_workers=persistent, **options) as loader:
            print(sum(batch.item() for batch in loader))
            Path(data.__file__).write_text(Path(data.__file__).read_text().replace("return 1", "return 2"))
            try:
                print(sum(batch.item() for batch in loader))
            except RuntimeError as error:
                print(error)
        Path(data.__file__).write_text(Path(data.__file__).read_text().replace("return 2", "return 1"))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_job_whose_code_was_edited_spawns_no_other_code(socket_path: Path, tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(EDITED)
    (tmp_path / "data.py").write_text(
        "class Data:\n def __len__(self):\n  return 3\n def __getitem__(self, i):\n  return 1\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", method], capture_output=True, text=True, timeout=WAIT, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    first, refused, third, fourth = done.stdout.splitlines()
    assert first == third == fourth == "3"
    assert "data.py was edited after this job had imported it" in refused


ONCE = """
import os, signal, sys
from multiprocessing import Pipe
from pathlib import Path
import coprep

SEEN = Path(__file__).with_name("seen")

class Data:
    def __init__(self):
        self.pipes = [Pipe()[0] for _ in range(300)]
        self.inodes = [os.fstat(end.fileno()).st_ino for end in self.pipes]

    def __len__(self):
        return len(self.pipes)

    def __getitem__(self, i):
        assert os.fstat(self.pipes[i].fileno()).st_ino == self.inodes[i]
        return i + 1000 * int(os.environ["SETTING"])

def take():
    options = dict(batch_size=10, num_workers=2, multiprocessing_context="spawn", framework="numpy")
    loader = coprep.DataLoader(Data(), **options)
    return [[i for batch in loader for i in batch.tolist()] for _ in range(2)]

if __name__ == "__main__":
    first, again = take(), take()
    os.environ["SETTING"] = "2"
    other = take()
    os.kill(int(SEEN.read_text().split()[-1]), signal.SIGKILL)
    print(first == again == 2 * [[*range(1000, 1300)]], other == take() == 2 * [[*range(2000, 2300)]])
    print(*SEEN.read_text().split()[::2])
else:
    with SEEN.open("a") as file:
        file.write(f"{os.environ['SETTING']} {os.getpid()}\\n")
"""


def test_a_job_starts_one_interpreter_for_its_loaders(socket_path: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ONCE)
    command = [sys.executable, tmp_path / "script.py"]
    env = {**os.environ, "SETTING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, env=env)
    assert done.returncode == 0, done.stderr
    # The second one has the environment as it is then. It is killed, and the third one takes its place.
    assert done.stdout.splitlines() == ["True True", "1 2 2"]


UNGUARDED = """
import sys
import coprep

class Data:
    def __len__(self): return 8
    def __getitem__(self, i): return i

for batch in coprep.DataLoader(Data(), 4, num_workers=1, framework="numpy", multiprocessing_context=sys.argv[1]):
    print(batch.tolist(), flush=True)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_that_does_not_guard_its_main_part_gets_the_error_of_multiprocessing(
    socket_path: Path, tmp_path: Path, method: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, script, method], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 1 and done.stdout == ""
    assert "if __name__ == '__main__':" in done.stderr
    assert "coprep.CoprepError: the process that runs the dataset's code came to its end" in done.stderr
