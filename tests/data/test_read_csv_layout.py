"""Errors found in the head of a CSV file: delimiters, headers and names that differ from the config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reader_kit import FLOAT, INTEGER, TEXT, read_csv, schema

from ziggurat.core.errors import DataError

COLUMNS = schema(user=INTEGER, price=FLOAT, city=TEXT)


@pytest.mark.parametrize(
    ("text", "config", "problem", "hint"),
    [
        (
            "user\tcity\tprice\n1\ta\t2\n",
            {},
            r"wrong delimiter\? received ',', which splits the header into 1 column; '\\t' splits it into 3",
            r'set `delimiter: "\\t"`',
        ),
        (
            "user;city;price\n1;a;2\n",
            {"delimiter": "\t"},
            r"received '\\t'.* into 1 column; ';' splits it into 3",
            '";"',
        ),
        ("users|city|price\n1|a|2\n", {}, r"received ',', .* into 1 column; '\|' splits it into 3", r'"\|"'),
        (
            "1\ta\t2\n3\tb\t4\n",
            {"header": False, "columns": ["user", "city", "price"]},
            r"received ',', which splits the row in line 1 into 1 column; '\\t' splits it into 3",
            r'set `delimiter: "\\t"`',
        ),
        ("a;b;c\n1;a;2\n", {"columns": ["user", "city", "price"]}, "received ',', .*header|row in line 1", "delimiter"),
        (
            "user,town,price\n1,a,2\n",
            {},
            r"column 'city' is not in the header, which names: user, town, price",
            "correct the column's name",
        ),
        (
            "Report of 2024\n\nuser,city,price\n1,a,2\n",
            {},
            "column 'user' is not in the header, which names: Report of 2024",
            "^if it is a title, set `skip_lines` to the number of lines above the header; else correct the column",
        ),
        ("user,citty,price\n1,a,2\n", {}, "column 'city' is not in the header", r"did you mean 'citty'\?"),
        (
            "1,a,2\n3,b,4\n",
            {"header": False, "columns": ["usr", "city", "price"]},
            "column 'user' is not in the `columns` of the source",
            r"did you mean 'usr'\?",
        ),
        (
            "1,a,2\n3,b,4\n",
            {},
            "the first line looks like a row of data; it does not name user, price, city",
            "header: false",
        ),
        ("user,city,price,city\n1,a,2,b\n", {}, "the header names column 'city' twice", "rename one"),
        (
            "user,city,price\n1,a\n2,b\n3,c,4,5\n",
            {},
            "line 2: the first 3 rows have 2 to 4 columns, 3 are named",
            "^correct the header or `columns`; the delimiter is ','$",
        ),
        (
            "user,city,price\n1,a,2,5\n2,b,3,5\n",
            {},
            "line 2: the first 2 rows have 4 columns, 3 are named",
            "^if it is a title, set `skip_lines` to the number of lines above the header; else correct the header",
        ),
        (
            "user,city\n1,a\n",
            {"columns": ["user", "city", "price"]},
            "the header names 2 columns, .* 3",
            "list every column",
        ),
    ],
)
def test_heads_that_do_not_fit(tmp_path: Path, text: str, config: dict[str, object], problem: str, hint: str) -> None:
    with pytest.raises(DataError) as caught:
        read_csv(tmp_path, text, COLUMNS, **config)
    assert caught.value.problem.startswith(str(tmp_path / "log.csv"))
    assert re.search(problem, caught.value.problem), caught.value.problem
    assert re.search(hint, caught.value.hint), caught.value.hint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("user,city,price\n1,a,2\n".encode("utf-16"), r"the file is UTF-16\n  hint: set `encoding: utf-16`"),
        (b"user,city,price\r1,a,2\r", r"lines end in carriage returns only\n  hint: set `line_ends: cr`"),
        (b"user,ci\xe9t,price\n1,a,2\n", r"line 1: the header is not UTF-8 .*byte 7"),
    ],
)
def test_heads_of_another_encoding(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_csv(tmp_path, data, COLUMNS)


def test_one_good_row_among_the_first_is_enough(tmp_path: Path) -> None:
    reading = read_csv(tmp_path, "user,city,price\n1,a\n2,b\n3,c,4\n", COLUMNS)
    assert reading.rows == [(3, 4.0, "c")]
    assert reading.bad_lines == [2, 3]


def test_a_header_longer_than_a_block(tmp_path: Path) -> None:
    unneeded = ",".join(f"column{n}" for n in range(20_000))
    cells = ",".join("0" * 20_000)
    text = f"user,city,price,{unneeded}\n1,a,2,{cells}\n3,b,4,{cells}\n"
    assert read_csv(tmp_path, text, COLUMNS, block_bytes=100).rows == [(1, 2.0, "a"), (3, 4.0, "b")]
