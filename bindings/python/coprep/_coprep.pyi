"""The native part. Images have shape (3, height, width) per sample, channels in the order red, green, blue."""

import enum
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, overload

from coprep._options import JobOptions, ResumeFrom
from coprep._ranks import RankId
from coprep._servers import JobCode

__version__: str
MOST_DRAWS: int
"""Most draws of an epoch."""
MOST_OWN_SAMPLES: int
"""Most samples of an epoch whose order a member of a cohort proposes."""

Interpolation = Literal["nearest", "bilinear", "bicubic"] | enum.Enum
"""Name of an interpolation, or torchvision's ``InterpolationMode``."""
Size = int | Iterable[int]
"""Pixels of a side, or (height, width). Sides are 1 to 16384."""

class Pipeline:
    """A source of samples, and the operators that prepare one.

    Made by ``coprep.ImageFolder``, ``coprep.AudioFolder``, ``coprep.Files``, ``coprep.WebDataset`` or
    ``coprep.Parquet``; by ``coprep.Tokens`` and ``coprep.Arrays``, whose samples are tensors already and take no
    operators. A pipeline is immutable: every method returns a new one. It can be pickled, copied and compared.

    Of images ``decode`` comes first and ``normalize`` last. The others may come in any order, as often as you like.
    One of them must fix the size: ``random_resized_crop``, ``center_crop``, or ``resize((height, width))``. Images are
    8-bit RGB. A batch of them is uint8, or float32 after ``normalize``, of shape (batch, 3, height, width).

    The order of audio is ``decode_audio``, ``resample``, ``random_crop`` or ``crop``, ``log_mel``. One crop is needed.

    The result of the operators before the first random one can be cached as the decoded form.
    """

    def decode(
        self, *, apply_exif_orientation: bool = False, max_pixels: int = 178_956_970, scaled: bool = True
    ) -> Pipeline:
        """Decodes JPEG, PNG or WebP to 8-bit RGB, as ``PIL.Image.convert("RGB")`` does. Must come first.

        Args:
            apply_exif_orientation: whether to turn the image as its EXIF tag says (torchvision does not).
            max_pixels: most pixels of a file, 1 or more. Larger files are refused. The default is Pillow's limit.
            scaled: whether the JPEG decoder may scale by 1/2, 1/4 or 1/8 where the sample is made smaller anyway.
                This is faster; pixels differ slightly from decoding in full.
        """

    def decode_npy(self) -> Pipeline:
        """Reads each file as a ``.npy`` array. Must be the only operator.

        All arrays have the type and shape of the first file's.

        >>> coprep.Files(paths, labels).decode_npy()
        >>> coprep.WebDataset("train-{000..099}.tar", image="npy").decode_npy()
        """

    def decode_audio(
        self, *, channels: int = 1, channel: int | None = None, max_samples: int = 134_217_728
    ) -> Pipeline:
        """Decodes WAV or FLAC to float32 samples from -1 to 1, as ``torchaudio.load`` does. Must come first.

        Only the part that a crop needs is decoded. A batch has the shape (batch, channels, samples).

        Args:
            channels: 1 mixes all channels of a file down to their mean; a larger number keeps that many, which every
                file must have.
            channel: number of the only channel to keep, counted from 0, instead of ``channels``.
            max_samples: most samples of a channel of a file, 1 or more, before and after resampling. Longer files are
                refused.
        """

    def resample(self, rate: int) -> Pipeline:
        """Resamples audio to one rate, as ``torchaudio.functional.resample`` does. Deterministic.

        Comes right after ``decode_audio``.

        Args:
            rate: samples of each channel in a second, 1 to 768000.
        """

    def random_crop(self, seconds: float | None = None, *, samples: int | None = None) -> Pipeline:
        """Cuts out a random part of audio. Random. Shorter audio gets zeros at its end.

        Args:
            seconds: length of the part, after ``resample``, which must come before.
            samples: length of the part, instead of ``seconds``.
        """

    def crop(self, seconds: float | None = None, *, samples: int | None = None) -> Pipeline:
        """Cuts out the beginning of audio. Deterministic. Shorter audio gets zeros at its end.

        Args:
            seconds: length of the part, after ``resample``, which must come before.
            samples: length of the part, instead of ``seconds``.
        """

    def log_mel(
        self,
        *,
        n_fft: int = 400,
        win_length: int | None = None,
        hop_length: int | None = None,
        n_mels: int = 128,
        f_min: float = 0.0,
        f_max: float | None = None,
        floor: float = 1e-10,
    ) -> Pipeline:
        """Computes the natural logarithm of a mel spectrogram. Deterministic. Must come last.

        It is as ``torchaudio.transforms.MelSpectrogram`` defines it by default: centred frames with reflected edges, a
        Hann window, power 2, the HTK scale. A batch has the shape (batch, channels, n_mels, samples // hop_length + 1),
        float32.

        Args:
            n_fft: samples of a Fourier transform, 2 to 65536.
            win_length: samples of the window, at most ``n_fft``, which is the default.
            hop_length: samples from one frame to the next; by default half of ``win_length``.
            n_mels: mel bands, 1 to 1024.
            f_min: lowest frequency in Hz.
            f_max: highest frequency in Hz; by default half of the sampling rate.
            floor: smallest value that a logarithm is taken of.
        """

    def _with_provider(self, provider: Callable[[], Mapping[str, Any]]) -> Pipeline:
        """Returns the pipeline with code of the job that makes the credentials of its stores."""

    @property
    def _is_of_images(self) -> bool:
        """``True`` if samples are images, which have types and memory formats of their own."""

    def resize(self, size: Size, *, interpolation: Interpolation = "bilinear") -> Pipeline:
        """Resizes with antialiasing. Deterministic, like ``torchvision.transforms.Resize``.

        Args:
            size: pixels of the shorter side, which keeps the aspect ratio, or (height, width). Sides are 1 to 16384.
            interpolation: "nearest", "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name.
        """

    def center_crop(self, size: Size) -> Pipeline:
        """Cuts out the centre, with zeros where the image is smaller. Deterministic, like torchvision's ``CenterCrop``.

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
        """Cuts out a random area and resizes it. Random, like ``torchvision.transforms.RandomResizedCrop``.

        Args:
            size: pixels of each side of the result, or (height, width). Sides are 1 to 16384.
            scale: bounds of the area, as a share of the image: (low, high) with 0 < low <= high.
            ratio: bounds of width / height: (low, high) with 0 < low <= high.
            interpolation: "nearest", "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name.
        """

    def random_horizontal_flip(self, p: float = 0.5) -> Pipeline:
        """Mirrors left to right. Random, like ``torchvision.transforms.RandomHorizontalFlip``.

        Args:
            p: probability of mirroring, 0 to 1.
        """

    def normalize(self, mean: Iterable[float], std: Iterable[float]) -> Pipeline:
        """Computes ``(x / 255 - mean) / std`` per channel, as float32, unless the loader is given another ``dtype``.

        Must come last.

        Args:
            mean: three finite numbers, for red, green and blue, in units of 0 to 1.
            std: three finite numbers that are not 0, in the same units.
        """

    @property
    def root(self) -> str | None:
        """Absolute path or URL of the folder, or ``None`` for lists of files and shards."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by label. Asks the coordinator."""

    def __len__(self) -> int:
        """Number of samples. Asks the coordinator."""

def warm(
    pipeline: Pipeline,
    report: Callable[[str], object],
    *,
    socket: str | os.PathLike[str] | None = None,
    cache: str | None = None,
    cache_bytes: int | None = None,
    keep: bool = False,
) -> str: ...
def keep_warm(stream: int, socket: str | os.PathLike[str] | None = None, keep: bool = False) -> str: ...

class Array:
    """Memory of one field of a batch."""

    @property
    def name(self) -> str: ...
    @property
    def large(self) -> list[tuple[int, Array]]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class DeviceBatch:
    """A batch on a GPU, which is to be written to tensors."""

    @property
    def fields(self) -> list[tuple[str, list[int], bool]]:
        """Tensors to allocate: the name of their dtype, their shape, and whether they are ``channels_last``."""
    @property
    def ids(self) -> bytes:
        """Ids of the samples, native-endian, 64 bits each."""
    @property
    def why_unconverted(self) -> str | None:
        """Reason why images are not converted, although they should be."""
    def __len__(self) -> int: ...
    def arrays(self) -> list[DeviceArray]:
        """Returns the batch as arrays that own their memory, once."""
    def write(self, addresses: list[int], stream: int) -> None:
        """Puts the work that fills tensors with these addresses into a stream, once."""

class DeviceArray:
    """A field of a batch on a GPU, which frameworks take over by ``from_dlpack``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """Name of the type of the elements, such as ``bfloat16``."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Returns a capsule with the array. Work of ``stream`` waits until it is filled."""

class JobState(TypedDict):
    """The state of a job. All of it but ``all_ranks`` makes a ``ResumeFrom``."""

    epoch: int
    delivered: bytes
    """Ids that were given in the epoch, as a Roaring bitmap in its portable format."""
    seed: int
    samples: int
    """Samples of the dataset."""
    order: bytes | None
    """Ids of the epoch in their order, native-endian, 32 bits each, if the job proposed its order."""
    carried: list[tuple[int, int, bytes]]
    """As :attr:`ResumeFrom.carried`."""
    all_ranks: bool
    """``True`` if the ids are those of all ranks of the job."""

class Loader:
    """One rank of a job."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: JobOptions,
        *,
        rank_id: RankId,
        resume: ResumeFrom | None,
        code: JobCode | None,
    ) -> None: ...
    def start_epoch(self, order: bytes | None = None) -> int: ...
    @overload
    def next(self, stream: None = None) -> list[Array] | None: ...
    @overload
    def next(self, stream: tuple[int, int]) -> list[Array] | DeviceBatch | None: ...
    def batches_per_epoch(self) -> int: ...
    def is_attached(self) -> bool: ...
    def attached(self) -> dict[str, Any]: ...
    def state(self) -> JobState: ...
    def epoch(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def leave_pass(self) -> None:
        """Announces that the user iterates no epoch any more, and has not been given all of the last one."""
    def close(self) -> None: ...

class CredentialLink:
    """The link over which a thread of the job gives credentials to the coordinator."""

    def wait(self) -> bool:
        """Waits until credentials are wanted. Returns ``False`` once nobody will want any."""

    def give(
        self,
        *,
        expires_ms: int | None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        token: str | None = None,
        access_key: str | None = None,
        sas_token: list[tuple[str, str]] | None = None,
    ) -> None:
        """Gives credentials to the coordinator. The arguments are those of one kind of store."""

    def fail(self, exception: BaseException, kind: str) -> None:
        """Reports that the user's code has failed. ``kind`` says it to the coordinator."""

    def close(self) -> None:
        """Ends the link: nobody will want credentials."""

class SampleTask:
    """A sample to make."""

    @property
    def is_first(self) -> bool:
        """``True`` for the first sample of its chunk."""
    @property
    def id(self) -> int:
        """Sample id, which is the position in the dataset."""
    @property
    def slot(self) -> tuple[int, int] | None:
        """Buffer and slot to write to. ``None`` if ``WorkerLink.wait_for_slot`` has to ask for them."""
    @property
    def keep(self) -> bool:
        """``True`` if the deterministic part is to be kept in the scratch file, for the cache."""
    @property
    def key(self) -> int:
        """Key of the sample's random numbers."""
    @property
    def cached_at(self) -> int:
        """Offset of the cached deterministic part in the scratch file."""
    @property
    def cached_size(self) -> int:
        """Bytes of the cached deterministic part. 0 if it is not cached."""
    @property
    def visit(self) -> int:
        """Number of the visit of this sample, which the random numbers depend on."""

class WorkerLink:
    """A worker process's end of its socket, which takes requests for samples one at a time and reports the results."""

    def __init__(self, socket: int, task_table: int | None, seed: int) -> None: ...
    def next(self) -> SampleTask | bytes | None:
        """Returns the next sample to make, or a message of another kind, or ``None`` if the coordinator is gone."""

    def scratch(self) -> tuple[int, int]:
        """Returns the number of the chunk's scratch file, and the end of the cached values in it."""

    def together(self) -> tuple[list[int], int]:
        """Returns the samples that the dataset is asked for together with the chunk's, and the key of the call.

        There are none if it is asked for each sample by itself.
        """

    def share_time(self, samples: int) -> None:
        """Notes that the time of this sample until now was spent on this number of samples."""

    def note_made(self) -> None:
        """Notes that the deterministic part of the sample is made."""

    def wait_for_slot(self) -> tuple[int, int] | None:
        """Returns buffer and slot for a sample that is made, or ``None`` if the coordinator is gone."""

    def report_done(self, at: int, size: int, blob: int) -> None:
        """Reports that the sample is written.

        Args:
            at, size: offset and size of its deterministic part in the scratch file, if that was kept.
            blob: number of its bytes of no fixed size.
        """

    def report_raised(self, exception: bytes) -> None:
        """Reports that the sample raised this exception, which is JSON."""

    def wait_for_room(self, size: int) -> int | None:
        """Returns the offset in the staging area for a sample that is larger than its slot.

        ``None`` means that the sample is not to be written, and the next one follows.
        """

    def answer(self, message: bytes) -> None: ...

def content_digest(address: int, length: int, chunk: int) -> bytes: ...
def keep_freed_memory() -> None: ...
def sample_key(seed: int, sample: int, visit: int) -> int: ...
def image_folder(root: str | os.PathLike[str]) -> Pipeline: ...
def audio_folder(root: str | os.PathLike[str]) -> Pipeline: ...
def files(paths: list[str], labels: list[int] | None = None) -> Pipeline: ...
def web_dataset(shards: list[str], image: str = "jpg;jpeg;png;webp", label: str | None = "cls") -> Pipeline: ...
def parquet(files: list[str], image: str = "image", label: str | None = "label") -> Pipeline: ...

class TokenOptions(TypedDict):
    """The keyword arguments of ``coprep.Tokens``, with types by their names in NumPy."""

    window: int
    dtype: str
    stride: int
    out: str
    offset: int | None
    tail: str

def tokens(files: list[str], options: TokenOptions) -> Pipeline: ...
def arrays(files: list[str], labels: list[int] | None = None) -> Pipeline: ...
def restore(
    source: str,
    arguments: tuple[Any, ...],
    operators: list[tuple[str, tuple[Any, ...], dict[str, Any]]],
    provider: Callable[[], Mapping[str, Any]] | None = None,
) -> Pipeline: ...
def user_dataset(
    identity: Any,
    dataset: list[tuple[str, bytes, str, str]],
    rest: list[tuple[str, bytes, str, str]],
    *,
    split: bool,
    in_job: bool,
) -> Pipeline: ...
def status(socket: str | os.PathLike[str] | None = None, slow: int = 0) -> str: ...
def stop(socket: str | os.PathLike[str] | None = None) -> int: ...
def parse_size(text: str) -> int: ...
def normalize_table(pipeline: Pipeline) -> bytes | None: ...
def check_gpu(number: int) -> str: ...
