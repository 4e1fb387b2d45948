"""Reads libsvm, libfm and libffm text: ``label index:value …`` or ``label field:index:value …``.

Such a file provides these columns:

- ``label``: the first token. ``qid``: the number of the ``qid:`` token after the label, if the first row has one.
- Without ``columns`` in the source: a column of numbers for each index listed under ``numeric``. All other entries are
  in the list columns ``ids`` and ``values`` (and ``fields``, for libffm). If ``ids`` is read without ``values``, all of
  these values must be 1.
- With ``columns``: one column per field. It holds the field's ids, whose values must all be 1, or, if it is listed
  under ``numeric``, the field's values. In ``index:value`` rows the position of an entry determines its field, with one
  entry per field (Frappe's layout). In ``field:index:value`` rows the field number does, counted from 0; a field may be
  absent (missing) or, in a column of many values, occur several times.

A number that a row omits is 0, as is libsvm's convention, or missing, depending on ``absent``. Text after ``#`` is a
comment.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pydantic

from ziggurat.core.errors import DataError, nearest, shorten
from ziggurat.core.schema import RawColumn, RawSchema, duplicates
from ziggurat.data.readers.assemble import Parsed, assemble
from ziggurat.data.readers.blocks import BadRow, Position
from ziggurat.data.readers.cells.text import CellRules
from ziggurat.data.readers.cells.typed import convert_typed
from ziggurat.data.readers.libsvm.numbers import NumberColumns
from ziggurat.data.readers.libsvm.tokens import LibsvmLayout, Tokens, split_row, tokenise, tokenise_slowly
from ziggurat.data.readers.reader import TextConfig, TextParser
from ziggurat.data.readers.rejection_reasons import as_text
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head
from ziggurat.data.readers.text.records import RecordRules, Records, has_lone_carriage_return

_HEAD_BYTES = 64 * 2**10
_SAMPLE_RECORDS = 100
_LISTS = ("ids", "values", "fields")


class LibsvmSource(TextConfig):
    """Sparse text rows: libsvm, libfm, libffm."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".libsvm", ".svm", ".libfm", ".fm", ".libffm", ".ffm", ".txt")

    name: Literal["libsvm"] = "libsvm"
    columns: list[str] | None = None
    """Names of the fields; each becomes a column of ids. Default: columns ``ids``, ``values`` and (libffm)
    ``fields``."""
    numeric: list[int | str] = pydantic.Field(default=[])
    """What holds numbers, such as ``3:0.57``, instead of ids: names from ``columns``, or, without ``columns``, indices.
    Each such index becomes a column of its own, named for example ``"3"``, and is no longer part of ``ids``."""
    absent: Literal["zero", "missing"] = "zero"
    """The value of a column of numbers in rows that omit it; libsvm's convention is zero."""

    @property
    def numeric_names(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.numeric)

    @property
    def block_share(self) -> float:
        """Fraction of the usual block size to use, because sparse text grows when it becomes columns of numbers."""
        return 1 / (1 + len(self.numeric) / 16)

    @pydantic.model_validator(mode="after")
    def _check_numeric(self) -> LibsvmSource:
        for name in self.numeric_names:
            if self.columns is not None and name not in self.columns:
                close = nearest(name, self.columns)
                hint = f"; did you mean {close!r}?" if close else ""
                raise ValueError(f"`numeric` names {name!r}, which is not under `columns`{hint}")
            if self.columns is None and re.fullmatch(r"0|[1-9]\d{0,17}", name) is None:
                raise ValueError(f"`numeric` names {name!r}: without `columns` it lists indices, such as 3")
        repeated = duplicates(self.numeric_names)
        if repeated:
            raise ValueError(f"`numeric` names twice: {', '.join(repeated)}")
        return self

    @pydantic.field_validator("columns")
    @classmethod
    def _check_distinct(cls, value: list[str] | None) -> list[str] | None:
        repeated = duplicates(["label", "qid", *(value or [])])
        if repeated:
            raise ValueError(f"columns named twice: {', '.join(repeated)} (label and qid are columns already)")
        return value


class LibsvmParser(TextParser):
    """Parses one file of a :class:`LibsvmSource`; see :class:`TextParser`.

    Raises:
        DataError: the head of the file is not of this format, or the file does not provide a column of ``schema``.
    """

    def __init__(self, file: SourceFile, config: LibsvmSource, schema: RawSchema) -> None:
        self.records = RecordRules()
        self.first_row = Position()
        self._file = str(file.path)
        self._schema = schema
        self._numeric = frozenset(config.numeric_names)
        self._absent = 0.0 if config.absent == "zero" else None
        self._layout = _layout_of(file, read_head(file, _HEAD_BYTES, self.records.last_record_end).data, config, schema)

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
        numbers = self._numbers(tokens)
        columns = [
            convert_typed(
                numbers.column(self._key(column.name), self._absent)
                if column.name in self._numeric
                else self._cells_of(tokens, column),
                column,
                CellRules(),
            )
            for column in self._schema.columns
        ]
        text_of = lambda row: as_text(records[int(rows[row])])  # noqa: E731
        return assemble(self._schema, columns, records.lines[rows], self._file, text_of)

    def _key(self, name: str) -> int:
        """Returns the index, or the field number, from which a column of numbers takes its values."""
        return int(name) if self._layout.columns is None else self._layout.columns.index(name)

    def _numbers(self, tokens: Tokens) -> NumberColumns:
        selected = tokens.numeric
        entry_rows, entries = tokens.entry_rows, np.arange(len(selected))
        if self._layout.columns is None:
            keys = tokens.ids.filter(pa.array(selected)).cast(pa.int64()).to_numpy()
        else:
            fields = entries % max(1, len(self._layout.columns)) if tokens.fields is None else tokens.fields
            keys = fields[selected]
        needed = [self._key(column.name) for column in self._schema.columns if column.name in self._numeric]
        return NumberColumns(
            needed, keys, entry_rows[selected], tokens.values.to_numpy()[selected], len(tokens.lengths)
        )

    def _cells_of(self, tokens: Tokens, column: RawColumn) -> pa.Array:
        """Returns the cells of a column before conversion to the declared type."""
        name, names = column.name, self._layout.columns
        if name == "label":
            return tokens.labels
        if name == "qid":
            assert tokens.queries is not None
            return tokens.queries
        if names is None:
            entries = tokens.ids if name == "ids" else tokens.values if name == "values" else pa.array(tokens.fields)
            listed = ~tokens.numeric
            counts = np.bincount(tokens.entry_rows[listed], minlength=len(tokens.lengths))
            return _lists(entries.filter(pa.array(listed)) if tokens.numeric.any() else entries, counts)
        if tokens.fields is None:
            return tokens.ids.take(pa.array(np.arange(names.index(name), len(tokens.ids), len(names))))
        selected = tokens.fields == names.index(name)
        ids = tokens.ids.filter(pa.array(selected))
        counts = np.bincount(tokens.entry_rows[selected], minlength=len(tokens.lengths))
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
    provided = ("label", *(("qid",) if has_query else ()), *(columns or (*lists, *config.numeric_names)))
    _check_schema(file, schema, provided, columns is None, config.numeric_names)
    many = {column.name for column in schema.columns if column.many}
    single = frozenset(place for place, name in enumerate(columns or ()) if name not in many)
    drops_values = columns is None and "ids" in schema.names and "values" not in schema.names
    names = config.numeric_names
    numeric = frozenset(int(name) if columns is None else columns.index(name) for name in names)
    return LibsvmLayout(has_fields, has_query, columns, single | numeric if columns else single, drops_values, numeric)


def _check_schema(
    file: SourceFile, schema: RawSchema, provided: tuple[str, ...], lists: bool, numeric: tuple[str, ...]
) -> None:
    for column in schema.columns:
        if column.name in numeric and column.many:
            raise DataError(
                f"{file.path}, column {column.name!r}: holds one number a row, a {column.type} list is declared",
                "declare its feature `kind: numeric`, or take it from `numeric` of the source",
            )
        if lists and column.name not in provided and column.name.isdecimal():
            raise DataError(
                f"{file.path}: index {column.name} is no column yet", f"add {column.name} to `numeric` of the source"
            )
        if column.name not in provided:
            close = nearest(column.name, provided)
            raise DataError(
                f"{file.path}: no column {column.name!r}; a file of this layout offers: {', '.join(provided)}",
                f"did you mean {close!r}?" if close else "name the fields under `columns` of the source",
            )
        if lists and column.name in _LISTS and not column.many:
            raise DataError(
                f"{file.path}, column {column.name!r}: holds many values a row",
                "declare its feature `kind: bag`, or name the fields under `columns` of the source",
            )
