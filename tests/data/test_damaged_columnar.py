"""Damaged files of every columnar format, databases and JSON arrays: a named error, or rows, and never a crash."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from format_kit import source, write
from reader_kit import INTEGER, read, schema

from ziggurat.core.errors import DataError
from ziggurat.data.readers.source import open_source

ROWS = 400
DAMAGES = 25
CHECK = """
import sys, random
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from reader_kit import FLOAT, INTEGER, TEXT, many, read, schema
from format_kit import source
from ziggurat.core.errors import ZigguratError
from ziggurat.cli.init import draft_config
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.sql.sqlite import SqliteSource

folder, name, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
columns = schema(**{"n": INTEGER, "f": FLOAT, "t": TEXT})
if not name.endswith(("sqlite", "json")):
    columns = schema(**{"n": INTEGER, "f": FLOAT, "t": TEXT, "s.x": INTEGER, "l": many(INTEGER)})
config = (
    SqliteSource(files=["damaged"], table="t") if name.endswith("sqlite")
    else JsonLinesSource(files=["damaged"], records="array") if name.endswith("json")
    else source(name).model_copy(update={"files": ["damaged"]})
)
whole = (folder / name).read_bytes()
draw = random.Random(seed)
seen = {"rows": 0, "errors": 0}
for _ in range(int(sys.argv[5])):
    data = bytearray(whole)
    kind = draw.randrange(4)
    if kind == 0:
        del data[draw.randrange(len(data)) :]
    elif kind == 1:
        for _ in range(draw.randrange(1, 9)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    elif kind == 2:
        start = draw.randrange(len(data))
        data[start : start + draw.randrange(1, 64)] = bytes(draw.randrange(64))
    else:
        start = draw.randrange(len(data))
        data[start : start + 8] = (2 ** draw.randrange(64) - 1).to_bytes(8, "little")
    if not data:
        continue
    (folder / "damaged").write_bytes(data)
    for attempt in (lambda: read(open_source(config, folder, columns)), lambda: draft_config(folder / "damaged", "n")):
        try:
            attempt()
            seen["rows"] += 1
        except ZigguratError as error:
            assert str(error)
            seen["errors"] += 1
print(seen)
"""


@pytest.mark.parametrize(
    "name", ["log.parquet", "log.arrow", "log.arrows", "log.feather", "log.orc", "log.sqlite", "log.json"]
)
def test_damage_is_a_named_error_or_rows(tmp_path: Path, name: str) -> None:
    draw = random.Random(1)
    table = pa.table(
        {
            "n": [draw.randrange(2) for _ in range(ROWS)],
            "f": [draw.random() for _ in range(ROWS)],
            "t": [f"word {draw.randrange(50)}" for _ in range(ROWS)],
            "s": [{"x": k, "y": str(k)} for k in range(ROWS)],
            "l": [[k, k + 1][: k % 3] for k in range(ROWS)],
            "b": [b"x" * draw.randrange(30) for _ in range(ROWS)],
        }
    )
    if name.endswith("sqlite"):
        with sqlite3.connect(tmp_path / name) as connection:
            connection.execute("CREATE TABLE t (n INTEGER, f REAL, t TEXT)")
            connection.executemany(
                "INSERT INTO t VALUES (?, ?, ?)", [tuple(row.values())[:3] for row in table.to_pylist()]
            )
        connection.close()
    elif name.endswith("json"):
        (tmp_path / name).write_text(json.dumps(table.drop_columns("b").to_pylist()))
    else:
        write(tmp_path / name, table, rows=100)
    kit = str(Path(__file__).parent)
    command = [sys.executable, "-c", CHECK, str(tmp_path), name, "7", kit, str(DAMAGES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-3_000:])
    assert "'errors': 0" not in done.stdout


def test_a_broken_name_among_the_chunks_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    write(path, pa.table({"zzcol": [row % 2 for row in range(100)], "n": range(100)}))
    head, name, tail = path.read_bytes().rpartition(b"zzcol")
    assert head.count(name) == 1  # the schema has the name, too, and stays as it is
    path.write_bytes(head + b"\xc2" + name[1:] + tail)
    message = r"log\.parquet: truncated, corrupt or no Parquet file \('utf-8' codec can't decode byte 0xc2"
    with pytest.raises(DataError, match=message):
        read(open_source(source("log.parquet"), tmp_path, schema(zzcol=INTEGER)))
