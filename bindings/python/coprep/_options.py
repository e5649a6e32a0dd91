"""Options of the native loader, as named tuples whose fields it reads by name.

A field that is missing or unknown is an error when the tuple is made.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Draws(NamedTuple):
    """An epoch of independent draws with replacement."""

    length: int
    """Number of draws of an epoch."""
    weights: bytes | None
    """Weights of the samples, as 64-bit floats, or ``None`` if all samples are equally likely."""

    @property
    def identity(self) -> str:
        """Returns a text that distinguishes these draws from others in the state of a loader."""
        if self.weights is None:
            return str(self.length)
        # Imported here, since it is slow to import and few jobs have weights.
        import hashlib

        return f"{self.length}-{hashlib.blake2b(self.weights, digest_size=16).hexdigest()}"


class Cohort(NamedTuple):
    """Jobs that start together, advance together and get the same batches."""

    name: str
    size: int
    """Number of jobs to wait for."""


class DeviceForm(NamedTuple):
    """The form of batches on a GPU."""

    dtype: str
    """Name of the type of images after ``normalize``. Other parts keep their types."""
    channels_last: bool
    """``True`` if the channels of a pixel lie together in memory."""
    shared: bool
    """``True`` if an uploader may copy the batches, once for all such jobs on the GPU."""


class JobOptions(NamedTuple):
    """Options that a job keeps for all its connections."""

    name: str
    """Name of the job in ``coprep status``."""
    socket: str | os.PathLike[str] | None
    timeout: float
    """Seconds to wait for a batch."""
    batch_size: int
    shuffle: bool
    shuffle_window: int
    """Number of samples that a random order is drawn from at a time, or 0 for all samples."""
    draws: Draws | None
    relaxed: bool
    seed: int | None
    drop_last: bool
    skip_errors: bool
    subset: bytes | None
    """Sample ids in the coordinator's format: native-endian, 32 bits each, ascending. ``None`` means all samples."""
    mask_samples: int | None
    """Length of the boolean mask that named the subset, or ``None``. The dataset must have as many samples."""
    cohort: Cohort | None
    proposes_order: bool
    """``True`` if this job proposes the order of each epoch, by a sampler of its own."""
    cache: str | None
    cache_bytes: int | None
    lru: bool
    reuse: int
    """Number of uses of a prepared sample before it is made anew; 0 if it was not given."""
    check_files: bool
    """``True`` if cached samples are compared with their files before this job is given them."""
    device: DeviceForm | None
    """Form of batches that the native loader puts on a GPU, or ``None`` if it puts none there."""


class ResumeFrom(NamedTuple):
    """The state at which a job goes on."""

    epoch: int
    delivered: bytes
    """Ids that were given in the epoch, as a Roaring bitmap in its portable format."""
    seed: int
    samples: int
    """Samples of the dataset."""
    order: bytes | None
    """Ids of the epoch in their order, as :attr:`JobOptions.subset`, if the job proposed its order."""
    carried: list[tuple[int, int, bytes]]
    """The groups of samples that come first in the epoch, because it continues one that was left early: the epoch in
    which each group came to be, the number of samples given since then, and the ids, as a Roaring bitmap."""
    of_dataset: bool = False
    """``True`` if the ids are of the dataset that the loader has a part of, and not positions in that part."""
