"""Tests the pure parts of the benchmark of tokens, arrays, audio and parquet files, and the files that it writes."""

from __future__ import annotations

import sys
from pathlib import Path

import coprep
import numpy as np

from tests.benchmarks.loaders.machine import cores
from tests.benchmarks.native_data import __main__ as command
from tests.benchmarks.native_data.files import STRIDE, WINDOW, make
from tests.benchmarks.native_data.kinds import KINDS
from tests.benchmarks.native_data.report import Results
from tests.benchmarks.native_data.running import Plan, Run
from tests.benchmarks.storage.peers.loaders import workers_of

PYTHON = Path(sys.executable)


def test_the_files_have_as_many_samples_as_the_benchmark_asks_for(tmp_path: Path, socket_path: Path) -> None:
    tokens = make("tokens", 100, tmp_path, tmp_path, PYTHON)
    assert len(coprep.Tokens(tokens, window=WINDOW, stride=STRIDE, dtype="uint16")) == 100
    rows = make("arrays", 50, tmp_path, tmp_path, PYTHON)
    assert len(coprep.Arrays(rows)) == len(np.load(rows)) == 50
    photographs = tmp_path / "photographs"
    for name in "a", "b":
        (photographs / name).mkdir(parents=True)
        (photographs / name / "0.jpg").write_bytes(name.encode())
    parquet = make("parquet", 10, tmp_path, photographs, PYTHON)
    assert len(coprep.Parquet(parquet / "{000..003}.parquet", image="image", label="label")) == 10


def test_a_job_is_steady_after_some_batches_or_when_its_cache_is_full() -> None:
    assert Plan("audio", "coprep", 1).warm_after() == 8 * 32
    assert Plan("audio", "coprep, cached", 1).warm_after() == 8 * 32 + 512
    assert workers_of(1000, cores()) == 1


def test_each_loader_of_each_kind_has_a_command() -> None:
    for kind, described in KINDS.items():
        modules = [Plan(kind, loader, 1).command(Path("data"), PYTHON)[2] for loader in described.loaders]
        assert modules[0].endswith("job_coprep") and modules[-1].endswith("job_torch")


def test_a_table_has_medians_with_the_lowest_and_the_highest() -> None:
    rates = [Run(rate, 0.0123, 0.5, 0.04) for rate in (1000.0, 3000.0, 1500.0)]
    results = Results({Plan("tokens", "coprep", 8): rates}, {"coprep": "0.1.0"}, 5, quick=True)
    assert results.table("tokens") == (
        ["loader", "jobs", "windows/s", "lowest", "highest", "CPU s/1,000", "first batch s", "others, cores"],
        [["coprep", "8", "1,500", "1,000", "3,000", "0.012", "0.50", "0.04"]],
    )
    assert "QUICK" in results.conditions() and "coprep 0.1.0" in results.conditions()
    assert "## tokens: windows of 2,049 uint16 tokens, given as int64" in results.page().text()


def test_the_command_measures_everything_unless_it_is_told_what() -> None:
    few = ["photographs", "--peers", "python", "--out", "out"]
    everything = command.parse(few)
    assert (tuple(everything.only), everything.jobs, everything.repeat) == (tuple(KINDS), [1, 8], 3)
    chosen = command.parse([*few, "--only", "tokens,audio", "--jobs", "2", "--quick"])
    assert (chosen.only, chosen.jobs, chosen.repeat, chosen.seconds) == (["tokens", "audio"], [2], 1, 1.0)
