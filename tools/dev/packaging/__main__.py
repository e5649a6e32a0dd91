"""Build the packages for users into a folder, and check them in clean environments.

usage: python -m tools.dev.packaging OUT [--scratch FOLDER] [--python PATH]... [--no-sdist-build]

Wheels are built for each architecture whose Rust target is installed. They are run with each CPython from 3.10 on
that is found on PATH, in ~/.pyenv, or by --python. A free-threaded one, from 3.14 on, is given a wheel of its own. At
the end, the program lists the steps that it left out for want of a tool.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.dev.packaging import arm64, builds, checks
from tools.dev.packaging.builds import BuildFailed
from tools.dev.packaging.checks import CheckFailed, Interpreter


def main() -> None:
    options = _parser().parse_args()
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    pythons = checks.interpreters(options.python)
    try:
        with tempfile.TemporaryDirectory(prefix="coprep-dist-") as scratch:
            photos = checks.make_photos(Path(scratch) / "photos")
            undone = _wheels(out, pythons, photos, options.scratch.resolve())
            sdist = builds.build_sdist(out, options.scratch.resolve())
            say(f"built {sdist.name}")
            if options.sdist_build:
                _check_sdist(sdist, pythons[0], photos)
    except (BuildFailed, CheckFailed, subprocess.CalledProcessError) as error:
        sys.exit(f"make dist: {error}")
    for file in sorted(out.iterdir()):
        say(f"{file.stat().st_size / 2**20:5.1f} MiB  {file}")
    for sentence in undone:
        say(f"not done: {sentence}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.dev.packaging", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for wheels and source distribution, which is emptied first")
    parser.add_argument(
        "--scratch",
        type=Path,
        required=True,
        help="a folder for what is compiled and downloaded, and kept for the next time",
    )
    parser.add_argument("--python", type=Path, action="append", default=[], help="one more interpreter to check with")
    parser.add_argument(
        "--no-sdist-build", dest="sdist_build", action="store_false", help="do not build a wheel from the sources"
    )
    return parser


def say(text: str) -> None:
    print(text, flush=True)


def _wheels(out: Path, pythons: Sequence[Interpreter], photos: Path, scratch: Path) -> list[str]:
    """Builds and checks all wheels. Returns the steps that were left out, each with the reason."""
    undone = []
    for architecture in builds.TARGETS:
        sentence = builds.missing_for(architecture)
        if sentence:
            undone.append(f"wheels for {architecture}: {sentence}")
            continue
        say(f"building for {architecture}, which takes minutes the first time")
        free = [python.path for python in pythons if python.free_threaded]
        is_native = architecture == platform.machine()
        # maturin asks a free-threaded interpreter for the name of its wheel, so the interpreter must run here.
        for wheel in builds.build_wheels(out, architecture, [None, *(free if is_native else [])], scratch):
            say(f"built {wheel.name}, which runs on {checks.check_platform(wheel)}")
            if is_native:
                _check_runs(wheel, pythons, photos)
            else:
                undone += _check_emulated(wheel, architecture, scratch / architecture, photos)
    return undone


def _check_runs(wheel: Path, pythons: Sequence[Interpreter], photos: Path) -> None:
    fitting = [python for python in pythons if python.tag in wheel.name]
    if not fitting:
        raise CheckFailed(f"no interpreter was found that can run {wheel.name}")
    for python in fitting:
        checks.check_run(wheel, python, photos)
        say(f"  runs with {python.name}")


def _check_emulated(wheel: Path, architecture: str, scratch: Path, photos: Path) -> list[str]:
    """Runs a wheel for another architecture, where it can be emulated. Returns why it was not run."""
    sentence = arm64.missing() if architecture == "aarch64" else f"{architecture} is not emulated"
    if sentence:
        return [f"running {wheel.name}: {sentence}"]
    say(f"  runs with {arm64.check_run(wheel, scratch, photos)}")
    return []


def _check_sdist(sdist: Path, python: Interpreter, photos: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="coprep-dist-") as folder:
        say("building a wheel from the source distribution, which takes minutes each time")
        wheel = builds.build_from_sdist(sdist, Path(folder) / "wheels", Path(folder))
        say(f"built {wheel.name} from {sdist.name}")
        _check_runs(wheel, [python], photos)


if __name__ == "__main__":
    main()
