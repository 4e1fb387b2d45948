"""Numbers with other marks and symbols: fast and slow parsers agree, and every other cell has a reason and a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reader_kit import lines, read, read_csv, schema

from ziggurat.core.config import established_values
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.cells.number_rules import NumberRules, plain_number, plain_numbers
from ziggurat.data.readers.cells.text import CellRules, RejectedCell, convert_text, parse_float, parse_integer
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.source import open_source

COMMA = NumberRules(",")
GERMAN = NumberRules(",", ".", ("€", "%"))
DOLLARS = NumberRules(".", ",", ("$", "%", "USD"))
SWISS = NumberRules(".", "'", ("CHF",))
FRENCH = NumberRules(",", " ", ("€",))
ACCOUNTS = NumberRules(".", ",", ("$", "%"), parentheses=True)

CASES = [
    ("3,14", COMMA, 3.14),
    ("-0,5e3", COMMA, -500.0),
    ("7", COMMA, 7.0),
    ("1.234,56 €", GERMAN, 1234.56),
    ("€1.234.567", GERMAN, 1_234_567.0),
    ("1234567,5", GERMAN, 1_234_567.5),
    ("5%", GERMAN, 0.05),
    ("12,5 %", GERMAN, 0.125),
    ("$1,977", DOLLARS, 1977.0),
    ("-$1,977.50", DOLLARS, -1977.5),
    ("$-3", DOLLARS, -3.0),
    ("1,977.50 USD", DOLLARS, 1977.5),
    ("\u2212$12", DOLLARS, -12.0),
    ("CHF 1'234'567.05", SWISS, 1_234_567.05),
    ("1\u2019234", SWISS, 1234.0),
    ("1 234,5", FRENCH, 1234.5),
    ("1\u202f234\u00a0567,5\u00a0€", FRENCH, 1_234_567.5),
    ("($1,234.50)", ACCOUNTS, -1234.5),
    ("$(1,234.50)", ACCOUNTS, -1234.5),
    ("( 1,234 )", ACCOUNTS, -1234.0),
    ("(5)%", ACCOUNTS, -0.05),
    ("(5%)", ACCOUNTS, -0.05),
    ("-$3", ACCOUNTS, -3.0),
    ("(0.5)", NumberRules(parentheses=True), -0.5),
]
REFUSED = [
    ("1.5", COMMA), ("1,2,3", COMMA), ("1.23,4", GERMAN), ("12.34.567", GERMAN), ("€", GERMAN), ("5%%", GERMAN),
    ("$1,97", DOLLARS), ("$ 1,977 x", DOLLARS), ("£5", DOLLARS), ("1'23", SWISS), ("1  234", FRENCH), ("inf €", FRENCH),
    ("(-5)", ACCOUNTS), ("((5))", ACCOUNTS), ("()", ACCOUNTS), ("(5", ACCOUNTS), ("($1,23)", ACCOUNTS),
    ("-(5)", ACCOUNTS), ("($5)", DOLLARS),
]  # fmt: skip


def convert(cells: list[str | None], kind: ValueType, rules: NumberRules) -> tuple[list[float | None], dict[int, str]]:
    converted = convert_text(pa.array(cells, pa.string()), RawColumn("x", kind), CellRules(numbers=rules))
    return converted.values.to_pylist(), converted.bad


@pytest.mark.parametrize(("cell", "rules", "value"), CASES)
def test_a_number_alone_and_beside_a_bad_cell(cell: str, rules: NumberRules, value: float) -> None:
    assert parse_float(cell, CellRules(numbers=rules)) == value
    assert convert([cell, None, f" {cell} "], ValueType.FLOAT, rules) == ([value, None, value], {})
    assert convert([cell, "x"], ValueType.FLOAT, rules)[0] == [value, None]
    if value == int(value):
        assert convert([cell, None], ValueType.INTEGER, rules) == ([int(value), None], {})
        assert parse_integer(cell, CellRules(numbers=rules)) == int(value)


@pytest.mark.parametrize(("cell", "rules"), REFUSED)
def test_other_cells_are_refused(cell: str, rules: NumberRules) -> None:
    for kind, parse in ((ValueType.FLOAT, parse_float), (ValueType.INTEGER, parse_integer)):
        values, bad = convert(["1", cell], kind, rules)
        assert (values[0], list(bad)) == (1, [1])
        with pytest.raises(RejectedCell):
            parse(cell, CellRules(numbers=rules))


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("3,14", 'set `decimal: ","` on the source'),
        ("$5", "list '$' under `symbols` of the source"),
        ("5%", "list '%' under `symbols`"),
        ("12 EUR", "list 'EUR' under `symbols`"),
        ("1,977", "set `thousands` and `decimal`"),
        ("1.234.567,5", "set `thousands` and `decimal`"),
        ("(14.5)", "set `negative: parentheses` on the source"),
        ("four", "declare the column as text"),
    ],
)
def test_the_hint_says_what_to_set(cell: str, hint: str) -> None:
    _, bad = convert([cell], ValueType.FLOAT, NumberRules())
    assert hint in bad[0]


def test_per_cent_is_no_whole_number() -> None:
    assert list(convert(["5%", "500%"], ValueType.INTEGER, GERMAN)[1]) == [0]
    assert convert(["5%", "500%"], ValueType.INTEGER, GERMAN)[0][1] == 5


characters = st.text(st.sampled_from("0123456789,.'  \u202f-+()$%€eE\u2212xUSD\n"), max_size=9)
written = st.sampled_from([cell for cell, _, _ in CASES] + [cell for cell, _ in REFUSED])


@settings(max_examples=400, deadline=None)
@given(st.lists(characters | written, max_size=4), st.sampled_from([COMMA, GERMAN, DOLLARS, SWISS, FRENCH, ACCOUNTS]))
@example(["5\n%"], GERMAN)
@example(["0€\n"], GERMAN)
@example(["(5)\n"], ACCOUNTS)
@example(["1.000\n", "1.000\n%"], GERMAN)
def test_fast_and_slow_agree_on_any_text(cells: list[str], rules: NumberRules) -> None:
    bare, in_per_cent = plain_numbers(pa.array(cells, pa.string()), rules)
    signs = [False] * len(cells) if in_per_cent is None else in_per_cent.to_pylist()
    assert list(zip(bare.to_pylist(), signs, strict=True)) == [plain_number(cell, rules) for cell in cells]
    for kind, parse in ((ValueType.FLOAT, parse_float), (ValueType.INTEGER, parse_integer)):
        expected: list[float | None] = []
        rejected: list[int] = []
        for row, cell in enumerate(cells):
            try:
                expected.append(parse(cell, CellRules(numbers=rules)))
            except RejectedCell:
                expected.append(None)
                rejected.append(row)
        values, bad = convert(list(cells), kind, rules)
        assert (values, list(bad)) == (expected, rejected)


@pytest.mark.parametrize(("decimal", "thousands"), [(",", ""), (",", ".")])
def test_csv_reads_them_in_every_way(tmp_path: Path, decimal: str, thousands: str) -> None:
    columns = schema(price=ValueType.FLOAT, user=ValueType.INTEGER, city=ValueType.TEXT)
    text = lines("price;user;city", "3,5;7;a,b", ";8;1.5", "-1,25;9;c")
    settings: dict[str, Any] = {"delimiter": ";", "decimal": decimal, "thousands": thousands}
    good = [(3.5, 7, "a,b"), (None, 8, "1.5"), (-1.25, 9, "c")]
    assert read_csv(tmp_path, text, columns, **settings).rows == good
    reading = read_csv(tmp_path, text + "x;1;d\n1.5;2;e\n", columns, **settings)
    assert reading.rows == good
    assert reading.kinds() == [(5, "price", "not a number"), (6, "price", "not a number")]


def test_typed_sources_read_text_like_this_and_numbers_as_they_are(tmp_path: Path) -> None:
    columns = schema(price=ValueType.FLOAT, spent=ValueType.FLOAT)
    rules: dict[str, Any] = {"decimal": ",", "thousands": ".", "symbols": ["€"]}
    pq.write_table(pa.table({"price": ["1.234,5 €", None], "spent": [1.5, 2.5]}), tmp_path / "log.parquet")
    source = open_source(ParquetSource(files=["log.parquet"], **rules), tmp_path, columns)
    assert read(source).rows == [(1234.5, 1.5), (None, 2.5)]
    rows = [{"price": "1.234,5 €", "spent": 1.5}, {"price": 2, "spent": "7"}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_source(JsonLinesSource(files=["log.jsonl"], **rules), tmp_path, columns)
    assert read(source).rows == [(1234.5, 1.5), (2.0, 7.0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decimal": ""}, "decimal: received ''; it is one character"),
        ({"decimal": "5"}, "decimal: received '5'"),
        ({"thousands": "-"}, "thousands: received '-'"),
        ({"decimal": ",", "thousands": ","}, "both are ','; one character cannot be both"),
        ({"symbols": ["$", ""]}, "symbols: received ''"),
        ({"symbols": ["1$"]}, "symbols: received '1\\$', which numbers themselves may contain"),
        ({"symbols": ["e"]}, "which numbers themselves may contain"),
        ({"symbols": ["$."]}, "symbols: received"),
        ({"symbols": ["("], "negative": "parentheses"}, "neither a mark nor a symbol can hold a parenthesis then"),
    ],
)
def test_marks_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        CsvSource.model_validate({"files": ["log.csv"], **settings})


def test_the_keys_leave_older_fingerprints_as_they_were() -> None:
    plain = CsvSource(files=["log.csv"])
    assert not {"decimal", "thousands", "symbols"} & established_values(plain).keys()
    assert established_values(plain.model_copy(update={"decimal": ","}))["decimal"] == ","
