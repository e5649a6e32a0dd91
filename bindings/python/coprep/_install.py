"""Replaces PyTorch's loader by coprep's, for programs that cannot be edited.

It changes PyTorch's class itself. The class then makes coprep's loaders, whatever name it is called by and wherever a
program has kept a reference to it. These loaders are instances of PyTorch's class too. Subclasses of PyTorch's class
stay as they are.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coprep import _arguments as arguments
from coprep._loader import DataLoader
from coprep._ranks import GivenRank
from coprep._torch_interface import prefetched
from coprep._unshared import torch_class, torch_loader

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    # Nothing of these classes is used, and importing them takes a tenth of the time of importing coprep.
    Loader = MetaPathFinder = object

_MODULE = "torch.utils.data.dataloader"
_MARK = "coprep"
_active = False


def install() -> None:
    """Makes each new ``torch.utils.data.DataLoader`` of this process a loader of coprep's, until :func:`uninstall`.

    This one line is enough for a program to share, whether it makes its loaders itself or by a library. The line may
    come before or after the imports of PyTorch and of that library; it does not import PyTorch. Loaders made before
    stay as they are.

    The loaders behave as :class:`DataLoader`, except where PyTorch's loader would work without an error:

    - Ranks come from a ``DistributedSampler``. Without one each process gets the whole dataset.
    - PyTorch makes the loaders that cannot be shared (outside of a cohort a sampler of its own, or an
      ``IterableDataset``), with an :class:`UnsharedWarning`.
    - ``isinstance(loader, torch.utils.data.DataLoader)`` holds.

    Instances of classes that derive from PyTorch's stay PyTorch's. Processes that ``multiprocessing`` starts from this
    one, by whatever method, have coprep installed too, before their function is called. Other processes do not:
    ``python -m coprep run script.py`` starts a program with coprep installed.
    """
    global _active
    _active = True
    # multiprocessing copies these settings into each process that it starts, and from there into the next ones.
    _process_settings()[_MARK] = _Mark()
    if _MODULE in sys.modules:
        _replace()
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Undoes :func:`install`. Loaders that have been made stay as they are."""
    global _active
    _active = False
    _process_settings().pop(_MARK, None)
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _process_settings() -> dict[str, Any]:
    """Returns what ``multiprocessing`` keeps of this process and copies to the processes that it starts."""
    # Imported here, since few programs install the loader and all import this module.
    from multiprocessing import process

    settings: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    return settings


class _Mark:
    """Installs the loader in each process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[], _Mark], tuple[()]]:
        return _received, ()


def _received() -> _Mark:
    install()
    return _Mark()


def _replace() -> None:
    """Lets PyTorch's class make loaders of coprep's while coprep is installed."""
    own = torch_class()
    if vars(own).get("__new__") is not None:
        return

    def make(cls: type, *args: Any, **options: Any) -> Any:
        if cls is own:
            # A call without arguments comes from copying a loader, whose class stays as it was.
            wanted = _active and bool(args or options)
            # The result is an instance of PyTorch's class, so Python calls the __init__ of its own class next.
            return object.__new__(_installed_class() if wanted else own)
        following: Any = super(own, cls).__new__
        return following(cls) if following is object.__new__ else following(cls, *args, **options)

    # `uninstall` leaves it in place: once a class has had a __new__, Python does not restore the former behaviour.
    own.__new__ = make


class _Finder(MetaPathFinder):
    """Wraps the loader of PyTorch's module as soon as the program imports it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Imports PyTorch's module with its own loader, then changes the class."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__loader__ = spec.loader = self._loader
        self._loader.exec_module(module)
        _replace()


_finder = _Finder()


class _AsPyTorch(DataLoader[Any]):
    """A loader that follows PyTorch's behaviour wherever PyTorch's loader would work without an error."""

    _notes: Any = None
    """A batch sampler that notes the ids it gives, asked for its next ids at each batch."""
    _shown_workers: int | None = None
    """The ``num_workers`` that is shown where the program gave none."""

    @property
    def multiprocessing_context(self) -> Any:
        """The context of workers. PyTorch's class has it by this name in ``__dict__``, and checks other things."""
        return self._DataLoader__multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        if isinstance(context, str):
            import torch.multiprocessing

            context = torch.multiprocessing.get_context(context)
        self._DataLoader__multiprocessing_context = context

    def _decide_order(self, shuffle: bool | None, subset: Any) -> arguments.Order | None:
        inner = _noted(self._batch_sampler)
        order = None if inner is None or subset is not None else arguments.order_of(inner, self.dataset)
        # The sampler notes the right batches only if its order is that of the loader, so a fixed one.
        if isinstance(order, arguments.Order) and not order.shuffle and order.world_size is None:
            self._notes = self._batch_sampler
            return order
        return super()._decide_order(shuffle, subset)

    def _finish_init(self) -> None:
        given = self._given_rank
        if given.world_size is None:
            # Each process has the whole dataset, since there is no DistributedSampler.
            self._given_rank = GivenRank(given.rank or 0, 1, given.group)
        # Libraries compare num_workers with a number.
        if self._wanted_workers() is None:
            self._shown_workers = len(os.sched_getaffinity(0)) if self._torchs is None else 0
            self.num_workers = self._shown_workers
            self.prefetch_factor = prefetched(self.prefetch_factor, self.num_workers)
        self._add_attributes()

    def _add_attributes(self) -> None:
        """Adds the attributes that PyTorch's loader has in its ``__dict__``, for programs that copy a loader by it."""
        if self._is_native or isinstance(self.dataset, str):
            # PyTorch's samplers ask these for their length, which is not known yet.
            return
        loader = self._torchs
        if loader is None:
            loader = torch_loader(self.dataset, generator=self.generator, **self._batching(self._shuffle))
        for name, value in vars(loader).items():
            # Lightning notes by names with two underscores with which arguments a loader was made. That is another one.
            if not name.startswith("__"):
                vars(self).setdefault(name, value)
        self._made_samplers = {name: vars(loader)[name] for name in ("sampler", "batch_sampler")}

    def _wanted_workers(self) -> int | None:
        return None if self.num_workers == self._shown_workers else self.num_workers

    def _inner_sampler(self, sampler: Any) -> Any:
        return sampler if self._notes is None else _noted(sampler)

    def _own_collate(self, collate_fn: Any) -> Any:
        import torch.utils.data as data

        # Libraries pass the default explicitly, copied from another loader.
        return None if collate_fn in (None, data.default_collate, data.default_convert) else collate_fn

    def _get_iterator(self) -> Iterator[Any]:
        iterator = super()._get_iterator()
        if self._notes is None or self._torchs is not None:
            # PyTorch's own loader asks the sampler itself, so that it notes the ids.
            return iterator
        return _Noting(iterator, iter(self._notes))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new_loader, (), self.__getstate__()

    def state_dict(self) -> dict[str, Any]:
        # Libraries ask every loader that has this method, even one that has not begun and has no state.
        begun = self._private is None and (self._loader is not None or self._resume is not None)
        return super().state_dict() if begun else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            super().load_state_dict(state)


def _noted(sampler: Any) -> Any:
    """Returns the batch sampler inside Lightning's, or ``None`` for any other sampler.

    Lightning's sampler notes the ids of each batch for callbacks that write predictions.
    """
    kind = type(sampler)
    is_lightnings = kind.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")
    return sampler._batch_sampler if is_lightnings and kind.__qualname__ == "_IndexBatchSamplerWrapper" else None


class _Noting:
    """An iterator over batches that advances a sampler with each batch, so that the sampler notes its ids."""

    def __init__(self, batches: Iterator[Any], ids: Iterator[Any]) -> None:
        self._batches = batches
        self._ids = ids

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        next(self._ids)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _new_loader() -> Any:
    """Returns a loader without attributes, which a copy of another one gets."""
    return object.__new__(_installed_class())


@functools.cache
def _installed_class() -> Any:
    """Returns the class of the loaders that replace PyTorch's."""
    bases = (_AsPyTorch, torch_class())
    return type("DataLoader", bases, {"__doc__": DataLoader.__doc__, "__module__": DataLoader.__module__})
