"""Tests that batches of samples of any kind are those of PyTorch's loader, or that its errors come."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import coprep
import numpy as np
import pytest
from coordinators import coordinator_at
from samples import Colour, Fixed, Frozen, Graph, Item, Picture, Point, Slotted, Tagged, Unmade, image, picture, rand

torch = pytest.importorskip("torch")
from torch.utils.data._utils import collate as torchs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:The PyTorch API of nested tensors")

F8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]

BATCHES: dict[str, list[Any]] = {
    "tensors and numbers": [(rand(i, 3, 4), i, i / 2, i == 1) for i in range(3)],
    **{f"{dtype}": [rand(i, 2, 3).to(dtype) for i in range(3)] for dtype in F8},
    "float8 and a number": [{"x": rand(i, 2).to(F8[0]), "y": i} for i in range(3)],
    "0-d float8": [rand(i, 1)[0].to(F8[1]) for i in range(3)],
    "complex32": [torch.complex(rand(i, 3).half(), rand(i, 3).half()) for i in range(3)],
    "derived tensors": [(picture(i, 3, 4), i) for i in range(3)],
    "derived tensors with attributes": [picture(i, 3, unit="m") for i in range(3)],
    "derived tensors deep within": [{"a": [picture(i, 2)], "b": (i, {"c": picture(i, 1)})} for i in range(3)],
    "slices of a derived tensor": [picture(0, 3, 1000)[i, 5:7] for i in range(3)],
    "a derived tensor among others": [rand(0, 2), picture(1, 2), rand(2, 2)],
    "others with a derived tensor first": [picture(1, 2), rand(0, 2), rand(2, 2)],
    "parameters": [torch.nn.Parameter(rand(i, 2), requires_grad=False) for i in range(3)],
    "channels last": [rand(i, 2, 3, 4, 5).to(memory_format=torch.channels_last) for i in range(3)],
    "derived, channels last": [
        rand(i, 2, 3, 4, 5).to(memory_format=torch.channels_last).as_subclass(Picture) for i in range(3)
    ],
    "permuted": [rand(i, 4, 5, 3).permute(2, 0, 1) for i in range(3)],
    "expanded": [rand(i, 1).expand(4) for i in range(3)],
    "unequal shapes": [rand(i, 2 + i) for i in range(3)],
    "unequal shapes deep within": [{"a": (rand(i, 2 + i), i)} for i in range(3)],
    "unequal dimensions": [rand(0, 2), rand(1, 2, 1), rand(2, 2)],
    "unequal arrays": [np.ones(2 + i) for i in range(3)],
    "an array and a 0-d array": [np.ones(()), np.ones(1), np.ones(())],
    "other dtypes": [rand(0, 2), rand(1, 2).double(), rand(2, 2).half()],
    "other dtypes of arrays": [np.ones(2, np.float32), np.ones(2, np.int8), np.ones(2, np.float64)],
    "int, then float": [1, 2.5, 3],
    "float, then int": [1.5, 2, 3],
    "bool, then int": [True, 2, 3],
    "int, then bool": [2, True, False],
    "bool, then float": [True, 2.5, False],
    "int, then a tensor": [1, torch.tensor(2), 3],
    "float, then a scalar of NumPy": [1.5, np.float32(2), 3.5],
    "scalars of NumPy": [np.float32(1), np.float64(2), np.int8(3)],
    "a tensor, then int": [torch.tensor(2), 1, 3],
    "an array, then a tensor": [np.ones(2), torch.ones(2).double(), np.ones(2)],
    "a tensor, then an array": [torch.ones(2).double(), np.ones(2), np.ones(2)],
    "str, then bytes": ["a", b"b", "c"],
    "bytes, then str": [b"a", "b", b"c"],
    "str, then int": ["a", 1, "c"],
    "int, then str": [1, "b", 3],
    "text of another type in a list": [["a", 1], [b"b", 2], ["c", 3]],
    "tuple, then list": [(1, "a"), [2, "b"], (3, "c")],
    "list, then tuple": [[1, 2], (3, 4), [5, 6]],
    "dict, then OrderedDict": [{"a": 1}, collections.OrderedDict(a=2), {"a": 3}],
    "OrderedDict, then dict": [collections.OrderedDict(a=1), {"a": 2}, {"a": 3}],
    "dict, then defaultdict": [{"a": 1}, collections.defaultdict(int, a=2), {"a": 3}],
    "mapping, then dict": [Frozen({"a": 1}), {"a": 2}, {"a": 3}],
    "named tuple, then tuple": [Point(1, 2), (3, 4), (5, 6)],
    "tuple, then named tuple": [(1, 2), Point(3, 4), (5, 6)],
    "list, then deque": [[1, 2], collections.deque([3, 4]), [5, 6]],
    "derived list, then list": [Tagged([1, 2]), [3, 4], [5, 6]],
    "sequences": [Fixed([i, "s"]) if i else [i, "s"] for i in range(3)],
    "a key more": [{"a": 1}, {"a": 2, "b": 3}, {"a": 4}],
    "a key less": [{"a": 1, "b": 2}, {"a": 2}, {"a": 4, "b": 1}],
    "a key less in a mapping that cannot be made": [Unmade("here", {"a": 1, "b": 2}), {"a": 2}, {"a": 3}],
    "a list that is longer": [[1, 2], [1, 2, 3], [1, 2]],
    "a tuple that is shorter": [(1, 2), (1,), (1, 2)],
    "lists without elements": [[], [], []],
    "nothing among lists": [[], [1], []],
    "none": [None, None, None],
    "none for a number": [(1, 2), (1, None), (1, 2)],
    "none first": [None, 1, 2],
    "a set": [{1}, {2}, {3}],
    "an object": [(Graph(1), 1), (Graph(2), 2), (Graph(3), 3)],
    "an object among numbers": [1, Graph(2), 3],
    "arrays of text": [np.array(["ab"])] * 3,
    "arrays of objects": [np.array([None])] * 3,
    "times": [np.datetime64(i, "s") for i in range(3)],
    "large integers": [1, 2**63, 2],
    "larger integers": [2**64, 1, 2],
    "sparse": [torch.eye(2).to_sparse()] * 3,
    "dense, then sparse": [torch.eye(2), torch.eye(2).to_sparse(), torch.eye(2)],
    "nested": [torch.nested.nested_tensor([torch.ones(2)])] * 3,
    "int enum, then int": [Colour.RED, 2, Colour.RED],
    "unsigned arrays": [np.array([2**16 - 1], np.uint16), np.array([1], np.uint16), np.array([2], np.uint8)],
}


class Rows:
    def __init__(self, *batches: list[Any]) -> None:
        self.rows = [sample for batch in batches for sample in batch]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, coordinator_at(tmp_path_factory.mktemp("collation") / "run", patch):
        yield


@pytest.fixture
def rules() -> Iterator[dict[Any, Any]]:
    """Yields PyTorch's table of collations, which the test may change."""
    table: dict[Any, Any] = torchs.default_collate_fn_map
    before = dict(table)
    yield table
    table.clear()
    table.update(before)


def given(loader: Any) -> list[Any]:
    """Returns the batches of an epoch, and in place of those that fail their exceptions."""
    batches, found = iter(loader), []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


def loaders(dataset: Any, workers: int, size: int = 3, **options: Any) -> tuple[list[Any], list[Any]]:
    """Returns what PyTorch's loader gives, and what coprep's gives."""
    theirs = given(torch.utils.data.DataLoader(dataset, batch_size=size, num_workers=workers, **options))
    with coprep.DataLoader(dataset, batch_size=size, num_workers=workers, **options) as loader:
        return theirs, given(loader)


def shape(value: Any) -> Any:
    """Returns types, dtypes, shapes, strides, attributes and bytes of a batch, to be compared."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor)
        elements = plain.contiguous().view(-1).view(torch.uint8).tolist() if plain.numel() else []
        return type(value), value.dtype, value.shape, value.stride(), vars(value), elements
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, Mapping):
        return type(value), [(key, shape(value[key])) for key in value]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return type(value), [shape(part) for part in value]
    return type(value), value.nodes if isinstance(value, Graph) else value


def assert_same(ours: Any, theirs: Any) -> None:
    if not isinstance(theirs, Exception):
        if isinstance(ours, Exception):
            raise ours
        assert shape(ours) == shape(theirs)
        return
    # PyTorch's exceptions of workers have the text of the original one at their end.
    assert type(ours) is type(theirs), ours
    assert str(theirs).rstrip().endswith(str(ours).rstrip()), (ours, theirs)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_that_of_torch_without_workers(batch: list[Any], coordinator: None) -> None:
    for samples in (batch, batch[::-1]):
        theirs, ours = loaders(Rows(samples), 0)
        if isinstance(theirs[0], torch.Tensor):
            # Without workers PyTorch keeps strides. Batches of coprep are those of workers in any case.
            theirs[0] = theirs[0].contiguous()
        assert_same(ours[0], theirs[0])


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_that_of_torch_with_workers(batch: list[Any], coordinator: None) -> None:
    theirs, ours = loaders(Rows(batch), 1)
    assert_same(ours[0], theirs[0])


@pytest.mark.parametrize("first", ["tensors and numbers", "str, then int", "derived tensors"])
def test_batches_of_one_dataset_may_be_of_any_kinds(first: str, coordinator: None) -> None:
    theirs, ours = loaders(Rows(BATCHES[first], *BATCHES.values()), 2)
    assert len(ours) == len(theirs) == len(BATCHES) + 1
    for (name, _), our, their in zip([(first, None), *BATCHES.items()], ours, theirs, strict=True):
        try:
            assert_same(our, their)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_may_differ_in_size_from_each_other(workers: int, coordinator: None) -> None:
    theirs, ours = loaders(Rows([(rand(i, 1 + i // 2, 3), f"{i}" * i) for i in range(20)]), workers, size=2)
    for our, their in zip(ours, theirs, strict=True):
        assert_same(our, their)


# Rules of the program for the types of parts.


def pad(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    return torch.nn.utils.rnn.pad_sequence(list(batch), batch_first=True)


def together(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    return ["together", *batch]


def nodes(batch: Sequence[Graph], *, collate_fn_map: Any = None) -> Any:
    return torchs.collate([graph.nodes for graph in batch], collate_fn_map=collate_fn_map)


RULES: dict[str, tuple[Any, Callable[..., Any], list[Any]]] = {
    "tensors": (torch.Tensor, pad, [(rand(i, 1 + i), i) for i in range(3)]),
    "tensors of equal shapes": (torch.Tensor, together, [(rand(i, 2), i) for i in range(3)]),
    "text": (str, together, [{"a": "x" * i, "b": i} for i in range(3)]),
    "bytes": (bytes, together, [b"a", b"b", b"c"]),
    "numbers": (int, together, [(i, 0.5) for i in range(3)]),
    "scalars of NumPy": (np.float32, together, [(np.float32(i), np.float64(i)) for i in range(3)]),
    "arrays": (np.ndarray, together, [[np.arange(2) + i, i] for i in range(3)]),
    "a derived number": (Colour, together, [Colour.RED, Colour.RED, Colour.RED]),
    "named tuples": (Point, together, [Point(i, "a") for i in range(3)]),
    "dicts": (dict, together, [{"a": i} for i in range(3)]),
    "none": (type(None), together, [(None, i) for i in range(3)]),
    "a type of one's own": (Graph, nodes, [(Graph(rand(i, 2)), i) for i in range(3)]),
    "a type of one's own that pads": (Graph, together, [Graph(i) for i in range(3)]),
    "a type that no sample has": (Graph, together, [(rand(i, 2), i) for i in range(3)]),
    "a type that is PyTorch's": (Picture, together, [picture(i, 2) for i in range(3)]),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("kind", "rule", "batch"), RULES.values(), ids=RULES)
def test_rules_of_the_program_are_followed(
    kind: Any, rule: Any, batch: list[Any], workers: int, rules: dict[Any, Any], coordinator: None
) -> None:
    rules[kind] = rule
    theirs, ours = loaders(Rows(batch, batch), workers)
    for our, their in zip(ours, theirs, strict=True):
        assert_same(our, their)


def test_rules_may_be_for_images_and_dataclasses(rules: dict[Any, Any], coordinator: None) -> None:
    from PIL import Image

    pictures = [image(i, mode) for i, mode in enumerate(("RGB", "RGB", "RGB"))]
    rules[Image.Image] = rules[Item] = rules[Slotted] = together
    for workers in (0, 1):
        (_, *found), (_, *items) = (
            loaders(Rows(batch), workers)[1][0] for batch in (pictures, [Item(rand(i, 2), i, f"{i}") for i in range(3)])
        )
        assert [one.tobytes() for one in found] == [one.tobytes() for one in pictures]
        assert [(type(item), item.label, item.name) for item in items] == [(Item, i, f"{i}") for i in range(3)]


def test_jobs_share_samples_whatever_their_rules(rules: dict[Any, Any], coordinator: None) -> None:
    dataset = Rows([f"{i}" for i in range(6)])

    def loader() -> coprep.DataLoader:
        return coprep.DataLoader(dataset, batch_size=3, num_workers=1)

    with loader() as plain, loader() as ruled:
        batches = iter(plain)
        assert next(batches) == ["0", "1", "2"]
        rules[str] = together
        assert next(iter(ruled)) == ["together", "0", "1", "2"]
        assert plain._native.attached()["stream"] == ruled._native.attached()["stream"]


def test_images_and_dataclasses_of_unequal_shapes(coordinator: None) -> None:
    rows = [(image(i, size=(7, 5 + i // 2)), Item(rand(i, 1 + i // 2), i, "n"), 1j) for i in range(4)]
    for workers in (0, 1):
        with coprep.DataLoader(Rows(rows), batch_size=2, num_workers=workers) as loader:
            for at, (pixels, item, number) in enumerate(loader):
                assert pixels.shape == (2, 3, 5 + at, 7) and pixels.dtype == torch.uint8
                assert np.array_equal(pixels[1].permute(1, 2, 0), np.asarray(rows[2 * at + 1][0]))
                assert type(item) is Item and item.image.shape == (2, 1 + at) and item.name == ["n", "n"]
                assert number.dtype == torch.complex128


def test_for_numpy_float8_is_one_clear_error(coordinator: None) -> None:
    for workers in (0, 1):
        with coprep.DataLoader(
            Rows(BATCHES["float8 and a number"]), batch_size=3, num_workers=workers, framework="numpy"
        ) as loader:
            message = r"found a tensor of torch.float8_e4m3fn, which numpy does not have in part 'x' of the sample"
            with pytest.raises(TypeError, match=message):
                next(iter(loader))


def test_for_numpy_batches_may_differ_in_size_from_each_other(coordinator: None) -> None:
    rows = [(np.full(1 + i // 2, i), f"{i}", picture(i, 1 + i // 2)) for i in range(6)]
    for workers in (0, 1):
        with coprep.DataLoader(Rows(rows), batch_size=2, num_workers=workers, framework="numpy") as loader:
            for at, (numbers, texts, pictures) in enumerate(loader):
                assert numbers.tolist() == [[2 * at] * (at + 1), [2 * at + 1] * (at + 1)]
                assert list(texts) == [f"{2 * at}", f"{2 * at + 1}"] and type(pictures) is np.ndarray
        with (
            coprep.DataLoader(Rows(rows), batch_size=3, num_workers=workers, framework="numpy") as loader,
            pytest.raises(ValueError, match="part '0' of the sample is an array of int64 with shape"),
        ):
            next(iter(loader))


class WholeBatches(Rows):
    """Makes a dict of a batch, and not a list of samples."""

    def __getitems__(self, ids: list[int]) -> dict[str, Any]:
        return {"ids": ids, "sum": sum(ids)}


def as_it_is(batch: Any) -> Any:
    return batch


class Pairs(Rows):
    """Makes a batch of two parts, which look like two samples."""

    def __getitems__(self, ids: list[int]) -> tuple[list[int], int]:
        return ids, sum(ids)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [2, 3])
@pytest.mark.parametrize(("kind", "made"), [(WholeBatches, "a dict for 2 indices"), (Pairs, "2 samples for one index")])
def test_a_dataset_that_makes_whole_batches_is_left_to_torch_with_one_warning(
    coordinator: None, kind: type[Rows], made: str, batch_size: int, workers: int
) -> None:
    dataset = kind([None] * 5)
    options: dict[str, Any] = {"batch_size": batch_size, "collate_fn": as_it_is, "num_workers": workers}
    theirs = list(torch.utils.data.DataLoader(dataset, **options))
    with coprep.DataLoader(dataset, **options) as loader:
        with pytest.warns(coprep.UnsharedWarning, match=rf"{kind.__name__}\.__getitems__ returned {made}") as said:
            epochs = [list(loader) for _ in range(2)]
        assert len(said) == 1
        assert epochs == [theirs, theirs]
        assert len(loader) == len(theirs)


# With a `collate_fn` samples are those of the dataset.


def shares(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns how far the tensors lie from the first one, in bytes, as far as they share its memory."""
    first = tensors[0]
    ends = first.untyped_storage().data_ptr() + first.untyped_storage().nbytes()
    distances = [tensor.data_ptr() - first.data_ptr() for tensor in tensors]
    return [distance if tensor.data_ptr() < ends else -1 for tensor, distance in zip(tensors, distances, strict=True)]


def views() -> dict[str, list[torch.Tensor]]:
    whole, large = rand(0, 4, 6), rand(1, 100_000)
    return {
        "channels last": [rand(0, 2, 3, 4, 5).to(memory_format=torch.channels_last)],
        "permuted": [rand(0, 4, 5, 3).permute(2, 0, 1)],
        "expanded": [rand(0, 1).expand(4)],
        "transposed bfloat16": [rand(0, 4, 5).bfloat16().t()],
        "derived": [picture(0, 4, 5, unit="m").t()],
        "requires grad": [rand(0, 3).requires_grad_()],
        "a view after the whole": [whole, whole.view(6, 4), whole[1:3]],
        "a view before the whole": [whole[1:3], whole, whole.t()],
        "views that overlap": [whole[:2], whole[1:3], whole[2:]],
        "a derived view": [whole, whole.as_subclass(Picture)],
        "small parts of a large one": [large[5:7], large[5:6]],
        "the same": [whole, whole],
    }


@pytest.mark.parametrize("name", views())
def test_samples_for_a_collate_fn_keep_class_strides_and_shared_memory(name: str, coordinator: None) -> None:
    tensors = views()[name]
    with coprep.DataLoader(Rows([tensors]), batch_size=1, num_workers=1, collate_fn=lambda batch: batch[0]) as loader:
        (found,) = given(loader)
    assert shape(found) == shape(tensors)
    assert [tensor.requires_grad for tensor in found] == [tensor.requires_grad for tensor in tensors]
    assert shares(found) == shares(tensors)
