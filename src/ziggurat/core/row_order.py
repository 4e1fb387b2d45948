"""Orders the rows of a table by how often they are used, and computes the position of each row in that order.

A row's frequency rank is its place in that order; rank 0 is the most used row. If a table is split by rows, the rows
are distributed over its ranges round-robin, so that each range gets its share of the hot rows: with G ranges of equal
length, rank r goes to range r mod G, to index r // G there. The ranges are consecutive, with ``ceil(rows / G)``
positions each but for the last. With tiers of rows (sharding ``row_tiers``), the rows of each tier are distributed so
over the ranks that share them: those of a host for the first two, all for the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
"""Frequency rank -> position, (rows,)."""

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


def round_robin_positions(rows: int, parts: int) -> Positions:
    """Returns frequency rank -> position of that row, (rows,), in a table split into ``parts`` ranges of rows."""
    size = -(-rows // parts)
    positions = np.arange(parts * size).reshape(parts, size).T.reshape(-1)
    return positions[positions < rows]


def tier_positions(rows: int, copied_rows: int, host_rows: int, local_size: int, world_size: int) -> Positions:
    """Returns frequency rank -> position of that row, (rows,), in a table of three tiers of rows.

    The rows copied to every rank are in ranges, too: each rank of a host sums the gradients of one.
    """
    split = copied_rows + host_rows
    return np.concatenate(
        [
            round_robin_positions(copied_rows, local_size),
            copied_rows + round_robin_positions(host_rows, local_size),
            split + round_robin_positions(rows - split, world_size),
        ]
    )


def accesses_by_position(accesses: npt.NDArray[Any], parts: int) -> npt.NDArray[Any]:
    """Returns position -> number of look-ups of the row there, (rows,)."""
    found = np.empty_like(accesses)
    found[round_robin_positions(len(accesses), parts)] = -np.sort(-accesses)
    return found
