"""Tokens, certificates, and what a server that other machines can reach must have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.network.conftest import Secrets
from ziggurat.core.errors import ConfigError
from ziggurat.network.access import (
    Access,
    Credentials,
    check_can_listen,
    check_exposure,
    check_secrecy,
    is_loopback,
    read_access,
    read_credentials,
)
from ziggurat.network.tls import read_authorities, read_certificate
from ziggurat.network.token import is_authentic, read_token, token_header

TOKEN = "0123456789abcdef" * 4


def token_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_the_documented_commands_make_what_is_read(secrets: Secrets) -> None:
    access = read_access(secrets.token, secrets.certificate, secrets.key)
    assert access.token is not None
    assert len(access.token) == 64
    assert access.certificate is not None
    assert access.certificate.chain == secrets.certificate.read_bytes()
    credentials = read_credentials(secrets.token, secrets.certificate)
    assert credentials == Credentials(access.token, secrets.certificate.read_bytes())
    assert read_access(None, None, None) == Access()
    assert read_credentials(None, None) == Credentials()


def test_secrets_are_not_shown(secrets: Secrets) -> None:
    shown = repr((read_access(secrets.token, secrets.certificate, secrets.key), read_credentials(secrets.token, None)))
    assert secrets.token.read_text().strip() not in shown
    assert "PRIVATE" not in shown


def test_a_token_may_end_in_a_line_break(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path, f"{TOKEN}\r\n".encode())) == TOKEN


def test_the_token_may_be_named_by_a_link(tmp_path: Path) -> None:
    """As Kubernetes mounts secrets."""
    (tmp_path / "link").symlink_to(token_file(tmp_path, TOKEN.encode()))
    assert read_token(tmp_path / "link") == TOKEN


@pytest.mark.parametrize(
    "content", [b"", b"short", b"\n" * 50, TOKEN.encode() + b" " + TOKEN.encode(), b"\xff" * 40, b"x" * 1025]
)
def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"token: holds no token.*\n  hint: make a token .*openssl rand"):
        read_token(token_file(tmp_path, content))


def test_a_missing_or_endless_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file: there is no such file"):
        read_token(tmp_path / "no such file")
    with pytest.raises(ConfigError, match="/dev/zero: is a device, not a file"):
        read_token(Path("/dev/zero"))
    with pytest.raises(ConfigError, match="has 3,000 bytes; at most 2,048 are read"):
        read_token(token_file(tmp_path, b"x" * 3000))


def test_a_secret_that_everyone_can_read_is_refused(tmp_path: Path, secrets: Secrets) -> None:
    path = token_file(tmp_path, TOKEN.encode(), 0o644)
    with pytest.raises(ConfigError, match=rf"every user .* this token \(its mode is 0644\)\n  hint: chmod 600 {path}"):
        read_token(path)
    shutil.copy(secrets.key, tmp_path / "key")
    (tmp_path / "key").chmod(0o604)
    with pytest.raises(ConfigError, match=r"every user of this machine can use this key \(its mode is 0604\)"):
        read_certificate(secrets.certificate, tmp_path / "key")


def test_only_the_token_itself_is_authentic() -> None:
    _, value = token_header(TOKEN)
    assert is_authentic([value.decode()], TOKEN)
    for received in ([], [TOKEN], ["Bearer "], [value.decode()[:-1]], [value.decode() + "0"], [value.decode()] * 2):
        assert not is_authentic(received, TOKEN)
    assert not is_authentic(["Bearer é"], TOKEN)


def test_a_certificate_and_another_key_are_refused(tmp_path: Path, secrets: Secrets) -> None:
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("no certificate")
    no_pem.chmod(0o600)
    for chain, key in ((no_pem, secrets.key), (secrets.certificate, no_pem), (secrets.key, secrets.key)):
        with pytest.raises(ConfigError, match=r"are no certificate and its unencrypted key \((.|\n)*openssl req"):
            read_certificate(chain, key)
    with pytest.raises(ConfigError, match=r"no\.pem: holds no certificate in PEM"):
        read_authorities(no_pem)
    for missing in (lambda path: read_certificate(path, secrets.key), read_authorities):
        with pytest.raises(ConfigError, match=r"gone: there is no such file"):
            missing(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"--tls-cert without --tls-key"):
        read_access(None, secrets.certificate, None)
    with pytest.raises(ConfigError, match=r"--tls-key without --tls-cert"):
        read_access(None, None, secrets.key)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, Access())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_a_token_and_tls(host: str, secrets: Secrets) -> None:
    both = read_access(secrets.token, secrets.certificate, secrets.key)
    check_exposure(host, both)
    for access, missing in (
        (Access(), r"a token \(--token-file\) and TLS \(--tls-cert, --tls-key\)"),
        (Access(token=TOKEN), r"TLS \(--tls-cert, --tls-key\)"),
        (Access(certificate=both.certificate), r"a token \(--token-file\)"),
    ):
        with pytest.raises(ConfigError, match=rf"--host {host}: other machines .* needs {missing}\n") as caught:
            check_exposure(host, access)
        assert "openssl rand" in caught.value.hint
        assert "openssl req" in caught.value.hint


def test_a_token_does_not_travel_unencrypted() -> None:
    check_secrecy("grpc://127.0.0.1:1", "127.0.0.1", False, Credentials(TOKEN))
    check_secrecy("grpc://192.0.2.1:1", "192.0.2.1", False, Credentials())
    check_secrecy("grpc+tls://192.0.2.1:1", "192.0.2.1", True, Credentials(TOKEN))
    with pytest.raises(ConfigError, match=r"unencrypted\n  hint: write grpc\+tls://192\.0\.2\.1:1,"):
        check_secrecy("grpc://192.0.2.1:1", "192.0.2.1", False, Credentials(TOKEN))


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:0: cannot be listened on"):
        check_can_listen("192.0.2.1", 0)
