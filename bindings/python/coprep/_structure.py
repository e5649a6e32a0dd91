"""Structure of a dataset's samples: the fields of a batch that hold their parts, and the batch made of these parts.

A batch equals the one that PyTorch's ``default_collate`` makes of the same samples, but its arrays are passed in
instead of copied. A sample that the arrays cannot hold travels whole, and its batch is made by ``_collation.py``.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coprep._packing import Packed, pack, unpack

Framework = Literal["torch", "numpy", "dlpack"]
"""The kind of batches. ``dlpack`` are arrays on a GPU that other frameworks take over."""
Array = npt.NDArray[Any]
Views = Sequence[Array]
Blobs = Sequence[memoryview | None] | None
Path = tuple[Hashable, ...]
# Arguments: a part of a sample, the views, the index, and the texts so far.
Put = Callable[[Any, Views, Any, list[Any]], None]
# Arguments: the arrays, the texts of a sample, and its index.
Take = Callable[[Sequence[Array], list[Any], int], Any]
# Arguments: the arrays, the texts of each sample, and the number of samples.
Build = Callable[[Sequence[Array], list[Any], int], Any]
# Takes the name of a type. Returns the function that makes an array of it a leaf of the batch.
Leaf = Callable[[str], Callable[[Array], Any]]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = ("bool", *_INTEGERS, "float16", "float32", "float64", "complex64", "complex128")
_BFLOAT16 = "bfloat16"
_NUMBERS: dict[type, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_REMEDY = "make them equal in the dataset, or pass a collate_fn"


@dataclasses.dataclass(frozen=True)
class Field:
    """A part of the samples that has the same type and shape in all of them."""

    name: str
    """Path of the part in a sample, such as ``0`` or ``meta.size``; ``sample`` if it is the whole sample."""
    dtype: str
    """Name of the numpy type, or ``bfloat16``."""
    shape: tuple[int, ...]

    @property
    def storage(self) -> np.dtype[Any]:
        """Returns the numpy type of its arrays; uint16 for ``bfloat16``, which numpy does not have."""
        return np.dtype("uint16" if self.dtype == _BFLOAT16 else self.dtype)

    @property
    def nbytes(self) -> int:
        """Returns the bytes of one sample."""
        return int(self.storage.itemsize * np.prod(self.shape, dtype=np.int64))


class Structure:
    """The nesting of samples, and the type and shape of each part. It can be pickled if the user's types can."""

    fields: list[Field]
    has_blob: bool
    """``True`` if each sample has a part of no fixed size."""
    is_whole: bool
    """``True`` if samples travel as one object each. A batch of them is a list of samples."""
    lost_seeds: list[str]
    """Generators that ``worker_init_fn`` seeds. The seeds have no effect on samples, so each job warns of them."""

    def __init__(
        self, root: _Node | None, fields: list[Field], texts: int, lost_seeds: list[str] | None = None
    ) -> None:
        self.fields = fields
        self.lost_seeds = lost_seeds or []
        self.has_blob = root is None or texts > 0
        self.is_whole = root is None
        self._root = root
        self._texts = texts
        self._put: Put | None = None
        self._builds: dict[str | Leaf, Build] = {}

    @classmethod
    def of(cls, sample: Any, *, whole: bool = False) -> Structure:
        """Returns the structure of all samples, derived from one of them.

        Args:
            sample: any sample.
            whole: no structure is derived. A sample travels as one object, and a batch is a list of samples.

        Raises:
            TypeError: a part of the sample cannot become part of a batch.
        """
        if whole:
            return cls(None, [], 0)
        probe = _Probe()
        root = probe.node(sample, ())
        return cls(root, probe.fields, probe.texts)

    @classmethod
    def fitting(cls, sample: Any) -> Structure:
        """Returns the structure of samples like this one. They travel whole if arrays cannot hold them."""
        try:
            return cls.of(sample)
        except (TypeError, RuntimeError):
            return cls.of(sample, whole=True)

    def write(self, sample: Any, views: Views, index: Any) -> Packed | None:
        """Writes ``sample`` to ``views[k][index]`` for each field ``k``.

        Returns:
            The remaining data of the sample, which must be kept with it, or ``None`` if there is none.

        Raises:
            MismatchError: the sample does not have the structure of the first one. :func:`pack_whole` takes any.
        """
        if self._root is None:
            return pack(sample, for_jobs=True)
        put = self._put
        if put is None:
            put = self._put = self._root.putter()
        texts: list[Any] = []
        put(sample, views, index, texts)
        return pack(texts) if texts else None

    def batch(self, arrays: Sequence[Any], blobs: Blobs, count: int, framework: Framework | Leaf) -> Any:
        """Returns the batch of ``count`` samples, none of which :func:`pack_whole` has packed.

        Args:
            arrays: one of shape (count, \\*shape) per field. Tensors lie in them.
            blobs: the results of ``write`` for each sample, as bytes, if ``has_blob``.
            count: number of samples.
            framework: type of the batch's leaves, or what makes them. A bfloat16 field becomes float32 in numpy.
        """
        return self.batch_of(arrays, self.unpacked(blobs, count), count, framework)

    def unpacked(self, blobs: Blobs, count: int) -> list[Any]:
        """Returns for each sample its texts, as a list. That of a sample that is whole has a tuple of it instead.

        The list is empty if ``blobs`` holds nothing.
        """
        packed = [blob and unpack(blob) for blob in blobs[:count]] if blobs is not None else []
        if self.has_blob and len(packed) != count:
            raise ValueError(f"{count} samples have {len(packed)} blobs")
        return packed

    def samples(self, arrays: Sequence[Any], packed: list[Any], count: int) -> list[Any]:
        """Returns samples as the dataset made them. Their tensors and arrays lie in ``arrays``.

        Args:
            packed: what :meth:`unpacked` returns.
        """
        if self._root is None:
            return packed
        take = self._root.taker()
        packed = packed or [None] * count
        return [
            parts[0] if type(parts) is tuple else take(arrays, parts, index)
            for index, parts in enumerate(packed[:count])
        ]

    def kinds(self) -> set[type]:
        """Returns the types of the parts of samples."""
        return set() if self._root is None else set(self._root.kinds())

    def batch_of(self, arrays: Sequence[Any], texts: list[Any], count: int, framework: Framework | Leaf) -> Any:
        """Returns the batch of samples, as :meth:`batch` does, whose texts are unpacked."""
        if self._root is None:
            return texts
        build = self._builds.get(framework)
        if build is None:
            leaf = _leaf(framework) if isinstance(framework, str) else framework
            build = self._builds[framework] = self._root.builder(leaf, False)
        return build(arrays, texts, count)

    def __getstate__(self) -> tuple[_Node | None, list[Field], int, list[str]]:
        return self._root, self.fields, self._texts, self.lost_seeds

    def __setstate__(self, state: tuple[_Node | None, list[Field], int, list[str]]) -> None:
        Structure.__init__(self, *state)

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}: {f.dtype}{list(f.shape)}" for f in self.fields)
        return f"Structure({fields}{', blob' if self.has_blob else ''})"


def pack_whole(sample: Any) -> Packed:
    """Packs a sample that does not have the structure of the others."""
    # A tuple, because the texts of other samples come as a list.
    return pack((sample,), for_jobs=True)


def convert(sample: Any, framework: Framework = "torch") -> Any:
    """Returns a single sample as PyTorch's ``default_convert`` does: arrays and numpy scalars become tensors.

    For numpy, tensors and numpy scalars become arrays.
    """
    return _converted(sample, _to_tensor if framework == "torch" else _to_array)


def _leaf(framework: str) -> Leaf:
    if framework == "torch":
        import torch

        return lambda dtype: _bfloat16_tensor if dtype == _BFLOAT16 else torch.from_numpy
    if framework == "numpy":
        return lambda dtype: _float32 if dtype == _BFLOAT16 else lambda array: array
    raise ValueError(f"framework is {framework!r}: it must be 'torch' or 'numpy'")


def _bfloat16_tensor(array: Array) -> Any:
    import torch

    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def _float32(array: Array) -> Array:
    """Returns the float32 numbers whose upper halves are in ``array``."""
    return np.asarray(np.left_shift(array, 16, dtype=np.uint32)).view(np.float32)


# --- leaves ---------------------------------------------------------------------------------------------------


class _NoFieldError(Exception):
    """A leaf cannot have a field."""


class _LayoutError(_NoFieldError):
    """A tensor of such a layout cannot have a field. PyTorch's default collation raises ``RuntimeError`` for it."""


def _is_tensor(leaf: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, getattr(torch, "Tensor", ()))


def _is_image(leaf: Any) -> bool:
    images: Any = sys.modules.get("PIL.Image")
    return images is not None and isinstance(leaf, images.Image)


def _is_plain_tensor(leaf: Any) -> bool:
    """Returns whether a tensor is one that is all in its elements, which it is not if it is of a derived class."""
    torch: Any = sys.modules["torch"]
    return type(leaf) is torch.Tensor


def _is_fixed(leaf: Any) -> bool:
    if isinstance(leaf, (str, bytes)):
        return False
    return isinstance(leaf, (np.ndarray, np.generic, int, float, complex)) or _is_tensor(leaf) or _is_image(leaf)


def _data(leaf: Any) -> tuple[str, Array]:
    """Returns the type of a field for ``leaf``, and the leaf as an array that may be written to the field."""
    if _is_tensor(leaf):
        if not _is_plain_tensor(leaf):
            raise _NoFieldError(f"a tensor of the class {type(leaf).__qualname__}")
        return _tensor_data(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _array_data(np.asarray(leaf))
    if _is_image(leaf):
        return _array_data(_pixels(leaf))
    # `bool` comes first in this table, because it is a subclass of `int`.
    for kind, name in _NUMBERS.items():
        if isinstance(leaf, kind):
            return name, _number(leaf, name)
    raise _NoFieldError(str(type(leaf)))


def _pixels(image: Any) -> Array:
    # Channels come first, as in the tensors of torchvision.
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def image_tensor(image: Any) -> Any:
    """Returns the tensor of the pixels of an image, channels first."""
    import torch

    return torch.from_numpy(np.array(_pixels(image)))


def _number(leaf: Any, name: str) -> Array:
    try:
        return np.array(leaf, dtype=name)
    except OverflowError:
        raise _NoFieldError("an integer of more than 64 bits") from None


def _array_data(array: Array) -> tuple[str, Array]:
    name = array.dtype.name
    if name not in _DTYPES:
        raise _NoFieldError(str(array.dtype))
    return name, array


def _tensor_data(tensor: Any) -> tuple[str, Array]:
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested or tensor.layout is not torch.strided:
        raise _LayoutError("a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}")
    if tensor.device.type != "cpu":
        raise _NoFieldError(f"a tensor on {tensor.device}, not on the CPU")
    if name != _BFLOAT16 and name not in _DTYPES:
        raise _NoFieldError(f"a tensor of {tensor.dtype}, which numpy does not have")
    plain = tensor.detach().resolve_conj().resolve_neg()
    return name, plain.view(torch.int16).numpy().view(np.uint16) if name == _BFLOAT16 else plain.numpy()


def _describe(leaf: Any) -> str:
    """Returns a description of ``leaf`` for a message."""
    if not _is_fixed(leaf):
        return f"is of type {type(leaf).__name__}"
    try:
        dtype, array = _data(leaf)
    except _NoFieldError as error:
        return f"is of type {type(leaf).__name__} ({error})"
    if _is_image(leaf):
        return f"is a PIL image of mode {leaf.mode} and size {leaf.width}x{leaf.height}"
    if isinstance(leaf, np.ndarray) or _is_tensor(leaf):
        return f"is {'a tensor' if _is_tensor(leaf) else 'an array'} of {dtype} with shape {array.shape}"
    return f"is of type {type(leaf).__name__}"


def _name(path: Path) -> str:
    return ".".join(map(str, path)) or "sample"


class MismatchError(ValueError):
    """A sample does not have the structure of the first one."""

    row = 0
    """Number of the sample in its batch."""


def _mismatch(path: Path, has: str, had: str) -> MismatchError:
    where = f"part {_name(path)!r} of the sample" if path else "the sample"
    return MismatchError(f"{where} {has}, but in the first sample it {had}: {_REMEDY}")


# --- looking at the first sample ------------------------------------------------------------------------------


class _Probe:
    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.texts = 0

    def node(self, value: Any, path: Path) -> _Node:
        if _is_fixed(value):
            return self._fixed(value, path)
        if isinstance(value, (str, bytes)):
            self.texts += 1
            return _Text(path, str if isinstance(value, str) else bytes, self.texts - 1)
        if isinstance(value, Mapping):
            children = [(key, self.node(value[key], (*path, key))) for key in value]
            return _Dict(path, type(value), children, _mapping_model(value))
        if isinstance(value, Sequence):
            items = [self.node(item, (*path, i)) for i, item in enumerate(value)]
            return _Items(path, type(value), items, _sequence_model(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [(f.name, self.node(getattr(value, f.name), (*path, f.name))) for f in dataclasses.fields(value)]
            return _Record(path, type(value), parts)
        raise _refusal(str(type(value)), path)

    def _fixed(self, leaf: Any, path: Path) -> _Node:
        try:
            dtype, array = _data(leaf)
        except _LayoutError as error:
            raise RuntimeError(
                f"not currently supported by the default collate_fn: {error}{_part(path)}. Pass a collate_fn"
            ) from None
        except _NoFieldError as error:
            raise _refusal(str(error), path) from None
        field = Field(_name(path), dtype, array.shape)
        number = None
        # A part of no bytes needs no field. In the batch it is an empty array.
        if array.size:
            number = len(self.fields)
            self.fields.append(field)
        way = _way(leaf, dtype)
        # Types of PyTorch and Pillow are named by the way, since a process that has neither reads structures too.
        kind = leaf.mode if way == "image" else type(leaf) if way.startswith("derived") else None
        return _Fixed(path, field, number, way, _describe(leaf), kind)


def _way(leaf: Any, dtype: str) -> str:
    if type(leaf) in (bool, int, float, complex):
        return "number"
    if type(leaf) is np.ndarray:
        return "array"
    if isinstance(leaf, np.generic):
        return "scalar"
    if _is_image(leaf):
        return "image"
    if not _is_tensor(leaf):
        return "derived array" if isinstance(leaf, np.ndarray) else "derived number"
    return "tensor" if dtype != _BFLOAT16 else "bfloat16"


_FAMILY = {
    **dict.fromkeys(("number", "scalar", "derived number"), "number"),
    **dict.fromkeys(("array", "derived array"), "array"),
    **dict.fromkeys(("tensor", "bfloat16"), "tensor"),
    "image": "image",
}
"""Families of leaves that PyTorch stacks with each other, whichever comes first."""


def _refusal(found: str, path: Path) -> TypeError:
    accepted = "batch must contain tensors, numpy arrays, numbers, dicts or lists"
    return TypeError(f"{accepted}; found {found}{_part(path)}: change the dataset, or pass a collate_fn")


def _part(path: Path) -> str:
    """Returns the place of a leaf, as the end of a phrase; nothing if the leaf is the whole sample."""
    return f" in part {_name(path)!r} of the sample" if path else ""


def _mapping_model(value: Mapping[Any, Any]) -> Any:
    """Returns a copy without the sample's parts, for a type with properties of its own; batches start from it."""
    if type(value) is dict or not isinstance(value, MutableMapping):
        return None
    try:
        model = _copy(value)
        model.update(dict.fromkeys(value))
    except Exception:
        # Batches of a type that cannot be copied and filled are plain dicts, as with PyTorch.
        return {}
    return model


def _sequence_model(value: Sequence[Any]) -> Any:
    if type(value) is list or not isinstance(value, MutableSequence):
        return None
    try:
        model = _copy(value)
        for i in range(len(value)):
            model[i] = None
    except Exception:
        return [None] * len(value)
    return model


def _copy(value: Any) -> Any:
    # The items of other types may lie in an attribute, which a shallow copy would share.
    return copy.copy(value) if isinstance(value, (dict, list)) else copy.deepcopy(value)


# --- nodes: each writes its part of a sample, and builds its part of a batch -------------------------------------


@dataclasses.dataclass
class _Node:
    path: Path

    def putter(self) -> Put:
        raise NotImplementedError

    def builder(self, leaf: Leaf, in_sequence: bool) -> Build:
        raise NotImplementedError

    def taker(self) -> Take:
        """Returns a function that returns the part of one sample."""
        raise NotImplementedError

    def kinds(self) -> Iterator[type]:
        """Returns the types of this part and of its own parts."""
        raise NotImplementedError


@dataclasses.dataclass
class _Fixed(_Node):
    """A number, array, tensor or image."""

    field: Field
    number: int | None
    """Number of the field, or ``None`` for a part of no bytes, which has no field."""
    way: str
    described: str
    kind: Any
    """The mode of an image, and the type of a number or array of a derived class."""

    def putter(self) -> Put:
        check, number, dtype, shape = self.check, self.number, self.field.storage, self.field.shape
        if number is None:
            return _empty_putter(check)
        torch: Any = sys.modules.get("torch")
        if self.way == "tensor" and torch is not None:
            return _tensor_putter(check, number, dtype, shape, torch.Tensor)
        if self.way == "array":
            return _array_putter(check, number, dtype, shape)
        if self.way in ("number", "scalar"):
            number_types = {name: kind for kind, name in _NUMBERS.items()}
            return _scalar_putter(check, number, number_types[dtype.name] if self.way == "number" else dtype.type)
        return _any_putter(check, number)

    def check(self, leaf: Any) -> Array:
        """Returns the leaf as an array, after checking that it has the type and shape of the first sample's."""
        try:
            dtype, array = _data(leaf)
        except _NoFieldError:
            raise _mismatch(self.path, _describe(leaf), self.described) from None
        is_equal = dtype == self.field.dtype and array.shape == self.field.shape
        if not is_equal or _FAMILY[_way(leaf, dtype)] != _FAMILY[self.way]:
            raise _mismatch(self.path, _describe(leaf), self.described)
        return array

    def builder(self, leaf: Leaf, in_sequence: bool) -> Build:
        field, number, make = self.field, self.number, leaf(self.field.dtype)
        if number is None:
            return lambda _arrays, _texts, count: make(np.empty((count, *field.shape), field.storage))
        return lambda arrays, _texts, _count: make(arrays[number])

    def taker(self) -> Take:
        number, way, kind = self.number, self.way, self.kind
        empty = np.empty(self.field.shape, self.field.storage)

        def row(arrays: Sequence[Array], index: int) -> Array:
            # The dots make an array of an element, too.
            return empty if number is None else arrays[number][index, ...]

        if way in ("tensor", "bfloat16"):
            make = _leaf("torch")(self.field.dtype)
            return lambda arrays, _texts, index: make(row(arrays, index))
        if way == "array":
            return lambda arrays, _texts, index: row(arrays, index)
        if way == "scalar":
            return lambda arrays, _texts, index: row(arrays, index)[()]
        if way == "image":
            return lambda arrays, _texts, index: _image(row(arrays, index), kind)
        if way == "derived array":
            return lambda arrays, _texts, index: row(arrays, index).view(kind)
        if way == "derived number":
            return lambda arrays, _texts, index: kind(row(arrays, index).item())
        return lambda arrays, _texts, index: row(arrays, index).item()

    def kinds(self) -> Iterator[type]:
        if self.way.startswith("derived"):
            yield self.kind
        elif self.way == "array":
            yield np.ndarray
        elif self.way == "scalar":
            yield np.dtype(self.field.dtype).type
        elif self.way == "number":
            yield next(kind for kind, name in _NUMBERS.items() if name == self.field.dtype)
        elif self.way == "image":
            yield sys.modules["PIL.Image"].Image if "PIL.Image" in sys.modules else object
        else:
            yield sys.modules["torch"].Tensor


def _image(pixels: Array, mode: str) -> Any:
    """Returns the image whose bands are in ``pixels``."""
    from PIL import Image

    # The channels come first, and an image of one band has no further dimension.
    bands = np.ascontiguousarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    if bands.dtype == np.uint8:
        return Image.frombytes(mode, (bands.shape[1], bands.shape[0]), bands.tobytes())
    return Image.fromarray(bands)


Check = Callable[[Any], Array]


def _empty_putter(check: Check) -> Put:
    def put(leaf: Any, _views: Views, _index: Any, _texts: list[Any]) -> None:
        check(leaf)

    return put


def _any_putter(check: Check, number: int) -> Put:
    def put(leaf: Any, views: Views, index: Any, _texts: list[Any]) -> None:
        views[number][index] = check(leaf)

    return put


def _array_putter(check: Check, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Put:
    def put(leaf: Any, views: Views, index: Any, _texts: list[Any]) -> None:
        if type(leaf) is not np.ndarray or leaf.dtype != dtype or leaf.shape != shape:
            leaf = check(leaf)
        views[number][index] = leaf

    return put


def _tensor_putter(check: Check, number: int, dtype: np.dtype[Any], shape: tuple[int, ...], tensor: Any) -> Put:
    def put(leaf: Any, views: Views, index: Any, _texts: list[Any]) -> None:
        try:
            array = leaf.numpy() if type(leaf) is tensor else check(leaf)
        except (RuntimeError, TypeError):
            # numpy() fails for a tensor that requires grad and for bfloat16. `check` handles both.
            array = check(leaf)
        if array.dtype != dtype or array.shape != shape:
            array = check(leaf)
        views[number][index] = array

    return put


def _scalar_putter(check: Check, number: int, kind: Any) -> Put:
    def put(leaf: Any, views: Views, index: Any, _texts: list[Any]) -> None:
        try:
            views[number][index] = leaf if type(leaf) is kind else check(leaf)
        except OverflowError:
            # An integer of more than 64 bits. `check` raises the error that names the part.
            check(leaf)
            raise

    return put


@dataclasses.dataclass
class _Text(_Node):
    """A str or bytes, which lies in the blob of the sample."""

    kind: Any
    number: int

    def putter(self) -> Put:
        path, kind = self.path, self.kind

        def put(leaf: Any, _views: Views, _index: Any, texts: list[Any]) -> None:
            if not isinstance(leaf, kind):
                raise _mismatch(path, _describe(leaf), f"is of type {kind.__name__}")
            texts.append(leaf)

        return put

    def builder(self, leaf: Leaf, in_sequence: bool) -> Build:
        number = self.number
        if in_sequence:
            # PyTorch leaves the tuples that zip() made.
            return lambda _arrays, texts, _count: tuple([of[number] for of in texts])
        return lambda _arrays, texts, _count: [of[number] for of in texts]

    def taker(self) -> Take:
        number = self.number
        return lambda _arrays, texts, _index: texts[number]

    def kinds(self) -> Iterator[type]:
        yield self.kind


@dataclasses.dataclass
class _Items(_Node):
    """A tuple, named tuple, list or another sequence."""

    kind: Any
    items: list[_Node]
    model: Any

    def putter(self) -> Put:
        path, kind, count = self.path, self.kind, len(self.items)
        puts = [item.putter() for item in self.items]

        def put(sample: Any, views: Views, index: Any, texts: list[Any]) -> None:
            if type(sample) is not kind:
                raise _mismatch(path, _describe(sample), f"is of type {kind.__name__}")
            if len(sample) != count:
                raise _mismatch(path, f"has {len(sample)} items", f"has {count}")
            for put_item, item in zip(puts, sample, strict=True):
                put_item(item, views, index, texts)

        return put

    def builder(self, leaf: Leaf, in_sequence: bool) -> Build:
        builds = [item.builder(leaf, True) for item in self.items]

        def items(arrays: Sequence[Array], texts: list[Any], count: int) -> list[Any]:
            return [build(arrays, texts, count) for build in builds]

        kind = self.kind
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return lambda arrays, texts, count: kind(*items(arrays, texts, count))
        # PyTorch makes a list of tuples too.
        if issubclass(kind, tuple) or kind is list:
            return items
        model = self.model
        return lambda arrays, texts, count: _sequence_like(kind, model, items(arrays, texts, count))

    def taker(self) -> Take:
        takes, kind, model = [item.taker() for item in self.items], self.kind, self.model

        def take(arrays: Sequence[Array], texts: list[Any], index: int) -> Any:
            items = [take_item(arrays, texts, index) for take_item in takes]
            if issubclass(kind, tuple):
                return kind(*items) if hasattr(kind, "_fields") else kind(items)
            return items if kind is list else _sequence_like(kind, model, items)

        return take

    def kinds(self) -> Iterator[type]:
        yield self.kind
        for item in self.items:
            yield from item.kinds()


def _sequence_like(kind: Any, model: Any, items: list[Any]) -> Any:
    try:
        if model is None:
            return kind(items)
        clone = _copy(model)
        for i, item in enumerate(items):
            clone[i] = item
    except TypeError:
        return items
    return clone


@dataclasses.dataclass
class _Dict(_Node):
    """A dict or another mapping."""

    kind: Any
    items: list[tuple[Any, _Node]]
    model: Any

    def putter(self) -> Put:
        path, kind, count = self.path, self.kind, len(self.items)
        puts = [(key, item.putter()) for key, item in self.items]

        def put(sample: Any, views: Views, index: Any, texts: list[Any]) -> None:
            if type(sample) is not kind:
                raise _mismatch(path, _describe(sample), f"is of type {kind.__name__}")
            for key, put_item in puts:
                # The key is looked up first, because a mapping such as defaultdict would create it.
                if key not in sample:
                    raise _mismatch(path, f"has no key {key!r}", "has one")
                put_item(sample[key], views, index, texts)
            if len(sample) != count:
                further = next(key for key in sample if all(key != known for known, _ in puts))
                raise _mismatch(path, f"has a key {further!r}", "has none")

        return put

    def builder(self, leaf: Leaf, in_sequence: bool) -> Build:
        builds = [(key, item.builder(leaf, False)) for key, item in self.items]

        def items(arrays: Sequence[Array], texts: list[Any], count: int) -> dict[Any, Any]:
            return {key: build(arrays, texts, count) for key, build in builds}

        kind, model = self.kind, self.model
        if kind is dict:
            return items
        return lambda arrays, texts, count: _mapping_like(kind, model, items(arrays, texts, count))

    def taker(self) -> Take:
        takes, kind, model = [(key, item.taker()) for key, item in self.items], self.kind, self.model

        def take(arrays: Sequence[Array], texts: list[Any], index: int) -> Any:
            items = {key: take_item(arrays, texts, index) for key, take_item in takes}
            return items if kind is dict else _mapping_like(kind, model, items)

        return take

    def kinds(self) -> Iterator[type]:
        yield self.kind
        for _, item in self.items:
            yield from item.kinds()


def _mapping_like(kind: Any, model: Any, items: dict[Any, Any]) -> Any:
    try:
        if model is None:
            return kind(items)
        clone = _copy(model)
        clone.update(items)
    except TypeError:
        return items
    return clone


@dataclasses.dataclass
class _Record(_Node):
    """A dataclass."""

    kind: Any
    items: list[tuple[str, _Node]]

    def putter(self) -> Put:
        path, kind = self.path, self.kind
        puts = [(name, item.putter()) for name, item in self.items]

        def put(sample: Any, views: Views, index: Any, texts: list[Any]) -> None:
            if type(sample) is not kind:
                raise _mismatch(path, _describe(sample), f"is of type {kind.__name__}")
            for name, put_item in puts:
                put_item(getattr(sample, name), views, index, texts)

        return put

    def builder(self, leaf: Leaf, in_sequence: bool) -> Build:
        kind, builds = self.kind, [(name, item.builder(leaf, False)) for name, item in self.items]
        return lambda arrays, texts, count: record(
            kind, ((name, build(arrays, texts, count)) for name, build in builds)
        )

    def taker(self) -> Take:
        kind, takes = self.kind, [(name, item.taker()) for name, item in self.items]
        return lambda arrays, texts, index: record(kind, ((name, take(arrays, texts, index)) for name, take in takes))

    def kinds(self) -> Iterator[type]:
        yield self.kind
        for _, item in self.items:
            yield from item.kinds()


def record(kind: Any, parts: Iterable[tuple[str, Any]]) -> Any:
    """Returns an instance of a dataclass with these values.

    It is made without ``__init__``, which expects a sample's values and may check or convert them.
    """
    made = object.__new__(kind)
    for name, value in parts:
        object.__setattr__(made, name, value)
    return made


# --- single samples -------------------------------------------------------------------------------------------


def _converted(data: Any, leaf: Callable[[Any], Any]) -> Any:
    # The module decides, as in `default_convert`.
    if _is_tensor(data) or type(data).__module__ == "numpy":
        return leaf(data)
    if isinstance(data, Mapping):
        parts = {key: _converted(data[key], leaf) for key in data}
        return parts if type(data) is dict else _mapping_like(type(data), _mapping_model(data), parts)
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        items = [_converted(item, leaf) for item in data]
        if isinstance(data, tuple):
            return type(data)(*items) if hasattr(data, "_fields") else items
        return items if type(data) is list else _sequence_like(type(data), _sequence_model(data), items)
    return data


def _to_tensor(leaf: Any) -> Any:
    if _is_tensor(leaf) or isinstance(leaf, (str, bytes)) or _holds_objects(leaf):
        return leaf
    import torch

    array = np.asarray(leaf)
    # PyTorch takes elements in the byte order of this machine only.
    return torch.as_tensor(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


def _to_array(leaf: Any) -> Any:
    if isinstance(leaf, (str, bytes)) or _holds_objects(leaf):
        return leaf
    if not _is_tensor(leaf):
        return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
    try:
        dtype, array = _tensor_data(leaf)
    except _NoFieldError:
        return leaf
    return _float32(array) if dtype == _BFLOAT16 else array


def _holds_objects(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "SUO"
