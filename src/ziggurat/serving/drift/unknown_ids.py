"""Ids of values that training did not know."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.features.transform import Transform


def unknown_rows(transform: Transform) -> dict[str, range]:
    """Returns feature -> the ids of values that training did not know, of those that have such."""
    encoders, tables = transform.encoders, transform.schema.tables
    found = {name: encoders[table].unknown_rows for name, table in tables.items() if table in encoders}
    return {name: rows for name, rows in found.items() if len(rows)}


def count_unknown(ids: npt.NDArray[np.int64], unknown: range) -> int:
    """Returns how many ids are of values that training did not know."""
    return int(np.count_nonzero((ids >= unknown.start) & (ids < unknown.stop)))
