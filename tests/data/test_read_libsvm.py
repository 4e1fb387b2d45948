"""libsvm, libfm and libffm: the columns that each layout provides, and rows that differ from the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from reader_kit import FLOAT, INTEGER, TEXT, Reading, lines, many, read, schema

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.libsvm.reader import LibsvmSource
from ziggurat.data.readers.source import open_source

LISTS = schema(label=INTEGER, ids=many(INTEGER), values=many(FLOAT))
FRAPPE = schema(label=INTEGER, user=INTEGER, item=TEXT)


def read_rows(folder: Path, text: str, columns: RawSchema, /, *, block_bytes: int = 2**20, **config: Any) -> Reading:
    (folder / "log.libsvm").write_text(text)
    source = open_source(LibsvmSource(files=["log.libsvm"], **config), folder, columns, block_bytes=block_bytes)
    return read(source)


def test_ids_and_values(tmp_path: Path) -> None:
    reading = read_rows(tmp_path, lines("1 3:0.5 7:2", "", "-1", "+1\t2:1e-3  ", " 0 4:1"), LISTS)
    assert reading.rows == [(1, [3, 7], [0.5, 2.0]), (-1, [], []), (1, [2], [0.001]), (0, [4], [1.0])]
    assert reading.lines == [1, 3, 4, 5]


def test_comments_are_skipped(tmp_path: Path) -> None:
    reading = read_rows(tmp_path, lines("1 3:0.5 # first 9:9", "0 4:1"), LISTS)
    assert reading.rows == [(1, [3], [0.5]), (0, [4], [1.0])]


def test_fields_of_libffm(tmp_path: Path) -> None:
    columns = schema(fields=many(INTEGER), ids=many(INTEGER), values=many(FLOAT), label=FLOAT)
    assert read_rows(tmp_path, "0.5 0:3:1 2:7:0.25\n", columns).rows == [([0, 2], [3, 7], [1.0, 0.25], 0.5)]


def test_query_numbers_of_ranking_files(tmp_path: Path) -> None:
    columns = schema(label=INTEGER, qid=INTEGER, ids=many(INTEGER))
    assert read_rows(tmp_path, lines("2 qid:10 1:1", "0 qid:11 1:1"), columns).rows == [(2, 10, [1]), (0, 11, [1])]
    reading = read_rows(tmp_path, lines("2 qid:10 1:1", "0 1:1"), columns)
    assert reading.kinds() == [(2, None, "malformed libsvm row")]


def test_values_are_not_dropped_silently(tmp_path: Path) -> None:
    text = lines("1 3:1 4:1.0", "0 3:1 7:0.003", "0")
    reading = read_rows(tmp_path, text, schema(label=INTEGER, ids=many(INTEGER)))
    assert (reading.rows, reading.kinds()) == ([(1, [3, 4]), (0, [])], [(2, None, "value other than 1")])
    assert read_rows(tmp_path, text, schema(label=INTEGER)).rows == [(1,), (0,), (0,)]


def test_positions_determine_the_fields_of_libfm(tmp_path: Path) -> None:
    text = lines("1 0:1 5:1", "0 1:1 7:1.0")
    assert read_rows(tmp_path, text, FRAPPE, columns=["user", "item"]).rows == [(1, 0, "5"), (0, 1, "7")]
    assert read_rows(tmp_path, text, schema(item=INTEGER), columns=["user", "item"]).rows == [(5,), (7,)]


def test_field_numbers_determine_the_fields_of_libffm(tmp_path: Path) -> None:
    columns = schema(label=INTEGER, user=INTEGER, tags=many(INTEGER))
    reading = read_rows(tmp_path, lines("1 0:3:1 1:7:1 1:8:1", "0 1:9:1", "0 0:4:1"), columns, columns=["user", "tags"])
    assert reading.rows == [(1, 3, [7, 8]), (0, None, [9]), (0, 4, [])]


LISTED = [
    ("3:0.5 1:1", "malformed libsvm row: received '3:0.5', expected a label first"),
    ("1 3", "malformed libsvm row: received '3', expected index:value"),
    ("1 3:1:1", "malformed libsvm row: received '3:1:1', expected index:value"),
    ("1 3: 4:1", "malformed libsvm row: received '3:', expected index:value"),
    ("1 :3", "malformed libsvm row: received ':3'"),
    ("1 x:3", "not an integer: received 'x'"),
    ("1 3:x", "not a number: received 'x'"),
    ("1 3:nan", "NaN or infinity: received 'nan'"),
    ("1 9223372036854775808:1", "beyond int64: received '9223372036854775808'"),
]
NAMED = [
    ("1 0:1", "wrong fields: received 1 entries for 2 columns"),
    ("1 0:1 5:1 6:1", "wrong fields: received 3 entries for 2 columns"),
    ("1 0:1 5:0.5", "wrong fields: received value 0.5 of id 5"),
]
NUMBERED = [
    ("1 2:1:1", "wrong fields: received field 2 for 2 columns"),
    ("1 -1:1:1", "wrong fields: received field -1 for 2 columns"),
    ("1 0:1:1 0:2:1", "wrong fields: received field 0 (user) twice"),
    ("1 0:1:2", "wrong fields: received value 2 of id 1"),
    ("1 0:1", "malformed libsvm row: received '0:1', expected field:index:value"),
]
CASES = [
    *((LISTS, None, "1 4:1", *case) for case in LISTED),
    *((FRAPPE, ["user", "item"], "1 4:1 5:1", *case) for case in NAMED),
    *((FRAPPE, ["user", "item"], "1 0:4:1 1:5:1", *case) for case in NUMBERED),
]


@pytest.mark.parametrize(("columns", "names", "good", "row", "reason"), CASES, ids=lambda value: str(value)[:30])
def test_a_bad_row_is_rejected_and_its_neighbours_kept(
    tmp_path: Path, columns: RawSchema, names: list[str] | None, good: str, row: str, reason: str
) -> None:
    for block_bytes in (2**20, 8):
        text = lines(good, good, "", row, good)
        reading = read_rows(tmp_path, text, columns, columns=names, block_bytes=block_bytes)
        assert reading.lines == [1, 2, 5]
        assert len(set(map(repr, reading.rows))) == 1
        (bad,) = reading.bad
        assert (bad.line, bad.column, bad.text) == (4, None, row)
        assert bad.reason.startswith(reason)
        assert " — " in bad.reason


def test_a_label_that_is_not_a_number(tmp_path: Path) -> None:
    reading = read_rows(tmp_path, lines("1 3:1", "yes 3:1"), LISTS)
    assert reading.kinds() == [(2, "label", "not an integer")]


@pytest.mark.parametrize(
    ("text", "columns", "names", "message"),
    [
        (
            "user,item\n1,2\n",
            LISTS,
            None,
            r"none of the first 2 lines looks like `label index:value …`; received 'user,item'",
        ),
        (
            "1 2:1\n",
            schema(labl=INTEGER),
            None,
            r"no column 'labl'; .* offers: label, ids, values\n  hint: did you mean 'label'",
        ),
        ("1 2:1\n", schema(user=INTEGER), None, r"no column 'user'.*\n  hint: name the fields under `columns`"),
        ("1 2:1\n", schema(fields=many(INTEGER)), None, r"no column 'fields'"),
        (
            "1 2:1\n",
            schema(ids=INTEGER),
            None,
            r"column 'ids': holds many values a row\n  hint: declare its feature `kind: bag`",
        ),
        ("1 2:1\n", schema(ids=many(INTEGER)), ["user"], r"no column 'ids'; .* offers: label, user"),
    ],
)
def test_heads_that_do_not_fit(
    tmp_path: Path, text: str, columns: RawSchema, names: list[str] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path, text, columns, columns=names)


def test_columns_are_named_once() -> None:
    with pytest.raises(ValidationError, match="columns named twice: label"):
        LibsvmSource(files=[], columns=["user", "label"])
