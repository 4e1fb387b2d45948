"""Well-formed CSV: all ways to write the same rows are read as the same rows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError
from reader_kit import FLOAT, INTEGER, TEXT, lines, many, read, read_csv, schema

from ziggurat.core.errors import DataError
from ziggurat.data.readers.blocks import Position
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.source import open_source

COLUMNS = schema(user=INTEGER, price=FLOAT, city=TEXT)
TEXT_OF_FILE = lines("user,city,price", "7,Ur,1.5", "8,,", "9,Uruk,-2e3")
ROWS = [(7, 1.5, "Ur"), (8, None, None), (9, -2000.0, "Uruk")]


def test_columns_come_in_the_schemas_order_with_their_lines(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, TEXT_OF_FILE, COLUMNS)
    assert reading.rows == ROWS
    assert reading.lines == [2, 3, 4]
    assert reading.bad == []
    assert reading.ends == [Position(1)]


@pytest.mark.parametrize(
    "text",
    [
        TEXT_OF_FILE.encode().replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + TEXT_OF_FILE.encode(),
        TEXT_OF_FILE.encode().rstrip(b"\n"),
        b'"user","city","price"\n"7","Ur","1.5"\n8,"",\n9,Uruk,-2e3\n',
        b"user,city,price\n 7,Ur, 1.50\n8,, \n+9,Uruk,-2E+03\n",
        b"user,city,price\n7.0,Ur,1.5\n8.,,\n0x9,Uruk,-2000\n",
    ],
    ids=["crlf", "byte order mark", "no last line end", "quoted", "spaces and signs", "other spellings"],
)
def test_equivalent_files_give_the_same_rows(tmp_path: Path, text: bytes) -> None:
    assert read_csv(tmp_path, text, COLUMNS).rows == ROWS


def test_empty_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    text = lines("", "user,city,price", "", "7,Ur,1.5", "", "", "8,,", "9,Uruk,-2e3", "")
    reading = read_csv(tmp_path, text, COLUMNS)
    assert reading.rows == ROWS
    assert reading.lines == [4, 7, 8]
    assert read_csv(tmp_path, text.replace("\n", "\r\n"), COLUMNS) == reading.__class__(
        reading.rows, reading.lines, [], [Position(1)]
    )


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv.zst"])
def test_compressed_files_are_recognised_by_suffix(tmp_path: Path, suffix: str) -> None:
    data = TEXT_OF_FILE.encode()
    stored = gzip.compress(data) if suffix.endswith("gz") else pa.compress(data, "zstd", asbytes=True)
    (tmp_path / f"log{suffix}").write_bytes(stored)
    source = open_source(CsvSource(files=["."]), tmp_path, COLUMNS, block_bytes=8)
    assert read(source).rows == ROWS
    assert source.total_bytes == len(stored)
    assert [block.source_bytes for block in source.blocks()][-1] == len(stored)


def test_a_gzip_file_of_several_members_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "log.csv.gz").write_bytes(
        gzip.compress(b"user,city,price\n7,Ur,1.5\n") + gzip.compress(b"8,,\n9,Uruk,-2e3\n")
    )
    assert read(open_source(CsvSource(files=["log.csv.gz"]), tmp_path, COLUMNS)).rows == ROWS


def test_without_header_the_columns_are_named(tmp_path: Path) -> None:
    text = TEXT_OF_FILE.partition("\n")[2]
    reading = read_csv(tmp_path, text, COLUMNS, header=False, columns=["user", "city", "price"])
    assert reading.rows == ROWS
    assert reading.lines == [1, 2, 3]


def test_columns_replaces_the_names_of_the_header(tmp_path: Path) -> None:
    text = TEXT_OF_FILE.replace("user,city,price", "a,b,c")
    assert read_csv(tmp_path, text, COLUMNS, columns=["user", "city", "price"]).rows == ROWS


def test_each_file_may_order_its_columns_differently(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("user,price,city\n7,1.5,Ur\n")
    (tmp_path / "2.csv").write_text("city,extra,user,price,extra\n,x,8,,y\n")
    source = open_source(CsvSource(files=["1.csv", "2.csv"]), tmp_path, COLUMNS)
    assert read(source).rows == ROWS[:2]
    assert [block.file for block in source.blocks()] == [str(tmp_path / "1.csv"), str(tmp_path / "2.csv")]


def test_tabs_and_other_delimiters(tmp_path: Path) -> None:
    for delimiter in "\t;|":
        text = TEXT_OF_FILE.replace(",", delimiter)
        assert read_csv(tmp_path, text, COLUMNS, delimiter=delimiter).rows == ROWS


def test_null_values_are_missing_in_addition_to_the_empty_cell(tmp_path: Path) -> None:
    text = lines("user,city,price", "NA,NA,NA", ",,", "7,na, NA ")
    reading = read_csv(tmp_path, text, COLUMNS, null_values=["NA"])
    assert reading.rows == [(None, None, None), (None, None, None), (7, None, "na")]


def test_many_values_are_split_and_missing_ones_dropped(tmp_path: Path) -> None:
    columns = schema(ids=many(INTEGER, " "), tags=many(TEXT), weights=many(FLOAT, ";"))
    text = lines("ids,tags,weights", "3 1  2,a|b,0.5;.25", ",,", "7,NA,1", "NA 4,|x||NA|,", "3.0 +1,a b,1e2")
    reading = read_csv(tmp_path, text, columns, null_values=["NA"])
    assert reading.rows == [
        ([3, 1, 2], ["a", "b"], [0.5, 0.25]),
        ([], [], []),
        ([7], [], [1.0]),
        ([4], ["x"], []),
        ([3, 1], ["a b"], [100.0]),
    ]


def test_quoted_values_may_hold_delimiters_quotes_and_where_allowed_line_ends(tmp_path: Path) -> None:
    text = 'user,city,price\n7,"Ur, of ""the"" Chaldees",1\n8,"two\nlines\r\n\nand ""more""",2\n9,x"y",3\n'
    expected = [(7, 1.0, 'Ur, of "the" Chaldees'), (8, 2.0, 'two\nlines\r\n\nand "more"'), (9, 3.0, 'x"y"')]
    for block_bytes in (16, 2**20):
        reading = read_csv(tmp_path, text, COLUMNS, block_bytes=block_bytes, newlines_in_values=True)
        assert reading.rows == expected
        assert reading.lines == [2, 3, 7]
        assert reading.bad == []


def test_integers_keep_every_digit(tmp_path: Path) -> None:
    numbers = [2**63 - 1, -(2**63), 2**53 + 1]
    text = lines("user,city,price", *(f"{number},a,1" for number in numbers), f"{2**53 + 3}.0,a,1")
    assert [row[0] for row in read_csv(tmp_path, text, COLUMNS).rows] == [*numbers, 2**53 + 3]


def test_nan_is_missing_where_the_source_says_so(tmp_path: Path) -> None:
    text = lines("user,city,price", "7,a,nan", "NaN,b,1.5", "8,nan,-NaN")
    reading = read_csv(tmp_path, text, COLUMNS, nan_is_missing=True)
    assert reading.rows == [(7, None, "a"), (None, 1.5, "b"), (8, None, "nan")]


def test_text_and_integers_come_as_dictionaries_in_one_chunk(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(TEXT_OF_FILE)
    table = next(iter(open_source(CsvSource(files=["log.csv"]), tmp_path, COLUMNS).blocks())).table
    assert table.schema.field("user").type == pa.dictionary(pa.int32(), pa.int64())
    assert table.schema.field("price").type == pa.float64()
    assert table.schema.field("city").type == pa.dictionary(pa.int32(), pa.string())
    assert all(column.num_chunks == 1 for column in table.columns)


def test_a_block_is_yielded_before_the_file_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user\n" + "7\n" * 1000)
    blocks = open_source(CsvSource(files=["log.csv"]), tmp_path, schema(user=INTEGER), block_bytes=100).blocks()
    assert next(blocks).end == Position(0, 105, 52)
    blocks.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"header": False}, "list them under `columns`"),
        ({"delimiter": ""}, "one character or several"),
        ({"delimiter": "\n"}, "one character or several"),
        ({"escape": '"'}, "the escape is one ASCII character"),
        ({"escape": ":", "delimiter": "::"}, "is part of the delimiter"),
        ({"comment": ""}, "the text at the beginning of comment lines"),
        ({"skip_lines": -1}, "greater than or equal to 0"),
        ({"encoding": "base64"}, "no encoding of text is called 'base64'"),
        ({"quotes": False, "newlines_in_values": True}, "a value cannot hold a line end"),
        ({"skip_blanks": True, "delimiter": " "}, "set `delimiter: whitespace`"),
        ({"delimiter": '"'}, "one character or several"),
        ({"columns": ["a", "b", "a"]}, "columns named twice: a"),
    ],
)
def test_contradictory_configs_are_rejected(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CsvSource.model_validate({"files": ["log.csv"], **config})


def test_an_endless_record_is_an_error_before_memory_is_full(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with path.open("wb") as stream:
        stream.write(b'user\n7\n"')
        for _ in range(66):
            stream.write(b"x" * 2**20)
        stream.write(b"\n")
    source = open_source(CsvSource(files=["log.csv"]), tmp_path, schema(user=TEXT), block_bytes=2**20)
    with pytest.raises(DataError, match=r"log\.csv: no record ends within 64 MiB after byte 7"):
        read(source)
