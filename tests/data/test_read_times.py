"""Times as text and as typed values: every format gives the same seconds, and other cells make a row bad."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reader_kit import lines, read, read_csv, required, schema

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.cells.text import CellRules, convert_text
from ziggurat.data.readers.cells.times import parse_iso_time
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.source import open_source

TIME = ValueType.TIME
WHEN = schema(when=required(TIME))
NOON = 1_714_566_600.0  # 2024-05-01 12:30:00 UTC

TIMES = {
    "2024-05-01": 1_714_521_600.0,
    "2024-05-01 12": 1_714_564_800.0,
    "2024-05-01T12:30": NOON,
    "2024-05-01 12:30:00": NOON,
    "2024-05-01T12:30:00Z": NOON,
    "2024-05-01 12:30:00 UTC": NOON,
    "2024-05-01T14:30:00+02": NOON,
    "2024-05-01T14:30:00+0200": NOON,
    "2024-05-01T07:00:00-05:30": NOON,
    "2024-05-01T12:30:00.5": NOON + 0.5,
    "2024-05-01T12:30:00.123456789": NOON + 0.123456,
    "2024-05-01T12:30:00.123456789Z": NOON + 0.123456,
    "1969-12-31T23:59:59.5": -0.5,
    "0001-01-01": -62_135_596_800.0,
    "9999-12-31 23:59:59": 253_402_300_799.0,
}
NOT_TIMES = [
    "yesterday", "2024", "2024-05", "20240501", "1714521600", "2024/05/01", "2024-5-1", "2024-02-30", "0000-01-01",
    "2024-05-01T24:00:00", "2024-05-01T12:30:60", "2024-05-01T12:30:00+24:00", "2024-05-01T12:30:00+02:60",
    "2024-05-01Z", "2024-05-01T12:30:00.", "2024-05-01T12:30:00,5", "2024-05-01  12:30:00", "2024-05-01T1230",
    "2024-05-01 12:30:00 CET", "2024-05-01T12:30:00Z UTC", "٢٠٢٤-05-01", "nan",
]  # fmt: skip


@pytest.mark.parametrize("text", TIMES)
def test_a_time_alone_and_among_others(text: str) -> None:
    assert parse_iso_time(text) == TIMES[text]
    for cells in ([text], [text, None], [f" {text} "], [text, "2024-05-01", "2024-05-01T00:00:00Z"]):
        converted = convert_text(pa.array(cells, pa.string()), RawColumn("t", TIME), CellRules())
        assert converted.bad == {}
        assert converted.values.type == pa.float64()
        assert converted.values[0].as_py() == TIMES[text]


@pytest.mark.parametrize("text", NOT_TIMES)
def test_other_text_is_rejected_alone_and_among_others(text: str) -> None:
    assert parse_iso_time(text) is None
    for cells in ([text], ["2024-05-01", text], ["2024-05-01T00:00:00Z", "2024-05-01", text]):
        converted = convert_text(pa.array(cells, pa.string()), RawColumn("t", TIME), CellRules())
        assert list(converted.bad) == [len(cells) - 1]
        assert converted.bad[len(cells) - 1].startswith(f"not a time: received {text!r} — write it like 2024-05-01")


zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1))
parts = st.sampled_from(["2024", "-05", "-01", "T", " ", "12", ":30", ":00", ".5", "Z", "+02", "00", " UTC", "0", "x"])


@settings(max_examples=200, deadline=None)
@given(times, st.none() | zones, st.sampled_from("T "))
def test_times_equal_those_of_the_standard_library(local: datetime, zone: timezone | None, separator: str) -> None:
    moment = local.replace(tzinfo=zone)
    text = moment.isoformat(separator)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_iso_time(text) == float(since // timedelta(microseconds=1)) / 1e6


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(parts, max_size=9).map("".join) | st.sampled_from([*TIMES, *NOT_TIMES]), max_size=4))
@example(["0000-12-31T23:00:00-02:00"])
def test_fast_and_slow_agree_on_any_text(cells: list[str]) -> None:
    converted = convert_text(pa.array(cells, pa.string()), RawColumn("t", TIME), CellRules())
    slow = [parse_iso_time(cell.strip()) for cell in cells]
    assert set(converted.bad) == {row for row, cell in enumerate(cells) if cell.strip() and slow[row] is None}
    assert converted.values.to_pylist() == slow


def test_csv_rejects_other_cells_with_their_lines(tmp_path: Path) -> None:
    text = lines("when,x", "2024-05-01 12:30:00,1", "soon,2", ",3", "2024-05-01T14:30:00+02:00,4")
    reading = read_csv(tmp_path, text, WHEN)
    assert (reading.rows, reading.lines) == ([(NOON,), (NOON,)], [2, 5])
    assert reading.kinds() == [(3, "when", "not a time"), (4, "when", "required cell is empty")]
    assert read_csv(tmp_path, lines("when", "NA", "2024-05-01"), schema(when=TIME), null_values=["NA"]).rows == [
        (None,),
        (TIMES["2024-05-01"],),
    ]


def test_json_lines(tmp_path: Path) -> None:
    cells = ["2024-05-01 12:30:00", None, "", 1714521600, "2024-05-01", True]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps({"when": cell}) + "\n" for cell in cells))
    config = JsonLinesSource(files=["log.jsonl"])
    source = open_source(config, tmp_path, schema(when=TIME))
    reading = read(source)
    assert reading.rows == [(NOON,), (None,), (None,), (TIMES["2024-05-01"],)]
    assert reading.kinds() == [(4, "when", "not a time"), (6, "when", "not a time")]
    good = b'{"when": "2024-05-01T12:30:00Z"}\n{"when": null}\n'
    (tmp_path / "log.jsonl").write_bytes(good)
    (file,) = open_source(config, tmp_path, schema(when=TIME)).files
    parser = JsonLinesParser(file, config, schema(when=TIME))
    fast = parser.parse(good, 1)
    assert fast is not None
    assert fast.table.to_pydict() == parser.parse_slowly(good, 1).table.to_pydict() == {"when": [NOON, None]}


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([datetime(2024, 5, 1, 12, 30)], pa.timestamp("ns")),
        pa.array([datetime(2024, 5, 1, 14, 30)], pa.timestamp("ms")).cast(pa.timestamp("ms", "+02:00")),
        pa.array(["2024-05-01T12:30:00Z"]),
        pa.array(["2024-05-01T12:30:00Z"]).dictionary_encode(),
    ],
    ids=lambda cells: str(cells.type),
)
def test_parquet(tmp_path: Path, cells: pa.Array) -> None:
    pq.write_table(pa.table({"when": cells}), tmp_path / "log.parquet")
    hours = 2 if "+02" in str(cells.type) else 0
    reading = read(open_source(ParquetSource(files=["log.parquet"]), tmp_path, WHEN))
    assert reading.rows == [(NOON + hours * 3600,)]  # the cast gave the stored instant a zone to be shown in


def test_parquet_dates_and_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"when": [date(2024, 5, 1)], "n": [5]}), tmp_path / "log.parquet")
    config = ParquetSource(files=["log.parquet"])
    assert read(open_source(config, tmp_path, WHEN)).rows == [(TIMES["2024-05-01"],)]
    with pytest.raises(DataError, match="holds int64, times are declared\n  hint: set `time_format: number`"):
        open_source(config, tmp_path, schema(n=TIME))


def test_slow_and_fast_csv_agree_across_blocks(tmp_path: Path) -> None:
    cells = [*TIMES, *NOT_TIMES, ""]
    text = lines("when,x", *(f'"{cell}",1' for cell in cells))
    whole = read_csv(tmp_path, text, WHEN)
    parts = read_csv(tmp_path, text, WHEN, block_bytes=20)
    assert whole.rows == parts.rows == [(value,) for value in TIMES.values()]
    assert whole.bad == parts.bad
    assert len(whole.bad) == len(NOT_TIMES) + 1
