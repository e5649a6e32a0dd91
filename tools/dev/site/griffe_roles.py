"""Docstrings as the site shows them: references in reStructuredText become links, and each argument has its own row."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth):`~?([\w.]+)`")
LITERAL = re.compile(r"``([^`]+)``")
SEVERAL = re.compile(
    r"^(?P<indent> *)(?P<first>[a-z]\w*), (?P<others>[a-z]\w*(?:, [a-z]\w*)*): (?P<text>.*\n?(?:(?P=indent) +.*\n?)*)",
    re.MULTILINE,
)


class Roles(griffe.Extension):  # type: ignore[misc, unused-ignore]  # where griffe is not installed
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _rewritten(obj.docstring.value)


def _one_by_one(match: re.Match[str]) -> str:
    """Returns an entry for each of several arguments that a docstring explains together; the first one has the text."""
    indent, first, text = match["indent"], match["first"], match["text"].rstrip("\n")
    others = [f"{indent}{name}: see `{first}`." for name in match["others"].split(", ")]
    return "\n".join([f"{indent}{first}: {text}", *others, ""])


def _rewritten(text: str) -> str:
    text = SEVERAL.sub(_one_by_one, text)
    text = ROLE.sub(lambda m: f"[`{m[1]}`][coprep.{m[1]}]", text)
    return LITERAL.sub(r"`\1`", text)
