"""PyTorch's own loader, which is used where jobs cannot share samples."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Generic

from coprep._errors import UnsharedWarning

_MODULE = "torch.utils.data.dataloader"
_HERE = os.path.join(os.path.dirname(__file__), "")
_own: Any = getattr(sys.modules.get(_MODULE), "DataLoader", None)
"""PyTorch's class, kept before anybody replaces it."""


def torch_class() -> Any:
    """Returns PyTorch's ``DataLoader``, whatever its name refers to at present."""
    global _own
    if _own is None:
        import torch.utils.data.dataloader as module

        # The class may have been replaced since PyTorch was imported. PyTorch's own one is generic, so it can still be
        # found.
        found: list[Any] = [module.DataLoader, *Generic.__subclasses__()]
        _own = next(c for c in found if c.__module__ == _MODULE and c.__qualname__ == "DataLoader")
    return _own


def torch_loader(*args: Any, **options: Any) -> Any:
    """Returns a loader of PyTorch's, even while ``coprep.install()`` replaces its class."""
    own = torch_class()
    loader = object.__new__(own)
    own.__init__(loader, *args, **options)
    return loader


def level_of_caller() -> int:
    """Returns the ``stacklevel`` for a warning by the caller that points at the first line outside of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    return level


def warn_unshared(why: str) -> None:
    """Warns that a loader shares nothing."""
    warnings.warn(
        f"this loader shares nothing with other jobs: {why}. Samples are made by PyTorch's own loader; "
        "seed, cache, cohort and on_error are without effect",
        UnsharedWarning,
        stacklevel=level_of_caller(),
    )


class Transformed:
    """A dataset with its transform applied."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._transform = transform

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._transform(self._dataset[index])


class TransformedBatch:
    """A ``collate_fn`` that applies the transform first, for samples that have no index."""

    def __init__(self, transform: Callable[[Any], Any], collate_fn: Callable[[Any], Any] | None, batched: bool) -> None:
        self._transform = transform
        self._collate_fn = collate_fn
        self._batched = batched

    def __call__(self, samples: Any) -> Any:
        import torch.utils.data as data

        default = data.default_collate if self._batched else data.default_convert
        made = [self._transform(sample) for sample in samples] if self._batched else self._transform(samples)
        return (self._collate_fn or default)(made)
