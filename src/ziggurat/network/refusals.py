"""Refusals: the message to the client, and the lines about them in the server's output, of which there are few."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from ziggurat.network.peer import Peer

Kind = Literal["bad", "foreign", "secret", "busy", "stalled", "flood", "failed"]
"""Why a request is refused: it is malformed or too large; it is of another dataset or version; its token is missing or
wrong; there is no place for it; its client does not read; its connection sends too much; the server cannot answer."""

_SECONDS = 10.0
_KEYS = 256
_LINES = 64


class Refused(Exception):
    """A request that is not answered.

    Args:
        kind: why.
        message: the message to the client; holds no path of this machine.
        detail: bytes for the client's program.
        log: the line for the server's output; default: ``message``.
        size_bytes: size of the request.
    """

    def __init__(self, kind: Kind, message: str, detail: bytes = b"", log: str = "", size_bytes: int = 0) -> None:
        self.kind: Kind = kind
        self.message, self.detail, self.log, self.size_bytes = message, detail, log or message, size_bytes
        super().__init__(message)


@dataclass(slots=True)
class _Recent:
    """The last line of one kind about one host: when it was written, and how many were left out since."""

    written: float
    left_out: int = 0


class RefusalLog:
    """The lines about refusals: of each kind and host at most one in ten seconds, with the number left out since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: dict[tuple[str, Kind], _Recent] = {}
        self._lines: deque[str] = deque(maxlen=_LINES)

    def add(self, peer: Peer, kind: Kind, message: str) -> bool:
        """Adds a line about a refused request of ``peer``, unless there was one of this kind just now.

        Returns:
            Whether it was added.
        """
        now = time.monotonic()
        with self._lock:
            key = (peer.host, kind)
            if key not in self._recent and len(self._recent) >= _KEYS:
                self._recent = {each: last for each, last in self._recent.items() if now - last.written < _SECONDS}
                if len(self._recent) >= _KEYS:
                    key = ("", kind)  # so many hosts share the lines of one
            last = self._recent.get(key)
            if last is not None and now - last.written < _SECONDS:
                last.left_out += 1
                return False
            more = f" ({last.left_out:,} more before)" if last is not None and last.left_out else ""
            self._recent[key] = _Recent(now)
            self._lines.append(f"refused {peer}: {message}{more}")
            return True

    def take(self) -> list[str]:
        """Returns the lines since the last call."""
        with self._lock:
            lines = list(self._lines)
            self._lines.clear()
        return lines
