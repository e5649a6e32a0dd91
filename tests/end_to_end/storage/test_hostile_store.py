"""Tests that no answer of a store loses a sample in silence, hangs, crashes, or takes memory without bound."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import ids
from coordinators import coordinator_pid
from hostile_store import (
    COUNT,
    OBJECTS,
    Behaviour,
    HostileStore,
    Request,
    all_entries,
    entry,
    error,
    etag,
    gives,
    lists,
    page,
)
from waiting import until

TIMEOUT = 8.0
"""Seconds that the jobs of these tests wait at most."""
MOST_MEMORY = 300 << 20
"""Bytes by which an answer may let the coordinator grow."""
TOKEN = "TOKEN-of-the-session"
FIRST = next(iter(OBJECTS))


def answers(status: int, body: bytes | str = b"", **headers: str) -> Behaviour:
    return lambda request: request.send(status, body, **headers)


def endless(status: int) -> Behaviour:
    return lambda request: request.send_forever(status, b"<Contents>" + b" " * (1 << 20))


def slowly(request: Request) -> None:
    request.send_forever(200, b" ", pause=0.5)


def stalls(request: Request) -> None:
    request.close_connection = True
    time.sleep(3 * TIMEOUT)


def round_and_round(request: Request) -> None:
    request.send(200, page(all_entries(), token="again"))


def listed(*entries: str) -> Behaviour:
    return answers(200, page(entries))


def with_body(change: Any, **headers: str) -> Behaviour:
    """Gives each object with another body."""

    def behave(request: Request) -> None:
        content = OBJECTS[request.key]
        request.close_connection = True
        request.send(200, change(content), ETag=etag(content), **headers)

    return behave


def cut(request: Request) -> None:
    content = OBJECTS[request.key]
    request.close_connection = True
    request.send_head(200, Content_Length=str(len(content)), ETag=etag(content))
    request.wfile.write(content[: len(content) // 2])


def elsewhere(status: int) -> Behaviour:
    """Sends on to the same server by another name."""

    def behave(request: Request) -> None:
        port = request.server.server_address[1]
        request.send(status, b"", Location=f"http://127.0.0.2:{port}/good/{request.key}")

    return behave


def in_a_ring(request: Request) -> None:
    request.send(302, b"", Location=request.path)


def odd(key: str) -> Behaviour:
    return listed(*all_entries(), entry(key, 3, '"0"'))


BOMB = "<!DOCTYPE x [" + "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9)) + "]><x>&e9;</x>"
GOOD = "all samples"
LISTINGS: dict[str, tuple[Behaviour, str]] = {
    "endless": (endless(200), "longer than any listing"),
    "endless-403": (endless(403), "403"),
    "endless-500": (endless(500), "500"),
    "round": (round_and_round, "the same keys come again"),
    "slow": (slowly, "are being listed, for"),
    "stalled": (stalls, "are being listed, for"),
    "empty": (answers(200), "cannot list"),
    "nothing": (answers(204), "cannot list"),
    "junk": (answers(200, bytes(range(256)) * 100), "cannot list"),
    "cut-xml": (answers(200, page(all_entries())[:-100]), "cannot list"),
    "bomb": (answers(200, BOMB), "cannot list"),
    "no-bucket": (answers(404, error("NoSuchBucket")), "check the name of the bucket"),
    "denied": (answers(403, error("AccessDenied")), "check the credentials"),
    "unavailable": (answers(503, error("SlowDown")), "503"),
    "moved": (elsewhere(301), "another region"),
    "found": (elsewhere(302), "sends on to another address"),
    "temporary": (elsewhere(307), "another region"),
    "ring": (in_a_ring, "too many redirections"),
    "no-objects": (listed(), "there is nothing in"),
    "line-feed-in-etag": (listed(*(entry(k, len(c), '"a&#10;b"') for k, c in OBJECTS.items())), "replaced"),
    "no-etag": (listed(*(entry(k, len(c), "") for k, c in OBJECTS.items())), GOOD),
    "negative-size": (listed(*(entry(k, -5, '"0"') for k in OBJECTS)), "cannot list"),
    "huge-size": (listed(*(entry(k, 2**63, '"0"') for k in OBJECTS)), "another length"),
    "gzip": (answers(200, page(all_entries()), Content_Encoding="gzip"), GOOD),
}
OBJECT_ANSWERS: dict[str, tuple[Behaviour, str]] = {
    "cut": (cut, "cannot be read: "),
    "shorter": (with_body(lambda c: c[:-3]), "another length"),
    "longer": (with_body(lambda c: c + b"more"), "another length"),
    "endless": (endless(200), "Content-Length Header missing"),
    "other-etag": (answers(412, error("PreconditionFailed")), "replaced"),
    "deleted": (answers(404, error("NoSuchKey")), "deleted"),
    "not-modified": (answers(304), "replaced"),
    "no-range": (answers(416, error("InvalidRange")), "replaced"),
    "denied": (answers(403, error("AccessDenied")), "403"),
    "denied-endlessly": (endless(403), "403"),
    "broken": (answers(500, error("InternalError")), "500"),
    "slow-down": (answers(503, error("SlowDown")), "503"),
    "moved": (elsewhere(301), "another region"),
    "found": (elsewhere(302), "sends on to another address"),
    "temporary": (elsewhere(307), "another region"),
    "permanent": (elsewhere(308), "sends on to another address"),
    "ring": (in_a_ring, "too many redirections"),
    "empty": (answers(200, ETag='"0"'), "another length"),
    "nothing": (answers(204), "another length"),
    "hangs-up": (lambda request: request.hang_up(), "the connection broke"),
    "slow": (slowly, "Content-Length Header missing"),
    "stalled": (stalls, "its storage is slow or does not answer"),
}


@pytest.fixture(scope="module")
def store() -> Iterator[HostileStore]:
    behaviours = {"good": (lists, gives)}
    behaviours |= {f"list-{name}": (behave, gives) for name, (behave, _) in LISTINGS.items()}
    behaviours |= {f"object-{name}": (lists, behave) for name, (behave, _) in OBJECT_ANSWERS.items()}
    store = HostileStore(behaviours)
    yield store
    store.shutdown()
    store.server_close()


@pytest.fixture
def job(store: HostileStore, socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets loaders of this process, and their coordinator, read from the store."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("COPREP_STORAGE_PATIENCE", "2")


def outcome(bucket: str, on_error: str = "raise") -> str:
    """Returns the message of the error, or that all samples came."""
    try:
        pipeline = coprep.ImageFolder(f"s3://{bucket}/p").decode().center_crop(8)
        options = {"framework": "numpy", "with_index": True, "on_error": on_error, "timeout": TIMEOUT, "cache": "off"}
        with coprep.DataLoader(pipeline, 4, **options) as loader:
            seen = sorted(ids(loader))
        return GOOD if seen == list(range(COUNT)) else f"a sample is missing: {seen}"
    except (coprep.CoprepError, OSError, ValueError) as failed:
        return " ".join(f"{type(failed).__name__}: {failed}".split())


def peak() -> int:
    """Returns the most memory that the coordinator had, in bytes."""
    text = Path(f"/proc/{coordinator_pid()}/status").read_text()
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", text)
    return int(kilobytes) << 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize("where", ["list", "object"])
def test_each_answer_ends_in_all_samples_or_in_an_error_that_says_why(
    job: None, store: HostileStore, where: str
) -> None:
    assert outcome("good") == GOOD
    before, began = peak(), time.monotonic()
    table = LISTINGS if where == "list" else OBJECT_ANSWERS
    told: dict[str, str] = {}
    jobs = [threading.Thread(target=lambda n=name: told.update({n: outcome(f"{where}-{n}")})) for name in table]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    wrong = {name: told[name] for name, (_, expected) in table.items() if not re.search(expected, told[name])}
    assert not wrong
    assert not any("defect" in text or TOKEN in text for text in told.values()), told
    assert time.monotonic() - began < 5 * TIMEOUT
    assert peak() - before < MOST_MEMORY
    assert outcome("good") == GOOD, "the coordinator serves others as before"


@pytest.mark.parametrize("source", ["folder", "files"])
def test_a_listing_that_drips_ends_with_its_job_and_no_later_job_joins_it(
    job: None, store: HostileStore, source: str
) -> None:
    bucket = f"drips-{source}"
    store.behaviours[bucket] = (slowly, gives)
    urls = [f"s3://{bucket}/{key}" for key in OBJECTS]
    pipeline = coprep.ImageFolder(f"s3://{bucket}/p") if source == "folder" else coprep.Files(urls)
    options: dict[str, Any] = {"framework": "numpy", "with_index": True}
    pipeline = pipeline.decode().center_crop(8)
    with pytest.raises(coprep.TimeoutError):
        next(iter(coprep.DataLoader(pipeline, 4, timeout=2, **options)))
    listed_by = coordinator_pid()

    def is_quiet() -> bool:
        before = store.sent[bucket]
        # Longer than the time between two bytes.
        time.sleep(1)
        return before == store.sent[bucket]

    assert store.sent[bucket] > 0
    until(is_quiet, "the listing ends")
    store.behaviours[bucket] = (lists, gives)
    with coprep.DataLoader(pipeline, 4, timeout=TIMEOUT, **options) as loader:
        assert sorted(ids(loader)) == list(range(COUNT))
    assert coordinator_pid() == listed_by


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL", "127.0.0.1:9000"),
        ("AWS_ENDPOINT_URL", "localhost:9000"),
        ("AWS_ENDPOINT_URL", "file:///etc"),
        ("AWS_ENDPOINT_URL", "http://[::1"),
        ("AWS_ENDPOINT_URL", "http://"),
        ("AWS_ACCESS_KEY_ID", "key\n"),
        ("AWS_SECRET_ACCESS_KEY", "secret\n"),
        ("AWS_SESSION_TOKEN", "to\nken"),
        ("AWS_REGION", "us-east-1\n"),
    ],
)
def test_a_slip_in_a_variable_is_told_at_once_with_its_name(
    job: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    began = time.monotonic()
    told = outcome("good")
    assert told.startswith("StorageError") and name in told and "defect" not in told, told
    assert value not in told or name == "AWS_ENDPOINT_URL"
    assert time.monotonic() - began < TIMEOUT


SLIPS: dict[str, dict[str, Any]] = {
    "s3": {"access_key_id": "key", "secret_access_key": "secret", "token": f"{TOKEN}\n"},
    "s3-key": {"access_key_id": "key\n", "secret_access_key": "secret", "token": None},
    "gs": {"token": f"{TOKEN}\n"},
    "az": {"token": f"{TOKEN}\n"},
    "hf": {"token": f"{TOKEN}\n"},
}


@pytest.mark.parametrize("kind", SLIPS)
def test_credentials_as_a_file_has_them_are_refused_at_once(job: None, kind: str) -> None:
    scheme = kind.partition("-")[0]
    url = "hf://datasets/owner/name/p" if scheme == "hf" else f"{scheme}://good/p"
    began = time.monotonic()
    with pytest.raises(ValueError, match="ends with a line feed") as refused:
        pipeline = coprep.ImageFolder(url, credential_provider=lambda: {**SLIPS[kind], "expires_at": None})
        next(iter(coprep.DataLoader(pipeline.decode().center_crop(8), 4, framework="numpy", timeout=TIMEOUT)))
    assert TOKEN not in str(refused.value)
    assert time.monotonic() - began < TIMEOUT


def test_no_sample_is_skipped_for_credentials_that_go_wrong_later(job: None, store: HostileStore) -> None:
    """The second answer of a provider cannot be sent, and all others can."""
    answers = iter(range(100))

    def provide() -> dict[str, Any]:
        token = f"{TOKEN}\n" if next(answers) == 1 else TOKEN
        end = datetime.now(timezone.utc) + timedelta(seconds=2)
        return {"access_key_id": "key", "secret_access_key": "secret", "token": token, "expires_at": end}

    pipeline = coprep.ImageFolder("s3://good/p", credential_provider=provide).decode().center_crop(8)
    options: dict[str, Any] = {"framework": "numpy", "with_index": True, "on_error": "skip", "cache": "off"}
    with coprep.DataLoader(pipeline, 4, **options) as loader:
        for _ in range(8):
            assert sorted(ids(loader)) == list(range(COUNT))
            time.sleep(0.5)
        assert loader.stats()["skipped"] == 0
    assert next(answers) > 2, "credentials were renewed"


def test_a_token_goes_to_its_store_alone(job: None, store: HostileStore) -> None:
    """Whoever a store sends on to gets nothing: here that is the same server by another address."""
    before = len(store.seen["good"])
    assert "another region" in outcome("object-temporary")
    assert len(store.seen["good"]) == before
