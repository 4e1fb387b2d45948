"""Finds whether the first line of delimited text names the columns."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import PurePath

import polars as pl

from ziggurat.core.errors import DataError
from ziggurat.core.schema import duplicates
from ziggurat.data.inference.columns import NULL_WORDS_AMONG_NUMBERS
from ziggurat.data.inference.dialect import first_records
from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head


def is_header(first: Sequence[str], body: pl.DataFrame, path: PurePath) -> bool:
    """Whether the first line names the columns: every cell has a letter, and differs from the cells below.

    Args:
        first: the cells of the first line. Cells may be empty: the first above an index that a program added, another
            above a column that a delimiter at the end of lines makes.
        body: the rows below, as text.
        path: the path of the file, for the error.

    Raises:
        DataError: the line is a header, as there are numbers below its words, but a name is repeated.
    """
    cells = [cell.strip() for cell in first]
    if not any(cells) or not all(re.search(r"[^\W\d]", cell) for cell in cells if cell):
        return False
    below: list[list[str | None]] = [column.to_list() for column in body.head(1_000).iter_columns()]
    numeric = any(
        cell.lower() not in {"", *NULL_WORDS_AMONG_NUMBERS} and _all_numbers(values)
        for values, cell in zip(below, cells, strict=True)
    )
    repeated = duplicates([cell for cell in cells if cell])
    if repeated:
        if numeric:
            raise _header_error(cells, repeated, path)
        return False
    if not all(cells[1:]) and not numeric:
        after_last_delimiter = all(cells[1:-1]) and all(value is None for value in below[-1])
        if not after_last_delimiter:
            return False
    recurring = any(
        value is not None and value.strip() == cell
        for values, cell in zip(below, cells, strict=True)
        for value in values
    )
    return numeric or not recurring


def same_columns(files: Sequence[SourceFile], dialect: Dialect) -> list[SourceFile]:
    """Returns the files with the same header as the first file; others cannot be sampled together with it.

    Raises:
        DataError: a file names columns other than those of the first file.
    """
    expected = _named_columns(files[0], dialect)
    kept = [files[0]]
    for file in files[1:]:
        found = _named_columns(file, dialect)
        if expected and found and set(found) != set(expected):
            lacks = [name for name in expected if name not in found]
            has = [name for name in found if name not in expected]
            what = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has {', '.join(has)} instead"] * bool(has)
            raise DataError(
                f"{file.path}: its header {' and '.join(what)}, compared with {files[0].path}",
                "run `ziggurat init` on files of the same columns",
            )
        if found == expected:
            kept.append(file)
    return kept


def _named_columns(file: SourceFile, dialect: Dialect) -> list[str]:
    """Returns the cells of the first line if all are words and the second line holds a number; else none."""
    text = read_head(file, 64 << 10, lambda data: data.rfind(b"\n") + 1).data.removeprefix(codecs.BOM_UTF8)
    lines = first_records(text, dialect, 2)
    if len(lines) < 2:
        return []
    first, second = ([cell.decode("utf-8", "replace").strip() for cell in line] for line in lines)
    if not all(re.search(r"[^\W\d]", cell) for cell in first):
        return []
    return first if any(_is_number(cell) for cell in second) else []


def _header_error(cells: Sequence[str], repeated: Sequence[str], path: PurePath) -> DataError:
    places = " and ".join(str(place) for place, cell in enumerate(cells, 1) if cell == repeated[0])
    return DataError(
        f"{path}, line 1: the header names column {repeated[0]!r} twice, in places {places}",
        "give each of them a name of its own in the file's first line",
    )


def _all_numbers(cells: Sequence[str | None]) -> bool:
    values = [cell for cell in cells if cell is not None]
    return len(values) > 0 and all(map(_is_number, values))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
