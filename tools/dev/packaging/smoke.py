"""The smallest use of an installed package: run in an environment that holds it and NumPy, and nothing else.

usage: python smoke.py PHOTOS COMMAND   (PHOTOS: see tools.dev.packaging.checks; COMMAND: the installed ``coprep``)
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import coprep
import numpy as np

EPOCHS = 2


class Squares:
    """A dataset of Python code, of this script."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return np.full(4, index * index, np.int64), index


def check_native_pipeline(photos: Path) -> None:
    """Each photograph comes once an epoch, with the right pixels under the right label."""
    expected = sorted((int(file.stem), int(file.parent.name)) for file in photos.glob("*/*.jpg"))
    assert expected, f"{photos} holds no photographs"
    pipeline = coprep.ImageFolder(photos).decode().center_crop(32)
    with coprep.DataLoader(pipeline, batch_size=4, shuffle=True, framework="numpy") as loader:
        for _ in range(EPOCHS):
            found = []
            for images, labels in loader:
                assert images.shape[1:] == (3, 32, 32) and images.dtype == np.uint8, (images.shape, images.dtype)
                greys = images.astype(float).mean(axis=(1, 2, 3))
                # The name of a photograph is a multiple of ten, and JPEG changes its grey by less than five.
                found += [(round(grey / 10) * 10, int(label)) for grey, label in zip(greys, labels, strict=True)]
            assert sorted(found) == expected, found


def check_python_dataset() -> None:
    """Each sample comes once an epoch, as the dataset made it in a worker process."""
    with coprep.DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=2, framework="numpy") as loader:
        for _ in range(EPOCHS):
            found = {}
            for squares, indices in loader:
                found.update({int(index): row.tolist() for index, row in zip(indices, squares, strict=True)})
            assert found == {index: [index * index] * 4 for index in range(10)}, found


def check_command(command: str) -> None:
    """The command is of this version, and finds nothing that keeps coprep from running."""
    version = subprocess.run([command, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert version[:2] == ["coprep", coprep.__version__], version
    doctor = subprocess.run([command, "doctor", "--json"], stdout=subprocess.PIPE, text=True)
    assert doctor.returncode == 0, doctor.stdout
    assert json.loads(doctor.stdout), "the doctor looked at nothing"


def check_package() -> None:
    """The metadata are whole, and the interpreter runs as free as it did without coprep."""
    package = metadata.distribution("coprep")
    assert package.version == coprep.__version__, package.version
    licences = [file for file in package.files or () if "licenses" in file.parts]
    assert {file.name for file in licences} == {"LICENSE", "THIRD-PARTY-NOTICES.md"}, licences
    assert "torch" not in sys.modules, "coprep imported PyTorch by itself"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled(), "the GIL is enabled, because a module needs it"  # type: ignore[attr-defined]


def main(photos: str, command: str) -> None:
    check_command(command)
    check_native_pipeline(Path(photos))
    check_python_dataset()
    check_package()
    coprep.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
