"""Tests that the stores of a dataset are described by the environment of the job that reads it, and by no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import coprep
import pytest
from batches import batches, ids
from hub_server import hub_server
from jobs import Start
from object_server import Credentials, ObjectServer
from photos import make_folder, photo
from served import Coordinator, ask
from stored_images import loader, run

N = 60
URL = "s3://bucket/photos"
OWN, WRONG = (Credentials(f"KEYID{n}", f"SECRET{n}", f"TOKEN{n}") for n in ("OWN", "WRONG"))
SECRETS = [text for one in (OWN, WRONG) for text in (one.secret, one.token)]

JOB = """
    import sys
    import coprep
    sys.path.append({support!r})
    from stored_images import loader
    try:
        with loader(coprep.ImageFolder(sys.argv[1]), cache="encoded") as train:
            print(*sorted(int(i) for batch in train for i in batch[-1]))
            print(len(coprep.status()["streams"]))
    except coprep.StorageError as error:
        print("refused:", " ".join(str(error).split()))
""".format(support=str(Path(__file__).parents[2] / "support"))


def variables(server: ObjectServer, credentials: Credentials) -> dict[str, str]:
    """Returns the environment of a job that reads from a server with these credentials."""
    return {
        "AWS_ENDPOINT_URL": server.address,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": credentials.key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret,
        "AWS_SESSION_TOKEN": credentials.token,
    }


def set_all(patch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        patch.setenv(name, value)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", N, classes=2)


@pytest.fixture
def store(few: Path) -> Iterator[ObjectServer]:
    """A store with photos, which wants credentials. No environment describes it yet."""
    server = ObjectServer()
    server.load("bucket", "photos", few)
    server.demand(OWN)
    yield server
    server.close()


@pytest.fixture
def coordinator(
    socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectServer
) -> Iterator[Coordinator]:
    """A coordinator that tells everything in its log. Its own environment describes a store that gives nothing."""
    monkeypatch.setenv("COPREP_LOG", "trace")
    with monkeypatch.context() as patch:
        set_all(patch, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_SKIP_SIGNATURE": "true"})
        coordinator = Coordinator(socket_path, tmp_path / "log", "--metrics", "127.0.0.1:0")
    yield coordinator
    coordinator.end()


def test_a_job_is_served_with_its_own_credentials_alone(
    coordinator: Coordinator, store: ObjectServer, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    set_all(monkeypatch, variables(store, OWN))
    with loader(coprep.ImageFolder(URL), cache="encoded") as train:
        begun = iter(train)
        seen = [int(i) for i in next(begun)[-1]]
        refused, same = start(JOB, URL, **variables(store, WRONG)), start(JOB, URL)
        told = refused.line()
        assert told.startswith(f"refused: cannot list {URL}: 403 Forbidden"), told
        assert "check the credentials: set AWS_ACCESS_KEY_ID" in told and "in the environment of the job" in told
        # The same variables in another process: the same stream.
        assert same.line().split() == [str(i) for i in range(N)]
        assert same.line() == "1"
        seen += [int(i) for batch in begun for i in batch[-1]]
        assert sorted(seen) == list(range(N))
        status = coprep.status()
        assert status["outages"] == []
        # The requests of both are those of one store.
        assert [(one["store"], one["failed_requests"] > 0) for one in status["stores"]] == [("s3://bucket", True)]
        shown = [told, json.dumps(status), run("status").stdout, run("top", "--once").stdout, ask(coordinator.port)[2]]
    log = coordinator.log.read_text()
    assert "TRACE" in log and "s3://bucket" in "".join(shown)
    assert [secret for secret in SECRETS for text in (*shown, log) if secret in text] == []


def test_a_url_means_what_the_job_s_environment_says(
    coordinator: Coordinator, store: ObjectServer, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ObjectServer()
    try:
        others = make_folder(tmp_path / "others", N, classes=2)
        for number, path in enumerate(others.rglob("*.jpg")):
            photo(N + number, 150, 130).save(path)
        other.load("bucket", "photos", others)
        set_all(monkeypatch, variables(store, OWN))
        with loader(coprep.ImageFolder(URL), seed=3) as train:
            next(iter(train))
            set_all(monkeypatch, variables(other, OWN))
            local, remote = (batches(loader(coprep.ImageFolder(root), seed=3), epochs=1) for root in (others, URL))
            assert local == remote
            with loader(coprep.ImageFolder(URL), seed=3) as second:
                next(iter(second))
                told = " ".join(run("status").stdout.split())
                assert told.count("the environment of their stores") == 2, told
                assert not any(address in told for address in (store.address, other.address))
        assert store.counts()["gets"] > 0 and other.counts()["gets"] > 0
    finally:
        other.close()


def test_a_cache_serves_jobs_with_other_credentials_for_the_same_content(
    coordinator: Coordinator, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables(store, OWN))
    with loader(coprep.ImageFolder(URL), cache="encoded") as train:
        assert sorted(ids(train)) == list(range(N))
        # As when temporary credentials have expired, and the next job comes with new ones.
        store.demand(WRONG)
        set_all(monkeypatch, variables(store, WRONG))
        gets = store.counts()["gets"]
        with loader(coprep.ImageFolder(URL), cache="encoded") as second:
            assert sorted(ids(second)) == list(range(N))
        assert store.counts()["gets"] == gets


def test_a_program_of_a_profile_has_the_variables_of_the_job(
    coordinator: Coordinator, store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = json.dumps(
        {"Version": 1, "AccessKeyId": OWN.key, "SecretAccessKey": OWN.secret, "SessionToken": OWN.token}
    )
    (tmp_path / "credentials.json").write_text(printed)
    (tmp_path / "config").write_text('[profile job]\ncredential_process = cat "$AWS_OF_JOB"\n')
    # The file is named from here, where the coordinator is not.
    monkeypatch.chdir(tmp_path)
    environment = {"AWS_CONFIG_FILE": "config", "AWS_PROFILE": "job", "AWS_OF_JOB": str(tmp_path / "credentials.json")}
    set_all(monkeypatch, {"AWS_ENDPOINT_URL": store.address, **environment})
    with loader(coprep.ImageFolder(URL)) as train:
        assert sorted(ids(train)) == list(range(N))


def test_commands_read_with_the_environment_of_their_shell(
    coordinator: Coordinator, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables(store, WRONG))
    assert "check the credentials" in " ".join(run("warm", URL, "--form", "encoded").stderr.split())
    set_all(monkeypatch, variables(store, OWN))
    assert run("warm", URL, "--form", "encoded").returncode == 0
    assert len(coprep.ImageFolder(URL)) == N


def test_a_job_without_the_token_of_another_one_is_refused(
    socket_path: Path, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "hf://datasets/someone/photos/train"
    with hub_server() as hub:
        hub.token = "hf_SECRET"
        hub.commit_folder("someone/photos", "train", few)
        set_all(monkeypatch, {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "none"), "HF_TOKEN": hub.token})
        with loader(coprep.ImageFolder(url)) as train:
            assert sorted(ids(train)) == list(range(N))
            monkeypatch.delenv("HF_TOKEN")
            with pytest.raises(coprep.StorageError, match="set HF_TOKEN"):
                len(coprep.ImageFolder(url))
            # Variables that are for other libraries keep nobody apart.
            set_all(monkeypatch, {"HF_TOKEN": hub.token, "HF_HUB_DISABLE_TELEMETRY": "1"})
            with loader(coprep.ImageFolder(url)) as second:
                next(iter(second))
                assert len(coprep.status()["streams"]) == 1
