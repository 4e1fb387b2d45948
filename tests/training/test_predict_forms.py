"""Rows of text in any form pass through the reading and writing of a prediction, as UTF-8 and with usual quotes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.training.prediction.pass_through import open_pass_through

NEEDED = RawSchema((RawColumn("user", ValueType.INTEGER),))


def pass_rows(folder: Path, data: bytes, suffix: str, **settings: Any) -> str:
    """Writes the rows of a file, with a probability of one half each, and returns the output."""
    (folder / "log.csv").write_bytes(data)
    source = CsvSource(files=["log.csv"], **settings)
    passing = open_pass_through(source, [str(folder / "log.csv")], NEEDED, suffix)
    out = folder / f"out{suffix}"
    assert passing.source is not None
    with passing.open(out, ["probability"]) as output:
        for block in passing.source.blocks():
            rejected = np.array([row.line for row in block.bad], np.int64)
            table, _ = passing.rows.take(block, np.arange(block.table.num_rows), rejected)
            halves = pa.array(np.full(table.num_rows, 0.5, np.float32))
            output.write(table.append_column("probability", halves))
    return out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("data", "settings", "expected"),
    [
        ("user,town\n7,Zürich\n".encode("utf-16"), {"encoding": "utf-16"}, "user,town,probability\n7,Zürich,0.5\n"),
        ("user,town\n7,Zürich\n".encode("cp1252"), {"encoding": "cp1252"}, "user,town,probability\n7,Zürich,0.5\n"),
        (b"user::town\n7::a,b\n", {"delimiter": "::"}, 'user,town,probability\n7,"a,b",0.5\n'),
        (b"user  town\n 7\ta \n", {"delimiter": "whitespace"}, "user,town,probability\n7,a,0.5\n"),
        (b"user, town\n7, a\n", {"skip_blanks": True}, "user,town,probability\n7,a,0.5\n"),
        (b'user,town\n7,a\\,b\\"\n', {"escape": "\\"}, 'user,town,probability\n7,"a,b""",0.5\n'),
        (b'user,town\n7,"a\n', {"quotes": False}, 'user,town,probability\n7,"a,0.5\n'),
        (b"title\n#x\nuser,town\n7,a\n#8,b\n", {"comment": "#", "skip_lines": 1}, "user,town,probability\n7,a,0.5\n"),
        (b"user,town\r7,a\r8,b", {"line_ends": "cr"}, "user,town,probability\n7,a,0.5\n8,b,0.5\n"),
        (b"user,town\nr1,7,a\n", {"columns": ["", "user", "town"]}, ",user,town,probability\nr1,7,a,0.5\n"),
    ],
)
def test_rows_of_any_form_become_usual_csv(
    tmp_path: Path, data: bytes, settings: dict[str, Any], expected: str
) -> None:
    assert pass_rows(tmp_path, data, ".csv", **settings) == expected


def test_rows_of_any_form_become_json_lines(tmp_path: Path) -> None:
    written = pass_rows(tmp_path, "user|town\n7|Köln\n".encode("cp1252"), ".jsonl", encoding="cp1252", delimiter="|")
    assert '"Köln"' in written
    assert '"probability":0.5' in written.replace(" ", "")


def test_undecodable_bytes_in_a_column_that_no_feature_needs_pass_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    data = b"user,town\n7,a\x9d\n"
    with pytest.raises(UnicodeDecodeError):
        pass_rows(tmp_path / "x", data, ".csv", encoding="cp1252")
    assert (tmp_path / "x" / "out.csv").read_bytes() == b"user,town,probability\n7,a\x9d,0.5\n"
