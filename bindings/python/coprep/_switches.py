"""Settings of Python and its libraries that a program has changed.

A library's own value does not count, so that a program that has set nothing is equal to one that has not imported the
library. Nothing is imported here. Each switch takes some microseconds.
"""

from __future__ import annotations

import contextlib
import functools
import locale
import os
import resource
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from coprep._modules import is_users

Switch = tuple[str, Any]
"""The name of a switch, and its value."""
Found = Iterator[tuple[str, Any, Any]]
"""The name, the present value and the library's own value of each switch."""


def switches() -> list[Switch]:
    """Returns all switches that have another value than the library gives them."""
    return _changed(_LIBRARIES)


def switches_of(names: Iterable[str]) -> list[Switch]:
    """Returns those that count only where code names their module, since programs set them for other ends too."""
    return _changed({name: _NAMED[name] for name in names if name in _NAMED})


def _changed(libraries: Mapping[str, Callable[[Any], Found]]) -> list[Switch]:
    found = []
    for library, values in libraries.items():
        module = sys.modules.get(library)
        if module is None:
            continue
        # A library may lack a switch in some version, and may be in the middle of its import.
        with contextlib.suppress(Exception):
            for name, value, default in values(module):
                if value != default:
                    found.append((f"switch {name}", value))
    return found


def _own(registry: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Returns the entries of a registry in which there is code of the user's."""
    found = [(key, value) for key, value in registry.items() if _has_own(key) or _has_own(value)]
    return sorted(found, key=lambda entry: str(entry[0]))


def _has_own(value: Any) -> bool:
    return any(map(_has_own, value)) if type(value) is tuple else is_users(getattr(value, "__module__", None))


def _python(_: Any) -> Found:
    yield "recursion limit", sys.getrecursionlimit(), 1000
    if hasattr(sys, "get_int_max_str_digits"):
        yield "int_max_str_digits", sys.get_int_max_str_digits(), sys.int_info.default_max_str_digits
    raising = [
        (action, message and message.pattern, category, module and module.pattern, line)
        for action, message, category, module, line in warnings.filters
        if action == "error"
    ]
    yield "warnings", raising, []
    yield "umask", _umask(), 0o022
    yield "sys.meta_path", list(filter(_has_own, sys.meta_path)), []
    yield "sys.path_hooks", list(filter(_has_own, sys.path_hooks)), []
    # These two depend on the machine, and have no value that all programs begin with.
    yield "RLIMIT_NOFILE", resource.getrlimit(resource.RLIMIT_NOFILE)[0], None
    yield "time zone", (time.tzname, time.timezone, time.altzone), None


def _umask() -> int:
    # The system call that tells it sets it too, which other threads would notice.
    try:
        with open("/proc/self/status", "rb", buffering=0) as status:
            return int(status.read(4096).partition(b"\nUmask:")[2].split(None, 1)[0], 8)
    except (OSError, ValueError, IndexError):
        return 0o022


def _locale(module: Any) -> Found:
    yield "text encoding", locale.getpreferredencoding(False).lower().replace("-", ""), "utf8"
    for name in ("LC_COLLATE", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"):
        yield f"locale.{name}", module.setlocale(getattr(module, name)), "C"


def _csv(module: Any) -> Found:
    yield "csv.field_size_limit", module.field_size_limit(), 131_072
    own = [name for name in module.list_dialects() if name not in ("excel", "excel-tab", "unix")]
    yield "csv.dialects", [(name, _dialect(module.get_dialect(name))) for name in sorted(own)], []


def _dialect(dialect: Any) -> list[Any]:
    return [getattr(dialect, name) for name in dir(dialect) if not name.startswith("_")]


def _copyreg(module: Any) -> Found:
    yield "copyreg.dispatch_table", _own(module.dispatch_table), []
    yield "copyreg.extensions", sorted(module._extension_registry.items()), []


def _mimetypes(module: Any) -> Found:
    if module._db is not None:
        pairs = zip(_types(module._db), _of_system(module), strict=True)
        yield "mimetypes.types", [sorted(a.items() ^ b.items()) for a, b in pairs if a != b], []


def _types(types: Any) -> list[dict[str, str]]:
    return [*types.types_map, types.encodings_map, types.suffix_map]


@functools.cache
def _of_system(module: Any) -> list[dict[str, Any]]:
    """Returns the types of files that `mimetypes` knows before a program adds any."""
    types = module.MimeTypes()
    for file in filter(os.path.isfile, module.knownfiles):
        types.read(file)
    return _types(types)


_NAMESPACES = {
    "http://www.w3.org/XML/1998/namespace": "xml",
    "http://www.w3.org/1999/xhtml": "html",
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#": "rdf",
    "http://schemas.xmlsoap.org/wsdl/": "wsdl",
    "http://www.w3.org/2001/XMLSchema": "xs",
    "http://www.w3.org/2001/XMLSchema-instance": "xsi",
    "http://purl.org/dc/elements/1.1/": "dc",
}
"""Prefixes that `xml.etree` has itself."""


def _xml(module: Any) -> Found:
    own = [(url, prefix) for url, prefix in module._namespace_map.items() if _NAMESPACES.get(url) != prefix]
    yield "xml.namespaces", sorted(own), []


def _calendar(module: Any) -> Found:
    yield "calendar.firstweekday", module.firstweekday(), 0


def _http(module: Any) -> Found:
    yield "http.limits", (module._MAXHEADERS, module._MAXLINE), (100, 65536)


_HANDLERS = frozenset(
    f"{name}Handler" for name in ("Unknown", "HTTP", "HTTPDefaultError", "HTTPRedirect", "FTP", "File", "Data", "HTTPS")
) | {"HTTPErrorProcessor", "ProxyHandler"}
"""Handlers that `urllib` installs at the first use."""


def _urllib(module: Any) -> Found:
    opener = module._opener
    if opener is not None:
        own = [handler for handler in opener.handlers if type(handler).__name__ not in _HANDLERS]
        yield "urllib.handlers", [(type(handler), _state(handler)) for handler in own], []
        yield "urllib.headers", opener.addheaders, [("User-agent", f"Python-urllib/{module.__version__}")]


def _state(handler: Any) -> dict[str, Any]:
    # The parent is the opener, which has all handlers.
    return {name: value for name, value in vars(handler).items() if name != "parent"}


def _shutil(module: Any) -> Found:
    yield "shutil.archive_formats", _own(module._ARCHIVE_FORMATS), []
    yield "shutil.unpack_formats", _own(module._UNPACK_FORMATS), []


def _sqlite(module: Any) -> Found:
    yield "sqlite3.converters", _own(module.converters), []
    yield "sqlite3.adapters", _own(module.adapters), []


def _zoneinfo(module: Any) -> Found:
    yield "zoneinfo.TZPATH", module.TZPATH, tuple(filter(None, sysconfig.get_config_var("TZPATH").split(os.pathsep)))


def _decimal(module: Any) -> Found:
    context = module.getcontext()
    traps = sorted(trap.__name__ for trap, is_set in context.traps.items() if is_set)
    value = context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps
    default = 28, "ROUND_HALF_EVEN", -999_999, 999_999, 1, 0, ["DivisionByZero", "InvalidOperation", "Overflow"]
    yield "decimal.context", value, default


def _socket(module: Any) -> Found:
    yield "socket.defaulttimeout", module.getdefaulttimeout(), None


def _ssl(module: Any) -> Found:
    yield "ssl.default_https_context", module._create_default_https_context, module.create_default_context


def _pillow(module: Any) -> Found:
    yield "PIL.MAX_IMAGE_PIXELS", module.MAX_IMAGE_PIXELS, int(1024 * 1024 * 1024 // 4 // 3)
    # Pillow registers its own formats when it first needs them.
    openers = [(name, module.OPEN[name]) for name in module.ID if not _is_of(module.OPEN[name][0], "PIL.")]
    yield "PIL.openers", openers, []
    pillows = {name for name, code in module.SAVE.items() if _is_of(code, "PIL.")} | {*module.ID} - {*dict(openers)}
    yield "PIL.extensions", sorted(kind for kind in module.EXTENSION.items() if kind[1] not in pillows), []


def _is_of(code: Any, library: str) -> bool:
    return str(getattr(code, "__module__", "")).startswith(library)


def _pillow_files(module: Any) -> Found:
    yield "PIL.LOAD_TRUNCATED_IMAGES", module.LOAD_TRUNCATED_IMAGES, False


def _pillow_png(module: Any) -> Found:
    yield "PIL.MAX_TEXT", (module.MAX_TEXT_CHUNK, module.MAX_TEXT_MEMORY), (1 << 20, 64 << 20)


def _numpy(module: Any) -> Found:
    yield "numpy.err", module.geterr(), {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
    yield "numpy.errcall", module.geterrcall(), None
    options = module.get_printoptions()
    own = {"edgeitems": 3, "threshold": 1000, "floatmode": "maxprec", "precision": 8, "suppress": False}
    own |= {"linewidth": 75, "nanstr": "nan", "infstr": "inf", "sign": "-", "formatter": None, "legacy": False}
    yield "numpy.printoptions", {name: options.get(name) for name in own}, own


def _torch(module: Any) -> Found:
    yield "torch.default_dtype", str(module.get_default_dtype()), "torch.float32"
    if hasattr(module, "get_default_device"):
        yield "torch.default_device", str(module.get_default_device()), "cpu"
    yield "torch.deterministic", module.get_deterministic_debug_mode(), 0
    yield "torch.grad_enabled", module.is_grad_enabled(), True
    yield "torch.float32_matmul_precision", module.get_float32_matmul_precision(), "highest"
    yield "torch.inference_mode", module.is_inference_mode_enabled(), False
    yield "torch.autocast", module._C._is_any_autocast_enabled(), False
    options = module._tensor_str.PRINT_OPTS
    yield "torch.printoptions", (options.precision, options.threshold, options.edgeitems), (4, 1000, 3)
    if hasattr(module.serialization, "get_safe_globals"):
        safe = [code for code in module.serialization.get_safe_globals() if not _is_of(code, "torch")]
        yield "torch.safe_globals", sorted(safe, key=str), []
    yield "torch.flush_denormal", _flushes_denormals(module), False


def _flushes_denormals(torch: Any) -> bool:
    # PyTorch sets this mode of the processor, and has no function that tells it.
    return not torch.tensor([5e-324], dtype=torch.float64, device="cpu").mul_(1).count_nonzero()


def _cudnn(module: Any) -> Found:
    value = module.enabled, module.benchmark, module.deterministic, module.allow_tf32
    yield "torch.cudnn", value, (True, False, False, True)


def _torchvision(module: Any) -> Found:
    yield "torchvision.image_backend", module.get_image_backend(), "PIL"
    yield "torchvision.video_backend", module.get_video_backend(), "pyav"


def _tv_tensors(module: Any) -> Found:
    yield "torchvision.return_type", module._TORCHFUNCTION_SUBCLASS, False


def _torchaudio(module: Any) -> Found:
    # Only old versions have it; they take "sox_io" where there is one.
    yield "torchaudio.backend", module.get_audio_backend(), None


def _pandas(module: Any) -> Found:
    def changed(values: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            key = f"{path}{name}"
            if isinstance(value, dict):
                yield from changed(value, f"{key}.")
            elif key in module._registered_options and value != module._registered_options[key].defval:
                yield key, value

    yield "pandas.options", sorted(changed(module._global_config, ""), key=str), []


def _cv2(module: Any) -> Found:
    yield "cv2.useOptimized", module.useOptimized(), True


def _datasets(module: Any) -> Found:
    yield "datasets.caching", module._CACHING_ENABLED, True


def _sklearn(module: Any) -> Found:
    yield "sklearn.config", module.get_config(), module._global_config


def _mmcv(module: Any) -> Found:
    yield "mmcv.backend", module.imread_backend, "cv2"


def _decord(module: Any) -> Found:
    yield "decord.bridge", getattr(module._CURRENT_BRIDGE, "type", "native"), "native"


def _librosa(module: Any) -> Found:
    library = module.get_fftlib()
    yield "librosa.fftlib", (getattr(library, "__name__", None), library), ("numpy.fft", sys.modules["numpy.fft"])


def _gc(module: Any) -> Found:
    yield "gc.threshold", module.get_threshold(), None


def _streams(module: Any) -> Found:
    # A daemon has no streams, and a program's own may have no encoding.
    for name in ("stdout", "stderr"):
        encoding = getattr(getattr(module, name), "encoding", None) or "utf-8"
        yield f"sys.{name}.encoding", encoding.lower(), "utf-8"


def _signal(module: Any) -> Found:
    handlers = [(number, module.getsignal(number)) for number in range(1, module.NSIG)]
    yield "signal.handlers", [(int(number), handler) for number, handler in handlers if _has_own(handler)], []
    yield "signal.SIGPIPE", module.getsignal(module.SIGPIPE) == module.SIG_IGN, True
    yield "signal.mask", sorted(map(int, module.pthread_sigmask(module.SIG_BLOCK, ()))), []


def _threading(module: Any) -> Found:
    # Asking for the size sets it to the default.
    size = module.stack_size()
    module.stack_size(size)
    yield "threading.stack_size", size, 0


def _tempfile(module: Any) -> Found:
    # Its first use sets it to one of these.
    own = module.tempdir is not None and module.tempdir not in module._candidate_tempdir_list()
    yield "tempfile.tempdir", module.tempdir if own else None, None


_LIBRARIES: dict[str, Callable[[Any], Found]] = {
    "sys": _python,
    "_locale": _locale,
    "_csv": _csv,
    "decimal": _decimal,
    "copyreg": _copyreg,
    "mimetypes": _mimetypes,
    "xml.etree.ElementTree": _xml,
    "calendar": _calendar,
    "http.client": _http,
    "urllib.request": _urllib,
    "shutil": _shutil,
    "sqlite3": _sqlite,
    "zoneinfo": _zoneinfo,
    "socket": _socket,
    "ssl": _ssl,
    "PIL.Image": _pillow,
    "PIL.ImageFile": _pillow_files,
    "PIL.PngImagePlugin": _pillow_png,
    "numpy": _numpy,
    "torch": _torch,
    "torchvision": _torchvision,
    "torchvision.tv_tensors._torch_function_helpers": _tv_tensors,
    "torchaudio": _torchaudio,
    "pandas._config.config": _pandas,
    "cv2": _cv2,
    "datasets.fingerprint": _datasets,
    "sklearn._config": _sklearn,
    "mmcv.image.io": _mmcv,
    "decord.bridge": _decord,
    "librosa.core.fft": _librosa,
}
"""Functions that find the switches of a module."""
_NAMED: dict[str, Callable[[Any], Found]] = {
    "sys": _streams,
    "gc": _gc,
    "signal": _signal,
    "threading": _threading,
    "tempfile": _tempfile,
    "torch.backends.cudnn": _cudnn,
}
"""The same of modules that count only where code names them."""
