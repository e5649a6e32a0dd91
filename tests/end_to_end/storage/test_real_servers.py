"""Tests with servers of others: moto's S3, and a web server over TLS."""

from __future__ import annotations

import datetime
import functools
import http.server
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import batches, ids
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from photos import make_folder

N = 40


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", N, classes=2)


def loader(pipeline: coprep.Pipeline, **options: Any) -> coprep.DataLoader:
    operators = pipeline.decode().random_resized_crop(32)
    options = {"batch_size": 8, "framework": "numpy", "with_index": True, **options}
    return coprep.DataLoader(operators, **options)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of moto's S3, from which a coordinator that starts from now on reads."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    yield boto3.client("s3")
    server.stop()


def test_moto_gives_the_samples_of_the_same_files(socket_path: Path, few: Path, s3: Any) -> None:
    s3.create_bucket(Bucket="photos")
    for path in few.rglob("*.jpg"):
        s3.put_object(Bucket="photos", Key=f"train/{path.relative_to(few)}", Body=path.read_bytes())
    local, remote = (
        batches(loader(coprep.ImageFolder(root), seed=3, cache="encoded"), epochs=1)
        for root in (few, "s3://photos/train")
    )
    assert local == remote
    with loader(coprep.ImageFolder("s3://photos/train"), cache="off", shuffle=False) as train:
        batch = iter(train)
        next(batch)
        last = max(few.rglob("*.jpg"), key=lambda path: path.relative_to(few).as_posix())
        s3.put_object(Bucket="photos", Key=f"train/{last.relative_to(few)}", Body=b"another one")
        with pytest.raises(coprep.SampleError, match="was replaced since it was listed"):
            list(batch)
            list(train)


def _signed(subject: str, key: Any, issuer: str, by: Any, extension: x509.ExtensionType) -> bytes:
    """Returns a certificate for a key, signed by another one, as PEM."""

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    today = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(
        name(issuer),
        name(subject),
        key.public_key(),
        x509.random_serial_number(),
        today - datetime.timedelta(days=1),
        today + datetime.timedelta(days=1),
    )
    signed = builder.add_extension(extension, critical=False).sign(by, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def _certificates(folder: Path) -> tuple[Path, Path]:
    """Makes an authority and a server's certificate. Returns the authority's file, and the server's with its key."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    private = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(_signed("authority", authority, "authority", authority, constraints))
    (folder / "server.pem").write_bytes(private + _signed("server", own, "authority", authority, names))
    return folder / "ca.pem", folder / "server.pem"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Logs nothing, which would be lost among the output of other tests."""


@pytest.fixture
def web(few: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a web server over TLS with the photos, and the certificate to trust."""
    authority, own = _certificates(tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(few)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", authority
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_web_server_over_tls_gives_the_samples_of_the_same_files(
    socket_path: Path, few: Path, web: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, authority = web
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    files = sorted(few.rglob("*.jpg"))
    urls = [f"{address}/{path.relative_to(few)}" for path in files]
    local, remote = (batches(loader(coprep.Files(paths), seed=3, cache="encoded"), epochs=2) for paths in (files, urls))
    assert local == remote


def test_a_certificate_that_is_not_trusted_is_no_sample_to_skip(
    socket_path: Path, few: Path, web: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = web
    monkeypatch.setenv("COPREP_STORAGE_PATIENCE", "1")
    urls = [f"{address}/{path.relative_to(few)}" for path in sorted(few.rglob("*.jpg"))]
    with (
        loader(coprep.Files(urls), cache="off", on_error="skip") as train,
        pytest.raises(coprep.StorageError, match="certificate"),
    ):
        ids(train)
