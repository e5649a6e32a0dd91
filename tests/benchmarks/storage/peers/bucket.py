"""The bucket with the photographs in the format of each loader."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.storage.peers.loaders import FORMATS, Loader
from tests.support.object_server import ROOT, ObjectServer
from tools.demo.children import ChildFailed

BUCKET = "peers"
SHARDS = 16
"""Shards of each format. Their size is that of the dataset, divided by this number."""
QUICK_COUNT = 512
"""Photographs of a quick run."""
CONVERT_TIMEOUT_S = 300


@dataclass(frozen=True)
class Bucket:
    """The photographs in all formats."""

    server: ObjectServer
    samples: int
    shards: int
    """Number of tar shards, which have numbers as names."""

    @classmethod
    def fill(cls, server: ObjectServer, photographs: Dataset, python: Path, quick: bool) -> Bucket:
        """Writes all formats, each by its own package, and puts them into the bucket."""
        count = min(QUICK_COUNT, len(photographs.files)) if quick else len(photographs.files)
        each = photographs.bytes * count // len(photographs.files) // SHARDS
        with tempfile.TemporaryDirectory(prefix="coprep-peers-") as folder:
            for form in FORMATS:
                target = Path(folder) / form
                _convert(form, photographs.root, (count, each), target, python)
                server.load(BUCKET, form, target)
            shards = len(list((Path(folder) / "tar").iterdir()))
        return cls(server, count, shards)

    def url(self, loader: Loader) -> str:
        """Returns the URL that a loader reads. Tar shards are in braces, which webdataset expands too."""
        shards = f"/{{000..{self.shards - 1:03}}}.tar" if loader.form == "tar" else ""
        # webdataset opens shards over plain HTTP.
        base = "s3:/" if loader.package != "webdataset" else self.server.address
        return f"{base}/{BUCKET}/{loader.form}{shards}"


def _convert(form: str, root: Path, size: tuple[int, int], target: Path, python: Path) -> None:
    module = "tests.benchmarks.storage.peers.formats"
    command = [str(python), "-m", module, form, str(root), *map(str, size), str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CONVERT_TIMEOUT_S)
    if done.returncode:
        raise ChildFailed(f"cannot write the photographs as {form}:\n{done.stderr[-2000:]}")
