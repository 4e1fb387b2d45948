"""Rows of a table in the order of how often they are used, and the places where that order puts them.

Rank 0 is the most used row. Where a table is split by rows, ranks are dealt out one by one over its ranges, so that
each has its share of the hot rows: of G ranges of equal length, rank r goes to range r mod G, at its place r // G. The
ranges themselves lie one behind the other: ``ceil(rows / G)`` places each but for the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ranks = npt.NDArray[np.int32]
"""Of each row, by its id: its rank by falling frequency, (rows,)."""


def frequency_ranks(accesses: npt.NDArray[np.int64] | None, rows: int) -> Ranks:
    """The rank of each row; rows that are used alike, as all are where nothing is known, keep the order of their ids.

    Args:
        accesses: look-ups of each row, (rows,); None where nothing is known.
        rows: of the table, fewer than 2^31.
    """
    assert rows < 2**31, rows
    in_order = np.arange(rows, dtype=np.int32)
    if accesses is None:
        return in_order
    ranks = np.empty(rows, np.int32)
    ranks[np.argsort(-accesses, kind="stable")] = in_order
    return ranks


def dealt_places(rows: int, parts: int) -> npt.NDArray[np.int64]:
    """Rank -> the place where that row lies, (rows,), in a table cut into ``parts`` ranges of rows."""
    size = -(-rows // parts)
    places = np.arange(parts * size).reshape(parts, size).T.reshape(-1)
    return places[places < rows]


def placed_accesses(accesses: npt.NDArray[Any], parts: int) -> npt.NDArray[Any]:
    """The look-ups of the row at each place, (rows,)."""
    found = np.empty_like(accesses)
    found[dealt_places(len(accesses), parts)] = -np.sort(-accesses)
    return found
