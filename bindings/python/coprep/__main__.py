"""The command line: ``python -m coprep`` is the ``coprep`` command.

``python -m coprep run`` runs a program with coprep's loader in the place of PyTorch's.

Usage: python -m coprep run SCRIPT [ARGUMENTS...], or python -m coprep run -m MODULE [ARGUMENTS...]
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def main() -> None:
    """Runs the command in place of this process, or a program in this process."""
    if sys.argv[1:2] == ["run"]:
        from coprep._run import run

        run(sys.argv[2:])
        return
    command = os.path.join(sysconfig.get_path("scripts"), "coprep")
    found = command if os.access(command, os.X_OK) else shutil.which("coprep")
    if found is None:
        sys.exit(f"the coprep command is neither at {command} nor on PATH: install the package again")
    os.execv(found, ["coprep", *sys.argv[1:]])


if __name__ == "__main__":
    main()
