"""Decides which tables of an export are in memory, and how the caches of the others share what is left.

The demand of a table is its look-ups a request: a user's table is read once, an item's for each of B candidates, each
time as often as a row has ids. What a byte of memory is worth is the look-ups that it saves the disk: of the rows by
falling frequency, each next part is worth its share of the table's look-ups over its bytes. Parts are taken by falling
worth until the memory is used; as the parts of one table are worth less and less, a table's parts are taken in order.
A table of which all parts are taken is mapped into memory, others get a cache for the parts that were taken
(Ardestani et al. 2021, "Supporting massive DLRM inference through software defined memory", section 4; the division of
the caches by frequencies is ours).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import ConfigError
from ziggurat.serving.tables.row_cache import ENTRY_BYTES, WAYS

_PARTS = 24
"""Parts that a table's rows are divided into, each twice as many rows as the one before."""
_LEAST_ROWS = 8 * WAYS
"""Rows of the smallest cache."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What requests ask of a table.

    Attributes:
        name: the table.
        rows: its rows.
        row_bytes: bytes of a row.
        file_bytes: bytes of its file.
        lookups: rows that a request reads, those of all its candidates.
        counts: how often each row was read in the training data, in any order; None if that is unknown.
    """

    name: str
    rows: int
    row_bytes: int
    file_bytes: int
    lookups: float
    counts: npt.NDArray[np.integer] | None = None

    def share(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the share of the look-ups that the most frequent rows have, for some numbers of rows."""
        if self.counts is None or not self.counts.sum():
            return np.minimum(1.0, rows / self.rows)
        cumulated = np.concatenate([[0.0], np.cumsum(np.sort(self.counts.astype(np.float64))[::-1])])
        return cumulated[np.minimum(rows, len(cumulated) - 1)] / cumulated[-1]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the rows of a table are.

    Attributes:
        demand: its demand.
        cache_bytes: bytes of its cache; None if it is in memory.
        hits: the expected share of its look-ups that do not read the disk.
    """

    demand: Demand
    cache_bytes: int | None
    hits: float

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.demand.file_bytes if self.cache_bytes is None else self.cache_bytes

    @property
    def reads(self) -> float:
        """Expected reads of the disk a request."""
        return self.demand.lookups * (1 - self.hits)


class _Part(NamedTuple):
    """Rows of a table; the one that is worth most is the least."""

    negative_worth: float
    table: int
    rows: int
    bytes: int
    is_last: bool


def place(demands: Sequence[Demand], memory_bytes: int) -> list[Placed]:
    """Returns where each table is.

    Args:
        demands: the tables.
        memory_bytes: memory for tables and caches.

    Raises:
        ConfigError: the memory does not suffice for the smallest caches.
    """
    least = [min(demand.file_bytes, _cache_bytes(demand, _LEAST_ROWS)) for demand in demands]
    if sum(least) > memory_bytes:
        raise ConfigError(
            f"{memory_bytes:,} bytes of memory for {len(demands)} tables: the smallest caches need {sum(least):,}",
            f"give --memory {sum(least):,} or more",
        )
    if sum(demand.file_bytes for demand in demands) <= memory_bytes:
        return [Placed(demand, None, 1.0) for demand in demands]
    taken, left = [0] * len(demands), memory_bytes
    for number, demand in enumerate(demands):
        taken[number] = min(_LEAST_ROWS, demand.rows)
        left -= least[number]
    following = [_parts(number, demand, taken[number]) for number, demand in enumerate(demands)]
    next_parts = [part for parts in following if (part := next(parts, None)) is not None]
    heapq.heapify(next_parts)
    while next_parts:
        part = heapq.heappop(next_parts)
        if part.bytes > left:  # as much of it as fits; its later parts need this one first
            demand = demands[part.table]
            fitting = 0 if part.is_last else left // (demand.row_bytes + ENTRY_BYTES)
            taken[part.table] += fitting
            left -= _cache_bytes(demand, fitting)
            continue
        taken[part.table] += part.rows
        left -= part.bytes
        after = next(following[part.table], None)
        if after is not None:
            heapq.heappush(next_parts, after)
    return [_placed(demand, rows, fewest) for demand, rows, fewest in zip(demands, taken, least, strict=True)]


def _placed(demand: Demand, rows: int, least: int) -> Placed:
    if rows >= demand.rows or least >= demand.file_bytes:
        return Placed(demand, None, 1.0)
    rows = max(rows, _LEAST_ROWS)
    return Placed(demand, _cache_bytes(demand, rows), float(demand.share(np.array([rows]))[0]))


def _cache_bytes(demand: Demand, rows: int) -> int:
    return rows * (demand.row_bytes + ENTRY_BYTES)


def _parts(number: int, demand: Demand, start: int) -> Iterator[_Part]:
    """Yields the parts of a table behind its first rows, by falling frequency; with the last one it is mapped whole."""
    ends = np.unique((demand.rows / 2.0 ** np.arange(1, _PARTS)).astype(np.int64))
    cached = [end for end in ends.tolist() if end > start and _cache_bytes(demand, end) < demand.file_bytes]
    ends = np.array([start, *cached, demand.rows])
    shares = demand.share(ends)
    for at in range(1, len(ends)):
        first, end, is_last = int(ends[at - 1]), int(ends[at]), at == len(ends) - 1
        if first >= demand.rows:
            return
        size = demand.file_bytes - _cache_bytes(demand, first) if is_last else _cache_bytes(demand, end - first)
        worth = demand.lookups * float(shares[at] - shares[at - 1]) / max(1, size)
        yield _Part(-worth, number, end - first, max(0, size), is_last)
