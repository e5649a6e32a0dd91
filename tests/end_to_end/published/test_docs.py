"""Commands, options, settings, arguments and links that the pages name exist, and their Python compiles or runs.

``test_metrics.py`` looks at the metrics that they name, ``test_examples.py`` runs the complete scripts.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import coprep
import pytest
from command_help import options, subcommands, usage
from pages import CRATE_PAGES, CRATES, DOCS, PAGES, ROOT, blocks, codes, name_of, prose
from waiting import WAIT

from tools.dev.site import hooks

LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
RUNNABLE = "<!-- runnable -->"
INCLUDE = re.compile(r'--8<-- "(.+)"')
SEPARATORS = set(";&|()\n")
RESERVED = {"for", "do", "done", "while", "if", "then", "fi"}


# Commands.


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a piece of shell, without the variables that are set for it."""
    without_comments = re.sub(r"(?:^|(?<=\s))#.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(without_comments, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= SEPARATORS:
            if words:
                yield words
            words = []
        elif words or not (word in RESERVED or re.match(r"\w+=", word)):
            words.append(word)


def is_placeholder(word: str) -> bool:
    """``COMMAND`` and ``...`` stand for something else."""
    return word == "..." or word.isupper()


def wrong_with_coprep(words: list[str]) -> str | None:
    """Returns the mistake in the words after ``coprep``, or `None`."""
    command, *rest = words or ["..."]
    if is_placeholder(command) or command in ("--help", "--version"):
        return None
    if command not in subcommands():
        return f"coprep has no command {command}"
    given = rest[: rest.index("--")] if "--" in rest else rest
    named = {word.strip("[]").split("=")[0] for word in given if word.strip("[]").startswith("--")}
    unknown = named - options(command)
    return f"coprep {command} has no option {', '.join(sorted(unknown))}" if unknown else None


@functools.cache
def makefile() -> str:
    return (ROOT / "Makefile").read_text()


def wrong_with_make(words: list[str]) -> str | None:
    """Returns the mistake in the words after ``make``, or `None`."""
    targets = set(re.findall(r"^([a-z-]+):", makefile(), re.MULTILINE))
    settings = set(re.findall(r"\$\((?:or |if )?\$?\(?([A-Z]+)\)?", makefile()))
    for word in words:
        name, is_setting, _ = word.partition("=")
        if name not in (settings if is_setting else targets):
            return f"make has no {'setting' if is_setting else 'target'} {name}"
    return None


@functools.cache
def cargo_names() -> dict[str, set[str]]:
    """The names of the workspace's packages and programs, by the option of cargo that takes them."""
    manifests = "".join((crate / "Cargo.toml").read_text() for crate in CRATES)
    kinds = {"-p": "package", "--bin": r"\[bin\]"}
    return {
        option: set(re.findall(rf'^\[{kind}\]\nname = "(.+)"$', manifests, re.MULTILINE))
        for option, kind in kinds.items()
    }


def wrong_with_cargo(words: list[str]) -> str | None:
    """Returns the mistake in the words after ``cargo``, or `None`."""
    named = [(option, words[words.index(option) + 1]) for option in cargo_names() if option in words]
    return next((f"cargo has no {option} {name}" for option, name in named if name not in cargo_names()[option]), None)


def missing_path(words: list[str]) -> str | None:
    """Returns the mistake in a path of the repository among the words, or `None`."""
    paths = [word for word in words if re.match(r"(?:bindings|cache|coordinator|docs|tests|tools)/", word)]
    return next((f"there is no {path}" for path in paths if not (ROOT / path).exists()), None)


def wrong_with(words: list[str]) -> str | None:
    """Returns the mistake in a command of the project, or `None`. Of other commands only the paths are looked at."""
    program = Path(words[0]).name
    if missing := missing_path(words):
        return missing
    if program.startswith("python") and words[1:3] == ["-m", "coprep"]:
        return None if words[3:4] == ["run"] else wrong_with_coprep(words[3:])
    if program.startswith("python") and words[1:2] == ["-m"] and words[2].startswith("tests."):
        there = ROOT / words[2].replace(".", "/")
        return None if (there / "__main__.py").exists() else f"{words[2]} is no program"
    checks = {"coprep": wrong_with_coprep, "make": wrong_with_make, "cargo": wrong_with_cargo}
    return checks.get(program, lambda _: None)(words[1:])


def told_commands(page: Path) -> Iterator[list[str]]:
    for block in blocks(page, "bash"):
        yield from commands(block.text)
    for code in codes(prose(page)):
        if code.startswith(("coprep ", "make ", "cargo ", "python -m ", ".venv/bin/python -m ")):
            yield from commands(code)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    assert [wrong for words in told_commands(page) if (wrong := wrong_with(words))] == []


def test_commands_are_found() -> None:
    told = [words for page in PAGES for words in told_commands(page)]
    assert {words[1] for words in told if words[0] == "coprep" and len(words) > 1} >= subcommands()
    assert sum(words[0] == "make" for words in told) > 20
    assert sum(words[0] == "cargo" for words in told) > 4


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("coprep staus", "coprep has no command staus"),
        ("X=1 coprep serve --cach 1G  # a comment", "coprep serve has no option --cach"),
        ("make test; make tset", "make has no target tset"),
        ("make bench ONLI=coprep", "make has no setting ONLI"),
        ("python -m coprep warn data", "coprep has no command warn"),
        (".venv/bin/python -m tests.chaso", "tests.chaso is no program"),
        (".venv/bin/python -m pytest tests/end_to_end/test_docs.py", "there is no tests/end_to_end/test_docs.py"),
        ("cargo nextest run -p coprep-sheduler", "cargo has no -p coprep-sheduler"),
        ("cargo run --release -p coprep-benchmarks --bin simulat", "cargo has no --bin simulat"),
        ("for x in 1 2; do COPREP_COHORT=a:2 coprep warm --from $x -- --epochs 3 & done", None),
        ("coprep status --slow [N]", None),
    ],
)
def test_a_wrong_command_is_noticed(text: str, wrong: str | None) -> None:
    assert [found for words in commands(text) if (found := wrong_with(words))] == ([wrong] if wrong else [])


@pytest.mark.parametrize("command", sorted(subcommands()))
def test_the_reference_has_each_option(command: str) -> None:
    _, _, text = (DOCS / "reference" / "command-line.md").read_text().partition(f"\n## coprep {command}\n")
    told = set(re.findall(r"--[a-z][a-z-]*", text.split("\n## ")[0]))
    common = {"--help", "--socket"}
    assert text and told - common == options(command) - common


def test_settings_are_those_of_the_program() -> None:
    rows = re.findall(
        r"^\| ([^|]*) \| `?(COPREP_\w+)?`? *\|", (DOCS / "reference" / "settings.md").read_text(), re.MULTILINE
    )
    told = {option: variable for options, variable in rows for option in re.findall(r"--[a-z-]+", options)}
    shown = usage("serve")
    for option in options("serve") - {"--help", "--workers"}:
        entry = re.split(
            r"^ +(?=--)", re.split(rf"^ +{option}\b(?!-)", shown, flags=re.MULTILINE)[1], flags=re.MULTILINE
        )[0]
        variable = re.search(r"\[env: (\w+)=", entry)
        assert told.pop(option) == (variable[1] if variable else ""), option
    assert set(told) <= {"--workers"}, "another name of --cpus"


@functools.cache
def sources() -> str:
    files = [p for folder in ("bindings", "coordinator", "tools", "tests") for p in (ROOT / folder).rglob("*.[pr][ys]")]
    return "\n".join(p.read_text() for p in files if p != Path(__file__))


def test_variables_are_read_by_the_program() -> None:
    told = {name for page in PAGES for name in re.findall(r"\bCOPREP_[A-Z_]+\b", page.read_text())}
    assert len(told) > 10 and {name for name in told if f'"{name}"' not in sources()} == set()


# Python.


def wrong_with_python(text: str) -> list[str]:
    """Returns the names in a piece of Python that coprep does not have."""
    wrong = []
    for node in ast.walk(ast.parse(textwrap.dedent(text))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "coprep":
            wrong += [] if hasattr(coprep, node.attr) else [f"coprep has no {node.attr}"]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("DataLoader", "coprep.DataLoader"):
            known = inspect.signature(coprep.DataLoader).parameters
            given = [keyword.arg for keyword in node.keywords if keyword.arg]
            wrong += [f"DataLoader has no argument {name}" for name in given if name not in known]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_compiles_and_names_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        include = INCLUDE.fullmatch(block.text.strip())
        text = (DOCS / include[1]).read_text() if include else block.text
        assert wrong_with_python(text) == [], text
    for name in re.findall(r"`coprep\.([A-Za-z]\w*)", prose(page)):
        assert hasattr(coprep, name), f"coprep has no {name}"


def test_a_wrong_name_is_noticed() -> None:
    text = "coprep.Loader(x)\nloader = DataLoader(x, shufle=True)"
    assert sorted(wrong_with_python(text)) == ["DataLoader has no argument shufle", "coprep has no Loader"]
    with pytest.raises(SyntaxError):
        wrong_with_python("for x in loader")


RUN = [(page, block.text) for page in PAGES for block in blocks(page, "python") if block.is_runnable]


@pytest.mark.parametrize(("page", "text"), RUN, ids=[name_of(page) for page, _ in RUN])
def test_what_is_marked_runs(page: Path, text: str, socket_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(text)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=WAIT, cwd=tmp_path)
    assert run.returncode == 0 and not run.stderr, run.stderr
    assert not re.search(r"\bprint\(", text) or run.stdout, "it prints nothing"


def test_the_marks_are_found() -> None:
    marked = [page for page in PAGES for _ in range(page.read_text().count(f"\n{RUNNABLE}\n"))]
    assert [page for page, _ in RUN] == marked and DOCS / "tutorial" / "first-loader.md" in marked


# Links.


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as Python-Markdown and GitHub make them."""
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in HEADING.findall(prose(page))]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}


def broken_links(page: Path, text: str) -> Iterator[str]:
    for match in LINK.finditer(text):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"\w+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            yield match["target"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, prose(page))) == []


def test_a_broken_link_is_noticed() -> None:
    page = DOCS / "index.md"
    assert list(broken_links(page, "[a](tutorial/first-loader.md) [b](how-to/find-waits.md#in-the-script)")) == []
    wrong = ["tutorial/no.md", "#no", "how-to/find-waits.md#no"]
    assert list(broken_links(page, " ".join(f"[x]({target})" for target in wrong))) == wrong


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "tools" / "dev" / "site" / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    assert set(re.findall(r"[\w/-]+\.md", navigation)) == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


# Results.

TABLES = DOCS / "results" / "tables"
RESULTS = sorted(page for page in (DOCS / "results").glob("*.md") if page.name != "index.md")
FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def figures(text: str) -> set[str]:
    """Returns the numbers in the tables of a text."""
    return {figure for line in text.splitlines() if line.startswith("|") for figure in FIGURE.findall(line)}


def shown_figures(text: str) -> set[str]:
    """Returns the numbers in the main table, the bars and the comparison with others of a page of results."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    compared = ("Result\n", "Bars\n", "Other loaders\n")
    return set().union(*(figures(section) for section in sections if section.startswith(compared)))


@pytest.mark.parametrize("page", RESULTS, ids=[str(page.relative_to(ROOT)) for page in RESULTS])
def test_the_figures_of_a_page_of_results_are_in_its_complete_tables(page: Path) -> None:
    shown = shown_figures(page.read_text())
    assert shown and shown - figures((TABLES / page.name).read_text()) == set()


def test_a_figure_that_the_complete_tables_lack_is_noticed() -> None:
    page = "## Result\n| a | 1,144 | 0.5 (0.4-0.6) |\n## Method\n| b | 7 |\n## Bars\n| c | 9 x |\n"
    assert shown_figures(page) - figures("| a | 1,145 | 0.5 (0.4-0.6) |") == {"1,144", "9"}


@pytest.mark.parametrize("page", RESULTS, ids=[str(page.relative_to(ROOT)) for page in RESULTS])
def test_a_page_of_results_and_its_complete_tables_link_to_each_other(page: Path) -> None:
    beginning = (TABLES / page.name).read_text().split("\n\n")[1]
    assert f"](../{page.name})" in beginning and f"](tables/{page.name})" in page.read_text()


# Sources.


def missing_names(row: str) -> list[str]:
    """Returns the functions that a row of a walk names and that the file before them does not define."""
    missing = []
    for target, names in re.findall(r"\]\((\.\./\.\./[^)]+)\): ((?:`[^`]+`(?:, )?)+)", row):
        source = (DOCS / "explanation" / target).read_text()
        for name in re.findall(r"`([^`]+)`", names):
            *owners, function = re.split(r"::|\.", name)
            defines = rf"(?:fn|def|class) {function}\b"
            owns = [rf"(?:impl|class|struct|trait)\b[^\n]*\b{owner}\b" for owner in owners]
            if not all(re.search(pattern, source) for pattern in [defines, *owns]):
                missing.append(name)
    return missing


def walk_rows(text: str) -> list[str]:
    return re.findall(r"^\| \d+ \| .*$", text, re.MULTILINE)


def test_the_walks_name_functions_that_exist() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text()
    assert [name for row in walk_rows(page) for name in missing_names(row)] == []


def test_the_walks_have_as_many_steps_as_they_say() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text()
    shared, _, rest = page.split("\n## One sample\n")[1].partition("\n### By the coordinator's threads\n")
    threads, _, rest = rest.partition("\n### By a process pool\n")
    pool, _, rest = rest.partition("\n### Hops\n")
    hops, _, batch = rest.partition("\n## One batch\n")
    batch = batch.split("\n## ")[0]
    walks = [shared + threads, shared + pool, batch]
    files = [len(set(re.findall(r"\]\(\.\./\.\./([^)]+)\)", walk))) for walk in walks]
    told = re.findall(r"^\| .* \| (\d+) \| \d+ \| (\d+) \| ", hops, re.MULTILINE)
    assert told == [(str(len(walk_rows(walk))), str(count)) for walk, count in zip(walks, files, strict=True)]


def test_a_function_that_is_gone_is_noticed() -> None:
    row = (
        "| 1 | [`x`](../../cache/shared_memory/src/sync.rs): `Nobody::does`; "
        "[`y`](../../cache/shared_memory/src/futex.rs): `wait` | a → b | job |"
    )
    assert missing_names(row) == ["Nobody::does"]


@pytest.mark.parametrize("page", CRATE_PAGES, ids=name_of)
def test_the_page_of_a_crate_names_each_of_its_modules(page: Path) -> None:
    source = page.parent if page.parent.name == "src" else page.parent / "src"
    first_cells = re.findall(r"^\| (`[^|]+) \|", page.read_text(), re.MULTILINE)
    told = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert sorted(told) == sorted({path.stem for path in source.iterdir() if path.suffix != ".md"} - {"lib"})


# The site.


def test_a_page_that_loads_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<link rel="canonical" href="https://a/page.html"><link rel="stylesheet" href="//b/x.css"><a href="https://c"></a>'
        '<script src="https://d/x.js"></script><img src="x.svg"><script src="x.js"></script>'
    )
    (tmp_path / "x.css").write_text("a { background: url(data:image/png;base64,x) } @import 'https://e/x.css';")
    assert hooks.foreign_loads(tmp_path) == ["page.html: //b/x.css", "page.html: https://d/x.js", "x.css"]


def test_a_link_to_a_source_becomes_its_name(caplog: pytest.LogCaptureFixture) -> None:
    class Page:
        class file:  # noqa: N801 - MkDocs' name
            src_uri = "explanation/chaos.md"

    links = (
        "[see](../../Makefile) [`task_table`](../../cache/shared_memory/src/task_table.rs) "
        "[a](../index.md) [b](../../no.rs)"
    )
    shown = "see (`Makefile`) `task_table` (`cache/shared_memory/src/task_table.rs`) [a](../index.md) b (`no.rs`)"
    assert hooks.on_page_markdown(links, page=Page) == shown
    assert caplog.messages == ["explanation/chaos.md links to ../../no.rs, which is not there"]
