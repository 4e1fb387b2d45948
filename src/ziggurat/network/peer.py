"""The other end of a connection."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import unquote


class Peer(NamedTuple):
    """The other end of a connection: a numeric host address and a port."""

    host: str
    port: int

    @classmethod
    def of_socket(cls, address: tuple[str, int] | tuple[str, int, int, int]) -> Peer:
        """Returns the peer with the address that a socket gives for it."""
        return cls(_plain(address[0]), address[1])

    @classmethod
    def of_grpc(cls, text: str) -> Peer:
        """Returns the peer that gRPC calls ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``."""
        host, _, port = unquote(text).partition(":")[2].rpartition(":")
        return cls(_plain(host.strip("[]")), int(port)) if port.isdecimal() else cls(text, 0)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _plain(host: str) -> str:
    """Returns the one spelling of an address: IPv4 addresses that are written as IPv6 become IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
