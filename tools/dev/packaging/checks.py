"""Checks the needs of wheels for the system, and that they run in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.dev.packaging.builds import BIN

SMOKE = Path(__file__).with_name("smoke.py")
OLDEST = (3, 10)
OLDEST_FREE_THREADED = (3, 14)
"""PyO3 supports no older one."""
LIMIT_S = 300
"""Longest time of one check, in seconds. No check takes nearly as long, even emulated."""
_ABOUT = """
import json, platform, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
about = [sys.executable, platform.python_implementation(), sys.version_info[:2], free, platform.python_version()]
print(json.dumps(about))
"""


class CheckFailed(Exception):
    """Raised when a wheel breaks a promise of its name, or does not work."""


@dataclass(frozen=True)
class Interpreter:
    """A CPython of this machine."""

    path: Path
    version: tuple[int, int]
    free_threaded: bool
    name: str

    @property
    def is_supported(self) -> bool:
        return self.version >= (OLDEST_FREE_THREADED if self.free_threaded else OLDEST)

    @property
    def tag(self) -> str:
        """The interpreter and ABI that its wheel's name holds."""
        if self.free_threaded:
            name = "cp{}{}".format(*self.version)
            return f"{name}-{name}t"
        return "cp310-abi3"


def interpreters(extra: Iterable[Path]) -> list[Interpreter]:
    """Returns a CPython of each version and kind that can be found, the oldest first."""
    found: dict[tuple[tuple[int, int], bool], Interpreter] = {}
    for path in [*extra, *_candidates()]:
        interpreter = _looked_at(path)
        if interpreter and interpreter.is_supported:
            found.setdefault((interpreter.version, interpreter.free_threaded), interpreter)
    return [found[key] for key in sorted(found)]


def _candidates() -> Iterator[Path]:
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    for folder in [*folders, *Path.home().glob(".pyenv/versions/*/bin")]:
        for path in folder.glob("python3*"):
            if re.fullmatch(r"python3(\.\d+t?)?", path.name):
                yield path


def _looked_at(path: Path) -> Interpreter | None:
    """Returns an interpreter's description of itself, or ``None`` if it is no CPython or does not start."""
    done = subprocess.run([path, "-c", _ABOUT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if done.returncode:
        return None
    # `path` may be a script that chooses a version by the folder, so the interpreter is asked for its own path.
    executable, implementation, (major, minor), free_threaded, version = json.loads(done.stdout)
    if implementation != "CPython":
        return None
    name = f"CPython {version}{' free-threaded' if free_threaded else ''}"
    return Interpreter(Path(executable), (major, minor), free_threaded, name)


def make_photos(folder: Path) -> Path:
    """Makes photographs in one folder for each class. A photograph has a single grey, which its name tells."""
    from PIL import Image

    for number in range(12):
        grey = 10 + 20 * number
        file = folder / str(number % 3) / f"{grey}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60 + number, 48), (grey, grey, grey)).save(file)
    return folder


def check_run(wheel: Path, interpreter: Interpreter, photos: Path) -> None:
    """Installs a wheel with its own requirements only, and uses it."""
    with tempfile.TemporaryDirectory(prefix="coprep-dist-") as folder:
        scratch = Path(folder)
        # This environment's pip installs, because distributions do not always ship a pip with an interpreter.
        subprocess.run([interpreter.path, "-m", "venv", "--without-pip", scratch / "venv"], check=True)
        python = scratch / "venv/bin/python"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, "--only-binary=:all:", str(wheel)], check=True)
        run_smoke([python], scratch, photos, scratch / "venv/bin/coprep")


def run_smoke(python: list[str | Path], scratch: Path, photos: Path, command: Path) -> None:
    """Runs smoke.py with a coordinator of its own, whose socket is in ``scratch``."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("COPREP_", "PYTHON"))}
    own = {"COPREP_SOCKET": str(scratch / "coordinator.sock"), "COPREP_CACHE": "64M", "COPREP_STAGING": "64M"}
    # The log lies beside the socket. In the user's own folder it would mix with the logs of other coordinators.
    done = subprocess.run(
        [*python, SMOKE, photos, command],
        cwd=scratch,
        env=clean | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise CheckFailed(f"{SMOKE.name} failed with {python[0]}:\n{done.stdout}")


def check_platform(wheel: Path) -> str:
    """Returns the oldest platform that a wheel runs on, as auditwheel finds it by the symbols that are used.

    Raises:
        CheckFailed: it is newer than the wheel's name says.
    """
    done = subprocess.run([BIN / "auditwheel", "show", wheel], check=True, stdout=subprocess.PIPE, text=True)
    found = re.search(r'consistent with the following platform tag: "(\w+)"', " ".join(done.stdout.split()))
    if found is None:
        raise CheckFailed(f"auditwheel finds no platform for {wheel.name}:\n{done.stdout}")
    tag = found[1]
    if _glibc(tag) > _glibc(wheel.name):
        raise CheckFailed(f"{wheel.name} needs a newer system than its name says, {tag}:\n{done.stdout}")
    return tag


def _glibc(tag: str) -> tuple[int, int]:
    numbers = re.search(r"manylinux_(\d+)_(\d+)", tag)
    if numbers is None:
        raise CheckFailed(f"{tag} is no manylinux platform")
    return int(numbers[1]), int(numbers[2])
