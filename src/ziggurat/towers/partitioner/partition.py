"""Divides features among towers by their affinity: a map of the features, then k-means with balanced clusters on it.

Shape legend: F features, U units (features that must stay together), T towers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.towers.partitioner.balance import Balance
from ziggurat.towers.partitioner.balanced_kmeans import balanced_kmeans
from ziggurat.towers.partitioner.coordinates import coordinates

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

STARTS = 8
"""Maps that are drawn, each from a random start of its own; the best partition of any of them is chosen."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Features divided among towers.

    Attributes:
        features: the names of the F features.
        tower_F: the tower of each.
        loads_F: the load of each: floats looked up for an example.
        affinity_FF: how much any two interact, between 0 and 1.
        places_F2: their places on the map.
        map_error: the root of the mean squared difference between distances on the map and those it was drawn from.
        diverse: whether towers hold the features that interact least.
    """

    features: tuple[str, ...]
    tower_F: tuple[int, ...]
    loads_F: tuple[float, ...]
    affinity_FF: Floats
    places_F2: Floats
    map_error: float
    diverse: bool

    @property
    def towers(self) -> tuple[tuple[str, ...], ...]:
        """The features of each tower."""
        return tuple(
            tuple(name for name, own in zip(self.features, self.tower_F, strict=True) if own == tower)
            for tower in range(max(self.tower_F) + 1)
        )

    @property
    def loads(self) -> tuple[float, ...]:
        """The load of each tower: floats looked up for an example."""
        return tuple(np.bincount(self.tower_F, self.loads_F).tolist())

    @property
    def load_ratio(self) -> float:
        """The load of the most loaded tower, as a multiple of the mean."""
        return max(self.loads) / (sum(self.loads) / len(self.loads))

    @property
    def affinities(self) -> tuple[float, float]:
        """The mean affinity of two features of one tower, and of two features of different towers; nan without any."""
        tower_F = np.asarray(self.tower_F)
        pairs = np.triu(np.ones_like(self.affinity_FF, dtype=bool), 1)
        together = tower_F[:, None] == tower_F[None]
        return tuple(  # pyright: ignore[reportReturnType] - of length 2
            float(self.affinity_FF[which].mean()) if which.any() else float("nan")
            for which in (pairs & together, pairs & ~together)
        )


def partition_features(
    features: Sequence[str],
    affinity_FF: Floats,
    units: Sequence[Sequence[int]],
    loads_F: Sequence[float],
    towers: int,
    *,
    diverse: bool = False,
    seed: int = 0,
) -> Partition:
    """Divides features among towers of equal size, whose loads are at most 1.1 times the mean where that is possible.

    Distances are D = 1 − affinity, or D = affinity for diverse towers. Several maps are drawn of them in the plane
    (:func:`~ziggurat.towers.partitioner.coordinates.coordinates`), and k-means with balanced clusters divides each.
    The plane cannot hold all distances: five features cannot be equally far from one another. Each division is
    therefore improved by swaps that lower the sum of D over all pairs of features in a tower, and the one with the
    lowest sum is returned. The paper has one map and no swaps.

    Source: Luo et al., "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.3.

    Args:
        features: the names.
        affinity_FF: how much any two features interact, symmetric, between 0 and 1.
        units: the numbers of the features that must stay together; each feature is in one of the units.
        loads_F: the load of each feature; where all are 0, towers are balanced by their sizes alone.
        towers: T, at most the number of units.
        diverse: whether to put together the features that interact least.
        seed: decides the maps and the first centres; equal arguments give equal towers.
    """
    assert towers <= len(units), (towers, len(units))
    distances_FF = affinity_FF.copy() if diverse else 1 - affinity_FF
    np.fill_diagonal(distances_FF, 0.0)
    member_UF = np.zeros((len(units), len(features)))
    for number, unit in enumerate(units):
        member_UF[number, list(unit)] = 1
    sizes_U = member_UF.sum(1).astype(np.int64)
    loads_U = member_UF @ np.asarray(loads_F, dtype=np.float64)
    balance = Balance(towers, sizes_U, loads_U if loads_U.sum() > 0 else sizes_U.astype(np.float64))
    pairs_UU = member_UF @ distances_FF @ member_UF.T
    np.fill_diagonal(pairs_UU, 0.0)
    pairs_UU /= max(float(pairs_UU.sum()) / 2, 1e-12)
    maps_SF2, errors_S = coordinates(distances_FF, STARTS, seed)
    found: list[tuple[float, int, Integers]] = []
    for start, map_F2 in enumerate(maps_SF2):
        places_U2 = member_UF @ map_F2 / sizes_U[:, None]
        tower_U = balanced_kmeans(places_U2, balance, seed + start)
        tower_U = balance.improve(tower_U, np.zeros((len(units), towers)), pairs_UU)
        found.append((balance.cost(tower_U, pairs_UU), start, tower_U))
    _, start, tower_U = min(found, key=lambda each: each[:2])
    tower_F = _numbered((member_UF.T @ tower_U).astype(np.int64))
    return Partition(
        tuple(features),
        tuple(tower_F.tolist()),
        tuple(float(load) for load in loads_F),
        affinity_FF,
        maps_SF2[start],
        float(errors_S[start]),
        diverse,
    )


def _numbered(tower_F: Integers) -> Integers:
    """Renumbers towers in the order of their first features."""
    _, first_T, inverse_F = np.unique(tower_F, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_T))[inverse_F]
