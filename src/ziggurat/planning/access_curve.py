"""How a table is looked up whose rows are ordered by falling frequency: its inverse CDF, and the look-ups of any range.

Rows that are looked up equally often are neighbours and form a *run*. Within a run every cumulated figure grows
linearly with the rows, so the figures at the ends of runs, interpolated linearly, are exact. A table of 10^8 rows has
about a thousand runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ziggurat.core.plan import Span
from ziggurat.core.row_order import accesses_by_position
from ziggurat.planning.usage import Usage, touch_probability

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AccessCurve:
    """The same as :class:`~ziggurat.planning.usage.Usage`, for rows in the order that :mod:`~ziggurat.core.row_order`
    puts them in.

    Attributes:
        ids_per_row: ids looked up for one example.
        rows: number of rows of the table.
        sizes: rows of each run, in order, float64 (N,).
        shares: share of all look-ups that one row of each run gets, (N,).
    """

    ids_per_row: float
    rows: int
    sizes: Floats
    shares: Floats
    _cumulated: dict[float | None, tuple[Floats, Floats]] = field(
        default_factory=dict[float | None, tuple[Floats, Floats]], repr=False, compare=False
    )

    @classmethod
    def of(cls, usage: Usage, parts: int = 1) -> AccessCurve:
        """Returns the curve of a table cut into ``parts`` ranges of rows; without statistics, all rows are one run."""
        if usage.accesses is None:
            return cls(usage.ids_per_row, usage.rows, np.array([float(usage.rows)]), np.array([1 / usage.rows]))
        return cls.of_places(usage.ids_per_row, accesses_by_position(usage.accesses, parts))

    @classmethod
    def of_places(cls, ids_per_row: float, accesses: npt.NDArray[np.int64]) -> AccessCurve:
        """Returns the curve of rows in any order.

        Args:
            ids_per_row: ids looked up for one example.
            accesses: look-ups of the row at each place, (rows,); not all of them 0.
        """
        firsts = np.flatnonzero(np.diff(accesses, prepend=-1))
        sizes = np.diff(firsts, append=len(accesses)).astype(np.float64)
        return cls(ids_per_row, len(accesses), sizes, accesses[firsts] / int(accesses.sum()))

    def share(self, rows: Span) -> float:
        """Returns the share of all look-ups that fall within ``rows``."""
        return self._within(rows, None)

    def distinct(self, ids: float, rows: Span) -> float:
        """Returns the expected number of distinct rows within ``rows`` among ``ids`` look-ups of the whole table."""
        return self._within(rows, ids)

    def least_rows(self, share: float) -> int:
        """Returns the fewest rows that get this share of all look-ups: the inverse CDF of a table in one range."""
        ends, served = self._sums(None)
        at = int(np.searchsorted(served, share * served[-1] * (1 - 1e-12)))
        if at == 0:
            return 0
        missing = share * served[-1] - served[at - 1]
        each = self.shares[at - 1]
        more = int(np.ceil(missing / each * (1 - 1e-9))) if each else 0
        return int(ends[at - 1]) + min(more, int(self.sizes[at - 1]))

    def _within(self, rows: Span, ids: float | None) -> float:
        ends, sums = self._sums(ids)
        first, last = np.interp([rows.first, rows.first + rows.size], ends, sums)
        return float(last - first)

    def _sums(self, ids: float | None) -> tuple[Floats, Floats]:
        """Returns the ends of the runs and a cumulated figure up to each, both starting at 0.

        The figure is the share of look-ups where ``ids`` is None, else the expected distinct rows of ``ids`` look-ups.
        """
        if ids not in self._cumulated:
            each = self.shares if ids is None else touch_probability(self.shares, ids)
            cumulated = (np.cumsum(values) for values in (self.sizes, self.sizes * each))
            ends, sums = (np.concatenate([[0.0], values]) for values in cumulated)
            self._cumulated[ids] = ends, sums
        return self._cumulated[ids]
