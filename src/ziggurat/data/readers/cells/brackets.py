"""Parses lists in text cells as Python, pandas, NumPy and JSON write: ``[240, 132]``, ``['a', "b, c"]``, ``[1 2]``.

A value may be in single or double quotes, inside which the delimiter is an ordinary character. Escapes are left as
written. Spaces around a value are dropped. Unquoted ``None``, ``null`` and ``nan`` and empty values are missing. Nested
lists are not parsed.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

_SPACES = " \t\r\n"
_QUOTED = r"""(?s)^(?:".*"|'.*')$"""
_MISSING = ("none", "null", "nan")


def bracket_elements(cell: str, delimiter: str) -> list[str] | None:
    """Returns the values of one cell, missing ones as empty text; None if the cell is not in brackets.

    The reference for :func:`split_brackets`.
    """
    stripped = cell.strip(_SPACES)
    if not (stripped.startswith("[") and stripped.endswith("]")):
        return None
    found = [element.strip(_SPACES) for element in re.findall(_pattern(delimiter), stripped[1:-1])]
    return [
        element[1:-1] if re.search(_QUOTED, element) else "" if element.lower() in _MISSING else element
        for element in found
    ]


def split_brackets(cells: pa.Array, delimiter: str) -> tuple[pa.Array, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Splits all cells into their values.

    Args:
        cells: strings without nulls; an empty string is an empty list.
        delimiter: one character.

    Returns:
        The concatenated values, missing ones as empty text; the number of values of each cell; the indices of the rows
        that are not in brackets, which have no values.
    """
    texts = pl.Series(cells, dtype=pl.String)
    stripped = texts.str.strip_chars(_SPACES)
    listed = stripped.str.starts_with("[") & stripped.str.ends_with("]")
    contents = stripped.str.strip_prefix("[").str.strip_suffix("]").set(~listed, "")
    lists = contents.str.extract_all(_pattern(delimiter))
    values = lists.explode().drop_nulls().str.strip_chars(_SPACES)
    quoted = values.str.contains(_QUOTED)
    missing = ~quoted & values.str.to_lowercase().is_in(_MISSING)
    unquoted = values.str.replace(r"(?s)^.(.*).$", "${1}") if quoted.any() else values
    values = unquoted.zip_with(quoted, values).set(missing, "")
    unbracketed = np.flatnonzero((~listed & (texts != "")).to_numpy())
    return values.to_arrow().cast(pa.string()), lists.list.len().cast(pl.Int64).to_numpy(), unbracketed


def _pattern(delimiter: str) -> str:
    return rf"""(?s)[ \t\r\n]*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^{re.escape(delimiter)}]+)"""
