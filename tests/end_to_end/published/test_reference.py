"""Tests what the reference says of the command, its screens, its metrics and its messages against the real ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import coprep
import pytest
import user_datasets as ud
from command_help import default, options, subcommands, values, without_settings
from coordinators import coordinator_at
from gpu_jobs import Driver
from pages import DOCS, ROOT, codes, pattern, plain, prose, rows, section, status_lines
from served import Coordinator, ask, series
from sources import text_of
from terminal import terminal
from user_jobs import NUMPY
from waiting import WAIT, until

REFERENCE, HOW_TO = DOCS / "reference", DOCS / "how-to"
COMMANDS, SETTINGS, SCREENS, METRICS = (
    REFERENCE / f"{name}.md" for name in ("command-line", "settings", "screens", "metrics")
)


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = ["coprep", *map(str, arguments)]
    environment = {**(os.environ if env is None else env), "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT, env=environment)


# Commands and options.


def test_each_command_is_listed() -> None:
    assert sorted(re.findall(r"^\| \[`coprep (\w+)`\]", prose(COMMANDS), re.MULTILINE)) == sorted(subcommands())
    assert set(re.findall(r"^## coprep (\w+)$", prose(COMMANDS), re.MULTILINE)) == subcommands()
    assert all("--socket" in options(command) for command in subcommands())


class Option(NamedTuple):
    """An option, as the page describes it."""

    command: str
    name: str
    meaning: str

    @property
    def default(self) -> str:
        found = re.search(r"; default:? (.*)$", plain(self.meaning))
        return found[1] if found else ""


OPTIONS = [
    Option(command, name, row[1])
    for command in sorted(subcommands())
    for row in rows(section(COMMANDS, f"coprep {command}"))
    # A row of several options refers to another command.
    for name in re.findall(r"--[a-z-]+", row[0])
    if not row[1].startswith("as for ")
]


def test_defaults_of_options_are_those_of_the_help() -> None:
    assert sum(bool(option.default) for option in OPTIONS) > 12
    shown = {option: default(option.command, option.name) for option in OPTIONS}
    assert {option: option.default for option in OPTIONS} == shown


def test_defaults_of_settings_are_those_of_the_help() -> None:
    told = {codes(row[0])[0].split()[0]: plain(row[2]) for row in rows(prose(SETTINGS)) if row[0]}
    shown = {option: default("serve", option) for option in told}
    # The help says where the socket lies by no default, and of some settings that they are not set.
    unset = {"none", "off", "as storage is", told["--socket"]}
    assert len([option for option in told if shown[option]]) > 8
    wrong = {option: text for option, text in told.items() if text not in ({shown[option]} if shown[option] else unset)}
    assert wrong == {}


@pytest.mark.parametrize("name", ["--form", "--interpolation"])
def test_values_of_options_are_those_of_the_help(name: str) -> None:
    (meaning,) = [option.meaning for option in OPTIONS if (option.command, option.name) == ("warm", name)]
    assert codes(meaning.partition("; default")[0]) == values("warm", name)


@pytest.mark.parametrize("command", sorted(subcommands()))
def test_wrong_usage_has_the_exit_code_2(command: str, socket_path: Path) -> None:
    done = run(command, "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "") and "--no-such-option" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("status",), 1),
        (("stop",), 1),
        (("throttle",), 1),
        (("top", "--once"), 1),
        (("drop", "nowhere"), 1),
        (("warm", "/nowhere"), 1),
        (("analyze", "/nowhere"), 1),
        (("bench", "/nowhere"), 1),
        (("doctor",), 0),
        (("--version",), 0),
    ],
)
def test_failures_have_the_exit_code_1(arguments: tuple[str, ...], code: int, socket_path: Path) -> None:
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage." in plain(prose(COMMANDS))
    done = run(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert bool(re.search("^coprep: ", done.stderr, re.MULTILINE)) is bool(code)


def test_sizes_and_times_are_written_as_told(socket_path: Path) -> None:
    ((sizes, times),) = re.findall(r"Sizes are numbers such as (.*); times such as (.*)\.\n", prose(COMMANDS))
    for size, time in zip(codes(sizes), codes(times), strict=True):
        done = run("serve", "--cache", size, "--storage-latency", time, "--log-format", "wrong")
        assert done.returncode == 2 and "'wrong'" in done.stderr and "--log-format" in done.stderr


def test_doctor_checks_what_is_told(socket_path: Path) -> None:
    found = [finding["check"] for finding in json.loads(run("doctor", "--json").stdout)]
    # Each GPU has a line with its number.
    checks = list(dict.fromkeys(re.sub(r"^GPU \d+$", "GPU", check) for check in found))
    assert [code for row in rows(section(COMMANDS, "coprep doctor")) for code in codes(row[0])] == checks


# Settings.


@pytest.mark.parametrize("at", [0, 1], ids=["with XDG_RUNTIME_DIR", "without"])
def test_the_socket_lies_where_it_is_told(at: int, tmp_path: Path) -> None:
    (told,) = [codes(row[2]) for row in rows(prose(SETTINGS)) if "--socket" in row[0]]
    environment = without_settings() | {"XDG_RUNTIME_DIR": "" if at else str(tmp_path)}
    folder = told[at].replace("$XDG_RUNTIME_DIR", str(tmp_path)).replace("UID", str(os.getuid()))
    # Where a coordinator of the user's runs, `doctor` names it. Elsewhere `doctor` would make the folder.
    status = run("status", env=environment)
    named = status.stderr if status.returncode else run("doctor", env=environment).stdout
    assert f" {folder}coordinator.sock" in named


def test_a_coordinator_that_is_told_nothing_has_the_defaults(tmp_path: Path) -> None:
    environment = without_settings() | {"XDG_RUNTIME_DIR": str(tmp_path)}
    socket = tmp_path / "coprep" / "coordinator.sock"
    serve = subprocess.Popen(["coprep", "serve"], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        until(socket.exists, "the coordinator listens")
        shown = coprep.status(socket)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600 and stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        findings = {f["check"]: f["found"] for f in json.loads(run("doctor", "--json", env=environment).stdout)}
        coprep.stop(socket)
        log = serve.communicate(timeout=WAIT)[1]
    finally:
        serve.kill()
        serve.wait()
    assert "INFO" in log and "DEBUG" not in log and not log.startswith("{")
    assert shown["pool"]["cpus"] == int(findings["processors"].split()[0])
    amount, unit = findings["memory"].split()[:2]
    free = float(amount.replace(",", "")) * {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    # Other programs take and free memory meanwhile.
    assert shown["cache_budget"] == pytest.approx(free / 4, rel=0.3)


def test_the_program_that_a_job_starts_can_be_named(
    socket_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_BIN", "/nowhere/coprep")
    with pytest.raises(coprep.CoprepError, match="/nowhere/coprep"):
        len(coprep.ImageFolder(folder).decode())


# The screens and metrics of a coordinator with jobs of all kinds.


class Shown(NamedTuple):
    """The answers of a coordinator at one moment."""

    status: str
    top: str
    metrics: str
    log: list[dict[str, Any]]


def each_kind(folder: Path) -> list[tuple[Any, dict[str, Any]]]:
    """Returns datasets and options of loaders, each of which has a stream of its own."""
    images = coprep.ImageFolder(folder).decode()
    crops = images.random_resized_crop(32)
    cached: dict[str, Any] = {"transform": ud.Scaled(2), "cache": "prepared", "seed": 1}
    return [
        (images.resize(40).random_resized_crop(32), {"seed": 7}),
        (crops, {"cache": "auto"}),
        (crops, {"cache": "decoded", "cache_policy": "lru"}),
        (ud.Numbers(65), {"num_workers": 2}),
        (ud.Numbers(66), {}),
        (ud.Numbers(66), {"num_workers": 0}),
        (ud.Numbers(64), {**cached, "reuse": 3}),
    ]


def disk_of(folder: Path) -> Path:
    return folder.with_name("nvme")


@pytest.fixture(scope="module")
def shown(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    scratch = tmp_path_factory.mktemp("reference")
    (told,) = re.findall(r"`(info,coprep_\S+)`", prose(METRICS))
    with pytest.MonkeyPatch.context() as patch, coordinator_at(scratch / "run", patch) as socket_path:
        patch.setenv("COPREP_LOG", told)
        disk = ["--disk-cache", str(disk_of(folder)), "--disk-bytes", "1G"]
        coordinator = Coordinator(socket_path, scratch / "log", "--metrics", "127.0.0.1:0", *disk)
        assert run("warm", folder, "--form", "decoded").returncode == 0
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            # Some do not use the warmed cache, so that status says why.
            warnings.simplefilter("ignore", coprep.CacheWarning)
            held = []
            for data, options in each_kind(folder):
                loader = coprep.DataLoader(data, 16, True, **{**NUMPY, "num_workers": 1, **options})
                stack.enter_context(loader)
                for _ in range(2):
                    list(loader)
                batches = iter(loader)
                held.append((batches, next(batches)))
            until(lambda: max(len(s["worker_pids"]) for s in coprep.status()["streams"]) > 1, "both workers start")
            status, top = run("status", "--slow", 2), run("top", "--once", "--interval", "0.2s")
            assert (status.returncode, top.returncode) == (0, 0), status.stderr + top.stderr
            metrics = ask(coordinator.port)[2]
            yield Shown(status.stdout, top.stdout, metrics, coordinator.lines())
            del held, batches
        coordinator.end()


SLOW_STORAGE = ", 3 reads of slow storage"


def own_names(text: str, folder: Path) -> str:
    """Returns a line of the page with the names that the tests' jobs have."""
    changed = {
        "ImageFolder (torchvision.datasets.folder)": "Numbers (user_datasets)",
        "/data/train": str(folder),
        "/nvme/coprep": str(disk_of(folder)),
        # Storage that does not answer takes too long for this test.
        SLOW_STORAGE: "",
    }
    for name, own in changed.items():
        text = text.replace(name, own)
    return text


# Tests of storage that fails and of unused caches have the lines about those.
@pytest.mark.parametrize("line", [line for line in status_lines() if not line.startswith(("s3://", "the cache of"))])
def test_status_has_the_lines_that_are_told(line: str, shown: Shown, folder: Path) -> None:
    assert re.search(pattern(own_names(line, folder)), " ".join(shown.status.split())), shown.status


def test_the_line_about_slow_storage_is_in_the_sources() -> None:
    assert SLOW_STORAGE in section(SCREENS, "`coprep status`")
    assert SLOW_STORAGE.replace("3", "{reads}") in text_of(".rs")


def test_policies_of_caches_are_those_that_are_told(shown: Shown) -> None:
    (told,) = [row[1] for row in rows(section(SCREENS, "`coprep status`")) if row[0].startswith("`cache of")]
    policies = set(codes(told.partition("policy (")[2])) - {"reuse=k"}
    assert {re.sub(r"\d+", "k", policy) for policy in re.findall(r'policy="(.*?)"', shown.metrics)} == policies


def screen() -> dict[str, list[str]]:
    """Returns the columns that the page lists for each table of the screen, in order."""
    told: dict[str, list[str]] = {}
    table = ""
    for row in rows(section(SCREENS, "`coprep top`")):
        if len(row) == 3:
            table = row[0] or table
            told.setdefault(table, []).extend(codes(row[1]))
    return told


@pytest.mark.parametrize("line", screen()["top"])
def test_top_has_the_lines_that_are_told(line: str, shown: Shown) -> None:
    # A bar stands between the word and the numbers.
    assert re.search(pattern(line.replace(" ", " ... ", 1)), shown.top), shown.top


@pytest.mark.parametrize("table", ["CACHES", "STREAMS", "JOBS", "SLOW"])
def test_top_has_the_columns_that_are_told_and_no_others(table: str, shown: Shown) -> None:
    (head,) = re.findall(rf"^ +{table} \d+ +(\S.*)$", shown.top, re.MULTILINE)
    told = screen()[table]
    names = "|".join(re.escape(name) for name in sorted(told, key=len, reverse=True))
    # The column that sorts has an arrow.
    columns = [column.rstrip("▲▼") for column in re.findall(rf"(?:{names})(?!\S)|\S+", head)]
    assert set(columns) == set(told)


def test_top_has_the_keys_and_the_size_that_are_told(socket_path: Path) -> None:
    page = section(SCREENS, "`coprep top`")
    told = {key for row in rows(page) if len(row) == 2 for key in re.findall(r"`(\S+?)`|(Ctrl-C|arrows)", row[0])}
    keys = {code or word for code, word in told}
    ((columns, lines),) = re.findall(r"any terminal of (\d+) x (\d+) or more", page)
    with terminal(["coprep", "top"]) as top:
        top.until(lambda: top.shows("waiting"), "it waits")
        top.type("?")
        top.until(lambda: top.shows("KEYS"), "the help is shown")
        listed = " ".join(top.lines()).partition("KEYS")[2].partition("fetching")[0]
        found = [key.strip() for part in listed.split(";") for key in part.partition(":")[0].split(",")]
        assert keys == {*found, "h", "?"}
        top.type("h")
        top.resize(int(columns) - 1, int(lines))
        top.until(lambda: top.shows(f"coprep top needs {columns}x{lines}"), "it says what it needs")
        top.resize(int(columns), int(lines))
        top.until(lambda: not top.shows("needs"), "it has what it needs")


# Metrics and the log.

KINDS = {row[0].strip("*"): codes(row[1]) for row in rows(section(METRICS, "Labels")) if row[0].startswith("*")}
VALUES = {codes(row[0])[0]: codes(row[1]) for row in rows(section(METRICS, "Labels")) if row[0].startswith("`")}


def labels_of(cell: str) -> set[str]:
    return {name for kind in re.findall(r"\*(\w+)\*", cell) for name in KINDS[kind]} | set(codes(cell))


def check_metrics(text: str, heading: str) -> None:
    """Checks the types, labels and units of the metrics that a section of the page tells."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {}
    for name, found in series(text):
        labels.setdefault(name, set()).update(label for label, _ in found)
    for metric, cell, kind, _ in rows(section(METRICS, heading)):
        (name,) = codes(metric)
        assert (types[name] == "counter") is kind.endswith(", counter"), name
        assert labels[name] == labels_of(cell), name
        assert all((f"_{unit}" in name) is (unit in kind) for unit in ("seconds", "bytes")), name


def test_metrics_have_the_labels_and_types_that_are_told(shown: Shown) -> None:
    check_metrics(shown.metrics, "Metrics")


ON_GPU = """
import sys
import gpu_seam
import coprep

loader = coprep.DataLoader(coprep.ImageFolder(sys.argv[1]).decode().resize((8, 8)), batch_size=20, device="cuda")
batches = iter(loader)
next(batches)
print("batch", flush=True)
sys.stdin.readline()
"""


def test_metrics_of_gpus_have_the_labels_and_types_that_are_told(
    folder: Path, socket_path: Path, tmp_path: Path
) -> None:
    coordinator = Coordinator(socket_path, tmp_path / "log", "--metrics", "127.0.0.1:0")
    job = Driver(tmp_path / "driver").job(ON_GPU, folder)
    assert job.line() == "batch"
    status, _, text = ask(coordinator.port)
    job.run_on()
    job.result()
    assert (status, coordinator.end()) == (200, 0)
    check_metrics(text, "Metrics of GPUs")


@pytest.mark.parametrize("label", list(VALUES))
def test_labels_have_the_values_that_are_told(label: str, shown: Shown) -> None:
    found = {value for _, labels in series(shown.metrics) for name, value in labels if name == label}
    assert found == set(VALUES[label])


def test_a_line_of_the_log_has_the_fields_that_are_told(shown: Shown) -> None:
    (text,) = re.findall(r"^```json\n(.*)\n```$", METRICS.read_text(), re.MULTILINE)
    told = json.loads(text)
    (found, *_) = [line for line in shown.log if line["message"] == told["message"]]
    assert (found.keys(), found["span"].keys()) == (told.keys(), told["span"].keys())
    assert [found[name] for name in ("level", "target")] == [told["level"], told["target"]]


def test_the_filter_of_the_log_selects_what_is_told(shown: Shown) -> None:
    debug = [line["message"] for line in shown.log if line["level"] == "DEBUG"]
    assert "a worker of user code starts" in debug


# Python, messages and reasons.


def test_counts_of_a_loader_have_the_keys_that_are_told(socket_path: Path) -> None:
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    waits = {code for row in rows(section(HOW_TO / "find-waits.md", "In the script")) for code in codes(row[0])}
    told = set(re.findall(r'stats\([^)]*\)\["(\w+)"\]', pages)) | waits | {"wait_s"}
    with coprep.DataLoader(ud.Numbers(8), 4, **NUMPY) as loader:
        list(loader)
        assert len(waits) == 3 and len(told) > 5 and told <= loader.stats(slow=1).keys()
        docstring = set(re.findall(r"``(\w+)``", coprep.DataLoader.stats.__doc__ or ""))
        assert loader.stats().keys() - docstring == set()


def quoted() -> set[str]:
    """Returns the messages that the help by symptom quotes."""
    cells = [row[0] for row in rows(prose(HOW_TO / "troubleshoot.md"))]
    return {message for cell in cells for message in re.findall(r'"([^"]+)"', cell)}


COMPOSED = {"is a named pipe", "is a character device", "waiting for rank 1 of 2 to attach"}
"""Messages that the program puts together."""
LATE = "rank 1 of 2 of this job has not attached"
"""A message that comes after 10 s. `test_opening.py` waits for it."""


@pytest.mark.parametrize("message", sorted(quoted() - COMPOSED - {LATE}))
def test_a_message_that_is_quoted_is_in_the_sources(message: str) -> None:
    parts = [part.strip() for part in re.split(r"\.\.\.|\d+", message)]
    assert all(part in text_of(".rs", ".py") for part in parts)


def test_composed_messages_are_quoted_as_they_are(socket_path: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    said = []
    for path in (pipe, "/dev/zero"):
        with coprep.DataLoader(coprep.Files([path]).decode().center_crop(8), framework="numpy") as loader:
            with pytest.raises(coprep.SampleError) as error:
                list(loader)
            said.append(str(error.value))
    with pytest.raises(coprep.TimeoutError) as late:
        list(coprep.DataLoader(ud.Numbers(8), rank=0, world_size=2, timeout=0.3, **NUMPY))
    said.append(str(late.value))
    assert {*COMPOSED, LATE} < quoted()
    assert f'"{LATE}" in' in (ROOT / "tests" / "end_to_end" / "failures" / "test_opening.py").read_text()
    assert [message for message in COMPOSED if not any(message in text for text in said)] == []


BASE: dict[str, Any] = {
    **NUMPY,
    "dataset": ud.Numbers(8),
    "batch_size": 4,
    "shuffle": True,
    "seed": 1,
    "num_workers": 1,
}
OTHERS: dict[str, dict[str, Any]] = {
    "dataset...": {"dataset": ud.Numbers(8, pause=0.001)},
    "transform...": {"transform": ud.Scaled(2)},
    "collation": {"collate_fn": ud.as_they_are},
    "worker_init_fn": {"worker_init_fn": ud.same},
    "num_workers=0": {"num_workers": 0},
    "shuffle": {"shuffle": False},
    "order": {"order": "relaxed"},
    "cache": {"cache": "prepared"},
    "reuse": {"cache": "prepared", "reuse": 2},
    "seed": {"seed": 2},
}
"""Options in which a loader differs from the base, by the names that the page has for the differences."""
WRITTEN = {"code MODULE", "package NAME", "interpreter", "working directory", "labels", "folder"} | {
    "operators",
    "replaced NAME",
    "switch NAME",
    "path of sample 0",
    "the sampler's weights or number of draws",
    "the cohort",
    "the environment of their stores",
}
"""Names whose cases are tested elsewhere."""


def test_reasons_for_which_jobs_do_not_share_are_those_that_are_told(socket_path: Path) -> None:
    table = rows(section(HOW_TO / "share-search-jobs.md", "When two jobs do not share"))
    assert {code for row in table for code in codes(row[0])} - {"coprep.Files", "args.size"} == OTHERS.keys() | WRITTEN
    assert [n for n in WRITTEN if re.sub(" NAME| MODULE| 0", "", n) not in text_of(".rs", ".py")] == []
    with contextlib.ExitStack() as stack:
        loaders = [stack.enter_context(coprep.DataLoader(**{**BASE, **own})) for own in ({}, *OTHERS.values())]
        # The seed is known once the loader is attached.
        assert all(loader.seed for loader in loaders)
        streams = coprep.status()["streams"]
        first, *others = sorted(streams, key=lambda stream: stream["id"])
        assert len(others) == len(OTHERS)
        for name, stream in zip(OTHERS, others, strict=True):
            (told,) = [text for text in stream["differs"] if text.startswith(f"stream {first['id']}: ")]
            assert re.search(rf"[:,] {pattern(name)}(?: is | \(|,|$)", told), (name, told)
