"""libsvm values other than 1: columns of numbers by index or by field, among columns of ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from reader_kit import FLOAT, INTEGER, Reading, lines, read, schema

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, RawSchema
from ziggurat.data.inference.libsvm import read_libsvm
from ziggurat.data.readers.libsvm.reader import LibsvmParser, LibsvmSource
from ziggurat.data.readers.source import open_source

INDICES = RawSchema((RawColumn("label", INTEGER), RawColumn("1", FLOAT), RawColumn("30", FLOAT)))
WITH_IDS = RawSchema((*INDICES.columns, RawColumn("ids", INTEGER, many=True)))
FIELDS = schema(label=INTEGER, price=FLOAT, item=INTEGER)


def read_rows(folder: Path, text: str, columns: RawSchema, /, *, block_bytes: int = 2**20, **config: Any) -> Reading:
    """Reads rows with the fast parser and checks them against the slow one."""
    (folder / "log.libsvm").write_text(text)
    source = LibsvmSource(files=["log.libsvm"], **config)
    opened = open_source(source, folder, columns, block_bytes=block_bytes)
    reading = read(opened)
    slow = LibsvmParser(opened.files[0], source, columns).parse_slowly(text.encode(), 1)
    assert list(zip(*slow.table.to_pydict().values(), strict=True)) == reading.rows
    assert slow.bad == reading.bad
    return reading


def test_an_index_is_a_column_with_zero_where_it_is_absent(tmp_path: Path) -> None:
    text = lines("1 1:0.57 2:1 30:-4", "-1 30:2e-3", "1", "-1 7:1 1:1 9:1")
    rows = read_rows(tmp_path, text, INDICES, numeric=[1, "30"]).rows
    assert rows == [(1, 0.57, -4.0), (-1, 0.0, 0.002), (1, 0.0, 0.0), (-1, 1.0, 0.0)]
    rows = read_rows(tmp_path, text, INDICES, numeric=[1, 30], absent="missing").rows
    assert rows == [(1, 0.57, -4.0), (-1, None, 0.002), (1, None, None), (-1, 1.0, None)]


def test_the_other_entries_are_ids(tmp_path: Path) -> None:
    text = lines("1 1:0.57 2:1 30:-4", "-1 30:2e-3", "1", "-1 7:1 1:1 9:1")
    for block_bytes in (2**20, 8):
        rows = read_rows(tmp_path, text, WITH_IDS, numeric=[30, 1], block_bytes=block_bytes).rows
        assert rows == [(1, 0.57, -4.0, [2]), (-1, 0.0, 0.002, []), (1, 0.0, 0.0, []), (-1, 1.0, 0.0, [7, 9])]


def test_named_fields_may_hold_numbers(tmp_path: Path) -> None:
    text = lines("1 0:9:0.25 1:5:1", "0 1:7:1", "0 0:9:3")
    settings: dict[str, Any] = {"columns": ["price", "item"], "numeric": ["price"]}
    assert read_rows(tmp_path, text, FIELDS, **settings).rows == [(1, 0.25, 5), (0, 0.0, 7), (0, 3.0, None)]
    rows = read_rows(tmp_path, text, FIELDS, **settings, absent="missing").rows
    assert rows == [(1, 0.25, 5), (0, None, 7), (0, 3.0, None)]
    text = lines("1 0:0.25 5:1", "0 0:3 7:1")
    assert read_rows(tmp_path, text, FIELDS, **settings).rows == [(1, 0.25, 5), (0, 3.0, 7)]


@pytest.mark.parametrize(
    ("row", "settings", "columns", "reason"),
    [
        ("1 1:2 1:3", {"numeric": [1, 30]}, INDICES, "repeated index: received index 1 twice; it is under `numeric`"),
        ("1 2:0.5", {"numeric": [1, 30]}, WITH_IDS, "value other than 1: received value 0.5 of index 2; `ids` alone"),
        ("1 1:x", {"numeric": [1, 30]}, INDICES, "not a number: received 'x'"),
        ("1 1:nan", {"numeric": [1, 30]}, INDICES, "NaN or infinity: received 'nan'"),
        (
            "1 0:1:1 1:5:0.5",
            {"columns": ["price", "item"], "numeric": ["price"]},
            FIELDS,
            "wrong fields: received value 0.5 of id 5; 'item' holds ids, all of value 1 — add 'item' to `numeric`",
        ),
        (
            "1 0:1:2 0:1:3",
            {"columns": ["price", "item"], "numeric": ["price"]},
            FIELDS,
            "wrong fields: received field 0 (price) twice — correct the row",
        ),
    ],
)
def test_a_bad_row_is_rejected_and_its_neighbours_kept(
    tmp_path: Path, row: str, settings: dict[str, Any], columns: RawSchema, reason: str
) -> None:
    good = "1 0:1:2 1:5:1" if "columns" in settings else "1 1:2 30:5"
    reading = read_rows(tmp_path, lines(good, row, good), columns, **settings)
    assert reading.lines == [1, 3]
    (bad,) = reading.bad
    assert (bad.line, bad.text) == (2, row)
    assert bad.reason.startswith(reason)


def test_configs_that_do_not_fit_the_file_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="index 30 is no column yet\n  hint: add 30 to `numeric`"):
        read_rows(tmp_path, "1 1:0.5\n", INDICES, numeric=[1])
    bag = RawSchema((RawColumn("1", INTEGER, many=True),))
    with pytest.raises(DataError, match="holds one number a row, a integer list is declared"):
        read_rows(tmp_path, "1 1:0.5\n", bag, numeric=[1])
    with pytest.raises(ValidationError, match="`numeric` names 'x': without `columns` it lists indices"):
        LibsvmSource(files=[], numeric=["x"])
    with pytest.raises(ValidationError, match=r"names 'prise', which is not under `columns`; did you mean 'price'\?"):
        LibsvmSource(files=[], columns=["price"], numeric=["prise"])
    with pytest.raises(ValidationError, match="names twice: 3"):
        LibsvmSource(files=[], numeric=[3, "3"])


# --- what init makes of it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns", "numeric", "cells"),
    [
        (
            "1 1:0.5 2:3\n0 1:1 2:4\n",
            None,
            ("1", "2"),
            {"1": [0.5, 1.0], "2": [3.0, 4.0]},
        ),
        ("1 1:0.5 9:1\n0 8:1\n", None, ("1",), {"1": [0.5, 0.0], "ids": [[9], [8]]}),
        ("1 8:1 9:1\n0 7:1\n", None, (), {"ids": [[8, 9], [7]]}),
        ("1 8:1 2:0.5\n0 7:1 2:1\n", ("field_1", "field_2"), ("field_2",), {"field_1": [8, 7], "field_2": [0.5, 1.0]}),
        (
            "1 0:1:0.5 2:7:1\n0 2:8:1 2:9:1\n",
            ("field_0", "field_1", "field_2"),
            ("field_0",),
            {"field_0": [0.5, 0.0], "field_1": [None, None], "field_2": [[7], [8, 9]]},
        ),
    ],
)
def test_layouts_are_inferred(
    text: str, columns: tuple[str, ...] | None, numeric: tuple[str, ...], cells: dict[str, list[Any]]
) -> None:
    found = read_libsvm(text.encode(), "log", starts_file=True)
    assert (found.columns, found.numeric) == (columns, numeric)
    assert found.frame.to_dict(as_series=False) == {"label": [1.0, 0.0], **cells}
