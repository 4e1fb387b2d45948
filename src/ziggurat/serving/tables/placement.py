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
Ints = npt.NDArray[np.int64]
_BINS = 1 << 22
"""Counts below it are counted without a sorted copy."""
_AT_ONCE = 1 << 20
"""Rows that are looked at together."""
_FEW, _ENOUGH = 6, 20
"""Up to which count probabilities are smoothed, and how many rows a count must have for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """How often the rows of a table were read: in some thousands of numbers, whatever the rows are.

    Attributes:
        counts: the different counts, falling, (N,).
        ends: how many rows have this count or a greater one, (N,).
    """

    counts: Ints
    ends: Ints
    _reached: npt.NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = np.diff(self.ends, prepend=0)
        reached = np.cumsum(sizes * _probabilities(self.counts, sizes))
        object.__setattr__(self, "_reached", reached)

    @classmethod
    def of(cls, counts_R: npt.NDArray[np.integer]) -> Frequencies | None:
        """Returns those of the counts of rows, in any order, (R,); None if all are 0."""
        if not len(counts_R) or counts_R.max() <= 0:
            return None
        if counts_R.max() < _BINS:  # without a sorted copy
            of_count = np.bincount(counts_R)
            counts = np.flatnonzero(of_count)[::-1]
            sizes = of_count[counts]
        else:
            counts, sizes = (each[::-1] for each in np.unique(counts_R, return_counts=True))
        return cls(counts.astype(np.int64), np.cumsum(sizes).astype(np.int64))

    def share(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the share of the look-ups that the most frequent rows have, for some numbers of rows."""
        return np.interp(rows, np.append(0, self.ends), np.append(0.0, self._reached)) / self._reached[-1]

    def most_frequent(self, counts_R: npt.NDArray[np.integer], most: int) -> Iterator[Ints]:
        """Yields the rows that were read most, ascending, some at a time; none that was never read.

        Args:
            counts_R: the counts of the rows, of which these are the frequencies.
            most: of how many rows.
        """
        read = int(self.ends[np.searchsorted(-self.counts, 0, side="left") - 1])
        left = min(most, read)
        place = int(np.searchsorted(self.ends, left, side="left"))
        least = int(self.counts[place])
        of_least = left - (int(self.ends[place - 1]) if place else 0)  # of rows of equal count, the first ones
        for start in range(0, len(counts_R) if left else 0, _AT_ONCE):
            some = counts_R[start : start + _AT_ONCE]
            equal = np.flatnonzero(some == least)[:of_least]
            of_least -= len(equal)
            yield start + np.union1d(np.flatnonzero(some > least), equal)


@dataclass(frozen=True, slots=True)
class Demand:
    """What requests ask of a table.

    Attributes:
        name: the table.
        rows: its rows.
        row_bytes: bytes of a row in a cache.
        whole_bytes: bytes of memory that the whole table takes.
        lookups: rows that a request reads, those of all its candidates.
        frequencies: how often rows were read in the training data; None if that is unknown.
    """

    name: str
    rows: int
    row_bytes: int
    whole_bytes: int
    lookups: float
    frequencies: Frequencies | None = None

    def share(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the share of the look-ups that the most frequent rows have, for some numbers of rows."""
        return np.minimum(1.0, rows / self.rows) if self.frequencies is None else self.frequencies.share(rows)

    def hits(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the expected share of look-ups that caches of some numbers of rows answer."""
        exact = np.minimum(rows * COUNTERS, self.rows) == self.rows
        return np.where(rows >= self.rows, 1.0, self.share((rows * np.where(exact, _KEPT, _KEPT_OF_FEW)).astype(int)))


def _probabilities(counts: Ints, sizes: Ints) -> npt.NDArray[np.float64]:
    """Returns how likely a row of each count is looked up next; counts fall, and ``sizes`` rows have each.

    Rows that were seen never, once or a few times have the probability that Good and Turing estimate for all of their
    count: (c + 1) N(c + 1) / N(c), for N(c) rows that were seen c times (Good 1953, "The population frequencies of
    species and the estimation of population parameters"). A share of counts alone would promise that no row is new.
    """
    seen = dict(zip(counts.tolist(), sizes.tolist(), strict=True))
    found = counts.astype(np.float64)
    for count in range(_FEW):
        more = seen.get(count + 1, 0)
        if seen.get(count, 0) >= _ENOUGH and more >= _ENOUGH:
            found[counts == count] = (count + 1) * more / seen[count]
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
