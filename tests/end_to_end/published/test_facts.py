"""Facts that the pages state about the sources: paths, names, lists and versions."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import coprep
import pytest
from command_help import options, subcommands
from pages import CRATE_PAGES, CRATES, DOCS, PAGES, ROOT, blocks, codes, name_of, plain, prose, rows, section, told_by
from sources import sources_that_end, text_of

from tools.dev.packaging import builds, checks

TESTS = ROOT / "tests" / "README.md"
EXPLANATION, HOW_TO, REFERENCE = DOCS / "explanation", DOCS / "how-to", DOCS / "reference"
CHAOS, INSTALL = EXPLANATION / "chaos.md", HOW_TO / "install.md"
GUIDES = [page for page in PAGES if DOCS / "results" not in page.parents]
"""The pages that do not report measurements."""


# Paths.

PATH = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:rs|pyi?|sh|toml|txt|ya?ml|jsonl?|md|log|err)|(?:[\w.-]+/)+[\w.-]*")
RATE = re.compile(r"[\w ]+/s")
ELSEWHERE = re.compile(
    r"""
    target/.* | \.dist-info/.* | coordinator\.sock\.log |                      # written by builds and programs
    (?:findings|history|stacks)\.txt | (?:plan|status)\.json | job.*\.(?:jsonl|err) | report\.(?:json|md) |
    (?:train|first)\.py | requirements\.txt | prometheus\.yml |                # the reader's
    references/.* | imagenet/.* | test/.* | test_state_dict\.py                # of other projects
    """,
    re.VERBOSE,
)


def missing_paths(text: str) -> list[str]:
    """Returns the paths in a text that are neither in the repository nor the end of a path in it."""
    named = [code for code in codes(text) if PATH.fullmatch(code) and not RATE.fullmatch(code)]
    inner = [code for code in named if not ELSEWHERE.fullmatch(code)]
    return [path for path in inner if not (ROOT / path).exists() and not sources_that_end(path)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_lead_somewhere(page: Path) -> None:
    # A link shows what it likes, and `test_docs.py` looks at its target.
    assert missing_paths(re.sub(r"\[[^\]]*\]\([^)]*\)", "", prose(page))) == []


def test_a_path_that_leads_nowhere_is_noticed() -> None:
    good = "`coordinator/src/registry/flights.rs` `mapping.rs` `handover/doorbell.rs` `tests/end_to_end` `cache/`"
    assert missing_paths(good) == []
    bad = ["coordinator/src/flights.rs", "maping.rs", "doorbell/handover.rs", "tests/end_to_ends", "cash/"]
    assert missing_paths(" ".join(f"`{path}`" for path in bad)) == bad


def test_folders_for_what_is_built_are_those_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = {name for page in PAGES for code in codes(prose(page)) for name in re.findall(r"^target/([\w-]+)", code)}
    assert len(told) > 4 and [name for name in told if not re.search(rf"TARGET\)+/{name}\b", makefile)] == []


def test_pages_that_the_sources_name_exist() -> None:
    named = set(re.findall(r"\bdocs/[\w/-]+\.md\b", text_of(".rs", ".py", ".sh")))
    assert len(named) > 2 and [name for name in named if not (ROOT / name).exists()] == []


# Names.


def manifest(crate: Path) -> str:
    return (crate / "Cargo.toml").read_text()


def is_module(crate: str, *modules: str) -> bool:
    folders = [folder for folder in CRATES if f'name = "{crate.replace("_", "-")}"\n' in manifest(folder)]
    inner = [folder.joinpath("src", *(modules or ("lib",))) for folder in folders]
    return any(path.with_suffix(".rs").exists() or (path / "mod.rs").exists() for path in inner)


@functools.cache
def words_of_rust() -> set[str]:
    return set(re.findall(r"\w+", text_of(".rs")))


def unknown_names(text: str) -> list[str]:
    """Returns the names with colons that have a module or a word that the sources do not have."""
    unknown = []
    for name in (name for code in codes(text) for name in re.findall(r"\w+(?:::\w+)+", code)):
        words = name.split("::")
        modules = [word for word in words if word.islower()] if words[0].startswith("coprep_") else []
        if not (words_of_rust().issuperset(words) and (not modules or is_module(*modules))):
            unknown.append(name)
    return unknown


def test_names_of_rust_exist() -> None:
    assert [name for page in GUIDES for name in unknown_names(prose(page))] == []
    assert unknown_names("`coprep_costs::balance`, `StagingPool::on_free`") == []
    wrong = ["coprep_costs::scheduler", "StagingPool::on_fire"]
    assert unknown_names(" ".join(f"`{name}`" for name in wrong)) == wrong


def public(owner: object) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


@functools.cache
def known_arguments() -> set[str]:
    methods = [getattr(coprep.Pipeline, name) for name in public(coprep.Pipeline)]
    functions: list[Callable[..., object]] = [coprep.DataLoader, coprep.DataLoader.stats, coprep.status]
    functions += [coprep.Tokens, coprep.Arrays, coprep.Files, coprep.WebDataset, coprep.Parquet]
    functions += filter(inspect.isroutine, methods)
    # The last three are arguments of PyTorch's, Lightning's and pyarrow's.
    return {name for f in functions for name in inspect.signature(f).parameters} | {
        "replacement",
        "use_distributed_sampler",
        "row_group_size",
    }


def unknown_arguments(text: str) -> list[str]:
    """Returns the arguments that no function of coprep has, and the methods that no loader or pipeline has."""
    known = known_arguments()
    unknown = []
    # The settings of a variable are no arguments.
    text = re.sub(r"(?ms)^`FAKE_CUDA` has settings.*", "", text)
    for code in codes(text):
        # `--option=x` is an option, and `a::b=debug` a filter of the log.
        unknown += [name for name in re.findall(r"(?<![\w.:/'\"-])([a-z_]\w*)=(?!=)", code) if name not in known]
        unknown += [name for name in re.findall(r"^\.(\w+)\(", code) if not hasattr(coprep.Pipeline, name)]
        unknown += [name for name in re.findall(r"\bloader\.(\w+)\(", code) if not hasattr(coprep.DataLoader, name)]
    return unknown


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_arguments_and_methods_in_the_text_exist(page: Path) -> None:
    assert unknown_arguments(prose(page)) == []


def test_an_argument_that_does_not_exist_is_noticed() -> None:
    text = "`shufle=True`, `decode(scale=2, scald=False)`, `.centre_crop(8)`, `loader.stat()`, `DataLoader(x, sed=1)`"
    assert unknown_arguments(text) == ["shufle", "scald", "centre_crop", "stat", "sed"]


def wrong_attributes(code: str) -> list[str]:
    """Returns the attributes that a piece of Python uses of a pipeline or a loader, and that these do not have."""
    owners = {"loader": coprep.DataLoader, "coprep.ImageFolder(": coprep.Pipeline, "coprep.Files(": coprep.Pipeline}
    wrong = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            value = ast.unparse(node.value)
            of = [kind for name, kind in owners.items() if value == name or ("(" in name and value.startswith(name))]
            wrong += [node.attr for kind in of if not hasattr(kind, node.attr)]
    return wrong


def test_code_uses_attributes_that_exist() -> None:
    code = [block.text for page in GUIDES for block in blocks(page, "python") if not block.text.startswith("--8<--")]
    assert [name for text in code for name in wrong_attributes(text)] == []
    assert wrong_attributes("loader.stat()\nx = coprep.ImageFolder(p).decode().cropped(3)") == ["stat", "cropped"]


OF_CAMPAIGN = {"--only", "--plan", "--histories", "--help"}
OF_OTHERS = {"chaos.md": {*OF_CAMPAIGN, "--features"}, "torch-behaviour.md": {"--timeout"}}
"""Options of other programs that a page names in its text."""


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_options_in_the_text_exist(page: Path) -> None:
    known = OF_OTHERS.get(page.name, set()).union({"--help"}, *map(options, subcommands()))
    # `test_docs.py` looks at whole commands.
    named = [code for code in codes(prose(page)) if not re.match(r"(?:cargo|\S*python) ", code)]
    told = {option for code in named for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code)}
    assert told - known == set()


def test_options_of_the_campaign_exist() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert set(re.findall(r"(?<![\w-])--[a-z]+", shown.stdout)) >= OF_CAMPAIGN


def test_the_api_page_has_each_public_name() -> None:
    page = (REFERENCE / "python-api.md").read_text()
    names = re.findall(r"^::: coprep\.(\w+)$", page, re.MULTILINE)
    assert sorted(names) == sorted(set(coprep.__all__) - {"__version__"})
    (members,) = re.findall(r"members: \[(.*)\]", page)
    assert set(members.split(", ")) == public(coprep.DataLoader) | {"__iter__", "__len__"}


def test_the_errors_page_has_each_exception_and_warning() -> None:
    table = rows(section(REFERENCE / "errors.md", "Exceptions and warnings"))
    told = {name: row[1] for row in table for name in re.findall(r"`coprep\.(\w+)`", row[0])}
    kinds = {name: kind for name in coprep.__all__ if isinstance(kind := getattr(coprep, name), type)}
    errors = {name: kind for name, kind in kinds.items() if issubclass(kind, Exception)}
    assert told.keys() == errors.keys()
    assert {name for name in errors if issubclass(errors[name], Warning)} == {n for n in told if n.endswith("Warning")}
    assert "base of the two above" in told["CoprepError"]
    assert all(issubclass(errors[name], coprep.CoprepError) for name in ("SampleError", "TimeoutError"))
    attributes = {name for name in vars(coprep.SampleError("", 0, "", "")) if not name.startswith("_")}
    assert set(re.findall(r"`\.(\w+)`", told["SampleError"])) == attributes


def test_the_operators_are_those_of_a_pipeline() -> None:
    operators = {name for name in public(coprep.Pipeline) if inspect.isroutine(getattr(coprep.Pipeline, name))}
    of_images = listed(REFERENCE / "images.md", "Operators") | {"decode"}
    others = listed(REFERENCE / "arrays.md", "Operators") | listed(REFERENCE / "audio.md", "Operators")
    assert of_images | others == operators
    steps = " ".join(row[1] for row in rows(prose(HOW_TO / "native-images.md")))
    assert set(re.findall(r"`\.(\w+)\(", steps)) == of_images


def test_the_endings_of_images_are_those_of_the_sources() -> None:
    (told,) = re.findall(r"`ImageFolder` takes files that end in (.*), in any case", prose(REFERENCE / "images.md"))
    (known,) = re.findall(r"const DECODED: .* = \[(.*)\];", (ROOT / "coordinator/pipeline/src/source.rs").read_text())
    assert codes(told) == re.findall(r'"(.*?)"', known)


def test_the_report_of_bench_has_the_rows_and_columns_that_are_told() -> None:
    page = HOW_TO / "find-waits.md"
    report = (ROOT / "tools" / "bench" / "src" / "report.rs").read_text()
    (shown,) = [block.text for block in blocks(page, "") if block.text.startswith("With ")]
    told = [code for row in rows(section(page, "How fast it goes here: `coprep bench`")) for code in codes(row[0])]
    assert len(told) == 8 and [name for name in told if f'"{name}"' not in report or name not in shown] == []
    loaders = set(re.findall(r'BenchedLoader::\w+ => "(.*)"', report))
    assert loaders == {name for name in told if name.startswith(("coprep", "PyTorch"))}


def test_the_alert_that_is_shown_is_among_the_alerts() -> None:
    (shown,) = [block.text for block in blocks(HOW_TO / "monitor.md", "") if "coprep_job" in block.text]
    assert " ".join(shown.split()) in " ".join((DOCS / "grafana" / "alerts.yml").read_text().split())


# Lists.


def listed(page: Path, title: str, *, column: int = 0) -> set[str]:
    """Returns the code in a column of the tables below a heading."""
    return {code for row in rows(section(page, title)) for code in codes(row[column])}


def inside(folder: str, *, but: Iterable[str] = ()) -> set[str]:
    """Returns the Python files and the folders in a folder, as pages name them."""
    inner = [p for p in (ROOT / folder).iterdir() if p.name not in {"__pycache__", "__init__.py", "conftest.py", *but}]
    return {f"{path.name}/" for path in inner if path.is_dir()} | {p.name for p in inner if p.suffix == ".py"}


def stems(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def crates(folder: Path) -> list[str]:
    return re.findall(r'^\[package\]\nname = "(.+)"', manifest(folder), re.MULTILINE)


MEASURE = ROOT / "tests" / "benchmarks" / "measure"
LISTS = {
    "tests": (listed(TESTS, "Tests"), inside("tests")),
    "end to end": (listed(TESTS, "End to end"), inside("tests/end_to_end")),
    "conformance": (listed(TESTS, "Conformance"), inside("tests/conformance")),
    "benchmarks": (listed(TESTS, "Benchmarks"), inside("tests/benchmarks")),
    "programs that measure": (
        set(codes(next(row[1] for row in rows(section(TESTS, "Benchmarks")) if row[0] == "`measure/`"))),
        set(re.findall(r'^\[\[bin\]\]\nname = "(.+)"', manifest(MEASURE), re.MULTILINE)),
    ),
    "support": (stems(listed(TESTS, "Support")), stems(inside("tests/support")) | {"analyze_report"}),
    "chaos": (listed(CHAOS, "Its parts"), inside("tests/chaos", but=["tests"]) | {"__main__.py"}),
    "fuzz targets": (listed(CHAOS, "Fuzz targets"), {p.stem for p in (ROOT / "tests/fuzz/fuzz_targets").iterdir()}),
    "examples": (
        set(re.findall(r"^\| \[(\w+\.py)\]", prose(HOW_TO / "examples.md"), re.MULTILINE)),
        inside("docs/examples"),
    ),
    "crates": (
        listed(EXPLANATION / "architecture.md", "What each folder owns", column=1),
        {name for crate in CRATES for name in crates(crate)},
    ),
}


@pytest.mark.parametrize(("told", "there"), LISTS.values(), ids=list(LISTS))
def test_lists_are_complete(told: set[str], there: set[str]) -> None:
    assert told == there and len(told) > 3


def dependencies(crate: Path, table: str) -> set[str]:
    found = re.search(rf"^\[{table}\]\n(.*?)(?=^\[|\Z)", manifest(crate), re.DOTALL | re.MULTILINE)
    return set(re.findall(r"^(coprep-[\w-]+)", found[1], re.MULTILINE)) if found else set()


def users(crate: str) -> set[str]:
    """Returns the crates that depend on one. Programs that measure do not count, since they belong to no product."""
    using = [folder for folder in CRATES if folder != MEASURE and crate in dependencies(folder, "dependencies")]
    return {name for folder in using for name in crates(folder)}


def crates_in(sentence: str) -> set[str]:
    return {code for code in codes(sentence) if code.startswith("coprep-")}


LIBRARIES = {name for folder in CRATES if folder.parent == ROOT / "tools" for name in crates(folder)}


@pytest.mark.parametrize("folder", [folder for folder in CRATES if folder != MEASURE], ids=name_of)
def test_the_page_of_a_crate_names_the_crates_that_it_uses(folder: Path) -> None:
    page = " ".join(CRATE_PAGES[CRATES.index(folder)].read_text().split())
    ((uses, used_by),) = re.findall(r"\*\*Uses\*\* (.*?)\. \*\*Used by\*\* (.*?)\. ", page)
    uses, _, for_tests = uses.partition("; its tests also ")
    own, of_tests = (dependencies(folder, table) for table in ("dependencies", "dev-dependencies"))
    assert (crates_in(uses), crates_in(for_tests)) == (own, of_tests - own)
    by, _, _ = used_by.partition(", and the tests of ")
    (name,) = crates(folder)
    assert crates_in(by) | (LIBRARIES & users(name) if "its libraries" in by else set()) == users(name)


def test_each_folder_has_the_crate_that_is_told() -> None:
    for row in rows(section(EXPLANATION / "architecture.md", "What each folder owns")):
        for folder, crate in zip(codes(row[0]), codes(row[1]), strict=True):
            # That of `tests/` is the only one that lies deeper.
            found = MEASURE if folder == "tests/" else ROOT / folder
            assert crates(found) == [crate]


def test_the_findings_of_the_campaign_are_listed() -> None:
    told = listed(CHAOS, "What is checked", column=1)
    written = "".join(path.read_text() for path in (ROOT / "tests" / "chaos").glob("*.py"))
    assert set(re.findall(r'\bFinding\("([^"]+)"', written)) <= told
    # A finding of a class of errors, and of things that are left, has their name in it.
    texts = {name: name.removesuffix("CLASS").removesuffix(" left") for name in told}
    assert [name for name, text in texts.items() if not re.search(rf'"{re.escape(text)}["{{]', written)] == []


def test_the_models_are_as_many_as_told() -> None:
    models = sum((crate / "tests/loom.rs").read_text().count("#[test]") for crate in (ROOT / "cache").glob("s*"))
    assert re.findall(r"\b(\d+) models", told_by(EXPLANATION / "shared-memory.md")) == [str(models)]


@pytest.mark.parametrize("folder", [EXPLANATION, HOW_TO, REFERENCE], ids=lambda folder: folder.name)
def test_an_index_leads_to_each_page_of_its_folder(folder: Path) -> None:
    there = {page.name for page in folder.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"^\| \[[^\]]*\]\(([\w-]+\.md)\)", prose(folder / "index.md"), re.MULTILINE)) == there


def uses(package: str, path: str) -> bool:
    """Tells whether a file of the cache's crates uses a package."""
    found = [source for source in sources_that_end(f"src/{path}") if source.startswith("cache/")]
    return any(re.search(rf"\b{package}::", (ROOT / source).read_text()) for source in found)


def test_packages_are_used_where_the_page_says() -> None:
    table = rows(section(EXPLANATION / "shared-memory.md", "Packages"))
    told = [(package, path) for row in table for package in codes(row[0]) for path in codes(row[1])]
    assert len(told) > 10 and [pair for pair in told if not uses(*pair)] == []
    assert not uses("memmap2", "futex.rs")


def test_packages_that_serve_narrowly_are_linked() -> None:
    lock, project = (ROOT / "Cargo.lock").read_text(), (ROOT / "pyproject.toml").read_text()
    for row in rows(section(EXPLANATION / "architecture.md", "Packages that serve narrowly")):
        for name in codes(row[0]):
            is_linked = f'name = "{name}"' in lock or f'"{name}>=' in project
            assert is_linked is not row[1].startswith("not used"), name


# Versions.


def of_cargo(key: str) -> str:
    (value,) = re.findall(rf'^{key} = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return str(value)


def of_project(pattern: str) -> str:
    (value,) = re.findall(pattern, (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(value)


def kernels() -> set[str]:
    """Returns the release that `coprep doctor` insists on, and the one with the cheapest release of batches."""
    checked = (ROOT / "tools" / "src" / "doctor.rs").read_text()
    arms = re.findall(r"v if v < \((\d+), (\d+)\) => (\w+)\((.*?)\),\n", checked, re.DOTALL)
    return {f"{a}.{b}" for a, b, level, text in arms if level == "failure" or "releasing a batch" in text}


OLDEST, OLDEST_FREE = ("{}.{}".format(*version) for version in (checks.OLDEST, checks.OLDEST_FREE_THREADED))
VERSIONS = [
    (r"CPython from (\d\.\d+) on|Python (\d\.\d+) or newer|CPython (\d\.\d+)\s+or newer", {OLDEST}, 6),
    (r"Rust (\d\.\d+) or newer|Rust toolchain \((\d\.\d+) or newer\)", {of_cargo("rust-version")}, 2),
    (r"glibc (\d\.\d+) or newer", {builds.GLIBC}, 2),
    (r"PyTorch (\d\.\d+) or newer", {of_project(r'^torch = \["torch>=(.+)"\]')}, 1),
    (r"free-threaded CPython (\d\.\d+)", {OLDEST_FREE}, 1),
    (r"Linux (\d\.\d+) or newer \((\d\.\d+) for the cheapest release of batches\)", kernels(), 4),
    (r"Licence: ([\w.-]+)\.", {of_cargo("license"), of_project(r'^license = "(.+)"')}, 1),
]


@pytest.mark.parametrize(("pattern", "versions", "least"), VERSIONS, ids=[row[0][:12] for row in VERSIONS])
def test_versions_are_those_of_the_build(pattern: str, versions: set[str], least: int) -> None:
    text = " ".join(plain(page.read_text()) for page in GUIDES if page.name != "CHANGELOG.md")
    told = [version for found in re.finditer(pattern, text) for version in found.groups() if version]
    assert set(told) == versions and len(told) >= least


def test_the_changelog_begins_with_the_version_of_the_build() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == of_cargo("version") == coprep.__version__


def test_the_build_asks_for_the_same_versions_everywhere() -> None:
    assert of_project(r'^requires-python = ">=(.+)"') == OLDEST
    assert f'"abi3-py{OLDEST.replace(".", "")}"' in (ROOT / "Cargo.toml").read_text()
    tools = (ROOT / "tools" / "dev" / "install_build_tools.sh").read_text()
    assert f"Rust toolchain, {of_cargo('rust-version')} or newer" in tools and f"Python {OLDEST} or newer" in tools


def test_the_wheels_are_those_that_are_built() -> None:
    names = [code for row in rows(prose(INSTALL)) for code in codes(row[0]) if code.endswith(".whl")]
    wheels = [re.findall(r"^coprep-\*-(\w+-\w+)-manylinux_(\w+?)_(x86_64|aarch64)\.whl$", name) for name in names]
    found = {wheel for (wheel,) in wheels}
    usual = checks.Interpreter(Path(), checks.OLDEST, False, "").tag
    free = checks.Interpreter(Path(), checks.OLDEST_FREE_THREADED, True, "").tag
    glibc = builds.GLIBC.replace(".", "_")
    assert found == {(usual, glibc, machine) for machine in builds.TARGETS} | {(free, glibc, "x86_64")}


def test_what_the_package_needs_is_told() -> None:
    needs = re.findall(r'"(\w+)>=', of_project(r"^dependencies = \[(.*)\]"))
    assert f"# needs {' and '.join(needs)};" in INSTALL.read_text().lower()
    assert "[torch]" in INSTALL.read_text() and of_project(r"^torch = (.)") == "["
