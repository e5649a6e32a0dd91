"""The help of the ``coprep`` command, and what it says of commands and options."""

from __future__ import annotations

import functools
import os
import re
import subprocess

from waiting import WAIT


def without_settings() -> dict[str, str]:
    """Returns the environment without the settings of coprep."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COPREP_")}


@functools.cache
def usage(command: str = "") -> str:
    """The help of ``coprep``, or of one of its commands."""
    shown = subprocess.run(
        ["coprep", *command.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=WAIT,
        env=without_settings(),
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def subcommands() -> set[str]:
    listed = usage().split("Commands:\n")[1].split("\n\n")[0]
    return set(re.findall(r"^  (\w+) ", listed, re.MULTILINE)) - {"help"}


def options(command: str) -> set[str]:
    return set(re.findall(r"(?<![\w`-])--[a-z][a-z-]*", re.sub(r"`[^`]*`", "", usage(command))))


def entry(command: str, option: str) -> str:
    """Returns the help of one option, in one line."""
    after = re.split(rf"^ +{option}\b(?!-)", usage(command), flags=re.MULTILINE)[1]
    return " ".join(re.split(r"^ +(?=--?\w)|^\w", after, flags=re.MULTILINE)[0].split())


def default(command: str, option: str) -> str:
    """Returns the default that the help tells, or an empty text."""
    found = re.search(r"\[default: (.*?)\]|, if it is not (\w+)", entry(command, option))
    return (found[1] or found[2]).replace("`", "") if found else ""


def values(command: str, option: str) -> list[str]:
    """Returns the possible values of an option."""
    text = entry(command, option)
    in_one_line = re.search(r"\[possible values: (.*?)\]", text)
    return in_one_line[1].split(", ") if in_one_line else re.findall(r" - (\w+): ", text)
