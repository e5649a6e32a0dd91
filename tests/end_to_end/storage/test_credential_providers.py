"""Tests credentials that exist only in the job's process: jobs give them, renew them, and share with each other."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import ids
from coordinators import coordinator_pid, lasting_outage
from hub_server import hub_server
from jobs import Start
from object_server import Credentials, ObjectServer
from photos import make_folder
from served import Coordinator, ask
from stored_images import loader, run
from waiting import kill, until

N = 60
URL = "s3://bucket/photos"
THREAD = "coprep-credentials"
DAY = "Mon, 02 Nov 2026 10:00:00 GMT"
FIRST, SECOND, WRONG = (Credentials(f"KEYID{n}", f"SECRET{n}", f"TOKEN{n}") for n in ("FIRST", "SECOND", "WRONG"))
SECRETS = [text for one in (FIRST, SECOND, WRONG) for text in (one.secret, one.token)] + ["SECRETTEXT"]
SUPPORT = str(Path(__file__).parents[2] / "support")

JOB = f"""
    import json, sys
    import coprep
    sys.path.append({SUPPORT!r})
    from stored_images import loader
    key, secret, token = sys.argv[2:]
    def provider():
        return {{"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}}
    try:
        photos = coprep.ImageFolder(sys.argv[1], credential_provider=provider)
        with loader(photos, cache="encoded") as train:
            begun = iter(train)
            seen = [int(i) for i in next(begun)[-1]]
            print("begun", flush=True)
            sys.stdin.readline()
            seen += [int(i) for batch in begun for i in batch[-1]]
            print(json.dumps(sorted(seen)), flush=True)
    except coprep.StorageError as error:
        print("refused:", " ".join(str(error).split()), flush=True)
"""


class Keys:
    """A provider in the form of those of obstore. The test sets what it returns."""

    def __init__(self, credentials: Credentials, lifetime: timedelta | None = None) -> None:
        self.config = {"region": "eu-central-1"}
        self.credentials = credentials
        self.lifetime = lifetime
        self.failure: BaseException | None = None
        self.calls = 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        expires = None if self.lifetime is None else datetime.now(timezone.utc) + self.lifetime
        one = self.credentials
        return {
            "access_key_id": one.key,
            "secret_access_key": one.secret,
            "token": one.token,
            "expires_at": expires,
        }


def photos(provider: Any) -> coprep.Pipeline:
    return coprep.ImageFolder(URL, credential_provider=provider)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


def reads_anew(train: coprep.DataLoader, store: ObjectServer) -> None:
    """Checks that epochs of a loader are whole, until samples come that were read from now on.

    Samples of the next epoch may have been read ahead.
    """
    gets = store.counts()["gets"]
    for _ in range(3):
        assert sorted(ids(train)) == list(range(N))
    assert store.counts()["gets"] >= gets + N


def failed_requests() -> int:
    return sum(store["failed_requests"] for store in coprep.status()["stores"])


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not threads(), "the threads that call providers end")


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", N, classes=2)


@pytest.fixture
def store(few: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A store that accepts the first credentials only. The environment has its address, and wrong credentials."""
    server = ObjectServer()
    server.load("bucket", "photos", few)
    server.demand(FIRST)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", WRONG.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG.secret)
    yield server
    server.close()


@pytest.fixture
def serve(
    socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectServer
) -> Iterator[Callable[..., Coordinator]]:
    """Starts a coordinator that tells everything in its log, which must hold no secret at the end of the test."""
    started: list[Coordinator] = []

    def serve(*options: str) -> Coordinator:
        monkeypatch.setenv("COPREP_LOG", "trace")
        started.append(Coordinator(socket_path, tmp_path / "log", "--metrics", "127.0.0.1:0", *options))
        return started[0]

    yield serve
    for coordinator in started:
        coordinator.end()
        log = coordinator.log.read_text()
        assert "TRACE" in log and [secret for secret in SECRETS if secret in log] == []


def test_keys_that_expire_are_renewed_before(serve: Callable[..., Coordinator], store: ObjectServer) -> None:
    coordinator = serve()
    keys = Keys(FIRST, timedelta(seconds=2))
    with loader(photos(keys), cache="off") as train:
        batches = iter(train)
        seen = [int(i) for i in next(batches)[-1]]
        store.demand(FIRST, SECOND)
        keys.credentials, keys.lifetime = SECOND, timedelta(hours=1)
        calls = keys.calls

        def are_renewed() -> bool:
            # The first answer comes with the dataset, and says no more.
            given = coordinator.says("a job has given new credentials of its stores")
            return keys.calls > calls and len(given) == keys.calls - 1

        until(are_renewed, "the keys are renewed")
        store.demand(SECOND)
        seen += [int(i) for batch in batches for i in batch[-1]]
        assert sorted(seen) == list(range(N))
        reads_anew(train, store)
        assert failed_requests() == 0


def test_a_store_that_refuses_keys_before_their_time_gets_new_ones(
    serve: Callable[..., Coordinator], store: ObjectServer
) -> None:
    serve()
    keys = Keys(FIRST)
    with loader(photos(keys), cache="off", on_error="skip") as train:
        assert sorted(ids(train)) == list(range(N))
        keys.credentials = SECOND
        store.demand(SECOND)
        # The thread that trains waits here all the time.
        reads_anew(train, store)
        assert train.stats()["skipped"] == 0 and keys.calls > 1


def test_jobs_with_keys_of_their_own_share_and_a_wrong_one_harms_nobody(
    serve: Callable[..., Coordinator], store: ObjectServer, start: Start
) -> None:
    coordinator = serve()
    store.demand(FIRST, SECOND)
    wrong_first = start(JOB, URL, WRONG.key, WRONG.secret, WRONG.token)
    told = [wrong_first.line()]
    with loader(photos(Keys(FIRST)), cache="encoded") as train:
        begun = iter(train)
        seen = [int(i) for i in next(begun)[-1]]
        other = start(JOB, URL, SECOND.key, SECOND.secret, SECOND.token)
        told.append(start(JOB, URL, WRONG.key, WRONG.secret, WRONG.token).line())
        assert other.line() == "begun"
        status = coprep.status()
        assert len(status["streams"]) == 1 and len(status["streams"][0]["jobs"]) == 2
        other.say("go on")
        assert json.loads(other.line()) == list(range(N))
        seen += [int(i) for batch in begun for i in batch[-1]]
        assert sorted(seen) == list(range(N))
        shown = [
            json.dumps(status),
            run("status").stdout,
            run("top", "--once").stdout,
            ask(coordinator.port)[2],
            repr(train.dataset),
        ]
    # One more for the size of a sample in the decoded form.
    assert store.counts()["gets"] <= N + 1
    for text in told:
        assert text.startswith(f"refused: cannot list {URL}: 403 Forbidden"), text
        assert "check what the job's credential_provider returns" in text
    assert [secret for secret in SECRETS for text in (*told, *shown) if secret in text] == []


def test_the_keys_of_a_job_that_is_killed_are_used_no_more(
    serve: Callable[..., Coordinator], store: ObjectServer, start: Start
) -> None:
    coordinator = serve()
    store.demand(FIRST, SECOND)
    killed = start(JOB, URL, FIRST.key, FIRST.secret, FIRST.token)
    assert killed.line() == "begun"
    with loader(photos(Keys(SECOND)), cache="off") as train:
        begun = iter(train)
        seen = [int(i) for i in next(begun)[-1]]
        killed.kill()
        until(lambda: bool(coordinator.says("a job leaves")), "the job has left")
        store.demand(SECOND)
        seen += [int(i) for batch in begun for i in batch[-1]]
        assert sorted(seen) == list(range(N))
        reads_anew(train, store)


def test_without_keys_jobs_wait_and_status_says_why(serve: Callable[..., Coordinator], store: ObjectServer) -> None:
    coordinator = serve("--storage-patience", "12")
    keys = Keys(FIRST)
    with loader(photos(keys), cache="off", on_error="skip") as train, ThreadPoolExecutor(1) as pool:
        assert sorted(ids(train)) == list(range(N))
        keys.failure = RuntimeError("SECRETTEXT")
        store.demand(SECOND)
        epochs = pool.submit(lambda: [sorted(ids(train)) for _ in range(6)])
        until(lambda: "no job" in run("status").stdout, "the outage is seen")
        outage = lasting_outage()
        why = f"no job gives credentials: the credential_provider of process {os.getpid()} "
        assert outage["store"] == "s3://bucket" and outage["last_answer"].startswith(why), outage
        assert outage["last_answer"].endswith(": RuntimeError was raised")
        shown = [run("status").stdout, run("top", "--once").stdout, ask(coordinator.port)[2]]
        assert all("no job gives credentials" in " ".join(text.split()) for text in shown[:2])
        assert [secret for secret in SECRETS for text in shown if secret in text] == []
        keys.credentials, keys.failure = SECOND, None
        assert epochs.result() == [list(range(N))] * 6
        assert train.stats()["skipped"] == 0


def test_keys_that_do_not_come_are_one_error_after_the_patience(
    serve: Callable[..., Coordinator], store: ObjectServer
) -> None:
    serve("--storage-patience", "4")
    keys = Keys(FIRST)
    with loader(photos(keys), cache="off", on_error="skip") as train:
        assert sorted(ids(train)) == list(range(N))
        keys.failure = RuntimeError("SECRETTEXT")
        store.demand(SECOND)
        with pytest.raises(coprep.StorageError, match="no job gives credentials") as raised:
            for _ in range(8):
                ids(train)
        assert "RuntimeError was raised" in str(raised.value) and "credential_provider returns" in str(raised.value)
        assert "SECRETTEXT" not in str(raised.value)


async def _asynchronous() -> dict[str, Any]:
    return {}


def _without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in Keys(FIRST)().items() if key not in keys}


def _hour(**zone: Any) -> datetime:
    return datetime.now(**zone) + timedelta(hours=1)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned NoneType instead of a dict"),
        ({}, "lacks credentials: for s3 URLs it must have access_key_id and secret_access_key"),
        (_without("secret_access_key"), "lacks credentials"),
        ({**Keys(FIRST)(), "expire_at": _hour()}, "has other keys as well: for s3 URLs it must have"),
        ({**Keys(FIRST)(), "token": b"TOKENFIRST"}, "token is bytes instead of str"),
        ({**Keys(FIRST)(), "token": "TOKENFIRST\udcff"}, "token has characters that are no Unicode"),
        ({**Keys(FIRST)(), "expires_at": _hour()}, "expires_at has no time zone"),
        ({**Keys(FIRST)(), "expires_at": 1.5}, "expires_at is float instead of datetime"),
        ({**Keys(FIRST)(), "expires_at": _hour(tz=timezone.utc) - timedelta(days=1)}, "have expired already"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_provider_returns_is_checked(socket_path: Path, store: ObjectServer, returned: Any, told: str) -> None:
    with pytest.raises(coprep.StorageError) as raised:
        len(photos(lambda: returned))
    assert told in str(raised.value) and "call it by itself" in str(raised.value)
    assert [secret for secret in SECRETS if secret in str(raised.value)] == []


def test_a_provider_that_cannot_be_asked_is_one_error(socket_path: Path, store: ObjectServer) -> None:
    for not_called in (7, FIRST.key):
        with pytest.raises(TypeError, match="must be a function without arguments"):
            photos(not_called)
    with pytest.raises(TypeError, match=r"lambda: asyncio\.run"):
        photos(_asynchronous)
    with pytest.raises(coprep.StorageError, match="it returned an awaitable"):
        len(photos(lambda: _asynchronous()))
    with pytest.raises(coprep.StorageError, match="lacks credentials"):
        len(photos(lambda: asyncio.run(_asynchronous())))
    keys = Keys(FIRST)
    keys.failure = LookupError("no session")
    with pytest.raises(coprep.StorageError, match="LookupError: 'no session'|LookupError: no session") as raised:
        len(photos(keys))
    assert raised.value.__cause__ is keys.failure
    for elsewhere in ("/data", "https://host/photos"):
        with pytest.raises(ValueError, match="leave it out"):
            coprep.ImageFolder(elsewhere, credential_provider=keys)
    with pytest.raises(ValueError, match="gs:// and az://"):
        coprep.Files(["gs://a/a.jpg", "az://a/a.jpg"], credential_provider=keys)


def test_credentials_for_one_bucket_are_not_used_for_another(socket_path: Path, store: ObjectServer, few: Path) -> None:
    store.load("validation", "photos", few)
    of_bucket = [replace(FIRST, bucket="bucket"), replace(SECOND, bucket="validation")]
    store.demand(*of_bucket)
    sources = [coprep.ImageFolder(f"s3://{one.bucket}/photos", credential_provider=Keys(one)) for one in of_bucket]
    # Both at once, so that the credentials of both are new.
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(_whole_epoch, sources)) == [list(range(N))] * 2
    with loader(sources[0], cache="off") as train, loader(sources[1], cache="off") as validation:
        for _ in range(3):
            assert sorted(ids(train)) == sorted(ids(validation)) == list(range(N))
    assert failed_requests() == 0


def _whole_epoch(source: coprep.Pipeline) -> list[int]:
    with loader(source, cache="off") as train:
        return sorted(ids(train))


HANGS = f"""
    import sys, time
    import coprep
    sys.path.append({SUPPORT!r})
    from stored_images import loader
    photos = coprep.ImageFolder(sys.argv[1], credential_provider=lambda: time.sleep(3600))
    train = loader(photos, timeout=1)
    try:
        next(iter(train))
    except coprep.StorageError as error:
        print(" ".join(str(error).split()))
"""


def test_a_provider_that_hangs_is_one_error_and_the_job_can_end(
    socket_path: Path, store: ObjectServer, start: Start
) -> None:
    hangs = start(HANGS, URL)
    assert "the credential_provider gives no credentials: it has not returned for 1 s" in hangs.result()


FORKS = f"""
    import os, sys
    import coprep
    sys.path.append({SUPPORT!r})
    from stored_images import loader
    keys = sys.argv[2:5]
    def provider():
        return dict(zip(("access_key_id", "secret_access_key", "token"), keys))
    train = loader(coprep.ImageFolder(sys.argv[1], credential_provider=provider), cache="off")
    epoch = lambda: sorted(int(i) for batch in train for i in batch[-1])
    first = epoch()
    child = os.fork()
    if child == 0:
        train.close()
        del train
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    keys = sys.argv[5:]
    print("forked", flush=True)
    sys.stdin.readline()
    print(all(epoch() == first for _ in range(3)), flush=True)
    # The loader is not closed.
"""


def test_a_forked_child_leaves_the_job_its_credentials(socket_path: Path, store: ObjectServer, start: Start) -> None:
    keys = [text for one in (FIRST, SECOND) for text in (one.key, one.secret, one.token)]
    forks = start(FORKS, URL, *keys)
    assert forks.line() == "forked"
    store.demand(SECOND)
    forks.say("go on")
    assert forks.line() == "True"
    code, said = forks.ended()
    assert (code, said) == (0, "")


def test_another_job_is_asked_if_one_does_not_answer(serve: Callable[..., Coordinator], store: ObjectServer) -> None:
    serve()
    hangs, answers = Keys(FIRST), Keys(FIRST)
    asked, is_over = threading.Event(), threading.Event()

    def hang() -> dict[str, Any]:
        if hangs.calls:
            asked.set()
            is_over.wait(60)
        return hangs()

    with loader(photos(hang), cache="off") as first, loader(photos(answers), cache="off") as second:
        assert sorted(ids(first)) == list(range(N))
        assert sorted(ids(second)) == list(range(N))
        answers.credentials = SECOND
        store.demand(SECOND)
        reads_anew(first, store)
        # The one has not answered yet.
        assert asked.is_set() and hangs.calls == 1 and answers.calls > 1
        is_over.set()


def test_a_new_coordinator_is_given_credentials_too(socket_path: Path, store: ObjectServer) -> None:
    keys = Keys(FIRST)
    with loader(photos(keys), cache="off") as train:
        batches = iter(train)
        seen = [int(i) for i in next(batches)[-1]]
        calls = keys.calls
        kill(coordinator_pid())
        seen += [int(i) for batch in batches for i in batch[-1]]
        assert sorted(seen) == list(range(N))
        assert sorted(ids(train)) == list(range(N)) and keys.calls > calls


def test_a_stopped_coordinator_is_not_started_for_its_credentials(socket_path: Path, store: ObjectServer) -> None:
    with loader(photos(Keys(FIRST)), cache="off") as train:
        assert sorted(ids(train)) == list(range(N))
        coprep.stop()
        until(lambda: not socket_path.exists(), "the coordinator has ended")
        threading.Event().wait(0.5)
        assert not socket_path.exists()


def test_a_closed_loader_leaves_no_thread_and_no_connection(
    serve: Callable[..., Coordinator], store: ObjectServer
) -> None:
    coordinator = serve("--idle", "1")
    train = loader(photos(Keys(FIRST)), cache="off")
    assert sorted(ids(train)) == list(range(N)) and threads() == [THREAD]
    train.close()
    until(lambda: not threads(), "the thread has ended")
    # It ends once nobody is connected.
    until(lambda: coordinator.process.poll() is not None, "the coordinator has ended")
    # A loader that is forgotten is closed.
    train = loader(photos(Keys(FIRST)), cache="off")
    assert sorted(ids(train)) == list(range(N)) and threads() == [THREAD]
    del train
    until(lambda: not threads(), "the thread has ended")


def test_a_source_is_pickled_with_its_provider(socket_path: Path, store: ObjectServer) -> None:
    keys = Keys(FIRST)
    train = pickle.loads(pickle.dumps(photos(keys).decode().random_resized_crop(32)))
    assert train == photos(keys).decode().random_resized_crop(32) and len(train) == N
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(photos(lambda: keys()))


def test_commands_of_python_give_credentials(socket_path: Path, store: ObjectServer, tmp_path: Path) -> None:
    keys = Keys(FIRST)
    assert len(photos(keys)) == N and photos(keys).classes == ["class0", "class1"]
    script = tmp_path / "train.py"
    script.write_text(
        "import coprep\n"
        f"keys = {_without('expires_at')!r}\n"
        f"photos = coprep.ImageFolder({URL!r}, credential_provider=lambda: keys)\n"
        "train = coprep.DataLoader(photos.decode().random_resized_crop(32), batch_size=4, cache='encoded')\n"
    )
    warmed = run("warm", "--from", script)
    assert warmed.returncode == 0, warmed.stderr
    gets = store.counts()["gets"]
    assert gets >= N
    with loader(photos(keys), cache="encoded") as train:
        assert sorted(ids(train)) == list(range(N))
    assert store.counts()["gets"] == gets


def test_tokens_of_google_and_of_the_hub(
    socket_path: Path, store: ObjectServer, few: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", store.address)
    store.demand(Credentials("", "", "TOKENFIRST"))
    google = coprep.ImageFolder(
        "gs://bucket/photos",
        credential_provider=lambda: {"token": "TOKENFIRST", "expires_at": _hour(tz=timezone.utc)},
    )
    with loader(google) as train:
        assert sorted(ids(train)) == list(range(N))
    with hub_server() as hub:
        hub.token = "hf_FIRST"
        hub.commit_folder("someone/photos", "train", few)
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
        url = "hf://datasets/someone/photos/train"
        with pytest.raises(coprep.StorageError):
            len(coprep.ImageFolder(url))
        with loader(coprep.ImageFolder(url, credential_provider=lambda: {"token": hub.token}), cache="off") as train:
            assert sorted(ids(train)) == list(range(N))
            hub.token = "hf_SECOND"
            for _ in range(8):
                assert sorted(ids(train)) == list(range(N))
            assert any(request.headers.get("Authorization") == "Bearer hf_SECOND" for request in hub.requests)


class _Blobs(BaseHTTPRequestHandler):
    """A container of Azure, as far as reading it goes."""

    protocol_version = "HTTP/1.1"
    folder: Path
    expected: Callable[[BaseHTTPRequestHandler], bool]

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        file = self.folder / path.removeprefix("/container").lstrip("/")
        if not type(self).expected(self):
            self.answer(403, b"")
        elif "comp=list" in query:
            self.answer(200, self.listing().encode())
        else:
            self.answer(200, file.read_bytes())

    def listing(self) -> str:
        def blob(file: Path) -> str:
            name, size = file.relative_to(self.folder), file.stat().st_size
            about = f"<Last-Modified>{DAY}</Last-Modified><Content-Length>{size}</Content-Length>"
            about += f"<Content-Type>image/jpeg</Content-Type><Etag>{size}</Etag>"
            return f"<Blob><Name>{name}</Name><Properties>{about}</Properties></Blob>"

        blobs = "".join(blob(file) for file in sorted(self.folder.rglob("*.jpg")))
        return f"<EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>"

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Last-Modified", DAY)
        self.send_header("ETag", f'"{len(body)}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _authorization(request: BaseHTTPRequestHandler) -> str:
    return request.headers.get("Authorization", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"token": "TOKEN"}, lambda request: _authorization(request) == "Bearer TOKEN"),
        ({"sas_token": "?sv=2026&sig=a%2Bb+c%3D"}, lambda request: "sig=a%2Bb%2Bc%3D" in request.path),
        ({"sas_token": [("sv", "2026"), ("sig", "a+b=")]}, lambda request: "sig=a%2Bb%3D" in request.path),
        ({"access_key": "U0VDUkVU"}, lambda request: _authorization(request).startswith("SharedKey account:")),
    ],
    ids=("token", "text", "pairs", "key"),
)
def test_the_credentials_of_azure(
    socket_path: Path,
    few: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    expected: Callable[[BaseHTTPRequestHandler], bool],
) -> None:
    handler = type("Blobs", (_Blobs,), {"folder": few.parent, "expected": staticmethod(expected)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "V1JPTkc=")
        url = "az://container/photos"
        try:
            with pytest.raises(coprep.StorageError, match="403"):
                len(coprep.ImageFolder(url, credential_provider=lambda: {"token": "WRONG"}))
            expires = {"expires_at": _hour(tz=timezone.utc)}
            # Without a cache no part of an object is asked for, which this server could not give.
            blobs = coprep.ImageFolder(url, credential_provider=lambda: {**given, **expires})
            with loader(blobs, cache="off") as train:
                assert sorted(ids(train)) == list(range(N))
        finally:
            server.shutdown()
