"""What the configs of databases share, and which rows they mean, in which order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

import pydantic

from ziggurat.core.errors import DataError, nearest
from ziggurat.data.readers.reader import CellsConfig
from ziggurat.data.readers.source_files import SourceFile


class DatabaseSource(CellsConfig):
    """Settings shared by the configs of databases."""

    table: str | None = None
    """The table or view to read; by default the only one."""
    query: str | None = None
    """A SELECT to read instead of a table. Its rows, and those of a view, are ordered by all of their columns."""

    @pydantic.model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.table is not None and self.query is not None:
            raise ValueError("give table or query, not both")
        if self.query is not None and re.match(r"\s*(select|with|values)\b", self.query, re.IGNORECASE) is None:
            raise ValueError("query: only a SELECT can be read; it may begin with WITH")
        return self

    @property
    def plain_query(self) -> str | None:
        """The query without a semicolon after it."""
        return None if self.query is None else self.query.strip().rstrip(";").rstrip()


def quoted(name: str) -> str:
    """Returns a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def chosen_table(file: SourceFile, tables: Sequence[str], table: str | None) -> str:
    """Returns the name of the table to read.

    Raises:
        DataError: there is none, none of this name, or several while none is named.
    """
    listed = ", ".join(tables[:40]) + (", …" if len(tables) > 40 else "")
    if not tables:
        raise DataError(f"{file.path}: the database has no tables", "name another file")
    if table is None:
        if len(tables) == 1:
            return tables[0]
        raise DataError(
            f"{file.path}: the database has several tables: {listed}",
            "name one: `ziggurat init FILE --table NAME`, or `table: NAME` on the source",
        )
    if table not in tables:
        close = nearest(table, tables)
        raise DataError(
            f"{file.path}: no table {table!r}; there are: {listed}",
            f"did you mean {close!r}?" if close else "correct the name",
        )
    return table
