"""What a behaviour is, and the table of all."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable
from typing import Any, Literal

import coprep
from torch.utils import data as torch_data

Loader = Literal["torch", "coprep"]
Check = Callable[[Any], None]


@dataclasses.dataclass
class Behaviour:
    """A behaviour: its check, and where coprep differs on purpose, the reason and coprep's own check."""

    name: str
    check: Check
    difference: str = ""
    ours: Check | None = None

    @property
    def key(self) -> str:
        """The check's function, by which one behaviour is picked."""
        return self.check.__name__

    @property
    def statement(self) -> str:
        return self.check.__doc__ or ""

    @property
    def our_statement(self) -> str:
        return (self.ours and self.ours.__doc__) or ""

    def instead(self, check: Check) -> Check:
        """The check that holds for coprep."""
        self.ours = check
        return check

    def run(self, loader: Loader) -> None:
        """Raises if the behaviour is not as stated."""
        check = self.ours if loader == "coprep" and self.ours else self.check
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check({"torch": torch_data, "coprep": coprep}[loader].DataLoader)
        if loader == "coprep":
            # Loaders end with their last reference; the next check finds none of this one's.
            gc.collect()


BEHAVIOURS: list[Behaviour] = []


def behaviour(name: str, difference: str = "") -> Callable[[Check], Behaviour]:
    def register(check: Check) -> Behaviour:
        BEHAVIOURS.append(Behaviour(name, check, difference))
        return BEHAVIOURS[-1]

    return register
