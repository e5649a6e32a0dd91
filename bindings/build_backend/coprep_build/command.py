"""Build the ``coprep`` command and put it where maturin packs it as a script of the wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The root of the workspace, in a checkout as in a source distribution."""
SCRIPT = ROOT / "bindings/coprep.data/scripts/coprep"
"""The file that maturin packs; see ``data`` in pyproject.toml."""


def build_command(target: str | None = None, glibc: str | None = None) -> None:
    """Builds the release command, without symbols, and copies it to :data:`SCRIPT`.

    Args:
        target: the Rust target; ``None``: that of this machine.
        glibc: the oldest version of glibc that the command must run with. Needs ``target``, ``zig`` and
            ``cargo-zigbuild``. ``None``: the version of this machine.
    """
    words = ["cargo-zigbuild" if glibc else "cargo", "rustc", "--release", "--package", "coprep-cli", "--bin", "coprep"]
    if target:
        words += ["--target", f"{target}.{glibc}" if glibc else target]
    words += ["--message-format", "json-render-diagnostics", "--quiet", "--", "-C", "strip=symbols"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the coprep command could not be built: {' '.join(words)} failed, see its messages above")
    pack_command(_executable(done.stdout))


def pack_command(program: str | os.PathLike[str]) -> None:
    """Copies the program at the path ``program`` to :data:`SCRIPT`."""
    make_script_folder()
    # A new file, since the old one may be the program of a running process, which cannot be written to.
    SCRIPT.unlink(missing_ok=True)
    shutil.copy(program, SCRIPT)
    os.chmod(SCRIPT, 0o755)


def make_script_folder() -> None:
    """Makes the folder of :data:`SCRIPT`. maturin asks for it even where it packs nothing."""
    SCRIPT.parent.mkdir(parents=True, exist_ok=True)


def _executable(messages: str) -> str:
    """Returns the path of the program in cargo's messages: the target folder may be anywhere."""
    built: list[str | None] = [
        json.loads(line).get("executable") for line in messages.splitlines() if line.startswith("{")
    ]
    return next(path for path in reversed(built) if path)
