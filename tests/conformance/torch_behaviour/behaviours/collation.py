"""Checks how the samples of a batch are collated."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

from .parts_of_checks import Numbers, Own, Pictures, Point, identity, raises, same
from .table import behaviour


def collates(DataLoader: Any, *batches: list[Any]) -> None:
    """Asserts that the default collation of these batches equals PyTorch's: of each batch in the job, and of all of
    them in a worker. All batches have one size."""
    for samples in batches:
        (found,) = DataLoader(samples, batch_size=len(samples), num_workers=0)
        wanted = torch_data.default_collate(samples)
        assert same(found, wanted), f"{found!r} should be {wanted!r}"
    # Samples of one loader must look alike, so each sample here has one element of every batch.
    together = list(zip(*batches, strict=True))
    (found,) = DataLoader(together, batch_size=len(together), num_workers=1)
    wanted = torch_data.default_collate(together)
    assert same(found, wanted), f"in a worker: {found!r} should be {wanted!r}"


@dataclasses.dataclass
class Record:
    x: int
    y: float


class Labelled(dict):  # type: ignore[type-arg]
    """A mapping of the user's own, which collation must keep."""


class Bag:
    """A batch of a class of the user's own."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples


def summed(samples: list[int]) -> int:
    assert isinstance(samples, list)
    return sum(samples)


def bad_collate(samples: Any) -> Any:
    raise Own("cannot put these together")


def scale(samples: list[int], by: int) -> torch.Tensor:
    return torch.tensor(samples) * by


@behaviour("collation of tensors")
def collate_tensors(DataLoader: Any) -> None:
    """Tensors are stacked and keep their dtype."""
    dtypes = (torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32, torch.float64)
    collates(DataLoader, *([torch.tensor([[i, 2]], dtype=dtype) for i in range(3)] for dtype in dtypes))


@behaviour("collation of rarer tensors")
def collate_rarer_tensors(DataLoader: Any) -> None:
    """Booleans, bfloat16 and complex numbers keep their dtype."""
    dtypes = (torch.bool, torch.bfloat16, torch.complex64)
    collates(DataLoader, *([torch.tensor([i, 1], dtype=dtype) for i in range(3)] for dtype in dtypes))


@behaviour("collation of scalar and empty tensors")
def collate_edge_tensors(DataLoader: Any) -> None:
    """Tensors of no dimension and of no elements are stacked."""
    collates(DataLoader, [torch.tensor(i) for i in range(3)], [torch.empty(0, 4) for _ in range(3)])


@behaviour("collation of views")
def collate_views(DataLoader: Any) -> None:
    """Tensors and arrays that are not contiguous are collated by their visible values."""
    tensor, array = torch.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4)
    collates(DataLoader, [tensor.t(), tensor[:, 1:].t()[[0, 1, 2, 0]]], [array[:, ::2], array[:, 1:3]])


@behaviour("collation of arrays")
def collate_arrays(DataLoader: Any) -> None:
    """NumPy arrays become tensors of the same dtype."""
    dtypes = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
    collates(DataLoader, *([np.array([i, 1], dtype=dtype) for i in range(3)] for dtype in dtypes))


@behaviour("collation of memory maps")
def collate_memmap(DataLoader: Any) -> None:
    """A NumPy memory map as the dataset is collated as an array is."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples.bin")
        np.arange(12, dtype="float32").tofile(path)
        rows = np.memmap(path, dtype="float32", mode="r", shape=(4, 3))
        batches = list(DataLoader(rows, batch_size=2, num_workers=2))
    assert same(torch.cat(batches), torch.arange(12, dtype=torch.float32).reshape(4, 3))


@behaviour("collation of NumPy scalars")
def collate_numpy_scalars(DataLoader: Any) -> None:
    """NumPy scalars become one tensor of their dtype."""
    kinds = (np.float32, np.float64, np.int16, np.int64, np.uint8, np.bool_)
    collates(DataLoader, *([kind(i) for i in range(3)] for kind in kinds))


@behaviour("collation of numbers")
def collate_numbers(DataLoader: Any) -> None:
    """int becomes int64, float becomes float64, bool becomes bool."""
    collates(DataLoader, [1, 2], [1.5, 2.5], [True, False], [-(2**63), 2**63 - 1])


@behaviour("collation of ints among floats")
def collate_mixed_numbers(DataLoader: Any) -> None:
    """The first sample decides: floats with an int become float64, ints with a float become float32."""
    collates(DataLoader, [1.5, 2], [1, 2.5])


@behaviour("collation of strings")
def collate_strings(DataLoader: Any) -> None:
    """Strings and bytes come as a list."""
    collates(DataLoader, ["a", "", "déjà"], [b"a", b"", b"\x00"])


@behaviour("collation of tuples")
def collate_tuples(DataLoader: Any) -> None:
    """Tuples become a list of columns; a column of strings is a tuple."""
    collates(DataLoader, [(i, float(i), str(i), torch.tensor([i])) for i in range(3)])


@behaviour("collation of lists")
def collate_lists(DataLoader: Any) -> None:
    """Lists become a list of columns."""
    collates(DataLoader, [[i, float(i)] for i in range(3)])


@behaviour("collation of dicts")
def collate_dicts(DataLoader: Any) -> None:
    """Dicts become a dict of columns, keys in their order."""
    collates(DataLoader, [{"b": i, "a": torch.ones(2) * i, "name": str(i), 3: i} for i in range(3)])


@behaviour("collation of named tuples")
def collate_named_tuples(DataLoader: Any) -> None:
    """Named tuples keep their type."""
    collates(DataLoader, [Point(i, np.ones(2) * i) for i in range(3)])


class Boxed:
    """A dataset whose samples are named tuples. Their class is an attribute of the dataset's class."""

    Row = namedtuple("Row", ["x", "y"])  # noqa: PYI024

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.Row(index, Renamed(torch.ones(2), str(index)))


Renamed = namedtuple("OtherName", ["x", "y"])  # noqa: PYI024


@behaviour("named tuples of other names")
def collate_named_tuples_elsewhere(DataLoader: Any) -> None:
    """A named tuple may be made in the body of a class, or have another name than its variable."""
    for options in ({"batch_size": 2}, {"batch_size": None}, {"collate_fn": torch_data.default_collate}):
        for batch in DataLoader(Boxed(), **options):
            assert type(batch) is Boxed.Row and type(batch.y) is Renamed


@behaviour("collation of nested samples")
def collate_nested(DataLoader: Any) -> None:
    """Containers in containers are collated all the way down."""
    samples = [{"a": (i, [np.ones(2) * i, {"z": str(i)}]), "p": Point((i,), {"q": float(i)})} for i in range(3)]
    collates(DataLoader, samples)


@behaviour("collation of mapping types")
def collate_mapping_types(DataLoader: Any) -> None:
    """OrderedDict, defaultdict and mappings of the user's own keep their type."""
    ordered = [OrderedDict(a=i, b=str(i)) for i in range(2)]
    collates(DataLoader, ordered, [defaultdict(int, a=i) for i in range(2)], [Labelled(a=i) for i in range(2)])


@behaviour("collation of empty containers")
def collate_empty_containers(DataLoader: Any) -> None:
    """Empty tuples, lists and dicts give empty ones."""
    collates(DataLoader, *([empty, empty] for empty in ((), [], {})))


@behaviour("collation of ranges")
def collate_ranges(DataLoader: Any) -> None:
    """Sequences that cannot be made from a list become a list of columns."""
    collates(DataLoader, [range(i, i + 2) for i in range(3)])


@behaviour("extra keys")
def collate_by_first_keys(DataLoader: Any) -> None:
    """Keys that the first sample of a batch lacks are left out."""
    collates(DataLoader, [{"a": 1}, {"a": 2, "b": 3}])


@behaviour("missing keys")
def collate_missing_keys(DataLoader: Any) -> None:
    """A sample without a key that the first one has is a KeyError."""
    with raises(KeyError, ValueError, RuntimeError, texts=("'b'",)):
        list(DataLoader([{"a": 1, "b": 2}, {"a": 2}], batch_size=2, num_workers=2))


@behaviour("types that cannot be collated")
def collate_bad_types(DataLoader: Any) -> None:
    """Objects, sets and None raise TypeError."""
    for sample in (object, {1, 2}, None):
        with raises(TypeError):
            list(DataLoader([sample, sample], batch_size=2, num_workers=2))


@behaviour("arrays that cannot be collated")
def collate_bad_arrays(DataLoader: Any) -> None:
    """NumPy arrays of strings and of objects raise TypeError."""
    for array in (np.array(["a"]), np.array([b"a"]), np.array([object], dtype=object)):
        with raises(TypeError):
            list(DataLoader([array, array], batch_size=2, num_workers=2))


@behaviour("nested and sparse tensors")
def collate_nested_tensors(DataLoader: Any) -> None:
    """Nested and sparse tensors raise RuntimeError; a collate_fn receives them as they are."""
    nested = [torch.nested.nested_tensor([torch.arange(float(n)), torch.ones(2)]) for n in range(1, 5)]
    for data in (nested, [torch.eye(2).to_sparse() for _ in range(4)]):
        for workers in (0, 2):
            with raises(RuntimeError, texts=("not currently supported by the default collate_fn",)):
                list(DataLoader(data, batch_size=2, num_workers=workers))
    found = [tensor for batch in DataLoader(nested, batch_size=2, num_workers=2, collate_fn=list) for tensor in batch]
    assert all(tensor.is_nested for tensor in found)
    assert same([list(tensor.unbind()) for tensor in found], [list(tensor.unbind()) for tensor in nested])


@behaviour("types that cannot be collated, in tuples")
def collate_bad_types_nested(DataLoader: Any) -> None:
    """None within a tuple raises TypeError."""
    with raises(TypeError):
        list(DataLoader([(1, None), (2, None)], batch_size=2, num_workers=2))


@behaviour("PIL images", difference="Images are what most datasets have; coprep makes tensors of them.")
def collate_pil(DataLoader: Any) -> None:
    """PIL images are refused with TypeError."""
    with raises(TypeError):
        list(DataLoader([pil_image(i) for i in range(4)], batch_size=2, num_workers=2))


@collate_pil.instead
def collate_pil_ours(DataLoader: Any) -> None:
    """PIL images become tensors."""
    batches = list(DataLoader([pil_image(i) for i in range(4)], batch_size=2, num_workers=2))
    assert [len(b) for b in batches] == [2, 2]
    assert all(torch.as_tensor(b[0]).sum() == 30 * 20 * 3 * i * 2 for i, b in enumerate(batches))


def pil_image(value: int) -> Any:
    from PIL import Image

    return Image.new("RGB", (30, 20), (value, value, value))


@behaviour("dataclasses", difference="A dataclass is collated field by field, as a named tuple is.")
def collate_dataclass(DataLoader: Any) -> None:
    """Dataclasses are refused with TypeError."""
    with raises(TypeError):
        list(DataLoader([Record(i, i / 2) for i in range(2)], batch_size=2, num_workers=2))


@collate_dataclass.instead
def collate_dataclass_ours(DataLoader: Any) -> None:
    """Dataclasses are collated field by field."""
    (batch,) = DataLoader([Record(i, i / 2) for i in range(2)], batch_size=2, num_workers=2)
    fields = batch if isinstance(batch, dict) else vars(batch)
    assert same([fields["x"], fields["y"]], [torch.tensor([0, 1]), torch.tensor([0, 0.5], dtype=torch.float64)])


@behaviour("unequal shapes")
def unequal_shapes(DataLoader: Any) -> None:
    """Samples of unequal shapes in one batch raise RuntimeError."""
    with raises(RuntimeError):
        list(DataLoader([torch.ones(2), torch.ones(2), torch.ones(3)], batch_size=3, num_workers=2))


@behaviour("unequal lengths")
def unequal_lengths(DataLoader: Any) -> None:
    """Lists of unequal lengths in one batch raise an error."""
    with raises(RuntimeError, ValueError):
        list(DataLoader([[1, 2], [1]], batch_size=2, num_workers=2))


@behaviour("unequal shapes in different batches")
def unequal_shapes_apart(DataLoader: Any) -> None:
    """Samples of unequal shapes in different batches are fine."""
    samples = [torch.ones(2), torch.ones(2), torch.ones(3), torch.ones(3)]
    assert [b.shape for b in DataLoader(samples, batch_size=2, num_workers=2)] == [(2, 2), (2, 3)]


class Measured(torch.Tensor):
    """A tensor of a class of the program."""


@behaviour("tensors of a derived class")
def derived_tensors(DataLoader: Any) -> None:
    """Tensors of a derived class are stacked to one of that class."""
    samples = [torch.full((2,), float(i)).as_subclass(Measured) for i in range(4)]
    for workers in (0, 2):
        batches = list(DataLoader(samples, batch_size=2, num_workers=workers))
        assert all(type(batch) is Measured for batch in batches)
        assert [batch.tolist() for batch in batches] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]


@behaviour("default_collate_fn_map")
def changed_collation(DataLoader: Any) -> None:
    """Types and rules that the program puts into default_collate_fn_map are followed."""
    from torch.utils.data._utils.collate import default_collate_fn_map

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(default_collate_fn_map, str, lambda batch, *, collate_fn_map=None: "-".join(batch))
        patch.setitem(default_collate_fn_map, Bag, lambda batch, *, collate_fn_map=None: [b.samples for b in batch])
        for workers in (0, 2):
            (batch,) = DataLoader([("a", Bag(1)), ("b", Bag(2))], batch_size=2, num_workers=workers)
            assert batch == ["a-b", [1, 2]]


@behaviour("collate_fn")
def own_collate(DataLoader: Any) -> None:
    """collate_fn is called with the list of a batch's samples, and its result is the batch."""
    for workers in (0, 2):
        assert list(DataLoader(Numbers(6), batch_size=4, collate_fn=summed, num_workers=workers)) == [6, 9]


@behaviour("collate_fn: samples as they are")
def identity_collate(DataLoader: Any) -> None:
    """A collate_fn that returns its argument gives the samples themselves, of whatever type."""
    samples = [(1, "a"), None, {"x": np.arange(2)}, Point(1, 2), [torch.ones(2), {3, 4}]]
    for workers in (0, 2):
        batches = list(DataLoader(samples, batch_size=2, collate_fn=identity, num_workers=workers))
        assert same(batches, [samples[:2], samples[2:4], samples[4:]]), batches


@behaviour("collate_fn: a batch of an own type")
def own_batch_type(DataLoader: Any) -> None:
    """A collate_fn may return an object of a class of the user's own."""
    batches = list(DataLoader(Numbers(4), batch_size=2, collate_fn=Bag, num_workers=2))
    assert all(type(b) is Bag for b in batches) and [b.samples for b in batches] == [[0, 1], [2, 3]]


@behaviour("collate_fn: unequal shapes")
def own_collate_pads(DataLoader: Any) -> None:
    """A collate_fn may pad samples of unequal shapes."""
    samples = [torch.ones(n) for n in (1, 3, 2)]
    pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    (batch,) = DataLoader(samples, batch_size=3, collate_fn=pad, num_workers=2)
    assert batch.shape == (3, 3) and batch.sum() == 6


@behaviour("collate_fn: partial, lambda, closure")
def collate_callables(DataLoader: Any) -> None:
    """A collate_fn may be a partial, a lambda or a function that uses variables around it."""
    by = 3
    for function in (functools.partial(scale, by=3), lambda samples: torch.tensor(samples) * by):
        (batch,) = DataLoader(Numbers(4), batch_size=4, collate_fn=function, num_workers=2)
        assert batch.tolist() == [0, 3, 6, 9]


@behaviour("collate_fn: PyTorch's own")
def default_collate_given(DataLoader: Any) -> None:
    """torch.utils.data.default_collate as the collate_fn is the default."""
    data, fn = Pictures(6), torch_data.default_collate
    given = list(DataLoader(data, batch_size=4, collate_fn=fn, num_workers=2))
    assert same(given, list(DataLoader(data, batch_size=4, num_workers=2)))


@behaviour("exception in collate_fn")
def collate_error(DataLoader: Any) -> None:
    """An exception in collate_fn is raised in the job, with its type and its origin."""
    for workers in (0, 2):
        with raises(Own, texts=("cannot put these together", "in bad_collate")):
            list(DataLoader(Numbers(4), batch_size=2, collate_fn=bad_collate, num_workers=workers))
