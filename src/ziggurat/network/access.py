"""Who may call a service: what a server demands, what a client shows, and what is required beyond loopback."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.network.tls import MAKE_CERTIFICATE, Certificate, read_authorities, read_certificate
from ziggurat.network.token import MAKE_TOKEN, read_token


@dataclass(frozen=True, slots=True)
class Access:
    """What a server demands of its clients and shows them.

    Attributes:
        token: the token that each call must carry; None: none.
        certificate: the certificate of its TLS; None: connections are not encrypted.
    """

    token: str | None = field(default=None, repr=False)
    certificate: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows to servers, and by what it checks them.

    Attributes:
        token: the token; None: none is sent.
        authorities: certificates in PEM by which the servers' certificates are checked; None: those of gRPC.
    """

    token: str | None = field(default=None, repr=False)
    authorities: bytes | None = None


def read_access(token: Path | None, chain: Path | None, key: Path | None) -> Access:
    """Reads the files that a server is given.

    Args:
        token: the file with the token; None: no token.
        chain, key: the files with the certificate and its private key; None: no TLS.

    Raises:
        ConfigError: a file is missing or holds something else, or only one of ``chain`` and ``key`` is given.
    """
    if (chain is None) != (key is None):
        given, other = ("--tls-key", "--tls-cert") if chain is None else ("--tls-cert", "--tls-key")
        raise ConfigError(f"{given} without {other}", f"add {other}; this makes both files: {MAKE_CERTIFICATE}")
    certificate = None if chain is None or key is None else read_certificate(chain, key)
    return Access(None if token is None else read_token(token), certificate)


def read_credentials(token: Path | None, authorities: Path | None) -> Credentials:
    """Reads the files that a client is given.

    Args:
        token: the file with the token; None: no token.
        authorities: the file with the certificates by which servers are checked; None: those of gRPC.

    Raises:
        ConfigError: a file is missing or holds something else.
    """
    return Credentials(
        None if token is None else read_token(token), None if authorities is None else read_authorities(authorities)
    )


def check_exposure(host: str, access: Access) -> None:
    """Validates that a server that other machines can reach has a token and TLS.

    Raises:
        ConfigError: it lacks one of them.
    """
    missing = [
        name
        for name, value in (
            ("a token (--token-file)", access.token),
            ("TLS (--tls-cert, --tls-key)", access.certificate),
        )
        if value is None
    ]
    if missing and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: other machines can reach this address, which needs {' and '.join(missing)}",
            "make a token and a certificate, and add --token-file reader.token --tls-cert server.crt --tls-key "
            f"server.key:\n    {MAKE_TOKEN}\n    {MAKE_CERTIFICATE}\n  or leave --host out to serve this machine alone",
        )


def check_secrecy(address: str, host: str, encrypted: bool, credentials: Credentials) -> None:
    """Validates that no token would travel unencrypted between machines.

    Raises:
        ConfigError: it would.
    """
    if credentials.token is not None and not encrypted and not is_loopback(host):
        raise ConfigError(
            f"{address}: the token would travel there unencrypted",
            f"write grpc+tls://{address.partition('://')[2]}, and start the readers with --tls-cert and --tls-key",
        )


def is_loopback(host: str) -> bool:
    """Returns whether an address can be reached from this machine alone; a name counts by its addresses."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
    except (OSError, ValueError):
        return False


def check_can_listen(host: str, port: int) -> None:
    """Validates that a port can be listened on, with clearer errors than those of gRPC.

    Raises:
        ConfigError: it cannot.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "choose another --port; 0 takes a free one" if port else "choose another --host, such as 127.0.0.1"
        raise ConfigError(f"{host}:{port}: cannot be listened on ({reason})", hint) from None
