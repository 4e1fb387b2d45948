"""libsvm, libfm and libffm text: ``label index:value …`` or ``label field:index:value …``.

The columns that such a file offers to a schema:

- ``label``: the first token; ``qid``: the number of a ``qid:`` token behind it, where the first row has one.
- Without ``columns`` in the source: ``ids`` and ``values`` (and ``fields``, for libffm), each a list; where
  ``ids`` is read without ``values``, all values must be 1.
- With ``columns``: one column for each field, holding its ids; all values must be 1. In ``index:value`` rows the
  entries' places name the fields, one each (Frappe's layout); in ``field:index:value`` rows the field numbers do,
  from 0, and a field may be absent (missing) or, in a column of many values, occur several times.

Text behind ``#`` is a comment. There is no missing value in these formats.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pydantic

from ziggurat.core.errors import DataError, nearest, shorten
from ziggurat.core.schema import RawColumn, RawSchema, duplicates
from ziggurat.data.assemble import Parsed, assemble
from ziggurat.data.blocks import BadRow, Position
from ziggurat.data.libsvm_tokens import LibsvmLayout, Tokens, split_row, tokenise, tokenise_slowly
from ziggurat.data.reader import FilesConfig, TextParser
from ziggurat.data.records import RecordRules, Records, has_lone_carriage_return
from ziggurat.data.refusals import as_text
from ziggurat.data.source_files import SourceFile
from ziggurat.data.text_blocks import read_head
from ziggurat.data.text_cells import CellRules, Converted
from ziggurat.data.typed_cells import convert_typed

_HEAD_BYTES = 64 * 2**10
_SAMPLE_RECORDS = 100
_LISTS = ("ids", "values", "fields")


class LibsvmSource(FilesConfig):
    """Sparse text rows: libsvm, libfm, libffm."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".libsvm", ".svm", ".libfm", ".fm", ".libffm", ".ffm", ".txt")

    name: Literal["libsvm"] = "libsvm"
    columns: list[str] | None = None
    """Names of the fields, each then a column of ids. Without: columns ``ids``, ``values`` and (libffm) ``fields``."""

    @pydantic.field_validator("columns")
    @classmethod
    def _distinct(cls, value: list[str] | None) -> list[str] | None:
        twice = duplicates(["label", "qid", *(value or [])])
        if twice:
            raise ValueError(f"columns named twice: {', '.join(twice)} (label and qid are columns already)")
        return value


class LibsvmParser(TextParser):
    """Parses one file of a :class:`LibsvmSource`; see :class:`TextParser`.

    Raises:
        DataError: the file's head is not of this format, or it does not offer a column of ``schema``.
    """

    def __init__(self, file: SourceFile, config: LibsvmSource, schema: RawSchema) -> None:
        self.records = RecordRules()
        self.first = Position()
        self._file = str(file.path)
        self._schema = schema
        self._layout = _layout_of(file, read_head(file, _HEAD_BYTES, self.records.last_end).data, config, schema)

    def column_names(self) -> tuple[str, ...]:
        return self._schema.names

    def other_columns(self) -> tuple[RawColumn, ...]:
        return ()

    def parse(self, data: bytes, line: int) -> Parsed | None:
        if has_lone_carriage_return(data):
            return None
        records = Records.of(data, line, self.records)
        tokens = tokenise(records, self._layout)
        return None if tokens is None else self._assembled(tokens, records, np.arange(len(records)))

    def parse_slowly(self, data: bytes, line: int) -> Parsed:
        records = Records.of(data, line, self.records)
        tokens, good, reasons = tokenise_slowly(records, self._layout)
        parsed = self._assembled(tokens, records, np.array(good, np.int64))
        bad = [
            BadRow(self._file, int(records.lines[row]), None, reason, as_text(records[row]))
            for row, reason in reasons.items()
        ]
        return Parsed(parsed.table, parsed.lines, sorted([*bad, *parsed.bad], key=lambda row: row.line))

    def _assembled(self, tokens: Tokens, records: Records, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Parsed:
        columns = [self._column(tokens, column) for column in self._schema.columns]
        text_of = lambda row: as_text(records[int(rows[row])])  # noqa: E731
        return assemble(self._schema, columns, records.lines[rows], self._file, text_of)

    def _column(self, tokens: Tokens, column: RawColumn) -> Converted:
        return convert_typed(self._cells(tokens, column), column, CellRules())

    def _cells(self, tokens: Tokens, column: RawColumn) -> pa.Array:
        """The cells of a column before they get their declared type."""
        name, names = column.name, self._layout.columns
        if name == "label":
            return tokens.labels
        if name == "qid":
            assert tokens.queries is not None
            return tokens.queries
        if names is None:
            entries = {"ids": tokens.ids, "values": tokens.values, "fields": tokens.fields}[name]
            return _lists(entries if isinstance(entries, pa.Array) else pa.array(entries), tokens.lengths)
        if tokens.fields is None:
            return tokens.ids.take(pa.array(np.arange(names.index(name), len(tokens.ids), len(names))))
        chosen = tokens.fields == names.index(name)
        ids = tokens.ids.filter(pa.array(chosen))
        counts = np.bincount(tokens.rows_of[chosen], minlength=len(tokens.lengths))
        if column.many:
            return _lists(ids, counts)
        return ids.take(pa.array(np.cumsum(counts) - 1, mask=counts == 0))


def _lists(values: pa.Array, lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _layout_of(file: SourceFile, head: bytes, config: LibsvmSource, schema: RawSchema) -> LibsvmLayout:
    records = Records.of(head, 1, RecordRules())
    rows = [split_row(records[row]) for row in range(min(len(records), _SAMPLE_RECORDS))]
    wellformed = [row for row in rows if row and ":" not in row[0] and all(":" in token for token in row[1:])]
    if not any(len(row) > 1 for row in wellformed):
        received = shorten(as_text(records[0])) if len(records) else "only empty lines"
        raise DataError(
            f"{file.path}: none of the first {len(rows)} lines looks like `label index:value …`; received {received}",
            "name the format the file has, such as csv, as the source",
        )
    first = next(row for row in wellformed if len(row) > 1)
    has_query = first[1].startswith("qid:")
    entry = next((row[-1] for row in wellformed if len(row) > 1 + has_query), "0:0")
    has_fields = entry.count(":") == 2
    columns = None if config.columns is None else tuple(config.columns)
    lists = _LISTS if has_fields else _LISTS[:2]
    _check_schema(file, schema, ("label", *(("qid",) if has_query else ()), *(columns or lists)), columns is None)
    many = {column.name for column in schema.columns if column.many}
    single = frozenset(place for place, name in enumerate(columns or ()) if name not in many)
    drops_values = columns is None and "ids" in schema.names and "values" not in schema.names
    return LibsvmLayout(has_fields, has_query, columns, single, drops_values)


def _check_schema(file: SourceFile, schema: RawSchema, offered: tuple[str, ...], lists: bool) -> None:
    for column in schema.columns:
        if column.name not in offered:
            close = nearest(column.name, offered)
            raise DataError(
                f"{file.path}: no column {column.name!r}; a file of this layout offers: {', '.join(offered)}",
                f"did you mean {close!r}?" if close else "name the fields under `columns` of the source",
            )
        if lists and column.name in _LISTS and not column.many:
            raise DataError(
                f"{file.path}, column {column.name!r}: holds many values a row",
                "declare its feature `kind: bag`, or name the fields under `columns` of the source",
            )
