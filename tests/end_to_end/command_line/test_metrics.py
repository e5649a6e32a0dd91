"""Tests metrics and logs: exported metrics equal the coordinator's status, and a real Prometheus understands them."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import socket as sockets
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
from image_jobs import job, whole
from jobs import Start, go, in_step, run_on, seen
from pages import DOCS, section
from photos import make_folder
from served import Coordinator, Labels, Series, ask, port_of, series
from waiting import WAIT, until

DASHBOARD = DOCS / "grafana" / "coprep.json"
ALERTS = DOCS / "grafana" / "alerts.yml"
# Names of crates are followed by two colons.
NAME = re.compile(r"\bcoprep_[a-z_]+\b(?!::)")
OPEN_METRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}

Serve = Callable[..., Coordinator]


@pytest.fixture
def serve(socket_path: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts coordinators one after the other, with metrics unless other arguments are given."""
    begun: list[Coordinator] = []

    def serve(*arguments: str) -> Coordinator:
        arguments = arguments or ("--metrics", "127.0.0.1:0")
        begun.append(Coordinator(socket_path, tmp_path / f"log{len(begun)}", *arguments))
        return begun[-1]

    yield serve
    for coordinator in begun:
        coordinator.end()


def scrape(port: int) -> Series:
    status, headers, text = ask(port)
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4"), headers
    return series(text)


def status() -> dict[str, Any]:
    """Returns the output of the command. ``coprep.status()`` returns the same."""
    shown = subprocess.run(["coprep", "status", "--json"], capture_output=True, check=True, timeout=WAIT)
    return json.loads(shown.stdout)


def of(**labels: object) -> Labels:
    return frozenset((name, str(value)) for name, value in labels.items())


def expected(shown: dict[str, Any]) -> Series:
    """Returns the series that are exported for a status, except running times."""
    pool, found = shown["pool"], {}
    for name in "cpus", "threads":
        found[f"coprep_pool_{name}", of()] = pool[name]
    for stage, samples, seconds in ("fetch", "fetched", "fetch_s"), ("prep", "prepared", "prepare_s"):
        found["coprep_pool_samples_total", of(stage=stage)] = pool[samples]
        found["coprep_pool_seconds_total", of(stage=stage)] = pool[seconds]
    for cache in shown["caches"]:
        labels = {"dataset": cache["dataset"], "cache": cache["form"], "policy": cache["policy"]}
        found["coprep_cache_hits_total", of(**labels)] = cache["hits"]
        found["coprep_cache_misses_total", of(**labels)] = cache["misses"]
        found["coprep_cache_capacity_bytes", of(**labels)] = cache["capacity"]
        for form in cache["by_form"]:
            found["coprep_cache_entries", of(**labels, form=form["form"])] = form["entries"]
            found["coprep_cache_used_bytes", of(**labels, form=form["form"])] = form["bytes"]
    for stream in shown["streams"]:
        labels, totals = of(stream=stream["id"], dataset=stream["dataset"]), stream["totals"]
        found["coprep_stream_prepared_samples_total", labels] = totals["prepared"]
        found["coprep_stream_delivered_samples_total", labels] = totals["delivered"]
        found["coprep_stream_failed_samples_total", labels] = totals["failed"]
        found["coprep_stream_fetched_bytes_total", labels] = totals["fetched_bytes"]
        found["coprep_stream_fetched_files_total", labels] = totals["fetched"]
        found["coprep_stream_overtaken_samples_total", labels] = stream["costs"]["overtaken"]
        found["coprep_stream_staging_bytes", labels] = stream["staging_bytes"]
        found["coprep_stream_block_bytes", labels] = stream["block_bytes"]
        found["coprep_stream_free_buffers", labels] = stream["buffers_free"]
        found["coprep_stream_jobs", labels] = len(stream["jobs"])
        for reason in "fetch", "prep", "others":
            of_all = of(stream=stream["id"], dataset=stream["dataset"], reason=reason)
            found["coprep_stream_stall_seconds_total", of_all] = stream["stalls"][f"{reason}_s"]
        for one in stream["jobs"]:
            who = {"stream": stream["id"], "job_id": one["id"], "job_name": one["name"]}
            found["coprep_job_batches_total", of(**who)] = one["batches"]
            found["coprep_job_delivered_samples_total", of(**who)] = one["delivered"]
            found["coprep_job_skipped_samples_total", of(**who)] = one["skipped"]
            found["coprep_job_epoch", of(**who)] = one["epoch"]
            found["coprep_job_need_samples", of(**who)] = one["need"]
            for reason in "fetch", "prep", "others":
                labels = of(**who, reason=reason)
                found["coprep_job_stall_seconds_total", labels] = one["stalls"][f"{reason}_s"]
    return {key: pytest.approx(value, rel=1e-6) for key, value in found.items()}


def differences(shown: Series, found: Series) -> dict[tuple[str, Labels], tuple[float, float | None]]:
    return {key: (value, found.get(key)) for key, value in shown.items() if found.get(key) != value}


def matches(read: Callable[[], Series]) -> None:
    """Waits until status and metrics agree. They are read one after the other, while the jobs stand still."""
    found: list[Any] = []

    def same() -> bool:
        found[:] = [differences(expected(status()), read())]
        return found == [{}]

    try:
        until(same, "metrics and status say the same")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


def counters(found: Series) -> Series:
    return {key: value for key, value in found.items() if key[0].endswith("_total")}


def job_names(found: Series) -> set[str]:
    return {dict(labels)["job_id"] for name, labels in found if name == "coprep_job_batches_total"}


# --- exported series ---------------------------------------------------------------------------------------------


def test_metrics_are_what_status_shows(pipeline: coprep.Pipeline, serve: Serve, start: Start) -> None:
    port = serve().port
    assert job_names(scrape(port)) == set()
    jobs = [job(start, pipeline, 16, 2, 0, "step") for _ in range(2)]
    before = scrape(port)
    assert len(job_names(before)) == 2
    for _ in range(3):
        in_step(*jobs, batches=3)
        matches(lambda: scrape(port))
        after = scrape(port)
        assert all(after[key] >= value for key, value in counters(before).items())
        assert sum(v for (name, _), v in after.items() if name == "coprep_job_delivered_samples_total") > 0
        before = after
    run_on(*jobs)
    assert [seen(one) for one in jobs] == [whole(2)] * 2


def test_a_job_that_left_leaves_no_series(pipeline: coprep.Pipeline, serve: Serve, start: Start) -> None:
    port = serve().port
    stays, leaves = [job(start, pipeline, 16, 1, 0, "step") for _ in range(2)]
    assert len(job_names(scrape(port))) == 2
    leaves.kill()
    until(lambda: len(job_names(scrape(port))) == 1, "the job's series are gone")
    stays.kill()
    until(lambda: not job_names(scrape(port)), "the other's too")
    assert not [key for key in scrape(port) if key[0].startswith("coprep_stream_")]


def test_both_formats_say_the_same(pipeline: coprep.Pipeline, serve: Serve, start: Start) -> None:
    port = serve().port
    in_step(job(start, pipeline, 16, 1, 0, "step"), batches=2)
    status, headers, text = ask(port, **OPEN_METRICS)
    assert status == 200 and headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("\n# EOF\n")
    assert "# UNIT coprep_job_stall_seconds seconds\n" in text
    # A series may begin between the two requests.
    until(lambda: set(series(ask(port, **OPEN_METRICS)[2])) == set(scrape(port)), "both formats have the same series")


def test_equal_names_and_strange_ones_are_told_apart(tmp_path: Path, serve: Serve, start: Start) -> None:
    """Labels are escaped, and two caches with equal labels give one series."""
    port = serve().port
    root = make_folder(tmp_path / 'a "quoted"\\\nfolder', 20)
    narrow = coprep.ImageFolder(root).decode().resize(40)
    wide = coprep.ImageFolder(root).decode().resize(80)
    with contextlib.ExitStack() as stack:
        for pipeline in narrow, wide:
            data = pipeline.random_resized_crop(32)
            loader = stack.enter_context(
                coprep.DataLoader(data, batch_size=10, cache="decoded", framework="numpy", shuffle=True)
            )
            assert len(list(loader)) == 2
        caches = status()["caches"]
        assert [c["dataset"] for c in caches] == [str(root)] * 2
        found = [(dict(labels), v) for (name, labels), v in scrape(port).items() if name == "coprep_cache_misses_total"]
        # Both caches have the same labels, hence one series.
        assert len(found) == 1
        labels, misses = found[0]
        assert labels["dataset"] == str(root).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        assert misses == sum(c["misses"] for c in caches) > 0


def test_documents_name_only_what_is_exported(serve: Serve) -> None:
    exported = set(re.findall(r"^# TYPE (\S+) ", ask(serve().port)[2], re.MULTILINE))
    assert len(exported) > 40
    page = DOCS / "reference" / "metrics.md"
    told = {
        name
        for title in ("Metrics", "Metrics of a local disk", "Metrics of GPUs", "Metrics of remote stores")
        for name in NAME.findall(section(page, title))
    }
    assert told == exported, "the tables in docs/reference/metrics.md name every metric, and no other"
    for document in DASHBOARD, ALERTS:
        named = set(NAME.findall(document.read_text()))
        assert len(named) > 3 and named <= exported, document
    for page in DOCS.rglob("*.md"):
        assert set(NAME.findall(page.read_text())) <= exported, page


def test_the_dashboard_is_in_order() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert [p["title"] for p in panels if p["type"] == "row"] == [
        "Overview",
        "Stalls per job, by reason",
        "Workers by stage",
        "Cache by form",
        "Share factor",
        "Slow samples",
    ]
    assert len({p["id"] for p in panels}) == len(panels)
    places = [p["gridPos"] for p in panels]
    assert all(p["x"] + p["w"] <= 24 for p in places)
    for a, b in itertools.combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], "panels lie on one another"
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    for panel in panels:
        for target in panel.get("targets", []):
            assert panel["datasource"]["uid"] == target["datasource"]["uid"] == "${datasource}"
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= set(variables)
    stacked = [p for p in panels if p.get("repeat") == "job_name"]
    assert len(stacked) == 1 and stacked[0]["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    assert "by (reason)" in stacked[0]["targets"][0]["expr"]


# --- clients -----------------------------------------------------------------------------------------------------


def test_nothing_else_is_served(serve: Serve) -> None:
    port = serve().port
    status, _, text = ask(port, "/")
    assert status == 200 and text == "coprep: metrics are at /metrics\n"
    assert [ask(port, path)[0] for path in ("/metrics/", "/status", "/../etc/passwd")] == [404] * 3
    for method in "POST", "PUT", "DELETE", "OPTIONS":
        status, headers, _ = ask(port, method=method)
        assert status == 405 and headers["allow"] == "GET, HEAD"
    status, headers, text = ask(port, method="HEAD")
    assert status == 200 and text == "" and headers["content-type"].startswith("text/plain")


def test_strange_requests_disturb_nobody(pipeline: coprep.Pipeline, serve: Serve, start: Start) -> None:
    coordinator = serve()
    port = coordinator.port
    one = job(start, pipeline, 16, 2, 0, "step")
    in_step(one, batches=2)
    with contextlib.ExitStack() as stack:
        # Half of these clients are silent, and half never end their request. Together they exceed the allowed number.
        for i in range(100):
            idler = stack.enter_context(sockets.create_connection(("127.0.0.1", port), WAIT))
            if i % 2:
                idler.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert scrape(port)
        answers = [
            talk(port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20),
            talk(port, b"GET /metrics\r\n\r\n" * 3),
            talk(port, b"GET /metrics HTTP/1.1\r\nX-Large: " + b"a" * (1 << 20) + b"\r\n\r\n"),
            talk(port, b"GET /metrics HTTP/1.1\r\n" + b"X-Many: 1\r\n" * 2000 + b"\r\n"),
            talk(port, b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n"),
        ]
        assert not [answer for answer in answers if b" 200 " in answer], answers
        assert scrape(port)
    in_step(one, batches=2)
    assert threads(coordinator.process.pid, "metrics") == 1
    run_on(one)
    assert seen(one) == whole(2)


def talk(port: int, request: bytes) -> bytes:
    """Returns the answer up to the end of the connection, which must come."""
    with sockets.create_connection(("127.0.0.1", port), WAIT) as connection:
        answer = b""
        # The server may refuse and close before it has read everything, which resets the connection.
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(4096):
                answer += part
        return answer


def test_a_client_that_does_not_go_on_is_left(serve: Serve) -> None:
    port = serve().port
    start = time.monotonic()
    assert talk(port, b"GET /metrics HTTP/1.1\r\n") == b""
    # The server allows 5 s. The exact time is not the point here, only that there is some.
    assert time.monotonic() - start > 1, "it had no time at all"


def threads(pid: int, name: str) -> int:
    return [(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()].count(name)


def test_without_being_asked_for_there_is_nothing(serve: Serve) -> None:
    coordinator = serve("--idle", "0")  # without --metrics
    assert threads(coordinator.process.pid, "metrics") == 0
    assert not coordinator.says("metrics are served")


# --- address and lifetime ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0:9400", "[::]:0", "192.0.2.1:9400"])
def test_only_this_machine_is_served(socket_path: Path, address: str) -> None:
    refused = subprocess.run(["coprep", "serve", "--metrics", address], capture_output=True, text=True, timeout=WAIT)
    assert refused.returncode == 2
    assert address in refused.stderr and "ssh -L" in refused.stderr and "proxy" in refused.stderr
    assert not socket_path.exists()


def test_a_taken_port_is_one_clear_error(socket_path: Path, pipeline: coprep.Pipeline, monkeypatch: Any) -> None:
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["coprep", "serve", "--metrics", address]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
        assert refused.returncode == 1
        assert refused.stderr.count("\n") == 1 and address in refused.stderr and "choose another port" in refused.stderr
        assert list(socket_path.parent.iterdir()) == [], "the socket is removed"
        monkeypatch.setenv("COPREP_METRICS", address)
        with pytest.raises(coprep.CoprepError, match=f"cannot serve metrics at {address}"):
            len(coprep.DataLoader(pipeline, batch_size=16))


def test_a_coordinator_that_a_job_starts_has_metrics_too(
    socket_path: Path, pipeline: coprep.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_METRICS", "127.0.0.1:0")
    with coprep.DataLoader(pipeline, batch_size=16, framework="numpy") as train:
        assert len(list(train)) == len(train)
        log = socket_path.with_name(f"{socket_path.name}.log").read_text()
        found = re.search(r'url="?(http://127\.0\.0\.1:\d+/metrics)', log)
        assert found, log
        assert len(job_names(scrape(port_of(found[1])))) == 1


def test_the_port_is_free_when_the_coordinator_has_ended(serve: Serve) -> None:
    first = serve()
    port = first.port
    # An open connection does not keep the port.
    with sockets.create_connection(("127.0.0.1", port), WAIT) as idler:
        assert scrape(port)
        assert first.end() == 0
        with contextlib.suppress(ConnectionError):
            assert idler.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        ask(port)
    second = serve("--metrics", f"127.0.0.1:{port}")
    assert second.port == port and scrape(port)


# --- a real Prometheus ---------------------------------------------------------------------------------------


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} in PATH: `make test` fetches Debian's package where apt-get can")
    return path


class Prometheus:
    """A Prometheus server for one test, which scrapes often."""

    def __init__(self, folder: Path, target: int) -> None:
        with sockets.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        config = folder / "prometheus.yml"
        config.write_text(
            # These intervals are far shorter than usual, so that changes are seen soon.
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}\n"
            f"rule_files: ['{ALERTS}']\n"
            "scrape_configs:\n"
            "  - job_name: coprep\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
        )
        self.log = (folder / "prometheus.log").open("w+")
        self.process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stderr=self.log,
            stdout=self.log,
        )

    def ready(self) -> bool:
        assert self.process.poll() is None, self.said()
        with contextlib.suppress(OSError):
            return ask(self.port, "/-/ready")[0] == 200
        return False

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def get(self, path: str, **arguments: str) -> Any:
        status, _, text = ask(self.port, f"/api/v1/{path}?{urllib.parse.urlencode(arguments)}")
        answer = json.loads(text)
        assert status == 200 and answer["status"] == "success", answer
        return answer["data"]

    def now(self, query: str = '{__name__=~"coprep_.+"}') -> Series:
        found: Series = {}
        for one in self.get("query", query=query)["result"]:
            labels = dict(one["metric"])
            name = labels.pop("__name__", "")
            assert labels.pop("job", "coprep") == "coprep"
            labels.pop("instance", None)
            found[name, frozenset(labels.items())] = float(one["value"][1])
        return found

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(WAIT)
        finally:
            self.process.kill()
            self.log.close()


@pytest.fixture
def prometheus(serve: Serve, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus server that scrapes the test's coordinator."""
    tool("prometheus")
    server = Prometheus(tmp_path, serve().port)
    try:
        until(server.ready, "Prometheus is ready")
        yield server
    finally:
        server.end()


def test_prometheus_has_what_status_shows(prometheus: Prometheus, pipeline: coprep.Pipeline, start: Start) -> None:
    until(lambda: prometheus.now("up") == {("up", of()): 1.0}, "the coordinator is scraped")
    jobs = [job(start, pipeline, 16, 3, 0, "step") for _ in range(2)]
    before: Series = {}
    for _ in range(3):
        in_step(*jobs, batches=4)
        matches(prometheus.now)
        after = counters(prometheus.now())
        assert all(after[key] >= value for key, value in before.items())
        before = after
    assert len(job_names(before)) == 2
    jobs[0].kill()
    until(lambda: len(job_names(prometheus.now())) == 1, "the job's series end")
    run_on(jobs[1])
    assert seen(jobs[1]) == whole(3)
    until(lambda: not job_names(prometheus.now()), "no series of a job is left")
    assert prometheus.now("up") == {("up", of()): 1.0}
    log = prometheus.said()
    assert "level=error" not in log and "duplicate" not in log, log


def test_prometheus_understands_dashboard_and_alerts(
    prometheus: Prometheus, pipeline: coprep.Pipeline, start: Start
) -> None:
    jobs = [job(start, pipeline, 16, 200, 0.01) for _ in range(2)]
    go(*jobs)
    queries = [t["expr"] for p in json.loads(DASHBOARD.read_text())["panels"] for t in p.get("targets", [])]
    queries = [q.replace("$__rate_interval", "10s").replace("$instance", ".*") for q in queries]
    empty: list[str] = []

    def all_answer() -> bool:
        # Queries about slow samples or user code may well have no answer.
        answers = {q: prometheus.now(q.replace("$job_name", ".*")) for q in queries}
        empty[:] = [q for q, answer in answers.items() if not answer and "slow_budget" not in q]
        return not empty

    try:
        until(all_answer, "every query of the dashboard has an answer")
    except AssertionError as error:
        raise AssertionError(f"{error}: {empty}") from None

    def healthy() -> bool:
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert not [rule for rule in rules if rule["health"] == "err"], rules
        return len(rules) >= 4 and {rule["health"] for rule in rules} == {"ok"}

    until(healthy, "every alert is evaluated")


def test_promtool_finds_nothing_to_mend(serve: Serve, pipeline: coprep.Pipeline, start: Start) -> None:
    promtool = tool("promtool")
    port = serve().port
    in_step(job(start, pipeline, 16, 1, 0, "step"), batches=3)
    text = ask(port)[2]
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=WAIT)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    rules = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, timeout=WAIT)
    assert rules.returncode == 0, rules.stderr


# --- logs ----------------------------------------------------------------------------------------------------


def test_the_log_can_be_read_by_a_machine(pipeline: coprep.Pipeline, folder: Path, serve: Serve, start: Start) -> None:
    coordinator = serve()
    one = job(start, pipeline, 16, 1, 0)
    pid = one.process.pid
    go(one)
    assert seen(one) == whole(1)
    until(lambda: bool(coordinator.says("a stream is closed")), "the stream is closed")
    joins, leaves = coordinator.says("a job joins"), coordinator.says("a job leaves")
    assert len(joins) == len(leaves) == 1
    for line in joins[0], leaves[0]:
        assert (line["level"], line["rank"], line["span"]["pid"]) == ("INFO", 0, pid)
        assert line["stream"] == coordinator.says("a stream is opened")[0]["stream"]
    assert coordinator.says("a stream is opened")[0]["dataset"] == str(folder)
    assert coordinator.end() == 0
    assert coordinator.says("coordinator ends")[0]["reason"] == "Signal"


def test_a_sample_that_fails_is_in_the_log(tmp_path: Path, folder: Path, serve: Serve) -> None:
    coordinator = serve()
    root = tmp_path / "photos"
    shutil.copytree(folder, root)
    bad = root / "class0" / "00000.jpg"
    bad.write_bytes(b"no picture")
    data = coprep.ImageFolder(root).decode().random_resized_crop(32)
    with coprep.DataLoader(data, batch_size=16, on_error="skip", framework="numpy") as train:
        assert sum(len(labels) for _, labels in train) == 199
    (line,) = coordinator.says("a sample failed")
    assert (line["level"], line["sample"], line["path"], line["stage"]) == ("WARN", 0, str(bad), "decode")
    assert line["error"] and line["stream"] == 1 and "span" not in line


def test_an_unknown_log_format_is_wrong_usage(socket_path: Path) -> None:
    refused = subprocess.run(["coprep", "serve", "--log-format", "xml"], capture_output=True, text=True, timeout=WAIT)
    assert refused.returncode == 2 and "text" in refused.stderr and "json" in refused.stderr
