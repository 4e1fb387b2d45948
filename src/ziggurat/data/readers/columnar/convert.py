"""Converts the columns of a batch to their declared types, and vectors to one column for each of their numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.cells.text import CellRules, Converted
from ziggurat.data.readers.cells.typed import convert_typed, type_mismatch
from ziggurat.data.readers.columnar.paths import is_list
from ziggurat.data.readers.rejection_reasons import rejection_reason

WRONG_LENGTH = "not a vector of the declared length"
NULL_IN_VECTOR = "a missing number in a vector"


def convert_columns(schema: RawSchema, cells_of: Callable[[str], pa.Array], rules: CellRules) -> list[Converted]:
    """Converts every column of ``schema``.

    Args:
        schema: the declared columns.
        cells_of: returns the cells of a source column, given its name; all have the same number of rows.
        rules: the rules for reading cells.
    """
    vectors: dict[str, list[Converted]] = {}
    columns: list[Converted] = []
    for column in schema.columns:
        if column.vector is None:
            columns.append(convert_typed(cells_of(column.name), column, rules))
            continue
        name, length = column.vector.column, column.vector.length
        if name not in vectors:
            vectors[name] = split_vectors(cells_of(name), length, rules)
        columns.append(vectors[name][column.vector.index])
    return columns


def mismatch(kind: pa.DataType, column: RawColumn) -> tuple[str, str] | None:
    """Returns (problem, hint) if cells of the Arrow type ``kind`` cannot be converted to ``column``, else None."""
    if column.vector is None:
        return type_mismatch(kind, column)
    length = column.vector.length
    wanted = f"vectors of {length} numbers are declared"
    if pt.is_null(kind):
        return None
    if not is_list(kind) or not _is_number(kind.value_type):
        return f"holds {kind}, {wanted}", "name a column of lists of numbers, or correct the feature's `kind`"
    if pt.is_fixed_size_list(kind) and kind.list_size != length:
        return f"holds vectors of {kind.list_size} numbers, {wanted}", f"set `length: {kind.list_size}`"
    return None


def split_vectors(cells: pa.Array, length: int, rules: CellRules) -> list[Converted]:
    """Returns the numbers at each position of the vectors as a FLOAT column; those of a missing vector are missing.

    A vector of another length, or with a missing number, is rejected; the first of the columns has the reasons.
    """
    rows = len(cells)
    if pt.is_null(cells.type):
        return [Converted(pa.nulls(rows, pa.float64())) for _ in range(length)]
    lengths = pc.list_value_length(cells).fill_null(length).to_numpy(zero_copy_only=False).astype(np.int64)
    bad: dict[int, str] = {}
    for row in np.flatnonzero(lengths != length):
        received = f"received {lengths[row]} numbers, {length} are declared"
        bad[int(row)] = rejection_reason(WRONG_LENGTH, received, "correct the row, or leave the vector empty")
    present = np.flatnonzero((lengths == length) & cells.is_valid().to_numpy(zero_copy_only=False))
    elements = cells.take(pa.array(present)).flatten()
    nulls = elements.is_null().to_numpy(zero_copy_only=False).reshape(-1, length)
    for place in np.flatnonzero(nulls.any(axis=1)):
        received = f"number {int(nulls[place].argmax()) + 1} of {length} is null"
        bad[int(present[place])] = rejection_reason(NULL_IN_VECTOR, received, "leave the whole vector empty instead")
    converted = convert_typed(elements, RawColumn("", ValueType.FLOAT), rules)
    for element, reason in converted.bad.items():
        row = int(present[element // length])
        bad.setdefault(row, reason.replace("received", f"element {element % length + 1} received", 1))
    numbers = np.full((length, rows), np.nan)
    numbers[:, present] = converted.values.fill_null(np.nan).to_numpy(zero_copy_only=False).reshape(-1, length).T
    columns = [pa.array(each, from_pandas=True) for each in numbers]
    return [Converted(values, bad if index == 0 else {}) for index, values in enumerate(columns)]


def _is_number(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_null(kind)
