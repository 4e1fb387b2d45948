"""The log: a line of JSON for each request, without any value of a feature."""

from __future__ import annotations

import sys
import time
import traceback
from typing import Any, TextIO

import msgspec


class AccessLog:
    """Writes a line for each request.

    Args:
        out: where to; None: nowhere.
    """

    def __init__(self, out: TextIO | None = sys.stderr) -> None:
        self._out = out

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
        if self._out is not None:
            self._out.write(msgspec.json.encode(fields).decode() + "\n")
            self._out.flush()
