"""Certificates and keys of TLS, checked before they reach gRPC, whose own messages about them do not name files."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.core.untrusted import Damage, opened, read_bytes
from ziggurat.network.token import refuse_public

MAKE_CERTIFICATE = (
    "openssl req -x509 -newkey rsa:3072 -nodes -days 365 -keyout server.key -out server.crt "
    '-subj "/CN=$(hostname)" -addext "subjectAltName=DNS:$(hostname)"'
)
"""The command that makes a key and a certificate, signed by itself, for the host's name."""

_LIMIT = 2**20


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a server and its private key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)


def read_certificate(chain: Path, key: Path) -> Certificate:
    """Returns the certificate in the file ``chain``, with the private key in the file ``key``.

    Raises:
        ConfigError: a file is missing or no PEM, the key is encrypted or belongs to another certificate, or every user
            of the machine can read the key.
    """
    damage = Damage(ConfigError, f"name a certificate and its key in PEM; this makes both: {MAKE_CERTIFICATE}")
    chain_pem = _read(chain, damage)
    try:
        with opened(key, damage, limit=_LIMIT, follow=True) as file:
            mode = os.fstat(file.fileno()).st_mode
            key_pem = file.read()
    except FileNotFoundError:
        raise damage.of(key, "there is no such file") from None
    refuse_public(key, mode, "key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise damage.of(f"{chain}, {key}", f"are no certificate and its unencrypted key ({_reason(error)})") from None
    return Certificate(chain_pem, key_pem)


def read_authorities(path: Path) -> bytes:
    """Returns the certificates in a PEM file, by which servers are checked.

    Raises:
        ConfigError: the file is missing, or holds no certificate.
    """
    damage = Damage(ConfigError, "name a copy of the readers' certificate (--tls-cert), or of the one that signed it")
    pem = _read(path, damage)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise damage.of(path, f"holds no certificate in PEM ({_reason(error)})") from None
    return pem


def _read(path: Path, damage: Damage) -> bytes:
    try:
        return read_bytes(path, damage, limit=_LIMIT, follow=True)
    except FileNotFoundError:
        raise damage.of(path, "there is no such file") from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
