"""Refusals: why a request is not answered, in the words of its caller, and never with a traceback."""

from __future__ import annotations

from typing import Any

import msgspec

MOST_ROWS_NAMED = 20
"""Rows at fault that a refusal names."""


class HttpRefused(Exception):
    """A request that is not answered.

    Args:
        status: the HTTP status, 4xx or 503.
        code: a short name of the reason, for programs.
        problem: what was received and what is allowed.
        hint: what to do.
        rows: the rows at fault, if the reason is in rows.
        retry_after_s: after how many seconds the same request may succeed; None: it will not.
        close: whether the connection ends with the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        problem: str,
        hint: str = "",
        *,
        rows: tuple[dict[str, Any], ...] = (),
        retry_after_s: int | None = None,
        close: bool = False,
    ) -> None:
        self.status, self.code, self.problem, self.hint = status, code, problem, hint
        self.rows, self.retry_after_s, self.close = rows, retry_after_s, close
        super().__init__(problem)

    def body(self) -> bytes:
        """Returns the refusal as JSON; ``error`` is a text, as the Open Inference Protocol has it."""
        found: dict[str, Any] = {"error": self.problem, "code": self.code}
        if self.hint:
            found["hint"] = self.hint
        if self.rows:
            found["rows"] = self.rows[:MOST_ROWS_NAMED]
            found["rows_at_fault"] = len(self.rows)
        return msgspec.json.encode(found)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the headers of the answer, without its length."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def overloaded(problem: str, retry_after_s: float) -> HttpRefused:
    """Returns the refusal of a request for which there is no place."""
    hint = "send it again after the seconds of Retry-After, or start more workers"
    return HttpRefused(503, "overloaded", problem, hint, retry_after_s=max(1, round(retry_after_s + 0.5)))
