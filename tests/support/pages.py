"""The pages of the documentation: their code, their tables, and texts in which numbers stand for any others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOP = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bindings/README.md", "tests/README.md")
]
CRATES = [ROOT / name for name in re.findall(r'"([\w/]+)",$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)]
"""The folders of the workspace's crates."""
# The page in `bindings` itself is the Python package's.
CRATE_PAGES = [crate / ("src/README.md" if crate.name == "bindings" else "README.md") for crate in CRATES]
PAGES = sorted(DOCS.rglob("*.md")) + TOP + CRATE_PAGES
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"(?P<mark><!-- runnable -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NUMBER = r"\d[\d.,]*"


class Block(NamedTuple):
    """A fenced piece of a page."""

    language: str
    text: str
    is_runnable: bool


def all_blocks(page: Path) -> list[Block]:
    return [Block(m["language"], m["text"], bool(m["mark"])) for m in FENCE.finditer(page.read_text())]


def blocks(page: Path, language: str) -> list[Block]:
    return [block for block in all_blocks(page) if block.language == language]


def prose(page: Path) -> str:
    """The page without its fenced pieces."""
    return FENCE.sub("", page.read_text())


def section(page: Path, title: str) -> str:
    """Returns the text between a heading and the next one, without its fenced pieces."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", prose(page), re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no heading {title}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of each row of the tables in a text, without the heads."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if re.match(r"\|[\s|:-]+$", line):
            # The row above is the head of this table.
            found.pop()
        elif line.startswith("| "):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def codes(text: str) -> list[str]:
    """Returns the parts of a text that are set as code."""
    return INLINE.findall(text)


def plain(text: str) -> str:
    """Returns a text in one line, with the texts of its links, and without marks."""
    return " ".join(re.sub(r"[`*]", "", _LINK.sub(r"\1", text)).split())


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def told_by(page: Path) -> str:
    return plain(prose(page))


def status_lines() -> list[str]:
    """Returns the lines of ``coprep status`` that the reference explains."""
    table = rows(section(DOCS / "reference" / "screens.md", "`coprep status`"))
    return [line for row in table for line in codes(row[0])]


def pattern(example: str) -> str:
    """Returns a regular expression for texts that are like an example.

    They may have any numbers, anything in the place of ``...``, and other spaces and line breaks. A noun after a number
    may be singular or plural.
    """
    pieces = re.findall(r"\.\.\.|\s+|\d[\d.,]*\d|\d|[A-Za-z]+|.", example.strip())
    return "".join(_like(piece, pieces[max(0, i - 2) : i]) for i, piece in enumerate(pieces))


def _like(piece: str, before: list[str]) -> str:
    if piece == "...":
        return ".*?"
    if piece.isspace():
        return r"\s+"
    if piece[0].isdigit():
        return _NUMBER
    follows_number = len(before) == 2 and before[0][0].isdigit() and before[1].isspace()
    if follows_number and len(piece) > 2:
        stems = {piece, piece.removesuffix("s"), piece.removesuffix("es")}
        return f"(?:{'|'.join(sorted(stems))})(?:e?s)?"
    return re.escape(piece)
