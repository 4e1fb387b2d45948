"""Adds hints to rejected cells of labels and times; the reader itself does not know what its columns are used for."""

from __future__ import annotations

import re
from dataclasses import replace

from ziggurat.data.inference.binary_label_words import positive_value
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.cells.text import NOT_NUMBER
from ziggurat.data.readers.rejection_reasons import reason_kind, rejection_reason, split_hint
from ziggurat.features.config import Targets

_RECEIVED = re.compile(r"received '(.*)'$", re.DOTALL)


def with_hints(block: RawBlock, targets: Targets | None) -> RawBlock:
    """Returns the block, in which text rejected as a label or time has a hint that names the key to set."""
    if targets is None or not block.bad:
        return block
    return replace(block, bad=[_with_hint(row, targets) for row in block.bad])


def _with_hint(row: BadRow, targets: Targets) -> BadRow:
    if reason_kind(row.reason) != NOT_NUMBER or row.column is None:
        return row
    problem, _ = split_hint(row.reason)
    received = problem.partition(": ")[2]
    hint = _label_hint(row.column, received, targets)
    if row.column == targets.time:
        hint = (
            "set `data.time_format: iso` if the column contains times like 2024-05-01 12:30:00, or a pattern such as "
            '"%d/%m/%Y %H:%M" for others'
        )
    return row if hint is None else replace(row, reason=rejection_reason(NOT_NUMBER, received, hint))


def _label_hint(column: str, received: str, targets: Targets) -> str | None:
    """Returns the hint to set ``equals``: to the positive one of a known pair of words, or to a placeholder."""
    label = next((label for label in targets.labels if column in label.source_columns), None)
    if label is None or label.kind != "binary":
        return None
    found = _RECEIVED.search(received)
    positive = positive_value([found[1]]) if found else None
    value = "its positive text" if positive is None else f'"{positive}"'
    return f"set `equals: {value}` on label {label.name!r}, whose column contains text"
