"""The native part. Shapes: images are (3, height, width) per sample, channels in the order red, green, blue."""

import enum
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

from coprep._usercode import Launch

__version__: str
MOST_DRAWS: int
"""Draws of an epoch, at most."""
MOST_OWN_SAMPLES: int
"""Samples of an epoch whose order a member of a cohort tells, at most."""

Interpolation = Literal["nearest", "bilinear", "bicubic"] | enum.Enum
"""By name, or torchvision's ``InterpolationMode``."""
Size = int | Iterable[int]
"""Pixels of a side, or (height, width). Sides are 1 to 16384."""

class Pipeline:
    """A source of images, and the operators that prepare one.

    Made by ``coprep.ImageFolder`` or ``coprep.Files``. Immutable: every method returns a new pipeline. A pipeline can
    be pickled, copied and compared. ``decode`` comes first and ``normalize`` last; the others may come in any order, as
    often as you like. One of them must fix the size: ``random_resized_crop``, ``center_crop``, or
    ``resize((height, width))``.

    Images are 8-bit RGB. A batch of them is uint8, or float32 after ``normalize``, of shape (batch, 3, height, width).
    What comes before the first random operator can be cached as the decoded form.
    """

    def decode(
        self, *, apply_exif_orientation: bool = False, max_pixels: int = 178_956_970, scaled: bool = True
    ) -> Pipeline:
        """Decode JPEG, PNG or WebP to 8-bit RGB, as ``PIL.Image.convert("RGB")`` would. Must come first.

        Args:
            apply_exif_orientation: turn the image as its EXIF tag says (torchvision does not).
            max_pixels: refuse files of more pixels than this, 1 or more. The default is Pillow's limit.
            scaled: let the JPEG decoder scale by 1/2, 1/4 or 1/8 where the sample is made smaller anyway. Faster;
                pixels differ slightly from decoding in full.
        """

    def resize(self, size: Size, *, interpolation: Interpolation = "bilinear") -> Pipeline:
        """Resize, antialiased. Deterministic, as ``torchvision.transforms.Resize``.

        Args:
            size: pixels of the shorter side, the aspect ratio stays; or exactly (height, width). Sides are 1 to 16384.
            interpolation: "nearest", "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name.
        """

    def center_crop(self, size: Size) -> Pipeline:
        """Cut out the centre; zeros where the image is smaller. Deterministic, as torchvision's ``CenterCrop``.

        Args:
            size: pixels of each side, or (height, width). Sides are 1 to 16384.
        """

    def random_resized_crop(
        self,
        size: Size,
        *,
        scale: Iterable[float] = (0.08, 1.0),
        ratio: Iterable[float] = (3 / 4, 4 / 3),
        interpolation: Interpolation = "bilinear",
    ) -> Pipeline:
        """Cut out a random area and resize it. Random, as ``torchvision.transforms.RandomResizedCrop``.

        Args:
            size: of the result, pixels of each side, or (height, width). Sides are 1 to 16384.
            scale: bounds of the area, as a share of the image: (low, high) with 0 < low <= high.
            ratio: bounds of width / height: (low, high) with 0 < low <= high.
            interpolation: "nearest", "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name.
        """

    def random_horizontal_flip(self, p: float = 0.5) -> Pipeline:
        """Mirror left to right. Random, as ``torchvision.transforms.RandomHorizontalFlip``.

        Args:
            p: probability, 0 to 1.
        """

    def normalize(self, mean: Iterable[float], std: Iterable[float]) -> Pipeline:
        """``(x / 255 - mean) / std`` per channel, as float32. Must come last.

        Args:
            mean: three finite numbers, for red, green and blue, in units of 0 to 1.
            std: three finite numbers that are not 0, in the same units.
        """

    @property
    def root(self) -> str | None:
        """Absolute path of the folder; None for a list of files."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by label. Asks the coordinator."""

    def __len__(self) -> int:
        """Number of samples. Asks the coordinator."""

def warm(
    pipeline: Pipeline,
    tell: Callable[[str], object],
    *,
    socket: str | os.PathLike[str] | None = None,
    cache: str | None = None,
    cache_bytes: int | None = None,
) -> str: ...
def keep_warm(stream: int, socket: str | os.PathLike[str] | None = None) -> str: ...

class Array:
    """Memory of one field of a batch."""

    @property
    def name(self) -> str: ...
    @property
    def large(self) -> list[tuple[int, Array]]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class Loader:
    def __init__(
        self,
        pipeline: Pipeline,
        *,
        name: str,
        socket: str | os.PathLike[str] | None,
        timeout: float,
        batch_size: int,
        shuffle: bool,
        draws: tuple[int, bytes | None] | None,
        relaxed: bool,
        seed: int | None,
        drop_last: bool,
        rank: int,
        world_size: int,
        group: str,
        skip_errors: bool,
        subset: bytes | None,
        mask_samples: int | None,
        cohort: tuple[str, int] | None,
        is_told: bool,
        cache: str | None,
        cache_bytes: int | None,
        lru: bool,
        reuse: int,
        resume: tuple[int, bytes, int, int, bytes | None] | None,
        code: tuple[Launch, Callable[[], bytearray]] | None,
        preparation: Preparation | None,
    ) -> None: ...
    def start_epoch(self, order: bytes | None = None) -> int: ...
    def next(self) -> list[Array] | None: ...
    def batches_per_epoch(self) -> int: ...
    def attached(self) -> dict[str, Any]: ...
    def state(self) -> tuple[int, bytes, int, int, bytes | None, bool]: ...
    def epoch(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...

class Preparation:
    """Lets the coordinator import early what a dataset will need, as long as this object lives and no loader has it.

    A coordinator is started if there is none. All that happens in the background, and never fails.
    """

    def __init__(self, launch: Launch, *, dataset: str, name: str, socket: str | os.PathLike[str] | None) -> None: ...

class WorkerLink:
    """A worker process's end of its socket: takes orders, one at a time, and reports what was made of them."""

    def __init__(self, socket: int, worklist: int | None, seed: int) -> None: ...
    def next(self) -> tuple[bool, int, tuple[int, int] | None, bool, int, int, int, int] | bytes | None:
        """The next sample to make, or another message. None: the coordinator is gone.

        A sample: whether it is the first of its chunk, its id, its buffer and slot if they are known for sure, whether
        to keep its deterministic part, the key of its random numbers, where its cached part lies, bytes of that, its
        visit.
        """

    def scratch(self) -> tuple[int, int]:
        """Of the chunk: its scratch file, and where what came in it ends."""

    def made(self) -> None: ...
    def place(self) -> tuple[int, int] | None: ...
    def done(self, at: int, size: int, blob: int) -> None: ...
    def raised(self, what: bytes) -> None: ...
    def room(self, size: int) -> int | None: ...
    def answer(self, message: bytes) -> None: ...

def keep_freed_memory() -> None: ...
def sample_key(seed: int, sample: int, visit: int) -> int: ...
def image_folder(root: str | os.PathLike[str]) -> Pipeline: ...
def files(paths: list[str], labels: list[int] | None = None) -> Pipeline: ...
def restore(
    source: str, arguments: tuple[Any, ...], operators: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
) -> Pipeline: ...
def user_dataset(
    name: str,
    samples: int | None,
    dataset: list[tuple[str, bytes]],
    rest: list[tuple[str, bytes]],
    *,
    split: bool,
    in_job: bool,
    is_iterated: bool,
) -> Pipeline: ...
def status(socket: str | os.PathLike[str] | None = None, slow: int = 0) -> str: ...
def stop(socket: str | os.PathLike[str] | None = None) -> int: ...
def parse_size(text: str) -> int: ...
