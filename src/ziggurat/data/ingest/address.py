"""Parses the address of a reader."""

from __future__ import annotations

import re

from ziggurat.core.errors import ConfigError

_PLACE = re.compile(r"(?:grpc://)?(?P<place>(?:[^\s:/\[\],]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5}))")


def checked_address(address: str) -> str:
    """Returns ``grpc://host:port``; the scheme may be omitted in ``address``.

    Raises:
        ConfigError: ``address`` is malformed.
    """
    found = _PLACE.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise ConfigError(
            f"{address!r} is not the address of a reader; "
            "write each as grpc://HOST:PORT, as `ziggurat ingest` prints it"
        )
    return f"grpc://{found['place']}"
