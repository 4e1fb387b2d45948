"""Properties of any log: formats agree, fast and slow parsers agree, and block boundaries make no difference."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from reader_kit import FLOAT, INTEGER, TEXT, Reading, many, read, schema

from ziggurat.core.schema import RawColumn, RawSchema
from ziggurat.data.readers.blocks import Position
from ziggurat.data.readers.csv.reader import CsvParser, CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.libsvm.reader import LibsvmParser, LibsvmSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.reader import TextParser
from ziggurat.data.readers.source import open_source

COLUMNS = schema(number=INTEGER, amount=FLOAT, word=TEXT, ids=many(INTEGER, " "), tags=many(TEXT))
NAMES = ["number", "amount", "word", "ids", "tags"]
ARROW = pa.schema(
    [
        ("number", pa.int64()),
        ("amount", pa.float64()),
        ("word", pa.string()),
        ("ids", pa.list_(pa.int64())),
        ("tags", pa.list_(pa.string())),
    ]
)

integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
letters = st.characters(codec="utf-8", exclude_characters="\n\x00")
words = st.text(st.sampled_from('a"b,;ü \r') | letters, min_size=1, max_size=6)
tags = st.text(st.characters(codec="utf-8", exclude_characters="\r\n|\x00"), min_size=1, max_size=3)
rows = st.tuples(
    st.none() | integers,
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | words,
    st.lists(integers, max_size=3),
    st.lists(tags, max_size=3),
)
tables = st.lists(rows, min_size=1, max_size=12)

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_csv(table: list[tuple[Any, ...]], line_end: str = "\n") -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerow(NAMES)
    for number, amount, word, ids, bag in table:
        writer.writerow(
            [number, None if amount is None else repr(amount), word, " ".join(map(str, ids)), "|".join(bag)]
        )
    return text.getvalue().encode()


def as_json_lines(table: list[tuple[Any, ...]]) -> bytes:
    return "".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in table).encode()


def same_to_the_bit(rows: list[tuple[Any, ...]]) -> list[str]:
    return [repr(row) for row in rows]


@quick
@given(tables, st.sampled_from(["\n", "\r\n"]))
def test_csv_json_lines_and_parquet_of_a_table_give_the_same_rows(
    tmp_path: Path, table: list[tuple[Any, ...]], line_end: str
) -> None:
    (tmp_path / "log.csv").write_bytes(as_csv(table, line_end))
    (tmp_path / "log.jsonl").write_bytes(as_json_lines(table))
    pq.write_table(
        pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in table], ARROW), tmp_path / "log.parquet"
    )
    for config in (
        CsvSource(files=["log.csv"]),
        JsonLinesSource(files=["log.jsonl"]),
        ParquetSource(files=["log.parquet"]),
    ):
        reading = read(open_source(config, tmp_path, COLUMNS))
        assert reading.bad == []
        assert same_to_the_bit(reading.rows) == same_to_the_bit(table)
        first = 2 if config.name == "csv" else 1
        assert reading.lines == list(range(first, first + len(table)))


# fmt: off
GARBAGE = {
    "csv": [
        b"7", b"1.5", b"3.0", b"a", b",", b",", b",", b"\n", b"\n7,1,w,1 2,x|y\n", b"\r\n", b"\r", b'"', b'""', b" ",
        b"|", b"\xff", b"nan", b"-", b"inf", b"1e400", b"NA", "ü".encode(), b"99999999999999999999",
        b'7,"1","w\nw","1 x",\n', b"7,1,w,,\n",
    ],
    "jsonl": [
        b'{"number": 7, "amount": 1.5, "word": "w", "ids": [1, 2], "tags": ["x"]}\n', b'{"number": ', b"7", b"1.0",
        b"2.5", b'"8"', b"}", b"{", b"\n", b"null", b"NaN", b"[", b"]", b'"', b", ", b'{"word": ', b'"w"', b'{"ids": ',
        b'{"ids": [null, 1]}\n', b"\xff", b"\r\n", b"\r", b"true", b'{"tags": ["x", 5]}\n', b"99999999999999999999",
        b" ", b"{}", b'{"amount": 7}\n',
    ],
    "libsvm": [
        b"1 0:3:1 1:4:1\n", b"0 1:4:1 1:5:1\n", b"1", b" ", b":", b"0:3:1", b"3:1", b"x", b"\n", b"\r\n", b"\r", b"\t",
        b"# 1", b"nan", b"-", b"\xff", b"99999999999999999999", b"1.0", b"2", b"\n1\n", b"0 0:1:1\n",
    ],
}
# fmt: on


def garbage(kind: str) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(GARBAGE[kind]), max_size=40).map(b"".join)


def check_all_parsers(
    folder: Path, name: str, data: bytes, config: CsvSource | JsonLinesSource | LibsvmSource, columns: RawSchema
) -> None:
    """Checks that one block, tiny blocks, the slow parser, and resuming from every block's end read the same rows."""
    (folder / name).write_bytes(data)
    source = open_source(config, folder, columns)
    whole = read(source)
    parser: TextParser
    match config:
        case CsvSource():
            parser = CsvParser(source.files[0], config, columns)
        case JsonLinesSource():
            parser = JsonLinesParser(source.files[0], config, columns)
        case LibsvmSource():
            parser = LibsvmParser(source.files[0], config, columns)
    slow = parser.parse_slowly(data[parser.first_row.offset :], parser.first_row.line)
    assert same_to_the_bit(list(zip(*slow.table.to_pydict().values(), strict=True))) == same_to_the_bit(whole.rows)
    assert slow.lines.tolist() == whole.lines
    assert slow.bad == whole.bad
    for block_bytes in (7, 50):
        blocks = read(open_source(config, folder, columns, block_bytes=block_bytes))
        assert same_to_the_bit(blocks.rows) == same_to_the_bit(whole.rows)
        assert (blocks.lines, blocks.bad) == (whole.lines, whole.bad)
    for end in blocks.ends:
        check_resumed(whole, read(source, end), end)


def check_resumed(whole: Reading, rest: Reading, start: Position) -> None:
    first = start.line if start.file == 0 else math.inf
    kept = [place for place, line in enumerate(whole.lines) if line >= first]
    assert rest.lines == [whole.lines[place] for place in kept]
    assert same_to_the_bit(rest.rows) == same_to_the_bit([whole.rows[place] for place in kept])
    assert rest.bad == [row for row in whole.bad if row.line >= first]


@quick
@given(tables, st.booleans())
def test_block_boundaries_make_no_difference_to_good_rows(
    tmp_path: Path, table: list[tuple[Any, ...]], newlines_in_values: bool
) -> None:
    if newlines_in_values:
        table = [(*row[:2], row[2] and row[2].replace(" ", "\n"), *row[3:]) for row in table]
    config = CsvSource(files=["log.csv"], newlines_in_values=newlines_in_values)
    check_all_parsers(tmp_path, "log.csv", as_csv(table), config, COLUMNS)


@pytest.mark.parametrize("nan_is_missing", [False, True])
@pytest.mark.parametrize("newlines_in_values", [False, True])
@quick
@given(garbage("csv"))
@example(b'7,1,"w')
@example(b'7,1,"w\n\n')
@example(b'7,1,w,1,x"\n7,1,"w"\n,1,"x"\n')
def test_fast_and_slow_agree_on_any_csv(
    tmp_path: Path, newlines_in_values: bool, nan_is_missing: bool, data: bytes
) -> None:
    head = b"number,amount,word,ids,tags\n7,1,w,1 2,x|y\n"
    config = CsvSource(
        files=["log.csv"], newlines_in_values=newlines_in_values, nan_is_missing=nan_is_missing, null_values=["NA"]
    )
    check_all_parsers(tmp_path, "log.csv", head + data, config, COLUMNS)


@pytest.mark.parametrize("nan_is_missing", [False, True])
@quick
@given(garbage("jsonl"))
@example(b'{"number": 7.0, "number": 8}\n')
@example(b"null\n{}")
@example(b'{"number": 1} null {"number": 2}\n')
def test_fast_and_slow_agree_on_any_json_lines(tmp_path: Path, nan_is_missing: bool, data: bytes) -> None:
    head = b'{"number": 7, "amount": 1.5, "word": "w", "ids": [1, 2], "tags": ["x"]}\n'
    config = JsonLinesSource(files=["log.jsonl"], nan_is_missing=nan_is_missing, null_values=["NA"])
    check_all_parsers(tmp_path, "log.jsonl", head + data, config, COLUMNS)


@pytest.mark.parametrize("columns", [None, ["user", "tags"]])
@quick
@given(garbage("libsvm"))
def test_fast_and_slow_agree_on_any_libsvm(tmp_path: Path, columns: list[str] | None, data: bytes) -> None:
    lists = schema(label=FLOAT, fields=many(INTEGER), ids=many(TEXT), values=many(FLOAT))
    named = schema(label=FLOAT, user=INTEGER, tags=many(INTEGER))
    config = LibsvmSource(files=["log.ffm"], columns=columns)
    check_all_parsers(tmp_path, "log.ffm", b"1 0:3:1 1:4:1\n" + data, config, lists if columns is None else named)


@pytest.mark.parametrize("columns", [None, ["age", "tags"]])
@quick
@given(garbage("libsvm"))
def test_fast_and_slow_agree_on_any_libsvm_with_numbers(tmp_path: Path, columns: list[str] | None, data: bytes) -> None:
    lists = RawSchema((RawColumn("3", FLOAT), RawColumn("ids", INTEGER, many=True)))
    named = schema(label=FLOAT, age=FLOAT, tags=many(INTEGER))
    config = LibsvmSource(files=["log.ffm"], columns=columns, numeric=[3] if columns is None else ["age"])
    check_all_parsers(tmp_path, "log.ffm", b"1 0:3:1 1:4:1\n" + data, config, lists if columns is None else named)


def test_reading_resumes_in_the_second_of_two_files(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("number\n1\n2\n3\n")
    (tmp_path / "2.csv").write_text("number\n4\nx\n5\n")
    columns = schema(number=INTEGER)
    source = open_source(CsvSource(files=["1.csv", "2.csv"]), tmp_path, columns, block_bytes=2)
    whole = read(source)
    assert [row[0] for row in whole.rows] == [1, 2, 3, 4, 5]
    assert whole.lines == [2, 3, 4, 2, 4]
    assert [replace(row, file="", reason="", text="") for row in whole.bad] == [
        replace(whole.bad[0], file="", reason="", text="")
    ]
    for done, end in enumerate(whole.ends, 1):
        rest = read(source, end)
        assert rest.ends == whole.ends[done:]
        assert whole.rows[len(whole.rows) - len(rest.rows) :] == rest.rows
