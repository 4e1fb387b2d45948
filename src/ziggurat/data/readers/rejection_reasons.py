"""How a refused row says why: ``kind: what was received — what to do``.

The kind (the text before the first colon) is what refusals are counted by, so it holds no value of the row.
"""

from __future__ import annotations

from ziggurat.data.readers.blocks import BadRow

TEXT_LIMIT = 2_000
"""Characters of a refused row that are kept."""

_HINT = " — "


def refusal(kind: str, received: str, hint: str) -> str:
    """The reason of a bad row: ``refusal("not a whole number", "received '3.5'", "declare it a float")``."""
    assert ":" not in kind, kind
    return f"{kind}: {received}{_HINT}{hint}"


def kind_of(reason: str) -> str:
    """The part of a reason that refusals are counted by."""
    return reason.partition(":")[0]


def split_hint(reason: str) -> tuple[str, str]:
    """A reason as (problem, hint); the hint is empty where the reason holds none."""
    problem, _, hint = reason.rpartition(_HINT)
    return (problem, hint) if problem else (reason, "")


def as_text(row: bytes) -> str:
    """A raw row for a :class:`BadRow`: decoded with marks for bytes that are not UTF-8, and cut."""
    return row[: 4 * TEXT_LIMIT].decode("utf-8", errors="backslashreplace")[:TEXT_LIMIT]


def place_of(row: BadRow) -> str:
    """``file, line 7, column 'price'``, for messages."""
    return f"{row.file}, line {row.line}" + ("" if row.column is None else f", column {row.column!r}")
