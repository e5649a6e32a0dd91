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
from collections.abc import Callable, Iterable, Mapping
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
    from coprep._what_counts import what_counts

__all__ = [
    "Arrays",
    "AudioFolder",
    "CacheWarning",
    "CoprepError",
    "DataLoader",
    "Files",
    "ImageFolder",
    "Parquet",
    "Pipeline",
    "SampleError",
    "SkippedSampleWarning",
    "StorageError",
    "TimeoutError",
    "Tokens",
    "UnsharedWarning",
    "WaitingWarning",
    "WebDataset",
    "__version__",
    "install",
    "status",
    "stop",
    "uninstall",
    "what_counts",
]

Path = str | os.PathLike[str]
CredentialProvider = Callable[[], Mapping[str, Any]]
_IMPORTED_WHEN_USED = {
    "DataLoader": "_loader",
    "install": "_install",
    "uninstall": "_install",
    "what_counts": "_what_counts",
}
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


def ImageFolder(  # noqa: N802 - the name is torchvision's
    root: Path, *, credential_provider: CredentialProvider | None = None
) -> Pipeline:
    """Returns the images of a folder with one subfolder per class, as ``torchvision.datasets.ImageFolder`` reads it.

    Classes are numbered in lexicographic order of the subfolders' names. Sample ids follow (class, path). The
    coordinator reads the folder when a loader first needs it.

    Args:
        root: the folder, or its URL in an object store: ``s3://bucket/prefix``, ``gs://``, ``az://``, ``hf://``, or
            ``http(s)://`` of a server that can be listed by WebDAV.
        credential_provider: a function without arguments that returns the credentials of the store, where the job's
            environment does not name them. The dict is that of the package ``obstore``, whose providers may be given:
            ``access_key_id``, ``secret_access_key`` and ``token`` for ``s3://``; ``token`` for ``gs://`` and ``hf://``;
            ``access_key``, ``sas_token`` or ``token`` for ``az://``; and ``expires_at``, a datetime with a time zone.
            It is called in a thread of its own whenever new ones are needed.

    Raises:
        ValueError: the URL is not accepted, or there is a provider and no URL.
        TypeError: the provider cannot be called, or is an async function.
    """
    return _provided(_coprep.image_folder(root), credential_provider)


def AudioFolder(root: Path, *, credential_provider: CredentialProvider | None = None) -> Pipeline:  # noqa: N802
    """Returns the audio files of a folder with one subfolder per class: those that end in .wav or .flac, in any case.

    Classes and ids are numbered as by :func:`ImageFolder`. Batches are ``(audio, labels)``: float32 of shape (batch,
    channels, samples), or (batch, channels, bands, frames) after ``log_mel``; labels are int64 of shape (batch,).

    Args:
        root: the folder, or its URL in an object store, as for :func:`ImageFolder`.
        credential_provider: makes the credentials of the store, as for :func:`ImageFolder`.

    Raises:
        ValueError: the URL is not accepted.

    >>> coprep.AudioFolder("data/train").decode_audio().resample(16000).random_crop(2.0).log_mel(n_mels=80)
    """
    return _provided(_coprep.audio_folder(root), credential_provider)


def Files(  # noqa: N802
    paths: Iterable[Path | bytes],
    labels: Iterable[int] | None = None,
    *,
    credential_provider: CredentialProvider | None = None,
) -> Pipeline:
    """Returns files by path: images, audio, or ``.npy`` arrays. A sample's id is its position in the list.

    Args:
        paths: the files, of any names, or their URLs: ``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``.
        labels: one integer for each path; 0 for all if left out.
        credential_provider: makes the credentials of the store, as for :func:`ImageFolder`.

    Raises:
        ValueError, TypeError: a path or a label is not one, or their numbers differ.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        # The characters of a text would be taken for paths.
        raise TypeError(f"paths must be a list of paths, not {paths!r}: write [{paths!r}], or coprep.ImageFolder(...)")
    listed = _coprep.files([os.fsdecode(p) for p in paths], None if labels is None else [_label(x) for x in labels])
    return _provided(listed, credential_provider)


def WebDataset(  # noqa: N802 - the name is that of the package webdataset
    urls: Path | Iterable[Path],
    image: str = "jpg;jpeg;png;webp",
    label: str | None = "cls",
    *,
    credential_provider: CredentialProvider | None = None,
) -> Pipeline:
    """Returns the images in tar shards, read one by one and in any order, as those of a folder are.

    Consecutive files of a shard whose names agree up to the first dot of the base name are a sample, as in the package
    ``webdataset``. Sample ids follow (shard, position in the shard). The first coordinator that opens a shard finds its
    samples by reading the headers in it, and keeps an index of them in ``~/.cache/coprep``; ``coprep index`` makes the
    index beforehand. Images are 8-bit RGB of shape (3, height, width), labels are int64.

    Args:
        urls: uncompressed tar files: a path or URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``), or
            several. Braces are expanded: ``"s3://bucket/train-{000..099}.tar"``, ``"{a,b}.tar"``.
        image: endings of the images' names, without a dot, separated by semicolons. The first one that a sample has is
            its image. ``"flac;wav"`` names audio, for ``decode_audio``, and ``"npy"`` arrays, for ``decode_npy``.
        label: ending of the file that holds the label, an integer in text; ``"json:field"`` for an integer field of the
            sample's .json file; ``None`` for no labels, which gives 0 for all.
        credential_provider: makes the credentials of the store, as for :func:`ImageFolder`.

    Raises:
        ValueError: a name, ``image`` or ``label`` is not accepted, or a name is that of a compressed file. When a
            loader opens the shards: one of them is cut off or no tar file, or no sample has its image and its label.
            A sample that lacks one is left out, with a :class:`SkippedSampleWarning`.
        TypeError: ``urls`` is not text.

    >>> coprep.WebDataset("s3://bucket/train-{000..099}.tar").decode().random_resized_crop(224)
    """
    return _provided(_coprep.web_dataset(_file_names("urls", urls), image, label), credential_provider)


def Parquet(  # noqa: N802
    urls: Path | Iterable[Path],
    image: str = "image",
    label: str | None = "label",
    *,
    credential_provider: CredentialProvider | None = None,
) -> Pipeline:
    """Returns the images in a column of parquet files, such as those of Hugging Face's Hub.

    Sample ids follow (file, row). When a loader opens the files, their footers and labels are read, several files at a
    time. Images are read by row groups: no row can be read by itself. So ``DataLoader(shuffle=True)`` draws from a
    window of row groups with 512 MiB of images unless ``shuffle_window`` says otherwise, and each row group is read
    once. Images are 8-bit RGB of shape (3, height, width), labels are int64. ``classes`` are those that
    Hugging Face's ``datasets`` has written into a footer.

    Args:
        urls: parquet files: a path or URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``), or several.
            Braces are expanded: ``"s3://bucket/train-{00000..00099}-of-00100.parquet"``. Uncompressed, or compressed by
            snappy, zstd, gzip or lz4. A row group has at most 1 GiB of images; write about 100 rows
            (``row_group_size=100``).
        image: column of binary values that are image files, or of structs with the field ``bytes``, as Hugging Face
            writes them. Other fields follow a dot: ``"sample.image.bytes"``. A column of audio files is for
            ``decode_audio``, one of arrays for ``decode_npy``.
        label: column of integers; ``None`` for no labels, which gives 0 for all.
        credential_provider: makes the credentials of the store, as for :func:`ImageFolder`.

    Raises:
        ValueError: a name or a column is not accepted. When a loader opens the files: one of them is cut off,
            encrypted, or no parquet file, lacks a column, or has one of another type; a row group is too large; a label
            is null.
        TypeError: ``urls`` is not text.

    >>> coprep.Parquet("s3://bucket/train-{00000..00099}-of-00100.parquet").decode().random_resized_crop(224)
    """
    return _provided(_coprep.parquet(_file_names("urls", urls), image, label), credential_provider)


def Tokens(  # noqa: N802
    files: Path | Iterable[Path],
    window: int,
    dtype: Any = "uint16",
    *,
    stride: int | None = None,
    out: Any = None,
    offset: int | None = None,
    tail: str = "drop",
    credential_provider: CredentialProvider | None = None,
) -> Pipeline:
    """Returns windows of files of integers, such as the tokens of a text. Nothing is decoded.

    A file is tokens one after another, in little-endian byte order, as ``numpy.ndarray.tofile`` writes them, or a
    one-dimensional ``.npy`` file. Samples are its tokens ``[0, window)``, ``[stride, stride + window)`` and so on. No
    window spans two files. Sample ids follow (file, position). A batch is one tensor of shape (batch, window), without
    labels; ``(tokens, ids)`` with ``with_index=True``. It takes no operators.

    The places of windows are computed, and take no memory.

    Args:
        files: a path or URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``), or several. Braces are
            expanded: ``"s3://bucket/train-{000..099}.bin"``.
        window: tokens of a sample.
        dtype: type of the tokens in the files: ``"uint8"`` to ``"int64"``, or such a type of NumPy's or PyTorch's.
        stride: tokens from the beginning of one window to that of the next; ``window`` if left out. For inputs and
            targets that are the same tokens shifted by one, ``window=2049, stride=2048`` uses every token as a target
            once.
        out: type of the tokens in a batch; ``dtype`` if left out. ``"int64"``, which ``torch.nn.Embedding`` and
            ``cross_entropy`` take, and ``"int32"`` are possible where they hold every value of ``dtype``.
        offset: bytes of a header at the beginning of each file, which are left out. If it is not given, the header of a
            ``.npy`` file is, and files of other formats are refused. ``0`` reads any file as it is.
        tail: what to do with the tokens at the end of a file that do not fill another window. ``"drop"`` leaves them
            out; ``"overlap"`` adds a window that ends with the file.
        credential_provider: makes the credentials of the store, as for :func:`ImageFolder`.

    Raises:
        ValueError: a name or a number is not accepted, ``out`` does not hold every value of ``dtype``, or a type is
            big-endian. When a loader opens the files: one of them is missing, is of another format, is shorter than a
            window, or its tokens do not fill its bytes.
        TypeError: an argument has the wrong type.

    >>> coprep.Tokens("s3://bucket/train.bin", window=2049, stride=2048, out="int64")
    """
    given = _element("dtype", dtype)
    options: _coprep.TokenOptions = {
        "window": _count("window", window),
        "dtype": given,
        "stride": _count("stride", window if stride is None else stride),
        "out": given if out is None else _element("out", out),
        "offset": None if offset is None else _count("offset", offset),
        "tail": tail,
    }
    return _provided(_coprep.tokens(_file_names("files", files), options), credential_provider)


def Arrays(  # noqa: N802
    files: Path | Iterable[Path],
    labels: Iterable[int] | None = None,
    *,
    credential_provider: CredentialProvider | None = None,
) -> Pipeline:
    """Returns the rows of ``.npy`` files: element ``[i]`` of an array is a sample. Nothing is decoded.

    The header of each file is read once. All files have one element type, and rows of one shape. Sample ids follow
    (file, row). A batch is one array of rows, or ``(array, labels)`` with ``labels``; the ids come last with
    ``with_index=True``. It takes no operators. Where each file is a sample, use ``coprep.Files(paths).decode_npy()``.

    Args:
        files: a path or URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``), or several. Braces are
            expanded.
        labels: one integer for each row of all files.
        credential_provider: makes the credentials of the store, as for :func:`ImageFolder`.

    Raises:
        ValueError: a name is not accepted. When a loader opens the files: one of them is missing, is no ``.npy`` file,
            is in Fortran order, big-endian, or of objects, or its rows differ from those of the first; or rows and
            labels differ in number.
        TypeError: an argument has the wrong type.

    >>> coprep.Arrays("s3://bucket/features.npy", labels)
    """
    rows = _coprep.arrays(_file_names("files", files), None if labels is None else [_label(x) for x in labels])
    return _provided(rows, credential_provider)


def _provided(pipeline: Pipeline, provider: CredentialProvider | None) -> Pipeline:
    """Returns a pipeline with the code that makes the credentials of its stores, if there is any."""
    if provider is None:
        return pipeline
    # Imported here, because most jobs do without it.
    credentials = importlib.import_module(f"{__name__}._credentials")
    return pipeline._with_provider(credentials.checked(provider))


def _file_names(argument: str, given: Path | Iterable[Path]) -> list[str]:
    """Returns paths and URLs as text."""
    if isinstance(given, bytes):
        raise TypeError(f"{argument} must be text, not {given!r}")
    names = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    return [os.fspath(name) for name in names]


def _element(argument: str, given: Any) -> str:
    """Returns the name of an element type: a text, or a type of NumPy's or PyTorch's."""
    order = given[0] if isinstance(given, str) and given[:1] in "<>=|" else getattr(given, "byteorder", "=")
    if order == ">":
        raise ValueError(
            f"{argument}={given!r} is big-endian, and tokens are read as little-endian: write the file anew, by "
            'tokens.astype(tokens.dtype.newbyteorder("<")).tofile(path)'
        )
    if isinstance(given, str):
        return given
    # A dtype of NumPy's has `name`, its scalar types `__name__`, and PyTorch's are written torch.uint16.
    name = getattr(given, "name", None) or getattr(given, "__name__", None) or str(given).removeprefix("torch.")
    return str(name)


def _count(argument: str, given: Any) -> int:
    try:
        count = operator.index(given)
    except TypeError:
        raise TypeError(f"{argument} must be an integer, not {given!r}") from None
    if not 0 <= count < 2**32:
        raise ValueError(f"{argument}={count} must be from 0 to 4294967295")
    return count


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
