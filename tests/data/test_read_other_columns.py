"""Columns that the schema leaves out, carried along: they cost no row, whatever they hold."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_kit import FLOAT, INTEGER, TEXT, Reading, read, schema

from ziggurat.core.schema import RawColumn, RawSchema
from ziggurat.data.csv_reader import CsvSource
from ziggurat.data.jsonl_reader import JsonLinesSource
from ziggurat.data.libsvm_reader import LibsvmSource
from ziggurat.data.parquet_reader import ParquetSource
from ziggurat.data.source import open_source

NEEDED = schema(user=INTEGER)
NAN = float("nan")


def read_along(
    folder: Path, config: CsvSource | JsonLinesSource | ParquetSource
) -> tuple[tuple[RawColumn, ...], Reading]:
    others = open_source(config, folder, NEEDED).other_columns()
    names = [column.name for column in others]
    return others, read(open_source(config, folder, RawSchema((*NEEDED.columns, *others)), carried=names))


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_bytes(b"note,user,price,twice,twice\na,7,nan,1,2\n\xff,8,,1,2\nb,x,1,1,2\n")
    (tmp_path / "2.csv").write_bytes(b"user,price,note,more\n9,2,c,0\n")
    others, reading = read_along(tmp_path, CsvSource(files=["."]))
    assert others == schema(note=TEXT, price=TEXT).columns
    assert reading.rows == [(7, "a", "nan"), (8, None, None), (9, "c", "2")]
    assert reading.kinds() == [(4, "user", "not an integer")]


@pytest.mark.parametrize("spelling", ["as at the head", "mixed"])
def test_json_lines(tmp_path: Path, spelling: str) -> None:
    rows = [
        {"user": 7, "n": 1, "x": 0.5, "t": "a", "flag": True, "list": [1], "mixed": 1, "none": None},
        {"user": 8, "n": 2, "x": 3, "mixed": "m"},
        {"user": 9, "n": 3, "x": NAN, "t": "b"},
    ]
    late = [{"user": 1, "n": "seven"}] if spelling == "mixed" else []
    filler = ['{"user": 0' + " " * 1_000 + "}"] * 1_100  # puts what follows behind the head
    lines = [*map(json.dumps, rows), *filler, *map(json.dumps, late)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    others, reading = read_along(tmp_path, JsonLinesSource(files=["."]))
    assert others == schema(n=INTEGER, x=FLOAT, t=TEXT, flag=TEXT).columns
    assert reading.rows[:3] == [(7, 1, 0.5, "a", "true"), (8, 2, 3.0, None, None), (9, 3, None, "b", None)]
    assert reading.rows[1_103:] == [(1, None, None, None, None)] * len(late)
    assert reading.bad == []


def test_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {"x": [0.5, NAN], "user": [7, 8], "n": pa.array([1, 2**63], pa.uint64()), "list": [[1], []], "t": ["a", ""]}
    )
    pq.write_table(table, tmp_path / "log.parquet")
    others, reading = read_along(tmp_path, ParquetSource(files=["."]))
    assert others == schema(x=FLOAT, n=INTEGER, t=TEXT).columns
    assert reading.rows == [(7, 0.5, 1, "a"), (8, None, None, None)]
    assert reading.bad == []


def test_libsvm_has_no_others(tmp_path: Path) -> None:
    (tmp_path / "log.svm").write_text("1 2:3\n")
    assert open_source(LibsvmSource(files=["."]), tmp_path, schema(label=INTEGER)).other_columns() == ()
