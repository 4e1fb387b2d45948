"""Improves an assignment of units to towers by moves and swaps, under limits on the size and the load of a tower.

A *unit* is one feature, or several that must stay together because they share a table.

Shape legend: U units, T towers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LOAD_LIMIT = 1.1
"""The greatest load of a tower, as a multiple of the mean, that is not avoided at the expense of what is minimised."""

_SIZE_WEIGHT, _LOAD_WEIGHT = 1e6, 1e3
"""Weights of a feature too many or too few, and of load beyond the limit, against costs that are at most 1."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The limits on towers.

    Attributes:
        towers: T.
        sizes_U: features of each unit.
        loads_U: load of each unit; at least one is above 0.
    """

    towers: int
    sizes_U: Integers
    loads_U: Floats

    def load_ratio(self, tower_U: Integers) -> float:
        """Returns the load of the most loaded tower as a multiple of the mean."""
        loads_T = self._sums(tower_U, self.loads_U)
        return float(loads_T.max() / loads_T.mean())

    def penalty(self, sizes_T: Integers, loads_T: Floats) -> float:
        """Returns what the towers' sizes and loads count: 0 if every size is the mean, rounded down or up, and no load
        is above the limit.

        Every tower above the limit counts: were it the greatest load alone, no single change would lower it where two
        towers have it.
        """
        return float(_SIZE_WEIGHT * self._size_faults(sizes_T).sum() + _LOAD_WEIGHT * self._excess(loads_T).sum())

    def cost(self, tower_U: Integers, pairs_UU: Floats) -> float:
        """Returns the penalty, plus the sum of ``pairs_UU`` over all pairs of units in one tower."""
        sizes_T = self._sums(tower_U, self.sizes_U).astype(np.int64)
        loads_T = self._sums(tower_U, self.loads_U)
        together_UU = tower_U[:, None] == tower_U[None]
        return self.penalty(sizes_T, loads_T) + float(pairs_UU[together_UU].sum()) / 2

    def improve(self, tower_U: Integers, cost_UT: Floats, pairs_UU: Floats | None = None) -> Integers:
        """Returns the assignment after the moves and swaps that lower penalty plus cost most, until none does.

        Args:
            tower_U: the assignment to begin with.
            cost_UT: the cost of each unit in each tower.
            pairs_UU: costs of two units in one tower, symmetric with 0 on the diagonal; they replace ``cost_UT``.
        """
        tower_U = tower_U.copy()
        for _ in range(20 * len(tower_U)):
            if pairs_UU is not None:
                cost_UT = pairs_UU @ np.eye(self.towers)[tower_U]
            found = self._best_change(tower_U, cost_UT, pairs_UU)
            if found is None:
                break
            for unit, tower in found:
                tower_U[unit] = tower
        return tower_U

    def _sums(self, tower_U: Integers, values_U: Floats | Integers) -> Floats:
        """Returns the sum of values over the units of each tower."""
        return np.bincount(tower_U, values_U, self.towers).astype(np.float64)

    @property
    def _mean_load(self) -> float:
        return float(self.loads_U.sum()) / self.towers

    def _excess(self, loads: Floats) -> Floats:
        """Returns by how much of the mean each load is above the limit."""
        return np.maximum(0.0, loads / self._mean_load - LOAD_LIMIT)

    def _size_faults(self, sizes: Integers) -> Integers:
        least, rest = divmod(int(self.sizes_U.sum()), self.towers)
        return np.maximum(0, least - sizes) + np.maximum(0, sizes - least - (rest > 0))

    def _best_change(self, tower_U: Integers, cost_UT: Floats, pairs_UU: Floats | None) -> list[tuple[int, int]] | None:
        """Returns (unit, its new tower) of the best move or swap; None if none lowers penalty plus cost."""
        sizes_T = self._sums(tower_U, self.sizes_U).astype(np.int64)
        loads_T = self._sums(tower_U, self.loads_U)
        now = self.penalty(sizes_T, loads_T)
        best, change = -1e-9, None
        for one in range(self.towers):
            for other in range(self.towers):
                if one == other:
                    continue
                mine = np.flatnonzero(tower_U == one)
                theirs = np.flatnonzero(tower_U == other)
                rest_load = float(self._excess(np.delete(loads_T, [one, other])).sum())
                rest_size = int(self._size_faults(np.delete(sizes_T, [one, other])).sum())
                moved_M = cost_UT[mine, other] - cost_UT[mine, one]
                size_M, load_M = self.sizes_U[mine], self.loads_U[mine]
                deltas_M = moved_M + self._penalties(
                    sizes_T[one] - size_M, sizes_T[other] + size_M, loads_T[one] - load_M, loads_T[other] + load_M,
                    rest_size, rest_load,
                ) - now  # fmt: skip
                if len(mine) and deltas_M.min() < best:
                    at = int(deltas_M.argmin())
                    best, change = float(deltas_M[at]), [(int(mine[at]), other)]
                if other < one or not (len(mine) and len(theirs)):
                    continue
                back_N = cost_UT[theirs, one] - cost_UT[theirs, other]
                size_MN = size_M[:, None] - self.sizes_U[theirs][None]
                load_MN = load_M[:, None] - self.loads_U[theirs][None]
                deltas_MN = moved_M[:, None] + back_N[None] + self._penalties(
                    sizes_T[one] - size_MN, sizes_T[other] + size_MN, loads_T[one] - load_MN,
                    loads_T[other] + load_MN, rest_size, rest_load,
                ) - now  # fmt: skip
                if pairs_UU is not None:
                    deltas_MN -= 2 * pairs_UU[np.ix_(mine, theirs)]
                if deltas_MN.min() < best:
                    first, second = np.unravel_index(int(deltas_MN.argmin()), deltas_MN.shape)
                    best = float(deltas_MN[first, second])
                    change = [(int(mine[first]), other), (int(theirs[second]), one)]
        return change

    def _penalties(
        self,
        size_one: Integers,
        size_other: Integers,
        load_one: Floats,
        load_other: Floats,
        rest_size: int,
        rest_load: float,
    ) -> Floats:
        """Returns the penalties if two towers had these sizes and loads, and the others count what they count."""
        size = self._size_faults(size_one) + self._size_faults(size_other) + rest_size
        load = self._excess(load_one) + self._excess(load_other) + rest_load
        return _SIZE_WEIGHT * size + _LOAD_WEIGHT * load
