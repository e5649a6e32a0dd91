"""What a program has set in Python and in its libraries, beside their versions.

A library's own value does not count, so that a program that has set nothing is equal to one that has not imported the
library. Nothing is imported here. Each switch takes some microseconds.
"""

from __future__ import annotations

import contextlib
import locale
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Switch = tuple[str, Any]
"""The name of a switch, and its value."""
Found = Iterator[tuple[str, Any, Any]]
"""The name, the present value and the library's own value of each switch."""


def switches() -> list[Switch]:
    """Returns all switches that have another value than the library gives them."""
    found = []
    for library, values in _LIBRARIES.items():
        module = sys.modules.get(library)
        if module is None:
            continue
        # A library may lack a switch in some version, and may be in the middle of its import.
        with contextlib.suppress(Exception):
            for name, value, default in values(module):
                if value != default:
                    found.append((f"switch {name}", value))
    return found


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
    openers = [(name, module.OPEN[name]) for name in module.ID if not _is_pillows(module.OPEN[name][0])]
    yield "PIL.openers", openers, []
    yield "PIL.extensions", sorted(kind for kind in module.EXTENSION.items() if kind[1] in dict(openers)), []


def _is_pillows(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).startswith("PIL.")


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
    yield "torch.autocast", module._C._is_any_autocast_enabled(), False
    options = module._tensor_str.PRINT_OPTS
    yield "torch.printoptions", (options.precision, options.threshold, options.edgeitems), (4, 1000, 3)


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


_LIBRARIES: dict[str, Callable[[Any], Found]] = {
    "sys": _python,
    "_locale": _locale,
    "_csv": _csv,
    "decimal": _decimal,
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
}
