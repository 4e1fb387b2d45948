"""Logs that ``init`` refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ziggurat.cli.init import draft_config
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.inference.roles import infer
from ziggurat.data.readers.source_files import resolve_files


@pytest.mark.parametrize("content", [b"\0" * 10**6, ",".join(f"c{number}" for number in range(10**5)).encode()])
def test_a_first_line_that_is_no_header_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"log\.csv: the (first lines cannot be read as CSV|file holds a header but no rows)",
    ):
        infer(resolve_files(["log.csv"], tmp_path, [".csv"]), None)


@pytest.mark.parametrize("head", ['user,"price\nin euro",click', '"user\r\nname",price,click'])
def test_a_header_with_a_line_break_in_quotes_is_named(tmp_path: Path, head: str) -> None:
    (tmp_path / "log.csv").write_bytes((head + "\n" + "u1,2.5,1\nu2,3.5,0\n" * 50).encode())
    with pytest.raises(DataError, match=r"log\.csv, line 1: a quote is opened and not closed in the line") as told:
        infer(resolve_files(["log.csv"], tmp_path, [".csv"]), None)
    assert "no line break within quotes" in told.value.problem
    assert "write the first line without line breaks" in told.value.hint


@pytest.mark.parametrize("indent", [None, 1])
def test_one_json_object_around_a_log_is_named(tmp_path: Path, indent: int | None) -> None:
    rows = [{"user": k % 9, "item": k % 7, "click": k % 2} for k in range(100)]
    around = {"version": 2, "data": rows, "next": None}
    (tmp_path / "log.json").write_text(json.dumps(around, indent=indent))
    with pytest.raises(
        DataError, match=r"log\.json: one object; its list `data` is the log\n  hint: write that list"
    ) as told:
        infer(resolve_files(["log.json"], tmp_path, [".json"]), None)
    assert "jq '.[\"data\"]'" in told.value.hint
    for columns in (
        {name: [row[name] for row in rows] for name in rows[0]},
        {name: {str(k): row[name] for k, row in enumerate(rows)} for name in rows[0]},
    ):
        (tmp_path / "log.json").write_text(json.dumps(columns, indent=indent))
        with pytest.raises(
            DataError, match=r"log\.json: one object of 3 columns \(user, item, click\), each with"
        ) as told:
            infer(resolve_files(["log.json"], tmp_path, [".json"]), None)
        assert "orient='records', lines=True" in told.value.hint


def test_rows_beside_the_names_of_their_columns_are_named(tmp_path: Path) -> None:
    names, rows = ["user", "item", "click"], [[k % 9, k % 7, k % 2] for k in range(100)]
    for split, way in (
        (
            {"columns": names, "index": [*range(100)], "data": rows},
            "orient='split').to_json('log.jsonl', orient='records'",
        ),
        ({"header": names, "rows": rows}, 'jq -c \'.["header"] as $names | .["rows"][] | [$names, .] | transpose'),
    ):
        (tmp_path / "log.json").write_text(json.dumps(split))
        with pytest.raises(DataError, match=r"log\.json: one object, with the rows as lists in `(data|rows)`") as told:
            draft_config(tmp_path / "log.json")
        assert "the names of their 3 columns in `" in told.value.problem
        assert way in told.value.hint
    (tmp_path / "log.json").write_text(json.dumps(rows))
    with pytest.raises(
        DataError, match=r"no row can be read as jsonl: line 1 is no JSON object\n.*write each row as an"
    ):
        draft_config(tmp_path / "log.json")


@pytest.mark.parametrize("name", ["log.xlsx", "log.XLSX", "log.csv", "log.zip.csv", "log.ods"])
def test_a_spreadsheet_is_not_to_be_unpacked(tmp_path: Path, name: str) -> None:
    """Also a damaged one: its name says what it is, or its first member."""
    member = b"[Content_Types].xml" if name.endswith(".csv") else b""
    (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(26) + member + b"junk" * 100)
    with pytest.raises(
        DataError, match=r"is a spreadsheet, no text\n  hint: export its table as CSV, and name that file"
    ):
        draft_config(tmp_path / name)


def test_old_spreadsheets_and_web_pages_are_named(tmp_path: Path) -> None:
    (tmp_path / "log.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    with pytest.raises(DataError, match=r"is a spreadsheet of old Excel, no text\n  hint: export its table as CSV"):
        draft_config(tmp_path / "log.xls")
    for head in ("<!DOCTYPE HTML>\n<html>", "\ufeff\n <html lang='en'>", "<!-- page -->\n<!doctype html>"):
        (tmp_path / "log.csv").write_text(f"{head}<body>Index of /logs</body></html>\n" * 3)
        with pytest.raises(DataError, match=r"log\.csv: is a web page \(HTML\), no log\n  hint: .*get the file again"):
            draft_config(tmp_path / "log.csv")


@pytest.mark.parametrize("head", [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"GIF89a\1\0\1\0"])
def test_an_image_is_no_text(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "log.csv").write_bytes(head + bytes(range(256)) * 20)
    with pytest.raises(DataError, match=r"log\.csv: is an image, no text\n  hint: name the files of the log"):
        infer(resolve_files(["log.csv"], tmp_path, [".csv"]), None)


def test_a_long_token_of_a_libsvm_row_is_cut(tmp_path: Path) -> None:
    (tmp_path / "log.libsvm").write_bytes(b"1 2:1\n" + b"\0" * 1_000 + b"\n")
    with pytest.raises(DataError, match="malformed libsvm row") as told:
        infer(resolve_files(["log.libsvm"], tmp_path, [".libsvm"]), None)
    assert len(told.value.problem) < len(str(tmp_path)) + 200


def test_a_comment_is_no_header_of_rows_of_another_width(tmp_path: Path) -> None:
    lists = [
        "# made by hand",
        "[]   [8, 9]   0",
        "[0, 4, 9, 7]   [1]   1",
        "[]   [7, 4, 0, 5]   0",
        "[8, 7, 9]   []   1",
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lists) + "\n")
    with pytest.raises(ConfigError, match="no column looks like a label"):
        draft_config(path)


def test_a_key_without_a_name_is_left_out_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"user": 1, "shop": "a", "click": 0}\n{"user": 2, "shop": "b", "": 4, "click": 1}\n' * 30)
    assert '# - {column: ""}  # left out: a key without a name\n' in draft_config(path)


def test_a_title_above_a_single_row_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("A report\n\na b||user||price||click\n ||[4, 4]||4%||0\n")
    with pytest.raises(ConfigError, match="columns: a b, user, price, click"):
        draft_config(path)
