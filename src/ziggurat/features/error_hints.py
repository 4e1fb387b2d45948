"""Better hints for cells of labels and times that a reader refused: it does not know what its columns are for."""

from __future__ import annotations

import re
from dataclasses import replace

from ziggurat.data.inference.binary_label_words import positive_of
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.cells.text import NOT_NUMBER
from ziggurat.data.readers.rejection_reasons import kind_of, refusal, split_hint
from ziggurat.features.config import Targets

_RECEIVED = re.compile(r"received '(.*)'$", re.DOTALL)


def with_hints(block: RawBlock, targets: Targets | None) -> RawBlock:
    """``block``, where a text in the place of a label or a time is refused with the key to set."""
    if targets is None or not block.bad:
        return block
    return replace(block, bad=[_explained(row, targets) for row in block.bad])


def _explained(row: BadRow, targets: Targets) -> BadRow:
    if kind_of(row.reason) != NOT_NUMBER or row.column is None:
        return row
    problem, _ = split_hint(row.reason)
    received = problem.partition(": ")[2]
    hint = _label_hint(row.column, received, targets)
    if row.column == targets.time:
        hint = "set `time_format: iso` beside `time` if the column holds times like 2024-05-01 12:30:00"
    return row if hint is None else replace(row, reason=refusal(NOT_NUMBER, received, hint))


def _label_hint(column: str, received: str, targets: Targets) -> str | None:
    """``equals`` with the positive one of a well-known pair of words, or with a place to put it."""
    name = next((label.name for label in targets.labels if label.source_column == column), None)
    if name is None:
        return None
    found = _RECEIVED.search(received)
    positive = positive_of([found[1]]) if found else None
    example = "its positive text" if positive is None else f'"{positive}"'
    return f"set `equals: {example}` on label {name!r}, whose column holds text"
