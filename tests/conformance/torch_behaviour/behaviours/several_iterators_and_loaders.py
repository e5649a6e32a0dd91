"""Checks several iterators of a loader, and several loaders."""

from __future__ import annotations

from typing import Any

from .parts_of_checks import Numbers, ints, raises
from .table import behaviour


@behaviour(
    "two iterators of one loader",
    difference="A loader is one position in its stream, which a checkpoint holds; a second loader costs little.",
)
def two_iterators(DataLoader: Any) -> None:
    """Two iterators of one loader are independent."""
    loader = DataLoader(Numbers(6), num_workers=2)
    assert [(int(a), int(b)) for a, b in zip(loader, loader, strict=True)] == [(i, i) for i in range(6)]


@two_iterators.instead
def two_iterators_ours(DataLoader: Any) -> None:
    """The older of two iterators of one loader raises RuntimeError; the newer is whole."""
    loader = DataLoader(Numbers(6), num_workers=2)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with raises(RuntimeError):
        next(older)
    assert ints(newer) == list(range(6))


@behaviour("several loaders")
def several_loaders(DataLoader: Any) -> None:
    """Several loaders, of the same dataset and of others, run side by side."""
    data = Numbers(6)
    loaders = [DataLoader(d, batch_size=2, num_workers=2) for d in (data, data, Numbers(6, offset=10))]
    found: list[list[int]] = [[], [], []]
    for batches in zip(*loaders, strict=True):
        for mine, batch in zip(found, batches, strict=True):
            mine += batch.tolist()
    assert found == [list(range(6)), list(range(6)), list(range(10, 16))]


@behaviour("loaders read in turn")
def loaders_in_turn(DataLoader: Any) -> None:
    """Loaders of one dataset that are read in turn give the same batches, in the order of the dataset."""
    one, other = (DataLoader(Numbers(200), batch_size=10, num_workers=2) for _ in range(2))
    for _ in range(2):
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(one, other, strict=True)]
        assert all(a == b for a, b in pairs)
        assert [i for a, _ in pairs for i in a] == list(range(200))


@behaviour("an idle loader")
def idle_loader(DataLoader: Any) -> None:
    """A loader that was left in mid-epoch starts again in the dataset's order, and does not disturb that of another."""
    idle, passes = (DataLoader(Numbers(200), batch_size=10, num_workers=2) for _ in range(2))
    assert next(iter(idle)).tolist() == list(range(10))
    assert ints(passes) == list(range(200))
    assert ints(idle) == list(range(200))
    assert ints(passes) == list(range(200))


@behaviour("training and validation")
def training_and_validation(DataLoader: Any) -> None:
    """Another loader is iterated between epochs of one loader, and both stay right."""
    train = DataLoader(Numbers(10), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    check = DataLoader(Numbers(4, offset=50), batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert sorted(ints(train)) == list(range(10))
        assert ints(check) == list(range(50, 54))


@behaviour("a loader within a loop of another")
def nested_loaders(DataLoader: Any) -> None:
    """Another loader may be iterated within the loop over the first one."""
    outer, inner = DataLoader(Numbers(3), num_workers=1), DataLoader(Numbers(2, offset=5), num_workers=1)
    assert [(int(a), int(b)) for a in outer for b in inner] == [(a, b) for a in range(3) for b in (5, 6)]
