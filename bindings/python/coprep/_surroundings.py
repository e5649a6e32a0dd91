"""The environment and the arguments of the process, as far as code reads them.

They are of the process and not of a module, and jobs that share usually differ in some of them. So variables count by
the names that the code which reads the environment has as constants. If it has none, the names are computed, and all
variables count but those that launchers, shells and trackers set.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from coprep._bytecode import Uses

_ENVIRONMENT = ("environ", "environb", "getenv", "getenvb")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_LAUNCHERS = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|HOSTNAME|.*RANK|.*WORLD_SIZE|CUDA_VISIBLE_DEVICES|JOB_ID|"
    r"(COPREP|SLURM|OMPI|PMI|PMIX|PBS|LSB|MASTER|TORCHELASTIC|ROLE|RAY|WANDB|MLFLOW|COMET|CLEARML|TERM|SSH|TMUX|STY|"
    r"XDG_SESSION|WINDOWID|VSCODE|PYTEST|KUBERNETES|JUPYTER|JPY)(_.*)?"
)
"""Names of variables that launchers, shells and trackers set, and that differ between jobs which share."""


class Surroundings:
    """The variables and arguments that code reads."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._reads_all = False
        self._reads_arguments = False

    def note(self, uses: Uses, scope: dict[str, Any]) -> bool:
        """Notes what code reads. Returns whether it reads any.

        Args:
            uses: the names that the code reads.
            scope: the globals of the code.
        """
        reads = [(scope.get(path[0]), path[1:]) for path in uses.names]
        for used in uses.imports:
            module = sys.modules.get(used.module)
            reads += [(module, (*path, *used.members)) for path in used.reads or ((),)]
            reads += [(module, (member,)) for member in used.members]
        asks = any(_is_environment(value, path) for value, path in reads)
        if asks:
            names = {text for text in uses.strings if _NAME.fullmatch(text)}
            self._names |= names
            self._reads_all |= not names
        reads_arguments = any(value is sys.argv or (value is sys and path[:1] == ("argv",)) for value, path in reads)
        self._reads_arguments |= reads_arguments
        return asks or reads_arguments

    def found(self) -> Iterator[tuple[str, str]]:
        """Yields what was read, each by the name of its part."""
        names: Iterable[str] = self._names & os.environ.keys()
        if self._reads_all:
            names = [name for name in os.environ if _OF_LAUNCHERS.fullmatch(name) is None]
        yield from ((f"environment {name}", os.environ[name]) for name in sorted(names))
        if self._reads_arguments:
            yield "sys.argv", repr(sys.argv)


def _is_environment(value: Any, path: tuple[str, ...]) -> bool:
    if value is os:
        return bool(path) and path[0] in _ENVIRONMENT
    return any(value is getattr(os, name) for name in _ENVIRONMENT)
