"""SQLite databases as a source. Columns have the types of the values that they hold, as SQLite has none of its own.

A database is opened for reading only, and what its schema could run is switched off. The types and the number of rows
are found by one pass over the rows.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.types as pt

from ziggurat.core.errors import DataError
from ziggurat.data.readers.columnar.file import check_expansion, explained_reads
from ziggurat.data.readers.columnar.paths import ColumnPath
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.sql.config import DatabaseSource, chosen_table, quoted
from ziggurat.data.readers.sql.table import DatabaseTable

WHAT = "SQLite"
MAGIC = b"SQLite format 3\0"
_LONGEST_CELL = 64 * 2**20
_MOST_COLUMNS = 300
"""Columns whose types are found in one pass; SQLite bounds the length of a query."""
_EXACT_FLOAT = 2**53


class SqliteSource(DatabaseSource):
    """A table or a query of SQLite databases."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".sqlite", ".sqlite3", ".db", ".db3")

    name: Literal["sqlite"] = "sqlite"


class SqliteTable(DatabaseTable):
    """The rows of a table or a query."""

    def __init__(self, file: SourceFile, connection: sqlite3.Connection, config: SqliteSource) -> None:
        super().__init__(file)
        self._connection = connection
        rows, order = _rows_of(file, connection, config)
        described = connection.execute(f"SELECT * FROM {rows} LIMIT 0").description
        names = [str(column[0]) for column in described]
        self._rows, self._order = rows, order or ", ".join(str(place) for place in range(1, len(names) + 1))
        self._place = {name: place for place, name in enumerate(names)}
        self.rows, kinds = _types(connection, rows, names)
        self.schema = pa.schema(list(zip(names, kinds, strict=True)))
        check_expansion(file, self.rows, 1)

    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        names = self._columns(paths)
        first, most = self._span(first_group, end_group)
        columns = ", ".join(quoted(name) for name in names)
        statement = (
            f"SELECT {columns} FROM (SELECT * FROM {self._rows} ORDER BY {self._order} "
            f"LIMIT {-1 if most is None else most} OFFSET {first})"
        )
        with _explained(self._file):
            cursor = self._connection.execute(statement)
            while found := cursor.fetchmany(rows):
                columns = zip(names, zip(*found, strict=True), strict=True)
                cells = [_array(values, self.schema.field(name).type) for name, values in columns]
                yield pa.RecordBatch.from_arrays(cells, names=names)


@contextlib.contextmanager
def open_sqlite(file: SourceFile, dictionaries: Sequence[str] = (), *, config: SqliteSource) -> Generator[SqliteTable]:
    """Opens the table or the query of ``config`` in ``file``, for reading only.

    Raises:
        DataError: the file changed, may not be read, is no SQLite database or a damaged one, or has no such table.
    """
    with explained_reads(file, WHAT):
        file.check_unchanged()
        with file.on_disk.open("rb") as stored:
            if stored.read(len(MAGIC)) != MAGIC:
                raise DataError(f"{file.path}: is no SQLite database", "name the format that the file has")
    log = Path(f"{file.path}-wal")
    if log.exists() and log.stat().st_size:
        raise DataError(
            f"{file.path}: has changes in a write-ahead log beside it, {log.name}",
            f"merge them, once nothing writes: sqlite3 '{file.path}' 'pragma wal_checkpoint(truncate)'",
        )
    with _explained(file):
        uri = f"{file.on_disk.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
    with contextlib.closing(connection):
        with _explained(file):
            _restrict(connection)
            opened = SqliteTable(file, connection, config)
        yield opened


def sqlite_tables(connection: sqlite3.Connection) -> list[str]:
    """Returns the names of tables and views."""
    statement = (
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    return [_text(name) for (name,) in connection.execute(statement)]


def _restrict(connection: sqlite3.Connection) -> None:
    """Allows nothing but reading this file."""
    connection.text_factory = bytes  # text that is not UTF-8 is rejected row by row, later
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_CELL)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    for pragma in ("query_only = 1", "trusted_schema = 0", "cell_size_check = 1"):
        connection.execute(f"PRAGMA {pragma}")
    connection.set_authorizer(_authorise)


def _authorise(action: int, first: str | None, *_: Any) -> int:
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
    if action in allowed or (action == sqlite3.SQLITE_PRAGMA and first in ("table_info", "table_list")):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _rows_of(file: SourceFile, connection: sqlite3.Connection, config: SqliteSource) -> tuple[str, str]:
    """Returns what to select from, and the order of the rows; an empty order means by all columns."""
    if config.plain_query is not None:
        return f"({config.plain_query}\n)", ""
    table = chosen_table(file, sqlite_tables(connection), config.table)
    kinds = connection.execute("SELECT type, sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    if _text(kinds[0]) == "view":
        return quoted(table), ""
    columns = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    keys = sorted((int(column[5]), _text(column[1])) for column in columns if column[5])
    names = {_text(column[1]).lower() for column in columns}
    rowid = next((name for name in ("rowid", "_rowid_", "oid") if name not in names), None)
    if rowid is not None:
        with contextlib.suppress(sqlite3.OperationalError):  # a table without row ids
            connection.execute(f"SELECT {rowid} FROM {quoted(table)} LIMIT 0")
            return quoted(table), rowid
    return quoted(table), ", ".join(quoted(name) for _, name in keys)


def _types(connection: sqlite3.Connection, rows: str, names: Sequence[str]) -> tuple[int, list[pa.DataType]]:
    """Returns the number of rows, and the type of each column that holds all of its values."""
    total, kinds = 0, list[pa.DataType]()
    for start in range(0, len(names), _MOST_COLUMNS):
        tests: list[str] = ["count(*)"]
        for name in names[start : start + _MOST_COLUMNS]:
            column = quoted(name)
            large = f"typeof({column}) = 'integer' AND ({column} > {_EXACT_FLOAT} OR {column} < -{_EXACT_FLOAT})"
            tests += [f"max(typeof({column}) = '{kind}')" for kind in ("integer", "real", "text", "blob")]
            tests.append(f"max({large})")
        total, *found = connection.execute(f"SELECT {', '.join(tests)} FROM {rows}").fetchone()
        kinds += [_type(*map(bool, found[place : place + 5])) for place in range(0, len(found), 5)]
    return int(total), kinds


def _type(integer: bool, real: bool, text: bool, blob: bool, large: bool) -> pa.DataType:
    if text or (blob and (integer or real)) or (real and large):
        return pa.string()
    if blob:
        return pa.binary()
    return pa.float64() if real else pa.int64() if integer else pa.null()


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not pt.is_string(kind):
        return pa.array(values, kind)
    texts = [value if value is None or isinstance(value, bytes) else repr(value).encode() for value in values]
    return pa.array(texts, pa.binary()).view(pa.string())


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@contextlib.contextmanager
def _explained(file: SourceFile) -> Generator[None]:
    """Turns a failure of the library into an error that names the file."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError, OverflowError) as error:
        file.check_unchanged()
        raise DataError(
            f"{file.path}: the database cannot be read ({error})",
            "check table and query of the source; if the file is damaged, copy it again",
        ) from error
