"""Tests that what a program has set in Python and its libraries counts, and what it has not set does not."""

from __future__ import annotations

import contextlib
import csv
import decimal
import json
import locale
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from coprep._fingerprint import fingerprint
from coprep._switches import switches

ALWAYS = {"switch time zone", "switch RLIMIT_NOFILE"}
"""Switches that count with any value, since they have none that all programs begin with."""


def own_opener(*_: Any) -> Any:
    return None


def recursion(_: Any) -> None:
    sys.setrecursionlimit(5000)


def umask(_: Any) -> None:
    os.umask(0o077)


def files(_: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def time_zone(_: Any) -> None:
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def int_digits(_: Any) -> None:
    sys.set_int_max_str_digits(9000)


def pillow_opener(images: Any) -> None:
    images.register_open("MINE", own_opener)
    images.register_extension("MINE", ".mine")


def pandas_option(pandas: Any) -> None:
    pandas.set_option("mode.use_inf_as_na" if hasattr(pandas.options.mode, "use_inf_as_na") else "display.precision", 3)


def autocast(torch: Any) -> None:
    torch.autocast("cpu", torch.bfloat16).__enter__()


def https(_: Any) -> None:
    ssl._create_default_https_context = ssl._create_unverified_context


SET: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("recursion limit", "sys", recursion),
    ("int_max_str_digits", "sys", int_digits),
    ("warnings", "warnings", lambda m: m.simplefilter("error")),
    ("warnings", "warnings", lambda m: m.filterwarnings("error", "text of mine", UserWarning)),
    ("umask", "os", umask),
    ("RLIMIT_NOFILE", "resource", files),
    ("time zone", "time", time_zone),
    ("locale.LC_NUMERIC", "locale", lambda m: m.setlocale(locale.LC_NUMERIC, "C.UTF-8")),
    ("csv.field_size_limit", "csv", lambda m: m.field_size_limit(10**6)),
    ("decimal.context", "decimal", lambda m: setattr(m.getcontext(), "prec", 50)),
    ("socket.defaulttimeout", "socket", lambda m: m.setdefaulttimeout(3)),
    ("ssl.default_https_context", "ssl", https),
    ("numpy.err", "numpy", lambda m: m.seterr(all="raise")),
    ("numpy.errcall", "numpy", lambda m: m.seterrcall(own_opener)),
    ("numpy.printoptions", "numpy", lambda m: m.set_printoptions(precision=3)),
    ("PIL.LOAD_TRUNCATED_IMAGES", "PIL.ImageFile", lambda m: setattr(m, "LOAD_TRUNCATED_IMAGES", True)),
    ("PIL.MAX_IMAGE_PIXELS", "PIL.Image", lambda m: setattr(m, "MAX_IMAGE_PIXELS", None)),
    ("PIL.openers", "PIL.Image", pillow_opener),
    ("PIL.extensions", "PIL.Image", pillow_opener),
    ("PIL.MAX_TEXT", "PIL.PngImagePlugin", lambda m: setattr(m, "MAX_TEXT_CHUNK", 3)),
    ("torch.default_dtype", "torch", lambda m: m.set_default_dtype(m.float64)),
    ("torch.default_device", "torch", lambda m: m.set_default_device("meta")),
    ("torch.deterministic", "torch", lambda m: m.use_deterministic_algorithms(True)),
    ("torch.grad_enabled", "torch", lambda m: m.set_grad_enabled(False)),
    ("torch.float32_matmul_precision", "torch", lambda m: m.set_float32_matmul_precision("medium")),
    ("torch.autocast", "torch", autocast),
    ("torch.printoptions", "torch", lambda m: m.set_printoptions(precision=2)),
    ("torchvision.image_backend", "torchvision", lambda m: setattr(m, "_image_backend", "accimage")),
    ("torchvision.video_backend", "torchvision", lambda m: setattr(m, "_video_backend", "video_reader")),
    ("torchvision.return_type", "torchvision.tv_tensors", lambda m: m.set_return_type("TVTensor")),
    ("pandas.options", "pandas", pandas_option),
    ("cv2.useOptimized", "cv2", lambda m: m.setUseOptimized(False)),
    ("datasets.caching", "datasets", lambda m: m.disable_caching()),
]


def in_a_fork(changed: Callable[[], Any]) -> dict[str, str]:
    """Returns the switches that count in a child process which has set something."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            changed()
            os.write(writer, json.dumps({name: repr(value) for name, value in switches()}).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, encoding="utf-8") as answer:
        found: dict[str, str] = json.load(answer)
    return found


@pytest.mark.parametrize(("name", "module", "change"), SET, ids=[f"{name} {i}" for i, (name, *_) in enumerate(SET)])
def test_a_switch_counts_once_it_is_set(name: str, module: str, change: Callable[[Any], Any]) -> None:
    found = pytest.importorskip(module)
    if name == "int_max_str_digits" and not hasattr(sys, "set_int_max_str_digits"):
        pytest.skip("this Python has no limit")
    before = in_a_fork(lambda: None)
    after = in_a_fork(lambda: change(found))
    assert (f"switch {name}" in before) == (f"switch {name}" in ALWAYS)
    assert f"switch {name}" in after and after[f"switch {name}"] != before.get(f"switch {name}")


def test_a_program_that_has_set_nothing_has_no_other_switches() -> None:
    script = (
        "import csv, decimal, socket, ssl, locale, logging, numpy, sys\n"
        "for name in ('PIL.Image', 'PIL.ImageFile', 'PIL.PngImagePlugin', 'torch', 'torchvision', 'pandas'):\n"
        "    try: __import__(name)\n"
        "    except ImportError: pass\n"
        "import coprep._switches as s\n"
        "print([name for name, _ in s.switches()])\n"
        # An error within a library's switches would hide them all.
        "for library, values in s._LIBRARIES.items():\n"
        "    if library in sys.modules: list(values(sys.modules[library]))\n"
    )
    answer = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert set(eval(answer)) == ALWAYS


def test_using_a_library_changes_no_switch(tmp_path: Any) -> None:
    images = pytest.importorskip("PIL.Image")
    before = dict(switches())
    images.new("RGB", (8, 8)).save(tmp_path / "x.png")
    images.open(tmp_path / "x.png").load()
    images.init()
    with decimal.localcontext() as context:
        context.prec = 9
    decimal.Decimal(1) / decimal.Decimal(3)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.array([1.0]) / 0
    list(csv.reader(["a,b"]))
    with socket.socket():
        pass
    assert dict(switches()) == before


def test_switches_are_parts_of_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pytest.importorskip("PIL.Image")
    before = dict(fingerprint({"x": 1}))
    monkeypatch.setitem(images.OPEN, "MINE", (own_opener, None))
    monkeypatch.setattr(images, "ID", [*images.ID, "MINE"])
    after = dict(fingerprint({"x": 1}))
    assert set(after) - set(before) == {"switch PIL.openers", f"code {__name__}"}


def test_a_backend_of_torchaudio_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Present versions have no such switch.
    monkeypatch.setitem(sys.modules, "torchaudio", types.SimpleNamespace(get_audio_backend=lambda: "soundfile"))
    assert ("switch torchaudio.backend", "soundfile") in switches()
