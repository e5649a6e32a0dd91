"""``python -m coprep run``: runs a program as Python does, with coprep's loader in the place of PyTorch's."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types
from typing import Any, NoReturn

from coprep._install import install

USAGE = """usage: python -m coprep run SCRIPT [ARGUMENTS...]
       python -m coprep run -m MODULE [ARGUMENTS...]

Run a program unchanged. Its torch.utils.data.DataLoader is coprep's, so that jobs with the same dataset share it.
"""


def run(arguments: list[str]) -> None:
    """Runs a script, or a module after ``-m``, with its arguments."""
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    given = arguments[is_module:]
    if not given or given[0].startswith("-"):
        _refuse(USAGE)
    install()
    try:
        if is_module:
            run_module(given[0], given[1:])
        else:
            run_script(given[0], given[1:])
    except SystemExit:
        raise
    except BaseException:
        _hide_own_frames()
        raise


def run_script(script: str, arguments: list[str]) -> None:
    """Runs a script as ``python script arguments`` does. It stays the main module, so that its classes are found."""
    # Python, too, leaves dots in it, since they may follow a link.
    path = os.path.join(os.getcwd(), script)
    sys.argv = [script, *arguments]
    if pkgutil.get_importer(path) is not None:
        # This is a folder or an archive, which contains a module ``__main__``.
        _begin_path(path)
        _run_as_main("__main__", alter_argv=False)
        return
    _begin_path(os.path.dirname(os.path.realpath(path)))
    code, loader = _code_of(path)
    main = _new_main()
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
    exec(code, main.__dict__)


def run_module(module: str, arguments: list[str]) -> None:
    """Runs a module as ``python -m module arguments`` does."""
    sys.argv = ["-m", *arguments]
    _run_as_main(module, alter_argv=True)


def _run_as_main(module: str, *, alter_argv: bool) -> None:
    _new_main()
    # The interpreter itself calls this function for -m.
    runpy._run_module_as_main(module, alter_argv)  # type: ignore[attr-defined]


def _begin_path(folder: str) -> None:
    """Makes the script's folder the first on the path, in the place of this program's folder."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _code_of(path: str) -> tuple[Any, Any]:
    try:
        if path.endswith(".pyc"):
            compiled = importlib.machinery.SourcelessFileLoader("__main__", path)
            return compiled.get_code("__main__"), compiled
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        _refuse(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
    # The script must not inherit the future statements of this file.
    code = compile(content, path, "exec", dont_inherit=True)
    return code, importlib.machinery.SourceFileLoader("__main__", path)


def _new_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins)
    if sys.version_info < (3, 14):
        main.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(message)
    raise SystemExit(2)


def _hide_own_frames() -> None:
    """Shows an exception of the program as if Python itself had called the program."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        here = inside = trace
        while here is not None:
            if here.tb_frame.f_code.co_filename == __file__:
                inside = here.tb_next
            here = here.tb_next
        error.__traceback__ = inside
        hook(kind, error, inside)

    sys.excepthook = show
