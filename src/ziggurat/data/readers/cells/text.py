"""Text cells as values of their declared type: vectorised where a whole column is well-formed, one by one where not.

Grammar, the same for every text format and for text columns of Parquet and JSON:

- A cell that is empty or one of the source's ``null_values`` is missing; in a column of many values, the empty bag.
- Spaces around numbers are ignored; around text they belong to it.
- INTEGER: ``-7``, ``+7``, ``007``, ``7.0``, ``1e3``, ``0x1F``; whole and within int64.
- FLOAT: decimal numbers with optional exponent. Infinities are refused, and NaN, unless ``nan_is_missing``.
- TIME: see :mod:`ziggurat.data.readers.cells.times`.
- Many values: text split by the column's delimiter, or a list in brackets (see
  :mod:`ziggurat.data.readers.cells.brackets`);
  elements that are empty or a null value are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import shorten
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.blocks import arrow_type
from ziggurat.data.readers.cells.brackets import split_brackets
from ziggurat.data.readers.cells.times import cast_moments, parse_moment
from ziggurat.data.readers.rejection_reasons import refusal

NOT_INTEGER = "not an integer"
NOT_NUMBER = "not a number"
NOT_FINITE = "NaN or infinity"
NOT_UTF8 = "not UTF-8"
NOT_TIME = "not a time"
BEYOND_INT64 = "beyond int64"
NOT_IN_BRACKETS = "not a list in brackets"

_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}", re.ASCII)
_NAN = re.compile(r"[-+]?nan(\(\w*\))?", re.ASCII | re.IGNORECASE)
_INFINITY = re.compile(r"[-+]?inf(inity)?", re.ASCII | re.IGNORECASE)
_EXACT_FLOAT = 2.0**53


@dataclass(frozen=True, slots=True)
class CellRules:
    """What a source says about all of its cells.

    Attributes:
        null_values: text that means missing, beside the empty cell.
        nan_is_missing: a NaN is a missing value, not a bad row.
    """

    null_values: tuple[str, ...] = ()
    nan_is_missing: bool = False

    @property
    def missing(self) -> pa.Array:
        """Every text that means missing, as a string array."""
        return pa.array(sorted({"", *self.null_values}), pa.string())


@dataclass(frozen=True, slots=True)
class Converted:
    """A column of declared type, and the reason for each row that could not be converted (its value is void)."""

    values: pa.Array
    bad: dict[int, str] = field(default_factory=dict[int, str])


class RefusedCell(ValueError):
    """A cell that is not of its declared type; the text is the reason of the :class:`BadRow`."""


def convert_text(cells: pa.Array, column: RawColumn, rules: CellRules) -> Converted:
    """Convert a ``binary`` or ``string`` array to ``arrow_type(column)``."""
    text = _decoded(cells)
    values = text.values
    converted = _split(values, column, rules) if column.many else _convert_scalars(values, column.type, rules)
    return Converted(converted.values, converted.bad | text.bad)


def parse_integer(text: str, rules: CellRules) -> int | None:
    """One INTEGER cell; None when it is missing.

    Raises:
        RefusedCell: it is not a whole number within int64.
    """
    cell = text.strip()
    if _is_missing(cell, rules):
        return None
    if _HEXADECIMAL.fullmatch(cell):
        value = int(cell, 16)
        return value - 2**64 if value >= 2**63 else value  # two's complement, as the fast parser reads it
    if not _NUMBER.fullmatch(cell):
        kind = NOT_FINITE if _INFINITY.fullmatch(cell) or _NAN.fullmatch(cell) else NOT_INTEGER
        hint = "declare the column `type: text`, or add the value to null_values"
        raise RefusedCell(refusal(kind, f"received {shorten(text)}", _bracket_hint(cell) or hint))
    number = Decimal(cell)
    if number.is_zero():
        return 0
    if number.adjusted() < 0 or (number.adjusted() < 20 and number != number.to_integral_value()):
        raise RefusedCell(
            refusal(NOT_INTEGER, f"received {shorten(text)}", "write whole numbers, or declare the column `type: text`")
        )
    return in_int64(int(number) if number.adjusted() < 20 else 2**63, text)


def parse_float(text: str, rules: CellRules) -> float | None:
    """One FLOAT cell; None when it is missing.

    Raises:
        RefusedCell: it is not a finite number.
    """
    cell = text.strip()
    if _is_missing(cell, rules):
        return None
    if _NUMBER.fullmatch(cell):
        return finite(float(cell), text)
    if _NAN.fullmatch(cell) or _INFINITY.fullmatch(cell):
        raise RefusedCell(not_finite(text))
    raise RefusedCell(
        refusal(NOT_NUMBER, f"received {shorten(text)}", "declare the column as text, or add the value to null_values")
    )


def parse_time(text: str, rules: CellRules) -> float | None:
    """One TIME cell, as seconds since 1970 UTC; None when it is missing.

    Raises:
        RefusedCell: it is not a time in ISO 8601.
    """
    cell = text.strip()
    if _is_missing(cell, rules):
        return None
    value = parse_moment(cell)
    if value is None:
        raise RefusedCell(not_a_time(text))
    return value


def not_a_time(received: object) -> str:
    """The reason for a TIME cell of another form."""
    hint = "write it like 2024-05-01 or 2024-05-01T12:30:00Z; where times are numbers, set `time_format: number`"
    return refusal(NOT_TIME, f"received {shorten(received)}", hint)


def not_in_brackets(received: object) -> str:
    """The reason for a cell of a column with ``brackets`` that is no list in brackets."""
    hint = "write it like [3, 1, 2]; or drop `brackets: true` from the feature"
    return refusal(NOT_IN_BRACKETS, f"received {shorten(received)}", hint)


def in_int64(value: int, received: object) -> int:
    """``value`` where it fits an int64.

    Raises:
        RefusedCell: it does not.
    """
    if not -(2**63) <= value < 2**63:
        raise RefusedCell(refusal(BEYOND_INT64, f"received {shorten(received)}", "declare the column `type: text`"))
    return value


def finite(value: float, received: object) -> float:
    """``value`` where it is a finite number.

    Raises:
        RefusedCell: it is not.
    """
    if not np.isfinite(value):
        raise RefusedCell(not_finite(received))
    return value


def not_finite(received: object) -> str:
    """The reason for a NaN or an infinity."""
    hint = "leave the cell empty where the value is missing"
    if "nan" in str(received).lower():
        hint += ", or set `nan_is_missing: true` on the source"
    return refusal(NOT_FINITE, f"received {shorten(received)}", hint)


def regroup(elements: Converted, lengths: npt.NDArray[np.int64], column: RawColumn) -> Converted:
    """Elements laid end to end, ``lengths[row]`` of them a row, as a list column; missing elements are dropped."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    valid = np.concatenate([[0], np.cumsum(elements.values.is_valid().to_numpy(zero_copy_only=False))])
    offsets = pa.array(valid[bounds].astype(np.int32))
    values = pa.ListArray.from_arrays(offsets, elements.values.drop_null(), type=arrow_type(column))
    bad: dict[int, str] = {}
    for element, reason in elements.bad.items():
        row = int(np.searchsorted(bounds, element, side="right")) - 1
        bad.setdefault(row, reason.replace("received", f"element {element - int(bounds[row]) + 1} received", 1))
    return Converted(values, bad)


def _bracket_hint(cell: str) -> str | None:
    """What to set where a list in brackets was cut at its delimiters."""
    if not (cell.startswith("[") or cell.endswith("]")):
        return None
    return "set `brackets: true` on the bag or sequence whose cells are lists in brackets"


def _is_missing(cell: str, rules: CellRules) -> bool:
    return not cell or cell in rules.null_values or (rules.nan_is_missing and _NAN.fullmatch(cell) is not None)


def _decoded(cells: pa.Array) -> Converted:
    """``cells`` as valid UTF-8; a cell that is not becomes null."""
    try:
        return Converted(cells.cast(pa.binary()).cast(pa.string()))
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    bad: dict[int, str] = {}
    for row, cell in enumerate(cells.cast(pa.binary()).to_pylist()):
        try:
            texts.append(None if cell is None else cell.decode("utf-8"))
        except UnicodeDecodeError as error:
            texts.append(None)
            bad[row] = refusal(NOT_UTF8, f"received {shorten(cell)} ({error.reason})", "save the file as UTF-8")
    return Converted(pa.array(texts, pa.string()), bad)


def _split(text: pa.Array, column: RawColumn, rules: CellRules) -> Converted:
    whole = pc.if_else(pc.is_in(text, value_set=rules.missing), "", text.fill_null(""))
    if column.brackets:
        elements, lengths, odd = split_brackets(whole, column.delimiter)
        converted = regroup(_convert_scalars(elements, column.type, rules), lengths, column)
        return Converted(
            converted.values, converted.bad | {int(row): not_in_brackets(text[row].as_py()) for row in odd}
        )
    parts = pc.split_pattern(whole, column.delimiter)
    lengths = pc.list_value_length(parts).to_numpy().astype(np.int64)
    return regroup(_convert_scalars(parts.flatten(), column.type, rules), lengths, column)


def _convert_scalars(text: pa.Array, kind: ValueType, rules: CellRules) -> Converted:
    if kind is ValueType.TEXT:
        return Converted(_without(text, rules.missing))
    trimmed = _without(pc.ascii_trim_whitespace(text), rules.missing)
    if kind is ValueType.INTEGER:
        integers = _cast(trimmed, pa.int64()) or _whole_floats(trimmed)
        return Converted(integers) if integers is not None else _one_by_one(text, pa.int64(), parse_integer, rules)
    if kind is ValueType.TIME:
        moments = cast_moments(trimmed)
        return Converted(moments) if moments is not None else _one_by_one(text, pa.float64(), parse_time, rules)
    floats = _cast(trimmed, pa.float64())
    if floats is not None and pc.all(pc.is_finite(floats)).as_py() is not False:
        return Converted(floats)
    return _one_by_one(text, pa.float64(), parse_float, rules)


def _without(text: pa.Array, missing: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_in(text, value_set=missing), pa.scalar(None, pa.string()), text)


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None


def _whole_floats(text: pa.Array) -> pa.Array | None:
    """Integers written like ``3.0``, when every cell is one that float64 holds exactly."""
    floats = _cast(text, pa.float64())
    if floats is None or pc.all(pc.less(pc.abs(floats), _EXACT_FLOAT)).as_py() is False:
        return None
    try:
        return floats.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _one_by_one(
    text: pa.Array, kind: pa.DataType, parse: Callable[[str, CellRules], int | float | None], rules: CellRules
) -> Converted:
    """Parse each distinct cell in Python: the readable reference of the casts above, which also knows the reasons."""
    encoded = text.dictionary_encode()
    values: list[int | float | None] = []
    refused: dict[int, str] = {}
    for index, cell in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(parse(cell, rules))
        except RefusedCell as error:
            values.append(None)
            refused[index] = str(error)
    converted = pa.array(values, kind).take(encoded.indices)
    if not refused:
        return Converted(converted)
    indices = encoded.indices.fill_null(-1).to_numpy()
    rows = np.flatnonzero(np.isin(indices, list(refused)))
    return Converted(converted, {int(row): refused[int(indices[row])] for row in rows})
