"""Make the parts of a wheel that maturin does not build, for ``maturin build`` to pack.

usage: python -m coprep_build [--target TRIPLE [--glibc VERSION] | --command FILE | --no-command]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coprep_build.command import build_command, make_script_folder, pack_command
from coprep_build.notices import write_notices


def main() -> None:
    parser = argparse.ArgumentParser(prog="coprep_build", description=__doc__)
    parser.add_argument("--target", metavar="TRIPLE", help="the Rust target to build the command for")
    parser.add_argument("--glibc", metavar="VERSION", help="the oldest glibc that the command must run with")
    parser.add_argument("--command", type=Path, metavar="FILE", help="pack this program as the command; build none")
    parser.add_argument("--no-command", action="store_true", help="only what a source distribution needs")
    options = parser.parse_args()
    write_notices()
    make_script_folder()
    if options.command:
        pack_command(options.command)
    elif not options.no_command:
        build_command(options.target, options.glibc)


if __name__ == "__main__":
    main()
