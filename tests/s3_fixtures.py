"""Fixtures that a conftest.py imports: a local server that speaks S3, and a faulty proxy in front of it."""

from __future__ import annotations

import itertools
import logging
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.s3_kit import Proxy, run_proxy

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server."""
    pytest.importorskip("s3fs", reason='needs s3fs: pip install "ziggurat[s3]"')
    moto = pytest.importorskip("moto.server", reason="needs an S3 server: pip install moto[s3] flask flask-cors")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """``s3://BUCKET/run`` in an empty bucket, with the environment variables set for the server."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = f"bucket-{next(_numbers)}"
    with urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{bucket}", method="PUT"), timeout=60):
        return f"s3://{bucket}/run"


@pytest.fixture(scope="session")
def faulty_server(s3_server: str) -> Iterator[Proxy]:
    """A proxy in front of the S3 server."""
    with run_proxy(s3_server) as made:
        yield made


@pytest.fixture
def proxy(s3: str, faulty_server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The faulty proxy, as the endpoint in the environment. It forwards all requests until a test sets faults."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty_server.url)
    faulty_server.reset()
    yield faulty_server
    faulty_server.reset()


@pytest.fixture
def clear_clients() -> Iterator[Callable[[], None]]:
    """Clears cached clients, so that the next store is made from the current environment; also after the test."""
    import s3fs

    yield s3fs.S3FileSystem.clear_instance_cache
    s3fs.S3FileSystem.clear_instance_cache()
