"""Orders the rows of a table by how often they are used, and computes the position of each row in that order.

A row's frequency rank is its place in that order; rank 0 is the most used row. If a table is split by rows, the rows
are distributed over its ranges round-robin, so that each range gets its share of the hot rows: with G ranges of equal
length, rank r goes to range r mod G, to index r // G there. The ranges are consecutive, with ``ceil(rows / G)``
positions each but for the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FrequencyRanks = npt.NDArray[np.int32]
"""Row id -> its rank in descending order of frequency, (rows,)."""


def frequency_ranks(accesses: npt.NDArray[np.int64] | None, rows: int) -> FrequencyRanks:
    """Returns the frequency rank of each row. Rows with equal counts keep the order of their ids.

    Args:
        accesses: number of look-ups of each row, (rows,); None if unknown, which counts as equal for all rows.
        rows: number of rows of the table, fewer than 2^31.
    """
    assert rows < 2**31, rows
    in_order = np.arange(rows, dtype=np.int32)
    if accesses is None:
        return in_order
    ranks = np.empty(rows, np.int32)
    ranks[np.argsort(-accesses, kind="stable")] = in_order
    return ranks


def round_robin_positions(rows: int, parts: int) -> npt.NDArray[np.int64]:
    """Returns frequency rank -> position of that row, (rows,), in a table split into ``parts`` ranges of rows."""
    size = -(-rows // parts)
    positions = np.arange(parts * size).reshape(parts, size).T.reshape(-1)
    return positions[positions < rows]


def accesses_by_position(accesses: npt.NDArray[Any], parts: int) -> npt.NDArray[Any]:
    """Returns position -> number of look-ups of the row there, (rows,)."""
    found = np.empty_like(accesses)
    found[round_robin_positions(len(accesses), parts)] = -np.sort(-accesses)
    return found
