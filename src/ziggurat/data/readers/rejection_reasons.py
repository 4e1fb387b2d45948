"""Reasons for rejecting a row, in the form ``kind: what was received — what to do``.

Rejections are counted by kind (the text before the first colon), so the kind never contains a value of the row.
"""

from __future__ import annotations

from ziggurat.data.readers.blocks import BadRow

TEXT_LIMIT = 2_000
"""Number of characters kept of a rejected row."""

_HINT = " — "


def rejection_reason(kind: str, received: str, hint: str) -> str:
    """Formats a reason: ``rejection_reason("not a whole number", "received '3.5'", "declare it a float")``."""
    assert ":" not in kind, kind
    return f"{kind}: {received}{_HINT}{hint}"


def reason_kind(reason: str) -> str:
    """Returns the kind of a reason, by which rejections are counted."""
    return reason.partition(":")[0]


def split_hint(reason: str) -> tuple[str, str]:
    """Splits a reason into (problem, hint); the hint is empty if the reason has none."""
    problem, _, hint = reason.rpartition(_HINT)
    return (problem, hint) if problem else (reason, "")


def as_text(row: bytes) -> str:
    """Decodes a raw row for a :class:`BadRow`: bytes that are not UTF-8 are escaped, and the text is truncated."""
    return row[: 4 * TEXT_LIMIT].decode("utf-8", errors="backslashreplace")[:TEXT_LIMIT]


def row_location(row: BadRow) -> str:
    """Returns ``file, line 7, column 'price'``, for messages."""
    return f"{row.file}, line {row.line}" + ("" if row.column is None else f", column {row.column!r}")
