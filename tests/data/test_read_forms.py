"""CSV text in the forms in which it is found: encodings, archives, carriage returns, comments, unnamed columns."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_kit import FLOAT, INTEGER, TEXT, Reading, lines, read, read_csv, schema

from ziggurat.core.errors import DataError
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.source import open_source

COLUMNS = schema(user=INTEGER, town=TEXT)
SAMPLES = {
    "utf-16": "Zürich Łódź 東京", "utf-16-le": "Zürich", "utf-32": "東京", "cp1252": "Zürich “a”", "latin-1": "Málaga",
    "cp1251": "Москва", "koi8-r": "Москва", "shift_jis": "表示ソ", "gb18030": "北京", "big5": "功能", "euc_kr": "서울",
    "cp037": "Bern",
}  # fmt: skip


@pytest.mark.parametrize("encoding", SAMPLES)
def test_text_of_any_encoding(tmp_path: Path, encoding: str) -> None:
    rows = [(number, f"{SAMPLES[encoding]} {number}") for number in range(500)]
    text = "user,town\n" + "".join(f"{user},{town}\n" for user, town in rows)
    reading = read_csv(tmp_path, text.encode(encoding), COLUMNS, 700, encoding=encoding)
    assert reading.rows == rows
    assert reading.lines == list(range(2, 502))
    assert not reading.bad


@pytest.mark.parametrize(
    ("encoding", "damage", "received"),
    [
        ("shift_jis", b"\x81", r"\x81"),
        ("cp1252", b"\x9d", r"\x9d"),
        ("gb18030", b"\xff", r"\xff"),
        ("ascii", "é".encode(), r"\xc3\xa9"),  # the same bytes are UTF-8
        ("utf-16-le", b"\x00\xdc", r"\x00\xdc"),
    ],
)
def test_bytes_that_are_no_text_make_one_bad_row(tmp_path: Path, encoding: str, damage: bytes, received: str) -> None:
    def encoded(text: str) -> bytes:
        return text.encode(encoding)

    data = encoded("user,town\n1,a\n2,b") + damage + encoded("\n3,c\n")
    reading = read_csv(tmp_path, data, COLUMNS, encoding=encoding)
    assert reading.rows == [(1, "a"), (3, "c")]
    assert reading.kinds() == [(3, "town", f"not {CsvSource(files=[], encoding=encoding).encoding}")]
    assert received in reading.bad[0].reason.replace("\\\\", "\\")
    assert f"2,b{received}" in reading.bad[0].text


def test_blocks_and_positions_of_encoded_text_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(("user,town\n" + "".join(f"{n},東{n}\n" for n in range(300))).encode("utf-16"))
    source = open_source(CsvSource(files=["log.csv"], encoding="utf-16"), tmp_path, COLUMNS, block_bytes=500)
    blocks = list(source.blocks())
    assert len(blocks) > 5
    for before, block in itertools.pairwise(blocks):
        assert source.read_block(before.end, block.end).table.equals(block.table)
    assert [each.start.offset for each in source.file_ranges()] == [0]


def test_json_lines_of_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes('{"user": 1, "town": "東京"}\n{"user": 2, "town": "大阪"}\n'.encode("utf-16"))
    source = open_source(JsonLinesSource(files=["log.jsonl"], encoding="utf-16"), tmp_path, COLUMNS)
    assert read(source).rows == [(1, "東京"), (2, "大阪")]


def test_lines_that_end_in_carriage_returns(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, b"user,town\r1,a\rx,b\r2,c", COLUMNS, line_ends="cr")
    assert (reading.rows, reading.bad_lines) == ([(1, "a"), (2, "c")], [3])


@pytest.mark.parametrize(
    ("settings", "text", "rows", "at"),
    [
        ({"delimiter": "::"}, "user::town\n1::a:b\n2::\n", [(1, "a:b"), (2, None)], [2, 3]),
        ({"delimiter": "whitespace"}, " user \t town\n\n1   a\n \t \n  2\tb  \r\n", [(1, "a"), (2, "b")], [3, 5]),
        ({"skip_blanks": True}, 'user , town\n1, "a, b" \n2 ,b c\n', [(1, "a, b"), (2, "b c")], [2, 3]),
        ({"quotes": False, "delimiter": "\t"}, 'user\ttown\n1\t"a\n2\tb"\n', [(1, '"a'), (2, 'b"')], [2, 3]),
        ({"escape": "\\"}, 'user,town\n1,a\\,b\n2,"c\\"d"\n3,\\N\n', [(1, "a,b"), (2, 'c"d'), (3, "\\N")], [2, 3, 4]),
        (
            {"escape": "\\", "newlines_in_values": True},
            'user,town\n1,a\\\nb\n2,"c\nd"\n3,e\n',
            [(1, "a\nb"), (2, "c\nd"), (3, "e")],
            [2, 4, 6],
        ),
        ({"comment": "#"}, "# made today\nuser,town\n1,a\n#2,b\n3,c#\n", [(1, "a"), (3, "c#")], [3, 5]),
        (
            {"comment": "#", "newlines_in_values": True},
            'user,town\n#"\n1,"a\n# b"\n2,c\n',
            [(1, "a\n# b"), (2, "c")],
            [3, 5],
        ),
        ({"skip_lines": 2}, 'Sales "2024\n"\nuser,town\n1,a\n', [(1, "a")], [4]),
        ({"skip_lines": 1, "newlines_in_values": True}, 'of,"2024\nuser,town\n1,"a\nb"\n', [(1, "a\nb")], [3]),
        ({"delimiter": "\x01"}, "user\x01town\n1\x01a,b\n", [(1, "a,b")], [2]),
        ({"delimiter": "¦"}, "user¦town\n1¦a\n", [(1, "a")], [2]),
    ],
)
def test_dialects(tmp_path: Path, settings: dict[str, Any], text: str, rows: list[Any], at: list[int]) -> None:
    reading = read_csv(tmp_path, text, COLUMNS, **settings)
    assert (reading.rows, reading.lines, reading.bad) == (rows, at, [])
    small = read_csv(tmp_path, text, COLUMNS, 5, **settings)
    assert (small.rows, small.lines) == (rows, at)


def test_rows_of_any_dialect_are_rejected_with_their_own_text(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, lines("user::town", "1::a", "x::b", "2", '3::"c'), COLUMNS, delimiter="::")
    assert reading.rows == [(1, "a")]
    assert reading.kinds() == [
        (3, "user", "not an integer"), (4, None, "wrong number of columns"), (5, None, "quoted value is not closed"),
    ]  # fmt: skip
    assert [row.text for row in reading.bad] == ["x::b", "2", '3::"c']


@pytest.mark.parametrize(
    ("text", "columns", "row"),
    [
        ("user,town\nr1,1,a\nr2,2,b\n", ["column_1", "user", "town"], (2, "b")),  # as R writes the names of rows
        ("user,town,\n1,a,\n2,b,\n", ["user", "town", "column_3"], (2, "b")),
        ("user,town\n1,a,\n2,b,\n", ["user", "town", "column_3"], (2, "b")),
        ("user,town,\n1,a\n2,b\n", ["user", "town"], (2, "b")),
    ],
)
def test_one_column_that_the_header_does_not_name(
    tmp_path: Path, text: str, columns: list[str], row: tuple[int, str]
) -> None:
    reading = read_csv(tmp_path, text, COLUMNS, columns=columns)
    assert reading.rows[1:] == [row]
    assert not reading.bad


PLAIN = lines("user,town", *(f"{n},t{n % 7}" for n in range(2_000)))
EXPECTED = [(n, f"t{n % 7}") for n in range(2_000)]


def zipped(**members: str | bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return sink.getvalue()


def read_file(folder: Path, name: str, **settings: Any) -> Reading:
    return read(open_source(CsvSource(files=[name], **settings), folder, COLUMNS, block_bytes=2_000))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst", "zip", "ZIP"])
def test_compressed_files(tmp_path: Path, suffix: str, encoding: str) -> None:
    data = PLAIN.encode(encoding)
    stored = {
        "gz": gzip.compress(data[:999]) + gzip.compress(data[999:]),
        "bz2": bz2.compress(data[:999]) + bz2.compress(data[999:]),
        "xz": lzma.compress(data[:999]) + lzma.compress(data[999:]),
        "zst": pa.compress(data, "zstd", asbytes=True),
        "zip": zipped(**{"folder/": b"", "folder/log.csv": data, "__MACOSX/._log.csv": b"x", ".hidden": b"x"}),
    }[suffix.lower()]
    (tmp_path / f"log.csv.{suffix}").write_bytes(stored)
    reading = read_file(tmp_path, f"log.csv.{suffix}", encoding=encoding)
    assert (reading.rows, reading.bad) == (EXPECTED, [])


@pytest.mark.parametrize("suffix", ["bz2", "xz", "zip"])
@pytest.mark.parametrize("harm", ["truncated", "overwritten"])
def test_damaged_compressed_files(tmp_path: Path, suffix: str, harm: str) -> None:
    numbers = random.Random(0).sample(range(10**9), 30_000)
    data = b"user,town\n" + b"".join(b"%d,a\n" % n for n in numbers)
    stored = bytearray(
        {"bz2": bz2.compress(data), "xz": lzma.compress(data), "zip": zipped(**{"log.csv": data})}[suffix]
    )
    middle = len(stored) // 2
    stored[middle : middle + 2_000] = b"" if harm == "truncated" else bytes(2_000)
    if harm == "truncated":
        del stored[middle:]
    (tmp_path / f"log.csv.{suffix}").write_bytes(stored)
    with pytest.raises(DataError, match=r"truncated or corrupt|not a readable zip archive"):
        read_file(tmp_path, f"log.csv.{suffix}")


def test_members_of_an_archive(tmp_path: Path) -> None:
    content = {"a.csv": PLAIN, "more/b.csv": PLAIN, "notes.md": "-"}
    (tmp_path / "logs.zip").write_bytes(zipped(**content))
    with pytest.raises(
        DataError, match=r"logs\.zip: holds 3 files: a\.csv, more/b\.csv, notes\.md\n  hint: name the one"
    ):
        read_file(tmp_path, "logs.zip")
    with pytest.raises(DataError, match=r"holds no file 'b\.csv'\n  hint: it holds: a\.csv, more/b\.csv"):
        read_file(tmp_path, "logs.zip/b.csv")
    assert read_file(tmp_path, "logs.zip/more/b.csv").rows == EXPECTED
    assert read_file(tmp_path, "logs.zip/*.csv").rows == EXPECTED * 2
    assert read_file(tmp_path, ".").rows == EXPECTED * 2
    source = open_source(CsvSource(files=["logs.zip/a.csv"]), tmp_path, COLUMNS)
    assert [file.name for file in source.files] == ["logs.zip/a.csv"]
    assert {block.file for block in source.blocks()} == {str(tmp_path / "logs.zip/a.csv")}


def test_archives_that_cannot_be_read_are_refused_with_the_way_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": [7]}), tmp_path / "log.parquet")
    parquet = (tmp_path / "log.parquet").read_bytes()
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.add(tmp_path / "log.parquet", "log.csv")
    encrypted = bytearray(zipped(**{"log.csv": PLAIN}))
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        encrypted[encrypted.index(mark) + (6 if mark == b"PK\x03\x04" else 8)] |= 1
    cases = {
        "nested.zip": (zipped(**{"log.zip": zipped(**{"log.csv": PLAIN})}), r"holds zip data within zip data\n.*unzip"),
        "parquet.zip": (zipped(**{"log.csv": parquet}), r"is a Parquet file within zip data.*\n.*unpack it: unzip"),
        "empty.zip": (zipped(), r"holds no files"),
        "secret.zip": (bytes(encrypted), r"'log\.csv' in it is encrypted\n  hint: .*unzip"),
        "outside.zip": (zipped(**{"../log.csv": PLAIN}), r"would lie outside it"),
        "log.tar": (tar.getvalue(), r"is a tar archive\n  hint: .*tar -xf"),
        "log.tar.gz": (gzip.compress(tar.getvalue()), r"is a tar archive within gzip data\n  hint: .*tar -xf"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=message):
            read_file(tmp_path, name)


@pytest.mark.parametrize("suffix", ["bz2", "xz", "zip"])
def test_an_archive_that_becomes_huge_is_refused(tmp_path: Path, suffix: str) -> None:
    data = b"user,town\n" + b"1,a\n" * 2**23
    stored = {
        "bz2": lambda: bz2.compress(data), "xz": lambda: lzma.compress(data), "zip": lambda: zipped(**{"log.csv": data})
    }[suffix]()  # fmt: skip
    (tmp_path / f"log.csv.{suffix}").write_bytes(stored)
    source = open_source(CsvSource(files=[f"log.csv.{suffix}"]), tmp_path, schema(user=FLOAT))
    with pytest.raises(DataError, match=r"have become [\d,]+, and at most 200"):
        for _ in source.blocks():
            pass


def test_utf_16_without_a_mark_needs_the_order_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(DataError) as told:
        read_csv(tmp_path, "user,town\n1,Zürich\n".encode("utf-16-le"), COLUMNS, encoding="utf-16")
    assert "log.csv: does not begin with a byte order mark" in told.value.problem
    assert told.value.hint.startswith("set `encoding: utf-16-le` or `utf-16-be`")
