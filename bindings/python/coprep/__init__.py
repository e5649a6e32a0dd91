"""Coordinated data preparation: concurrent training jobs on one machine share one data loader.

>>> import coprep
>>> train = (coprep.ImageFolder("data/train").decode()
...          .random_resized_crop(224).random_horizontal_flip())
>>> loader = coprep.DataLoader(train, batch_size=64, shuffle=True)
>>> for images, labels in loader:
...     pass

Any number of processes that run such a script share one preparation of each minibatch. Nothing else has to be
configured.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from coprep import _coprep
from coprep._coprep import Pipeline, __version__
from coprep._errors import (
    CacheWarning,
    CoprepError,
    SampleError,
    SkippedSampleWarning,
    StorageError,
    TimeoutError,
    UnsharedWarning,
    WaitingWarning,
)

if TYPE_CHECKING:
    from coprep._install import install, uninstall
    from coprep._loader import DataLoader

__all__ = [
    "CacheWarning",
    "CoprepError",
    "DataLoader",
    "Files",
    "ImageFolder",
    "Pipeline",
    "SampleError",
    "SkippedSampleWarning",
    "StorageError",
    "TimeoutError",
    "UnsharedWarning",
    "WaitingWarning",
    "WebDataset",
    "__version__",
    "install",
    "status",
    "stop",
    "uninstall",
]

Path = str | os.PathLike[str]
_IMPORTED_WHEN_USED = {"DataLoader": "_loader", "install": "_install", "uninstall": "_install"}
"""Names that need NumPy, with their modules. NumPy takes most of the time that it takes to import this package."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that ``status`` and ``python -m coprep`` do without NumPy."""
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_IMPORTED_WHEN_USED[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List names that are not imported yet too, for completion."""
    return sorted({*globals(), *_IMPORTED_WHEN_USED})


def ImageFolder(root: Path) -> Pipeline:  # noqa: N802 - the name is torchvision's
    """Returns the images of a folder with one subfolder per class, as ``torchvision.datasets.ImageFolder`` reads it.

    Classes are numbered in lexicographic order of the subfolders' names. Sample ids follow (class, path). The
    coordinator reads the folder when a loader first needs it.

    Args:
        root: the folder, or its URL in an object store: ``s3://bucket/prefix``, ``gs://``, ``az://``, or ``http(s)://``
            of a server that can be listed by WebDAV.

    Raises:
        ValueError: the URL is not accepted.
    """
    return _coprep.image_folder(root)


def Files(paths: Iterable[Path], labels: Iterable[int] | None = None) -> Pipeline:  # noqa: N802
    """Returns images by path. A sample's id is its position in the list.

    Args:
        paths: image files, or their URLs: ``s3://``, ``gs://``, ``az://``, ``http://``, ``https://``.
        labels: one integer for each path; 0 for all if left out.

    Raises:
        ValueError, TypeError: a path or a label is not one, or their numbers differ.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        # The characters of a text would be taken for paths.
        raise TypeError(f"paths must be a list of paths, not {paths!r}: write [{paths!r}], or coprep.ImageFolder(...)")
    return _coprep.files([os.fspath(p) for p in paths], None if labels is None else [_label(x) for x in labels])


def WebDataset(  # noqa: N802 - the name is that of the package webdataset
    urls: Path | Iterable[Path], image: str = "jpg;jpeg;png;webp", label: str | None = "cls"
) -> Pipeline:
    """Returns the images in tar shards, read one by one and in any order, as those of a folder are.

    Consecutive files of a shard whose names agree up to the first dot of the base name are a sample, as in the package
    ``webdataset``. Sample ids follow (shard, position in the shard). The first coordinator that opens a shard finds its
    samples by reading the headers in it, and keeps an index of them in ``~/.cache/coprep``; ``coprep index`` makes the
    index beforehand. Images are 8-bit RGB of shape (3, height, width), labels are int64.

    Args:
        urls: uncompressed tar files: a path or URL (``s3://``, ``gs://``, ``az://``, ``http://``, ``https://``), or
            several. Braces are expanded: ``"s3://bucket/train-{000..099}.tar"``, ``"{a,b}.tar"``.
        image: endings of the images' names, without a dot, separated by semicolons. The first one that a sample has is
            its image.
        label: ending of the file that holds the label, an integer in text; ``"json:field"`` for an integer field of the
            sample's .json file; ``None`` for no labels, which gives 0 for all.

    Raises:
        ValueError: a name, ``image`` or ``label`` is not accepted, or a name is that of a compressed file. When a
            loader opens the shards: one of them is cut off or no tar file, or a sample lacks a part.
        TypeError: ``urls`` is not text.

    >>> coprep.WebDataset("s3://bucket/train-{000..099}.tar").decode().random_resized_crop(224)
    """
    if isinstance(urls, bytes):
        raise TypeError(f"urls must be text, not {urls!r}")
    names = [urls] if isinstance(urls, (str, os.PathLike)) else list(urls)
    return _coprep.web_dataset([os.fspath(name) for name in names], image, label)


def _label(value: Any) -> int:
    # Not `int`, which would turn 1.7 into 1.
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"labels must be integers, not {value!r}") from None


def status(socket: Path | None = None, slow: int = 0) -> dict[str, Any]:
    """Returns the state of the running coordinator: its streams, jobs and caches.

    It has the form that ``coprep status --json`` prints.

    Args:
        slow: number of the most expensive samples to report for each stream, in the ``slowest`` list of its ``costs``.

    Raises:
        CoprepError: no coordinator runs.
    """
    result: dict[str, Any] = json.loads(_coprep.status(socket, slow))
    return result


def stop(socket: Path | None = None) -> int:
    """Ends the running coordinator and frees its caches. Jobs that are still running start a new one.

    Returns:
        The id of the process that was ended.

    Raises:
        CoprepError: no coordinator runs.
    """
    return _coprep.stop(socket)
