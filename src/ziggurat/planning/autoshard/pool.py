"""A pool of synthetic tables whose rows are reused as those of published production-like ones.

The published figures describe 856 tables and one batch of 65,536 examples (facebookresearch/dlrm_datasets, 2021): how
many different rows are looked up, how many times each, in bins of (0, 1], (1, 2], (2, 4], … (16384, 32768] and above.
They are sums over all tables. Here each table gets a size and a skew of its own, so that the sums stay as published:

    rows of table j in bin k = N_k · s_j · exp(θ_j·k) / Σ_i s_i · exp(θ_i·k)

with N_k the published number, s_j log-normal and θ_j normal. Rows that the batch does not meet, dims and which rows of
a table are the hot ones are not published; they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import numpy.typing as npt

from ziggurat.core.plan import Span
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.planning.autoshard.features import Floats, features
from ziggurat.planning.cost import FLOAT, state_bytes

TABLES = 856
EXAMPLES = 65_536
LOOKUPS = 887_017_990
TOUCHED_ROWS = 128_435_723
"""Different rows that the batch looks up, all tables together."""
LOOKUP_SHARES = (
    *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023),
    0.019,
)
"""Of all look-ups, by how often the batch looks up their row: once, twice, up to 4, up to 8, …, above 32,768 times."""
ROW_SHARES = (0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001)
"""Of the rows looked up, the same; of the bins beyond, .000 to three digits."""
MOST_REUSED = 131_072
"""Look-ups of one row at most; the published bins end at "above 32,768"."""
SUPPORT = 64
"""Different numbers of look-ups in a bin, at most."""
DIMS = (4, 8, 16, 32, 64, 128)

_WELL_ROUNDED = 0.005
"""Shares of rows from here on are given to a digit that tells a bin's mean."""


@dataclass(frozen=True, slots=True)
class PoolTable:
    """A table of the pool.

    Attributes:
        number: in the pool; it names the table.
        rows, dim: of the table.
        lookups, times: so many rows are looked up so many times in 65,536 examples, int64 (n,) each; other rows never.
    """

    number: int
    rows: int
    dim: int
    lookups: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]

    @property
    def name(self) -> str:
        return f"t{self.number}"

    @property
    def weight_bytes(self) -> int:
        """Of float32 weights."""
        return 4 * self.rows * self.dim

    def spec(self, optimizer: str) -> TableSpec:
        """The table, looked up by one feature of its name."""
        return TableSpec(self.name, self.rows, self.dim, (self.name,), "sum", {"name": optimizer, "lr": 0.01}, 0.01)

    @property
    def ids_per_row(self) -> float:
        """Mean pooling factor."""
        return int(self.lookups @ self.times) / EXAMPLES

    def described(self, columns: int, examples: int, optimizer: str, rows: Span | None = None) -> Floats:
        """Features of the table, or of a range of its rows, with so many columns, in a step of so many examples, with
        such an optimizer."""
        lookups, times, size = self.lookups, self.times, self.rows
        if rows is not None and rows.size < self.rows:
            (lookups, times), size = np.unique(self.accesses()[rows.slice], return_counts=True), rows.size
        return features(
            columns=columns,
            rows=size,
            bags=examples,
            means=examples / EXAMPLES * lookups.astype(np.float64),
            times=times.astype(np.float64),
            state=state_bytes({"name": optimizer}, size, columns) / FLOAT / size,
        )

    def accesses(self) -> npt.NDArray[np.int64]:
        """Look-ups of each row in 65,536 examples, int64 (rows,)."""
        counts, met = np.zeros(self.rows, np.int64), int(self.times.sum())
        counts[self._scattered(np.arange(met))] = np.repeat(self.lookups, self.times)
        return counts

    def ids(self, examples: int, draw: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Ids of some examples and how many each has, int64 (n,) and (examples,): Poisson many, by the rows' shares."""
        lengths = draw.poisson(self.ids_per_row, examples)
        shares = self.lookups * self.times
        classes = draw.choice(len(shares), int(lengths.sum()), p=shares / shares.sum())
        first = np.cumsum(self.times) - self.times
        return self._scattered(first[classes] + draw.integers(0, self.times[classes])), lengths

    def _scattered(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows at these places of an order in which the rows of one number of look-ups are neighbours: hot rows lie
        anywhere in the table."""
        step = next(s for s in range(int(0.618 * self.rows) | 1, 2 * self.rows + 2) if math.gcd(s, self.rows) == 1)
        return (places * step + self.number) % self.rows


def statistics(tables: Sequence[PoolTable]) -> DatasetStatistics:
    """What preparation would have counted in those 65,536 examples."""
    counts = {table.name: TableStatistics(table.name, table.rows, table.accesses()) for table in tables}
    return DatasetStatistics({"train": EXAMPLES}, {}, tables=counts)


@cache
def table_pool(seed: int = 0, tables: int = TABLES, spread: float = 1.0, skew: float = 0.25) -> tuple[PoolTable, ...]:
    """The pool; the same arguments give the same.

    Args:
        seed: of sizes, skews and dims.
        tables: how many; of fewer than 856, the sums shrink in proportion.
        spread: standard deviation of the tables' log sizes.
        skew: standard deviation of θ.
    """
    draw = np.random.default_rng(seed)
    bins = np.arange(len(LOOKUP_SHARES))
    means = _means()
    lookups = np.concatenate([_support(k) for k in bins])
    totals = np.array(LOOKUP_SHARES) * LOOKUPS / means * tables / TABLES
    shares = np.exp(draw.normal(0, spread, (tables, 1)) + draw.normal(0, skew, (tables, 1)) * bins)
    wanted = totals * shares / shares.sum(0)
    numbers = np.floor(wanted + draw.random(wanted.shape)).astype(np.int64)
    dims, unseen = draw.choice(DIMS, tables), draw.uniform(0, 1, tables)
    found: list[PoolTable] = []
    for number in range(tables):
        times = np.concatenate([draw.multinomial(numbers[number, k], _distribution(k, means[k])) for k in bins])
        rows, met = max(int(times.sum() * (1 + unseen[number])), 1), times > 0
        found.append(PoolTable(number, rows, int(dims[number]), lookups[met], times[met]))
    return tuple(found)


def halves(pool: Sequence[PoolTable], seed: int = 0) -> tuple[tuple[PoolTable, ...], tuple[PoolTable, ...]]:
    """(tables to learn from, tables to test on): each table is in one of them."""
    order = np.random.default_rng(seed).permutation(len(pool))
    middle = len(pool) // 2
    return tuple(pool[i] for i in sorted(order[:middle])), tuple(pool[i] for i in sorted(order[middle:]))


def bounds(k: int) -> tuple[int, int]:
    """The fewest and the most look-ups of a row in bin ``k``."""
    last = len(LOOKUP_SHARES) - 1
    return 2 ** (k - 1) + 1 if k else 1, MOST_REUSED if k == last else 2**k


def _means() -> npt.NDArray[np.float64]:
    """Mean look-ups of a row in each bin: the published look-ups over rows where both have digits enough, else the
    mean of numbers that are as often in each doubling, 1.44 times the lower bound."""
    means: list[float] = []
    for k, lookups in enumerate(LOOKUP_SHARES):
        rows = ROW_SHARES[k] if k < len(ROW_SHARES) else 0.0
        low, high = bounds(k)
        told = lookups * LOOKUPS / (rows * TOUCHED_ROWS) if rows >= _WELL_ROUNDED else 1.44 * low
        means.append(min(max(told, low), high))
    return np.array(means)


@cache
def _support(k: int) -> npt.NDArray[np.int64]:
    """Numbers of look-ups in bin ``k``: all, or some evenly spaced on a log scale."""
    return np.unique(np.geomspace(*bounds(k), SUPPORT).round().astype(np.int64))


@cache
def _distribution(k: int, mean: float) -> npt.NDArray[np.float64]:
    """The probability of each number of look-ups c in bin ``k``: ∝ c^τ, with the τ that gives the mean."""
    counts = _support(k)
    low = counts[0]
    if len(counts) == 1:
        return np.ones(1)

    def weights(exponent: float) -> npt.NDArray[np.float64]:
        raw = (counts / low) ** exponent
        return raw / raw.sum()

    from scipy.optimize import brentq  # as slow to import as much else, and seldom needed

    exponent = cast("float", brentq(lambda e: float(weights(e) @ counts) - mean, -40, 40))
    return weights(exponent)
