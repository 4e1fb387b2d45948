"""Classifies the ids of a batch: the distinct rows, and how many of them each rank holds.

Shape legend: L ids of a batch, U distinct ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ziggurat.core.plan import Placement
from ziggurat.core.tables import TableSpec
from ziggurat.parallel.world import World


@dataclass(frozen=True, slots=True)
class TierParts:
    """How the rows of one tier are cut into ranges of equal length, the last ones shorter or empty.

    Attributes:
        first: the position of its first row.
        size: the number of its rows.
        parts: the number of ranges.
    """

    first: int
    size: int
    parts: int

    @property
    def length(self) -> int:
        """Rows of a range."""
        return -(-self.size // self.parts)

    def start(self, part: int) -> int:
        """Returns the position of a range's first row."""
        return self.first + min(part * self.length, self.size)

    def count(self, part: int) -> int:
        """Returns the number of a range's rows."""
        return self.start(part + 1) - self.start(part)


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The distinct rows of a batch's ids in one table, by position.

    Attributes:
        positions_U: the positions, ascending: those of the first tier, then those of the second and third.
        inverse_L: for each id, which of them it is.
        copied: how many of them are in each of the L ranges of the first tier.
        hosts: in each of the L ranges of the second.
        split: in each of the G ranges of the third.
    """

    positions_U: Tensor
    inverse_L: Tensor
    copied: list[int]
    hosts: list[int]
    split: list[int]

    @property
    def by_tier(self) -> list[int]:
        """The number of distinct rows in each tier."""
        return [sum(self.copied), sum(self.hosts), sum(self.split)]

    def lookups(self) -> list[int]:
        """Returns the number of ids in each tier."""
        first, second, _ = accumulate(self.by_tier)
        below = [int(torch.count_nonzero(self.inverse_L < place)) for place in (first, second)]
        return [below[0], below[1] - below[0], len(self.inverse_L) - below[1]]


class TierBounds:
    """The positions at which the tiers of a table, and their ranges, begin.

    Attributes:
        copied, hosts, split: the ranges of the three tiers; those of the first are the rows whose gradients each rank
            of a host sums.
    """

    def __init__(self, spec: TableSpec, placement: Placement, world: World, device: torch.device) -> None:
        copied, hosts, split = placement.tiers(spec.rows)
        self.copied = TierParts(copied.first, copied.size, world.local_size)
        self.hosts = TierParts(hosts.first, hosts.size, world.local_size)
        self.split = TierParts(split.first, split.size, world.size)
        edges = [tier.start(part) for tier in (self.copied, self.hosts, self.split) for part in range(tier.parts)]
        self._edges = torch.tensor([*edges, spec.rows], device=device)
        self._parts = [world.local_size, world.local_size, world.size]

    def distinct(self, positions_L: Tensor) -> DistinctRows:
        """Returns the distinct rows of a batch's ids."""
        positions_U, inverse_L = torch.unique(positions_L, return_inverse=True)
        counts = torch.searchsorted(positions_U, self._edges).diff().tolist()
        local = self._parts[0]
        return DistinctRows(positions_U, inverse_L, counts[:local], counts[local : 2 * local], counts[2 * local :])
