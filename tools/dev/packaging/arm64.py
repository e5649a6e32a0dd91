"""Run a wheel for aarch64 on another machine: qemu, and a Python from Debian's packages, unpacked and not installed.

Nothing needs root, and the package lists of this machine stay as they are.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tools.dev.packaging.checks import run_smoke

PACKAGES = ("python3", "libgcc-s1", "libstdc++6")
SETTINGS = """\
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "%(folder)s/state";
Dir::State::status "%(folder)s/state/status";
Dir::Cache "%(folder)s/cache";
"""
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")


def missing() -> str | None:
    """Returns the reason why wheels for aarch64 cannot be run here, in one sentence, or ``None``."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "the emulator and a Python for aarch64 are taken from Debian's packages, and there is no apt-get"
    return None


def check_run(wheel: Path, folder: Path, photos: Path) -> str:
    """Installs a wheel beside an emulated interpreter, uses it, and returns the interpreter's name.

    The downloaded files stay in ``folder`` for the next call.
    """
    python = folder / "root/usr/bin/python3"
    if not (folder / "complete").exists():
        _download(folder)
        # Python starts workers by its own path, so a program that this machine can run must lie there.
        for program in (python.resolve(), folder / "root/usr/local/bin/coprep"):
            _emulate(program, folder)
        (folder / "complete").touch()
    version = _version(python)
    site = folder / "root/usr/local/lib" / f"python{version}/dist-packages"
    shutil.rmtree(site, ignore_errors=True)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(site)]
    for name in PLATFORMS:
        words += ["--platform", name]
    subprocess.run([*words, "--python-version", version, "--only-binary=:all:", str(wheel)], check=True)
    command = folder / "root/usr/local/bin/coprep"
    shutil.copy(site / "bin/coprep", _real(command))
    scratch = folder / "run"
    scratch.mkdir(mode=0o700, exist_ok=True)
    run_smoke([python], scratch, photos, command)
    return f"CPython {version} of Debian, {'emulated' if platform.machine() != 'aarch64' else 'unpacked'}"


def _version(python: Path) -> str:
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    return subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _download(folder: Path) -> None:
    """Unpacks the emulator into ``emulator`` and the packages for aarch64 into ``root``."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("state/lists/partial", "cache/archives/partial", "emulator", "root/usr/local/bin"):
        (folder / name).mkdir(parents=True)
    subprocess.run(
        ["apt-get", "download", "-qq", "qemu-user-static"], check=True, cwd=folder, stderr=subprocess.DEVNULL
    )
    _unpack(folder, folder / "emulator")
    (folder / "state/status").touch()
    (folder / "apt.conf").write_text(SETTINGS % {"folder": folder})
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    for words in (["update"], ["install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES]):
        subprocess.run(["apt-get", "-qq", *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    _unpack(folder / "cache/archives", folder / "root")


def _unpack(packages: Path, folder: Path) -> None:
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)


def _emulate(program: Path, folder: Path) -> None:
    """Replaces a program by a script that emulates it, so that the program is still started by its own path."""
    if program.exists():
        program.rename(_real(program))
    emulator, root, real = (shlex.quote(str(p)) for p in (_emulator(folder), folder / "root", _real(program)))
    program.write_text(f'#!/bin/sh\nexec {emulator} -L {root} -0 "$0" {real} "$@"\n')
    program.chmod(0o755)


def _real(program: Path) -> Path:
    return program.with_name(program.name + ".aarch64")


def _emulator(folder: Path) -> Path:
    return folder / "emulator/usr/bin/qemu-aarch64-static"
