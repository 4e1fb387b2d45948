"""Infers the columns of libsvm, libfm and libffm text: a bag of ids, ids by field, or numbers by index or field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ziggurat.core.errors import DataError, shorten

MAX_ROWS = 200_000
MAX_COLUMNS = 1_000
"""Largest number of columns of numbers that ``init`` lists."""
_MAX_FIELDS = 200

Entry = tuple[int, int, float]
"""Field (-1 if there is none), index, value."""


@dataclass(frozen=True, slots=True)
class LibsvmColumns:
    """The rows of a sample as columns, and the source settings that read them like this.

    Attributes:
        frame: ``label`` and the inferred columns.
        columns: names of the fields; None if entries are distinguished by their index.
        numeric: names of the columns that hold numbers.
    """

    frame: pl.DataFrame
    columns: tuple[str, ...] | None
    numeric: tuple[str, ...]


def read_libsvm(text: bytes, place: str, starts_file: bool) -> LibsvmColumns:
    """Reads rows of ``label index:value …`` or ``label field:index:value …`` and infers their columns.

    Args:
        text: whole lines.
        place: the file, for messages.
        starts_file: whether the text is the beginning of that file, so that messages can give line numbers.

    Raises:
        DataError: a token is malformed, or there are more columns of numbers than a config could list.
    """
    labels: list[float] = []
    rows: list[list[Entry]] = []
    for line, row in enumerate(text.decode("utf-8", "replace").splitlines()[:MAX_ROWS], 1):
        label, *entries = row.partition("#")[0].split() or [""]
        if label:
            location = f"{place}, line {line}" if starts_file else place
            labels.append(_label(label, location))
            rows.append([_entry(token, location) for token in entries if not token.startswith("qid:")])
    series = pl.Series("label", labels, pl.Float64)
    if any(entry[0] >= 0 for row in rows for entry in row):
        return _by_field(series, rows)
    widths = {len(row) for row in rows}
    width = widths.pop() if len(widths) == 1 else 0
    if 0 < width <= _MAX_FIELDS and not _same_indices_in_all_rows(rows):
        numeric = [place for place in range(width) if any(row[place][2] != 1 for row in rows)]
        if all(len({row[place][1] for row in rows}) == 1 for place in numeric):
            return _by_position(series, rows, numeric)
    return _by_index(series, rows, place)


def _by_position(labels: pl.Series, rows: Sequence[list[Entry]], numeric: Sequence[int]) -> LibsvmColumns:
    """Columns in the libfm layout: the n-th entry belongs to the n-th field."""
    names = [f"field_{place + 1}" for place in range(len(rows[0]))]
    cells = {name: [row[place][2 if place in numeric else 1] for row in rows] for place, name in enumerate(names)}
    return LibsvmColumns(_frame(labels, cells), tuple(names), tuple(names[place] for place in numeric))


def _by_field(labels: pl.Series, rows: Sequence[list[Entry]]) -> LibsvmColumns:
    """Columns in the libffm layout: an entry names its field; several entries of a field in a row make it a bag."""
    fields = max(entry[0] for row in rows for entry in row) + 1
    if fields > _MAX_FIELDS:
        return LibsvmColumns(_frame(labels, {"ids": [[entry[1] for entry in row] for row in rows]}), None, ())
    names = [f"field_{field}" for field in range(fields)]
    numeric = sorted({field for row in rows for field, _, value in row if value != 1})
    cells: dict[str, list[Any]] = {}
    for field, name in enumerate(names):
        found = [[entry for entry in row if entry[0] == field] for row in rows]
        if field in numeric:
            cells[name] = [entries[0][2] if entries else 0.0 for entries in found]
        elif any(len(entries) > 1 for entries in found):
            cells[name] = [[index for _, index, _ in entries] for entries in found]
        else:
            cells[name] = [entries[0][1] if entries else None for entries in found]
    return LibsvmColumns(_frame(labels, cells), tuple(names), tuple(names[field] for field in numeric))


def _by_index(labels: pl.Series, rows: Sequence[list[Entry]], place: str) -> LibsvmColumns:
    """Columns by index: an index with a value other than 1 is a column of numbers (0 if omitted); others are ids."""
    numeric = sorted({index for row in rows for _, index, value in row if value != 1})
    if len(numeric) > MAX_COLUMNS:
        raise DataError(
            f"{place}: {len(numeric):,} indices hold values other than 1, too many for columns of numbers",
            f"keep the {MAX_COLUMNS:,} that matter, or write values of 1 for a bag of ids",
        )
    places = {index: place for place, index in enumerate(numeric)}
    numbers = [[0.0] * len(rows) for _ in numeric]
    ids: list[list[int]] = []
    for number, row in enumerate(rows):
        ids.append([index for _, index, _ in row if index not in places])
        for _, index, value in row:
            if index in places:
                numbers[places[index]][number] = value
    cells: dict[str, list[Any]] = dict(zip(map(str, numeric), numbers, strict=True))
    names = tuple(cells)
    if any(ids) or not cells:
        cells["ids"] = ids
    return LibsvmColumns(_frame(labels, cells), None, names)


def _frame(labels: pl.Series, cells: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    return pl.DataFrame([labels, *(pl.Series(name, values) for name, values in cells.items())])


def _same_indices_in_all_rows(rows: Sequence[list[Entry]]) -> bool:
    """Whether all rows list the same indices, as dense rows do."""
    return all([entry[1] for entry in row] == [entry[1] for entry in rows[0]] for row in rows)


def _label(token: str, location: str) -> float:
    try:
        return float(token)
    except ValueError:
        raise _malformed(location, token, "a number first, the label") from None


def _entry(token: str, location: str) -> Entry:
    parts = token.split(":")
    try:
        match parts:
            case [index, value]:
                return -1, int(index), float(value)
            case [field, index, value] if int(field) >= 0:
                return int(field), int(index), float(value)
            case _:
                pass
    except ValueError:
        pass
    raise _malformed(location, token, "index:value or field:index:value")


def _malformed(location: str, token: str, expected: str) -> DataError:
    return DataError(
        f"{location}: malformed libsvm row: received {shorten(token)}, expected {expected}",
        "correct the row, or give the file the suffix of the format that it has",
    )
