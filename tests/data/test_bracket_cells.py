"""Lists in brackets: the vectorised and the cell-by-cell parser agree; values get their type or are rejected."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reader_kit import read

from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.inference.columns import profile_column
from ziggurat.data.readers.cells.brackets import bracket_elements, split_brackets
from ziggurat.data.readers.cells.text import CellRules, RejectedCell, convert_text
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.json_lines.cells import convert_json
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.source import open_source


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("[240, 132, 282]", ["240", "132", "282"]),
        ("[]", []),
        (" [ 7 ] ", ["7"]),
        ("['a', 'b']", ["a", "b"]),
        ("""['a', "it's", 'b, c', ' d ']""", ["a", "it's", "b, c", " d "]),
        ('["Action","Sci-Fi"]', ["Action", "Sci-Fi"]),
        ("['a', None, nan, 'None', '']", ["a", "", "", "None", ""]),
        (r"['it\'s, x', 'b']", [r"it\'s, x", "b"]),
        ("[a, ü]", ["a", "ü"]),
        ("a, b", None),
        ("[a, b", None),
        ("]", None),
    ],
)
def test_single_cells(cell: str, expected: list[str] | None) -> None:
    assert bracket_elements(cell, ",") == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.sampled_from("[]'\"\\, 1ab\nü"), max_size=12)), st.sampled_from(", |;"))
@example(["[1 2\n 3]", "[10  2]"], " ")
@example(["['a', 'b']", "", "x"], ",")
def test_vectorised_equals_cell_by_cell(cells: list[str], delimiter: str) -> None:
    values, lengths, unbracketed = split_brackets(pa.array(cells, pa.string()), delimiter)
    apart = [bracket_elements(cell, delimiter) for cell in cells]
    assert values.to_pylist() == [value for found in apart for value in found or []]
    assert lengths.tolist() == [len(found or []) for found in apart]
    assert unbracketed.tolist() == [row for row, cell in enumerate(cells) if cell and apart[row] is None]


def test_values_get_the_declared_type_and_other_cells_are_rejected() -> None:
    cells = ["[3, 1, 3]", None, "[]", "NA", "4, 5", "[6, x]", "['8', None]"]
    column = RawColumn("hist", ValueType.INTEGER, many=True, delimiter=",", brackets=True)
    rules = CellRules(("NA",))
    found = convert_text(pa.array(cells), column, rules)
    assert [found.values[row].as_py() for row in (0, 1, 2, 3, 6)] == [[3, 1, 3], [], [], [], [8]]
    assert found.bad[4].startswith("not a list in brackets: received '4, 5'")
    assert found.bad[5].startswith("not an integer: element 2 received 'x'")
    assert {*found.bad} == {4, 5}
    assert convert_json("[3, 1, 3]", column, rules) == [3, 1, 3]
    assert convert_json("['8', None]", column, rules) == [8]
    assert convert_json([3, 1], column, rules) == [3, 1]
    with pytest.raises(RejectedCell, match=r"not a list in brackets: received '4, 5' — write it like \[3, 1, 2\]"):
        convert_json("4, 5", column, rules)


def test_a_list_split_at_its_delimiters_suggests_brackets() -> None:
    column = RawColumn("hist", ValueType.INTEGER, many=True, delimiter=",")
    [reason] = convert_text(pa.array(["[3,1]"]), column, CellRules()).bad.values()
    assert "set `brackets: true`" in reason


@pytest.mark.parametrize(
    ("cells", "kind", "delimiter", "distinct"),
    [
        (["[240, 132, 282]", "[]", "[132]"] * 20, ValueType.INTEGER, ",", 3),
        (["['a', 'b']", "[]", '["a, c"]'] * 20, ValueType.TEXT, ",", 3),
        (["[ 1 22\n  3]", "[4 5]"] * 20, ValueType.INTEGER, " ", 5),
        (["[1]", "[2]"] * 20, ValueType.INTEGER, ",", 2),
    ],
)
def test_a_column_of_lists_is_recognised(cells: list[str], kind: ValueType, delimiter: str, distinct: int) -> None:
    profile = profile_column(pl.Series("hist", cells), complete=True)
    assert (profile.many, profile.brackets, profile.type) == (True, True, kind)
    assert (profile.delimiter, profile.distinct) == (delimiter, distinct)


def test_other_texts_are_not_lists() -> None:
    for cells in (["[a|b]", "c"] * 20, ["[[1, 2], [3]]", "[[4]]"] * 20, ["[a]|[b]", "[a]|[c]", "[c]"] * 20):
        assert not profile_column(pl.Series("x", cells), complete=True).brackets, cells


def test_reading_is_the_same_in_every_format(tmp_path: Path) -> None:
    frame = pl.DataFrame({"tags": ["['a', 'b']", "[]", '["c, d"]', None], "row": [1, 2, 3, 4]})
    frame.write_csv(tmp_path / "log.csv")
    frame.write_ndjson(tmp_path / "log.jsonl")
    frame.write_parquet(tmp_path / "log.parquet")
    needed = RawSchema((RawColumn("tags", ValueType.TEXT, many=True, delimiter=",", brackets=True),))
    for config in (
        CsvSource(files=["log.csv"]),
        JsonLinesSource(files=["log.jsonl"]),
        ParquetSource(files=["log.parquet"]),
    ):
        assert read(open_source(config, tmp_path, needed)).rows == [(["a", "b"],), ([],), (["c, d"],), ([],)]
