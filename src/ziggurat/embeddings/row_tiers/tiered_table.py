"""The rows of one table in three tiers, on this rank.

The first two tiers are plain tensors, updated with gradients that were summed over the ranks. The third is an ordinary
row-wise table of TorchRec: its optimizer is fused into its backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from ziggurat.core.plan import Placement, Plan
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.dirty_rows import TrackedShard
from ziggurat.embeddings.row_table import UpdatedRows
from ziggurat.embeddings.row_tiers.distinct_rows import TierBounds
from ziggurat.embeddings.sharding import ShardedTables
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World


class TieredTable(nn.Module):
    """One table. All ranks make it together; weights of the third tier are left uninitialised, the others are 0.

    Attributes:
        spec: the whole table.
        bounds: where the tiers and their ranges begin.
        copied: the rows that every rank holds.
        hosts: this rank's range of the rows that every host holds.
        split: this rank's range of the others; None if there are none.
    """

    def __init__(self, spec: TableSpec, plan: Plan, world: World, device: torch.device) -> None:
        super().__init__()
        self.spec, placement = spec, plan.placements[spec.name]
        self.bounds = TierBounds(spec, placement, world, device)
        self._local, self._rank = world.rank % world.local_size, world.rank
        self.copied = UpdatedRows(spec, torch.zeros(self.bounds.copied.size, spec.dim, device=device))
        self.hosts = UpdatedRows(spec, torch.zeros(self.bounds.hosts.count(self._local), spec.dim, device=device))
        self.split: ShardedTables | None = None
        if self.bounds.split.size:
            third = replace(
                spec, rows=self.bounds.split.size, features=(spec.name,), pooling="sum", positions={}, vectors=1
            )
            alone = Plan(plan.world_size, {spec.name: Placement("row_wise", placement.ranks)}, plan.local_size)
            self.split = ShardedTables([third], alone, device, ParallelConfig(), 1)

    def split_rows(self, positions_N: Tensor) -> Tensor:
        """Returns rows of this rank's range of the third tier (N, D), with the graph that updates them."""
        assert self.split is not None
        return self.split.own_rows(positions_N - self.bounds.split.start(self._rank))

    def host_places(self, positions_N: Tensor) -> Tensor:
        """Returns the places in :attr:`hosts` of these rows."""
        return positions_N - self.bounds.hosts.start(self._local)

    def tensor_slices(self) -> Iterator[TensorSlice]:
        """Yields the weights on this rank."""
        for shard in self.shards():
            yield shard.weight

    def state_slices(self) -> Iterator[TensorSlice]:
        """Yields the optimizer states on this rank, named ``table/state``."""
        for shard in self.shards():
            yield from shard.states.values()

    def shards(self) -> Iterator[TrackedShard]:
        """Yields the shards with rows on this rank; a shard that several ranks hold has the same place on all."""
        hosts = self.bounds.hosts.start(self._local)
        for rows, first in ((self.copied, 0), (self.hosts, hosts)):
            if len(rows.weight_RD):
                yield TrackedShard.of(self.spec, (first, 0), rows.dirty)
        for shard in self.split.shards() if self.split is not None else ():
            yield self._in_whole_table(shard)

    def scale_learning_rates(self, multiplier: float) -> None:
        """Sets the learning rate to ``multiplier`` times its configured one."""
        for rows in (self.copied, self.hosts):
            rows.lr = float(self.spec.optimizer["lr"]) * multiplier
        if self.split is not None:
            self.split.scale_learning_rates(multiplier)

    def _in_whole_table(self, shard: TrackedShard) -> TrackedShard:
        """Converts a shard of the third tier, whose rows are counted from the first of that tier."""

        def moved(part: TensorSlice) -> TensorSlice:
            first = (part.first[0] + self.bounds.split.first, *part.first[1:])
            return replace(part, shape=(self.spec.rows, *part.shape[1:]), first=first)

        states = {name: moved(state) for name, state in shard.states.items()}
        return replace(shard, spec=self.spec, weight=moved(shard.weight), states=states)
