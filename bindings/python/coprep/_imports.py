"""Finds the imports of a source file without compiling it.

Compiling a file takes milliseconds, and a package has hundreds of files. Looking for the keywords takes a hundredth of
that. The result may contain too many imports, since text in strings and comments is searched too. It never misses one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import unicodedata
from collections.abc import Iterable, Iterator

Import = tuple[str, int, tuple[str, ...]]
"""Name of a module, level of a relative import, and names that are imported from the module."""

_SPACE = r"(?:[ \t\f]|\\\n)"
# A lookahead, so that a "from" in a text hides no "from" that follows it.
_FROM = re.compile(rf"\bfrom\b(?=((?:[.\w]|{_SPACE})*?)\bimport\b)")
_IMPORT = re.compile(r"\bimport\b")
_NAMES = re.compile(rf"(?:[.,*\w]|{_SPACE})*")
# A list in parentheses may have line breaks and comments anywhere.
_LISTED = re.compile(rf"{_SPACE}*\(((?:[,*\w\s\\]|#[^\n]*)*)")
_COMMENT = re.compile(r"#[^\n]*")
_BLANK = re.compile(r"[\s\\]+")


def imports_of(source: bytes) -> list[Import]:
    """Returns the imports anywhere in a source file, and maybe more.

    Raises:
        SyntaxError, ValueError: the bytes are not text in the encoding that they name.
    """
    text = importlib.util.decode_source(source)
    if not text.isascii():
        # Python normalizes names in the same way.
        text = unicodedata.normalize("NFKC", text)
    found: dict[Import, None] = {}
    handled: set[int] = set()
    for match in _FROM.finditer(text):
        base, end = match[1], match.end(1)
        if "\n" not in base and _BLANK.sub("", base):
            handled.add(end)
        # Otherwise the "from" may belong to a comment or to another statement, so "import" is also looked at by itself.
        name = _BLANK.sub("", base)
        if name:
            module = name.lstrip(".")
            found[(module, len(name) - len(module), tuple(_members(text, end + len("import"))))] = None
    for match in _IMPORT.finditer(text):
        if match.start() not in handled:
            found.update(((name, 0, ()), None) for name in _modules(text, match.end()))
    return list(found)


def _members(text: str, at: int) -> Iterator[str]:
    """Yields the names after ``from x import``."""
    listed = _LISTED.match(text, at)
    names = _COMMENT.sub("", listed[1]) if listed else _names(text, at)
    for part in names.split(","):
        words = part.replace("\\", " ").split()
        if words:
            yield words[0]


def _modules(text: str, at: int) -> Iterator[str]:
    """Yields the names after ``import``."""
    for part in _names(text, at).split(","):
        # Space may surround the dots of a name.
        words = re.sub(r"[\s\\]*\.[\s\\]*", ".", part).replace("\\", " ").split()
        if words and not words[0].startswith("."):
            yield words[0]


def _names(text: str, at: int) -> str:
    names = _NAMES.match(text, at)
    return names[0] if names else ""


def resolved(imports: Iterable[Import], package: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the full names of the imported modules, each with the names that are imported from it."""
    for name, level, members in imports:
        with contextlib.suppress(ImportError):
            yield importlib.util.resolve_name("." * level + name, package), members
