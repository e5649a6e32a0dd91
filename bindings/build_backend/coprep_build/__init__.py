"""The build backend of the Python package: maturin, preceded by the parts of the wheel that maturin does not build.

maturin builds the native module. The wheel also holds the ``coprep`` command, which is another program of the
workspace, and the licences of everything that is linked into both. Each hook that reads the project makes these parts
first, so that ``pip install`` of a checkout or of a source distribution installs a complete package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import maturin

from coprep_build.command import build_command, make_script_folder
from coprep_build.notices import write_notices

# maturin would warn that it is not the backend, which pip shows.
os.environ["MATURIN_NO_MISSING_BUILD_BACKEND_WARNING"] = "1"

Settings = Mapping[str, Any] | None

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist


def _prepare() -> None:
    """Makes the files that maturin asks for before it reads the project."""
    write_notices()
    make_script_folder()


def build_wheel(directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Builds a wheel into ``directory`` and returns its file name."""
    _prepare()
    build_command()
    return str(maturin.build_wheel(directory, config_settings, metadata_directory))


def build_editable(directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Builds an editable wheel into ``directory`` and returns its file name."""
    _prepare()
    build_command()
    return str(maturin.build_editable(directory, config_settings, metadata_directory))


def build_sdist(directory: str, config_settings: Settings = None) -> str:
    """Builds a source distribution into ``directory`` and returns its file name."""
    _prepare()
    return str(maturin.build_sdist(directory, config_settings))


def prepare_metadata_for_build_wheel(directory: str, config_settings: Settings = None) -> str:
    """Writes the wheel's metadata, which list the licence files, into ``directory``."""
    _prepare()
    return str(maturin.prepare_metadata_for_build_wheel(directory, config_settings))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
