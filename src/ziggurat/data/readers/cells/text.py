"""Converts text cells to their declared type: vectorised if the whole column is well-formed, one by one if not.

The grammar is the same for every text format and for text columns of Parquet and JSON:

- A cell that is empty or one of the source's ``null_values`` is missing; in a column of many values, it is an empty
  bag.
- Spaces around numbers are ignored; spaces around text are part of it.
- INTEGER: ``-7``, ``+7``, ``007``, ``7.0``, ``1e3``, ``0x1F``; whole numbers within int64.
- Numbers may be written with other marks and symbols: see :mod:`ziggurat.data.readers.cells.number_rules`.
- FLOAT: decimal numbers with optional exponent. Infinities are rejected, and so is NaN, unless ``nan_is_missing``.
- TIME: in the column's format; see :mod:`ziggurat.data.readers.cells.times`.
- Many values: text split by the column's delimiter, or a list in brackets (see
  :mod:`ziggurat.data.readers.cells.brackets`). Elements that are empty or a null value are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import shorten
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.blocks import arrow_type
from ziggurat.data.readers.cells.brackets import split_brackets
from ziggurat.data.readers.cells.number_rules import PLAIN, NumberRules, plain_number, plain_numbers
from ziggurat.data.readers.cells.times import EPOCH_UNITS, ISO, cast_times, parse_time_text, time_example
from ziggurat.data.readers.rejection_reasons import rejection_reason

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
_OTHER_NUMBER = re.compile(
    r"[-+]?\s*([^\w\s.,'+-]{1,3}|[A-Z]{3})?\s*[-+]?([0-9]+(?:[.,' ][0-9]+)*)\s*([^\w\s.,'+-]{1,3}|[A-Z]{3})?"
)
_EXACT_FLOAT = 2.0**53


@dataclass(frozen=True, slots=True)
class CellRules:
    """The rules of a source that apply to all its cells.

    Attributes:
        null_values: texts that mean a missing value, in addition to the empty cell.
        nan_is_missing: NaN is a missing value instead of a reason to reject the row.
        numbers: how numbers are written.
        infinity_is_missing: so is an infinity.
    """

    null_values: tuple[str, ...] = ()
    nan_is_missing: bool = False
    numbers: NumberRules = PLAIN
    infinity_is_missing: bool = False

    @property
    def missing_texts(self) -> list[str]:
        """All texts that mean a missing value."""
        return sorted({"", *self.null_values})

    @property
    def missing(self) -> pa.Array:
        """All texts that mean a missing value, as a string array."""
        return pa.array(self.missing_texts, pa.string())


@dataclass(frozen=True, slots=True)
class Converted:
    """A column of the declared type, and row -> reason for each row not converted (its value is undefined)."""

    values: pa.Array
    bad: dict[int, str] = field(default_factory=dict[int, str])


class RejectedCell(ValueError):
    """A cell that is not of its declared type; the message is the reason of the :class:`BadRow`."""


def convert_text(cells: pa.Array, column: RawColumn, rules: CellRules) -> Converted:
    """Converts a ``binary`` or ``string`` array to ``arrow_type(column)``."""
    text = _decoded(cells)
    values = text.values
    converted = _split(values, column, rules) if column.many else _convert_scalars(values, column, rules)
    return Converted(converted.values, converted.bad | text.bad)


def parse_integer(text: str, rules: CellRules) -> int | None:
    """Parses one INTEGER cell; returns None if it is missing.

    Raises:
        RejectedCell: the cell is not a whole number within int64.
    """
    cell = text.strip()
    if _is_missing(cell, rules):
        return None
    written, (cell, in_per_cent) = cell, plain_number(cell, rules.numbers)
    if _HEXADECIMAL.fullmatch(cell):
        value = int(cell, 16)
        return value - 2**64 if value >= 2**63 else value  # two's complement, like pyarrow's parser
    if not _NUMBER.fullmatch(cell):
        kind = NOT_FINITE if _INFINITY.fullmatch(cell) or _NAN.fullmatch(cell) else NOT_INTEGER
        hint = "declare the column `type: text`, or add the value to null_values"
        raise RejectedCell(
            rejection_reason(
                kind, f"received {shorten(text)}", _bracket_hint(cell) or _number_hint(written, rules.numbers) or hint
            )
        )
    number = Decimal(cell) / 100 if in_per_cent else Decimal(cell)
    if number.is_zero():
        return 0
    if number.adjusted() < 0 or (number.adjusted() < 20 and number != number.to_integral_value()):
        raise RejectedCell(
            rejection_reason(
                NOT_INTEGER, f"received {shorten(text)}", "write whole numbers, or declare the column `type: text`"
            )
        )
    return checked_int64(int(number) if number.adjusted() < 20 else 2**63, text)


def parse_float(text: str, rules: CellRules) -> float | None:
    """Parses one FLOAT cell; returns None if it is missing.

    Raises:
        RejectedCell: the cell is not a finite number.
    """
    cell = text.strip()
    if _is_missing(cell, rules):
        return None
    written, (cell, in_per_cent) = cell, plain_number(cell, rules.numbers)
    if _NUMBER.fullmatch(cell):
        value = float(cell) / 100 if in_per_cent else float(cell)
        return None if rules.infinity_is_missing and np.isinf(value) else checked_finite(value, text)
    if _NAN.fullmatch(cell) or _INFINITY.fullmatch(cell):
        raise RejectedCell(not_finite_reason(text))
    hint = _number_hint(written, rules.numbers) or "declare the column as text, or add the value to null_values"
    raise RejectedCell(rejection_reason(NOT_NUMBER, f"received {shorten(text)}", hint))


def parse_time(text: str, rules: CellRules, time_format: str = ISO) -> float | None:
    """Parses one TIME cell to seconds since 1970 UTC; returns None if it is missing.

    Raises:
        RejectedCell: the cell is not a time in this format.
    """
    cell = text.strip()
    if _is_missing(cell, rules):
        return None
    value = parse_time_text(cell, time_format)
    if value is None:
        raise RejectedCell(not_a_time_reason(text, time_format))
    return value


def not_a_time_reason(received: object, time_format: str = ISO) -> str:
    """Returns the reason for rejecting a malformed TIME cell."""
    if time_format == ISO:
        otherwise = "where times are numbers, set `time_format: number`"
    elif time_format in EPOCH_UNITS:
        otherwise = f"it is read as {time_format} since 1970: set `time_format` to how the times are written"
    else:
        otherwise = f'it is read by `time_format: "{time_format}"`; set that to how the times are written'
    hint = f"write it like {time_example(time_format)}; {otherwise}"
    return rejection_reason(NOT_TIME, f"received {shorten(received)}", hint)


def not_in_brackets_reason(received: object) -> str:
    """Returns the reason for rejecting a cell that is not a list in brackets, in a column with ``brackets``."""
    hint = "write it like [3, 1, 2]; or drop `brackets: true` from the feature"
    return rejection_reason(NOT_IN_BRACKETS, f"received {shorten(received)}", hint)


def checked_int64(value: int, received: object) -> int:
    """Returns ``value`` if it fits an int64.

    Raises:
        RejectedCell: it does not fit.
    """
    if not -(2**63) <= value < 2**63:
        raise RejectedCell(
            rejection_reason(BEYOND_INT64, f"received {shorten(received)}", "declare the column `type: text`")
        )
    return value


def checked_finite(value: float, received: object) -> float:
    """Returns ``value`` if it is finite.

    Raises:
        RejectedCell: it is NaN or infinite.
    """
    if not np.isfinite(value):
        raise RejectedCell(not_finite_reason(received))
    return value


def not_finite_reason(received: object) -> str:
    """Returns the reason for rejecting NaN or an infinity."""
    hint = "leave the cell empty where the value is missing"
    word = "nan" if "nan" in str(received).lower() else "infinity"
    hint += f", or set `{word}_is_missing: true` on the source"
    return rejection_reason(NOT_FINITE, f"received {shorten(received)}", hint)


def regroup(elements: Converted, lengths: npt.NDArray[np.int64], column: RawColumn) -> Converted:
    """Groups concatenated elements, ``lengths[row]`` per row, into a list column; missing elements are dropped."""
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


def _number_hint(cell: str, rules: NumberRules) -> str | None:
    """What to set where numbers are written in another way than declared."""
    if "(" in cell and _NUMBER.fullmatch(plain_number(cell, replace(rules, parentheses=True))[0]):
        return "set `negative: parentheses` on the source"
    found = _OTHER_NUMBER.fullmatch(cell)
    if found is None:
        return None
    before, digits, after = found.groups()
    symbols = [symbol for symbol in (before, after) if symbol and symbol not in rules.symbols]
    if symbols:
        return f"list {' and '.join(repr(symbol) for symbol in symbols)} under `symbols` of the source"
    marks = [mark for mark in digits if not mark.isdigit()]
    if not marks:
        return None
    if len(marks) > 1 or len(digits.rpartition(marks[-1])[2]) == 3:
        return "set `thousands` and `decimal` of the source to the marks between thousands and before the fraction"
    return f'set `decimal: "{marks[-1]}"` on the source' if marks[-1] != rules.decimal else None


def _is_missing(cell: str, rules: CellRules) -> bool:
    if not cell or cell in rules.null_values or (rules.nan_is_missing and _NAN.fullmatch(cell) is not None):
        return True
    return rules.infinity_is_missing and _INFINITY.fullmatch(cell) is not None


def _decoded(cells: pa.Array) -> Converted:
    """Decodes ``cells`` as UTF-8; an invalid cell becomes null."""
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
            bad[row] = rejection_reason(
                NOT_UTF8, f"received {shorten(cell)} ({error.reason})", "save the file as UTF-8"
            )
    return Converted(pa.array(texts, pa.string()), bad)


def _split(text: pa.Array, column: RawColumn, rules: CellRules) -> Converted:
    whole = pc.if_else(pc.is_in(text, value_set=rules.missing), "", text.fill_null(""))
    if column.brackets:
        elements, lengths, unbracketed = split_brackets(whole, column.delimiter)
        converted = regroup(_convert_scalars(elements, column, rules), lengths, column)
        return Converted(
            converted.values,
            converted.bad | {int(row): not_in_brackets_reason(text[row].as_py()) for row in unbracketed},
        )
    parts = pc.split_pattern(whole, column.delimiter)
    lengths = pc.list_value_length(parts).to_numpy().astype(np.int64)
    return regroup(_convert_scalars(parts.flatten(), column, rules), lengths, column)


def _convert_scalars(text: pa.Array, column: RawColumn, rules: CellRules) -> Converted:
    kind = column.type
    if kind is ValueType.TEXT:
        return Converted(_nulled(text, rules.missing))
    trimmed = _nulled(pc.ascii_trim_whitespace(text), rules.missing)
    in_per_cent = None
    if kind is not ValueType.TIME and not rules.numbers.is_plain:
        trimmed, in_per_cent = plain_numbers(trimmed, rules.numbers)
    if kind is ValueType.INTEGER and in_per_cent is not None and pc.any(in_per_cent).as_py():
        return _one_by_one(text, pa.int64(), parse_integer, rules)
    if kind is ValueType.INTEGER:
        integers = _cast(trimmed, pa.int64()) or _whole_floats(trimmed)
        return Converted(integers) if integers is not None else _one_by_one(text, pa.int64(), parse_integer, rules)
    if kind is ValueType.TIME:
        times = cast_times(trimmed, column.time_format)
        parse = partial(parse_time, time_format=column.time_format)
        return Converted(times) if times is not None else _one_by_one(text, pa.float64(), parse, rules)
    floats = _cast(trimmed, pa.float64())
    if floats is not None and in_per_cent is not None:
        floats = pc.if_else(in_per_cent, pc.divide(floats, 100.0), floats)
    if floats is not None and pc.all(pc.is_finite(floats)).as_py() is not False:
        return Converted(floats)
    return _one_by_one(text, pa.float64(), parse_float, rules)


def _nulled(text: pa.Array, missing: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_in(text, value_set=missing), pa.scalar(None, pa.string()), text)


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None


def _whole_floats(text: pa.Array) -> pa.Array | None:
    """Converts integers written like ``3.0``; returns None unless float64 holds every cell exactly."""
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
    """Parses each distinct cell in Python: the readable reference for the casts above, which also gives reasons."""
    encoded = text.dictionary_encode()
    values: list[int | float | None] = []
    rejected: dict[int, str] = {}
    for index, cell in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(parse(cell, rules))
        except RejectedCell as error:
            values.append(None)
            rejected[index] = str(error)
    converted = pa.array(values, kind).take(encoded.indices)
    if not rejected:
        return Converted(converted)
    indices = encoded.indices.fill_null(-1).to_numpy()
    rows = np.flatnonzero(np.isin(indices, list(rejected)))
    return Converted(converted, {int(row): rejected[int(indices[row])] for row in rows})
