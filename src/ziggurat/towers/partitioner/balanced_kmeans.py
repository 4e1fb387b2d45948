"""k-means whose clusters have equal sizes and loads.

Shape legend: U units, T towers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.towers.partitioner.balance import Balance

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ITERATIONS = 50


def balanced_kmeans(places_U2: Floats, balance: Balance, seed: int) -> Integers:
    """Returns the tower of each unit.

    Each iteration assigns units to the centres at the least sum of squared distances with equally many units a tower
    (an assignment problem, solved exactly), then moves and swaps units until sizes and loads are within their limits
    and no swap shortens the distances; then centres become means. It ends when nothing changes.

    Sources: Bradley et al., "Constrained k-means clustering", MSR-TR-2000-65; centres begin as in Arthur and
    Vassilvitskii, "k-means++", SODA 2007.

    Args:
        places_U2: the mean place of each unit's features.
        balance: the number of towers, and the limits.
        seed: decides the first centres.
    """
    centres_T2 = _first_centres(places_U2, balance.towers, np.random.default_rng(seed))
    tower_U: Integers | None = None
    for _ in range(ITERATIONS):
        squares_UT = ((places_U2[:, None] - centres_T2[None]) ** 2).sum(2)
        cost_UT = balance.sizes_U[:, None] * squares_UT
        cost_UT = cost_UT / max(float(cost_UT.max(1).sum()), 1e-12)
        found_U = balance.improve(_assigned(cost_UT), cost_UT)
        if tower_U is not None and (found_U == tower_U).all():
            break
        tower_U = found_U
        weight_UT = np.eye(balance.towers)[tower_U] * balance.sizes_U[:, None]
        centres_T2 = weight_UT.T @ places_U2 / np.maximum(weight_UT.sum(0), 1)[:, None]
    assert tower_U is not None
    return tower_U


def _assigned(cost_UT: Floats) -> Integers:
    """Returns the cheapest towers with at most ⌈U/T⌉ units each, and every tower in use."""
    from scipy.optimize import linear_sum_assignment  # slow to import and seldom needed

    units, towers = cost_UT.shape
    each, rest = divmod(units, towers)
    if not rest:
        columns = np.repeat(np.arange(towers), each)
        return columns[linear_sum_assignment(cost_UT[:, columns])[1]]
    # ⌈U/T⌉ places a tower; the last of each is filled by as many more units as there are, and no place before it stays
    # empty: a cost below all others draws units there.
    columns = np.repeat(np.arange(towers), each + 1)
    costs = cost_UT[:, columns] - 2 * (np.arange(len(columns)) % (each + 1) < each)
    return columns[linear_sum_assignment(costs)[1]]


def _first_centres(places_U2: Floats, towers: int, random: np.random.Generator) -> Floats:
    """Returns T places of units, each drawn in proportion to its squared distance from those before."""
    chosen = [int(random.integers(len(places_U2)))]
    while len(chosen) < towers:
        nearest_U = ((places_U2[:, None] - places_U2[chosen][None]) ** 2).sum(2).min(1)
        total = nearest_U.sum()
        left = [unit for unit in range(len(places_U2)) if unit not in chosen]
        chosen.append(int(random.choice(len(places_U2), p=nearest_U / total)) if total > 0 else left[0])
    return places_U2[chosen]
