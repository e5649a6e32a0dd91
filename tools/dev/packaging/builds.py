"""Wheels for any Linux that is not older than :data:`GLIBC`, and the source distribution."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BACKEND = ROOT / "bindings/build_backend"
BIN = Path(sys.prefix) / "bin"
GLIBC = "2.28"
"""The version in RHEL 8 and Debian 10, which PyTorch's wheels need too. coprep needs 2.27, for ``memfd_create``."""
TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


class BuildFailed(Exception):
    """A program of the packaging tools failed. Its output is the message."""


def missing_for(architecture: str) -> str | None:
    """Returns the reason why wheels cannot be built for an architecture, in one sentence, or ``None``."""
    target = TARGETS[architecture]
    folder = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", target], check=True, stdout=subprocess.PIPE, text=True
    )
    if not Path(folder.stdout.strip()).is_dir():
        return f"Rust's standard library for {architecture} is not installed: rustup target add {target}"
    return None


def build_sdist(out: Path, scratch: Path) -> Path:
    """Builds the source distribution into ``out``."""
    _run([sys.executable, "-m", "coprep_build", "--no-command"], scratch)
    return _built(["maturin", "sdist"], out, scratch)


def build_wheels(out: Path, architecture: str, interpreters: list[Path | None], scratch: Path) -> list[Path]:
    """Builds the wheels of an architecture into ``out``: for each free-threaded interpreter that is given, and, for
    ``None``, one for all other interpreters.

    The compiled files stay in ``scratch``, where the command and the module each have a folder. In one folder cargo
    would compile everything again at each change of the linker, and cargo-zigbuild and maturin wrap zig differently.
    """
    target = TARGETS[architecture]
    _run([sys.executable, "-m", "coprep_build", "--target", target, "--glibc", GLIBC], scratch / "command")
    words = ["maturin", "build", "--release", "--quiet", "--zig", "--target", target]
    words += ["--compatibility", f"manylinux_{GLIBC.replace('.', '_')}"]
    return [
        # Any interpreter will do for the stable interface, since none is asked for the wheel's name.
        _built([*words, "--interpreter", str(interpreter or sys.executable)], out, scratch / "module")
        for interpreter in interpreters
    ]


def build_from_sdist(sdist: Path, out: Path, scratch: Path) -> Path:
    """Builds a wheel as ``pip install`` of the source distribution does: isolated, in an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=True)
    pip = [str(scratch / "venv/bin/python"), "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(scratch / "target")}
    # Without its cache, because pip would take the wheel that it built from an earlier file of this name.
    words = [*pip, "--no-deps", "--no-cache-dir", "--wheel-dir", str(out), str(sdist)]
    subprocess.run(words, check=True, cwd=scratch, env=environment)
    return next(out.glob("*.whl"))


def _built(words: list[str], out: Path, target: Path) -> Path:
    """Runs maturin and returns the path of the one file it makes."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        _run([*words, "--out", folder], target)
        (made,) = Path(folder).iterdir()
        return made.replace(out / made.name)


def _run(words: list[str], target: Path) -> None:
    """Runs a program of the packaging tools, with a target folder for cargo, and shows its output if it fails."""
    # First on the path, since zig is found by the name of the interpreter that has it.
    changes = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(BACKEND)}
    changes["CARGO_TARGET_DIR"] = str(target)
    # maturin would warn that the build backend is another. It is a wrapper of maturin's.
    changes["MATURIN_NO_MISSING_BUILD_BACKEND_WARNING"] = "1"
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | changes, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise BuildFailed(f"{' '.join(words)} failed:\n{done.stdout}")
