"""Gather the licences of everything that is linked into the wheel's programs, into one file.

Each crate is used under one of the licences that it offers. Most offer Apache-2.0, whose text is coprep's own licence
and stands in the wheel once. Of any other licence the text is taken from the crate, since it names the authors.
Anything that is not understood (a new licence, a crate that compiles C) is an error: a person must look at it.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coprep_build.command import ROOT

NOTICES = ROOT / "THIRD-PARTY-NOTICES.md"
PROGRAMS = ("coprep-python", "coprep-cli")
"""The crates of the native module and of the command."""
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")

OURS = "Apache-2.0"
"""coprep's licence."""
PHRASES = {
    OURS: "Apache License",
    "MIT": "Permission is hereby granted, free of charge",
    "BSD-3-Clause": "Neither the name of",
    "BSD-2-Clause": "BSD 2-Clause License",
    "Zlib": "This software is provided 'as-is'",
    "BSL-1.0": "Boost Software License",
    "Unicode-3.0": "UNICODE LICENSE V3",
    # Its sources, which nobody here changes, must be offered: see the introduction below.
    "MPL-2.0": "Mozilla Public License Version 2.0",
    "ISC": "Permission to use, copy, modify, and/or distribute this software for any purpose",
}
"""Licences that may be linked, the preferred ones first, with words by which their texts are known."""

VENDORED = {
    "ring": (
        "BoringSSL and fiat-crypto",
        "The crate ring holds code of both. That of BoringSSL is under Apache-2.0 or, in older files, ISC.",
        ("LICENSE", "LICENSE-other-bits", "third_party/fiat/LICENSE"),
    ),
    "turbojpeg-sys": (
        "libjpeg-turbo",
        "This software is based in part on the work of the Independent JPEG Group.",
        ("libjpeg-turbo/LICENSE.md", "libjpeg-turbo/README.ijg"),
    ),
    "zstd-sys": (
        "Zstandard",
        "It is under this licence or the GPL-2.0, of which the first is chosen.",
        ("zstd/LICENSE",),
    ),
}
"""Crates that compile C, with the library, the sentence that its licence asks for, and the files of its licence."""

INTRODUCTION = """\
# Third-party notices

The wheel contains two programs, the native module and the `coprep` command, which are linked with the works below.
coprep itself, and every work below that says Apache-2.0, is under the licence in the file `LICENSE` beside this one.

Both programs are linked with the standard library of Rust (https://www.rust-lang.org; used under Apache-2.0). Wheels
that are built by zig are also linked with LLVM's libunwind (Apache-2.0 WITH LLVM-exception) and with zig's runtime
(MIT, Copyright (c) Zig contributors).

Works under MPL-2.0 are linked unchanged. Their sources are published on https://crates.io, by name and version.
"""


class UnknownLicence(Exception):
    """A person must look at a crate's licence before it is shipped."""


@dataclass(frozen=True)
class Crate:
    """A crate that is linked."""

    name: str
    version: str
    expression: str
    authors: tuple[str, ...]
    folder: Path
    compiles_c: bool

    @property
    def licences(self) -> tuple[str, ...]:
        """The licences it is used under: all of them apply."""
        return chosen(self.expression, self.name)


def write_notices() -> None:
    """Writes :data:`NOTICES`.

    Raises:
        UnknownLicence: a crate's licence, or the licence of C code in it, is not known here.
    """
    NOTICES.write_text("".join(f"{line}\n".rstrip(" ") for line in page(linked_crates())))


def page(crates: Sequence[Crate]) -> Iterator[str]:
    """Yields the lines of the file."""
    yield from INTRODUCTION.splitlines()
    for crate in crates:
        if crate.compiles_c:
            yield from vendored(crate)
    yield from ("", "## Rust crates", "", "| crate | version | used under |", "|---|---|---|")
    for crate in crates:
        yield f"| {crate.name} | {crate.version} | {' and '.join(crate.licences)} |"
    users: dict[str, list[str]] = defaultdict(list)
    for crate in crates:
        for text in texts(crate):
            users[text].append(crate.name)
    for text, names in users.items():
        yield from ("", f"## {', '.join(dict.fromkeys(names))}", "", *indented(text))


def vendored(crate: Crate) -> Iterator[str]:
    """Yields the lines of a C library that is part of a crate."""
    if crate.name not in VENDORED:
        raise UnknownLicence(f"{crate.name} compiles C: add the library and its licence to VENDORED in {__file__}")
    library, sentence, files = VENDORED[crate.name]
    yield from ("", f"## {library}", "", sentence)
    for file in files:
        yield from (
            "",
            f"Its file {Path(file).name}:",
            "",
            *indented((crate.folder / file).read_text(errors="replace")),
        )


def indented(text: str) -> Iterator[str]:
    """Yields the lines of a text, as Markdown shows it unchanged."""
    return (f"    {line}".rstrip() for line in text.strip("\n").splitlines())


def texts(crate: Crate) -> Iterator[str]:
    """Yields the texts that the licences of a crate ask for."""
    files = [
        file.read_text(errors="replace")
        for file in sorted(crate.folder.iterdir())
        if file.is_file() and re.match(r"(licen[cs]e|copying|notice|unlicense)", file.name, re.IGNORECASE)
    ]
    yield from (text for text in files if text.lstrip().upper().startswith("NOTICE"))
    for licence in crate.licences:
        if licence != OURS:
            found = [text for text in files if PHRASES[licence].lower() in _running(text)]
            yield tidied(found[0] if found else standard_text(licence, crate))


def _running(text: str) -> str:
    """Returns a text in one line and lower case. Licences break lines anywhere, and some stand in comments."""
    return " ".join(word for line in text.lower().splitlines() for word in line.lstrip("/* ").split())


def tidied(text: str) -> str:
    """Returns a text without indentation and outer blank lines, so that equal licences are printed once."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def standard_text(licence: str, crate: Crate) -> str:
    """Returns the text of a licence that a crate names but does not carry."""
    if licence != "MIT":
        raise UnknownLicence(f"{crate.name} {crate.version} carries no text of its licence {licence}")
    authors = ", ".join(re.sub(r"\s*<.*?>", "", author) for author in crate.authors)
    return MIT.format(authors=authors or f"the authors of {crate.name}")


def linked_crates() -> list[Crate]:
    """Returns the crates of other people that are linked into either program, on any target, by name."""
    found = {crate for target in TARGETS for crate in _linked(_metadata(target))}
    return sorted(found, key=lambda crate: (crate.name, crate.version))


def _metadata(target: str) -> Any:
    words = ["cargo", "metadata", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def _linked(metadata: Any) -> Iterator[Crate]:
    """Yields the crates that the programs depend on, except crates that only run during the build."""
    packages = {package["id"]: package for package in metadata["packages"]}
    depends = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    waiting = [identity for identity, package in packages.items() if package["name"] in PROGRAMS]
    seen = set(waiting)
    for identity in iter(lambda: waiting.pop() if waiting else None, None):
        package = packages[identity]
        if package["source"] is not None:
            builders = {packages[other]["name"] for other in _of_kind(depends[identity], "build")}
            yield _crate(package, builders)
        for other in _of_kind(depends[identity], None):
            if other not in seen and not _is_macro(packages[other]):
                seen.add(other)
                waiting.append(other)


def _of_kind(dependencies: Iterable[Any], wanted: str | None) -> Iterator[str]:
    """Yields the packages that are needed at run time (``None``), or to build (``"build"``)."""
    for dependency in dependencies:
        if any(kind["kind"] == wanted for kind in dependency["dep_kinds"]):
            yield dependency["pkg"]


def _is_macro(package: Any) -> bool:
    return any("proc-macro" in target["kind"] for target in package["targets"])


def _crate(package: Any, builders: set[str]) -> Crate:
    return Crate(
        name=package["name"],
        version=package["version"],
        expression=package["license"] or "",
        authors=tuple(package["authors"]),
        folder=Path(package["manifest_path"]).parent,
        compiles_c=not builders.isdisjoint({"cc", "cmake"}),
    )


def chosen(expression: str, name: str) -> tuple[str, ...]:
    """Returns the licences to use of an SPDX expression: the choice that comes first in :data:`PHRASES`."""
    order = list(PHRASES)
    known = [choice for choice in choices(expression) if choice <= PHRASES.keys()]
    if not known:
        raise UnknownLicence(f"{name}: its licence '{expression}' is not among those that may be linked: {order}")
    ranked = [tuple(sorted(choice, key=order.index)) for choice in known]
    return min(ranked, key=lambda choice: [order.index(licence) for licence in choice])


def choices(expression: str) -> set[frozenset[str]]:
    """Returns the sets of licences of which an SPDX expression asks to fulfil one.

    >>> sorted(map(sorted, choices("(MIT OR Apache-2.0) AND Unicode-3.0")))
    [['Apache-2.0', 'Unicode-3.0'], ['MIT', 'Unicode-3.0']]
    """
    # Older crates write "/" for OR.
    words = re.findall(r"[()]|[^\s()]+(?: WITH [^\s()]+)?", expression.replace("/", " OR "))
    words.reverse()
    return _alternatives(words)


def _alternatives(words: list[str]) -> set[frozenset[str]]:
    found = _conjunction(words)
    while words and words[-1] == "OR":
        words.pop()
        found |= _conjunction(words)
    return found


def _conjunction(words: list[str]) -> set[frozenset[str]]:
    found = _operand(words)
    while words and words[-1] == "AND":
        words.pop()
        found = {left | right for left, right in itertools.product(found, _operand(words))}
    return found


def _operand(words: list[str]) -> set[frozenset[str]]:
    if not words:
        return set()
    word = words.pop()
    if word != "(":
        return {frozenset([word])}
    found = _alternatives(words)
    words.pop()
    return found


MIT = """\
MIT License

Copyright (c) {authors}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
