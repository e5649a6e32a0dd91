"""Structure of a dataset's samples: the fields of a batch that hold their parts, and the batch made of these parts.

A batch equals the one that PyTorch's ``default_collate`` makes of the same samples, but its arrays are passed in
instead of copied.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coprep._packing import Packed, pack, unpack

Framework = Literal["torch", "numpy", "dlpack"]
"""The kind of batches. ``dlpack`` are arrays on a GPU that other frameworks take over."""
Array = npt.NDArray[Any]
Views = Sequence[Array]
Blobs = Sequence[memoryview] | None
Path = tuple[Hashable, ...]
# Arguments: a part of a sample, the views, the index, and the texts so far.
Put = Callable[[Any, Views, Any, list[Any]], None]
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
    lost_seeds: list[str]
    """Generators that ``worker_init_fn`` seeds. The seeds have no effect on samples, so each job warns of them."""

    def __init__(
        self, root: _Node | None, fields: list[Field], texts: int, lost_seeds: list[str] | None = None
    ) -> None:
        self.fields = fields
        self.lost_seeds = lost_seeds or []
        self.has_blob = root is None or texts > 0
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

    def write(self, sample: Any, views: Views, index: Any) -> Packed | None:
        """Writes ``sample`` to ``views[k][index]`` for each field ``k``.

        Returns:
            The remaining data of the sample, which must be kept with it, or ``None`` if there is none.

        Raises:
            ValueError: the sample does not have the structure of the first one.
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
        """Returns the batch of ``count`` samples.

        Args:
            arrays: one of shape (count, \\*shape) per field. Tensors lie in them.
            blobs: the results of ``write`` for each sample, as bytes, if ``has_blob``.
            count: number of samples.
            framework: type of the batch's leaves, or what makes them. A bfloat16 field becomes float32 in numpy.
        """
        texts = [unpack(blob) for blob in blobs[:count]] if self.has_blob and blobs is not None else []
        if self.has_blob and len(texts) != count:
            raise ValueError(f"{count} samples have {len(texts)} blobs")
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


def _is_fixed(leaf: Any) -> bool:
    if isinstance(leaf, (str, bytes)):
        return False
    return isinstance(leaf, (np.ndarray, np.generic, int, float, complex)) or _is_tensor(leaf) or _is_image(leaf)


def _data(leaf: Any) -> tuple[str, Array]:
    """Returns the type of a field for ``leaf``, and the leaf as an array that may be written to the field."""
    if _is_tensor(leaf):
        return _tensor_data(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _array_data(np.asarray(leaf))
    if _is_image(leaf):
        # Channels come first, as in the tensors of torchvision.
        pixels = np.asarray(leaf)
        return _array_data(pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    # `bool` comes first in this table, because it is a subclass of `int`.
    for kind, name in _NUMBERS.items():
        if isinstance(leaf, kind):
            return name, _number(leaf, name)
    raise _NoFieldError(str(type(leaf)))


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
        raise _NoFieldError(f"a tensor of {tensor.dtype}")
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


def _mismatch(path: Path, has: str, had: str) -> ValueError:
    where = f"part {_name(path)!r} of the sample" if path else "the sample"
    return ValueError(f"{where} {has}, but in the first sample it {had}: {_REMEDY}")


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
        return _Fixed(path, field, number, _way(leaf, dtype), _describe(leaf))


def _way(leaf: Any, dtype: str) -> str:
    if type(leaf) in (bool, int, float, complex):
        return "number"
    if type(leaf) is np.ndarray:
        return "array"
    if isinstance(leaf, np.generic):
        return "scalar"
    return "tensor" if dtype != _BFLOAT16 and _is_tensor(leaf) else "any"


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


@dataclasses.dataclass
class _Fixed(_Node):
    """A number, array, tensor or image."""

    field: Field
    number: int | None
    """Number of the field, or ``None`` for a part of no bytes, which has no field."""
    way: str
    described: str

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
        if dtype != self.field.dtype or array.shape != self.field.shape:
            raise _mismatch(self.path, _describe(leaf), self.described)
        return array

    def builder(self, leaf: Leaf, in_sequence: bool) -> Build:
        field, number, make = self.field, self.number, leaf(self.field.dtype)
        if number is None:
            return lambda _arrays, _texts, count: make(np.empty((count, *field.shape), field.storage))
        return lambda arrays, _texts, _count: make(arrays[number])


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

        def build(arrays: Sequence[Array], texts: list[Any], count: int) -> Any:
            # The batch is made without __init__, which expects a sample's values and may check or convert them.
            batch = object.__new__(kind)
            for name, build_item in builds:
                object.__setattr__(batch, name, build_item(arrays, texts, count))
            return batch

        return build


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
