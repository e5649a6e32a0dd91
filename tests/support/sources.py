"""The files of the repository, and the text of the product's sources."""

from __future__ import annotations

import functools
import os
import re

from pages import ROOT

FOLDERS = ("bindings", "cache", "coordinator", "docs", "tests", "tools")
LEFT_OUT = {"__pycache__", "target", "node_modules"}


def _found() -> list[str]:
    found = []
    for top in FOLDERS:
        for folder, folders, names in os.walk(ROOT / top):
            folders[:] = [name for name in folders if name not in LEFT_OUT]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return found


SOURCES = _found()
"""The paths of all files, also where there is no git."""


def sources_that_end(path: str) -> list[str]:
    """Returns the files whose paths end like this, or that lie in a folder of this name."""
    folder = f"/{path.rstrip('/')}/"
    return [s for s in SOURCES if (not path.endswith("/") and f"/{s}".endswith(f"/{path}")) or folder in f"/{s}"]


@functools.cache
def text_of(*endings: str) -> str:
    """The product's sources with these endings, each of their texts in one piece."""
    product = [s for s in SOURCES if s.endswith(endings) and s.partition("/")[0] not in ("docs", "tests")]
    joined = "\n".join((ROOT / source).read_text() for source in product)
    # Rust continues a text after a backslash, and Python sets the parts of a text side by side.
    return re.sub(r'\\\n\s*|"\s*\n\s*f?"', "", joined)
