"""JSON values as values of their declared type, one by one.

The readable reference beside :mod:`ziggurat.data.readers.cells.typed`, which converts whole columns.
"""

from __future__ import annotations

from typing import Any

from ziggurat.core.errors import shorten
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.cells.brackets import bracket_elements
from ziggurat.data.readers.cells.text import (
    NOT_INTEGER,
    NOT_UTF8,
    CellRules,
    RefusedCell,
    finite,
    in_int64,
    not_a_time,
    not_in_brackets,
    parse_float,
    parse_integer,
    parse_time,
)
from ziggurat.data.readers.rejection_reasons import refusal

WRONG_JSON = "wrong JSON type"

Scalar = int | float | str | None


def convert_json(value: Any, column: RawColumn, rules: CellRules) -> Scalar | list[Scalar]:
    """``value``, as ``json.loads`` gave it, as one of ``column``'s; missing is None, of many values the empty list.

    Raises:
        RefusedCell: it is not of the declared type.
    """
    if not column.many:
        return _scalar(value, column.type, rules)
    if isinstance(value, str):
        value = [] if not value or value in rules.null_values else _elements(value, column)
    elif not isinstance(value, list):
        value = [value]
    elements = [_element(element, place, column.type, rules) for place, element in enumerate(value, 1)]
    return [element for element in elements if element is not None]


def _elements(text: str, column: RawColumn) -> list[str]:
    if not column.brackets:
        return text.split(column.delimiter)
    elements = bracket_elements(text, column.delimiter)
    if elements is None:
        raise RefusedCell(not_in_brackets(_encodable(text)))
    return elements


def _element(value: Any, place: int, kind: ValueType, rules: CellRules) -> Scalar:
    try:
        return _scalar(value, kind, rules)
    except RefusedCell as error:
        raise RefusedCell(str(error).replace("received", f"element {place} received", 1)) from None


def _scalar(value: Any, kind: ValueType, rules: CellRules) -> Scalar:
    if value is None:
        return None
    if isinstance(value, list | dict):
        what = "a list" if isinstance(value, list) else "an object"
        raise RefusedCell(
            refusal(
                WRONG_JSON, f"received {what}, one {kind} is declared", "declare the feature `kind: bag`, or flatten it"
            )
        )
    match kind:
        case ValueType.INTEGER:
            return _integer(value, rules)
        case ValueType.FLOAT:
            return _float(value, rules)
        case ValueType.TIME:
            if not isinstance(value, str):
                raise RefusedCell(not_a_time(value))
            return parse_time(_encodable(value), rules)
        case ValueType.TEXT:
            return _text(value, rules)


def _integer(value: str | float, rules: CellRules) -> int | None:
    if isinstance(value, str):
        return parse_integer(_encodable(value), rules)
    if isinstance(value, float):
        if rules.nan_is_missing and value != value:
            return None
        if finite(value, value) != int(value):
            raise RefusedCell(
                refusal(NOT_INTEGER, f"received {value!r}", "write whole numbers, or declare the column `type: text`")
            )
    return in_int64(int(value), value)


def _float(value: str | float, rules: CellRules) -> float | None:
    if isinstance(value, str):
        return parse_float(_encodable(value), rules)
    if rules.nan_is_missing and value != value:
        return None
    try:
        return finite(float(value), value)
    except OverflowError:
        return finite(float("inf"), value)


def _text(value: str | float, rules: CellRules) -> str | None:
    if isinstance(value, str):
        return None if not value or value in rules.null_values else _encodable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        hint = "write the value in quotes, or declare the column a number"
        raise RefusedCell(refusal(WRONG_JSON, f"received {shorten(value)}, text is declared", hint))
    return str(value)


def _encodable(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        received = shorten(value.encode("utf-8", errors="surrogateescape") if _escaped(value) else value)
        raise RefusedCell(refusal(NOT_UTF8, f"received {received}", "save the file as UTF-8")) from error
    return value


def _escaped(value: str) -> bool:
    """Whether every lone surrogate stands for a byte that was not UTF-8."""
    return all(not "\ud800" <= letter <= "\udfff" or "\udc80" <= letter <= "\udcff" for letter in value)
