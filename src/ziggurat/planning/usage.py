"""How a table is looked up, as counted by preparation: ids per example, their distribution over rows, distinct rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ziggurat.core.plan import Span
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Usage:
    """The look-ups of one table.

    Attributes:
        ids_per_row: ids looked up for one example, summed over all features of the table: its mean pooling factor.
        accesses: how often training looks up each row of the table, int64 (rows,); None without statistics, and then
            all rows are assumed to be looked up equally often.
        rows: number of rows of the table.
    """

    ids_per_row: float
    accesses: npt.NDArray[np.int64] | None
    rows: int
    _shares: dict[Span, float] = field(default_factory=dict[Span, float], repr=False, compare=False)
    _counts: dict[Span, tuple[Floats, Floats]] = field(
        default_factory=dict[Span, tuple[Floats, Floats]], repr=False, compare=False
    )

    @classmethod
    def of(cls, table: TableSpec, statistics: DatasetStatistics | None) -> Usage:
        """Returns the usage of ``table`` from the statistics; without them, one id for each of the table's keys."""
        if statistics is None or table.name not in statistics.tables or not statistics.rows.get("train"):
            return cls(float(len(table.keys)), None, table.rows)
        accesses = statistics.tables[table.name].accesses
        assert len(accesses) == table.rows, (table.name, len(accesses), table.rows)
        total = int(accesses.sum())
        return cls(total / statistics.rows["train"], accesses if total else None, table.rows)

    def share(self, rows: Span) -> float:
        """Returns the share of all look-ups that fall within ``rows``."""
        if self.accesses is None:
            return rows.size / self.rows
        if rows not in self._shares:
            self._shares[rows] = int(self.accesses[rows.slice].sum()) / int(self.accesses.sum())
        return self._shares[rows]

    def distinct(self, ids: float, rows: Span) -> float:
        """Returns the expected number of distinct rows within ``rows`` that ``ids`` look-ups of the whole table touch.

        It is Σ_r 1 − (1 − p_r)^ids, with p_r the row's share of all look-ups.
        """
        shares, times = self.counts(rows)
        return float(times @ touch_probability(shares, ids))

    def counts(self, rows: Span) -> tuple[Floats, Floats]:
        """Groups the rows within ``rows`` by how often they are looked up.

        Returns:
            For each group, one row's share of the table's look-ups, and the number of rows; (n,) each.
        """
        if self.accesses is None:
            return np.array([1 / self.rows]), np.array([float(rows.size)])
        if rows not in self._counts:
            counts, times = np.unique(self.accesses[rows.slice], return_counts=True)
            self._counts[rows] = counts / self.accesses.sum(), times.astype(np.float64)
        return self._counts[rows]


def touch_probability(shares: npt.NDArray[np.float64], ids: float) -> npt.NDArray[np.float64]:
    """Returns for each share of the look-ups the probability that such a row is among ``ids`` look-ups.

    It is 1 − (1 − share)^ids, computed so that it stays exact for tiny shares.
    """
    if ids == 0:
        return np.zeros(len(shares))
    with np.errstate(divide="ignore"):  # log(0), for a row that gets all look-ups
        return -np.expm1(ids * np.log1p(-shares))
