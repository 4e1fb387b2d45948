"""Values in memory of every kind: they are read by the rules of files, or the error names row and column."""

from __future__ import annotations

import datetime
import decimal
import functools
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table

DEEP: list[Any] = functools.reduce(lambda inner, _: [inner], range(100_000), [1])
OWN: list[Any] = []
OWN.append(OWN)
SECONDS = pa.array([2**60], pa.int64()).cast(pa.timestamp("s"))


def read(values: Any, kind: str, many: bool = False) -> list[Any]:
    """Returns a column as it is read, with the reason in place of a value that is rejected."""
    schema = RawSchema((RawColumn("c", ValueType(kind), many),))
    block = read_table(to_arrow({"c": values, "ignored": [object(), OWN]}, schema), schema)
    return [*block.table["c"].to_pylist(), *(f"line {bad.line}: {bad.reason}" for bad in block.bad)]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([2**70, -(2**70), None, 3], "text", [str(2**70), str(-(2**70)), None, "3"]),
        ([2**70, 1], "float", [float(2**70), 1.0]),
        ([True, False], "integer", [1, 0]),
        ([-5], "integer", [-5]),
        ([-5], "text", ["-5"]),
        ([b"abc", "d"], "text", ["abc", "d"]),
        ([None, None], "text", [None, None]),
        ((str(each) for each in range(2)), "integer", [0, 1]),
        (np.array(["a", "b"]), "text", ["a", "b"]),
        (np.array([2**70], object), "text", [str(2**70)]),
        (pl.Series([1, None]), "integer", [1, None]),
        ([datetime.date(1970, 1, 2)], "integer", [86_400_000_000]),
        (["x" * 1_000_000], "text", ["x" * 1_000_000]),
        (SECONDS, "float", [2.0**60 * 1e6]),
    ],
)
def test_values_that_can_be_read(values: Any, kind: str, expected: list[Any]) -> None:
    assert read(values, kind) == expected


def test_lists_of_values_that_can_be_read() -> None:
    assert read([[2**70, 1], [], None], "text", many=True) == [[str(2**70), "1"], [], []]
    assert read([np.array([1, 2]), (3,)], "integer", many=True) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ([float("nan")], "integer", "line 1: NaN or infinity: received nan"),
        ([1.0, float("inf")], "integer", "line 2: NaN or infinity: received inf"),
        ([1, 1.5], "integer", "line 2: not an integer: received 1.5"),
        (np.array([2**64 - 1], np.uint64), "integer", "line 1: beyond int64: received 18446744073709551615"),
        ([decimal.Decimal("1e50")], "integer", "line 1: beyond int64"),
        (SECONDS, "integer", "line 1: beyond int64: received Decimal"),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "integer", "line 1: beyond int64"),
    ],
)
def test_rows_that_are_rejected_have_their_reason(values: Any, kind: str, reason: str) -> None:
    assert read(values, kind)[-1].startswith(reason)


@pytest.mark.parametrize(
    ("values", "kind", "problem"),
    [
        ([1, 2**70], "integer", f"line 2, column 'c': received {2**70}"),
        ([10**400], "float", "line 1, column 'c': received 1000"),
        ([1, "x"], "integer", "line 2, column 'c': received 'x' (str) after values of another type"),
        ([True, 1], "integer", "line 2, column 'c': received 1 (int) after values of another type"),
        (["a", "\ud800"], "text", "line 2, column 'c': received '\\ud800' (str)"),
        (["a", object()], "text", "line 2, column 'c': received <object object"),
        ([None, 1j], "float", "line 2, column 'c': received 1j (complex)"),
        ([decimal.Decimal("NaN")], "float", "line 1, column 'c': received Decimal('NaN')"),
        ([datetime.timedelta(days=999_999_999)], "integer", "line 1, column 'c': received datetime.timedelta"),
        ([1, {"a": 1}], "integer", "line 2, column 'c': received a nested value"),
        ([[1], [[1]]], "integer", "line 2, column 'c': received a nested value"),
        ([1, DEEP], "integer", "line 2, column 'c': received a nested value"),
        (OWN, "integer", "line 1, column 'c': received a nested value"),
        (np.zeros((2, 2)), "float", "column 'c': no table can be made"),
        (np.zeros(2, complex), "float", "line 1, column 'c': received"),
        ({"a": 1}, "integer", "column 'c': no table can be made of {'a': 1} (dict)"),
        ("abc", "text", "column 'c': no table can be made of 'abc' (str)"),
        (None, "text", "column 'c': no table can be made of None (NoneType)"),
        ([[1]], "integer", "column 'c': holds lists"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "integer", "column 'c': holds month_day_nano_interval"),
    ],
)
def test_values_that_no_table_can_hold_are_named(values: Any, kind: str, problem: str) -> None:
    with pytest.raises(DataError) as error:
        read(values, kind)
    assert problem in error.value.problem
    assert error.value.problem.startswith("<rows in memory>")
    assert error.value.hint


def test_columns_of_data_frames_that_are_not_needed_are_ignored() -> None:
    schema = RawSchema((RawColumn("c", ValueType.INTEGER),))
    frame = pl.DataFrame({"c": [1, 2], "other": pl.Series([object(), object()], dtype=pl.Object)})
    assert to_arrow(frame, schema).column_names == ["c"]
    twice = pa.table([pa.array([1]), pa.array([2])], names=["c", "c"])
    with pytest.raises(DataError, match="column 'c' occurs 2 times"):
        to_arrow(twice, schema)
    with pytest.raises(DataError, match="no table can be made of them"):
        to_arrow({"c": [1], "d": [1, 2]}, RawSchema((*schema.columns, RawColumn("d", ValueType.INTEGER))))
