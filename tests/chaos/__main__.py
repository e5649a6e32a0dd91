"""Command line of the campaign."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.campaign import Campaign
from tests.chaos.draw import draw
from tests.chaos.history import Settings
from tests.chaos.plan import Plan, Point, features, loads
from tests.chaos.store import find_program


def listed_points() -> tuple[Point, ...]:
    """Returns the failpoints that plans may use. They are the same for each build, so that a seed has one plan."""
    text = (Path(__file__).parent / "failpoints.txt").read_text()
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(Point(name, cost == "sample") for name, cost in lines)


def has_failpoints(command: Path) -> bool:
    """Returns True for a command that reads ``FAILPOINTS``, which only a build with them does."""
    return b"FAILPOINTS" in command.read_bytes()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first history")
    parser.add_argument("--histories", type=int, default=200, help="number of histories")
    parser.add_argument("--seconds", type=float, help="begin no history after so long")
    parser.add_argument("--only", default="", help="features of the summary's table: only seeds whose plans have all")
    parser.add_argument("--parallel", type=int, default=2, help="histories at a time")
    parser.add_argument("--plan", type=Path, help="run this plan (JSON) and no other; --histories times")
    parser.add_argument("--show", action="store_true", help="print the plans and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print plans, faults and ends as they come")
    parser.add_argument("--command", type=Path, help="the coprep program, if not the one that is installed here")
    parser.add_argument("--out", type=Path, default=Path("target/chaos"), help="folder of findings")
    parser.add_argument("--timeout", type=float, default=15.0, help="seconds that a job waits for a batch")
    parser.add_argument(
        "--deadline",
        type=float,
        default=120.0,
        help="seconds that a history may take; a job that cannot reconnect says so after 60",
    )
    return parser.parse_args(arguments)


def plans_of(options: argparse.Namespace, points: tuple[Point, ...]) -> Iterator[Plan]:
    end = None if options.seconds is None else time.monotonic() + options.seconds
    for number, plan in enumerate(itertools.islice(_endless(options, points), options.histories)):
        if end is not None and number and time.monotonic() > end:
            return
        yield plan


def _endless(options: argparse.Namespace, points: tuple[Point, ...]) -> Iterator[Plan]:
    if options.plan:
        raw = loads(options.plan.read_text())
        yield from (dataclasses.replace(raw, seed=raw.seed + number) for number in itertools.count())
    wanted = {name.strip() for name in options.only.split(",") if name.strip()}
    known = {feature for seed in range(2000) for feature in features(draw(seed, points))} if wanted else set()
    if not wanted <= known:
        raise SystemExit(
            f"--only: no plan has {', '.join(sorted(wanted - known))}; there are {', '.join(sorted(known))}"
        )
    drawn = (draw(options.seed + number, points) for number in itertools.count())
    yield from (plan for plan in drawn if wanted <= features(plan))


def main() -> int:
    options = parse()
    command = options.command or Path(sys.executable).parent / "coprep"
    points = listed_points()
    if options.show or options.verbose:
        for plan in plans_of(options, points):
            print(plan.dumps())
    if options.show:
        return 0
    out = options.out.absolute()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as runtime:
        settings = Settings(
            out / "images",
            out,
            Path(runtime),
            str(command.absolute()),
            options.timeout,
            options.deadline,
            options.verbose,
            has_failpoints(command),
            find_program(),
        )
        summary = Campaign(settings, options.parallel).run(plans_of(options, points))
    print(summary.text())
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if summary.bad else 0


if __name__ == "__main__":
    sys.exit(main())
