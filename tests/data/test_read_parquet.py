"""Parquet: conversion of every Arrow type to the declared type, bounded blocks, and damaged or unsuitable files."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_kit import FLOAT, INTEGER, TEXT, Reading, many, read, required, schema

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.blocks import Position
from ziggurat.data.readers.columnar import file
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.source import open_source

UTC = datetime.UTC


def read_table(
    folder: Path, table: pa.Table, columns: RawSchema, *, block_bytes: int = 2**20, **config: Any
) -> Reading:
    pq.write_table(table, folder / "log.parquet", row_group_size=config.pop("row_group_size", None))
    source = open_source(ParquetSource(files=["log.parquet"], **config), folder, columns, block_bytes=block_bytes)
    return read(source)


DATE, MOMENT = datetime.date(1970, 1, 2), datetime.datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)

CONVERSIONS: list[tuple[pa.Array, ValueType | RawColumn, list[Any]]] = [
    (pa.array([1, None], pa.int8()), INTEGER, [1, None]),
    (pa.array([2**63 - 1, 0], pa.uint64()), INTEGER, [2**63 - 1, 0]),
    (pa.array([3.0, None, -0.0], pa.float64()), INTEGER, [3, None, 0]),
    (pa.array([3.0, 4.0], pa.float32()), INTEGER, [3, 4]),
    (pa.array([True, False, None]), INTEGER, [1, 0, None]),
    (pa.array([Decimal("7.00"), None]), INTEGER, [7, None]),
    (pa.array(["7", " 8.0 ", "", None]), INTEGER, [7, 8, None, None]),
    (pa.array(["7", "8", "7"]).dictionary_encode(), INTEGER, [7, 8, 7]),
    (pa.array([DATE], pa.date32()), INTEGER, [86_400_000_000]),
    (pa.array([MOMENT], pa.timestamp("ms", "UTC")), INTEGER, [1_000_000]),
    (pa.array([1_500_000_999], pa.timestamp("ns")), INTEGER, [1_500_000]),
    (pa.array([2], pa.timestamp("s")), INTEGER, [2_000_000]),
    (pa.array([datetime.time(0, 0, 1)], pa.time64("us")), INTEGER, [1_000_000]),
    (pa.array([None, None], pa.null()), INTEGER, [None, None]),
    (pa.array([1, None], pa.int64()), FLOAT, [1.0, None]),
    (pa.array([1.5], pa.float32()), FLOAT, [1.5]),
    (pa.array([True, False]), FLOAT, [1.0, 0.0]),
    (pa.array([Decimal("1.25")]), FLOAT, [1.25]),
    (pa.array(["1e3", None]), FLOAT, [1000.0, None]),
    (pa.array(["a", "", None]), TEXT, ["a", None, None]),
    (pa.array(["a", "b", None], pa.large_string()), TEXT, ["a", "b", None]),
    (pa.array([b"a", None], pa.binary()), TEXT, ["a", None]),
    (pa.array([b"a", b"\xff\x00", None], pa.binary()), TEXT, ["a", "ff00", None]),
    (pa.array([b"\xff", b"ff", b"\xff"]).dictionary_encode(), TEXT, ["ff", "ff", "ff"]),
    (pa.array([bytes(range(240, 256))], pa.binary(16)), TEXT, ["f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"]),
    (pa.array([2**64 - 1, 5], pa.uint64()), TEXT, ["18446744073709551615", "5"]),
    (pa.array(["a", "", "a", None]).dictionary_encode(), TEXT, ["a", None, "a", None]),
    (pa.array([7, None]), TEXT, ["7", None]),
    (pa.array([7, 8, 7]).dictionary_encode(), TEXT, ["7", "8", "7"]),
    (pa.array([True, False]), TEXT, ["true", "false"]),
    (pa.array([DATE], pa.date32()), TEXT, ["1970-01-02"]),
    (pa.array([Decimal("1.50")]), TEXT, ["1.50"]),
    (pa.array([[1, None, 2], [], None]), many(INTEGER), [[1, 2], [], []]),
    (pa.array([[1.0], [2.0, 3.0]]), many(INTEGER), [[1], [2, 3]]),
    (pa.array([["a", ""], None], pa.large_list(pa.string())), many(TEXT), [["a"], []]),
    (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), many(FLOAT), [[1.0, 2.0], [], [3.0, 4.0]]),
    (pa.array([[[1, None], [2]], None, [[], [3]]]), many(INTEGER), [[1, 2], [], [3]]),
    (pa.array(["1|2", "", None]), many(INTEGER), [[1, 2], [], []]),
    (pa.array([7, None]), many(INTEGER), [[7], []]),
    (pa.array(["a|b", "c"]).dictionary_encode(), many(TEXT), [["a", "b"], ["c"]]),
]


@pytest.mark.parametrize(("cells", "kind", "expected"), CONVERSIONS, ids=lambda value: str(getattr(value, "type", "")))
def test_the_declared_type_decides(
    tmp_path: Path, cells: pa.Array, kind: ValueType | RawColumn, expected: list[Any]
) -> None:
    reading = read_table(tmp_path, pa.table({"x": cells}), schema(x=kind))
    assert [row[0] for row in reading.rows] == expected
    assert [repr(row[0]) for row in reading.rows] == [repr(value) for value in expected]
    assert reading.bad == []


BAD: list[tuple[pa.Array, ValueType | RawColumn, str]] = [
    (pa.array([1.0, 3.5, 2.0]), INTEGER, "not an integer: received 3.5"),
    (pa.array([1.0, float("nan"), 2.0]), INTEGER, "NaN or infinity: received nan"),
    (pa.array([1, 2**63, 2], pa.uint64()), INTEGER, "beyond int64: received 9223372036854775808"),
    (pa.array([1.0, 1e19, 2.0]), INTEGER, "beyond int64: received 1e+19"),
    (
        pa.array([Decimal("1.00"), Decimal("1.50"), Decimal("2.00")]),
        INTEGER,
        "not an integer: received Decimal('1.50')",
    ),
    (pa.array(["1", "x", "2"]), INTEGER, "not an integer: received 'x'"),
    (pa.array(["1", "x", "2"]).dictionary_encode(), INTEGER, "not an integer: received 'x'"),
    (pa.array([1.0, float("inf"), 2.0]), FLOAT, "NaN or infinity: received inf"),
    (pa.array([1.0, float("nan"), None], pa.float32()), FLOAT, "NaN or infinity: received nan"),
    (pa.array([1, None, 2]), required(INTEGER), "required cell is empty"),
    (pa.array(["1", "", "2"]).dictionary_encode(), required(TEXT), "required cell is empty"),
    (pa.array([[1.0], [2.0, 2.5], []]), many(INTEGER), "not an integer: element 2 received 2.5"),
    (pa.array([["1"], ["1", None, "y"], []]), many(FLOAT), "not a number: element 3 received 'y'"),
    (pa.array(["1", "1|y", "2"]), many(INTEGER), "not an integer: element 2 received 'y'"),
]


@pytest.mark.parametrize(("cells", "kind", "reason"), BAD)
def test_rows_that_cannot_be_converted_to_the_declared_type(
    tmp_path: Path, cells: pa.Array, kind: ValueType | RawColumn, reason: str
) -> None:
    reading = read_table(tmp_path, pa.table({"x": cells, "y": ["a", "b", "c"]}), schema(y=TEXT, x=kind))
    assert [row[0] for row in reading.rows] == ["a", "c"]
    assert reading.lines == [1, 3]
    (bad,) = reading.bad
    assert (bad.line, bad.column) == (2, "x")
    assert bad.reason.startswith(reason)
    assert bad.text.startswith('{"y": "b", "x": ')


def test_invalid_text_in_a_string_column(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), broken)
    for texts, kind in ((broken, TEXT), (broken.dictionary_encode(), TEXT), (lists, many(TEXT))):
        reading = read_table(tmp_path, pa.table({"x": texts}), schema(x=kind))
        assert reading.rows == [("ok",)] if kind is TEXT else [(["ok"],)]
        assert reading.kinds() == [(2, "x", "not UTF-8")]
        assert r"\\xff\\xfe" in reading.bad[0].text


def test_nan_and_null_values_are_missing_where_the_source_says_so(tmp_path: Path) -> None:
    table = pa.table(
        {"f": [1.5, float("nan")], "i": [float("nan"), 2.0], "t": ["NA", "x"], "m": [[float("nan"), 1.0], []]}
    )
    columns = schema(f=FLOAT, i=INTEGER, t=TEXT, m=many(FLOAT))
    reading = read_table(tmp_path, table, columns, nan_is_missing=True, null_values=["NA"])
    assert reading.rows == [(1.5, None, None, [1.0]), (None, 2, "x", [])]


def test_blocks_are_small_and_reading_resumes_from_any_end(tmp_path: Path) -> None:
    numbers = list(range(1_000))
    table = pa.table({"n": numbers, "unneeded": ["x" * 100] * 1_000})
    whole = read_table(tmp_path, table, schema(n=INTEGER), block_bytes=64 * 8, row_group_size=300)
    assert [row[0] for row in whole.rows] == numbers
    assert whole.lines == [n + 1 for n in numbers]
    assert whole.ends[-1] == Position(1)
    assert len(whole.ends) >= 16
    source = open_source(ParquetSource(files=["log.parquet"]), tmp_path, schema(n=INTEGER), block_bytes=64 * 8)
    for end in whole.ends:
        rest = read(source, end)
        assert [row[0] for row in rest.rows] == numbers[end.offset if end.file == 0 else 1_000 :]
        assert rest.lines == [n + 1 for n in numbers][end.offset if end.file == 0 else 1_000 :]


def test_names_with_dots_and_shared_beginnings(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "a.b": [2], "ab": [3]})
    assert read_table(tmp_path, table, schema(**{"ab": INTEGER, "a": INTEGER, "a.b": INTEGER})).rows == [(3, 1, 2)]


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        (
            pa.table({"usr": [1]}),
            schema(user=INTEGER),
            r"no column 'user'; the file holds: usr\n  hint: did you mean 'usr'",
        ),
        (
            pa.table({"x": [1.5]}),
            schema(x=TEXT),
            r"column 'x': holds double, text is declared\n  hint: declare `type: integer`",
        ),
        (
            pa.table({"x": [[1]]}),
            schema(x=INTEGER),
            r"column 'x': holds lists .*\n  hint: declare the feature `kind: bag`",
        ),
        (
            pa.table({"x": [{"y": 1}]}),
            schema(x=INTEGER),
            r"column 'x': holds struct.*\n  hint: name a value inside it, as in `column: x.FIELD`",
        ),
        (pa.table({"x": pa.array([], pa.int64())}), schema(x=INTEGER), r"the file holds no rows"),
        (pa.Table.from_arrays([pa.array([1])] * 2, ["x", "x"]), schema(x=INTEGER), r"holds column 'x' 2 times"),
    ],
)
def test_files_that_do_not_fit_the_schema(tmp_path: Path, table: pa.Table, columns: RawSchema, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_table(tmp_path, table, columns)
    assert str(tmp_path / "log.parquet") in caught.value.problem


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"n": list(range(100_000))}), path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[: len(whole) // 2], b"n\n1\n2\n", b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"log\.parquet: truncated, corrupt or no Parquet file .*\n  hint: copy or write"
        ):
            open_source(ParquetSource(files=["."]), tmp_path, schema(n=INTEGER))
    path.write_bytes(whole[:100] + bytes(200) + whole[300:])
    pages = open_source(ParquetSource(files=["."]), tmp_path, schema(n=INTEGER), block_bytes=2**12)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"log\.parquet: changed while it was being read"):
        read(pages)


def test_a_file_that_declares_far_more_than_it_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "FREE_BYTES", 2**20)
    equal = pa.DictionaryArray.from_arrays(pa.array([0] * 10**7, pa.int8()), pa.array([7], pa.int64()))
    with pytest.raises(DataError, match=r"log\.parquet: its [\d,]+ bytes declare 10,000,000 rows, which would become"):
        read_table(tmp_path, pa.table({"n": equal}), schema(n=INTEGER))
    assert len(read_table(tmp_path, pa.table({"n": equal[: 10**5]}), schema(n=INTEGER)).rows) == 10**5
