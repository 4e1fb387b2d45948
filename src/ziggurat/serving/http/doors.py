"""Who may call a served model, and how it may be reached."""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.network.access import is_loopback
from ziggurat.network.tls import MAKE_CERTIFICATE, read_certificate
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.token_file import MAKE_TOKEN, Client, find_client, read_token_file

Headers = Sequence[tuple[bytes, bytes]]

OPEN = frozenset({"/", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no token: load balancers probe them, and the page asks for a token."""
PAGE = "/page/"
"""The folder of the page's files, which hold nothing of the model."""
ADMIN = "/admin/"


@dataclass(frozen=True, slots=True)
class Doors:
    """What a server demands of its clients.

    Attributes:
        clients: those who have tokens; none: everyone on this machine.
        host: the address that it listens on.
        certificate, key: files of its TLS; None: connections are not encrypted.
        share: this process's share of the clients' rates.
    """

    clients: tuple[Client, ...] = ()
    host: str = "127.0.0.1"
    certificate: Path | None = None
    key: Path | None = None
    share: float = 1.0

    @classmethod
    def read(
        cls, host: str, token_file: Path | None, certificate: Path | None, key: Path | None, workers: int = 1
    ) -> Doors:
        """Reads the files that a server is given.

        Raises:
            ConfigError: a file is missing or holds something else, only one of certificate and key is given, or other
                machines could reach the server without token or TLS.
        """
        if (certificate is None) != (key is None):
            given, other = ("--tls-key", "--tls-cert") if certificate is None else ("--tls-cert", "--tls-key")
            raise ConfigError(f"{given} without {other}", f"add {other}; this makes both files: {MAKE_CERTIFICATE}")
        if certificate is not None and key is not None:
            read_certificate(certificate, key)
        clients = () if token_file is None else read_token_file(token_file)
        missing = ["tokens (--token-file)"] * (not clients)
        missing += ["TLS (--tls-cert, --tls-key)"] * (certificate is None)
        if missing and not is_loopback(host):
            raise ConfigError(
                f"--host {host}: other machines can reach this address, which needs {' and '.join(missing)}",
                "make a token and a certificate, and add --token-file serving.tokens --tls-cert server.crt --tls-key "
                f"server.key:\n    {MAKE_TOKEN}\n    {MAKE_CERTIFICATE}\n  or leave --host out to serve this machine "
                "alone",
            )
        return cls(clients, host, certificate, key, 1 / workers)

    def url(self, port: int) -> str:
        """Returns the URL by which the server is called; for every network, the name of this machine stands for it."""
        host = socket.gethostname() if self.host in {"0.0.0.0", "::"} else self.host
        host = f"[{host}]" if ":" in host else host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{port}"

    def admit(self, path: str, headers: Headers) -> str:
        """Returns the name of who calls, ``-`` without tokens.

        Raises:
            HttpRefused: the token is missing or wrong, may not do this, or has been used too often; or, without tokens,
                the request was addressed to a host by which this machine is not called.
        """
        if not self.clients:
            self._check_host(headers)
            return "-"
        if path in OPEN or path.startswith(PAGE):
            return "-"
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        client = find_client(token.strip(), self.clients) if scheme.lower() == "bearer" else None
        if client is None:
            raise HttpRefused(
                401, "no_token", "the token is missing or wrong", "send the header Authorization: Bearer TOKEN"
            )
        wait_s = client.wait_s(self.share)
        if wait_s:
            raise HttpRefused(
                429,
                "rate",
                f"{client.name!r} has sent more requests than the {client.rate:g} a second that its token allows",
                "send fewer, or raise the rate in the token file",
                retry_after_s=max(1, round(wait_s + 0.5)),
            )
        if path.startswith(ADMIN) and client.right != "admin":
            raise HttpRefused(
                403, "not_admin", f"the token of {client.name!r} may predict, not administer", "use one with admin"
            )
        return client.name

    def _check_host(self, headers: Headers) -> None:
        """Refuses requests that a page of another site makes a browser send to a name of its own for this address."""
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        for value in hosts:
            if not _is_this_machine(value, self.host):
                raise HttpRefused(
                    403,
                    "foreign_host",
                    "the header Host names another host than this machine",
                    "call http://localhost or http://127.0.0.1",
                )


@functools.lru_cache(256)
def _is_this_machine(value: str, host: str) -> bool:
    """Whether a header Host names this machine, which is served as ``host``."""
    name = value.rpartition(":")[0] if not value.endswith("]") and ":" in value else value
    name = name.strip("[]").lower()
    return name in {"localhost", host.lower()} or name.endswith(".localhost") or _is_local(name)


def _is_local(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
