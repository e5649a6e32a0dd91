"""One pass over the batches of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from coprep import _coprep
from coprep._batches import Make, Nothing, users_exception
from coprep._errors import DatasetChanged, SampleError
from coprep._folds import Positions


class Epoch(Iterator[Any]):
    """Iterator over the batches of one epoch.

    Args:
        native: the native loader, which has begun the epoch.
        make: makes a batch of its arrays.
        pin: copies a batch into pinned memory, or ``None``.
        stream: returns the GPU and its stream for batches, or ``None`` if the native loader gives them on the host.
        length: returns the number of batches in the epoch. It may raise if that is unknown.
        is_current: returns whether no later pass of the same loader has begun.
        move: leaves the stream for one of the changed dataset, and returns the native loader that is there.
        failed: the error of the first samples, if the epoch could not begin because of it.
        positions: tells the ids that the user knows, from those of the stream.
    """

    def __init__(
        self,
        native: _coprep.Loader,
        make: Make,
        pin: Callable[[Any], Any] | None,
        stream: Callable[[], tuple[int, int]] | None,
        *,
        length: Callable[[], int],
        is_current: Callable[[], bool],
        move: Callable[[], _coprep.Loader],
        failed: SampleError | None,
        positions: Positions,
    ) -> None:
        self._native = native
        self._make = make
        self._pin = pin
        self._stream = stream
        self._length = length
        self._is_current = is_current
        self._move = move
        self._failed = failed
        self._positions = positions
        self._failures = 0
        self._skipped: Exception | None = None
        """The error because of which all batches so far are empty."""
        self._is_empty = True
        self._over = False

    def __len__(self) -> int:
        return self._length()

    @property
    def is_over(self) -> bool:
        """``True`` if no further batch comes."""
        return self._over

    @property
    def _workers(self) -> list[Any]:
        """Worker processes of this iterator, which PyTorch's iterator has. Empty: workers serve all jobs."""
        return []

    def _shutdown_workers(self) -> None:
        """Ends the pass. Programs call this on PyTorch's iterator to end its workers."""
        if not self._over:
            self._over = True
            if self._is_current():
                self._native.leave_pass()

    def __del__(self) -> None:
        # If the interpreter is ending, the names of this module may be gone already.
        try:  # noqa: SIM105
            self._shutdown_workers()
        except Exception:
            pass

    def __next__(self) -> Any:
        while not self._over:
            if not self._is_current():
                raise RuntimeError("this iterator is over: a newer one of the same loader has begun")
            if self._failed is not None:
                self._fail(self._failed)
            try:
                arrays = self._native.next() if self._stream is None else self._native.next(self._stream())
            except SampleError as error:
                raised = users_exception(error, self._positions)
                raise raised from raised.__cause__
            except DatasetChanged:
                self._native = self._move()
                continue
            if arrays is None:
                break
            batch = self._make(arrays, self._native)
            if isinstance(batch, Nothing):
                self._skipped = batch.error
                continue
            self._is_empty = False
            return batch if self._pin is None else self._pin(batch)
        self._over = True
        if self._is_empty and self._skipped is not None:
            raise self._skipped
        raise StopIteration

    def _fail(self, error: SampleError) -> NoReturn:
        """Raises the error of the first samples, once for each batch of the epoch.

        The first samples tell the layout of all others. If none of them can be made, no batch can be.
        """
        self._failures += 1
        self._over = self._failures >= self._expected_batches()
        raised = users_exception(error, self._positions)
        raise raised from raised.__cause__

    def _expected_batches(self) -> int:
        try:
            return self._length()
        except Exception:
            # The length is unknown here: the dataset is made in workers only.
            return 1


_END = object()


class Repeated(Iterator[Any]):
    """Iterates over one epoch after another, without end.

    Args:
        begin: begins an epoch. It is called for the first one at once, and for each other one when its first batch is
            wanted.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self._epoch = begin()

    def __next__(self) -> Any:
        batch = next(self._epoch, _END)
        if batch is _END:
            self._epoch = self._begin()
            # An epoch without batches ends the iteration, which would find none for ever.
            batch = next(self._epoch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoch, name)
