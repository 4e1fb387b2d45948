"""Text cells that are lists as Python, pandas, NumPy and JSON write them: ``[240, 132]``, ``['a', "b, c"]``, ``[1 2]``.

A value may stand in single or double quotes, within which the delimiter counts as a letter; escapes stay as they are
written. Spaces around a value are dropped. ``None``, ``null`` and ``nan`` without quotes are missing, and so is an
empty value. Lists within lists are not taken apart.
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
    """The values of one cell, missing ones empty; None where it is not in brackets. The reference of the next."""
    bare = cell.strip(_SPACES)
    if not (bare.startswith("[") and bare.endswith("]")):
        return None
    found = [element.strip(_SPACES) for element in re.findall(_pattern(delimiter), bare[1:-1])]
    return [
        element[1:-1] if re.search(_QUOTED, element) else "" if element.lower() in _MISSING else element
        for element in found
    ]


def split_brackets(cells: pa.Array, delimiter: str) -> tuple[pa.Array, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The values of all cells.

    Args:
        cells: strings without nulls; the empty one is the empty list.
        delimiter: one character.

    Returns:
        The values end to end, missing ones empty; how many of them each cell has; the rows that are not in brackets,
        which have none.
    """
    texts = pl.Series(cells, dtype=pl.String)
    bare = texts.str.strip_chars(_SPACES)
    listed = bare.str.starts_with("[") & bare.str.ends_with("]")
    inside = bare.str.strip_prefix("[").str.strip_suffix("]").set(~listed, "")
    lists = inside.str.extract_all(_pattern(delimiter))
    values = lists.explode().drop_nulls().str.strip_chars(_SPACES)
    quoted = values.str.contains(_QUOTED)
    missing = ~quoted & values.str.to_lowercase().is_in(_MISSING)
    unquoted = values.str.replace(r"(?s)^.(.*).$", "${1}") if quoted.any() else values
    values = unquoted.zip_with(quoted, values).set(missing, "")
    odd = np.flatnonzero((~listed & (texts != "")).to_numpy())
    return values.to_arrow().cast(pa.string()), lists.list.len().cast(pl.Int64).to_numpy(), odd


def _pattern(delimiter: str) -> str:
    return rf"""(?s)[ \t\r\n]*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^{re.escape(delimiter)}]+)"""
