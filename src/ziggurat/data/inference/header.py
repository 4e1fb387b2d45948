"""Finds the delimiter of delimited text, and whether its first line names the columns."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from ziggurat.core.errors import DataError
from ziggurat.core.schema import duplicates
from ziggurat.data.inference.columns import NULL_WORDS_AMONG_NUMBERS
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head

_DELIMITERS = (",", "\t", ";", "|")


def find_delimiter(lines: Sequence[str]) -> str:
    """Returns the delimiter that splits most lines into the same number (> 1) of cells; ties go to more cells."""

    def score(delimiter: str) -> tuple[float, int]:
        widths = Counter(len(cells) for cells in csv.reader(lines, delimiter=delimiter))
        width, count = widths.most_common(1)[0]
        return (count / len(lines) if width > 1 else 0.0, width)

    best = max(_DELIMITERS, key=score)
    return best if score(best)[0] > 0.5 else ","


def is_header(first: Sequence[str], body: pl.DataFrame, path: Path) -> bool:
    """Whether the first line names the columns: every cell has a letter, and differs from the cells below.

    Args:
        first: the cells of the first line. The first cell may be empty, above an index column that a program added.
        body: the rows below, as text.
        path: the path of the file, for the error.

    Raises:
        DataError: the line is a header, as there are numbers below its words, but a name is repeated or missing.
    """
    cells = [cell.strip() for cell in first]
    if not any(cells) or not all(re.search(r"[^\W\d]", cell) for cell in cells if cell):
        return False
    head = body.head(1_000)
    numeric = any(
        cell.lower() not in {"", *NULL_WORDS_AMONG_NUMBERS} and _all_numbers(head[name])
        for name, cell in zip(head.columns, cells, strict=True)
    )
    repeated = duplicates([cell for cell in cells if cell])
    if repeated or not all(cells[1:]):
        if numeric:
            raise _header_error(cells, repeated, path)
        return False
    recurring = any(
        bool((head[name].str.strip_chars() == cell).any()) for name, cell in zip(head.columns, cells, strict=True)
    )
    return numeric or not recurring


def files_with_same_header(files: Sequence[SourceFile], delimiter: str) -> list[SourceFile]:
    """Returns the files with the same header as the first file; others cannot be sampled together with it.

    Raises:
        DataError: a file names columns other than those of the first file.
    """
    expected = _named_columns(files[0], delimiter)
    kept = [files[0]]
    for file in files[1:]:
        found = _named_columns(file, delimiter)
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


def _named_columns(file: SourceFile, delimiter: str) -> list[str]:
    """Returns the cells of the first line if all are words and the second line holds a number; else none."""
    text = read_head(file, 64 << 10, lambda data: data.rfind(b"\n") + 1).data.decode("utf-8-sig", "replace")
    lines = [next(csv.reader([line], delimiter=delimiter)) for line in text.splitlines()[:2] if line.strip()]
    if len(lines) < 2 or not all(re.search(r"[^\W\d]", cell) for cell in lines[0]):
        return []
    return [cell.strip() for cell in lines[0]] if any(_is_number(cell) for cell in lines[1]) else []


def _header_error(cells: Sequence[str], repeated: Sequence[str], path: Path) -> DataError:
    if repeated:
        places = " and ".join(str(place) for place, cell in enumerate(cells, 1) if cell == repeated[0])
        return DataError(
            f"{path}, line 1: the header names column {repeated[0]!r} twice, in places {places}",
            "give each of them a name of its own in the file's first line",
        )
    return DataError(
        f"{path}, line 1: the header has no name for column {cells.index('', 1) + 1} of {len(cells)}",
        "name it in the file's first line",
    )


def _all_numbers(cells: pl.Series) -> bool:
    values = cells.drop_nulls()
    return len(values) > 0 and all(_is_number(value) for value in values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
