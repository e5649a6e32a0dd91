"""Makes the batches that the training loop gets from the arrays that come from the coordinator."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coprep import _coprep, _exchange
from coprep._collation import Rules, collate, written
from coprep._device import Gpu, ImageForm, ids_of
from coprep._errors import SampleError, warn_skipped
from coprep._folds import Positions
from coprep._structure import Framework, MismatchError, Structure, convert

if TYPE_CHECKING:
    # For types only: `_usercode` needs more than NumPy, and only programs with a Python dataset load it.
    from coprep._generators import SampleSeeder
    from coprep._program import Program
    from coprep._usercode import UserCode

Array = npt.NDArray[Any]
Collate = Callable[[list[Any]], Any]


def framework_of(name: Framework | None) -> Framework:
    """Returns the framework of this name, or without a name torch if it is installed, else numpy."""
    if name is None:
        name = "torch" if importlib.util.find_spec("torch") else "numpy"
    if name == "torch":
        import torch  # noqa: F401 - raises here if torch is missing
    return name


class Images:
    """Makes the batches of a native pipeline: ``(images, labels)``, and the ids if ``with_index``.

    Samples without labels, such as tokens, come as ``images`` alone, or ``(images, ids)``.

    Args:
        form: type and memory format of the images.
        gpu: the GPU that batches come on.
    """

    def __init__(self, framework: Framework, with_index: bool, form: ImageForm, gpu: Gpu | None) -> None:
        self._torch = framework == "torch"
        self._with_index = with_index
        self._form = form
        self._gpu = gpu

    def __call__(self, arrays: Given, loader: _coprep.Loader) -> Any:
        if isinstance(arrays, _coprep.DeviceBatch):
            assert self._gpu is not None
            images, *labels = self._gpu.tensors(arrays)
            images = self._gpu.formed(images, self._form, arrays.why_unconverted)
            return self._batch([images, *labels, *([self._gpu.ids(ids_of(arrays))] if self._with_index else [])])
        # The ids come last.
        values: list[Any] = [np.asarray(array) for array in (arrays if self._with_index else arrays[:-1])]
        if self._torch:
            import torch

            values = [torch.from_numpy(value) for value in values]
            values[0] = self._form.of_host(values[0])
        return self._batch(values)

    def _batch(self, values: list[Any]) -> Any:
        return tuple(values) if len(values) > 1 else values[0]


class Samples:
    """Makes the batches of a Python dataset, with PyTorch's default collation or the user's ``collate_fn``.

    Args:
        collate: the user's ``collate_fn``, or ``None`` for the default.
        batched: whether samples become batches. Otherwise a batch is one sample, converted as PyTorch does without
            batching.
        with_index: whether batches are ``(batch, ids)``. The ids stay on the host.
        gpu: the GPU for batches, or ``None`` if they stay on the host.
        positions: tells the ids that the user knows, from those of the stream.
    """

    def __init__(
        self,
        framework: Framework,
        collate: Collate | None,
        batched: bool,
        with_index: bool,
        gpu: Gpu | None = None,
        positions: Positions | None = None,
    ) -> None:
        self.positions = Positions() if positions is None else positions
        self._framework = framework
        self._gpu = gpu
        self._collate = collate
        self._batched = batched
        self._with_index = with_index
        self._structure: Structure | None = None
        self._rules = Rules()

    @property
    def whole(self) -> bool:
        """``True`` if samples travel as they are, because they are collated or converted in this process."""
        return self._collate is not None or not self._batched

    @property
    def batched(self) -> bool:
        """``True`` if samples become batches, of one sample or more."""
        return self._batched

    def __call__(self, arrays: Given, loader: _coprep.Loader) -> Any:
        structure = self._structure
        if structure is None:
            structure = self._structure = _exchange.loads(loader.attached()["structure"])
            _warn_of_seeds(structure.lost_seeds)
        if isinstance(arrays, _coprep.DeviceBatch):
            assert self._gpu is not None
            batch = structure.batch(self._gpu.tensors(arrays), None, len(arrays), self._gpu.leaf)
            return (batch, self._gpu.ids(self.positions.all_of(ids_of(arrays)))) if self._with_index else batch
        if self._gpu is not None:
            self._gpu.check_movable("samples with texts, or whose parts differ in shape,")
        index = np.asarray(arrays[-1])
        fields = [np.asarray(array) for array in arrays[: len(structure.fields)]]
        # Of samples of a fixed size only those are packed that have another structure.
        last = arrays[-2] if len(arrays) > len(fields) + 1 else None
        packed: list[Any] = []
        if last is not None and (structure.has_blob or last.large):
            packed = structure.unpacked(_blobs(last, all_rows=structure.has_blob), len(index))
        with self._naming(index):
            batch = self._batch(structure, fields, packed, len(index))
        return self._with_ids(batch, index)

    def _batch(self, structure: Structure, fields: list[Array], packed: list[Any], count: int) -> Any:
        if structure.is_whole:
            return self._finish(packed, as_worker=True)
        # Each element is a list of texts, or `None` where there are none. A tuple is a whole sample.
        if tuple in set(map(type, packed)) or self._has_own_rules(structure):
            return self._finish(structure.samples(fields, packed, count), as_worker=True)
        return structure.batch_of(fields, packed, count, self._framework)

    def _has_own_rules(self, structure: Structure) -> bool:
        return self._framework == "torch" and self._rules.concern(structure)

    def collate_here(self, samples: list[Any], index: Array) -> Any:
        """Returns the batch of samples that were made in this process."""
        if self.whole:
            return self._with_ids(self._finish(samples), index)
        structure = self._structure
        if structure is None:
            structure = self._structure = Structure.fitting(samples[0])
        if not (structure.is_whole or self._has_own_rules(structure)):
            with contextlib.suppress(MismatchError):
                return self._with_ids(written(structure, samples, self._framework), index)
        with self._naming(index):
            batch = self._finish(samples)
        return self._with_ids(batch, index)

    @contextlib.contextmanager
    def _naming(self, index: Array) -> Iterator[None]:
        """Names the sample that has another structure than the first one of its batch."""
        try:
            yield
        except MismatchError as error:
            # A batch of an iterable dataset has one number for all its items.
            if error.row >= len(index):
                raise
            sample = self.positions.of(int(index[error.row]))
            raise ValueError(f"sample {sample} is unlike the first one of its batch: {error}") from None

    def _finish(self, samples: list[Any], *, as_worker: bool = False) -> Any:
        """Returns the batch of whole samples. ``as_worker``: as a worker of PyTorch makes it."""
        if not self._batched:
            sample = samples[0]
            return convert(sample, self._framework) if self._collate is None else self._collate(sample)
        if self._collate is not None:
            return self._collate(samples)
        return collate(samples, self._framework, as_worker=as_worker)

    def _with_ids(self, batch: Any, index: Array) -> Any:
        if self._gpu is not None:
            batch = self._gpu.move(batch)
        if not self._with_index:
            return batch
        index = self.positions.all_of(index)
        if self._framework == "torch":
            import torch

            return batch, torch.from_numpy(index)
        return batch, index


class Iterated(Samples):
    """Makes the batches of an iterable dataset. Each comes as one sample that holds all its items."""

    def __init__(self, framework: Framework, collate: Collate | None, batched: bool, gpu: Gpu | None) -> None:
        super().__init__(framework, collate, batched, with_index=False, gpu=gpu)

    @property
    def whole(self) -> bool:
        return True

    def _finish(self, samples: list[Any], *, as_worker: bool = False) -> Any:
        (items,) = samples
        return super()._finish(items if self._batched else samples)


def _blobs(array: _coprep.Array, *, all_rows: bool) -> list[memoryview | None]:
    """Returns the variable part of each sample. A part that is larger than its row lies behind the buffers.

    Args:
        all_rows: whether rows hold something. Otherwise there are only the parts behind the buffers.
    """
    rows = np.asarray(array)
    blobs: list[memoryview | None] = [row.data for row in rows] if all_rows else [None] * len(rows)
    for row, value in array.large:
        blobs[row] = np.asarray(value).data
    return blobs


class Nothing(NamedTuple):
    """Stands for a batch whose samples were all skipped."""

    error: Exception
    """The failure of the last of them."""


class InJob:
    """Makes the samples in this process (``num_workers=0``), where the user's debugger is.

    Args:
        code: the dataset and its functions.
        samples: collates the samples that were made.
        skip_errors: whether samples that fail are left out.
        uses: number of visits that use the same prepared sample. 0 stands for all visits, ``None`` for one.
    """

    def __init__(self, code: UserCode, samples: Samples, skip_errors: bool, uses: int | None) -> None:
        self._code = code
        self._uses = uses
        self._samples = samples
        self._skip_errors = skip_errors
        self._skipped: set[int] = set()

    @property
    def skipped(self) -> int:
        """Number of samples that failed and were left out. Each counts once."""
        return len(self._skipped)

    def __call__(self, arrays: Given, loader: _coprep.Loader) -> Any:
        assert not isinstance(arrays, _coprep.DeviceBatch)
        visits, index = (np.asarray(array) for array in arrays)
        # A visit may need all 64 bits, if other jobs of the stream are in another epoch. The field's type is int64.
        visits = visits.view(np.uint64)
        seed = loader.attached()["seed"]
        program = self._code.local()
        seeder = self._seeder_of(program)
        made: list[Any] = []
        kept: list[int] = []
        failed: Exception | None = None
        keys = [
            (seed, sample, self._kept_visit(visit))
            for sample, visit in zip(index.tolist(), visits.tolist(), strict=True)
        ]
        values = None
        if self._uses is None:
            seeder.seed_all(*keys[0])
            with contextlib.suppress(*((Exception,) if self._skip_errors else ())):
                values = program.together([sample for _, sample, _ in keys])
        for position, key in enumerate(keys):
            sample = key[1]
            try:
                made.append(program.sample(*key, seeder.seed_all) if values is None else values[position])
                kept.append(position)
            except StopIteration as error:
                raise RuntimeError(f"sample {self._samples.positions.of(sample)} raised StopIteration") from error
            except Exception as error:
                if not self._skip_errors:
                    raise
                failed = error
                self._skip(self._samples.positions.of(sample), error)
        if failed is not None and not made:
            return Nothing(failed)
        return self._samples.collate_here(made, index[kept])

    def _skip(self, sample: int, error: Exception) -> None:
        if not self._skipped:
            # The line of the training loop is five frames up.
            warn_skipped(sample, "", "dataset", f"{type(error).__name__}: {error}", stacklevel=5)
        self._skipped.add(sample)

    def _seeder_of(self, program: Program) -> SampleSeeder:
        """Returns a seeder for the samples of a batch, between which the program may change what it holds."""
        from coprep._generators import SampleSeeder

        return SampleSeeder(program, looks_again=False)

    def _kept_visit(self, visit: int) -> int:
        """Returns the visit whose random numbers a sample has."""
        if self._uses is None:
            return visit
        # The visits that would share a cached sample get the same random numbers, and so the same sample.
        return visit // self._uses * self._uses if self._uses else 0


@contextlib.contextmanager
def samples_errors() -> Iterator[None]:
    """Raises errors of user code in workers as the user's own exceptions."""
    try:
        yield
    except SampleError as error:
        raised = users_exception(error)
        raise raised from raised.__cause__


def users_exception(error: SampleError, positions: Positions | None = None) -> BaseException:
    """Returns the exception of the user's code with ``error`` as its cause, or ``error`` if that exception is lost.

    Args:
        positions: tells the id that the user knows, from that of the stream.
    """
    if positions is not None and positions.fold is not None:
        error.renumber(positions.of(error.id))
    raised = _exchange.load_exception(error._exception) if error._exception else None
    if raised is None:
        return error
    if isinstance(raised, StopIteration):
        # A StopIteration would end the training loop without a word.
        raised = RuntimeError(f"sample {error.id} raised StopIteration")
    raised.__cause__ = error
    return raised


def _warn_of_seeds(lost: list[str]) -> None:
    if lost:
        warnings.warn(
            f"worker_init_fn seeds {', '.join(lost)}, which has no effect on samples: each sample is seeded anew from "
            "the loader's seed, so that it is the same whoever makes it. For a run that can be repeated give the "
            "loader seed=",
            UserWarning,
            stacklevel=4,
        )


def pinner(pin_memory: bool, device: str) -> Callable[[Any], Any] | None:
    """Returns the function that copies a batch into pinned memory, or ``None`` if nothing is to be pinned.

    Args:
        pin_memory: whether the user wants it. Without an accelerator nothing is pinned nonetheless.
        device: name of the device to pin for, or ``""`` for the default one.
    """
    torch: Any = sys.modules.get("torch")
    if not pin_memory or torch is None:
        return None
    if not torch.accelerator.is_available():
        return None
    from torch.utils.data._utils import pin_memory as pinning

    pin: Any = pinning.pin_memory
    return lambda batch: pin(batch, device or None)


Given = list[_coprep.Array] | _coprep.DeviceBatch
Make = Callable[[Given, _coprep.Loader], Any]
