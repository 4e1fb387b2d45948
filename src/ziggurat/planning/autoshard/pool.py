"""A pool of synthetic tables whose rows are reused as often as those of published production-like tables.

The published figures describe 856 tables and one batch of 65,536 examples (facebookresearch/dlrm_datasets, 2021): the
number of distinct rows looked up and of look-ups, in bins by look-ups of a row: (0, 1], (1, 2], (2, 4], …
(16384, 32768] and above. They are sums over all tables. Here each table gets its own size and skew such that the sums
equal the published ones:

    rows of table j in bin k = N_k · s_j · exp(θ_j·k) / Σ_i s_i · exp(θ_i·k)

with N_k the published number, s_j log-normal and θ_j normal. The number of rows that the batch does not look up, the
dims, and the positions of the hot rows in a table are not published; they are drawn.
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
"""Distinct rows that the batch looks up, over all tables."""
LOOKUP_SHARES = (
    *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023),
    0.019,
)
"""Shares of all look-ups by how often the batch looks up the row: once, twice, up to 4, up to 8, …, above 32,768."""
ROW_SHARES = (0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001)
"""Shares of the distinct rows in the same bins; the further bins are .000 to three digits."""
MAX_LOOKUPS_PER_ROW = 131_072
"""The most look-ups of one row; the published bins end at "above 32,768"."""
SUPPORT = 64
"""The most distinct numbers of look-ups in a bin."""
DIMS = (4, 8, 16, 32, 64, 128)

_MIN_PRECISE_SHARE = 0.005
"""The least published share of rows that is precise enough to compute a bin's mean from."""


@dataclass(frozen=True, slots=True)
class PoolTable:
    """A table of the pool.

    Attributes:
        number: the table's number in the pool, which also names it.
        rows, dim: rows and columns of the table.
        lookups, times: ``times[i]`` rows are each looked up ``lookups[i]`` times in 65,536 examples, int64 (n,) each;
            the other rows are never looked up.
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
        """Bytes of the float32 weights."""
        return 4 * self.rows * self.dim

    def spec(self, optimizer: str) -> TableSpec:
        """Returns the table's spec; one feature, named like the table, looks it up."""
        return TableSpec(self.name, self.rows, self.dim, (self.name,), "sum", {"name": optimizer, "lr": 0.01}, 0.01)

    @property
    def ids_per_row(self) -> float:
        """Mean pooling factor."""
        return int(self.lookups @ self.times) / EXAMPLES

    def feature_vector(self, columns: int, examples: int, optimizer: str, rows: Span | None = None) -> Floats:
        """Returns the cost network's features of the table, or of a part of it, (FEATURES,).

        Args:
            columns: number of columns of the part.
            examples: examples of a step.
            optimizer: name of the table's optimizer.
            rows: range of rows of the part; None for all.
        """
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
        """Returns the look-ups of each row in 65,536 examples, int64 (rows,)."""
        counts, used_rows = np.zeros(self.rows, np.int64), int(self.times.sum())
        counts[self._permuted(np.arange(used_rows))] = np.repeat(self.lookups, self.times)
        return counts

    def ids(self, examples: int, draw: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draws ids of some examples, and how many each example has, int64 (n,) and (examples,).

        The number of ids is Poisson distributed; ids are drawn by the rows' shares of the look-ups.
        """
        lengths = draw.poisson(self.ids_per_row, examples)
        shares = self.lookups * self.times
        classes = draw.choice(len(shares), int(lengths.sum()), p=shares / shares.sum())
        first = np.cumsum(self.times) - self.times
        return self._permuted(first[classes] + draw.integers(0, self.times[classes])), lengths

    def _permuted(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Maps places, in an order where rows with equally many look-ups are neighbours, to rows of the table.

        It is a permutation that spreads hot rows over the whole table.
        """
        step = next(s for s in range(int(0.618 * self.rows) | 1, 2 * self.rows + 2) if math.gcd(s, self.rows) == 1)
        return (places * step + self.number) % self.rows


def statistics(tables: Sequence[PoolTable]) -> DatasetStatistics:
    """Returns the statistics that preparation would have counted in the 65,536 examples."""
    counts = {table.name: TableStatistics(table.name, table.rows, table.accesses()) for table in tables}
    return DatasetStatistics({"train": EXAMPLES}, {}, tables=counts)


@cache
def table_pool(seed: int = 0, tables: int = TABLES, spread: float = 1.0, skew: float = 0.25) -> tuple[PoolTable, ...]:
    """Returns the pool; the same arguments give the same pool.

    Args:
        seed: seed for sizes, skews and dims.
        tables: number of tables; with fewer than 856, the sums shrink in proportion.
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
        rows, occurring = max(int(times.sum() * (1 + unseen[number])), 1), times > 0
        found.append(PoolTable(number, rows, int(dims[number]), lookups[occurring], times[occurring]))
    return tuple(found)


def train_test_halves(pool: Sequence[PoolTable], seed: int = 0) -> tuple[tuple[PoolTable, ...], tuple[PoolTable, ...]]:
    """Returns (tables to train on, tables to test on): two disjoint halves of the pool."""
    order = np.random.default_rng(seed).permutation(len(pool))
    middle = len(pool) // 2
    return tuple(pool[i] for i in sorted(order[:middle])), tuple(pool[i] for i in sorted(order[middle:]))


def bounds(k: int) -> tuple[int, int]:
    """Returns the fewest and the most look-ups of a row in bin ``k``."""
    last = len(LOOKUP_SHARES) - 1
    return 2 ** (k - 1) + 1 if k else 1, MAX_LOOKUPS_PER_ROW if k == last else 2**k


def _means() -> npt.NDArray[np.float64]:
    """Returns the mean look-ups of a row in each bin.

    This is the published look-ups divided by rows if the share of rows is precise enough, else 1.44 times the lower
    bound: the mean of a distribution that is uniform on a log scale.
    """
    means: list[float] = []
    for k, lookups in enumerate(LOOKUP_SHARES):
        rows = ROW_SHARES[k] if k < len(ROW_SHARES) else 0.0
        low, high = bounds(k)
        mean = lookups * LOOKUPS / (rows * TOUCHED_ROWS) if rows >= _MIN_PRECISE_SHARE else 1.44 * low
        means.append(min(max(mean, low), high))
    return np.array(means)


@cache
def _support(k: int) -> npt.NDArray[np.int64]:
    """Returns the numbers of look-ups in bin ``k``: all of them, or some spaced evenly on a log scale."""
    return np.unique(np.geomspace(*bounds(k), SUPPORT).round().astype(np.int64))


@cache
def _distribution(k: int, mean: float) -> npt.NDArray[np.float64]:
    """Returns the probability of each number of look-ups c in bin ``k``: ∝ c^τ, with the τ that gives the mean."""
    counts = _support(k)
    low = counts[0]
    if len(counts) == 1:
        return np.ones(1)

    def weights(exponent: float) -> npt.NDArray[np.float64]:
        raw = (counts / low) ** exponent
        return raw / raw.sum()

    from scipy.optimize import brentq  # slow to import and seldom needed

    exponent = cast("float", brentq(lambda e: float(weights(e) @ counts) - mean, -40, 40))
    return weights(exponent)
