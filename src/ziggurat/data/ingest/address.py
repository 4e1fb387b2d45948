"""Parses the address of a reader."""

from __future__ import annotations

import re

from ziggurat.core.errors import ConfigError

_TLS = "grpc+tls://"
_PLACE = re.compile(
    r"(?P<scheme>grpc(?:\+tls)?://)?(?P<place>(?P<host>[^\s:/\[\],]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5}))"
)


def checked_address(address: str) -> str:
    """Returns ``grpc://host:port`` or ``grpc+tls://host:port``; without a scheme, ``address`` is one without TLS.

    Raises:
        ConfigError: ``address`` is malformed.
    """
    found = _PLACE.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise ConfigError(
            f"{address!r} is not the address of a reader; "
            "write each as grpc://HOST:PORT or grpc+tls://HOST:PORT, as `ziggurat ingest` prints it"
        )
    return f"{found['scheme'] or 'grpc://'}{found['place']}"


def host_of(address: str) -> str:
    """Returns the host of an address that :func:`checked_address` returned."""
    found = _PLACE.fullmatch(address)
    assert found is not None, address
    return found["host"].strip("[]")


def is_encrypted(address: str) -> bool:
    """Returns whether connections to this address use TLS."""
    return address.startswith(_TLS)
