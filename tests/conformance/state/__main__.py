"""Prints the kinds of state as a Markdown table, with the samples that PyTorch's loader gives by each start method."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/conformance")]

from state.runner import ALONE, KINDS, TOGETHER, Method, Runner, When, own_environment  # noqa: E402

WHENS: tuple[When, ...] = ("before", "after")
METHODS: tuple[Method, ...] = ("spawn", "forkserver")


def samples_by(runner: Runner, method: Method, when: When, chosen: list[str]) -> dict[str, str]:
    """Returns the samples of kinds by another start method than fork."""
    found = runner.together("torch", method, when)[0] if set(chosen) & set(TOGETHER) else {}
    return found | {name: shown(runner.alone(("torch",), method, when, name)[0]) for name in chosen if name in ALONE}


def shown(report: object) -> str:
    text = getattr(report, "error", "") or getattr(report, "batches", ("",))[0]
    return text.strip().splitlines()[-1][:70].replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.state", description=__doc__)
    parser.add_argument("--only", default="", help="kinds that have this in their name")
    parser.add_argument("--fork", action="store_true", help="only fork")
    options = parser.parse_args()
    chosen = [name for name in KINDS if options.only in name]
    runner = Runner(own_environment(), imports=())
    others = {} if options.fork else {(m, w): samples_by(runner, m, w, chosen) for m in METHODS for w in WHENS}
    columns = [
        "kind",
        "what the program does",
        "counts",
        "first",
        "second",
        "after",
        *(" ".join(key) for key in others),
    ]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in chosen:
        kind = KINDS[name]
        cells = [name, kind.__doc__ or "", str(kind.counts), *map(shown, runner.by_fork("torch", name))]
        print(f"| {' | '.join([*cells, *(found[name][:70] for found in others.values())])} |", flush=True)
    print(f"\n{len(chosen)} kinds")
    runner.close()


if __name__ == "__main__":
    main()
