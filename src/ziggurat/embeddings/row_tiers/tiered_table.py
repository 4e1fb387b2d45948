"""The rows of one table in three tiers, on this rank.

The first two tiers are plain tensors, updated with gradients that were summed over the ranks. The third is an ordinary
row-wise table of TorchRec: its optimizer is fused into its backward pass. If memory cannot hold its rows, the kernel
holds slots, and they are on a disk (:mod:`ziggurat.embeddings.offload`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from ziggurat.core.plan import Placement, Plan
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.dirty_rows import TrackedShard
from ziggurat.embeddings.offload import AnnouncedBatch, OffloadedTables, OffloadFolder, RowIds
from ziggurat.embeddings.row_table import UpdatedRows
from ziggurat.embeddings.row_tiers.distinct_rows import TierBounds
from ziggurat.embeddings.sharding import ShardedTables
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World


class TieredTable(nn.Module):
    """One table. All ranks make it together; weights of the third tier are left uninitialised, the others are 0.

    Args:
        spec: the whole table.
        plan: its placement.
        world: the ranks.
        device: the device of this rank.
        row_ids: returns the ids of the rows at some positions of the table.
        offload: the folder for rows of the third tier, if the plan gives it slots.
        seed: the seed of their initial weights.

    Attributes:
        spec: the whole table.
        bounds: where the tiers and their ranges begin.
        copied: the rows that every rank holds.
        hosts: this rank's range of the rows that every host holds.
        split: this rank's range of the others; None if there are none.
    """

    def __init__(
        self,
        spec: TableSpec,
        plan: Plan,
        world: World,
        device: torch.device,
        row_ids: RowIds,
        offload: OffloadFolder | None = None,
        seed: int = 0,
    ) -> None:
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
            apart = Placement("row_wise", placement.ranks, slots=placement.slots)
            alone = Plan(plan.world_size, {spec.name: apart}, plan.local_size)
            ids = {spec.name: lambda first, size: row_ids(self.bounds.split.first + first, size)}
            self.split = ShardedTables([third], alone, device, ParallelConfig(), 1, offload, seed, row_ids=ids)

    @property
    def offloaded(self) -> OffloadedTables | None:
        """The rows of the third tier on a disk; None if all are in memory."""
        return None if self.split is None else self.split.offloaded

    def announce(self, positions_N: Tensor) -> AnnouncedBatch | None:
        """Announces a batch's rows of this rank's range of the third tier, which :meth:`split_rows` is to return.

        Returns:
            The announcement; None if all rows are in memory.
        """
        if self.split is None or self.offloaded is None:
            return None
        ids = self.split.own_ids(positions_N - self.bounds.split.start(self._rank))
        return self.offloaded.announce([ids], updates=torch.is_grad_enabled())

    def split_rows(self, positions_N: Tensor, announced: AnnouncedBatch | None = None) -> Tensor:
        """Returns rows of this rank's range of the third tier (N, D), with the graph that updates them."""
        assert self.split is not None
        if announced is None:
            return self.split.own_rows(self.split.own_ids(positions_N - self.bounds.split.start(self._rank)))
        assert self.offloaded is not None
        (slots,) = self.offloaded.slot_ids(announced)
        rows_ND = self.split.own_rows(slots)
        if not announced.updates:
            self.split.release()
        return rows_ND

    def release(self) -> None:
        """Releases the slots of offloaded rows, once they have been updated or will not be."""
        if self.split is not None:
            self.split.release()

    def drop(self, announced: AnnouncedBatch | None) -> None:
        """Withdraws the rows of a batch that will not be looked up."""
        if announced is not None and self.offloaded is not None:
            self.offloaded.drop(announced)

    def close(self) -> None:
        """Deletes the rows on a disk."""
        if self.split is not None:
            self.split.close()

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
