"""Converts JSON values to their declared type, one by one.

This is the readable reference for :mod:`ziggurat.data.readers.cells.typed`, which converts whole columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ziggurat.core.errors import shorten
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.cells.brackets import bracket_elements
from ziggurat.data.readers.cells.text import (
    NOT_INTEGER,
    NOT_UTF8,
    CellRules,
    RejectedCell,
    checked_finite,
    checked_int64,
    not_a_time_reason,
    not_in_brackets_reason,
    parse_float,
    parse_integer,
    parse_time,
)
from ziggurat.data.readers.cells.times import ISO, reads_numbers, time_of_number
from ziggurat.data.readers.json_lines.paths import WRONG_JSON
from ziggurat.data.readers.rejection_reasons import rejection_reason

Scalar = int | float | str | None


def convert_json(value: Any, column: RawColumn, rules: CellRules) -> Scalar | list[Scalar]:
    """Converts ``value``, a result of ``json.loads``, to a value of ``column``.

    Returns:
        The value; a missing value is None, or the empty list if the column holds many values.

    Raises:
        RejectedCell: the value is not of the declared type.
    """
    if not column.many:
        return _scalar(value, column.type, rules, column.time_format)
    if isinstance(value, str):
        value = [] if not value or value in rules.null_values else _elements(value, column)
    elif not isinstance(value, list):
        value = [value]
    while is_list_of_lists(value):
        value = [element for inner in value for element in inner or ()]
    elements = [_element(element, position, column.type, rules) for position, element in enumerate(value, 1)]
    return [element for element in elements if element is not None]


def is_list_of_lists(value: list[Any]) -> bool:
    """Whether all elements that are not null are lists, and there are some."""
    kinds = set(map(type, value))
    return list in kinds and kinds <= {list, type(None)}


def convert_vector(value: Any, rules: CellRules) -> list[float | None] | None:
    """Returns the numbers of a vector, null ones as None; None for a missing vector. Their count is not checked.

    Raises:
        RejectedCell: the value is no list of numbers.
    """
    if value is None or (isinstance(value, str) and (not value or value in rules.null_values)):
        return None
    if not isinstance(value, list):
        hint = "write it as a list of numbers, or correct the feature's `kind`"
        raise RejectedCell(rejection_reason(WRONG_JSON, f"received {shorten(value)}, a vector is declared", hint))
    kept = replace(rules, nan_is_missing=False, infinity_is_missing=False)
    numbers: list[float | None] = []
    for position, element in enumerate(cast("list[Any]", value), 1):
        number = element if isinstance(element, float) else _element(element, position, ValueType.FLOAT, kept)
        numbers.append(cast("float | None", number))
    return numbers


def _elements(text: str, column: RawColumn) -> list[str]:
    if not column.brackets:
        return text.split(column.delimiter)
    elements = bracket_elements(text, column.delimiter)
    if elements is None:
        raise RejectedCell(not_in_brackets_reason(_valid_unicode(text)))
    return elements


def _element(value: Any, position: int, kind: ValueType, rules: CellRules) -> Scalar:
    try:
        return _scalar(value, kind, rules)
    except RejectedCell as error:
        raise RejectedCell(str(error).replace("received", f"element {position} received", 1)) from None


def _scalar(value: Any, kind: ValueType, rules: CellRules, time_format: str = ISO) -> Scalar:
    if value is None:
        return None
    if isinstance(value, list | dict):
        what = "a list" if isinstance(value, list) else "an object"
        raise RejectedCell(
            rejection_reason(
                WRONG_JSON, f"received {what}, one {kind} is declared", "declare the feature `kind: bag`, or flatten it"
            )
        )
    match kind:
        case ValueType.INTEGER:
            return _integer(value, rules)
        case ValueType.FLOAT:
            return _float(value, rules)
        case ValueType.TIME:
            if isinstance(value, str):
                return parse_time(_valid_unicode(value), rules, time_format)
            return _time_of_number(value, time_format)
        case ValueType.TEXT:
            return _text(value, rules)


def _time_of_number(value: float, time_format: str) -> float:
    if isinstance(value, bool) or not reads_numbers(time_format):
        raise RejectedCell(not_a_time_reason(value, time_format))
    try:
        time = time_of_number(value, time_format)
    except OverflowError:
        time = None
    if time is None:
        raise RejectedCell(not_a_time_reason(value, time_format))
    return time


def _integer(value: str | float, rules: CellRules) -> int | None:
    if isinstance(value, str):
        return parse_integer(_valid_unicode(value), rules)
    if isinstance(value, float):
        if _is_missing(value, rules):
            return None
        if checked_finite(value, value) != int(value):
            raise RejectedCell(
                rejection_reason(
                    NOT_INTEGER, f"received {value!r}", "write whole numbers, or declare the column `type: text`"
                )
            )
    return checked_int64(int(value), value)


def _float(value: str | float, rules: CellRules) -> float | None:
    if isinstance(value, str):
        return parse_float(_valid_unicode(value), rules)
    if isinstance(value, float) and _is_missing(value, rules):
        return None
    try:
        return checked_finite(float(value), value)
    except OverflowError:
        return checked_finite(float("inf"), value)


def _is_missing(value: float, rules: CellRules) -> bool:
    if value != value:
        return rules.nan_is_missing
    return rules.infinity_is_missing and value in (float("inf"), float("-inf"))


def _text(value: str | float, rules: CellRules) -> str | None:
    if isinstance(value, str):
        return None if not value or value in rules.null_values else _valid_unicode(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        hint = "write the value in quotes, or declare the column a number"
        raise RejectedCell(rejection_reason(WRONG_JSON, f"received {shorten(value)}, text is declared", hint))
    return str(value)


def _valid_unicode(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        received = shorten(value.encode("utf-8", errors="surrogateescape") if _encodes_bytes(value) else value)
        raise RejectedCell(rejection_reason(NOT_UTF8, f"received {received}", "save the file as UTF-8")) from error
    return value


def _encodes_bytes(value: str) -> bool:
    """Whether every lone surrogate encodes a byte that was not UTF-8."""
    return all(not "\ud800" <= letter <= "\udfff" or "\udc80" <= letter <= "\udcff" for letter in value)
