"""Tests the code of the user's own datasets: its origin, the processes that run it, and its permitted changes."""

from __future__ import annotations

import os
import platform
import textwrap
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import user_datasets as ud
from batches import ids
from coordinators import stream
from jobs import Job, Start, go, seen
from user_jobs import HERE, NUMPY, TRAIN
from waiting import until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 48


SCRIPT = """
import sys, threading
from collections import namedtuple
from typing import NamedTuple
import numpy as np
import coprep

SHIFT = 7

class Sample(NamedTuple):
    values: np.ndarray
    label: int

class MyError(Exception):
    def __init__(self, id, reason):
        super().__init__(f"{reason}: {id}")
        self.id = id

class Data:
    def __len__(self):
        return 24
    def __getitem__(self, i):
        if i == 13:
            raise MyError(i, "unlucky")
        return Sample(np.full(4, i + SHIFT), i)

if __name__ == "__main__":
    loader = coprep.DataLoader(Data(), batch_size=4, shuffle=True, num_workers=2, framework="numpy")
    loader.seed  # attaches
    print("ready", flush=True)
    sys.stdin.readline()
    seen, batches = [], iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except MyError as error:
            assert type(error) is MyError and error.id == 13 and str(error) == "unlucky: 13"
            assert error.__cause__.id == 13
            print("caught", flush=True)
            continue
        assert type(batch) is Sample
        assert (batch.values == batch.label[:, None] + SHIFT).all()
        seen += batch.label.tolist()
    assert sorted(seen) == [i for i in range(24) if i != 13]
"""


def test_a_script_may_define_everything_itself(start: Start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    jobs = [start_script(start, tmp_path / "script.py") for _ in range(3)]
    for one in jobs:
        assert one.line() == "ready"
    assert len(stream()["jobs"]) == 3
    go(*jobs)
    assert [one.result() for one in jobs] == ["caught"] * 3


def start_script(start: Start, path: Path, *args: object, **env: str) -> Job:
    """Starts a job whose main module is a file."""
    code = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return start(code, path, *args, **env)


def test_a_dataset_may_be_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "factories.py").write_text("import user_datasets\ndef make():\n    return user_datasets.Numbers(48)\n")
    code = TRAIN.replace("from user_datasets", "import user_datasets\nfrom user_datasets", 1)
    path = os.pathsep.join([str(tmp_path), HERE])
    jobs = [start(code, "'factories:make'", "{'batch_size': 8}", 2, 0.005, PYTHONPATH=path) for _ in range(2)]
    for one in jobs:
        assert one.line() == "ready"
    assert stream()["dataset"] == "factories:make" and len(stream()["jobs"]) == 2
    go(*jobs)
    assert [seen(one) for one in jobs] == [[list(range(N))] * 2] * 2


def test_workers_are_where_the_job_is(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "job.py").write_text(
        textwrap.dedent("""
        import os, sys
        os.chdir(sys.argv[1])
        os.environ["MARK"] = "set by the script"
        sys.path.insert(0, "/nowhere/special")
        import coprep, user_datasets
        loader = coprep.DataLoader(user_datasets.Place(6), batch_size=3, num_workers=2, framework="numpy")
        for batch in loader:
            assert batch["cwd"] == [os.getcwd()] * 3 == [sys.argv[1]] * 3, batch["cwd"]
            assert batch["path"] == ["\\n".join(sys.path)] * 3
            assert batch["variable"] == [os.environ["MARK"]] * 3
            assert batch["argv"] == ["\\n".join(sys.argv)] * 3
        print("done")
        """)
    )
    # The coordinator was started in another directory.
    with coprep.DataLoader(ud.Numbers(8), 4, **NUMPY) as loader:
        assert len(ids(loader)) == 8
        assert start_script(start, tmp_path / "job.py", folder, PYTHONPATH=HERE).result() == "done"


def test_spawned_workers_load_the_dataset_themselves() -> None:
    def loaded(**options: Any) -> tuple[set[int], set[int], list[bool]]:
        with coprep.DataLoader(ud.Loaded(24, pause=0.01, root=str(options)), 4, **NUMPY, **options) as loader:
            by: list[int] = []
            here: list[int] = []

            def both() -> bool:
                for (loaded_by, made_by, _), _ in loader:
                    by.extend(loaded_by.tolist())
                    here.extend(made_by.tolist())
                return len(set(here)) == 2

            until(both, "both workers take part")
        return set(by), set(here), [a == b for a, b in zip(by, here, strict=True)]

    by, here, _ = loaded()
    assert by == {0} and len(here) == 2, "by fork nothing is loaded"
    for method in ("spawn", "forkserver"):
        by, here, own = loaded(multiprocessing_context=method)
        assert len(here) == 2 and all(own)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator keeps what it likes")
def test_workers_use_again_the_memory_that_samples_leave() -> None:
    with coprep.DataLoader(ud.Churning(), batch_size=4, num_workers=1, framework="numpy", cache="off") as loader:
        given = [pages for batch, _ in loader for pages in batch.tolist()]
    # Without reuse, each sample would need 2,197 new pages.
    assert sum(given[N // 2 :]) < 500, given


def test_a_dataset_that_changes_is_seen_in_the_next_epoch() -> None:
    class Shifted(ud.Numbers):
        shift = 0

        def __getitem__(self, i: int) -> Any:
            return i + self.shift

    data = Shifted(10)
    with coprep.DataLoader(data, 5, **NUMPY) as loader:
        for shift, size in ((0, 10), (100, 10), (200, 15), (200, 15)):
            data.shift, data.size = shift, size
            made = np.concatenate([values for values, _ in loader])
            assert made.tolist() == [i + shift for i in range(size)]
            assert len(loader) == size // 5
        assert loader.epoch == 4


def test_a_dataset_that_is_said_not_to_change_is_not_looked_at_again() -> None:
    data = ud.Numbers(10)
    with coprep.DataLoader(data, 5, persistent_workers=True, **NUMPY) as loader:
        assert sorted(ids(loader)) == list(range(10))
        workers = stream()["worker_pids"]
        data.root = "changed"
        assert sorted(ids(loader)) == list(range(10))
        assert workers and set(workers) <= set(stream()["worker_pids"])


def test_a_sampler_needs_more_than_the_name_of_a_dataset() -> None:
    with pytest.raises(ValueError, match="needs the dataset itself"):
        coprep.DataLoader("user_datasets:made", sampler=[1, 2])


def test_a_sample_is_seeded_as_its_generators_seed_themselves() -> None:
    import random

    from coprep._seeding import seed_all, seed_by

    def drawn() -> tuple[Any, ...]:
        return random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()

    number = 2**64 - 3
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    expected = drawn()
    # A generator of normal numbers keeps half of each pair, which must not come next.
    seed_by(number)
    assert drawn() == expected
    seed_all(3, 5, 7)
    first = drawn()
    for other in ((4, 5, 7), (3, 6, 7), (3, 5, 8), (2**64 - 1, 2**32 - 1, 2**64 - 1)):
        seed_all(*other)
        assert drawn() != first
    seed_all(3, 5, 7)
    assert drawn() == first
