"""Times by a pattern and numbers since 1970: fast parsers, references and the standard library agree."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reader_kit import lines, read, read_csv

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.cells.text import CellRules, convert_text
from ziggurat.data.readers.cells.time_patterns import time_pattern
from ziggurat.data.readers.cells.times import checked_time_format, parse_time_text
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.source import open_source

NOON = 1_714_566_600.0  # 2024-05-01 12:30:00 UTC
PATTERNS = [
    "%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M:%S %p", "%y%m%d%H", "%Y%m%d%H%M%S", "%d.%m.%y", "%b %d, %Y", "%d %B %Y %H:%M",
    "%a %b %d %H:%M:%S %z %Y", "%d/%b/%Y:%H:%M:%S %z", "%Y-%m-%d %H:%M:%S.%f", "%Y%m", "%Y-%j", "%F %T", "%H:%M %D",
]  # fmt: skip
CASES = {
    ("01/05/2024 12:30", "%d/%m/%Y %H:%M"): NOON,
    ("1/5/2024 12:30", "%d/%m/%Y %H:%M"): NOON,
    ("5/1/2024 12:30:00 PM", "%m/%d/%Y %I:%M:%S %p"): NOON,
    ("05/01/2024 12:30 a.m.", "%m/%d/%Y %I:%M %p"): NOON - 43_200,
    ("24050112", "%y%m%d%H"): NOON - 1800,
    ("20240501123000", "%Y%m%d%H%M%S"): NOON,
    ("Wed May 01 12:30:00 +0000 2024", "%a %b %d %H:%M:%S %z %Y"): NOON,
    ("01/May/2024:14:30:00 +0200", "%d/%b/%Y:%H:%M:%S %z"): NOON,
    ("May  1, 2024", "%b %d, %Y"): NOON - 45_000,
    ("1 MAY 2024", "%d %B %Y"): NOON - 45_000,
    ("01.05.2024 12:30:00,250", "%d.%m.%Y %H:%M:%S,%f"): NOON + 0.25,
    ("2024-05-01 12:30:00.123456789", "%Y-%m-%d %H:%M:%S.%f"): NOON + 0.123456,
    ("2024122", "%Y%j"): 1_714_521_600.0,
    ("690101", "%y%m%d"): -31_536_000.0,
    ("680101", "%y%m%d"): 3_092_601_600.0,
    ("1714566600", "seconds"): NOON,
    ("1714566600.5", "seconds"): NOON + 0.5,
    ("1.7145666e9", "seconds"): NOON,
    ("1714566600250", "milliseconds"): NOON + 0.25,
    ("1714566600000000", "microseconds"): NOON,
    ("1714566600000000000", "nanoseconds"): NOON,
}
REFUSED = {
    "%d/%m/%Y %H:%M": ["31/02/2024 10:00", "01/13/2024 10:00", "01/05/2024 24:00", "01/05/2024", "01-05-2024 10:00",
                       "001/05/2024 10:00", "01/05/24 10:00", "01/05/0000 10:00", " ", "-1/05/2024 10:00"],
    "%y%m%d%H": ["2405011", "240501123", "24130112", "24022912x", "23022900", "2405 112"],
    "%m/%d/%Y %I:%M %p": ["05/01/2024 13:00 PM", "05/01/2024 0:30 AM", "05/01/2024 12:30"],
    "%Y-%m-%d %H:%M:%S%z": ["2024-05-01 12:30:60Z", "2024-05-01 12:30:00+24:00", "2024-05-01 12:30:00CET"],
    "%Y%j": ["2023366", "2023000"],
    "%b %d %Y": ["Mai 1 2024", "May 32 2024"],
    "seconds": ["nan", "inf", "1e400", "0x10", "2024-05-01", "12 30"],
}  # fmt: skip


def convert(cells: list[str | None], time_format: str) -> tuple[list[float | None], dict[int, str]]:
    column = RawColumn("t", ValueType.TIME, time_format=time_format)
    converted = convert_text(pa.array(cells, pa.string()), column, CellRules())
    assert converted.values.type == pa.float64()
    return converted.values.to_pylist(), converted.bad


@pytest.mark.parametrize(("text", "time_format"), CASES)
def test_a_time_alone_and_among_others(text: str, time_format: str) -> None:
    expected = CASES[text, time_format]
    assert parse_time_text(text, time_format) == expected
    assert convert([text], time_format) == ([expected], {})
    assert convert([None, f" {text} ", ""], time_format) == ([None, expected, None], {})
    assert convert([text, "x"], time_format)[0] == [expected, None]  # one by one
    assert convert([text] * 5_000 + [None], time_format) == ([expected] * 5_000 + [None], {})  # each text parsed once


@pytest.mark.parametrize("time_format", REFUSED)
def test_other_text_is_rejected_with_an_example(time_format: str) -> None:
    good = next(text for (text, each), _ in CASES.items() if each == "seconds") if time_format == "seconds" else (
        time_pattern(time_format).example
    )  # fmt: skip
    for cell in REFUSED[time_format]:
        assert parse_time_text(cell.strip(), time_format) is None
        if cell.strip():
            values, bad = convert([good, cell], time_format)
            assert (values[0] is not None, list(bad)) == (True, [1])
            assert bad[1].startswith(f"not a time: received {cell!r} — write it like ")
            assert time_format in bad[1]


@settings(max_examples=150, deadline=None)
@given(
    st.datetimes(datetime(1969, 1, 1), datetime(2068, 12, 31)),
    st.integers(-1439, 1439),
    st.sampled_from(PATTERNS),
)
def test_times_equal_those_of_the_standard_library(local: datetime, offset: int, pattern: str) -> None:
    text = local.replace(tzinfo=timezone(timedelta(minutes=offset))).strftime(pattern)
    read_back = datetime.strptime(
        text, pattern.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S").replace("%D", "%m/%d/%y")
    )
    expected = (read_back if read_back.tzinfo else read_back.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = float(expected // timedelta(microseconds=1)) / 1e6
    assert parse_time_text(text, pattern) == seconds
    assert convert([text, None], pattern) == ([seconds, None], {})


@st.composite
def cells_of_a_pattern(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A pattern, and texts that are like it: parts of it, or with one character exchanged."""
    pattern = draw(st.sampled_from([*PATTERNS, "seconds", "nanoseconds"]))
    text = time_pattern(pattern).example if "%" in pattern else "1714566600"
    swap = st.tuples(st.integers(0, len(text) - 1), st.sampled_from("0123456789 /:-.APMZae+٣"))
    cell = swap.map(lambda where: text[: where[0]] + where[1] + text[where[0] + 1 :])
    return pattern, draw(st.lists(cell | st.just(text) | st.text(max_size=8), max_size=5))


@settings(max_examples=250, deadline=None)
@given(cells_of_a_pattern())
@example(("%Y-%m-%d %H:%M:%S.%f", ["0001-01-01 00:00:00.0", "9999-12-31 23:59:59.9"]))
def test_fast_and_slow_agree_on_any_text(drawn: tuple[str, list[str]]) -> None:
    time_format, cells = drawn
    values, bad = convert(list(cells), time_format)
    slow = [parse_time_text(cell.strip(), time_format) for cell in cells]
    assert values == slow
    assert set(bad) == {row for row, cell in enumerate(cells) if cell.strip() and slow[row] is None}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("%Q", "unknown directive '%Q'"),
        ("%Y-%m-%d %Z", "write times with an offset"),
        ("%m/%d", "a year is needed"),
        ("%Y %y", "a year is needed"),
        ("%Y %d", "needs a month"),
        ("%Y-%m-%d %I:%M", "with both %I and %p"),
        ("%Y-%m-%d %M", "minutes need hours"),
        ("%Y%Y", "states again"),
        ("%Y-%j-%d", "day of the year"),
        ("%", "unknown directive"),
        ("days", "received 'days'; allowed: iso, seconds, milliseconds"),
        ("%Y" + "-" * 300, "at most 200"),
    ],
)
def test_a_format_that_cannot_be_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_time_format(pattern)


def time_schema(time_format: str) -> RawSchema:
    return RawSchema((RawColumn("when", ValueType.TIME, required=True, time_format=time_format),))


def test_csv_reports_each_bad_cell_with_its_line(tmp_path: Path) -> None:
    text = lines("when,x", "01/05/2024 12:30,1", "31/04/2024 12:30,2", ",3", "1/5/2024 12:30,4")
    reading = read_csv(tmp_path, text, time_schema("%d/%m/%Y %H:%M"))
    assert (reading.rows, reading.lines) == ([(NOON,), (NOON,)], [2, 5])
    assert reading.kinds() == [(3, "when", "not a time"), (4, "when", "required cell is empty")]


@pytest.mark.parametrize(
    ("time_format", "numbers", "expected"),
    [
        ("seconds", [1714566600, 0], [NOON, 0.0]),
        ("milliseconds", [1714566600500, -1000], [NOON + 0.5, -1.0]),
        ("nanoseconds", [1714566600000000000, 0], [NOON, 0.0]),
        ("%y%m%d%H", [24050112, 5010100], [NOON - 1800, 1_104_537_600.0]),  # a number has lost its zeros
        ("%Y%m%d", [20240501, 20240501], [1_714_521_600.0] * 2),
    ],
)
def test_typed_numbers(tmp_path: Path, time_format: str, numbers: list[int], expected: list[float]) -> None:
    for values in (pa.array(numbers), pa.array([float(number) for number in numbers])):
        pq.write_table(pa.table({"when": values}), tmp_path / "log.parquet")
        parquet = read(open_source(ParquetSource(files=["log.parquet"]), tmp_path, time_schema(time_format)))
        assert [row[0] for row in parquet.rows] == expected
    data = "".join(json.dumps({"when": number}) + "\n" for number in numbers).encode()
    (tmp_path / "log.jsonl").write_bytes(data)
    config = JsonLinesSource(files=["log.jsonl"])
    source = open_source(config, tmp_path, time_schema(time_format))
    assert [row[0] for row in read(source).rows] == expected
    parser = JsonLinesParser(source.files[0], config, time_schema(time_format))
    assert parser.parse_slowly(data, 1).table.column("when").to_pylist() == expected


def test_typed_numbers_that_are_no_times(tmp_path: Path) -> None:
    pq.write_table(pa.table({"when": [24050112, 24139999, -5, None]}), tmp_path / "log.parquet")
    reading = read(open_source(ParquetSource(files=["log.parquet"]), tmp_path, time_schema("%y%m%d%H")))
    assert reading.rows == [(NOON - 1800,)]
    assert [kind for _, _, kind in reading.kinds()] == ["not a time", "not a time", "required cell is empty"]
    with pytest.raises(DataError, match="holds int64, times are declared"):
        open_source(ParquetSource(files=["log.parquet"]), tmp_path, time_schema("%d/%m/%Y"))
    (tmp_path / "log.jsonl").write_text('{"when": true}\n{"when": 24139999}\n{"when": 24050112}\n')
    reading = read(open_source(JsonLinesSource(files=["log.jsonl"]), tmp_path, time_schema("%y%m%d%H")))
    assert reading.rows == [(NOON - 1800,)]
    assert len(reading.bad) == 2
