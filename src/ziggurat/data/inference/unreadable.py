"""Counts the rows of a sample of text that the reader will reject whatever their columns are, and names the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, cast

from ziggurat.data.inference.text_sample import TextParts
from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.json_lines.repeated_keys import load_json, repeated_paths
from ziggurat.data.readers.rejection_reasons import reason_kind
from ziggurat.data.readers.text.records import Records

_FEW_REPEATED = 0.05
"""The largest share of the rows that are set aside for a key that they repeat; the column is left out beyond it."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Rows that cannot be read.

    Attributes:
        count: number of these rows.
        first: what is wrong with the first of them, such as ``line 7 has 4 cells, the header 3``; without a line if it
            is not known, as in a sample from the middle of a file.
    """

    count: int = 0
    first: str = ""


def merged(found: Iterable[Unreadable]) -> Unreadable:
    """Returns the rows of several samples as those of one."""
    each = list(found)
    return Unreadable(sum(one.count for one in each), next((one.first for one in each if one.count), ""))


def unreadable_records(sample: TextParts, dialect: Dialect, width: int, header: bool) -> Unreadable:
    """Returns the records that are not text, cannot be split, or have another number of cells than ``width``.

    Args:
        sample: the text, with its titles and headers.
        dialect: how it is written.
        width: number of cells of the rows.
        header: whether the first line names the columns.
    """
    count, first = 0, ""
    name_files = len({part.file for part in sample.parts}) > 1
    for part in sample.parts:
        if dialect.newlines_in_values and not part.starts_file:
            continue  # it may begin within a value
        data, line = part.data, 1
        if part.starts_file:
            for _ in range(dialect.skip_lines):
                data, line = data.partition(b"\n")[2], line + 1
        records = Records.of(data, line, dialect)
        cut = dialect.newlines_in_values and not sample.complete
        for row in range(1 if header and part.starts_file else 0, len(records) - cut):
            problem = _problem(records[row], dialect, width, header)
            if problem and not count:
                first = _at(problem, int(records.lines[row]) if part.starts_file else None, part.file, name_files)
            count += bool(problem)
    return Unreadable(count, first)


def is_utf8(text: bytes) -> bool:
    """Whether bytes are text; those that were no text in another encoding are no UTF-8 either."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _problem(record: bytes, dialect: Dialect, width: int, header: bool) -> str:
    """Says what keeps a record from being read; nothing if it can be read."""
    cells = dialect.split(record)
    if not isinstance(cells, list):
        return f"cannot be split into cells ({reason_kind(cells)})"
    if len(cells) != width:
        named = "the header" if header else "most others"
        return f"has {len(cells):,} cell{'s' * (len(cells) != 1)}, {named} {width:,}"
    return "" if is_utf8(record) else "holds bytes that are no text in this encoding"


def _at(problem: str, line: int | None, file: PurePath, name_file: bool) -> str:
    place = "a line" if line is None else f"line {line}"
    return f"{place} of {file.name} {problem}" if name_file else f"{place} {problem}"


def readable_objects(sample: TextParts) -> tuple[list[dict[str, Any]], Unreadable]:
    """Returns the JSON objects of some lines, and the lines that are none, or repeat a key that few lines repeat.

    Keys that many lines repeat are kept, as :class:`~ziggurat.data.readers.json_lines.repeated_keys.RepeatedKey`.
    """
    objects: list[dict[str, Any]] = []
    broken: list[tuple[int, str]] = []
    repeated: dict[int, tuple[int, str, frozenset[str]]] = {}
    name_files = len({part.file for part in sample.parts}) > 1
    number = 0
    for part in sample.parts:
        for line, text in enumerate(part.data.split(b"\n"), 1):
            if not text.strip():
                continue
            number += 1
            keys: list[str] = []
            try:
                value, problem = load_json(text, keys), "is no JSON object"
            except (ValueError, RecursionError):
                value, problem = None, "is no JSON"
            line_number = line if part.starts_file else None
            if not isinstance(value, dict):
                broken.append((number, _at(problem, line_number, part.file, name_files)))
                continue
            if keys:
                where = _at(f"has the key {keys[0]!r} more than once", line_number, part.file, name_files)
                repeated[len(objects)] = (number, where, frozenset(repeated_paths(value)))
            objects.append(cast("dict[str, Any]", value))
    lines_of = Counter(path for _, _, paths in repeated.values() for path in paths)
    few = {path for path, count in lines_of.items() if count <= _FEW_REPEATED * len(objects)}
    dropped = {row for row, (_, _, paths) in repeated.items() if paths & few}
    broken += [repeated[row][:2] for row in dropped]
    kept = [each for row, each in enumerate(objects) if row not in dropped] if dropped else objects
    return kept, Unreadable(len(broken), min(broken)[1] if broken else "")
