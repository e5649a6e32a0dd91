"""Tests that samples are written into arrays and come out as the batch that PyTorch makes of them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pickle
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coprep._structure import Field, MismatchError, Structure, convert, pack_whole
from PIL import Image
from samples import (
    Colour,
    Fixed,
    Frozen,
    Item,
    Point,
    Settled,
    Slotted,
    Tagged,
    Twins,
    Unmade,
    image,
    picture,
    python,
    rand,
    same,
    tagged,
)

torch = pytest.importorskip("torch")
from torch.utils.data import default_collate, default_convert  # noqa: E402

Make = Callable[[int], Any]

LIKE_TORCH: dict[str, Make] = {
    "tensor and int": lambda i: (rand(i, 3, 4, 5), i),
    "tensor": lambda i: rand(i, 4),
    "0-d tensor": lambda i: torch.tensor(i),
    "int": lambda i: i - 1,
    "large int": lambda i: 2**63 - 1 - i,
    "float": lambda i: i / 3,
    "bool": lambda i: i == 1,
    "bool tensor": lambda i: (rand(i, 5) > 0.5, torch.tensor(i == 0)),
    "bfloat16": lambda i: (rand(i, 5, 2).bfloat16(), torch.tensor(i / 3, dtype=torch.bfloat16)),
    "bfloat16 not contiguous": lambda i: rand(i, 5, 2).bfloat16().t()[:, ::2],
    "float16": lambda i: [rand(i, 3).half(), np.float16(i)],
    "complex tensor": lambda i: (torch.complex(rand(i, 3), rand(i + 9, 3)), np.complex64(i + 1j)),
    "conjugated": lambda i: torch.complex(rand(i, 3), rand(i + 9, 3)).conj(),
    "negated view": lambda i: torch.complex(rand(i, 3), rand(i + 9, 3)).conj().imag,
    "not contiguous tensor": lambda i: rand(i, 4, 6, 3).permute(2, 0, 1)[:, ::2],
    "expanded tensor": lambda i: rand(i, 1).expand(6),
    "arrays": lambda i: {"a": np.full((2, 3), i, np.int16), "b": np.arange(4, dtype=np.float64) + i},
    "unsigned arrays": lambda i: [np.full(3, 2**b - 1 - i, f"uint{b}") for b in (8, 16, 32, 64)],
    "0-d array": lambda i: np.array(i, np.int32),
    "not contiguous array": lambda i: (np.arange(24.0).reshape(2, 3, 4).T[1:] * i, i),
    "bool array": lambda i: np.arange(3) == i,
    "memmap-like subclass": lambda i: np.arange(3).view(np.memmap) + i,
    "numpy scalars": lambda i: (np.float32(i), np.int8(i), np.bool_(i), np.uint16(i), np.float64(i), np.longlong(i)),
    "int enum": lambda i: Colour.RED,
    "numbers of several types": lambda i: [1, np.int64(2), Colour.RED][i],
    "str": lambda i: "abc"[i],
    "str and int": lambda i: (f"sample {i}", i),
    "unicode": lambda i: {"text": "žluťoučký 🐎 \0\n"[i:], "deep": [("é" * i, i)]},
    "bytes": lambda i: [b"\x00\xff" * i, {"raw": bytes(i)}],
    "numpy str": lambda i: (np.str_("s" * i), np.bytes_(b"b" * i)),
    "nested": lambda i: (i, [rand(i, 2), (i / 2, {"x": [i], "y": ()})], {"z": {"deep": (rand(i, 1),)}}),
    "dict": lambda i: {"image": rand(i, 3), "label": i, 7: i, ("a", 1): "t"},
    "dict in another order": lambda i: {"a": i, "b": -i} if i != 1 else {"b": -i, "a": i},
    "named tuple": lambda i: Point(rand(i, 2), {"name": "n", "inner": Point(i, "s")}),
    "ordered dict": lambda i: collections.OrderedDict(b=i, a=rand(i, 2)),
    "default dict": lambda i: collections.defaultdict(list, a=i, b="x"),
    "mapping": lambda i: Frozen({"a": i, "b": rand(i, 2)}),
    "mutable mapping": lambda i: Settled("here", a=i, b=rand(i, 2)),
    "mapping that cannot be made": lambda i: Unmade("here", {"a": i}),
    "mapping proxy": lambda i: types.MappingProxyType({"a": i}),
    "user dict": lambda i: collections.UserDict(a=i),
    "list subclass": tagged,
    "deque": lambda i: collections.deque([i, rand(i, 2)], maxlen=5),
    "sequence": lambda i: Fixed([i, "s"]),
    "range": lambda i: range(i, i + 3),
    "tuple subclass": lambda i: Twins([i, i]),
    "empty containers": lambda i: ([], (), {}, i),
    "nothing": lambda i: (),
    "empty tensor": lambda i: (torch.empty(3, 0), i, np.empty((0, 2), np.uint8), torch.empty(0, dtype=torch.bfloat16)),
    "only empty": lambda i: np.empty((2, 0)),
    "nan": lambda i: (float("nan"), np.full(2, np.inf), torch.full((2,), float("nan"), dtype=torch.bfloat16)),
}


# For these samples PyTorch makes no batch, or a different one, on purpose. Each entry has the expected batch.
UNLIKE_TORCH: dict[str, tuple[Make, Callable[[list[Any]], Any]]] = {
    "complex": (lambda i: i + 2j, lambda s: torch.tensor(s, dtype=torch.complex128)),
    "big-endian": (
        lambda i: {"a": np.arange(3, dtype=">f4") + i, "b": np.array(i, ">i8")},
        lambda s: {k: torch.tensor(np.stack([x[k] for x in s]).astype(t)) for k, t in (("a", "f4"), ("b", "i8"))},
    ),
    "negative strides": (lambda i: np.arange(6)[::-2] + i, lambda s: torch.tensor(np.stack(s))),
    "requires grad": (lambda i: rand(i, 3).requires_grad_(), lambda s: torch.stack(s).detach()),
    "dataclass": (
        lambda i: Item(rand(i, 2), i, f"n{i}"),
        lambda s: (Item, torch.stack([x.image for x in s]), torch.tensor([0, 1, 2]), ["n0", "n1", "n2"]),
    ),
    "dataclass with slots": (
        lambda i: Slotted(i, [i]),
        lambda s: (Slotted, torch.tensor([0, 1, 2]), [torch.tensor([0, 1, 2])]),
    ),
    **{
        f"image {mode}": (lambda i, mode=mode: (image(i, mode), i), lambda s: [pixels([x for x, _ in s]), ints()])
        for mode in ("RGB", "L", "RGBA", "CMYK", "LA", "1", "P", "F", "I")
    },
}


def ints() -> torch.Tensor:
    return torch.tensor([0, 1, 2])


def pixels(images: list[Image.Image]) -> torch.Tensor:
    to_tensor = pytest.importorskip("torchvision.transforms.functional").pil_to_tensor
    return torch.stack([to_tensor(x) for x in images])


def through(structure: Structure, samples: list[Any], framework: Any = "torch") -> tuple[Any, list[Any]]:
    """Writes ``samples`` into slots 1... of buffer 1. Returns the batch of them, and the arrays."""
    # The bytes are filled with a pattern, which shows any that are written by mistake.
    views = [np.full((2, 5, *f.shape), 0xA5, np.uint8).astype(f.storage) for f in structure.fields]
    before = [view.copy() for view in views]
    blobs = []
    for slot, sample in enumerate(samples, 1):
        packed = structure.write(sample, views, (1, slot))
        assert (packed is not None) == structure.has_blob
        if packed is not None:
            blobs.append(memoryview(bytearray(packed.size)))
            assert packed.write_to(blobs[-1]) == packed.size
    for old, new in zip(before, views, strict=True):
        new = new.copy()
        new[1, 1 : 1 + len(samples)] = old[1, 1 : 1 + len(samples)]
        assert np.array_equal(old, new), "nothing else is written to"
    arrays = [view[1, 1 : 1 + len(samples)] for view in views]
    return structure.batch(arrays, blobs, len(samples), framework), arrays


def leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        yield from itertools.chain.from_iterable(leaves(batch[k]) for k in batch)
    elif dataclasses.is_dataclass(batch):
        yield from itertools.chain.from_iterable(leaves(getattr(batch, f.name)) for f in dataclasses.fields(batch))
    elif isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        yield from itertools.chain.from_iterable(map(leaves, batch))
    else:
        yield batch


@pytest.mark.parametrize("make", LIKE_TORCH.values(), ids=LIKE_TORCH)
def test_the_batch_is_that_of_torch(make: Make) -> None:
    samples = [make(i) for i in range(3)]
    batch, _ = through(Structure.of(make(2)), samples)
    expected = default_collate([make(i) for i in range(3)])
    assert same(batch, expected), f"{batch}\n{expected}"
    again, _ = through(Structure.of(make(0)), samples)
    assert same(again, expected)


@pytest.mark.parametrize(("make", "expect"), UNLIKE_TORCH.values(), ids=UNLIKE_TORCH)
def test_the_batch_where_it_is_not_that_of_torch(make: Make, expect: Callable[[list[Any]], Any]) -> None:
    samples = [make(i) for i in range(3)]
    batch, _ = through(Structure.of(make(0)), samples)
    expected = expect(samples)
    if dataclasses.is_dataclass(batch):
        batch = (type(batch), *(getattr(batch, f.name) for f in dataclasses.fields(batch)))
    assert same(batch, expected), f"{batch}\n{expected}"


@pytest.mark.parametrize("name", [*LIKE_TORCH, *UNLIKE_TORCH])
def test_for_numpy_the_batch_is_of_arrays(name: str) -> None:
    make = LIKE_TORCH[name] if name in LIKE_TORCH else UNLIKE_TORCH[name][0]
    structure = Structure.of(make(0))
    for framework in ("torch", "numpy"):
        batch, arrays = through(structure, [make(i) for i in range(3)], framework)
        parts = [leaf for leaf in leaves(batch) if not isinstance(leaf, (str, bytes))]
        assert all(isinstance(x, np.ndarray if framework == "numpy" else torch.Tensor) for x in parts)
        # Arrays without elements have no address to compare.
        parts = [part for part in parts if np.prod(part.shape)]
        for field, array, part in zip(structure.fields, arrays, parts, strict=True):
            if framework == "numpy" and field.dtype == "bfloat16":
                # NumPy has no bfloat16, so the values are converted to float32.
                assert part.dtype == np.float32
                assert same(torch.from_numpy(part).bfloat16(), torch.from_numpy(array.view("i2")).view(torch.bfloat16))
            else:
                address = part.ctypes.data if framework == "numpy" else part.data_ptr()
                assert address == array.ctypes.data, "it is not copied"


OF_ANOTHER_TYPE = {"numpy scalars", "numbers of several types", "mapping that cannot be made", "range"}
"""Samples that come back as others of which PyTorch makes the same batch."""


@pytest.mark.parametrize("name", [name for name in LIKE_TORCH if name != "mapping proxy"])
def test_samples_can_be_had_from_the_arrays_again(name: str) -> None:
    samples = [LIKE_TORCH[name](i) for i in range(3)]
    structure = Structure.of(samples[0])
    views = [np.empty((3, *field.shape), field.storage) for field in structure.fields]
    packed = [structure.write(sample, views, i) for i, sample in enumerate(samples)]
    # The one in the middle travels whole.
    packed[1] = pack_whole(samples[1])
    blobs: list[memoryview | None] = [part and memoryview(bytearray(part.size)) for part in packed]
    for part, blob in zip(packed, blobs, strict=True):
        assert part is None or part.write_to(blob) == part.size
    again = structure.samples(views, structure.unpacked(blobs, 3), 3)
    assert same(default_collate(again), default_collate(samples))
    assert same(again, samples) or name in OF_ANOTHER_TYPE
    assert any(isinstance(samples[0], kind) for kind in structure.kinds())


def test_batches_do_not_share_containers() -> None:
    for name in ("mutable mapping", "default dict", "list subclass", "user dict", "deque"):
        make = LIKE_TORCH[name]
        first = make(0)
        structure = Structure.of(first)
        assert same(first, make(0)), "the sample is as it was"
        one, _ = through(structure, [make(0), make(1)])
        two, _ = through(structure, [make(2), make(2)])
        assert same(one, default_collate([make(0), make(1)]))
        assert same(two, default_collate([make(2), make(2)]))


def test_fields() -> None:
    structure = Structure.of({"image": np.zeros((3, 4), ">u2"), "meta": (1, "t", torch.zeros(2).bfloat16())})
    assert structure.fields == [
        Field("image", "uint16", (3, 4)),
        Field("meta.0", "int64", ()),
        Field("meta.2", "bfloat16", (2,)),
    ]
    assert [f.nbytes for f in structure.fields] == [24, 8, 4]
    assert structure.has_blob
    assert not Structure.of(1).has_blob
    assert Structure.of(image(0)).fields == [Field("sample", "uint8", (3, 5, 7))]


REFUSED: dict[str, tuple[Any, str]] = {
    "none": ({"a": [None]}, r"found <class 'NoneType'> in part 'a.0' of the sample: .* collate_fn"),
    "object": (object(), r"found <class 'object'>: .* collate_fn"),
    "class": ((Item,), r"found <class 'type'>|found <class 'abc.ABCMeta'>"),
    "set": (({1},), r"found <class 'set'> in part '0'"),
    "object array": ((np.array([None]),), r"found object in part '0'"),
    "str array": (np.array(["ab"]), r"found <U2:"),
    "bytes array": (np.array([b"ab"]), r"found \|S2:"),
    "time": (np.datetime64(1, "s"), r"found datetime64\[s\]"),
    "structured": (np.zeros(2, [("a", "i4")]), r"found \[\('a', '<i4'\)\]"),
    "wide float": (np.zeros(2, np.longdouble), r"found float128|longdouble"),
    "elsewhere": (torch.empty(2, device="meta"), r"found a tensor on meta, not on the CPU"),
    "float8": (torch.zeros(2).to(torch.float8_e4m3fn), r"found a tensor of torch.float8_e4m3fn, which numpy does"),
    "derived tensor": (picture(0, 2), r"found a tensor of the class Picture:"),
    "huge int": ([2**63], r"found an integer of more than 64 bits in part '0'"),
}


@pytest.mark.parametrize(("sample", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_batch_can_be_made_of_is_refused(sample: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        Structure.of(sample)
    assert str(caught.value).startswith("batch must contain tensors, numpy arrays, numbers, dicts or lists; found ")
    if sample is not REFUSED["class"][0]:
        structure = Structure.of(sample, whole=True)
        assert structure.fields == [] and structure.has_blob


@pytest.mark.parametrize("sample", [torch.eye(2).to_sparse(), torch.nested.nested_tensor([torch.ones(2)])], ids=type)
def test_what_pytorch_does_not_stack_is_its_error(sample: Any) -> None:
    with pytest.raises(RuntimeError, match="not currently supported by the default collate_fn"):
        torch.utils.data.default_collate([sample])
    message = r"^not currently supported by the default collate_fn: a .* in part '1' of the sample. Pass a collate_fn$"
    with pytest.raises(RuntimeError, match=message):
        Structure.of((1, sample))


class SubInt(int):
    pass


MISMATCHED: dict[str, tuple[Any, Any, str]] = {
    "shape": (
        {"image": np.zeros((3, 4), "f4")},
        {"image": np.zeros((3, 5), "f4")},
        "part 'image' of the sample is an array of float32 with shape (3, 5), but in the first sample it is an array "
        "of float32 with shape (3, 4): make them equal in the dataset, or pass a collate_fn",
    ),
    "broadcast": (torch.zeros(3, 4), torch.zeros(4), "a tensor of float32 with shape (4,), but"),
    "broadcast of one": (np.zeros(3), np.zeros(1), "an array of float64 with shape (1,), but"),
    "tensor for a number": (1, torch.tensor(1), "is a tensor of int64 with shape (), but in the first sample it is of"),
    "array for a tensor": (torch.zeros(3), np.zeros(3, "f4"), "is an array of float32"),
    "tensor for an array": (np.zeros(3, "f4"), torch.zeros(3), "is a tensor of float32"),
    "derived tensor": (torch.zeros(3), picture(0, 3), "is of type Picture (a tensor of the class Picture)"),
    "number for an array": (np.zeros(3), 1.0, "is of type float, but in the first sample it is an array"),
    "array for a number": (1, np.zeros((), "i4"), "is an array of int32 with shape (), but"),
    "dtype": ((torch.zeros(3),), (torch.zeros(3).double(),), "part '0' of the sample is a tensor of float64"),
    "dtype of an array": (np.zeros(3, "i4"), np.zeros(3, "i8"), "is an array of int64"),
    "sign": (np.zeros(3, "i4"), np.zeros(3, "u4"), "is an array of uint32"),
    "bfloat16 and uint16": (torch.zeros(3).bfloat16(), np.zeros(3, "u2"), "is an array of uint16"),
    "uint16 and bfloat16": (np.zeros(3, "u2"), torch.zeros(3).bfloat16(), "is a tensor of bfloat16"),
    "bfloat16 shape": (torch.zeros(3).bfloat16(), torch.zeros(4).bfloat16(), "a tensor of bfloat16 with shape (4,)"),
    "float for int": (
        (1, 2),
        (1, 2.0),
        "part '1' of the sample is of type float, but in the first sample it is of type",
    ),
    "int for float": (1.0, 1, "the sample is of type int, but in the first sample it is of type float"),
    "bool for int": (1, True, "of type bool"),
    "int for bool": (True, 1, "of type int"),
    "complex for float": (1.0, 1j, "of type complex"),
    "huge int": (1, 2**63, "is of type int (an integer of more than 64 bits)"),
    "huge int of a subclass": (1, SubInt(-(2**64)), "is of type SubInt (an integer of more than 64 bits)"),
    "numpy scalar": (np.float32(1), np.float64(1), "is of type float64"),
    "none": (torch.zeros(3), None, "is of type NoneType"),
    "none for a number": ([1], [None], "is of type NoneType"),
    "str for a number": (1, "1", "is of type str"),
    "number for a str": (
        {"a": "1"},
        {"a": 1},
        "part 'a' of the sample is of type int, but in the first sample it is of",
    ),
    "bytes for a str": ("a", b"a", "is of type bytes"),
    "object array": (np.zeros(3), np.array([None] * 3), "is of type ndarray (object)"),
    "sparse": (torch.zeros(2, 2), torch.eye(2).to_sparse(), "a tensor of layout torch.sparse_coo"),
    "elsewhere": (torch.zeros(2), torch.empty(2, device="meta"), "a tensor on meta, not on the CPU"),
    "image size": (image(0), image(0, size=(7, 6)), "is a PIL image of mode RGB and size 7x6, but"),
    "image mode": ([image(0)], [image(0, "L")], "part '0' of the sample is a PIL image of mode L and size 7x5"),
    "list for tuple": ((1, 2), [1, 2], "the sample is of type list, but in the first sample it is of type tuple"),
    "short": ((1, 2), (1,), "the sample has 1 items, but in the first sample it has 2"),
    "long": ([[1, 2]], [[1, 2, 3]], "part '0' of the sample has 3 items, but"),
    "key missing": ({"a": 1, "b": 2}, {"a": 1}, "the sample has no key 'b', but in the first sample it has one"),
    "key instead": ({"a": 1, "b": 2}, {"a": 1, "c": 2}, "has no key 'b'"),
    "key added": ({"a": 1}, {"a": 1, "c": 2}, "has a key 'c', but in the first sample it has none"),
    "key not made up": (
        collections.defaultdict(int, a=1, b=2),
        collections.defaultdict(int, a=1, c=2),
        "has no key 'b'",
    ),
    "mapping": ({"a": 1}, collections.OrderedDict(a=1), "is of type OrderedDict"),
    "dataclass": (Slotted(1, 2), (1, 2), "is of type tuple, but in the first sample it is of type Slotted"),
    "part of a dataclass": (Slotted(1, [2]), Slotted(1, [2.0]), "part 'b.0' of the sample is of type float"),
    "empty": (np.zeros((0, 2)), np.zeros((0, 3)), "an array of float64 with shape (0, 3)"),
    "none for empty": (np.zeros((0, 2)), None, "is of type NoneType"),
}


@pytest.mark.parametrize(("first", "other", "message"), MISMATCHED.values(), ids=MISMATCHED)
def test_a_sample_unlike_the_first_is_told(first: Any, other: Any, message: str) -> None:
    structure = Structure.of(first)
    views = [np.zeros((1, 1, *f.shape), f.storage) for f in structure.fields]
    structure.write(first, views, (0, 0))
    with pytest.raises(MismatchError) as caught:
        structure.write(other, views, (0, 0))
    text = str(caught.value)
    assert message in text and "\n" not in text
    assert text.endswith(": make them equal in the dataset, or pass a collate_fn")
    structure.write(first, views, (0, 0))


def test_whole_samples() -> None:
    samples = [{"a": None, "b": (np.arange(3) + i, {i})} for i in range(3)]
    structure = Structure.of(samples[0], whole=True)
    batch, _ = through(structure, samples)
    assert [x["a"] for x in batch] == [None] * 3
    assert [x["b"][1] for x in batch] == [{0}, {1}, {2}]
    assert all(same(x["b"][0], y["b"][0]) for x, y in zip(batch, samples, strict=True))


def test_missing_blobs_are_told() -> None:
    structure = Structure.of("text")
    with pytest.raises(ValueError, match="3 samples have 0 blobs"):
        structure.batch([], None, 3, "torch")
    with pytest.raises(ValueError, match="framework is 'jax'"):
        Structure.of(1).batch([np.zeros(1)], None, 1, "jax")  # type: ignore[arg-type]


PICKLED = [name for name in LIKE_TORCH if name != "mapping proxy"]


@pytest.mark.parametrize("name", PICKLED)
def test_a_structure_can_be_pickled(name: str) -> None:
    make = LIKE_TORCH[name]
    structure = Structure.of(make(0))
    samples = [make(i) for i in range(3)]
    through(structure, samples)
    copy = pickle.loads(pickle.dumps(structure))
    assert repr(copy) == repr(structure)
    assert copy.fields == structure.fields and copy.has_blob == structure.has_blob
    assert same(through(copy, samples)[0], through(structure, samples)[0])


def test_a_structure_holds_no_data() -> None:
    data = torch.zeros(10_000)
    for sample in (
        collections.OrderedDict(a=data),
        Tagged([data]),
        Settled("here", a=data),
        collections.UserDict(a=data),
    ):
        assert len(pickle.dumps(Structure.of(sample))) < 2000


def test_a_structure_goes_to_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_types.py").write_text(
        "import dataclasses, typing\n"
        "Pair = typing.NamedTuple('Pair', [('a', object), ('b', object)])\n"
        "@dataclasses.dataclass\n"
        "class Data:\n    x: object\n    pair: object\n"
    )
    made = python(
        """
        import pickle, sys, numpy as np
        from user_types import Data, Pair
        from coprep._structure import Structure
        sys.stdout.buffer.write(pickle.dumps(Structure.of(Data(np.zeros(2), Pair(1, "s")))))
        """,
        b"",
        tmp_path,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    user_types: Any = __import__("user_types")
    structure: Structure = pickle.loads(made)
    samples = [user_types.Data(np.full(2, float(i)), user_types.Pair(i, f"s{i}")) for i in range(3)]
    batch, _ = through(structure, samples, "numpy")
    assert type(batch) is user_types.Data and type(batch.pair) is user_types.Pair
    assert batch.x.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch.pair.a.tolist() == [0, 1, 2] and batch.pair.b == ("s0", "s1", "s2")


def test_neither_torch_nor_pillow_is_needed() -> None:
    arrays = np.zeros(2, "f4"), np.zeros((3, 5, 7), "u1"), 1, "s"
    structures = pickle.dumps([Structure.of((rand(0, 2), image(0), 1, "s")), Structure.of(arrays)])
    out = python(
        """
        import pickle, sys
        sys.modules["torch"] = sys.modules["PIL"] = sys.modules["PIL.Image"] = None
        import numpy as np
        from coprep._packing import pack, unpack
        from coprep._structure import Structure, convert
        of_tensors, structure = pickle.loads(sys.stdin.buffer.read())
        blob = bytearray(100)
        views = [np.zeros((1, 1, *f.shape), f.storage) for f in structure.fields]
        packed = structure.write((np.ones(2, "f4"), np.ones((3, 5, 7), "u1"), 5, "t"), views, (0, 0))
        packed.write_to(memoryview(blob))
        a, b, c, d = of_tensors.batch([v[0] for v in views], [memoryview(blob)], 1, "numpy")
        print(a.tolist(), b.sum(), c.tolist(), d, convert((np.float32(1),), "numpy"))
        print([n for n in ("torch", "PIL") if sys.modules.get(n)])
        """,
        structures,
    )
    assert out.decode().splitlines() == ["[[1.0, 1.0]] 105 [5] ('t',) [array(1., dtype=float32)]", "[]"]


CONVERTED = [*LIKE_TORCH.values(), lambda i: None, lambda i: (Slotted(1, 2), image(i), {1, 2}, 1j)]


@pytest.mark.parametrize("make", CONVERTED, ids=[*LIKE_TORCH, "none", "anything"])
def test_single_samples_are_converted_as_torch_does(make: Make) -> None:
    sample = make(1)
    if isinstance(sample, tuple) and any(isinstance(x, np.bytes_) for x in sample):
        pytest.skip("PyTorch cannot")
    expected, result = default_convert(make(1)), convert(sample)
    if isinstance(expected, list) and expected and isinstance(expected[0], Slotted):
        assert all(a is b for a, b in zip(result, sample, strict=True))
    else:
        assert result is expected is None or same(result, expected)


def test_single_samples_are_converted_to_numpy() -> None:
    sample = (rand(0, 2), {"a": np.float32(1), "b": [torch.tensor(0.5, dtype=torch.bfloat16)]}, "s", 1, None)
    result = convert(sample, "numpy")
    expected = [sample[0].numpy(), {"a": np.array(1, np.float32), "b": [np.array(0.5, np.float32)]}, "s", 1]
    assert result[4] is None and same(result[:4], expected)
    assert same(convert(np.arange(3, dtype=">i4")), torch.arange(3, dtype=torch.int32))
