"""Checks on rows that a reader sent: that they are what Arrow says they are, and that ids are in their tables.

Shape legend: K features, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import Schema
from ziggurat.core.untrusted import Damage, arrow_errors

Ids = npt.NDArray[np.integer[Any]]


def check_arrow(message: pa.RecordBatch, rows: int, where: str, damage: Damage) -> None:
    """Validates that a received record batch has ``rows`` rows, no nulls, and only values inside its buffers.

    Raises:
        ZigguratError: of class ``damage.error``: it has not.
    """
    if message.num_rows != rows:
        raise damage.of(where, f"sent {message.num_rows:,} rows where {rows:,} were asked for")
    with arrow_errors(f"{where}: a message", damage):
        message.validate(full=True)
        if any(column.null_count for column in message.columns):
            raise damage.of(where, "sent empty cells, which no encoded row has")


def check_ids(ids: Ids, feature: str, schema: Schema, where: str, damage: Damage) -> None:
    """Validates that the ids of a feature are rows of its table.

    Raises:
        ZigguratError: of class ``damage.error``: one is not.
    """
    if len(ids):
        _check_range(int(ids.min()), int(ids.max()), feature, schema, where, damage)


def check_single_ids(ids_KB: Ids, features: Sequence[str], schema: Schema, where: str, damage: Damage) -> None:
    """Validates that the ids of features with one id per row, a row of ``ids_KB`` each, are rows of their tables.

    Raises:
        ZigguratError: of class ``damage.error``: one is not.
    """
    if ids_KB.size:
        for feature, low, high in zip(features, ids_KB.min(1).tolist(), ids_KB.max(1).tolist(), strict=True):
            _check_range(low, high, feature, schema, where, damage)


def _check_range(low: int, high: int, feature: str, schema: Schema, where: str, damage: Damage) -> None:
    table = schema.tables[feature]
    rows = schema.rows[table]
    if low < 0 or high >= rows:
        wrong = low if low < 0 else high
        raise damage.of(where, f"sent the id {wrong} of feature {feature!r}, whose table {table!r} has {rows:,} rows")


def check_block(block: pa.RecordBatch, rows: int, schema: Schema, where: str, damage: Damage) -> None:
    """Validates an encoded block, whose columns are those of the schema.

    Raises:
        ZigguratError: of class ``damage.error``: it is not what the schema and the manifest say.
    """
    check_arrow(block, rows, where, damage)
    for feature in schema.categorical:
        check_ids(block.column(feature).to_numpy(), feature, schema, where, damage)
    for feature in (*schema.bags, *schema.sequences):
        check_ids(block.column(feature).flatten().to_numpy(), feature, schema, where, damage)
