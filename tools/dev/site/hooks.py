"""Hooks for MkDocs: links to sources, and a site that loads nothing from another host."""

from __future__ import annotations

import logging
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[3]
DOCS = REPOSITORY / "docs"
log = logging.getLogger("mkdocs.hooks.coprep")

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)\)")
LOADS = {
    "img": "src",
    "script": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}
NAME = re.compile(r"<code>([^<\n]{1,32})</code>")
CSS_LOAD = re.compile(r"""(?:url\(|@import\s+)['"]?(?:https?:)?//""")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Names the source file where a page links to one: the site has the pages alone."""
    folder = (DOCS / page.file.src_uri).parent

    def name(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = Path(os.path.normpath(folder / target))
        if path.is_relative_to(DOCS):
            return match[0]
        if not path.exists():
            # A warning ends a strict build.
            log.warning("%s links to %s, which is not there", page.file.src_uri, target)
        named = path.relative_to(REPOSITORY)
        return f"`{named}`" if path.name in text or str(named) in text else f"{text} (`{named}`)"

    return LINK.sub(name, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Marks short pieces of code: browsers would break `--cache` in a narrow column after its first hyphen."""
    return NAME.sub(r'<code class="name">\1</code>', html)


class _Loads(HTMLParser):
    """Collects the addresses that a browser loads with a page. Links that a reader may follow are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        # The address of the page itself is a link that nobody loads.
        if given.get("rel") not in ("canonical", "alternate", "edit"):
            self.found.append(given.get(LOADS.get(tag, "")) or "")


def foreign_loads(site: Path) -> list[str]:
    """Returns the addresses on other hosts from which the pages and style sheets of a built site load something."""
    found = []
    for page in sorted(site.rglob("*.html")):
        parser = _Loads()
        parser.feed(page.read_text())
        found += [f"{page.relative_to(site)}: {a}" for a in parser.found if re.match(r"(https?:)?//", a)]
    for sheet in sorted(site.rglob("*.css")):
        found += [str(sheet.relative_to(site)) for _ in CSS_LOAD.finditer(sheet.read_text())]
    return found


def on_post_build(config: Any, **_: Any) -> None:
    """Ends a strict build where a page would load something from another host: people read it offline."""
    for load in foreign_loads(Path(config["site_dir"])):
        log.warning("a page loads something from another host: %s", load)
