"""Tensors as bytes and back. They keep their class, their strides, and the memory that they share with each other."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

_MOST_GAPS = 2
"""Most bytes that a tensor may span, as a multiple of those of its elements, to keep its strides."""
_ALIGN = 16
"""Bytes of the largest element."""


class _Span(NamedTuple):
    """A range of bytes of a storage."""

    begin: int
    end: int
    owner: Any
    """The tensor whose bytes these are."""


class Tensors:
    """Reduces the tensors of one object for :mod:`pickle`.

    A tensor within the bytes of one before it becomes a view of that. So a slice of a large tensor takes its own bytes,
    and a tensor and a view of it are still that in the copy.

    Args:
        before: what was found at an attempt to pickle the same object. See :attr:`overlap`.
    """

    overlap = False
    """``True`` if a tensor has bytes of one before it, and others. Only another attempt can let them share memory."""

    def __init__(self, before: Tensors | None = None) -> None:
        self._spans: dict[int, list[_Span]] = {}
        self._joined = {} if before is None else {key: _joined(spans) for key, spans in before._all.items()}
        self._all: dict[int, list[_Span]] = {}

    def reduce(self, tensor: Any, torch: Any) -> Any:
        """Returns the function and the arguments that make the tensor, or ``NotImplemented`` to leave it to PyTorch."""
        if type(tensor) is not torch.Tensor or tensor.__dict__:
            return self._reduce_derived(tensor, torch)
        if (
            tensor.layout is not torch.strided
            or tensor.device.type != "cpu"
            or (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
            or not tensor.is_leaf
        ):
            return NotImplemented
        if tensor.requires_grad:
            return _with_grad, (tensor.detach(),)
        return self._reduce_plain(tensor, torch)

    def _reduce_derived(self, tensor: Any, torch: Any) -> Any:
        kind = type(tensor)
        is_usual = all(getattr(kind, name) == getattr(torch.Tensor, name) for name in ("__reduce_ex__", "__reduce__"))
        # A class with a dispatch of its own may hold its elements elsewhere.
        if not is_usual or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            if not tensor.is_leaf or tensor.layout is not torch.strided or tensor.device.type != "cpu":
                return NotImplemented
            plain = tensor.detach().as_subclass(torch.Tensor)
            make = _with_grad if tensor.requires_grad else _itself
            state = torch._utils._get_obj_state(tensor)
        return torch._tensor._rebuild_from_type_v2, (make, kind, (plain,), state)

    def _reduce_plain(self, tensor: Any, torch: Any) -> Any:
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        size, count = tensor.element_size(), tensor.numel()
        is_contiguous = tensor.is_contiguous()
        strides = None if is_contiguous else tensor.stride()
        elements = count
        if strides is not None and count:
            elements = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if elements > _MOST_GAPS * count:
            tensor, strides, elements = tensor.contiguous(), None, count
        if not count:
            return _tensor, (b"", dtype, shape, None)
        key = tensor.untyped_storage()._cdata
        begin = tensor.storage_offset() * size
        span = _Span(begin, begin + elements * size, tensor)
        owner = self._owner(key, span, size, torch)
        if owner is not None:
            return _view, (owner.owner, begin - owner.begin, dtype, shape, strides)
        # The elements are viewed as bytes, since numpy lacks some of the tensors' types.
        flat = tensor.view(-1) if strides is None else tensor.as_strided((elements,), (1,))
        return _tensor, (pickle.PickleBuffer(flat.view(torch.uint8).numpy()), dtype, shape, strides)

    def _owner(self, key: int, span: _Span, size: int, torch: Any) -> _Span | None:
        """Returns the span whose owner holds all bytes of this one. Without one this span's tensor becomes an owner."""
        spans = self._spans.get(key)
        if spans is None:
            spans = self._spans[key] = [_whole(span.owner, part, torch) for part in self._joined.get(key, ())]
        self._all.setdefault(key, []).append(span)
        for other in spans:
            if other.begin <= span.begin and span.end <= other.end and (span.begin - other.begin) % size == 0:
                return None if other.owner is span.owner else other
        if any(other.begin < span.end and span.begin < other.end for other in spans):
            self.overlap = True
        spans.append(span)
        return None


def _joined(spans: list[_Span]) -> list[tuple[int, int]]:
    """Returns the ranges that these spans cover together, where some have bytes in common."""
    joined: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: span.begin):
        begin, end = span.begin // _ALIGN * _ALIGN, span.end
        if joined and begin < joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def _whole(tensor: Any, part: tuple[int, int], torch: Any) -> _Span:
    begin, end = part
    return _Span(begin, end, torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), begin, (end - begin,)))


def _tensor(data: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if not len(data):
        # `frombuffer` refuses an empty buffer.
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(data, dtype=kind)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def _view(owner: Any, offset: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Any:
    import torch

    made = torch.empty(0, dtype=getattr(torch, dtype))
    # Without strides elements lie in row-major order.
    steps = (strides,) if strides is not None else ()
    return made.set_(owner.untyped_storage(), offset // made.element_size(), shape, *steps)


def _with_grad(tensor: Any) -> Any:
    return tensor.requires_grad_()


def _itself(tensor: Any) -> Any:
    return tensor
