"""File ranges of raw files: read one by one, in any order, they give the same rows as one pass."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_kit import INTEGER, TEXT, read, schema

from ziggurat.data.readers import reader
from ziggurat.data.readers.blocks import Position
from ziggurat.data.readers.columnar import reader as columnar_reader
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.reader import RawSource
from ziggurat.data.readers.source import SourceConfig, open_source

FORMATS: dict[str, tuple[str, SourceConfig]] = {
    "csv": (".csv", CsvSource(files=["*.csv"])),
    "quoted": (".csv", CsvSource(files=["*.csv"], newlines_in_values=True)),
    "gzip": (".csv.gz", CsvSource(files=["*.csv.gz"])),
    "jsonl": (".jsonl", JsonLinesSource(files=["*.jsonl"])),
    "parquet": (".parquet", ParquetSource(files=["*.parquet"])),
}
ROWS = (150, 1, 90)


@pytest.fixture(autouse=True)
def small_file_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reader, columnar_reader):
        monkeypatch.setattr(module, "FILE_RANGE_BYTES", 500)


def open_files(folder: Path, name: str) -> RawSource:
    """Opens three files of one format with blocks of about 100 bytes; a twentieth of the rows of text files are bad."""
    draw = np.random.default_rng(3)
    suffix, config = FORMATS[name]
    for number, rows in enumerate(ROWS):
        path = folder / f"{number}{suffix}"
        users = draw.integers(0, 1000, rows)
        notes = [f"note {row % 7}" + ("\nmore" if name == "quoted" and row % 3 else "") for row in range(rows)]
        if name == "parquet":
            pq.write_table(pa.table({"user": users, "note": notes}), path, row_group_size=20)
            continue
        cells = [f"{user}" if draw.random() < 0.95 else "who" for user in users]
        if name == "jsonl":
            lines = [f'{{"user": "{cell}", "note": "{note}"}}' for cell, note in zip(cells, notes, strict=True)]
        else:
            lines = ["user,note", *(f'{cell},"{note}"' for cell, note in zip(cells, notes, strict=True))]
        text = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(text) if name == "gzip" else text)
    return open_source(config, folder, schema(user=INTEGER, note=TEXT), block_bytes=100)


@pytest.mark.parametrize("name", FORMATS)
def test_file_ranges_hold_the_rows_of_one_pass(name: str, tmp_path: Path) -> None:
    source = open_files(tmp_path, name)
    whole = read(source)
    file_ranges = list(source.file_ranges())
    parts = [read(source, each.start, each.end) for each in reversed(file_ranges)][::-1]
    assert [row for part in parts for row in part.rows] == whole.rows
    assert [line for part in parts for line in part.lines] == whole.lines
    assert [bad for part in parts for bad in part.bad] == whole.bad
    assert len(whole.rows) + len(whole.bad) == sum(ROWS)
    assert (len(whole.bad) > 0) == (name != "parquet")
    assert [len({file_range.start.file for file_range in file_ranges}), file_ranges[-1].end] == [3, Position(3)]
    assert (len(file_ranges) == 3) == (name == "gzip")  # in the other formats the first and last file are divided


@pytest.mark.parametrize("name", FORMATS)
def test_file_ranges_start_at_the_end_of_any_block(name: str, tmp_path: Path) -> None:
    source = open_files(tmp_path, name)
    whole = read(source)
    for position in whole.ends[:: max(1, len(whole.ends) // 8)]:
        rest = [row for each in source.file_ranges(position) for row in read(source, each.start, each.end).rows]
        assert rest == (read(source, position).rows)
        assert rest == whole.rows[len(whole.rows) - len(rest) :]
    assert list(source.file_ranges(Position(3))) == []
