"""The look-up and the update of tables whose rows are in tiers.

A step de-duplicates the ids of each table and sorts them by position, which classifies them: the rows on every rank are
gathered here; those on every host are asked of the ranks of this host; the others of all ranks. Both exchanges run at
once, and rows are spread over the bags as soon as all are there. After the backward pass, the gradients of each
distinct row are summed and go the same ways back. Copied rows see the sum over all ranks before they are updated
(:mod:`~ziggurat.embeddings.row_tiers.copied_gradients`): row-wise Adagrad on each rank's own gradient, averaged
afterwards, would be another optimizer.

As for all tables, gradients are means over the ranks, whose losses are means over their own examples.

Source: FlexShard (row-level tiers for sequence tables). Deviations: copied rows are exchanged as touched rows with
flags instead of as an all-reduce of all; ranges of the tiers are dealt round-robin by frequency.

Shape legend: B examples, L ids, U distinct ids, N bags, D dim, T tables, G ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.errors import ZigguratError
from ziggurat.core.plan import Plan
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.dirty_rows import TrackedShard
from ziggurat.embeddings.offload import AnnouncedBatch, OffloadedTables, OffloadFolder
from ziggurat.embeddings.row_order import RowOrder
from ziggurat.embeddings.row_tiers.copied_gradients import CopiedGradients
from ziggurat.embeddings.row_tiers.distinct_rows import DistinctRows
from ziggurat.embeddings.row_tiers.feature_bags import FeatureBags, bags_of_features
from ziggurat.embeddings.row_tiers.rank_groups import InFlight, RankGroups
from ziggurat.embeddings.row_tiers.tiered_table import TieredTable
from ziggurat.embeddings.row_tiers.traffic import TierTraffic
from ziggurat.embeddings.wire import Wire
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World


@dataclass(slots=True)
class TableBatch:
    """The ids of a batch in one table, on their way through a step.

    Attributes:
        table: the table.
        distinct: the distinct rows.
        bags: the bags of each feature.
        copies: the gradients of its copied rows; None without a backward pass.
        host_received, split_received: how many rows each rank of the host, and each rank, asks of this one.
        host_ids, split_ids: their positions.
        announced: its rows of the third tier here, on their way from a disk.
        split_edge: the graph that updates the rows of the third tier that were sent; None if none is trained.
        grad_UD: the gradients of the distinct rows, once the backward pass has reached them.
        ended: whether its rows were updated or released, so that gradients come too late.
    """

    table: TieredTable
    distinct: DistinctRows
    bags: list[FeatureBags]
    copies: CopiedGradients | None
    host_received: list[int] = field(default_factory=list[int])
    split_received: list[int] = field(default_factory=list[int])
    host_ids: InFlight | None = None
    split_ids: InFlight | None = None
    announced: AnnouncedBatch | None = None
    split_edge: GradientEdge | None = None
    grad_UD: Tensor | None = None
    ended: bool = False


@dataclass(slots=True)
class TieredBatch:
    """A batch on its way.

    Attributes:
        size: B.
        tables: its part in each table.
        counts: from each rank, the numbers of ids that it will send of the third and of the second tier, by table, and
            its flags for the copies of each; as bytes.
        sent: whether the ids themselves were sent.
    """

    size: int
    tables: list[TableBatch]
    counts: InFlight
    sent: bool = False


class TieredTables(nn.Module):
    """Tables whose rows are in tiers. All ranks make it, and call each of its methods, together.

    Args:
        tables: the tables.
        plan: their placements.
        device: the device of this rank.
        parallel: the precision in which rows and gradients are sent between ranks.
        batch_size: the number of rows that the loss is averaged over.
        world: the ranks.
        row_order: where the rows of the tables are.
        offload: the folder for rows of the third tiers that do not fit in memory; required if the plan gives slots.
        seed: the seed of the initial weights of such rows.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        plan: Plan,
        device: torch.device,
        parallel: ParallelConfig,
        batch_size: int,
        world: World,
        row_order: RowOrder,
        offload: OffloadFolder | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.traffic = TierTraffic()
        self._wire = Wire(parallel, batch_size)
        self._modules_of_tables = nn.ModuleList(
            TieredTable(spec, plan, world, device, partial(row_order.row_ids, spec.name), offload, seed)
            for spec in tables
        )
        self._groups = RankGroups(world, self.traffic)
        self._pending: TieredBatch | None = None
        self._anchor = torch.zeros((), requires_grad=True)

    @property
    def tables(self) -> list[TieredTable]:
        """The tables."""
        return [cast("TieredTable", table) for table in self._modules_of_tables]

    def start(self, ids: KeyedJaggedTensor, size: int) -> TieredBatch:
        """Classifies the ids and starts to send how many there are. Does not wait, unless some rows are offloaded.

        Args:
            ids: positions of rows under the keys of these tables, and further ones.
            size: B.
        """
        batches = [self._classified(table, ids, size) for table in self.tables]
        groups = self._groups
        counts = torch.zeros(groups.world.size, 2, len(batches), dtype=torch.int32)
        counts[:, 0] = torch.tensor([each.distinct.split for each in batches]).T
        counts[groups.host_ranks, 1] = torch.tensor([each.distinct.hosts for each in batches]).T
        flags = [each.copies.flags() for each in batches if each.copies is not None]
        head = counts.view(groups.world.size, -1).view(torch.uint8).to(ids.device())
        flag_bytes = sum(len(each) for each in flags)
        tails = [torch.cat(flags).expand(groups.world.size, -1)] if flag_bytes else []
        message = torch.cat([head, *tails], dim=1)
        batch = TieredBatch(size, batches, groups.world.send_equal(message, "copies", flag_bytes))
        if self.offloaded:
            self._announce(batch)
        return batch

    @property
    def offloaded(self) -> list[OffloadedTables]:
        """The rows of third tiers on a disk, an item for each table that has some."""
        return [table.offloaded for table in self.tables if table.offloaded is not None]

    def send_ids(self, batch: TieredBatch) -> None:
        """Waits until the ranks know how many ids they will receive, then starts to send the ids."""
        if batch.sent:
            return
        batch.sent, groups = True, self._groups
        counted = 8 * len(batch.tables)
        sizes = [counted, *(each.copies.flag_bytes for each in batch.tables if each.copies is not None)]
        head, *flags = batch.counts.wait().split(sizes, dim=1)
        counts = head.contiguous().view(torch.int32).view(groups.world.size, 2, -1)
        world, host = counts[:, 0].T.tolist(), counts[groups.host_ranks, 1].T.tolist()
        for copies, bits in zip((each.copies for each in batch.tables if each.copies is not None), flags, strict=True):
            copies.take_flags(bits)
        for each, host_received, split_received in zip(batch.tables, host, world, strict=True):
            each.host_received, each.split_received = host_received, split_received
            distinct = each.distinct
            _, hosts_U, split_U = distinct.positions_U.int().split(distinct.by_tier)
            if each.table.bounds.split.size:
                each.split_ids = groups.world.send("split_rows", split_U, distinct.split, split_received)
            if each.table.bounds.hosts.size:
                each.host_ids = groups.host.send("host_rows", hosts_U, distinct.hosts, host_received)

    def finish(self, batch: TieredBatch) -> dict[str, Tensor]:
        """Returns the rows by feature: (B, W), or (B, S, W) for a sequence with positions.

        With gradients, this ends the batch before, as :meth:`release` does: one batch at a time is on its way back.
        """
        self.send_ids(batch)
        if torch.is_grad_enabled():
            self.release()
        arriving = [self._send_rows(each) for each in batch.tables]
        rows: dict[str, Tensor] = {}
        for each, (rows_UD, parts) in zip(batch.tables, arriving, strict=True):
            self._receive(parts)
            spread = _SpreadRows.apply(self._anchor, each, rows_UD)
            rows |= zip((bags.feature for bags in each.bags), spread, strict=True)
        if torch.is_grad_enabled():
            self._pending = batch
            for each in batch.tables:
                self.traffic.looked_up(each.table.spec.name, each.distinct.lookups(), each.distinct.by_tier)
        return rows

    @torch.no_grad()
    def exchange(self) -> None:
        """Updates the rows of the last batch, after its backward pass."""
        batch, self._pending = self._pending, None
        if batch is None:
            return
        copies: list[CopiedGradients] = []
        returned: list[tuple[TableBatch, InFlight]] = []
        for each in batch.tables:
            each.ended = True
            grads, distinct = self._gradients(each), each.distinct
            copied_UD, host_UD, split_UD = grads.split(distinct.by_tier)
            if each.table.split is not None:
                sent = self._wire.encode(split_UD, "gradients")
                arrives = self._groups.world.send("split_rows", sent, distinct.split, each.split_received)
                returned.append((each, arrives))
            if each.copies is not None:
                each.copies.wait()
                each.copies.send(copied_UD, host_UD, each.host_received)
                copies.append(each.copies)
        for step in (CopiedGradients.send_between, CopiedGradients.send_sums):
            for each in copies:
                step(each)
        for each, arrives in returned:
            if each.split_edge is not None:
                torch.autograd.backward([each.split_edge], [self._wire.decode(arrives.wait(), "gradients")])
            else:
                arrives.wait()
            each.table.release()
        for step in (CopiedGradients.send_back, CopiedGradients.apply):
            for each in copies:
                step(each)

    def release(self) -> None:
        """Ends a batch that has no backward pass: rows keep their values. Gradients that reach it later are refused."""
        batch, self._pending = self._pending, None
        for each in batch.tables if batch is not None else ():
            each.ended = True
            each.table.release()
            if each.copies is not None:
                each.copies.wait()

    def drop(self, batch: TieredBatch) -> None:
        """Completes the exchange of ids that will not be looked up."""
        batch.counts.wait()
        for each in batch.tables if batch.sent else ():
            for ids in (each.host_ids, each.split_ids):
                if ids is not None:
                    ids.wait()
            each.table.drop(each.announced)

    def close(self) -> None:
        """Deletes the rows on disks."""
        for table in self.tables:
            table.close()

    def scale_learning_rates(self, multiplier: float) -> None:
        """Sets every table's learning rate to ``multiplier`` times its configured one."""
        for table in self.tables:
            table.scale_learning_rates(multiplier)

    def weights(self) -> Iterator[TensorSlice]:
        """Yields the weights on this rank."""
        for table in self.tables:
            yield from table.tensor_slices()

    def states(self) -> Iterator[TensorSlice]:
        """Yields the optimizer states on this rank, named ``table/state``."""
        for table in self.tables:
            yield from table.state_slices()

    def shards(self) -> Iterator[TrackedShard]:
        """Yields the shards on this rank with their dirty rows."""
        for table in self.tables:
            yield from table.shards()

    def _announce(self, batch: TieredBatch) -> None:
        """Has the rows of the third tier that a batch needs read from the disk."""
        self.send_ids(batch)
        for each in batch.tables:
            if each.split_ids is not None:
                each.announced = each.table.announce(each.split_ids.wait().long())

    def _classified(self, table: TieredTable, ids: KeyedJaggedTensor, size: int) -> TableBatch:
        positions_L, lengths = _ids_of(table.spec, ids)
        distinct = table.bounds.distinct(positions_L)
        copied = table.bounds.copied.size + table.bounds.hosts.size > 0
        copies = None
        if copied and torch.is_grad_enabled():
            copies = CopiedGradients(table, self._groups, self._wire, distinct)
        return TableBatch(table, distinct, bags_of_features(table.spec, distinct, lengths, size), copies)

    def _send_rows(self, each: TableBatch) -> tuple[Tensor, list[tuple[InFlight, Tensor]]]:
        """Starts to send the rows that other ranks ask for.

        Returns:
            The distinct rows of this rank's batch, with those that it holds, and a row of zeros after them, (U + 1, D);
            and which parts of them are to arrive.
        """
        table, distinct, groups = each.table, each.distinct, self._groups
        rows_UD = torch.empty(len(distinct.positions_U) + 1, table.spec.dim, device=distinct.positions_U.device)
        rows_UD[-1] = 0
        copied_UD, host_UD, split_UD = rows_UD[:-1].split(distinct.by_tier)
        parts: list[tuple[InFlight, Tensor]] = []
        places = torch.zeros(0, dtype=torch.int64, device=rows_UD.device)
        if each.host_ids is not None:
            places = table.host_places(each.host_ids.wait().long())
            sent = self._wire.encode(table.hosts.weight_RD[places], "rows")
            arrives = groups.host.send("host_rows", sent, each.host_received, distinct.hosts, host_UD)
            parts.append((arrives, host_UD))
        if each.copies is not None:
            each.copies.send_flags(places)
        if each.split_ids is not None:
            rows = table.split_rows(each.split_ids.wait().long(), each.announced)
            each.split_edge = get_gradient_edge(rows) if rows.requires_grad else None
            sent = self._wire.encode(rows.detach(), "rows")
            arrives = groups.world.send("split_rows", sent, each.split_received, distinct.split, split_UD)
            parts.append((arrives, split_UD))
        torch.index_select(table.copied.weight_RD, 0, distinct.positions_U[: len(copied_UD)].long(), out=copied_UD)
        return rows_UD, parts

    def _receive(self, parts: list[tuple[InFlight, Tensor]]) -> None:
        """Waits for parts of the distinct rows, and lets go of what was sent for them."""
        for arrives, into in parts:
            received = self._wire.decode(arrives.wait(), "rows")
            if received.data_ptr() != into.data_ptr():
                into.copy_(received)
        parts.clear()

    def _gradients(self, each: TableBatch) -> Tensor:
        """Returns this rank's part of the mean gradients of the distinct rows."""
        if each.grad_UD is None:
            positions_U = each.distinct.positions_U
            return torch.zeros(len(positions_U), each.table.spec.dim, device=positions_U.device)
        return each.grad_UD.div_(self._groups.world.size)


def _ids_of(spec: TableSpec, ids: KeyedJaggedTensor) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    """Returns the ids of a table's features, and of each feature their number and the lengths of its bags.

    The keys of a feature are adjacent.
    """
    number = {key: place for place, key in enumerate(ids.keys())}
    starts, lengths_KB = ids.offset_per_key(), ids.lengths().view(len(number), -1)
    runs = [(number[keys[0]], number[keys[-1]] + 1) for keys in map(spec.keys_of, spec.features)]
    values_L = torch.cat([ids.values()[starts[first] : starts[last]] for first, last in runs])
    lengths = [(starts[last] - starts[first], lengths_KB[first:last].reshape(-1)) for first, last in runs]
    return values_L, lengths


class _SpreadRows(torch.autograd.Function):
    """Pools distinct rows into bags; its backward keeps the gradient of each row; the anchor makes autograd call it.

    Each feature has an output of its own, so that autograd does not copy the gradients of all of them into one tensor.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - autograd's own signature is *args
        ctx: Any, anchor: Tensor, batch: TableBatch, rows_UD: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.batch = batch
        ctx.set_materialize_grads(False)
        return tuple(bags.pooled(rows_UD) for bags in batch.bags)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        batch: TableBatch = ctx.batch
        if batch.ended:
            raise ZigguratError(
                f"gradients reached a batch of table {batch.table.spec.name!r} that is no longer on its way: its rows "
                "were updated, released, or another batch was looked up with gradients since",
                "run the backward pass of a batch once, and exchange() before the next batch is looked up, or look the "
                "next one up under torch.no_grad()",
            )
        for bags, grad in zip(batch.bags, grads, strict=True):
            if grad is None:
                continue
            if batch.grad_UD is None:
                dim = batch.table.spec.dim
                batch.grad_UD = grad.new_zeros(len(batch.distinct.positions_U) + 1, dim)
            bags.add_gradients(grad, batch.grad_UD)
        if batch.grad_UD is not None:
            batch.grad_UD = batch.grad_UD[:-1]
        return None, None, None
