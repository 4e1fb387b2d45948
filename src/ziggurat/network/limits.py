"""The bounds of a service."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What the clients of a server may take of it.

    Attributes:
        request_bytes: size of a request.
        streams: answers that are being given at a time; half of them to one host, an eighth to connections of one host
            that have not proven themselves.
        streams_per_connection: answers that are being given to one connection.
        held_bytes: memory of all answers that were made and have not been taken.
        stalled_s: seconds after which an answer that its client does not take is ended.
        pressed_s: the same, while proven connections wait for its place.
        unproven_pressed_s: the same, while others wait for its place.
        patience_s: seconds that a request waits for a place before it is refused.
        refusal_pause_s: seconds after which a bad request is answered, and as many again for each 4 MiB of it, so that
            a client that only sends those gets little of the server's time.
        connections: open connections; half of them from one host.
        unread_bytes: what a connection may have sent that is no complete request.
        unread_s: seconds for which it may be more.
        burst_bytes: how much it may be at any moment.
        all_unread_bytes: the same, for all connections together.
    """

    request_bytes: int = 256 * 2**10
    streams: int = 256
    streams_per_connection: int = 8
    held_bytes: int = 2**30
    stalled_s: float = 30.0
    pressed_s: float = 2.0
    unproven_pressed_s: float = 10.0
    patience_s: float = 5.0
    refusal_pause_s: float = 1.0
    connections: int = 1024
    unread_bytes: int = 4 * 2**20
    unread_s: float = 1.0
    burst_bytes: int = 32 * 2**20
    all_unread_bytes: int = 128 * 2**20

    @property
    def waiting(self) -> int:
        """Requests that wait for a place at a time."""
        return max(8, self.streams // 4)

    @property
    def streams_per_host(self) -> int:
        return max(1, self.streams // 2)

    @property
    def unproven_streams_per_host(self) -> int:
        return max(1, self.streams // 8)

    @property
    def connections_per_host(self) -> int:
        return max(1, self.connections // 2)
