"""Keys of JSON lines that are not in the schema: those with values of one type get a declared type for tables."""

from __future__ import annotations

import json
from pathlib import Path

from reader_kit import FLOAT, INTEGER, TEXT, schema

from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.source_files import resolve_files


def test_scalar_keys_of_one_type_are_found(tmp_path: Path) -> None:
    rows = [
        {"user": 7, "n": 1, "x": 0.5, "t": "a", "flag": True, "list": [1], "mixed": 1, "none": None},
        {"user": 8, "n": 2, "x": 3, "mixed": "m"},
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (file,) = resolve_files(["log.jsonl"], tmp_path, [])
    parser = JsonLinesParser(file, JsonLinesSource(files=["log.jsonl"]), schema(user=INTEGER))
    assert parser.other_columns() == schema(n=INTEGER, x=FLOAT, t=TEXT, flag=TEXT).columns
