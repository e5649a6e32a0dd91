"""What people are told about an identity: the values that count, where they are read, and what does not count."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from coprep._reach import Evaluation, Read
from coprep._reach.memory import ABSENT

_SECRET = re.compile(r"token|key|secret|passw|credential|auth", re.IGNORECASE)
_WORD = re.compile(r"[\w.\-]{1,32}")


class Told(NamedTuple):
    """A part of an identity, for people."""

    value: str
    """Its content: a number, a truth value or a short word. Empty for anything else, and for what may be a secret."""
    why: str
    """Why it counts: the line that reads it, or why all of an object counts."""


NOTHING = Told("", "")


class Described:
    """Describes the parts of an identity by what was found to count.

    Args:
        run: the evaluation that found it, or ``None`` if there is none, because that was too much.
    """

    def __init__(self, run: Evaluation | None, name_of: Callable[[Read], str]) -> None:
        self._opaque = {} if run is None else run.opaque
        self._reads: dict[str, Read] = {}
        for read in () if run is None else run.reads.values():
            self._reads.setdefault(name_of(read), read)

    def part(self, name: str) -> Told:
        """Describes the part with this name, or the whole of which it is a part."""
        read = self._reads.get(name)
        if read is not None:
            return Told(shown(read), why(read))
        outer = self._outer(name)
        if outer is not None:
            return Told("", why(outer))
        if name.startswith("code "):
            missing = [reason for path, reason in self._opaque.items() if path.startswith(name[5:]) or "." not in path]
            return Told("", missing[0] if missing else "")
        return NOTHING

    def _outer(self, name: str) -> Read | None:
        while name:
            cut = max(name.rfind("."), name.rfind("["))
            name = name[: max(cut, 0)]
            if name in self._reads:
                return self._reads[name]
        return None


def shown(read: Read) -> str:
    """Returns the value of what is read, if it is short and no secret."""
    value = read.value
    if _SECRET.search(read.path):
        return ""
    if value is ABSENT:
        return "absent"
    if read.how == "type":
        return f"of class {type(value).__qualname__}"
    if type(value) in (int, float, bool, type(None)):
        return repr(value)
    return value if type(value) is str and _WORD.fullmatch(value) else ""


def why(read: Read) -> str:
    if read.why:
        return f"counts whole, {read.why}" + (f", in {read.line}" if read.line else "")
    return f"read in {read.line}" if read.line else ""
