"""Measures the code's language and shape, as ``make figures`` does.

It parses Rust with tree-sitter, and Python with ``ast`` and ``tokenize``. ``--list`` prints the locations of a figure.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

FOLDERS = ["cache", "coordinator", "bindings", "tools", "tests"]
LEFT_OUT = {"target", ".venv", "corpus", "artifacts"}
RUST = Parser(Language(tree_sitter_rust.language()))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_VERBS = (
    "is|was|are|were|it|has|had|have|they|he|a|an|the|comes|came|lies|lay|waits|goes|went|makes|made|takes|took|can|cannot|"
    "could|may|must|will|would|does|did|do|others|another|one|each|all|this|that|there|happens|happened|becomes|became|"
    "follows|remains|stays|stands|somebody|nobody|who|samples?|jobs?|workers?|users?|people|processes|streams?"
)
HEADLESS = re.compile(
    rf"\b[Ww]hat (?:{_VERBS})\b|\b[Ww]hoever\b|\bthose (?:that|who|which)\b|\bso (?:many|much) (?!that)\b"
    r"|(?:^|(?<=[.:;!?] ))(?:Who|Those|Of (?:what|those|these|which|it|them)|So (?:many|much)|As (?:many|much))\b"
    r"|\b(?:None|True|False|Some|Err)`?: "
)
"""A clause whose subject is not named: "what waits", "those that", "None: it has not begun"."""


@dataclass
class Figures:
    """Counts, and the locations that were counted."""

    words: int = 0
    code_lines: int = 0
    doc_lines: int = 0
    body_lines: int = 0
    body_comments: int = 0
    functions: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    types: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    locations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def found(self, name: str, location: str) -> None:
        self.locations[name].append(location)


def read_comment(figures: Figures, location: str, text: str) -> None:
    # Names in code are no words of a sentence.
    text = re.sub(r"`[^`]*`", "x", text)
    figures.words += len(re.findall(r"[A-Za-z']+", text))
    for match in HEADLESS.finditer(text):
        figures.found("headless", f"{location}: …{text[max(0, match.start() - 30) : match.end() + 40]}")


# --- Rust -----------------------------------------------------------------------------------------------------


def nodes(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        # They are reversed, so that nodes come in the order of the text.
        stack.extend(reversed(node.children))


def text_of(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode()


def rust_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yields runs of comment lines, each with the line that it begins on."""
    run: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*//[/!]? ?(.*)", line)
        if match:
            start = start if run else number
            run.append(match[1])
        elif run:
            yield start, " ".join(run)
            run = []
    if run:
        yield start, " ".join(run)


def is_in_type(node: Node) -> bool:
    outer = node.parent.parent if node.parent else None
    return outer is not None and outer.type in ("impl_item", "trait_item")


def read_rust(figures: Figures, path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    # A test or an example is a program of its own, whose types meet no others.
    is_test = "tests" in path.parts or "examples" in path.parts
    figures.files.append(sum(bool(line.strip()) for line in lines))
    figures.code_lines += figures.files[-1]
    figures.doc_lines += sum(bool(re.match(r"\s*//[/!]", line)) for line in lines)
    for line, comment in rust_comments(text):
        read_comment(figures, f"{path}:{line}", comment)
    for node in nodes(RUST.parse(text.encode()).root_node):
        location = f"{path}:{node.start_point[0] + 1}"
        if (
            node.type in ("struct_item", "enum_item", "trait_item", "type_item")
            and not is_test
            and not is_in_type(node)
        ):
            figures.types[text_of(node.child_by_field_name("name"))].append(location)
        elif node.type == "function_item":
            read_rust_function(figures, location, node, lines)
        elif node.type == "match_expression":
            body = node.child_by_field_name("body")
            arms = [] if body is None else [arm for arm in body.named_children if arm.type == "match_arm"]
            patterns = {text_of(arm.child_by_field_name("pattern")) for arm in arms}
            if patterns in ({"true", "false"}, {"true", "_"}, {"false", "_"}):
                figures.found("match-bool", location)


def read_rust_function(figures: Figures, location: str, node: Node, lines: list[str]) -> None:
    body, parameters = node.child_by_field_name("body"), node.child_by_field_name("parameters")
    result = node.child_by_field_name("return_type")
    if body is not None:
        inside = lines[body.start_point[0] + 1 : body.end_point[0]]
        figures.functions.append(sum(bool(line.strip()) for line in inside) or 1)
        figures.body_lines += sum(bool(line.strip()) for line in inside)
        figures.body_comments += sum(bool(re.match(r"\s*//(?![/!])", line)) for line in inside)
    if parameters is not None and sum(child.type == "parameter" for child in parameters.named_children) > 7:
        figures.found("arguments", location)
    signature = [inner for part in (parameters, result) if part is not None for inner in nodes(part)]
    if any(inner.type == "tuple_type" and inner.named_child_count >= 4 for inner in signature):
        figures.found("tuples", location)


# --- Python ---------------------------------------------------------------------------------------------------


def python_comments(text: str) -> Iterator[tuple[int, str]]:
    run: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if run and token.start[0] != last + 1:
            yield start, " ".join(run)
            run = []
        start = start if run else token.start[0]
        run.append(token.string.lstrip("# "))
        last = token.start[0]
    if run:
        yield start, " ".join(run)


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def read_python(figures: Figures, path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    lines = text.splitlines()
    figures.files.append(sum(bool(line.strip()) for line in lines))
    figures.code_lines += figures.files[-1]
    documented: set[int] = set()
    for doc in docstrings(tree):
        documented.update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
        value: Any = doc.value
        read_comment(figures, f"{path}:{doc.lineno}", " ".join(value.value.split()))
    figures.doc_lines += len(documented)
    for line, comment in python_comments(text):
        read_comment(figures, f"{path}:{line}", comment)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            inside = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
            body = [lines[number - 1] for number in inside if number not in documented and lines[number - 1].strip()]
            figures.functions.append(len(body) or 1)
            figures.body_lines += len(body)
            figures.body_comments += sum(line.lstrip().startswith("#") for line in body)
            if len(node.args.args) + len(node.args.posonlyargs) > 8:  # with self
                figures.found("arguments", f"{path}:{node.lineno}")


# --- the table ------------------------------------------------------------------------------------------------


def sources(folders: list[str]) -> Iterator[Path]:
    for folder in map(Path, folders):
        found = [folder] if folder.is_file() else sorted([*folder.rglob("*.rs"), *folder.rglob("*.py")])
        yield from (path for path in found if not LEFT_OUT & set(path.parts))


def measure(folders: list[str]) -> Figures:
    figures = Figures()
    for path in sources(folders):
        (read_rust if path.suffix == ".rs" else read_python)(figures, path)
    for name, where in figures.types.items():
        if len(where) > 1:
            figures.found("homonyms", f"{name}: {', '.join(where)}")
    return figures


def spread(values: list[int]) -> str:
    if len(values) < 2:
        return "-"
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{cuts[49]:.0f} / {cuts[89]:.0f} / {cuts[98]:.0f} / {max(values)}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


def table(figures: Figures) -> list[tuple[str, str]]:
    count = {name: len(locations) for name, locations in figures.locations.items()}
    return [
        (
            "headless clauses per 1,000 words of comment",
            f"{1000 * count.get('headless', 0) / max(figures.words, 1):.1f}",
        ),
        ("type names that stand for several types", percent(count.get("homonyms", 0), len(figures.types))),
        ("comments, of the lines in function bodies", percent(figures.body_comments, figures.body_lines)),
        ("doc comments and docstrings, of all lines", percent(figures.doc_lines, figures.code_lines)),
        ("lines of a function, p50 / p90 / p99 / most", spread(figures.functions)),
        ("lines of a file, p50 / p90 / p99 / most", spread(figures.files)),
        ("`match` on a bool", str(count.get("match-bool", 0))),
        ("functions with more than 7 arguments", str(count.get("arguments", 0))),
        ("functions with tuples of 4 or more in the signature", str(count.get("tuples", 0))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=FOLDERS, metavar="FOLDER")
    names = ["headless", "homonyms", "match-bool", "arguments", "tuples"]
    parser.add_argument("--list", choices=names, help="print the locations of a figure")
    args = parser.parse_args()
    figures = measure(args.folders)
    if args.list:
        print("\n".join(figures.locations[args.list]))
        return
    for name, value in table(figures):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
