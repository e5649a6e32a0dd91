"""Tests that an IterableDataset works through PyTorch's own loader, and that types may name the samples of a loader."""

from __future__ import annotations

import subprocess
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402


class Count(data.IterableDataset[int]):
    def __init__(self, last: int = 10) -> None:
        self.last = last

    def __iter__(self) -> Iterator[int]:
        worker = data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(first, self.last, step))


class Sized(Count):
    def __len__(self) -> int:
        return self.last


def double(x: int) -> int:
    return 2 * x


def unshared(make: Callable[[], Any]) -> Any:
    """Makes a loader, and checks that this gives one warning that names this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = make()
    (warning,) = (w for w in caught if w.category is coprep.UnsharedWarning)
    assert warning.filename == __file__
    assert "shares nothing" in str(warning.message)
    return loader


def values(loader: Any) -> list[Any]:
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 1, "persistent_workers": True}])
def test_an_iterable_dataset_is_what_it_is_with_pytorch(socket_path: Path, options: dict[str, Any]) -> None:
    for more in ({}, {"drop_last": True}, {"collate_fn": list}):
        ours = unshared(lambda more=more: coprep.DataLoader(Count(), batch_size=4, **options, **more))  # type: ignore[misc]
        theirs = data.DataLoader(Count(), batch_size=4, **options, **more)
        for _ in range(2):
            assert values(ours) == values(theirs) != []
    assert not socket_path.exists(), "nobody needs a coordinator"


def test_workers_divide_it_as_with_pytorch() -> None:
    loader = unshared(lambda: coprep.DataLoader(Count(), batch_size=2, num_workers=2))
    assert sorted(sum(values(loader), [])) == list(range(10))


def test_left_out_workers_are_none() -> None:
    # With several workers, a dataset that does not divide itself would give all its samples in each of them.
    class Undivided(data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    assert values(unshared(lambda: coprep.DataLoader(Undivided(), batch_size=5))) == [[0, 1, 2, 3, 4]]


def test_samples_come_one_by_one() -> None:
    assert values(unshared(lambda: coprep.DataLoader(Count(3), batch_size=None))) == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_is_applied(workers: int) -> None:
    def found(samples: int, batch_size: int | None, **options: Any) -> list[Any]:
        options.update(transform=double, num_workers=workers)
        return values(unshared(lambda: coprep.DataLoader(Count(samples), batch_size, **options)))

    assert found(3, None) == [0, 2, 4]
    assert found(4, 2) == [[0, 2], [4, 6]]
    assert found(2, 2, collate_fn=sum) == [2]


def test_its_length_is_as_with_pytorch() -> None:
    assert len(unshared(lambda: coprep.DataLoader(Sized(), batch_size=4))) == 3
    with pytest.raises(TypeError):
        len(unshared(lambda: coprep.DataLoader(Count(), batch_size=4)))


@pytest.mark.filterwarnings("ignore::coprep.UnsharedWarning")
def test_what_such_a_dataset_cannot_have_is_refused() -> None:
    for options in ({"shuffle": True}, {"sampler": [0, 1]}, {"subset": [0, 1]}, {"with_index": True}):
        with pytest.raises(ValueError):
            coprep.DataLoader(Count(), **options)
    with pytest.raises(coprep.CoprepError, match="shares nothing"):
        coprep.DataLoader(Count()).state_dict()


# --- types ----------------------------------------------------------------------------------------------------


def test_annotations_may_say_of_what_samples_a_loader_is(socket_path: Path) -> None:
    def make() -> coprep.DataLoader[tuple[int, str]]:
        return coprep.DataLoader([1, 2, 3], batch_size=3, framework="numpy")

    assert typing.get_type_hints(make)["return"] == coprep.DataLoader[tuple[int, str]]
    loader = coprep.DataLoader[int]([1, 2, 3], batch_size=3, framework="numpy")
    assert isinstance(loader, coprep.DataLoader)
    with make() as made, loader:
        assert values(made) == values(loader) == [[1, 2, 3]]

    class Mine(coprep.DataLoader[int]):
        pass

    assert issubclass(Mine, coprep.DataLoader)


MYPY_S = 300
"""Seconds after which mypy counts as hanging."""

TYPED = """
from typing import Any
import coprep

class Data:
    def __len__(self) -> int: return 3
    def __getitem__(self, i: int) -> tuple[int, str]: return i, ""

def make() -> coprep.DataLoader[tuple[int, str]]:
    return coprep.DataLoader(Data(), batch_size=2)

def bare(loader: coprep.DataLoader) -> None:
    for batch in loader:
        print(batch)

loader = coprep.DataLoader(Data())
typed: coprep.DataLoader[int] = coprep.DataLoader([1])
anything: coprep.DataLoader[Any] = make()
wider: coprep.DataLoader[object] = make()
bare(make())
"""


# The runner allows a test 180 s. mypy may take minutes to read PyTorch, so this test needs more for its two runs.
@pytest.mark.timeout(2 * MYPY_S + 60)
def test_strictly_typed_code_passes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "wrong.py").write_text(TYPED + "other: coprep.DataLoader[str] = make()\n")
    for name, code in (("typed.py", 0), ("wrong.py", 1)):
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), name]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=MYPY_S)
        assert run.returncode == code, run.stdout + run.stderr
    assert 'variable has type "DataLoader[str]"' in run.stdout
