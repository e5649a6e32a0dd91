"""Tests that what a program has set in Python and its libraries counts, and what it has not set does not."""

from __future__ import annotations

import contextlib
import contextvars
import csv
import decimal
import io
import json
import locale
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from coprep._fingerprint import fingerprint
from coprep._switches import switches, switches_of

ALWAYS = {"switch time zone", "switch RLIMIT_NOFILE", "switch gc.threshold"}
"""Switches that count with any value, since they have none that all programs begin with."""


NAMED = ("sys", "gc", "signal", "threading", "tempfile", "torch.backends.cudnn")
"""Modules whose switches count only where code names the module."""


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


ENTERED: list[Any] = []


def inference(torch: Any) -> None:
    # It ends with its object.
    ENTERED.append(torch.inference_mode())
    ENTERED[0].__enter__()


def output(system: Any) -> None:
    system.stdout = io.TextIOWrapper(io.BytesIO(), "latin-1")


def https(_: Any) -> None:
    ssl._create_default_https_context = ssl._create_unverified_context


class Finder:
    @staticmethod
    def find_spec(*_: Any) -> None:
        return None


def url_headers(urls: Any) -> None:
    opener = urls.build_opener()
    opener.addheaders = [("User-agent", "mine")]
    urls.install_opener(opener)


def sqlite_adapter(sqlite: Any) -> None:
    sqlite.register_adapter(Finder, own_opener)


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
    ("sys.meta_path", "sys", lambda m: m.meta_path.append(Finder)),
    ("sys.path_hooks", "sys", lambda m: m.path_hooks.append(own_opener)),
    ("sys.stdout.encoding", "sys", output),
    ("csv.dialects", "csv", lambda m: m.register_dialect("mine", delimiter=";")),
    ("copyreg.dispatch_table", "copyreg", lambda m: m.pickle(Finder, own_opener)),
    ("copyreg.extensions", "copyreg", lambda m: m.add_extension("mine", "Mine", 7)),
    ("mimetypes.types", "mimetypes", lambda m: m.add_type("image/mine", ".mine")),
    ("mimetypes.types", "mimetypes", lambda m: m.add_type("image/mine", ".mine", strict=False)),
    ("xml.namespaces", "xml.etree.ElementTree", lambda m: m.register_namespace("mine", "https://mine")),
    ("calendar.firstweekday", "calendar", lambda m: m.setfirstweekday(6)),
    ("http.limits", "http.client", lambda m: setattr(m, "_MAXHEADERS", 7)),
    ("urllib.handlers", "urllib.request", lambda m: m.install_opener(m.build_opener(m.HTTPCookieProcessor()))),
    ("urllib.headers", "urllib.request", url_headers),
    ("shutil.archive_formats", "shutil", lambda m: m.register_archive_format("mine", own_opener)),
    ("shutil.unpack_formats", "shutil", lambda m: m.register_unpack_format("mine", [".mine"], own_opener)),
    ("sqlite3.converters", "sqlite3", lambda m: m.register_converter("mine", own_opener)),
    ("sqlite3.adapters", "sqlite3", sqlite_adapter),
    ("zoneinfo.TZPATH", "zoneinfo", lambda m: m.reset_tzpath(["/mine"])),
    ("gc.threshold", "gc", lambda m: m.set_threshold(7)),
    ("signal.handlers", "signal", lambda m: m.signal(m.SIGUSR1, own_opener)),
    ("signal.SIGPIPE", "signal", lambda m: m.signal(m.SIGPIPE, m.SIG_DFL)),
    ("signal.mask", "signal", lambda m: m.pthread_sigmask(m.SIG_BLOCK, [m.SIGUSR1])),
    ("threading.stack_size", "threading", lambda m: m.stack_size(1 << 20)),
    ("tempfile.tempdir", "tempfile", lambda m: setattr(m, "tempdir", "/mine")),
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
    ("PIL.extensions", "PIL.Image", lambda m: m.register_extension("ALONE", ".alone")),
    ("PIL.MAX_TEXT", "PIL.PngImagePlugin", lambda m: setattr(m, "MAX_TEXT_CHUNK", 3)),
    ("torch.default_dtype", "torch", lambda m: m.set_default_dtype(m.float64)),
    ("torch.default_device", "torch", lambda m: m.set_default_device("meta")),
    ("torch.deterministic", "torch", lambda m: m.use_deterministic_algorithms(True)),
    ("torch.grad_enabled", "torch", lambda m: m.set_grad_enabled(False)),
    ("torch.flush_denormal", "torch", lambda m: m.set_flush_denormal(True)),
    ("torch.float32_matmul_precision", "torch", lambda m: m.set_float32_matmul_precision("medium")),
    ("torch.autocast", "torch", autocast),
    ("torch.inference_mode", "torch", inference),
    ("torch.safe_globals", "torch", lambda m: m.serialization.add_safe_globals([Finder])),
    ("torch.cudnn", "torch.backends.cudnn", lambda m: setattr(m, "deterministic", True)),
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
            found = [*switches(), *switches_of(NAMED)]
            os.write(writer, json.dumps({name: repr(value) for name, value in found}).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, encoding="utf-8") as answer:
        names: dict[str, str] = json.load(answer)
    return names


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
        "import calendar, copyreg, csv, decimal, gc, http.client, locale, logging, mimetypes, numpy, shutil, signal\n"
        "import socket, sqlite3, ssl, sys, tempfile, threading, urllib.request, xml.etree.ElementTree, zoneinfo\n"
        "for name in ('PIL.Image', 'PIL.ImageFile', 'PIL.PngImagePlugin', 'torch', 'torchvision', 'pandas'):\n"
        "    try: __import__(name)\n"
        "    except ImportError: pass\n"
        "import coprep._switches as s\n"
        "mimetypes.init(), tempfile.gettempdir(), urllib.request.urlopen('file:///proc/version').close()\n"
        "print([name for name, _ in [*s.switches(), *s.switches_of(s._NAMED)]])\n"
        # An error within a library's switches would hide them all.
        "for library, values in [*s._LIBRARIES.items(), *s._NAMED.items()]:\n"
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
    opener = "switch PIL.openers[0][1][0] (code)"
    assert set(after) - set(before) == {"switch PIL.openers", opener, f"code {__name__}"}


def test_a_backend_of_torchaudio_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Present versions have no such switch.
    monkeypatch.setitem(sys.modules, "torchaudio", types.SimpleNamespace(get_audio_backend=lambda: "soundfile"))
    assert ("switch torchaudio.backend", "soundfile") in switches()


def use_signals() -> None:
    signal.raise_signal(signal.SIGUSR1)


def test_a_handler_of_a_signal_counts_only_where_code_names_signals() -> None:
    previous = signal.signal(signal.SIGUSR1, own_opener)
    try:
        with_it, without = (dict(fingerprint({"x": code})) for code in (use_signals, own_opener))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert "switch signal.handlers" in with_it and "switch signal.handlers" not in without


VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
LOCAL = threading.local()


def read_contexts() -> Any:
    return VARIABLE.get(), LOCAL


def test_values_of_a_thread_and_of_a_context_count_where_code_names_them() -> None:
    def found() -> tuple[dict[str, bytes], dict[str, bytes]]:
        LOCAL.__dict__.clear()
        before = dict(fingerprint({"x": read_contexts}))
        VARIABLE.set(0)
        assert dict(fingerprint({"x": read_contexts})) == before
        VARIABLE.set(3)
        LOCAL.size = 3
        return before, dict(fingerprint({"x": read_contexts}))

    before, after = contextvars.copy_context().run(found)
    different = {name for name in after if after[name] != before[name]}
    assert different == {f"{__name__}.VARIABLE.get()", f"{__name__}.LOCAL"}
