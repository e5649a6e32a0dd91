"""Arguments of the benchmarks' commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def words(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Returns a parser of a list of some of these words, separated by commas."""

    def of(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
        return found

    return of
