"""Tests that searches by the usual tools prepare each sample once, though each trial's dataset holds its options."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import WAIT

# Each trial imports what its tool imports, beside other tests.
pytestmark = [pytest.mark.usefixtures("nothing_is_left"), pytest.mark.timeout(6 * WAIT)]

TRIALS, SAMPLES, EPOCHS = 8, 1600, 2

TRIAL = f"""
    import os, sys, time
    from pathlib import Path
    import numpy as np
    import coprep

    class Photographs:
        def __init__(self, config): self.config = config
        def __len__(self): return {SAMPLES}
        def __getitem__(self, i):
            with open(self.config["made"], "ab", buffering=0) as made:
                made.write(b".")
            time.sleep(0.001)
            return np.full(self.config["size"], i)

    def settings(lr, name):
        folder = Path(sys.argv[1])
        return dict(lr=lr, name=name, seed=len(name), logs=str(folder / name), size=3, made=str(folder / "made"))

    def train(config):
        with coprep.DataLoader(Photographs(config), 16, shuffle=True, num_workers=2, framework="numpy") as loader:
            for epoch in range({EPOCHS}):
                batches = iter(loader)
                if epoch == 0:
                    meet(Path(config["logs"]))
                seen = []
                for batch in batches:
                    seen += batch[:, 0].tolist()
                    time.sleep(0.01)
                assert sorted(seen) == list(range({SAMPLES})), seen
        return config["lr"]

    def meet(mine):
        "Waits for the other trials, so that all of them take the first batch together."
        mine.touch()
        while len(list(mine.parent.glob("trial-*"))) < {TRIALS}:
            time.sleep(0.01)
"""
SHELL_LOOP = """
    train(settings(float(sys.argv[2]), f"trial-{sys.argv[2]}"))
"""
OPTUNA = """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    def objective(trial):
        return train(settings(trial.suggest_float("lr", 1e-4, 1), f"trial-{trial.number}"))

    storage = JournalStorage(JournalFileBackend(sys.argv[1] + "/journal"))
    study = optuna.create_study(study_name="search", storage=storage, load_if_exists=True)
    trials = int(sys.argv[2])
    study.optimize(objective, n_trials=trials, n_jobs=trials)
"""
RAY_TUNE = f"""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
    import ray
    from ray import tune

    folder = sys.argv[1]

    def trial(config):
        sys.argv = ["trial", folder]
        tune.report({{"lr": train(settings(config["lr"], f"trial-{{config['number']}}"))}})

    ray.init(num_cpus={TRIALS}, include_dashboard=False)
    space = {{"lr": tune.loguniform(1e-4, 1), "number": tune.grid_search(list(range({TRIALS})))}}
    results = tune.Tuner(trial, param_space=space, run_config=tune.RunConfig(storage_path=folder, verbose=0)).fit()
    assert not results.errors, results.errors[0]
    ray.shutdown()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a name short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(prefix="search", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def run(folder: Path, tool: str, arguments: list[list[object]]) -> int:
    """Runs a program once for each list of arguments, side by side. Returns the number of samples that were made."""
    script = folder / "search.py"
    script.write_text(textwrap.dedent(TRIAL) + textwrap.dedent(tool))
    environment = {**os.environ, "RAY_TMPDIR": str(folder)}
    programs = [
        subprocess.Popen([sys.executable, str(script), str(folder), *map(str, one)], env=environment)
        for one in arguments
    ]
    try:
        assert [program.wait(5 * WAIT) for program in programs] == [0] * len(programs)
    finally:
        for program in programs:
            program.kill()
    return (folder / "made").stat().st_size


@pytest.mark.parametrize(
    ("library", "tool", "arguments"),
    [
        (None, SHELL_LOOP, [[10**-number] for number in range(TRIALS)]),
        ("optuna", OPTUNA, [[TRIALS]]),
        ("optuna", OPTUNA, [[1]] * TRIALS),
        ("ray", RAY_TUNE, [[]]),
    ],
    ids=["shell-loop", "optuna-threads", "optuna-processes", "ray-tune"],
)
def test_trials_that_hold_their_options_prepare_once(
    folder: Path, library: str | None, tool: str, arguments: list[list[object]]
) -> None:
    if library is not None:
        pytest.importorskip(library)
    made = run(folder, tool, arguments)
    # Trials that come before the others have batches of their own in their queues, each trial tries some samples
    # itself, and on a busy machine equal trials drift apart. Without sharing it would be 8 times.
    times = made / (EPOCHS * SAMPLES)
    assert 1 <= times < 1.5, times
