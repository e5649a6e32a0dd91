"""Tests what programs set on a loader after it was made, and what they copy of it, beside PyTorch's loader."""

from __future__ import annotations

import contextlib
import copy
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SET_IN_WORKER = 0
SAMPLES = 8


class Shown(data.Dataset[Any]):
    """Samples that show who made them: id, number of workers, what ``worker_init_fn`` set, and a random number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        info = data.get_worker_info()
        return i, 0 if info is None else info.num_workers, SET_IN_WORKER, float(torch.rand(()))


class Slow(Shown):
    def __getitem__(self, i: int) -> Any:
        time.sleep(5 * (i == 0))
        return super().__getitem__(i)


class Streamed(data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (Shown()[i] for i in range(SAMPLES))


class Backwards(data.Sampler[int]):
    """A sampler of one's own, with which PyTorch's loader makes the batches."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES - 1, -1, -1))

    def __len__(self) -> int:
        return SAMPLES


def listed(samples: list[Any]) -> list[Any]:
    return [sample[:3] for sample in samples]


def counted(samples: list[Any]) -> int:
    return len(samples)


def init(number: int) -> None:
    global SET_IN_WORKER
    SET_IN_WORKER = 7


def other_init(number: int) -> None:
    global SET_IN_WORKER
    SET_IN_WORKER = 9


def generator(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def shown(batches: Any) -> Any:
    """Returns what batches show, without their random numbers."""

    def plain(part: Any) -> Any:
        if isinstance(part, (list, tuple)):
            return [plain(one) for one in part]
        return part.tolist() if hasattr(part, "tolist") else part

    return [b[:3] if isinstance(b, list) and len(b) == 4 else b for b in map(plain, batches)]


def pass_of(loader: Any) -> Any:
    try:
        return shown(loader)
    except Exception as error:
        return [base for base in type(error).__mro__ if base in (RuntimeError, TypeError, ValueError)]


def coprep_loader(*args: Any, **options: Any) -> Any:
    return coprep.DataLoader(*args, **options)


def installed(*args: Any, **options: Any) -> Any:
    coprep.install()
    try:
        return data.DataLoader(*args, **options)
    finally:
        coprep.uninstall()


LOADERS = {"coprep.DataLoader": coprep_loader, "installed": installed}
DATASETS: dict[str, tuple[Any, dict[str, Any]]] = {
    "shared": (Shown(), {}),
    "a sampler of one's own": (Shown(), {"sampler": Backwards()}),
    "an iterable dataset": (Streamed(), {}),
}
ONE: dict[str, Any] = {"batch_size": 4, "num_workers": 1}
SET: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "collate_fn": (ONE, [{"collate_fn": listed}, {"collate_fn": counted}, {"collate_fn": listed}]),
    "collate_fn of a loader that had one": (
        {**ONE, "collate_fn": listed},
        [{"collate_fn": counted}, {"collate_fn": data.default_collate}],
    ),
    "collate_fn, and back to the default": (ONE, [{"collate_fn": listed}, {"collate_fn": data.default_collate}]),
    "collate_fn before each pass": (ONE, [{"collate_fn": lambda samples, n=n: (n, len(samples))} for n in range(3)]),
    "collate_fn without workers": ({"batch_size": 4, "num_workers": 0}, [{"collate_fn": listed}]),
    "collate_fn without batches": ({"batch_size": None, "num_workers": 1}, [{"collate_fn": lambda sample: sample[0]}]),
    "worker_init_fn": (ONE, [{"worker_init_fn": init}, {"worker_init_fn": other_init}, {"worker_init_fn": None}]),
    "num_workers": ({"batch_size": 4, "num_workers": 2}, [{"num_workers": 1}, {"num_workers": 3}, {"num_workers": 0}]),
    "num_workers and prefetch_factor": (
        {"batch_size": 4, "num_workers": 0},
        [{"num_workers": 2, "prefetch_factor": 2}, {"prefetch_factor": 5}],
    ),
    "pin_memory": (ONE, [{"pin_memory": True}, {"pin_memory_device": "cuda"}]),
    "in_order": (ONE, [{"in_order": False}]),
    "multiprocessing_context": (
        {**ONE, "worker_init_fn": init},
        [{"multiprocessing_context": "fork"}, {"multiprocessing_context": None}],
    ),
    "several": (ONE, [{"collate_fn": listed, "worker_init_fn": init, "num_workers": 2}]),
}


def passes(make: Callable[..., Any], dataset: Any, options: dict[str, Any], steps: list[dict[str, Any]]) -> list[Any]:
    """Returns what a first pass shows, and each pass after a step of settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = make(dataset, **options)
        found = [pass_of(loader)]
        for step in steps:
            for name, value in step.items():
                setattr(loader, name, value)
                kept = getattr(loader, name)
                assert kept is value or kept == value or name == "multiprocessing_context", name
            found.append(pass_of(loader))
    with contextlib.suppress(AttributeError):
        loader.close()
    return found


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("name", SET)
def test_what_is_set_counts_from_the_next_pass_as_in_pytorch(name: str, kind: str, loader: str) -> None:
    dataset, further = DATASETS[kind]
    options, steps = SET[name]
    if kind == "an iterable dataset" and options["num_workers"] != 1:
        pytest.skip("each of PyTorch's workers iterates all of it")
    expected = passes(data.DataLoader, dataset, {**options, **further}, steps)
    assert passes(LOADERS[loader], dataset, {**options, **further}, steps) == expected


@pytest.mark.parametrize("loader", LOADERS)
def test_a_timeout_that_is_set_later_counts(loader: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "collate_fn": listed}
    expected = passes(data.DataLoader, Slow(), options, [{"timeout": 1}])
    assert expected[-1] == [RuntimeError]
    assert passes(LOADERS[loader], Slow(), options, [{"timeout": 0.2}])[-1][:1] == [RuntimeError]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_that_is_set_later_gives_the_random_numbers_of_the_next_pass(loader: str, workers: int) -> None:
    def numbers(seeds: list[int]) -> list[Any]:
        one = LOADERS[loader](Shown(), 4, num_workers=workers, generator=generator(seeds[0]))
        with one:
            found = [[float(x) for batch in one for x in batch[3]]]
            for seed in seeds[1:]:
                one.generator = generator(seed)
                found.append([float(x) for batch in one for x in batch[3]])
        return found

    assert numbers([1, 2, 2]) == numbers([1, 2, 2])
    assert numbers([1, 2])[1] != numbers([1, 3])[1]


@pytest.mark.parametrize("loader", LOADERS)
def test_only_what_pytorch_refuses_to_set_is_refused(loader: str) -> None:
    theirs = data.DataLoader(Shown(), 4, num_workers=1)
    ours = LOADERS[loader](Shown(), 4, num_workers=1)
    for name in (name for name in vars(theirs) if not name.startswith("_")):
        outcomes = []
        for one in (theirs, ours):
            try:
                setattr(one, name, getattr(one, name))
                outcomes.append("set")
            except Exception as error:
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1], name


def set_on(name: str, attribute: str, value: Any) -> Callable[[Any], None]:
    return lambda loader: setattr(getattr(loader, name), attribute, value)


SAMPLERS: dict[str, tuple[dict[str, Any], Callable[[Any], None]]] = {
    "indices": ({"sampler": data.SubsetRandomSampler([0, 1, 2])}, set_on("sampler", "indices", [5, 6, 7, 3])),
    "indices in place": (
        {"sampler": data.SubsetRandomSampler([0, 1, 2])},
        lambda loader: loader.sampler.indices.extend([6, 7]),
    ),
    "indices twice": ({"sampler": data.SubsetRandomSampler([0, 1])}, set_on("sampler", "indices", [5, 5, 5])),
    "indices in a batch sampler": (
        {"batch_sampler": data.BatchSampler(data.SubsetRandomSampler([0, 1, 2]), 2, False)},
        lambda loader: setattr(loader.batch_sampler.sampler, "indices", [3, 4]),
    ),
    "batch size": ({"batch_size": 4}, set_on("batch_sampler", "batch_size", 3)),
    "batch size of a batch sampler": (
        {"batch_sampler": data.BatchSampler(data.SequentialSampler(range(SAMPLES)), 3, False)},
        set_on("batch_sampler", "batch_size", 5),
    ),
    "batch size with a sampler": (
        {"batch_size": 2, "sampler": data.SubsetRandomSampler([0, 1, 2])},
        set_on("batch_sampler", "batch_size", 3),
    ),
    "drop_last": ({"batch_size": 3}, set_on("batch_sampler", "drop_last", True)),
    "drop_last no more": ({"batch_size": 3, "drop_last": True}, set_on("batch_sampler", "drop_last", False)),
    "another sampler in the batch sampler": (
        {"batch_size": 3},
        set_on("batch_sampler", "sampler", data.SubsetRandomSampler([1, 2])),
    ),
    "a sampler of one's own in the batch sampler": ({"batch_size": 3}, set_on("batch_sampler", "sampler", Backwards())),
    "number of draws": (
        {"sampler": data.RandomSampler(range(SAMPLES), replacement=True, num_samples=4)},
        set_on("sampler", "_num_samples", 7),
    ),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_set_on_a_sampler_counts_from_the_next_pass(name: str, loader: str) -> None:
    options, change = SAMPLERS[name]

    def sizes(make: Callable[..., Any]) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", coprep.UnsharedWarning)
            one = make(Shown(), num_workers=1, collate_fn=listed, **copy.deepcopy(options))
            found = []
            for turn in range(3):
                if turn == 1:
                    change(one)
                batches = [[sample[0] for sample in batch] for batch in one]
                is_drawn = name == "number of draws"
                found.append(([len(b) for b in batches], None if is_drawn else sorted(sum(batches, [])), len(one)))
        with contextlib.suppress(AttributeError):
            one.close()
        return found

    assert sizes(LOADERS[loader]) == sizes(data.DataLoader)


def test_an_attribute_of_ours_counts_too() -> None:
    with coprep.DataLoader(Shown(), 4, num_workers=1) as loader:
        list(loader)
        loader.transform = lambda sample: sample[0] * 100
        assert [batch.tolist() for batch in loader] == [[0, 100, 200, 300], [400, 500, 600, 700]]


def test_a_position_that_was_loaded_outlives_what_is_set() -> None:
    with coprep.DataLoader(Shown(), 2, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        del iterator
        loader.load_state_dict(state)
        loader.collate_fn = listed
        loader.num_workers = 0
        assert [[sample[0] for sample in batch] for batch in loader] == [[2, 3], [4, 5], [6, 7]]
        assert len(list(loader)) == 4


def test_what_cannot_be_used_is_an_error_of_the_next_pass() -> None:
    with coprep.DataLoader(Shown(), 4, num_workers=1) as loader:
        loader.num_workers = -1
        for _ in range(2):
            with pytest.raises(ValueError, match="num_workers option should be non-negative"):
                iter(loader)
        loader.num_workers = 1
        assert len(list(loader)) == 2


# --- copies ---------------------------------------------------------------------------------------------------------

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
}


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_used_loader_is_one_of_its_own(copied: str, loader: str, kind: str) -> None:
    dataset, further = DATASETS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", coprep.UnsharedWarning)
        original = LOADERS[loader](dataset, 4, num_workers=1, persistent_workers=True, **further)
        expected = shown(original)
        original.collate_fn = listed
        begun = iter(original)
        next(begun)
        again = COPIES[copied](original)
    assert type(again) is type(original)
    assert [sample[0] for batch in again for sample in batch] == [i for batch in expected for i in batch[0]]
    # The pass of the original goes on, whatever the copy does.
    assert len(list(begun)) == 1


class Wrapped(data.DataLoader[Any]):
    """Takes all that another loader has, as the loader of Ray Train does."""

    def __init__(self, base: Any) -> None:
        self.__dict__.update(base.__dict__)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"batch_size": None},
        {"num_workers": 1},
        {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True},
        {"sampler": data.SequentialSampler(range(SAMPLES)), "batch_size": 3, "drop_last": True},
        {"batch_sampler": [[0, 1], [2]]},
        {"sampler": Backwards()},
    ],
    ids=lambda options: ", ".join(options) or "no options",
)
@pytest.mark.filterwarnings("ignore::coprep.UnsharedWarning")
def test_an_installed_loader_has_pytorchs_names_in_its_dict(options: dict[str, Any]) -> None:
    theirs, ours = data.DataLoader(Shown(), **options), installed(Shown(), **options)
    assert vars(theirs).keys() <= vars(ours).keys()
    for name, value in vars(theirs).items():
        # The number of workers that is left out is another one where coprep's make the samples.
        is_shown = name == "prefetch_factor" and ours.num_workers != theirs.num_workers
        assert is_shown or type(vars(ours)[name]) is type(value), name
    copied = Wrapped(ours)
    assert copied.sampler is ours.sampler and copied.batch_sampler is ours.batch_sampler
    ids, expected = (torch.cat([torch.as_tensor(batch[0]).flatten() for batch in one]) for one in (copied, theirs))
    assert sorted(ids.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.filterwarnings("ignore::coprep.UnsharedWarning")
def test_pytorchs_defaults_hold_where_pytorchs_loader_makes_the_batches(loader: str) -> None:
    class Counting(Shown):
        calls = 0

        def __getitem__(self, i: int) -> Any:
            self.calls += 1
            return super().__getitem__(i)

    dataset = Counting()
    one = LOADERS[loader](dataset, 4, sampler=Backwards())
    next(iter(one))
    # It runs in this process, and no further ahead than it is asked to.
    assert dataset.calls == 4
    assert one._private.num_workers == 0
    # Settings for workers, where there are none, do no harm.
    kept = LOADERS[loader](dataset, 4, sampler=Backwards(), persistent_workers=True, prefetch_factor=3, timeout=5)
    assert len(list(kept)) == 2


# --- classes that repeat their samplers ------------------------------------------------------------------------------


class Repeat:
    """Ultralytics' and timm's ``_RepeatSampler``."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def infinite(base: Any) -> Any:
    class InfiniteDataLoader(base):  # type: ignore[misc]
        """Ultralytics' class."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def __del__(self) -> None:
            with contextlib.suppress(Exception):
                if not hasattr(self.iterator, "_workers"):
                    return
                for worker in self.iterator._workers:
                    if worker.is_alive():
                        worker.terminate()
                self.iterator._shutdown_workers()

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return InfiniteDataLoader


def multi_epochs(base: Any) -> Any:
    class MultiEpochsDataLoader(base):  # type: ignore[misc]
        """timm's class."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._DataLoader__initialized = False
            if self.batch_sampler is None:
                self.sampler = Repeat(self.sampler)
            else:
                self.batch_sampler = Repeat(self.batch_sampler)
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.sampler.sampler) if self.batch_sampler is None else len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

    return MultiEpochsDataLoader


@pytest.mark.parametrize("derived", [infinite, multi_epochs])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3},
        {"batch_size": 3, "shuffle": True, "drop_last": True},
        {"batch_size": 4, "sampler": data.RandomSampler(range(SAMPLES))},
        {"batch_size": 3, "num_workers": 0},
        {"batch_size": None},
    ],
    ids=["batches", "shuffled", "a sampler", "no workers", "no batches"],
)
def test_classes_that_repeat_their_sampler_share(derived: Any, options: dict[str, Any]) -> None:
    if derived is infinite and options["batch_size"] is None:
        pytest.skip("it needs batches with PyTorch too")
    options = {"num_workers": 1, **options}
    theirs = derived(data.DataLoader)(Shown(), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", coprep.UnsharedWarning)
        ours = derived(coprep.DataLoader)(Shown(), **options)
    assert len(ours) == len(theirs)
    for _ in range(3):
        ids = [torch.as_tensor(batch[0]).flatten().tolist() for batch in ours]
        expected = [torch.as_tensor(batch[0]).flatten().tolist() for batch in theirs]
        assert [len(batch) for batch in ids] == [len(batch) for batch in expected]
        seen = sum(ids, [])
        assert len(set(seen)) == len(seen)
    assert ours.state_dict()["epoch"] >= 2
    if derived is infinite:
        ours.reset()
        assert len(list(ours)) == len(theirs)
    ours.close()


@pytest.mark.filterwarnings("ignore::coprep.UnsharedWarning")
def test_another_sampler_that_replaces_the_loaders_is_its_order() -> None:
    for base in (data.DataLoader, coprep.DataLoader):
        loader = base(Shown(), 2, num_workers=1)
        object.__setattr__(loader, "batch_sampler", [[5, 1], [3]])
        assert [batch[0].tolist() for batch in loader] == [[5, 1], [3]]


def test_it_is_said_that_another_sampler_shares_nothing(socket_path: Path) -> None:
    loader = coprep.DataLoader(Shown(), 2, num_workers=1)
    object.__setattr__(loader, "batch_sampler", [[5, 1], [3]])
    with pytest.warns(coprep.UnsharedWarning, match="its samples come in the order of list"):
        iter(loader)
