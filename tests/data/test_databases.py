"""SQLite and DuckDB: tables, views and queries, read only, in a fixed order, resumable, with named errors."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.testing
from reader_kit import FLOAT, INTEGER, TEXT, many, read, schema

from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.sql import table
from ziggurat.data.readers.sql.duckdb import DuckdbSource
from ziggurat.data.readers.sql.sqlite import SqliteSource
from ziggurat.training.api import load_experiment, predict_files, prepare, train

KINDS = ["sqlite", "duckdb"]
ROWS = 300


@contextlib.contextmanager
def connected(path: Path) -> Any:
    """Opens a database of the kind that the suffix says, for writing."""
    if path.suffix == ".duckdb":
        duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install 'ziggurat[sql]'")
        with contextlib.closing(duckdb.connect(str(path))) as connection:
            yield connection
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            yield connection
            connection.commit()


def make(folder: Path, kind: str) -> Path:
    """Writes a table of events, a view of it, and a small table."""
    path = folder / f"shop.{kind}"
    rng = np.random.default_rng(1)
    rows = [(k % 40, f"item {k % 13}", k / 4, int(rng.integers(2))) for k in range(ROWS)]
    with connected(path) as connection:
        connection.execute('CREATE TABLE events ("user" BIGINT, item TEXT, price DOUBLE, click BIGINT)')
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        connection.execute("CREATE VIEW cheap AS SELECT * FROM events WHERE price < 10")
        connection.execute("CREATE TABLE other (x BIGINT)")
        connection.execute("INSERT INTO other VALUES (7)")
    return path


def source(kind: str, **settings: Any) -> SqliteSource | DuckdbSource:
    return {"sqlite": SqliteSource, "duckdb": DuckdbSource}[kind](files=[f"shop.{kind}"], **settings)


COLUMNS = schema(user=INTEGER, item=TEXT, price=FLOAT)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_views_and_queries(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, kind)
    expected = [(k % 40, f"item {k % 13}", k / 4) for k in range(ROWS)]
    monkeypatch.setattr(table, "GROUP_ROWS", 64)
    reader = open_source(source(kind, table="events"), tmp_path, COLUMNS, block_bytes=1_200)
    whole = read(reader)
    assert whole.rows == expected
    assert whole.lines == list(range(1, ROWS + 1))
    assert len(whole.ends) > 5
    for end in whole.ends[:-1]:
        assert read(reader, end).rows == expected[end.offset :]
    monkeypatch.setattr("ziggurat.data.readers.columnar.reader.FILE_RANGE_BYTES", 1)
    ranges = list(reader.file_ranges())
    assert len(ranges) == 5
    assert [row for each in ranges for row in read(reader, each.start, each.end).rows] == expected
    block = next(iter(reader.blocks(whole.ends[2])))
    assert reader.read_block(whole.ends[2], block.end).table.equals(block.table)
    cheap = read(open_source(source(kind, table="cheap"), tmp_path, COLUMNS))
    assert cheap.rows == sorted(row for row in expected if row[2] < 10)
    query = 'SELECT "user" AS u, max(price) AS most FROM events GROUP BY 1;'
    grouped = read(open_source(source(kind, query=query), tmp_path, schema(u=INTEGER, most=FLOAT)))
    assert grouped.rows == [(u, max(row[2] for row in expected if row[0] == u)) for u in range(40)]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_named(tmp_path: Path, kind: str) -> None:
    make(tmp_path, kind)
    refused = [
        ({}, "the database has several tables: cheap, events, other"),
        ({"table": "event"}, r"no table 'event'; there are: .*\n  hint: did you mean 'events'"),
        ({"query": "SELECT nothing FROM events"}, "the database cannot be read"),
        ({"query": "SELECT user FROM events; DROP TABLE events"}, "the database cannot be read"),
        ({"query": "WITH x AS (SELECT 1) DELETE FROM events"}, "the database cannot be read"),
        ({"table": "other"}, "no column 'user'; the file holds: x"),
    ]
    for settings, message in refused:
        with pytest.raises(DataError, match=rf"shop\.{kind}: {message}"):
            open_source(source(kind, **settings), tmp_path, COLUMNS)
    for settings, message in [
        ({"table": "a", "query": "select 1"}, "not both"),
        ({"query": "DROP x"}, "only a SELECT"),
    ]:
        with pytest.raises(ValueError, match=message):
            source(kind, **settings)
    (tmp_path / f"shop.{kind}").write_bytes(b"SQLite format 4\0 and so on")
    with pytest.raises(DataError, match=r"is no (SQLite|DuckDB) database"):
        open_source(source(kind, table="events"), tmp_path, COLUMNS)


def test_sqlite_columns_have_the_types_of_their_values(tmp_path: Path) -> None:
    with connected(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE t (i, r, t, b, n, mixed, large)")
        connection.execute("INSERT INTO t VALUES (1, 1.5, 'x', x'00ff', NULL, 'a', 9007199254740993)")
        connection.execute("INSERT INTO t VALUES (NULL, 2, CAST(x'ff' AS TEXT), x'61', NULL, 7, 0.5)")
        connection.execute("INSERT INTO t VALUES (3, 2.5, '', NULL, NULL, 2.5, 1)")
    columns = schema(i=INTEGER, r=FLOAT, b=TEXT, n=TEXT, mixed=TEXT, large=TEXT, t=TEXT)
    reading = read(open_source(source("sqlite"), tmp_path, columns))
    assert reading.rows == [
        (1, 1.5, "00ff", None, "a", "9007199254740993", "x"),
        (3, 2.5, None, None, "2.5", "1", None),
    ]
    assert reading.kinds() == [(2, "t", "not UTF-8")]


def test_sqlite_tables_without_row_ids_and_with_a_column_of_that_name(tmp_path: Path) -> None:
    with connected(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE keyed (b INTEGER, a TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID")
        connection.executemany("INSERT INTO keyed VALUES (?, ?)", [(2, "y"), (1, "y"), (3, "x")])
        connection.execute('CREATE TABLE named (rowid TEXT, "a ""b" INTEGER)')
        connection.executemany("INSERT INTO named VALUES (?, ?)", [("z", 1), ("y", 2)])
    assert read(open_source(source("sqlite", table="keyed"), tmp_path, schema(b=INTEGER, a=TEXT))).rows == [
        (3, "x"), (1, "y"), (2, "y"),
    ]  # fmt: skip
    named = schema(**{"rowid": TEXT, 'a "b': INTEGER})
    assert read(open_source(source("sqlite", table="named"), tmp_path, named)).rows == [("z", 1), ("y", 2)]


def test_changes_that_are_not_merged_yet_are_not_overlooked(tmp_path: Path) -> None:
    path = make(tmp_path, "sqlite")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute("INSERT INTO events VALUES (1, 'x', 1, 1)")
    writer.commit()
    with pytest.raises(DataError, match=r"has changes in a write-ahead log .*\n  hint: merge them"):
        open_source(source("sqlite", table="events"), tmp_path, COLUMNS)
    writer.close()
    assert len(read(open_source(source("sqlite", table="events"), tmp_path, COLUMNS)).rows) == ROWS + 1


def test_duckdb_values_of_other_types(tmp_path: Path) -> None:
    with connected(tmp_path / "shop.duckdb") as connection:
        connection.execute("CREATE TYPE colour AS ENUM ('red', 'blue')")
        connection.execute(
            "CREATE TABLE t AS SELECT {'lat': 1.5::DOUBLE} AS geo, [1, 2] AS ids, 'blue'::colour AS c, "
            "340282366920938463463374607431768211455::UHUGEINT AS h, 7.25::DECIMAL(8, 2) AS d"
        )
    columns = schema(**{"geo.lat": FLOAT, "ids": many(INTEGER), "c": TEXT, "d": FLOAT})
    assert read(open_source(source("duckdb"), tmp_path, columns)).rows == [(1.5, [1, 2], "blue", 7.25)]


def test_duckdb_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.duckdb").write_bytes(bytes(8) + b"DUCK" + bytes(100))
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(EnvironmentMismatch, match=r"needs the package duckdb.*\n  hint: pip install 'ziggurat\[sql\]'"):
        open_source(source("duckdb"), tmp_path, COLUMNS)


@pytest.mark.parametrize("kind", KINDS)
def test_init_prepare_train_and_predict(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, kind)
    runner = typer.testing.CliRunner()
    with pytest.raises(DataError, match="several tables"):
        runner.invoke(app, ["init", f"shop.{kind}"], catch_exceptions=False)
    result = runner.invoke(app, ["init", f"shop.{kind}", "--table", "events", "-o", "exp.yaml"], catch_exceptions=False)
    assert result.exit_code == 0
    text = Path("exp.yaml").read_text()
    assert f"    name: {kind}\n    files: [shop.{kind}]\n    table: events" in text
    assert "# 300 rows, all examined" in text
    experiment = load_experiment("exp.yaml", ["training.epochs=1", "model={name: dnn}"])
    assert sum(prepare(experiment).split(name).rows for name in ("train", "validation", "test")) == ROWS
    run = train(experiment, "run").run
    for suffix in (".csv", ".jsonl", ".parquet"):
        assert predict_files(run, f"shop.{kind}", f"out{suffix}").rows == ROWS
    assert Path("out.csv").read_text().startswith("user,item,price,click,probability\n0,item 0,0.0,")
    Path("log.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"--table events: log\.csv is no database, but csv"):
        runner.invoke(app, ["init", "log.csv", "--table", "events"], catch_exceptions=False)
