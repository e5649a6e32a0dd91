"""The ways in which batches come to a job, by the name of the mode."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import coprep
import numpy as np
import numpy.typing as npt
import torch

from tests.benchmarks.gpu.plan import OF_ARRAYS, ON_GPU, PAGEABLE, PIN, SHARING, SYNTHETIC, TORCH, JobSettings
from tests.benchmarks.gpu.training import CLASSES, synthetic_batch
from tests.benchmarks.loaders.consume import forever
from tests.benchmarks.loaders.job_torch import dataset

Batch = tuple[torch.Tensor, torch.Tensor]
Finish = Callable[[Batch], Batch]
"""Makes a batch of a loader ready for the model: on the device, normalised, in the order of the model's weights."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ARRAY_SHAPE = (3, 512, 512)
EPOCHS = 1000
"""Epochs over the photographs that are one epoch to PyTorch's loader, which empties its queue at the end of each. No
window is as long."""


class NotAvailable(Exception):
    """The mode cannot be measured with this build. The message says why."""


@contextmanager
def opened(mode: str, settings: JobSettings, jobs: int) -> Iterator[tuple[Iterator[Batch], Finish]]:
    """Yields batches without end, and what finishes each of them. The loader ends with the block.

    Raises:
        NotAvailable: this build has no such loader.
    """
    with ExitStack() as stack:
        if mode == SYNTHETIC:
            batch = synthetic_batch(torch.device(settings.device), settings.batch_size)
            yield itertools.repeat(batch), as_it_is
        elif mode == TORCH:
            loader = torch_loader(settings, jobs)
            # Its workers end with the iterator, of which this is the only holder.
            batches = iter(loader)
            del loader
            yield batches, normalizer(torch.device(settings.device))
        else:
            loader = stack.enter_context(coprep_loader(mode, settings))
            device = torch.device(settings.device)
            yield forever(loader), as_it_is if mode in ON_GPU else normalizer(device)


def coprep_loader(mode: str, settings: JobSettings, drop_last: bool = True) -> Any:
    """Returns the loader of coprep for a mode.

    Raises:
        NotAvailable: this build has no such loader.
    """
    uploads: Literal["own", "shared"] = "shared" if mode in SHARING else "own"
    if mode in OF_ARRAYS:
        return coprep.DataLoader(
            Arrays(),
            batch_size=settings.batch_size,
            shuffle=True,
            drop_last=drop_last,
            name=mode,
            device=settings.device,
            uploads=uploads,
        )
    pipeline = coprep.ImageFolder(settings.data).decode().random_resized_crop(224).random_horizontal_flip()
    load: Any = partial(
        coprep.DataLoader, batch_size=settings.batch_size, shuffle=True, drop_last=drop_last, cache="decoded", name=mode
    )
    if mode == PIN:
        return load(pipeline, pin_memory=True)
    if mode == PAGEABLE:
        return load(pipeline)
    if "device" not in inspect.signature(coprep.DataLoader.__init__).parameters:
        raise NotAvailable("not available: the DataLoader of this build of coprep has no device=")
    normalized = pipeline.normalize(MEAN, STD)
    form = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    return load(normalized, device=settings.device, uploads=uploads, **form)


class Arrays:
    """A dataset whose samples cost nothing but their bytes, of which there are many."""

    def __init__(self) -> None:
        self.arrays = np.random.default_rng(0).standard_normal((16, *ARRAY_SHAPE), np.float32)

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, number: int) -> tuple[npt.NDArray[np.float32], int]:
        return self.arrays[number % len(self.arrays)], number % CLASSES


def torch_loader(settings: JobSettings, jobs: int) -> torch.utils.data.DataLoader[Any]:
    photographs = dataset("io", settings.data)
    return torch.utils.data.DataLoader(
        photographs,
        batch_size=settings.batch_size,
        sampler=torch.utils.data.RandomSampler(photographs, num_samples=EPOCHS * len(photographs)),
        drop_last=True,
        num_workers=max(settings.workers // jobs, 1),
        pin_memory=torch.cuda.is_available(),
    )


def as_it_is(batch: Batch) -> Batch:
    return batch


def normalizer(device: torch.device) -> Finish:
    """Returns the function that copies a batch of bytes to the device, and normalises it there."""
    mean, std = (torch.tensor(values, device=device).mul(255).view(1, 3, 1, 1) for values in (MEAN, STD))

    def finish(batch: Batch) -> Batch:
        images, labels = (part.to(device, non_blocking=True) for part in batch)
        images = images.to(torch.float32, memory_format=torch.channels_last)
        return images.sub_(mean).div_(std), labels

    return finish
