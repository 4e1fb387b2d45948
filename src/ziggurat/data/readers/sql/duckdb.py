"""DuckDB databases as a source; the package ``duckdb`` is optional (``pip install 'ziggurat[sql]'``)."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa

from ziggurat.core.errors import DataError, EnvironmentMismatch
from ziggurat.data.readers.columnar.file import check_expansion, explained_reads
from ziggurat.data.readers.columnar.paths import ColumnPath
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.sql.config import DatabaseSource, chosen_table, quoted
from ziggurat.data.readers.sql.table import DatabaseTable

WHAT = "DuckDB"
MAGIC, MAGIC_AT = b"DUCK", 8


class DuckdbSource(DatabaseSource):
    """A table or a query of DuckDB databases."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".duckdb", ".ddb")

    name: Literal["duckdb"] = "duckdb"


class DuckdbTable(DatabaseTable):
    """The rows of a table or a query."""

    def __init__(self, file: SourceFile, connection: Any, config: DuckdbSource) -> None:
        super().__init__(file)
        self._connection = connection
        self._rows, self._order = _rows_of(file, connection, config)
        ((self.rows,),) = connection.execute(f"SELECT count(*) FROM {self._rows}").fetchall()
        self.schema = _reader(connection, f"SELECT * FROM {self._rows} LIMIT 0", 1).schema
        check_expansion(file, self.rows, 1)

    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        names = self._columns(paths)
        first, most = self._span(first_group, end_group)
        limit = "" if most is None else f"LIMIT {most} "
        statement = (
            f"SELECT {', '.join(quoted(name) for name in names)} FROM "
            f"(SELECT * FROM {self._rows} ORDER BY {self._order} {limit}OFFSET {first})"
        )
        with _explained(self._file):
            for batch in _reader(self._connection, statement, rows):
                yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


@contextlib.contextmanager
def open_duckdb(file: SourceFile, dictionaries: Sequence[str] = (), *, config: DuckdbSource) -> Generator[DuckdbTable]:
    """Opens the table or the query of ``config`` in ``file``, for reading only.

    Raises:
        DataError: the file changed, may not be read, is no DuckDB database or a damaged one, or has no such table.
        EnvironmentMismatch: duckdb is not installed.
    """
    with explained_reads(file, WHAT):
        file.check_unchanged()
        with file.on_disk.open("rb") as stored:
            if stored.read(MAGIC_AT + len(MAGIC))[MAGIC_AT:] != MAGIC:
                raise DataError(f"{file.path}: is no DuckDB database", "name the format that the file has")
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError as error:
        raise EnvironmentMismatch(
            f"{file.path}: reading it needs the package duckdb, which is not installed ({error})",
            "pip install 'ziggurat[sql]', or export the table: COPY events TO 'events.parquet'",
        ) from error
    with _explained(file):
        settings = {"enable_external_access": "false", "threads": "1", "lock_configuration": "true"}
        connection = duckdb.connect(str(file.on_disk), read_only=True, config=settings)
    with contextlib.closing(connection):
        with _explained(file):
            opened = DuckdbTable(file, connection, config)
        yield opened


def _rows_of(file: SourceFile, connection: Any, config: DuckdbSource) -> tuple[str, str]:
    """Returns what to select from, and the order of the rows."""
    if config.plain_query is not None:
        return f"({config.plain_query}\n)", "ALL"
    statement = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'main' ORDER BY 1"
    kinds = dict(connection.execute(statement).fetchall())
    table = chosen_table(file, list(kinds), config.table)
    return quoted(table), "ALL" if kinds[table] == "VIEW" else "rowid"


def _reader(connection: Any, statement: str, rows: int) -> pa.RecordBatchReader:
    relation = connection.cursor().sql(statement)
    fetch = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return fetch(rows)


@contextlib.contextmanager
def _explained(file: SourceFile) -> Generator[None]:
    """Turns a failure of the library, whose errors are known by its name, into an error that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb") and not isinstance(
            error, RuntimeError | pa.ArrowException
        ):
            raise
        file.check_unchanged()
        message = " ".join(str(error).split())[:300]
        raise DataError(
            f"{file.path}: the database cannot be read ({message})",
            "check table and query of the source; if the file is damaged, copy it again",
        ) from error
