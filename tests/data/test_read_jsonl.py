"""JSON lines: conversion of each JSON value, missing keys, and malformed lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reader_kit import FLOAT, INTEGER, TEXT, Reading, many, read, required, schema

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.blocks import Position
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.source import open_source


def read_lines(
    folder: Path, text: str | bytes, columns: RawSchema, *, block_bytes: int = 2**20, **config: Any
) -> Reading:
    (folder / "log.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    source = open_source(JsonLinesSource(files=["log.jsonl"], **config), folder, columns, block_bytes=block_bytes)
    return read(source)


VALUES: list[tuple[ValueType | RawColumn, list[str], list[Any]]] = [
    (INTEGER, ["7", "null", "9007199254740993"], [7, None, 2**53 + 1]),
    (INTEGER, ["7", "8.0", "true", '" 9 "', '""'], [7, 8, 1, 9, None]),
    (INTEGER, ["9007199254740993", "8.0"], [2**53 + 1, 8]),
    (INTEGER, ['"7"', '"8"'], [7, 8]),
    (FLOAT, ["7", "1.5", "-2e3"], [7.0, 1.5, -2000.0]),
    (FLOAT, ['"1.5"', "false", "12345678901234567890"], [1.5, 0.0, 12345678901234567890.0]),
    (TEXT, ['"a"', "null", '""', r'"\u00fc\"\n"'], ["a", None, None, 'ü"\n']),
    (TEXT, ["7", "8"], ["7", "8"]),
    (TEXT, ["7", '"8"', "true", "12345678901234567890"], ["7", "8", "true", "12345678901234567890"]),
    (TEXT, ["true", "false"], ["true", "false"]),
    (TEXT, ['"2020-01-01 00:00:00"'], ["2020-01-01 00:00:00"]),
    (many(INTEGER), ["[1, null, 2]", "[]", "null"], [[1, 2], [], []]),
    (many(INTEGER), ['"3|4"', '""'], [[3, 4], []]),
    (many(INTEGER), ["[1]", "7", '"3||4"', "[2.0]"], [[1], [7], [3, 4], [2]]),
    (many(TEXT), ['["a", ""]', '["b"]'], [["a"], ["b"]]),
    (many(FLOAT), ["[1, 2.5]"], [[1.0, 2.5]]),
]


@pytest.mark.parametrize(("kind", "values", "expected"), VALUES)
def test_the_declared_type_decides(
    tmp_path: Path, kind: ValueType | RawColumn, values: list[str], expected: list[Any]
) -> None:
    text = "".join(f'{{"x": {value}, "other": {{"y": [1, "z"]}}}}\n' for value in values)
    reading = read_lines(tmp_path, text, schema(x=kind))
    assert [repr(row[0]) for row in reading.rows] == [repr(value) for value in expected]
    assert reading.bad == []


@pytest.mark.parametrize(("kind", "values", "expected"), VALUES)
def test_the_slow_parser_gives_the_same(
    tmp_path: Path, kind: ValueType | RawColumn, values: list[str], expected: list[Any]
) -> None:
    text = "".join(f'{{"x": {value}}}\n' for value in values)
    (tmp_path / "log.jsonl").write_text(text)
    source = open_source(JsonLinesSource(files=["log.jsonl"]), tmp_path, schema(x=kind))
    parser = JsonLinesParser(source.files[0], JsonLinesSource(files=[]), schema(x=kind))
    assert parser.parse_slowly(text.encode(), 1).table.column("x").to_pylist() == expected


BAD: list[tuple[ValueType | RawColumn, bytes, str | None, str]] = [
    (INTEGER, b'{"x": 1', None, "malformed JSON: received"),
    (INTEGER, b'{"x": 1} {"x": 2}', None, "malformed JSON: received"),
    (INTEGER, b"null", None, "malformed JSON: received None, not an object"),
    (INTEGER, b"[1]", None, "malformed JSON: received [1], not an object"),
    (INTEGER, b"x", None, "malformed JSON: received 'x'"),
    (INTEGER, b"[" * 100_000, None, "malformed JSON: received"),
    (INTEGER, b'{"x": 1.5}', "x", "not an integer: received 1.5"),
    (INTEGER, b'{"x": "one"}', "x", "not an integer: received 'one'"),
    (INTEGER, b'{"x": 9223372036854775808}', "x", "beyond int64: received 9223372036854775808"),
    (INTEGER, b'{"x": 1e19}', "x", "beyond int64: received 1e+19"),
    (INTEGER, b'{"x": NaN}', "x", "NaN or infinity: received nan"),
    (INTEGER, b'{"x": [1]}', "x", "wrong JSON type: received a list, one integer is declared"),
    (INTEGER, b'{"x": {}}', "x", "wrong JSON type: received an object"),
    (FLOAT, b'{"x": -Infinity}', "x", "NaN or infinity: received -inf"),
    (FLOAT, b'{"x": 1e999}', "x", "NaN or infinity: received inf"),
    (FLOAT, b'{"x": 1' + b"0" * 400 + b"}", "x", "NaN or infinity: received 1"),
    (FLOAT, b'{"x": "dear"}', "x", "not a number: received 'dear'"),
    (TEXT, b'{"x": "\xff"}', "x", r"not UTF-8: received b'\xff'"),
    (TEXT, rb'{"x": "\ud800"}', "x", "not UTF-8: received"),
    (TEXT, b'{"x": 1.5}', "x", "wrong JSON type: received 1.5, text is declared"),
    (many(INTEGER), b'{"x": [1, [2]]}', "x", "wrong JSON type: element 2 received a list"),
    (many(INTEGER), b'{"x": [1, "y"]}', "x", "not an integer: element 2 received 'y'"),
    (required(INTEGER), b'{"x": null}', "x", "required cell is empty"),
    (required(TEXT), b'{"y": 1}', "x", "required cell is empty"),
]


@pytest.mark.parametrize(("kind", "line", "column", "reason"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_line_is_rejected_and_its_neighbours_kept(
    tmp_path: Path, kind: ValueType | RawColumn, line: bytes, column: str | None, reason: str
) -> None:
    good = b'{"x": ["7"]}' if isinstance(kind, RawColumn) and kind.many else b'{"x": "7"}'
    reading = read_lines(tmp_path, b"\n".join([good, b"", line, good, line]), schema(x=kind))
    assert reading.lines == [1, 4]
    assert reading.rows[0] == reading.rows[1]
    assert reading.bad_lines == [3, 5]
    for bad in reading.bad:
        assert bad.column == column
        assert bad.reason.startswith(reason)
        assert " — " in bad.reason


def test_a_bad_value_among_well_typed_lines_is_found(tmp_path: Path) -> None:
    rows = [json.dumps({"x": n, "f": n / 2}) for n in range(3_000)]
    rows[1_000], rows[2_999] = '{"x": 1, "f": NaN}', '{"x": "y", "f": 1}'
    for block_bytes in (2**20, 1_000):
        reading = read_lines(tmp_path, "\n".join(rows), schema(x=INTEGER, f=FLOAT), block_bytes=block_bytes)
        assert reading.kinds() == [(1_001, "f", "NaN or infinity"), (3_000, "x", "not an integer")]
        assert [row[0] for row in reading.rows] == [n for n in range(3_000) if n not in {1_000, 2_999}]


def test_missing_keys_are_missing_values(tmp_path: Path) -> None:
    reading = read_lines(tmp_path, '{"x": 1}\n{"m": [2]}\n{}\n', schema(x=INTEGER, m=many(INTEGER)))
    assert reading.rows == [(1, []), (None, [2]), (None, [])]


def test_nan_and_null_values_are_missing_where_the_source_says_so(tmp_path: Path) -> None:
    text = '{"f": NaN, "i": 1.0, "t": "NA", "m": [NaN, "NA", 2]}\n{"f": "nan", "i": NaN, "t": "nan", "m": "NA"}\n'
    columns = schema(f=FLOAT, i=INTEGER, t=TEXT, m=many(FLOAT))
    reading = read_lines(tmp_path, text, columns, nan_is_missing=True, null_values=["NA"])
    assert reading.rows == [(None, 1, None, [2.0]), (None, None, "nan", [])]


def test_line_ends_byte_order_marks_and_empty_lines(tmp_path: Path) -> None:
    reading = read_lines(tmp_path, b'\xef\xbb\xbf\r\n{"x": 1}\r\n\r\n {"x": 2} \r\n{"x":\r3}', schema(x=INTEGER))
    assert reading.rows == [(1,), (2,), (3,)]
    assert reading.lines == [2, 4, 5]
    assert reading.ends == [Position(1)]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            '[{"x": 1},\n{"x": 2}]\n',
            schema(x=INTEGER),
            r"holds a JSON array, not JSON lines\n  hint: set `records: array",
        ),
        ("a,b\n1,2\n", schema(x=INTEGER), r"none of the first 2 lines is a JSON object .*\n  hint: name the format"),
        ("\n\n", schema(x=INTEGER), r"none of the first 0 lines is a JSON object \(only empty lines\)"),
        (
            '{"usr": 1}\n',
            schema(user=INTEGER),
            r"no key 'user' in the first 1 rows, which hold: usr\n  hint: did you mean 'usr'",
        ),
        (
            '{"a": 1}\n',
            schema(zebra=INTEGER),
            r"no key 'zebra' .*\n  hint: If the key is only rare, list it under `optional`",
        ),
    ],
)
def test_heads_that_do_not_fit(tmp_path: Path, text: str, columns: RawSchema, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_lines(tmp_path, text, columns)


def test_a_rare_key_may_be_declared_optional(tmp_path: Path) -> None:
    assert read_lines(tmp_path, '{"a": 1}\n', schema(a=INTEGER, rare=TEXT), optional=["rare"]).rows == [(1, None)]


def test_a_number_of_thousands_of_digits_is_rejected_in_plain_words(tmp_path: Path) -> None:
    line = b'{"x": ' + b"9" * 5000 + b"}"
    (bad,) = read_lines(tmp_path, b'{"x": 7}\n' + line, schema(x=INTEGER)).bad
    assert "(a whole number has more digits than the 4,300 that are allowed)" in bad.reason
