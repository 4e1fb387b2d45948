"""Converts typed Arrow columns (Parquet, JSON) to their declared type, which takes precedence over the file's type.

=============  ==========================================================================================
declared       accepts, in addition to text in the grammar of :mod:`ziggurat.data.readers.cells.text`
=============  ==========================================================================================
INTEGER        integers, whole floats and decimals, booleans as 0 and 1; timestamps, dates, times and durations as
               **microseconds** (since 1970 UTC for timestamps and dates; finer parts are truncated)
FLOAT          all of these, and fractions
TIME           timestamps and dates, as seconds since 1970 UTC; finer parts than microseconds are truncated; numbers,
               where the column's time format is a unit since 1970 or a pattern of digits alone
TEXT           integers, decimals, booleans (``true``), timestamps and dates (ISO 8601); floats are rejected, because
               the number of digits to write would be a guess; bytes that are not UTF-8, as hexadecimal digits
=============  ==========================================================================================

A list becomes a bag of values. A null list is an empty bag, null elements are dropped, a single value is a bag of one.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ziggurat.core.errors import shorten
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.cells.text import (
    NOT_INTEGER,
    CellRules,
    Converted,
    RejectedCell,
    checked_int64,
    convert_text,
    not_a_time_reason,
    not_finite_reason,
    regroup,
)
from ziggurat.data.readers.cells.times import reads_numbers, seconds, times_of_numbers
from ziggurat.data.readers.rejection_reasons import rejection_reason


def type_mismatch(kind: pa.DataType, column: RawColumn) -> tuple[str, str] | None:
    """Returns (problem, hint) if the Arrow type ``kind`` cannot be converted to the type of ``column``, else None."""
    if pt.is_dictionary(kind):
        return type_mismatch(kind.value_type, column)
    if _is_list(kind):
        if not column.many:
            return (
                f"holds lists ({kind}), one {column.type} a row is declared",
                "declare the feature `kind: bag` or `sequence`",
            )
        return type_mismatch(kind.value_type, RawColumn(column.name, column.type))
    if pt.is_union(kind):
        return f"holds values of several types ({kind})", f"write it as {column.type}"
    if pt.is_nested(kind):
        return f"holds {kind}", f"name a value inside it, as in `column: {column.name}.FIELD`"
    if pt.is_floating(kind) and column.type is ValueType.TEXT:
        return (
            f"holds {kind}, text is declared",
            "declare `type: integer` (whole numbers such as 3.0 are accepted) or a number",
        )
    is_time = pt.is_timestamp(kind) or pt.is_date(kind)
    is_number = (pt.is_primitive(kind) and not pt.is_interval(kind)) or pt.is_decimal(kind)
    if column.type is ValueType.TIME and not (_is_text(kind) or is_time or pt.is_null(kind)):
        counts = (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)) and reads_numbers(
            column.time_format
        )
        units = "set `time_format: number`, or name the unit: seconds, milliseconds, microseconds or nanoseconds"
        return None if counts else (f"holds {kind}, times are declared", units)
    if _is_text(kind) or is_number or pt.is_null(kind):
        return None
    return f"holds {kind}, which is neither a number nor text", f"write it as {column.type}"


def convert_typed(cells: pa.Array, column: RawColumn, rules: CellRules) -> Converted:
    """Converts an array whose type has no :func:`type_mismatch` to ``arrow_type(column)``, or a dictionary of it."""
    kind = cells.type
    if pt.is_dictionary(kind):
        converted = _convert_dictionary(cells, column, rules)
        return converted if converted is not None else convert_typed(cells.dictionary_decode(), column, rules)
    if _is_list(kind):
        lengths = pc.list_value_length(cells).fill_null(0).to_numpy().astype(np.int64)
        element = RawColumn(column.name, column.type)
        return regroup(convert_typed(cells.flatten(), element, rules), lengths, column)
    if _is_text(kind):
        return convert_text(_text_cells(cells, column), column, rules)
    if column.many:
        element = RawColumn(column.name, column.type)
        return regroup(convert_typed(cells, element, rules), np.ones(len(cells), np.int64), column)
    match column.type:
        case ValueType.INTEGER:
            return _to_integers(_plain_number(cells), rules)
        case ValueType.FLOAT:
            return _finite_floats(_plain_number(cells).cast(pa.float64(), safe=False), rules)
        case ValueType.TIME:
            return _to_times(cells, column.time_format, rules)
        case ValueType.TEXT:
            return Converted(cells.cast(pa.string()))


def _convert_dictionary(cells: pa.Array, column: RawColumn, rules: CellRules) -> Converted | None:
    """Converts a TEXT dictionary whose values are all valid and present; returns None if it must be decoded."""
    if column.many or column.type is not ValueType.TEXT or len(cells.dictionary) > len(cells):
        return None
    values = convert_typed(cells.dictionary, column, rules)
    if values.bad or values.values.null_count:
        return None
    if _is_binary(cells.type.value_type) and pc.count_distinct(values.values).as_py() < len(values.values):
        return None  # bytes and their hexadecimal digits
    indices = cells.indices.cast(pa.int32())
    return Converted(pa.DictionaryArray.from_arrays(indices, values.values))


def text_cells(cells: pa.Array) -> pa.Array:
    """Returns cells of text or bytes as text: bytes that are not UTF-8 as hexadecimal digits, such text with �."""
    if not _is_binary(cells.type):
        broken = cells.cast(pa.binary())
        try:
            return broken.cast(pa.string())
        except pa.ArrowInvalid:
            texts = (None if each is None else each.decode("utf-8", "replace") for each in broken.to_pylist())
            return pa.array(texts, pa.string())
    return _digits_of_bytes(cells.cast(pa.binary()))


def _text_cells(cells: pa.Array, column: RawColumn) -> pa.Array:
    """Returns cells for :func:`convert_text`; bytes that are not UTF-8 become hexadecimal digits in a TEXT column."""
    if pt.is_string(cells.type):
        return cells
    if column.type is ValueType.TEXT and _is_binary(cells.type):
        return _digits_of_bytes(cells.cast(pa.binary()))
    return cells.cast(pa.binary())


def _digits_of_bytes(cells: pa.Array) -> pa.Array:
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        distinct = cells.dictionary_encode()
        texts = pa.array(map(_text_or_hexadecimal, distinct.dictionary.to_pylist()), pa.string())
        return texts.take(distinct.indices)


def _text_or_hexadecimal(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _plain_number(cells: pa.Array) -> pa.Array:
    """Converts times to microseconds, in int64 or, beyond it, decimals, and booleans to int64; returns other numbers
    unchanged."""
    kind = cells.type
    if pt.is_null(kind) or pt.is_boolean(kind):
        return cells.cast(pa.int64())
    if pt.is_time(kind):
        return cells.cast(pa.time64("us"), safe=False).cast(pa.int64())
    if not (pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_duration(kind)):
        return cells
    unit = "day" if pt.is_date32(kind) else "ms" if pt.is_date64(kind) else kind.unit
    if unit in _MICROSECONDS:
        units = cells.cast(pa.int32() if pt.is_date32(kind) else pa.int64())
        bound = (2**63 - 1) // _MICROSECONDS[unit]
        if pc.any(pc.or_(pc.greater(units, bound), pc.less(units, -bound))).as_py():
            return pc.multiply(units.cast(pa.decimal128(19, 0)), pa.scalar(Decimal(_MICROSECONDS[unit])))
    micro = pa.duration("us") if pt.is_duration(kind) else pa.timestamp("us")
    return cells.cast(micro, safe=False).cast(pa.int64())


_MICROSECONDS = {"day": 86_400_000_000, "s": 1_000_000, "ms": 1_000}
"""Unit of times -> microseconds, for those coarser than a microsecond."""


def _to_integers(cells: pa.Array, rules: CellRules) -> Converted:
    if pt.is_floating(cells.type):
        cells = cells.cast(pa.float64())
        if rules.nan_is_missing:
            cells = pc.if_else(pc.is_nan(cells), pa.scalar(None, pa.float64()), cells)
        if rules.infinity_is_missing:
            cells = pc.if_else(pc.is_inf(cells), pa.scalar(None, pa.float64()), cells)
    try:
        integers = cells.cast(pa.int64())
    except pa.ArrowInvalid:
        return _one_by_one(cells, pa.int64(), _integer_of)
    return Converted(integers)


def _to_times(cells: pa.Array, time_format: str, rules: CellRules) -> Converted:
    kind = cells.type
    if pt.is_null(kind) or pt.is_timestamp(kind) or pt.is_date(kind):
        return Converted(seconds(cells))
    if pt.is_decimal(kind):
        cells = cells.cast(pa.float64())
    if rules.nan_is_missing and pt.is_floating(kind):
        cells = pc.if_else(pc.is_nan(cells), pa.scalar(None, kind), cells)
    times = times_of_numbers(cells, time_format)
    rows = np.flatnonzero(pc.is_nan(times).fill_null(False).to_numpy(zero_copy_only=False))
    return Converted(times, {int(row): not_a_time_reason(cells[int(row)].as_py(), time_format) for row in rows})


def _integer_of(value: Any) -> int:
    if value != value or value in {float("inf"), float("-inf")}:
        raise RejectedCell(not_finite_reason(value))
    if value != int(value):
        raise RejectedCell(
            rejection_reason(
                NOT_INTEGER, f"received {shorten(value)}", "write whole numbers, or declare the column `type: text`"
            )
        )
    return checked_int64(int(value), value)


def _finite_floats(floats: pa.Array, rules: CellRules) -> Converted:
    if rules.nan_is_missing:
        floats = pc.if_else(pc.is_nan(floats), pa.scalar(None, pa.float64()), floats)
    if rules.infinity_is_missing:
        floats = pc.if_else(pc.is_inf(floats), pa.scalar(None, pa.float64()), floats)
    finite = pc.is_finite(floats)
    if pc.all(finite).as_py() is not False:
        return Converted(floats)
    rows = np.flatnonzero(pc.invert(finite).fill_null(False).to_numpy(zero_copy_only=False))
    return Converted(floats, {int(row): not_finite_reason(floats[int(row)].as_py()) for row in rows})


def _one_by_one(cells: pa.Array, kind: pa.DataType, convert: Callable[[Any], int]) -> Converted:
    values: list[int | None] = []
    bad: dict[int, str] = {}
    for row, value in enumerate(cells.to_pylist()):
        try:
            values.append(None if value is None else convert(value))
        except RejectedCell as error:
            values.append(None)
            bad[row] = str(error)
    return Converted(pa.array(values, kind), bad)


def _is_list(kind: pa.DataType) -> bool:
    return pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind) or _is_binary(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind)
