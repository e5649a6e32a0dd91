"""The type of a behaviour, and the table of all behaviours."""

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
    """A behaviour with its check. Where coprep differs on purpose, it also has the reason and coprep's own check."""

    name: str
    check: Check
    difference: str = ""
    ours: Check | None = None

    @property
    def key(self) -> str:
        """Returns the name of the check's function, which selects one behaviour."""
        return self.check.__name__

    @property
    def statement(self) -> str:
        return self.check.__doc__ or ""

    @property
    def our_statement(self) -> str:
        return (self.ours and self.ours.__doc__) or ""

    def instead(self, check: Check) -> Check:
        """Registers the check that holds for coprep."""
        self.ours = check
        return check

    def run(self, loader: Loader) -> None:
        """Runs the check, which raises if the behaviour is not as stated."""
        check = self.ours if loader == "coprep" and self.ours else self.check
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check({"torch": torch_data, "coprep": coprep}[loader].DataLoader)
        if loader == "coprep":
            # A loader ends with its last reference. Collecting it now keeps it out of the next check.
            gc.collect()


BEHAVIOURS: list[Behaviour] = []


def behaviour(name: str, difference: str = "") -> Callable[[Check], Behaviour]:
    def register(check: Check) -> Behaviour:
        BEHAVIOURS.append(Behaviour(name, check, difference))
        return BEHAVIOURS[-1]

    return register
