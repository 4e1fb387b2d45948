"""Tokens with their rights and rates, and TLS, which a server needs that other machines can reach."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import ssl
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import uvicorn.config

from tests.serving.http_kit import ADMIN, TOKEN, Exported, exported, running
from ziggurat.core.errors import ConfigError
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.app import application
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.server import WorkerServer
from ziggurat.serving.http.token_file import find_client, read_token_file


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


def digest(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def token_file(folder: Path, *lines: str, mode: int = 0o600) -> Path:
    path = folder / "serving.tokens"
    path.write_text("# tokens\n" + "\n".join(lines) + "\n")
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "server.crt", folder / "server.key"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out",
         str(chain), "-subj", "/CN=localhost", "-addext", names],
        check=True,
        capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    return chain, key


def test_tokens_rights_and_rates_over_tls(export: Exported, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    chain, key = certificate
    tokens = token_file(tmp_path, f"shop predict 5 {digest(TOKEN)}", f"ops admin - {digest(ADMIN)}  # those who run it")
    options = ("--token-file", str(tokens), "--tls-cert", str(chain), "--tls-key", str(key))
    trusted = ssl.create_default_context(cafile=str(chain))
    with running(export.folder, *options, verify=trusted) as server:
        assert server.url.startswith("https://")
        client, body = server.client, {"rows": export.rows[:1]}
        shop, ops = ({"authorization": f"Bearer {token}"} for token in (TOKEN, ADMIN))
        assert client.get("/v2/health/ready").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            refused = client.post("/v1/predict", json=body, headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert client.get("/metrics", headers=headers).status_code == 401
        assert client.get("/admin/status", headers=shop).status_code == 403
        assert client.get("/admin/status", headers=ops).json()["clients"][0] == {
            "name": "shop",
            "right": "predict",
            "rate": 5.0,
        }
        answers = [client.post("/v1/predict", json=body, headers=shop) for _ in range(40)]
        assert {each.status_code for each in answers} == {200, 429}
        refused = next(each for each in answers if each.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "'shop' has sent more requests than the 5 a second" in refused.json()["error"]
        assert {client.post("/v1/predict", json=body, headers=ops).status_code for _ in range(20)} == {200}
        assert TOKEN not in server.lines()
        assert '"client":"shop"' in server.lines()
        server.process.send_signal(signal.SIGTERM)  # the client keeps its connection, and does not confirm its end
        assert server.process.wait(25) == 0, "the transport waits 30 seconds for a client of TLS"


@pytest.mark.parametrize("workers", [1, 4])
def test_a_rate_is_divided_among_workers(workers: int, tmp_path: Path) -> None:
    tokens = token_file(tmp_path, f"shop predict 8 {digest(TOKEN)}")
    doors = Doors.read("127.0.0.1", tokens, None, None, workers)
    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    with monotonic(0.0) as now:
        for seconds in (1.0, 100.0):
            now(seconds)
            for _ in range(8 // workers):
                assert doors.admit("/v1/predict", headers) == "shop"
            with pytest.raises(HttpRefused, match="more requests than the 8 a second"):
                doors.admit("/v1/predict", headers)


@contextlib.contextmanager
def monotonic(start: float) -> Generator[Callable[[float], None]]:
    """Stops the clock of tokens; what it gives sets it."""
    at = start

    def to(seconds: float) -> None:
        nonlocal at
        at = seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ziggurat.serving.http.token_file.time.monotonic", lambda: at)
        yield to


def test_tls_before_1_2_is_never_spoken(
    export: Exported, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own default is as strict, but a machine may be set up otherwise."""
    contexts = uvicorn.config.create_ssl_context

    def lax(*arguments: Any, **options: Any) -> ssl.SSLContext:
        found = contexts(*arguments, **options)
        found.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        return found

    monkeypatch.setattr(uvicorn.config, "create_ssl_context", lax)
    doors = Doors.read("127.0.0.1", token_file(tmp_path, f"shop predict 5 {digest(TOKEN)}"), *certificate)
    app = application(export.model, doors, log=AccessLog(None))
    config = WorkerServer(app, doors, ServingLimits()).config
    config.load()
    assert config.ssl is not None
    assert config.ssl.minimum_version == ssl.TLSVersion.TLSv1_2
    app.service.batcher.close()


def test_beyond_loopback_tokens_and_tls_are_required(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    tokens = token_file(tmp_path, f"shop predict 5 {digest(TOKEN)}")
    with pytest.raises(ConfigError, match=r"needs tokens \(--token-file\) and TLS"):
        Doors.read("0.0.0.0", None, None, None)
    with pytest.raises(ConfigError, match=r"needs TLS \(--tls-cert, --tls-key\)"):
        Doors.read("0.0.0.0", tokens, None, None)
    with pytest.raises(ConfigError, match=r"needs tokens \(--token-file\)$|needs tokens"):
        Doors.read("0.0.0.0", None, *certificate)
    with pytest.raises(ConfigError, match="--tls-cert without --tls-key"):
        Doors.read("127.0.0.1", None, certificate[0], None)
    assert len(Doors.read("0.0.0.0", tokens, *certificate).clients) == 1
    assert Doors.read("127.0.0.1", None, None, None).clients == ()


@pytest.mark.parametrize(
    ("lines", "mode", "message"),
    [
        ([], 0o600, "holds no token"),
        (["shop predict 5"], 0o600, "line 2: has 3 words"),
        (["shop all 5 " + digest(TOKEN)], 0o600, "the right is 'all'"),
        (["shop predict fast " + digest(TOKEN)], 0o600, "the rate is 'fast'"),
        (["shop predict 0 " + digest(TOKEN)], 0o600, "the rate is '0'"),
        (["shop predict 5 " + TOKEN], 0o600, "the last word is no hash"),
        (["s/p predict 5 " + digest(TOKEN)], 0o600, "the name is 's/p'"),
        (["a predict 5 " + digest(TOKEN), "a admin 5 " + digest(ADMIN)], 0o600, "names 'a' twice"),
        (["shop predict 5 " + digest(TOKEN)], 0o644, "every user of this machine can use this token file"),
    ],
)
def test_token_files_that_cannot_be_used(tmp_path: Path, lines: list[str], mode: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_token_file(token_file(tmp_path, *lines, mode=mode))


def test_a_short_token_is_never_right(tmp_path: Path) -> None:
    clients = read_token_file(
        token_file(tmp_path, f"weak predict - {digest('abc')}", f"shop predict - {digest(TOKEN)}")
    )
    assert find_client("abc", clients) is None
    found = find_client(TOKEN, clients)
    assert found is not None
    assert found.name == "shop"
