"""Tests native pipelines as Python objects: help, messages, copies, pickles and repr."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
from batches import ids
from photos import make_folder

OPERATORS = ("decode", "resize", "center_crop", "random_resized_crop", "random_horizontal_flip", "normalize")
BASE = coprep.Files(["a.jpg", "b.jpg"], [3, 4])
DECODED = BASE.decode()
Make = Callable[[], coprep.Pipeline]


def full() -> coprep.Pipeline:
    return (
        BASE.decode(apply_exif_orientation=True, max_pixels=1000, scaled=False)
        .resize(64, interpolation="bicubic")
        .resize((60, 61))
        .center_crop(48)
        .random_resized_crop((32, 24), scale=(0.1, 0.9), ratio=(0.5, 2), interpolation="nearest")
        .random_horizontal_flip(0.25)
        .normalize([0.5, 0.4, 0.3], np.array([0.2, 0.1, 0.25]))
    )


def test_help_says_what_each_operator_takes() -> None:
    page = pydoc.render_doc(coprep.Pipeline, renderer=pydoc.plaintext)
    assert "immutable" in page and "Ellipsis" not in page and "..." not in page.split("Methods")[0]
    for name in OPERATORS:
        method = getattr(coprep.Pipeline, name)
        assert inspect.getdoc(method), name
        for parameter in inspect.signature(method).parameters.values():
            assert parameter.name == "self" or parameter.default is not None, (name, parameter)
            assert parameter.name == "self" or parameter.name in inspect.getdoc(method), (name, parameter)
    signature = str(inspect.signature(coprep.Pipeline.random_resized_crop))
    assert "scale=(0.08, 1.0)" in signature and "interpolation='bilinear'" in signature


def test_the_defaults_that_help_shows_are_those_in_force() -> None:
    for name in OPERATORS[1:5]:
        method = getattr(coprep.Pipeline, name)
        shown = {
            p.name: p.default
            for p in inspect.signature(method).parameters.values()
            if p.default is not inspect.Parameter.empty
        }
        size = () if name == "random_horizontal_flip" else (8,)
        assert method(DECODED, *size, **shown) == method(DECODED, *size), name
    shown = {
        p.name: p.default for p in inspect.signature(coprep.Pipeline.decode).parameters.values() if p.name != "self"
    }
    assert BASE.decode(**shown) == BASE.decode()


@pytest.mark.parametrize("make", [full, lambda: BASE, lambda: coprep.ImageFolder("data").decode().resize(8)])
def test_a_pipeline_can_be_pickled_and_copied(make: Make) -> None:
    pipeline = make()
    for again in (
        *(pickle.loads(pickle.dumps(pipeline, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        copy.copy(pipeline),
        copy.deepcopy(pipeline),
    ):
        assert again == pipeline and hash(again) == hash(pipeline) and repr(again) == repr(pipeline)
    assert pickle.loads(pickle.dumps(pipeline)) != pipeline.decode() if not str(pipeline).count("decode") else True


def test_a_pickled_pipeline_shares(socket_path: Path, tmp_path: Path) -> None:
    data = coprep.ImageFolder(make_folder(tmp_path / "photos", 8)).decode().random_resized_crop(8)
    options: dict[str, Any] = {"batch_size": 4, "framework": "numpy", "with_index": True}
    with (
        coprep.DataLoader(data, **options) as one,
        coprep.DataLoader(pickle.loads(pickle.dumps(data)), **options) as other,
    ):
        assert sorted(ids(one)) == sorted(ids(other)) == list(range(8))
        assert len(coprep.status()["streams"]) == 1


def test_repr_tells_pipelines_apart() -> None:
    assert repr(full()) == (
        "Files(2 paths).decode(apply_exif_orientation=True, max_pixels=1000, scaled=False)"
        '.resize(64, interpolation="bicubic").resize((60, 61)).center_crop(48)'
        '.random_resized_crop((32, 24), scale=(0.1, 0.9), ratio=(0.5, 2.0), interpolation="nearest")'
        ".random_horizontal_flip(0.25).normalize((0.5, 0.4, 0.3), (0.2, 0.1, 0.25))"
    )
    assert repr(DECODED.random_resized_crop(224).random_horizontal_flip()) == (
        "Files(2 paths).decode().random_resized_crop(224).random_horizontal_flip()"
    )
    # A single number sets the shorter side, which is not the same as both sides.
    assert repr(DECODED.resize((8, 8))) != repr(DECODED.resize(8))


class Mode:
    """A stand-in for torchvision's InterpolationMode."""

    value = "bicubic"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: DECODED.random_resized_crop([224, 200]), lambda: DECODED.random_resized_crop((224, 200))),
        (lambda: DECODED.center_crop([224]), lambda: DECODED.center_crop(224)),
        (lambda: DECODED.resize(np.int64(9)), lambda: DECODED.resize(9)),
        (lambda: DECODED.resize(9, interpolation=Mode()), lambda: DECODED.resize(9, interpolation="bicubic")),
        (
            lambda: DECODED.random_resized_crop(9, scale=[0.1, 1], ratio=np.array([1, 2])),
            lambda: DECODED.random_resized_crop(9, scale=(0.1, 1.0), ratio=(1.0, 2.0)),
        ),
        (lambda: DECODED.normalize([0, 0, 0], [1, 1, 1]), lambda: DECODED.normalize((0.0,) * 3, (1.0,) * 3)),
    ],
)
def test_what_torchvision_takes_is_taken(one: Make, other: Make) -> None:
    assert one() == other()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *(
            (lambda size=size: DECODED.random_resized_crop(size), f"size must be a positive integer or .*, not {shown}")
            for size, shown in [
                ("224", "'224'"),
                (224.0, "224.0"),
                (-1, "-1"),
                (True, "True"),
                (None, "None"),
                ([1, 2, 3], r"\[1, 2, 3\]"),
                ([2, "a"], r"\[2, 'a'\]"),
            ]
        ),
        (lambda: DECODED.normalize(0.5, 0.5), "mean must be three numbers.*not 0.5"),
        (lambda: DECODED.normalize((0.5,) * 3, (0.5,) * 2), "std must be three numbers"),
        (lambda: DECODED.resize(8, interpolation=2), "interpolation must be 'nearest', 'bilinear' or 'bicubic', not 2"),
        (lambda: DECODED.resize(8, interpolation="lanczos"), "interpolation must be .*not 'lanczos'"),
        (lambda: DECODED.random_horizontal_flip("often"), "p must be a number, not 'often'"),
        (lambda: DECODED.random_resized_crop(8, scale=0.5), "scale must be two numbers.*not 0.5"),
        # Mistakes in the pipeline are reported at the line that makes them.
        (lambda: BASE.center_crop(8), "begins with decode"),
        (lambda: DECODED.decode(), "twice"),
        (lambda: DECODED.normalize((0.5,) * 3, (0.5,) * 3).random_horizontal_flip(), "must be the last"),
        (lambda: DECODED.normalize((0.5,) * 3, (0.5, 0.5, 0.0)), "std must not be zero"),
        (lambda: DECODED.random_horizontal_flip(2), "no probability"),
        (lambda: DECODED.center_crop(0), "1 to 16384"),
        (lambda: DECODED.resize((8, 20_000)), "1 to 16384"),
        (lambda: DECODED.random_resized_crop(8, scale=(1, 0.1)), "low <= high"),
        (lambda: DECODED.random_resized_crop(8, ratio=(float("nan"), 1)), "low <= high"),
        (lambda: BASE.decode(max_pixels=0), "max_pixels is 0"),
    ],
)
def test_a_wrong_argument_is_told_where_it_is_written(make: Make, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *(
            (
                lambda value=value: BASE.decode(max_pixels=value),
                f"decode: max_pixels must be a positive integer, not {s}",
            )
            for value, s in [("9", "'9'"), (-1, "-1"), (1e6, "1000000.0"), (True, "True")]
        ),
        (lambda: DECODED.random_horizontal_flip(2), "p = 2 is no probability: it must be from 0 to 1"),
        (lambda: coprep.Files("a.jpg"), r"paths must be a list of paths, not 'a.jpg': write \['a.jpg'\]"),
        (lambda: coprep.Files(Path("a.jpg")), "paths must be a list of paths"),
        (lambda: coprep.Files(["a.jpg"], [1.7]), "labels must be integers, not 1.7"),
        (lambda: coprep.Files(["a.jpg"], ["cat"]), "labels must be integers, not 'cat'"),
    ],
)
def test_a_wrong_number_or_path_is_refused_with_a_sentence(make: Make, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_labels_may_be_integers_of_any_kind() -> None:
    assert coprep.Files(["a.jpg", "b.jpg"], np.array([3, 4], np.int16)) == BASE
