"""Makes an Arrow array of one column in memory, or says why there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from ziggurat.core.errors import shorten

FAILURES = (
    pa.ArrowException,
    pl.exceptions.PolarsError,
    ArithmeticError,
    AttributeError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What Arrow and the libraries of data frames raise for values that they cannot convert."""
MOST_DEPTH = 32
COLLECTIONS = (list, tuple, set, frozenset, dict, np.ndarray)
_WIDE = (pl.Int128, pl.UInt128)
_WHOLE = (int, np.integer)
_NUMBERS = (*_WHOLE, float, np.floating, Decimal)
_MISSING = frozenset({"NAType", "NaTType"})
"""The names of the types of pandas' missing values."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no column can be made of some values.

    Attributes:
        problem: what they are, such as ``holds values of several types: int (1) and str ('a')``.
        hint: what to do.
    """

    problem: str
    hint: str


def arrow_column(values: Any) -> pa.Array | pa.ChunkedArray | Refusal:
    """Returns the values of a column as an Arrow array.

    Whole numbers beyond 64 bits become text, with all their digits; sparse columns become dense, and periods the times
    at which they begin.

    Args:
        values: a series of pandas or polars, an array, or any other iterable of a value for each row.
    """
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        problem = f"received {shorten(values)} ({type(values).__name__})"
        return Refusal(problem, "give a list of values, one for each row")
    given: Any = values
    try:
        if isinstance(given, pl.Series):
            if not _has_type(given.dtype, (pl.Object,)):  # Arrow would get the addresses of objects
                return _without_wide(given).to_arrow()
            given = given.to_list()
        elif hasattr(given, "dtype"):
            given = _plain(given)
        elif not hasattr(given, "__len__"):
            given = list(given)
        if _is_of_objects(given) and any(isinstance(each, COLLECTIONS) and is_deep(each, MOST_DEPTH) for each in given):
            return Refusal(
                f"holds values that are nested more than {MOST_DEPTH} levels deep", "write what is inside as columns"
            )
        return pa.array(given)
    except FAILURES as error:
        return _of_python(list(given), isinstance(error, OverflowError))


def _is_of_objects(values: Any) -> bool:
    return not isinstance(values, pa.Array | pa.ChunkedArray) and str(getattr(values, "dtype", "object")) == "object"


def is_deep(value: Any, depth: int) -> bool:
    """Whether more than ``depth`` lists and objects are in each other. Arrow follows them by recursion, unbounded."""
    level = [value] if isinstance(value, COLLECTIONS) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if has_objects(each) else ())
            if isinstance(inner, COLLECTIONS)
        ]
    return bool(level)


def has_objects(value: Any) -> bool:
    """Whether a list may hold lists and objects; an array of numbers does not."""
    return not isinstance(value, np.ndarray) or value.dtype == object


def is_of_arrow(series: pl.Series) -> bool:
    """Whether Arrow knows all values of a series of polars."""
    return not _has_type(series.dtype, (pl.Object, *_WIDE))


def _has_type(kind: Any, wanted: tuple[Any, ...]) -> bool:
    """Whether values of a type of polars are, or hold, values of one of those ``wanted``."""
    if isinstance(kind, pl.Struct):
        return any(_has_type(field.dtype, wanted) for field in kind.fields)
    return kind in wanted or (isinstance(kind, pl.List | pl.Array) and _has_type(kind.inner, wanted))


def _without_wide(series: pl.Series) -> pl.Series:
    """Returns a series whose numbers of 128 bits are of 64, if these hold all of them, or text."""
    if not _has_type(series.dtype, _WIDE):
        return series
    if not series.dtype.is_nested():
        narrow = series.cast(pl.Int64, strict=False)
        if narrow.null_count() == series.null_count():
            return narrow
    return series.cast(_as_text(series.dtype))


def _as_text(kind: Any) -> Any:
    if isinstance(kind, pl.Struct):
        return pl.Struct({field.name: _as_text(field.dtype) for field in kind.fields})
    if isinstance(kind, pl.Array):
        return pl.Array(_as_text(kind.inner), kind.shape[0])
    if isinstance(kind, pl.List):
        return pl.List(_as_text(kind.inner))
    return pl.String() if kind in _WIDE else kind


def _plain(values: Any) -> Any:
    """Returns a series of pandas, or an array of numpy, with values that Arrow knows."""
    name = type(values.dtype).__name__
    if name == "SparseDtype":
        return values.sparse.to_dense() if hasattr(values, "sparse") else values.to_dense()
    if name == "PeriodDtype":
        return values.dt.to_timestamp() if hasattr(values, "dt") else values.to_timestamp()
    return list(values) if isinstance(values, np.ndarray) and values.ndim > 1 else values


def _of_python(values: list[Any], has_large: bool) -> pa.Array | Refusal:
    """Returns an array of values that Arrow does not convert as they are; ``has_large``: as a number is too large."""
    present = [value for value in values if not _is_missing(value)]
    numbers = all(isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in present)
    try:
        if numbers and all(isinstance(value, _WHOLE) for value in present):
            return pa.array([None if _is_missing(value) else str(int(value)) for value in values], pa.string())
        if numbers:
            return pa.array([None if _is_missing(value) else float(value) for value in values], pa.float64())
        if has_large and any(isinstance(value, COLLECTIONS) for value in present):
            return pa.array([None if _is_missing(value) else _digits(value) for value in values])
        return pa.array([None if _is_missing(value) else value for value in values])
    except FAILURES:
        return _refusal(present)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or type(value).__name__ in _MISSING


def _digits(value: Any) -> Any:
    """Returns nested values with text in place of whole numbers."""
    if isinstance(value, dict):
        return {name: _digits(each) for name, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, COLLECTIONS):
        return [_digits(each) for each in value]
    return str(value) if isinstance(value, _WHOLE) and not isinstance(value, bool) else value


def _refusal(present: list[Any]) -> Refusal:
    examples: dict[str, Any] = {}
    for value in present:
        examples.setdefault(type(value).__name__, value)
    listed = [f"{name}{_example(value)}" for name, value in examples.items()]
    if len(listed) == 1:
        hint = "write them as numbers, text or times, all in one way"
        return Refusal(f"holds values of which no column can be made: {listed[0]}", hint)
    *first, last = listed if len(listed) <= 3 else [*listed[:3], f"{len(listed) - 3} other types"]
    problem = f"holds values of several types: {', '.join(first)} and {last}"
    return Refusal(problem, "write all as one type, such as text")


def _example(value: Any) -> str:
    """Returns a value in parentheses; nothing if it only says where it is in memory."""
    shown = shorten(value)
    return "" if " at 0x" in shown else f" ({shown})"
