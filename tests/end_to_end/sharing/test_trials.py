"""Tests the trials of a search: they share whatever options they hold, if these do not reach their samples."""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import coprep
import pytest
from waiting import WAIT

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SCRIPT = """
import argparse, dataclasses, json, os, sys, time, warnings
import numpy as np
import coprep

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--name", default="run")
"""
END = """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    loader = coprep.DataLoader(data, 4, num_workers=1, framework="numpy")
    with loader:
        batches = iter(loader)
        first = next(batches)
        stream = loader._native.attached()["stream"]
        told = [str(one.message) for one in told]
        print(json.dumps({"stream": stream, "size": first.shape[1], "told": told}), flush=True)
        sys.stdin.readline()
        assert {first.shape[1]} == {batch.shape[1] for batch in batches}
"""
STYLES = {
    "a global": """
        args = parser.parse_args()
        class Data:
            def __len__(self): return 8
            def __getitem__(self, i): return np.full(args.size, i)
        data = Data()
    """,
    "an attribute": """
        class Data:
            def __init__(self, args): self.args = args
            def __len__(self): return 8
            def __getitem__(self, i): return np.full(self.args.size, i)
        data = Data(parser.parse_args())
    """,
    "a helper": """
        def make(i, options): return np.full(options.size, i)
        class Data:
            def __init__(self, args): self.args = args
            def __len__(self): return 8
            def __getitem__(self, i): return make(i, self.args)
        data = Data(parser.parse_args())
    """,
    "a module": """
        import settings
        settings.__dict__.update(vars(parser.parse_args()))
        class Data:
            def __len__(self): return 8
            def __getitem__(self, i): return np.full(settings.size, i)
        data = Data()
    """,
    "a dataclass": """
        @dataclasses.dataclass
        class Options:
            size: int
            lr: float
            seed: int
            name: str
        class Data:
            def __init__(self, options): self.options = options
            def __len__(self): return 8
            def __getitem__(self, i): return np.full(self.options.size, i)
        data = Data(Options(**vars(parser.parse_args())))
    """,
    "a dict": """
        class Data:
            def __init__(self, config): self.config = config
            def __len__(self): return 8
            def __getitem__(self, i): return np.full(self.config["data"]["size"], i)
        args = vars(parser.parse_args())
        data = Data({"data": {"size": args["size"]}, "train": args})
    """,
    "OmegaConf": """
        from omegaconf import OmegaConf
        class Data:
            def __init__(self, config): self.config = config
            def __len__(self): return 8
            def __getitem__(self, i): return np.full(self.config.data.size, i)
        args = vars(parser.parse_args())
        data = Data(OmegaConf.create({"data": {"size": args["size"]}, "train": args}))
    """,
    "YACS": """
        from yacs.config import CfgNode
        class Data:
            def __init__(self, config): self.config = config
            def __len__(self): return 8
            def __getitem__(self, i): return np.full(self.config.DATA.SIZE, i)
        args = vars(parser.parse_args())
        data = Data(CfgNode({"DATA": {"SIZE": args["size"]}, "TRAIN": args}))
    """,
}
OTHER_TRIAL = ["--lr", "0.2", "--seed", "5", "--name", "other"]


class Trial(NamedTuple):
    process: subprocess.Popen[str]
    stream: int
    size: int
    told: list[str]


Run = Callable[..., Trial]


@pytest.fixture
def run(tmp_path: Path, socket_path: Path) -> Iterator[Run]:
    """Starts trials of one script, which stay attached until the test ends."""
    (tmp_path / "settings.py").write_text("size = 0\n")
    trials: list[subprocess.Popen[str]] = []

    def run(style: str, *arguments: str, cwd: Path | None = None) -> Trial:
        script = tmp_path / "train.py"
        script.write_text(SCRIPT + textwrap.dedent(style) + END)
        command = [sys.executable, str(script), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd)
        trials.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the trial failed: see its output"
        return Trial(process, **json.loads(line))

    yield run
    for process in trials:
        with contextlib.suppress(BrokenPipeError):
            process.communicate("\n", timeout=WAIT)
        assert process.returncode == 0


@pytest.mark.parametrize("style", STYLES)
def test_trials_share_unless_what_differs_reaches_their_samples(run: Run, style: str) -> None:
    pytest.importorskip({"OmegaConf": "omegaconf", "YACS": "yacs"}.get(style, "json"))
    style = STYLES[style]
    first, second = run(style), run(style, *OTHER_TRIAL)
    assert first.stream == second.stream
    assert first.told == second.told == []
    third = run(style, "--size", "4")
    assert third.stream != first.stream and third.size == 4
    (told,) = third.told
    assert "not shared with train.py (pid" in told and "size" in told.lower() and "is 4 here and 3 there" in told
    assert "read in train.py:" in told and told.count(" here and ") == 1
    assert any("is 4 here and 3 there" in str(stream["differs"]) for stream in coprep.status()["streams"])


COMPILED = """
import numpy as np
import settings
class Plain:
    def __len__(self): return 8
    def __getitem__(self, i): return np.full(settings.size, i)
cdef class Extension:
    def __len__(self): return 8
    def __getitem__(self, i): return np.full(settings.size, i)
def make(i): return np.full(settings.size, i)
"""
OF_COMPILED = {
    "a class": "data = compiled.Plain()",
    "an extension type": "data = compiled.Extension()",
    "a function": """
        class Data:
            def __len__(self): return 8
            def __getitem__(self, i): return compiled.make(i)
        data = Data()
    """,
}


@pytest.mark.parametrize("kind", OF_COMPILED)
def test_what_compiled_code_may_read_counts(run: Run, tmp_path: Path, kind: str) -> None:
    build_by_cython(tmp_path / "compiled.pyx", COMPILED)
    start = "args = parser.parse_args(); import compiled, settings; settings.size = args.size\n"
    trials = [run(start + textwrap.dedent(OF_COMPILED[kind]), *more) for more in ([], OTHER_TRIAL, ["--size", "4"])]
    assert trials[0].stream == trials[1].stream != trials[2].stream
    assert [trial.size for trial in trials] == [3, 3, 4]
    assert "settings.size is 4 here and 3 there" in trials[2].told[0]


def build_by_cython(source: Path, text: str) -> None:
    """Writes a module and compiles it."""
    pytest.importorskip("Cython")
    include, compiler = Path(sysconfig.get_path("include")), shutil.which("cc")
    if compiler is None or not (include / "Python.h").exists():
        pytest.skip("needs a compiler and Python's headers")
    source.write_text(text)
    written, built = source.with_suffix(".c"), source.with_suffix(importlib.machinery.EXTENSION_SUFFIXES[0])
    subprocess.run([sys.executable, "-m", "cython", "-3", source, "-o", written], check=True)
    subprocess.run([compiler, "-shared", "-fPIC", f"-I{include}", written, "-o", built], check=True)


OF_FILES = """
    class Data:
        def __len__(self): return 8
        def __getitem__(self, i):
            if os.path.exists("size.txt"):
                with open("size.txt") as file:
                    return np.full(int(file.read()), i)
            if parser.parse_args().name == "writes" and i == 0:
                with open("size.txt", "w") as file:
                    file.write("3")
            return np.full(3, i)
    data = Data()
"""


def test_a_file_that_a_trial_writes_does_not_separate_the_next_one(run: Run, tmp_path: Path) -> None:
    first = run(OF_FILES, "--name", "writes", cwd=tmp_path)
    assert (tmp_path / "size.txt").exists()
    assert run(OF_FILES, "--name", "writes", cwd=tmp_path).stream == first.stream


def test_trials_of_other_directories_share_unless_a_relative_path_leads_somewhere(run: Run, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    (folders[2] / "size.txt").write_text("5")
    first, second, third = (run(OF_FILES, cwd=folder) for folder in folders)
    assert first.stream == second.stream != third.stream
    assert (first.size, second.size, third.size) == (3, 3, 5)
    assert "working directory (a relative path leads to something there)" in third.told[0]


class Options:
    def __init__(self) -> None:
        self.size, self.lr, self.api_key, self.label = 3, 0.1, "abcdef", "two words"


class Data:
    def __init__(self) -> None:
        self.options, self.run, self.table = Options(), "run-7", {"a": 1, "b": 2}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        text = json.dumps({"label": self.options.label, "key": self.options.api_key})
        return self.options.size, self.table["a"], len(text)


def test_what_counts_is_listed() -> None:
    counts = coprep.what_counts(Data())
    told = {name: (value, why) for name, value, why in counts.counting}
    line = re.fullmatch(r"read in test_trials.py:\d+ \(Data.__getitem__\)", told["dataset.options.size"][1])
    assert line is not None and told["dataset.options.size"][0] == "3"
    assert told["dataset.table['a']"][0] == "1"
    assert told["dataset.options.api_key"][0] == told["dataset.options.label"][0] == ""
    assert {"dataset.options.lr", "dataset.run", "dataset.table['b']"} <= set(counts.unread)
    assert not set(told) & set(counts.unread)
    text = str(counts)
    assert "dataset.options.size = 3" in text and "abcdef" not in text and "  dataset.run\n" in text


def test_what_counts_whole_is_listed_with_the_reason() -> None:
    options = Options()

    def dumped(_: Any) -> str:
        return json.dumps(vars(options)) + str(options)

    told = {name: why for name, _, why in coprep.what_counts(dumped).counting}
    assert any("counts whole" in why and "test_trials.py:" in why for why in told.values()), told
