"""Runs every behaviour with both loaders and prints the results as a Markdown table."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import get_args

import coprep

from .behaviours import BEHAVIOURS, Behaviour, Loader

LIMIT = 120
"""Seconds after which a check counts as failed."""


@contextlib.contextmanager
def coordinator() -> Iterator[None]:
    """Provides a coordinator for this run alone, and ends it afterwards."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="coprep-") as folder:
        os.environ |= {"COPREP_SOCKET": f"{folder}/coordinator.sock", "COPREP_CACHE": "64M", "COPREP_STAGING": "64M"}
        try:
            yield
        finally:
            # No coordinator was started if only PyTorch's loader was checked.
            with contextlib.suppress(coprep.CoprepError):
                coprep.stop()


def outcome(behaviour: Behaviour, loader: Loader) -> str:
    """Returns the error of the check, or an empty string if the behaviour is as stated."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {LIMIT} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        behaviour.run(loader)
    except Exception as error:
        lines = str(error).strip().splitlines()
        # A vertical bar would end the table's cell.
        return f"{type(error).__name__} {lines[0] if lines else ''}".strip()[:160].replace("|", "\\|")
    finally:
        signal.alarm(0)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.torch_behaviour", description=__doc__)
    parser.add_argument("--only", default="", help="behaviours that have this in their name or their function's")
    parser.add_argument("--loader", choices=get_args(Loader), action="append", help="default: both")
    options = parser.parse_args()
    chosen = [b for b in BEHAVIOURS if options.only in b.name or options.only in b.key]
    loaders: list[Loader] = options.loader or list(get_args(Loader))
    failed = dict.fromkeys(loaders, 0)
    print("| behaviour | PyTorch | coprep | why different |\n|---|---|---|---|")
    with coordinator():
        for behaviour in chosen:
            cells = {"torch": "", "coprep": ""}
            for loader in loaders:
                error = outcome(behaviour, loader)
                failed[loader] += bool(error)
                differs = loader == "coprep" and behaviour.difference
                cells[loader] = f"**FAILED**: {error}" if error else behaviour.our_statement if differs else "yes"
            row = [f"**{behaviour.name}**: {behaviour.statement}", cells["torch"], cells["coprep"]]
            print(f"| {' | '.join([*row, behaviour.difference])} |", flush=True)
    different = sum(bool(b.difference) for b in chosen)
    for loader, count in failed.items():
        print(f"\n{loader}: {len(chosen) - count} of {len(chosen)} hold", end="")
    print(f"\n{different} differ on purpose")
    return int(any(failed.values()))


if __name__ == "__main__":
    sys.exit(main())
