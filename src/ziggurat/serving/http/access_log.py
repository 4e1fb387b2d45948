"""The log: a line of JSON for each request, without any value of a feature unless that is asked for."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

import msgspec


class AccessLog:
    """Writes a line for each request. What cannot be written, as on a full disk, is lost, and requests are answered.

    Args:
        out: where to; None: nowhere.
        bodies: whether the bodies of requests are written, which hold the values of features.

    Attributes:
        has_bodies: whether they are.
        lost: is called for each line that could not be written.
    """

    def __init__(self, out: TextIO | None = sys.stderr, *, bodies: bool = False) -> None:
        self._out, self.has_bodies = out, bodies
        self.lost: Callable[[], None] = lambda: None

    @property
    def is_on(self) -> bool:
        """Whether it writes."""
        return self._out is not None

    def request(self, **fields: Any) -> None:
        """Writes what was asked and answered."""
        self._write({"time": round(time.time(), 6), "event": "request"} | fields)

    def failure(self, error: BaseException, **fields: Any) -> None:
        """Writes where an error of this package arose; its message may hold values of a row, so it is left out."""
        frames = [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_tb(error.__traceback__)]
        self._write(
            {"time": round(time.time(), 6), "event": "error", "type": type(error).__name__, "at": frames} | fields
        )

    def event(self, event: str, **fields: Any) -> None:
        """Writes that something happened to the server."""
        self._write({"time": round(time.time(), 6), "event": event} | fields)

    def _write(self, fields: dict[str, Any]) -> None:
        if self._out is None:
            return
        try:
            self._out.write(msgspec.json.encode(fields).decode() + "\n")
            self._out.flush()
        except OSError:
            self.lost()
