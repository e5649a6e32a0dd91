"""Lists what jobs must have in common to share a dataset, and what they need not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coprep._fingerprint import Counted
from coprep._folds import fold_of
from coprep._reach import Evaluation
from coprep._reach.memory import suffixes_within

_SHOWN = 40
"""Most members that are printed as not counting."""


class Counts(NamedTuple):
    """What counts of a dataset. ``print`` it."""

    counting: list[tuple[str, str, str]]
    """The name of each part, its value if that is short and no secret, and why it counts."""
    unread: list[str]
    """Paths of members that no code reads which makes samples, of objects of which it reads others."""

    def __str__(self) -> str:
        width = max((len(_equation(name, value)) for name, value, _ in self.counting), default=0)
        width = min(width, 50)
        lines = ["These must be equal in jobs that share:"]
        lines += [f"  {_equation(name, value):{width}}  {why}".rstrip() for name, value, why in self.counting]
        if self.unread:
            lines.append("These do not count:")
            lines += [f"  {path}" for path in self.unread[:_SHOWN]]
            if len(self.unread) > _SHOWN:
                lines.append(f"  and {len(self.unread) - _SHOWN} more")
        return "\n".join(lines)


def _equation(name: str, value: str) -> str:
    return f"{name} = {value}" if value else name


def what_counts(
    dataset: Any,
    transform: Callable[[Any], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Counts:
    """Returns what jobs must have in common to share a dataset: what the code reads that makes its samples.

    Of a ``torch.utils.data.Subset`` it is what counts of the dataset that it is a part of.

    Args:
        dataset, transform, worker_init_fn: as for :class:`DataLoader`.
    """
    fold = fold_of(dataset, is_shuffled=True)
    dataset = dataset if fold is None else fold.dataset
    given = {"dataset": dataset, "transform": transform, "worker_init_fn": worker_init_fn}
    counted = Counted({name: value for name, value in given.items() if value is not None})
    names = [name for name, _ in counted.parts([])]
    told = counted.told()
    run = counted.run
    return Counts([(name, *told.part(name)) for name in names], [] if run is None else list(_unread(run)))


def _unread(run: Evaluation) -> Iterator[str]:
    read = {read.path for read in run.reads.values()}
    partly_read = {path[: max(path.rfind("."), path.rfind("["))] for path in read}
    for live in run.lives():
        if live.path in partly_read and not live.is_whole:
            paths = (live.path + suffix for suffix in suffixes_within(live.obj) if not suffix.startswith("._"))
            yield from (path for path in paths if path not in read and path not in partly_read)
