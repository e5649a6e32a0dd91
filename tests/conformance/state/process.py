"""State of the interpreter and of the process."""

from __future__ import annotations

import builtins
import contextvars
import copyreg
import faulthandler
import gc
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import zoneinfo
from typing import Any

from state.kind import FOLDERS, Kind, attempt


class Environment(Kind):
    """os.environ["X"] = v"""

    values = ("three", "five")

    def set(self, value: str) -> None:
        os.environ["STATE_SIZE"] = value

    def __getitem__(self, index: int) -> str:
        return os.environ.get("STATE_SIZE", "none")


class EnvironmentUnused(Kind):
    """a variable of the environment that samples do not read"""

    values = ("three", "five")
    counts = False

    def set(self, value: str) -> None:
        os.environ["STATE_RUN"] = value

    def __getitem__(self, index: int) -> str:
        return os.environ.get("STATE_OTHER", "none")


class WorkingDirectory(Kind):
    """os.chdir, where samples read files by relative paths"""

    def set(self, value: int) -> None:
        os.chdir(FOLDERS[value])

    def __getitem__(self, index: int) -> str:
        if not os.path.exists("size.txt"):
            return "no file"
        with open("size.txt") as file:
            return file.read()


class ImportPath(Kind):
    """sys.path.insert, where samples import from there"""

    def set(self, value: int) -> None:
        sys.path.insert(0, str(FOLDERS[value]))

    def __getitem__(self, index: int) -> int:
        try:
            import extra
        except ImportError:
            return 0
        size: int = extra.SIZE
        return size


class Arguments(Kind):
    """sys.argv, where samples read it"""

    values = ("--size=3", "--size=5")

    def set(self, value: str) -> None:
        sys.argv[1:] = [value]

    def __getitem__(self, index: int) -> str:
        return str([word for word in sys.argv if word.startswith("--size")])


class ArgumentsUnused(Kind):
    """sys.argv, where samples do not read it"""

    values = ("--learning-rate=3", "--learning-rate=5")
    counts = False

    def set(self, value: str) -> None:
        sys.argv.append(value)

    def __getitem__(self, index: int) -> int:
        return index


class Umask(Kind):
    """os.umask, where samples make files"""

    values = (0o027, 0o077)

    def set(self, value: int) -> None:
        os.umask(value)

    def __getitem__(self, index: int) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file")
            open(path, "w").close()
            return oct(os.stat(path).st_mode)


class OpenFilesLimit(Kind):
    """resource.setrlimit(RLIMIT_NOFILE, ...)"""

    values = (700, 800)

    def set(self, value: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (value, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def __getitem__(self, index: int) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class TimeZone(Kind):
    """time.tzset"""

    values = ("THR-3", "FIV-5")

    def set(self, value: str) -> None:
        os.environ["TZ"] = value
        time.tzset()

    def __getitem__(self, index: int) -> str:
        return time.strftime("%H %Z", time.localtime(0))


class TimeZoneKept(Kind):
    """time.tzset, and the variable is removed again"""

    values = ("THR-3", "FIV-5")

    def set(self, value: str) -> None:
        os.environ["TZ"] = value
        time.tzset()
        del os.environ["TZ"]

    def __getitem__(self, index: int) -> str:
        return str(time.timezone)


class TimeZonePath(Kind):
    """zoneinfo.reset_tzpath"""

    values = ("/three", "/five")

    def set(self, value: str) -> None:
        zoneinfo.reset_tzpath([value])

    def __getitem__(self, index: int) -> str:
        return str("/three" in zoneinfo.TZPATH) + str("/five" in zoneinfo.TZPATH)


class RecursionLimit(Kind):
    """sys.setrecursionlimit"""

    values = (3000, 5000)

    def set(self, value: int) -> None:
        sys.setrecursionlimit(value)

    def depth(self, steps: int) -> int:
        return 0 if steps == 0 else 1 + self.depth(steps - 1)

    def __getitem__(self, index: int) -> str:
        return attempt(self.depth, 3500)[:15]


class IntegerDigits(Kind):
    """sys.set_int_max_str_digits"""

    values = (700, 6000)

    def set(self, value: int) -> None:
        sys.set_int_max_str_digits(value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: int("1" * 5000) % 10)[:10]


class SwitchInterval(Kind):
    """sys.setswitchinterval, which no sample shows"""

    values = (0.01, 0.02)
    counts = False

    def set(self, value: float) -> None:
        sys.setswitchinterval(value)

    def __getitem__(self, index: int) -> int:
        return index


class Collection(Kind):
    """gc.set_threshold, which no sample shows"""

    values = (10000, 20000)
    counts = False

    def set(self, value: int) -> None:
        gc.set_threshold(value)

    def __getitem__(self, index: int) -> int:
        return index


class CollectionOff(Kind):
    """gc.disable(), which no sample shows"""

    values = (True, False)
    counts = False

    def set(self, value: bool) -> None:
        if value:
            gc.disable()

    def __getitem__(self, index: int) -> int:
        return index


class CollectionThreshold(Kind):
    """gc.set_threshold, where samples read it"""

    values = (10000, 20000)

    def set(self, value: int) -> None:
        gc.set_threshold(value)

    def __getitem__(self, index: int) -> int:
        return gc.get_threshold()[0]


class FaultHandler(Kind):
    """faulthandler.enable(), which no sample shows"""

    values = (True, False)
    counts = False

    def set(self, value: bool) -> None:
        if value:
            faulthandler.enable()

    def __getitem__(self, index: int) -> int:
        return index


class OutputReplaced(Kind):
    """sys.stdout = another stream"""

    values = ("latin-1", "ascii")

    def set(self, value: str) -> None:
        sys.stdout = open(os.devnull, "w", encoding=value)  # noqa: SIM115

    def __getitem__(self, index: int) -> str:
        return str(sys.stdout.encoding)


class ThreadStack(Kind):
    """threading.stack_size(n)"""

    values = (1 << 20, 1 << 21)

    def set(self, value: int) -> None:
        threading.stack_size(value)

    def __getitem__(self, index: int) -> int:
        # Asking for the size sets it to the default.
        size = threading.stack_size()
        threading.stack_size(size)
        return size


SIZE = contextvars.ContextVar("SIZE", default=0)


class ContextVariable(Kind):
    """contextvars.ContextVar.set"""

    def set(self, value: int) -> None:
        SIZE.set(value)

    def __getitem__(self, index: int) -> int:
        return SIZE.get()


LOCAL = threading.local()


class ThreadLocal(Kind):
    """an attribute of threading.local()"""

    def set(self, value: int) -> None:
        LOCAL.size = value

    def __getitem__(self, index: int) -> int:
        return getattr(LOCAL, "size", 0)


HEARD = [0]


class SignalHandler(Kind):
    """signal.signal(SIGUSR1, f), where samples raise it"""

    def set(self, value: int) -> None:
        def hear(number: int, frame: Any) -> None:
            HEARD[0] = value

        signal.signal(signal.SIGUSR1, hear)

    def __getitem__(self, index: int) -> int:
        # Without a handler the signal would end the process.
        if callable(signal.getsignal(signal.SIGUSR1)):
            signal.raise_signal(signal.SIGUSR1)
        return HEARD[0]


class BrokenPipes(Kind):
    """signal.signal(SIGPIPE, SIG_DFL), as for `| head`"""

    values = (True, False)

    def set(self, value: bool) -> None:
        if value:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def __getitem__(self, index: int) -> str:
        return str(signal.getsignal(signal.SIGPIPE))


class BlockedSignals(Kind):
    """signal.pthread_sigmask"""

    values = (True, False)

    def set(self, value: bool) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK if value else signal.SIG_UNBLOCK, [signal.SIGUSR2])

    def __getitem__(self, index: int) -> str:
        return str(signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, []))


FORKED = [0]


class ForkHandler(Kind):
    """os.register_at_fork, whose function sets a global variable"""

    unseen = "there is no list of the functions that run in a fork"

    def set(self, value: int) -> None:
        def after_in_child() -> None:
            FORKED[0] = value

        os.register_at_fork(after_in_child=after_in_child)

    def __getitem__(self, index: int) -> int:
        return FORKED[0]


class BuiltinAdded(Kind):
    """builtins.f = f, as by gettext.install and line_profiler"""

    def set(self, value: int) -> None:
        builtins.size_of_state = lambda: value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: size_of_state())  # type: ignore[name-defined]  # noqa: F821


class BuiltinPatched(Kind):
    """builtins.ascii = f"""

    def set(self, value: int) -> None:
        builtins.ascii = lambda what: str(value)

    def __getitem__(self, index: int) -> str:
        return ascii("é")


class ImportHook(Kind):
    """a finder in sys.meta_path, whose module samples import"""

    def set(self, value: int) -> None:
        class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
            def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
                return importlib.machinery.ModuleSpec(name, self) if name == "made_up" else None

            def exec_module(self, module: Any) -> None:
                module.SIZE = value

        sys.meta_path.append(Finder())

    def __getitem__(self, index: int) -> int:
        try:
            import made_up
        except ImportError:
            return 0
        size: int = made_up.SIZE
        return size


class PickleExtension(Kind):
    """copyreg.add_extension"""

    def set(self, value: int) -> None:
        copyreg.add_extension(__name__, "Kind", value)

    def __getitem__(self, index: int) -> str:
        return str(copyreg._extension_registry.get((__name__, "Kind")))  # type: ignore[attr-defined]
