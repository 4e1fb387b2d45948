"""Decides which tables of an export are in memory, and how the caches of the others share what is left.

The demand of a table is its look-ups a request: a user's table is read once, an item's for each of B candidates, each
time as often as a row has ids. What a byte of memory is worth is the look-ups that it saves the disk: of the rows by
falling frequency, each next part is worth its share of the table's look-ups over its bytes. Parts are taken by falling
worth until the memory is used; as the parts of one table are worth less and less, a table's parts are taken in order.
A table of which all parts are taken is in memory as a whole, others get a cache for the parts that were taken
(Ardestani et al. 2021, "Supporting massive DLRM inference through software defined memory", section 4; the division of
the caches by frequencies is ours).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import ConfigError
from ziggurat.serving.tables.row_cache import COUNTERS, ENTRY_BYTES, FIXED_BYTES, WAYS

_PARTS = 24
"""Parts that a table's rows are divided into, each twice as many rows as the one before."""
_LEAST_ROWS = 8 * WAYS
"""Rows of the smallest cache."""
_KEPT, _KEPT_OF_FEW = 0.85, 0.6
"""The part of a cache that holds the most frequent rows: where each row of the table has a counter, and where rows
share counters. Measured with Zipf's exponents from .8 to 1.2; the rest are rows of sets that have few frequent ones,
and rows that were taken for frequent."""
_FEW, _ENOUGH = 6, 20
"""Up to which count probabilities are smoothed, and how many rows a count must have for it."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What requests ask of a table.

    Attributes:
        name: the table.
        rows: its rows.
        row_bytes: bytes of a row in a cache.
        whole_bytes: bytes of memory that the whole table takes.
        lookups: rows that a request reads, those of all its candidates.
        counts: how often each row was read in the training data, in any order; None if that is unknown.
    """

    name: str
    rows: int
    row_bytes: int
    whole_bytes: int
    lookups: float
    counts: npt.NDArray[np.integer] | None = None
    _shares: npt.NDArray[np.float64] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shares = None
        if self.counts is not None and self.counts.sum() > 0:
            shares = np.concatenate([[0.0], np.cumsum(_probabilities(self.counts))])
        object.__setattr__(self, "_shares", shares)

    def share(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the share of the look-ups that the most frequent rows have, for some numbers of rows."""
        if self._shares is None:
            return np.minimum(1.0, rows / self.rows)
        return self._shares[np.minimum(rows, len(self._shares) - 1)] / self._shares[-1]

    def hits(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the expected share of look-ups that caches of some numbers of rows answer."""
        exact = np.minimum(rows * COUNTERS, self.rows) == self.rows
        return np.where(rows >= self.rows, 1.0, self.share((rows * np.where(exact, _KEPT, _KEPT_OF_FEW)).astype(int)))


def _probabilities(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Returns how likely each row is looked up next, by falling count.

    Rows that were seen never, once or a few times have the probability that Good and Turing estimate for all of their
    count: (c + 1) N(c + 1) / N(c), for N(c) rows that were seen c times (Good 1953, "The population frequencies of
    species and the estimation of population parameters"). A share of counts alone would promise that no row is new.
    """
    falling = np.sort(counts.astype(np.float64))[::-1]
    seen = [int((falling == count).sum()) for count in range(_FEW + 1)]
    found = falling.copy()
    for count in range(_FEW):
        if seen[count] >= _ENOUGH and seen[count + 1] >= _ENOUGH:
            found[falling == count] = (count + 1) * seen[count + 1] / seen[count]
    return np.maximum(found, 1e-12 * max(1.0, found[0]))


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
        return self.demand.whole_bytes if self.cache_bytes is None else self.cache_bytes

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
    least = [min(demand.whole_bytes, FIXED_BYTES + _cache_bytes(demand, _LEAST_ROWS)) for demand in demands]
    if sum(least) > memory_bytes:
        whole = sum(demand.whole_bytes for demand in demands)
        raise ConfigError(
            f"{memory_bytes:,} bytes of memory for {len(demands)} tables of {whole:,} bytes: the smallest caches need "
            f"{sum(least):,}",
            f"give --memory {sum(least)} or more",
        )
    if sum(demand.whole_bytes for demand in demands) <= memory_bytes:
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
    if rows >= demand.rows or least >= demand.whole_bytes:
        return Placed(demand, None, 1.0)
    rows = max(rows, _LEAST_ROWS)
    return Placed(demand, FIXED_BYTES + _cache_bytes(demand, rows), float(demand.hits(np.array([rows]))[0]))


def _cache_bytes(demand: Demand, rows: int) -> int:
    return rows * (demand.row_bytes + ENTRY_BYTES)


def _parts(number: int, demand: Demand, start: int) -> Iterator[_Part]:
    """Yields the parts of a table behind its first rows, by falling frequency; with the last one it is in memory."""
    ends = np.unique((demand.rows / 2.0 ** np.arange(1, _PARTS)).astype(np.int64))
    cached = [
        end for end in ends.tolist() if end > start and FIXED_BYTES + _cache_bytes(demand, end) < demand.whole_bytes
    ]
    ends = np.array([start, *cached, demand.rows])
    shares = demand.share(ends)
    for at in range(1, len(ends)):
        first, end, is_last = int(ends[at - 1]), int(ends[at]), at == len(ends) - 1
        if first >= demand.rows:
            return
        size = (
            demand.whole_bytes - FIXED_BYTES - _cache_bytes(demand, first)
            if is_last
            else _cache_bytes(demand, end - first)
        )
        worth = demand.lookups * float(shares[at] - shares[at - 1]) / max(1, size)
        yield _Part(-worth, number, end - first, max(0, size), is_last)
