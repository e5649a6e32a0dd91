"""Tests that any object is packed into bytes and comes back."""

from __future__ import annotations

import collections
import itertools
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coprep import _exchange
from coprep._packing import pack, unpack
from PIL import Image
from samples import Item, Point, image, python, same

torch = pytest.importorskip("torch")


def packed(obj: Any, room: int = 0) -> bytearray:
    whole = pack(obj)
    data = bytearray(b"\xa5" * (whole.size + room))
    assert whole.write_to(memoryview(data)) == whole.size
    assert data[whole.size :] == b"\xa5" * room, "nothing else is written to"
    return data


OBJECTS: dict[str, Any] = {
    "none": None,
    "nested": {"a": [1, 2.5, ("x", b"y")], "b": {"c": True, 3: 1j}},
    "array": np.arange(12.0).reshape(3, 4),
    "array of objects": [np.array([1, "a"], dtype=object).tolist()],
    "fortran array": np.arange(12).reshape(3, 4).T,
    "not contiguous array": np.arange(24).reshape(4, 6)[::2, ::3],
    "big-endian": np.arange(3, dtype=">i4"),
    "empty array": (np.empty((0, 3)), np.arange(3)),
    "0-d": (np.array(5), np.float32(2)),
    "many": [np.full(i, i) for i in range(40)],
    "long text": "x" * 200_000,
    "long bytes": b"x" * 200_000,
    **{
        f"tensor {dtype}": torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
        for dtype in ("bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn")
    },
    "0-d tensor": torch.tensor(3.5),
    "empty tensor": [torch.empty(2, 0, dtype=torch.bfloat16), torch.empty(0, dtype=torch.int8)],
    "not contiguous tensor": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
    "expanded tensor": (torch.ones(1).expand(5), torch.ones(1, 1).expand(3, 1)),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "requires grad": torch.ones(2, requires_grad=True),
    "named tuple": Point(torch.ones(2), [Item(np.ones(2), 1, "n")]),
}


@pytest.mark.parametrize("obj", OBJECTS.values(), ids=OBJECTS)
def test_any_object_goes_into_bytes_and_back(obj: Any) -> None:
    def equal(result: Any) -> bool:
        return result is obj is None or same(result, obj)

    data = packed(obj, room=100)
    assert equal(unpack(data))
    assert equal(unpack(bytes(data)))
    assert equal(unpack(memoryview(data)))
    assert getattr(unpack(data), "requires_grad", False) == getattr(obj, "requires_grad", False)


def test_an_object_that_is_twice_in_it_is_one() -> None:
    tensor = torch.ones(3)
    a, b = unpack(packed([tensor, tensor]))
    assert a is b


def test_a_class_of_the_script_becomes_that_of_the_jobs_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> Any:
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec("class OwnSample:\n  class Part: pass\n  def __init__(self): self.part = self.Part()", scope)
        return scope["OwnSample"]

    workers, jobs = script(), script()
    whole = pack([workers(), workers()], for_jobs=True)
    data = bytearray(whole.size)
    whole.write_to(memoryview(data))
    assert type(unpack(data)[0]) is workers, "no such class in this script"
    monkeypatch.setattr(sys.modules["__main__"], "OwnSample", jobs, raising=False)
    for sample in unpack(data):
        assert type(sample) is jobs and type(sample.part) is jobs.Part
    # Without `for_jobs`, as for code that workers run, the class stays the one that was packed.
    assert type(unpack(packed(workers()))) is workers


def test_attributes_of_a_tensor_are_kept() -> None:
    tensor = torch.ones(3)
    tensor.origin = "here"  # type: ignore[attr-defined]
    assert unpack(packed(tensor)).origin == "here"


def test_arrays_and_tensors_lie_in_the_bytes() -> None:
    data = packed((np.arange(1000), torch.arange(1000.0), torch.ones(8).bfloat16()))
    start = np.frombuffer(data, np.uint8).ctypes.data
    array, tensor, half = unpack(data)
    for address in (array.ctypes.data, tensor.data_ptr(), half.data_ptr()):
        assert start < address < start + len(data) and (address - start) % 64 == 0
    array[:] = 7
    assert unpack(data)[0].tolist() == [7] * 1000
    array, tensor, _ = unpack(bytes(data))
    array[:] = 8
    tensor[:] = 8


def test_a_tensor_takes_its_own_bytes_only() -> None:
    assert pack(torch.zeros(1000, 1000)[5]).size < 4000 + 500


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16")


@pytest.mark.parametrize("mode", MODES)
def test_images(mode: str) -> None:
    picture = image(1) if mode in ("RGB", "I;16") else image(1, mode) if mode != "LAB" else Image.new("LAB", (7, 5), 9)
    if mode == "I;16":
        picture = Image.fromarray(np.arange(35, dtype=np.uint16).reshape(5, 7) * 1000)
    assert picture.mode == mode
    result, number = unpack(packed((picture, 3)))
    assert type(result) is Image.Image and number == 3
    assert (result.mode, result.size, result.tobytes()) == (picture.mode, picture.size, picture.tobytes())
    assert result.getpalette() == picture.getpalette()
    assert np.array_equal(np.asarray(result), np.asarray(picture))
    result.putpixel((0, 0), result.getpixel((1, 1)))


def test_images_of_files(tmp_path: Path) -> None:
    image(2).save(tmp_path / "a.jpg", dpi=(72, 72))
    palette = image(3, "RGBA").quantize(9)
    palette.save(tmp_path / "b.png", transparency=2)
    for name in ("a.jpg", "b.png"):
        result = unpack(packed(Image.open(tmp_path / name)))
        expected = Image.open(tmp_path / name)
        assert type(result) is Image.Image and result.mode == expected.mode
        assert result.convert("RGBA").tobytes() == expected.convert("RGBA").tobytes()
    assert unpack(packed(Image.open(tmp_path / "a.jpg"))).info["dpi"] == (72, 72)


def test_images_with_a_transparent_palette() -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([1, 2, 3, 4, 5, 6, 7, 8], "RGBA")
    picture.putpixel((1, 0), 1)
    assert unpack(packed(picture)).convert("RGBA").tobytes() == bytes(range(1, 9))


def test_empty_images() -> None:
    assert unpack(packed(Image.new("RGB", (0, 5)))).size == (0, 5)


def test_what_the_main_script_defines_travels_by_value() -> None:
    pytest.importorskip("cloudpickle")
    data = python(
        """
        import collections, sys, numpy as np, torch
        from coprep._packing import pack
        class Own:
            def __init__(self, x): self.x = x
            def twice(self): return self.x * 2
        Pair = collections.namedtuple("Pair", "a b")
        def thrice(x): return 3 * x
        packed = pack([Own(np.arange(3)), Pair(torch.ones(2), 1), thrice])
        data = bytearray(packed.size)
        packed.write_to(memoryview(data))
        sys.stdout.buffer.write(data)
        """
    )
    own, pair, thrice = unpack(bytearray(data))
    assert own.twice().tolist() == [0, 2, 4]
    assert type(pair).__name__ == "Pair" and pair.a.tolist() == [1, 1]
    assert thrice(2) == 6


class Owner:
    Row = collections.namedtuple("Row", ["a"])  # noqa: PYI024


Renamed = collections.namedtuple("NoSuchName", ["a"])  # noqa: PYI024


@pytest.mark.parametrize("kind", [Owner.Row, Renamed], ids=lambda kind: kind.__qualname__)
def test_a_class_that_is_not_where_its_name_says_stays_the_same_class(kind: Any) -> None:
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(kind)
    for result in (unpack(packed(kind(1))), _exchange.loads(_exchange.dumps(kind(1)))):
        assert type(result) is kind and result.a == 1


def test_a_local_class_travels_by_value() -> None:
    pytest.importorskip("cloudpickle")

    class Local:
        x = 5

    data = packed((np.zeros(1000), torch.zeros(1000), Local(), lambda x: x + 1))
    assert len(data) < 8000 + 4000 + 3000, "each buffer is there once"
    _, tensor, local, plus = unpack(data)
    assert local.x == 5 and plus(1) == 2
    start = np.frombuffer(data, np.uint8).ctypes.data
    assert start < tensor.data_ptr() < start + len(data), "a tensor lies in the bytes here too"


def test_an_open_text_is_not_copied_beside_a_local_class(tmp_path: Path) -> None:
    class Local:
        pass

    (tmp_path / "text").touch()
    with open(tmp_path / "text") as file, pytest.raises(TypeError, match="open file"):
        pack([Local(), file])


def test_without_cloudpickle_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import coprep._packing

    coprep._packing._by_value_pickler.cache_clear()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(pickle.PicklingError, match="lambda.* module that can be imported, or install cloudpickle"):
        pack(lambda: 1)


def test_what_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises(TypeError, match="generator"):
        pack([np.arange(3), (x for x in range(3))])


FAILURES = (ValueError, EOFError, pickle.UnpicklingError)


@pytest.mark.parametrize("name", ["nested", "array", "many", "tensor bfloat16", "empty array"])
def test_bytes_that_are_cut_off_are_an_error(name: str) -> None:
    data = packed(OBJECTS[name])
    for length in range(len(data)):
        with pytest.raises(ValueError, match="cut off|less than a header"):
            unpack(data[:length])


def test_damaged_headers_are_an_error() -> None:
    data = packed([np.arange(3), np.arange(5)], room=64)
    head = 24 + 2 * 8
    rng = np.random.default_rng(0)
    spoilt = [bytearray(data) for _ in range(8 * head + 2000)]
    for i, (at, bit) in enumerate(itertools.product(range(head), range(8))):
        spoilt[i][at] ^= 1 << bit
    for i in range(8 * head, len(spoilt)):
        spoilt[i][4:head] = rng.integers(0, [3, 256][i % 2], head - 4, dtype=np.uint8).tobytes()
    failed = 0
    for candidate in spoilt:
        try:
            # Padding between the parts may be taken for the end of one, so the value may still be right.
            assert same(unpack(candidate), unpack(data))
        except FAILURES:
            failed += 1
    assert failed > len(spoilt) - 16
    with pytest.raises(ValueError, match="other bytes"):
        unpack(b"x" * 100)


def test_too_little_room_is_an_error() -> None:
    whole = pack(np.arange(100))
    room = bytearray(whole.size - 1)
    with pytest.raises(ValueError, match=f"{whole.size} bytes do not fit into {whole.size - 1}"):
        whole.write_to(memoryview(room))
    assert not any(room)
