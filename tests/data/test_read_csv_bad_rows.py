"""CSV with invalid rows: exactly these are rejected, each with its line, column and reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from reader_kit import FLOAT, INTEGER, TEXT, lines, many, read_csv, required, schema

from ziggurat.core.errors import DataError

COLUMNS = schema(label=required(INTEGER), price=FLOAT, city=TEXT, tags=many(INTEGER))
HEADER = "label,price,city,tags"
GOOD = "1,2.5,Ur,3|4"

CASES = {
    "too few columns": (b"1,2.5,Ur", None, "wrong number of columns: received 3, 4 are expected"),
    "too many columns": (b"1,2.5,Ur,3,", None, "wrong number of columns: received 5, 4 are expected"),
    "text as integer": (b"one,2.5,Ur,3", "label", "not an integer: received 'one'"),
    "fraction as integer": (b"3.5,2.5,Ur,3", "label", "not an integer: received '3.5'"),
    "tiny fraction": (b"1e-3,2.5,Ur,3", "label", "not an integer: received '1e-3'"),
    "beyond int64": (b"9223372036854775808,2.5,Ur,3", "label", "beyond int64: received '9223372036854775808'"),
    "far beyond int64": (b"1e999999999,2.5,Ur,3", "label", "beyond int64: received '1e999999999'"),
    "infinite integer": (b"inf,2.5,Ur,3", "label", "NaN or infinity: received 'inf'"),
    "text as float": (b"1,cheap,Ur,3", "price", "not a number: received 'cheap'"),
    "decimal comma": (b'1,"2,5",Ur,3', "price", "not a number: received '2,5'"),
    "underscores": (b"1,1_000,Ur,3", "price", "not a number: received '1_000'"),
    "nan": (b"1,nan,Ur,3", "price", "NaN or infinity: received 'nan'"),
    "infinity": (b"1,-Infinity,Ur,3", "price", "NaN or infinity: received '-Infinity'"),
    "beyond float64": (b"1,1e999,Ur,3", "price", "NaN or infinity: received '1e999'"),
    "required cell empty": (b",2.5,Ur,3", "label", "required cell is empty: a integer is needed here"),
    "not UTF-8": (b"1,2.5,U\xff,3", "city", r"not UTF-8: received b'U\xff' (invalid start byte)"),
    "bad element": (b"1,2.5,Ur,3|x|4", "tags", "not an integer: element 2 received 'x'"),
    "open quote": (b'1,2.5,"Ur,3', None, "quoted value is not closed: received '\"Ur,3'"),
    "not UTF-8 in a number": (b"1,\xe9,Ur,3", "price", r"not UTF-8: received b'\xe9'"),
}


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("case", CASES)
def test_a_bad_row_is_rejected_and_its_neighbours_kept(tmp_path: Path, case: str, line_end: bytes) -> None:
    row, column, reason = CASES[case]
    text = line_end.join([HEADER.encode(), GOOD.encode(), b"", row, GOOD.encode(), row, GOOD.encode(), b""])
    reading = read_csv(tmp_path, text, COLUMNS)
    assert reading.rows == [(1, 2.5, "Ur", [3, 4])] * 3
    assert reading.lines == [2, 5, 7]
    assert reading.bad_lines == [4, 6]
    for bad in reading.bad:
        assert bad.file == str(tmp_path / "log.csv")
        assert bad.column == column
        assert bad.reason.startswith(reason)
        assert " — " in bad.reason
        assert bad.text == row.decode("utf-8", "backslashreplace")


def test_bad_rows_far_into_a_file_have_their_own_lines(tmp_path: Path) -> None:
    rows = [f"{n % 2},{n / 4},city{n % 7},{n}|{n + 1}" for n in range(6_000)]
    rows[1_234] = "x,1,a,1"
    rows[3_456] = "1,1,a"
    rows[5_999] = "1,inf,a,1"
    text = lines(HEADER, *rows)
    whole = read_csv(tmp_path, text, COLUMNS)
    assert whole.kinds() == [
        (1_236, "label", "not an integer"),
        (3_458, None, "wrong number of columns"),
        (6_001, "price", "NaN or infinity"),
    ]
    assert len(whole.rows) == 5_997
    assert set(whole.lines) == set(range(2, 6_002)) - {1_236, 3_458, 6_001}
    blocks = read_csv(tmp_path, text, COLUMNS, block_bytes=5_000)
    assert (blocks.rows, blocks.lines, blocks.bad) == (whole.rows, whole.lines, whole.bad)
    assert len(blocks.ends) > 10


def test_a_row_is_rejected_once_for_its_first_bad_column(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, lines(HEADER, GOOD, "x,y,z,w"), COLUMNS)
    assert reading.kinds() == [(3, "label", "not an integer")]


def test_an_unneeded_column_may_hold_anything(tmp_path: Path) -> None:
    text = lines("label,note", "1,nan").encode() + b"0,\xff\xfe\n" + b"x,1\n"
    reading = read_csv(tmp_path, text, schema(label=required(INTEGER)))
    assert reading.rows == [(1,), (0,)]
    assert reading.bad_lines == [4]


def test_an_empty_required_bag_is_rejected(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, lines("tags,x", "a|b,1", ",2", "|,3"), schema(tags=many(TEXT, required=True)))
    assert reading.rows == [(["a", "b"],)]
    assert reading.kinds() == [(3, "tags", "required cell is empty"), (4, "tags", "required cell is empty")]


def test_a_carriage_return_within_a_line_belongs_to_its_cell(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, b"label,city\n1,a\rb\n2,c\n", schema(label=INTEGER, city=TEXT))
    assert reading.rows == [(1, "a\rb"), (2, "c")]
    assert reading.lines == [2, 3]


def test_line_ends_in_quotes_are_rejected_unless_allowed(tmp_path: Path) -> None:
    columns = schema(label=INTEGER, city=TEXT)
    text = 'label,city\n1,"two\nlines"\n2,c\n'
    reading = read_csv(tmp_path, text, columns)
    assert reading.rows == [(2, "c")]
    assert reading.kinds() == [(2, None, "quoted value is not closed"), (3, None, "wrong number of columns")]
    assert "newlines_in_values: true" in reading.bad[0].reason


def test_an_unclosed_quote_rejects_the_rest_with_a_reason(tmp_path: Path) -> None:
    text = 'label,city\n1,a\n2,"b\n3,c\n4,d\n'
    reading = read_csv(tmp_path, text, schema(label=INTEGER, city=TEXT), newlines_in_values=True)
    assert reading.rows == [(1, "a")]
    assert reading.kinds() == [(3, None, "quoted value is not closed")]
    assert reading.bad[0].text == '2,"b\n3,c\n4,d'


def test_long_rows_are_cut_in_reports(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, lines("label", "1", "x" * 5_000), schema(label=INTEGER))
    assert reading.bad[0].text == "x" * 2_000
    assert len(reading.bad[0].reason) < 300


def test_line_ends_inside_quotes_of_every_row_name_the_key_that_allows_them(tmp_path: Path) -> None:
    text = "label,city,price\n" + '1,"Ur\nand Eridu",2.5\n' * 3
    columns = schema(label=INTEGER, city=TEXT, price=FLOAT)
    with pytest.raises(
        DataError, match=r"line 2: a quote is opened and not closed in the line.*\n.*newlines_in_values"
    ):
        read_csv(tmp_path, text, columns)
    assert read_csv(tmp_path, text, columns, newlines_in_values=True).rows == [(1, "Ur\nand Eridu", 2.5)] * 3
