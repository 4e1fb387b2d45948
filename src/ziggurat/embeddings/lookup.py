"""The embedding lookup: ids to rows, whatever the plan and the optimizers.

Shape legend: B rows of the batch, F fields, D embedding width, W floats of a table's row, L ids, N bags, S positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby
from types import MappingProxyType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import FeatureError
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import Ranks
from ziggurat.embeddings.dirty_rows import TrackedShard
from ziggurat.embeddings.field_order import FieldOrder
from ziggurat.embeddings.fields import DIRECT, Fields
from ziggurat.embeddings.initial import fill_initial, fill_initial_rows
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.embeddings.positions import split_positions
from ziggurat.embeddings.replicated import ReplicatedTable, exchange, is_replicated
from ziggurat.embeddings.row_order import RowOrder
from ziggurat.embeddings.sharding import Distributed, ShardedTables
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import TensorSlice

AHEAD = 4
"""Batches that are started before their turn, where memory has no room for all rows."""


@dataclass(frozen=True, slots=True)
class StartedLookup:
    """A lookup whose ids are on their way."""

    ids: KeyedJaggedTensor | None
    masks: dict[str, Tensor]
    size: int
    begun: Distributed | None


@dataclass(frozen=True, slots=True)
class LookedUpRows:
    """What :class:`~ziggurat.embeddings.fields.Fields` makes fields of.

    Attributes:
        of: feature -> (B, W), or (B, S, W) for a sequence with positions; or ``DIRECT`` -> emb_BFD alone.
        masks: sequence with positions -> which of them there are, (B, S).
    """

    of: dict[str, Tensor]
    masks: dict[str, Tensor]


class EmbeddingLookup(nn.Module):
    """The rows of a batch; they are updated by their own optimizers when the backward pass has come to them.

    Tables live in TorchRec's DistributedModelParallel, placed by ``plan``. Those that the plan replicates, and those
    whose Adam FBGEMM has no kernel for (on the CPU, or on all rows), are :class:`ReplicatedTable`. Where the plan
    orders rows by how often they are used, ids become places here, and nobody outside sees these.

    Args:
        layout: the tables, and what becomes of their rows.
        plan: where the shards live.
        device: of the tables.
        seed: of the tables' initial weights; those of the fields come from torch's global generator.
        parallel: in which precision rows and their gradients travel between ranks.
        batch_size: rows that the loss is a mean over.
        row_ranks: of the tables whose rows the plan orders, the rank of each row by falling frequency.
        beyond: where the rows lie of tables that the plan gives slots.
    """

    def __init__(
        self,
        layout: Layout,
        plan: Plan,
        device: torch.device,
        seed: int,
        parallel: ParallelConfig = ParallelConfig(),  # noqa: B008 - frozen
        batch_size: int = 1,
        row_ranks: Mapping[str, Ranks] = MappingProxyType({}),
        beyond: OffloadFolder | None = None,
    ) -> None:
        super().__init__()
        self.layout, tables = layout, layout.tables
        self._device = device
        replicated = [spec for spec in tables if is_replicated(spec, device, plan.placements[spec.name].sharding)]
        fused = [spec for spec in tables if spec not in replicated]
        # TorchRec draws weights of its own, as many as a rank has: fields and model would start otherwise on each.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.sharded = ShardedTables(fused, plan, device, parallel, batch_size, beyond, seed) if fused else None
        self.replicated = nn.ModuleList([ReplicatedTable(spec) for spec in replicated]).to(device)
        self.fields = Fields(layout).to(device)
        self._table_of = layout.table_of
        self._orders: dict[tuple[str, ...], FieldOrder] = {}
        self._feature_of = {key: f for f, spec in self._table_of.items() for key in spec.keys_of(f)}
        self._row_order = RowOrder(fused, plan, row_ranks, device)
        std = {spec.name: spec.init_std for spec in tables}
        dims = {spec.name: spec.dim for spec in tables}
        for tensor_slice in self.tensor_slices():
            row, column = tensor_slice.first
            if tensor_slice.tensor.is_meta:
                continue  # beyond memory: a row is made when it is first looked up
            if tensor_slice.rows is None:
                fill_initial(
                    tensor_slice.tensor,
                    tensor_slice.name,
                    std[tensor_slice.name],
                    seed,
                    row,
                    column,
                    dims[tensor_slice.name],
                )
            else:
                fill_initial_rows(
                    tensor_slice.tensor,
                    tensor_slice.rows,
                    tensor_slice.name,
                    std[tensor_slice.name],
                    seed,
                    column,
                    dims[tensor_slice.name],
                )

    def forward(self, batch: Batch) -> Tensor:
        """emb_BFD, the fields of ``layout``.

        Raises:
            FeatureError: an id outside its table, naming feature, id, the table's rows and the rank.
        """
        rows = self.finish(self.start(batch))
        return self.fields(rows.of, rows.masks)

    def start(self, batch: Batch) -> StartedLookup:
        """Begin to send the batch's ids to the ranks that hold their rows; does not wait for them.

        May be called while another batch is between its forward and its backward pass: rows are read in
        :meth:`finish` alone.

        Raises:
            FeatureError: as :meth:`forward`; on several ranks already here, so that it names the rank whose id it is.
        """
        ids, masks = self._ids(batch)
        if ids is not None and (dist.get_world_size() > 1 or self._row_order or self.ahead):
            self._check_range(ids)
        if self.sharded is None or ids is None:
            return StartedLookup(ids, masks, batch.size, None)
        try:
            return StartedLookup(
                ids, masks, batch.size, self.sharded.start(_with_empty_rows(self._row_order.placed(ids), batch))
            )
        except ValueError:  # TorchRec looks at the first batch it is given
            self._check_range(ids)
            raise

    def sent(self, started: StartedLookup) -> None:
        """Wait until the ranks know how many ids will come, and begin to send these."""
        if self.sharded is not None and started.begun is not None:
            self.sharded.sent(started.begun)

    def finish(self, started: StartedLookup) -> LookedUpRows:
        """Wait for the ids of others, look them up, and exchange the rows."""
        if started.ids is None:
            return LookedUpRows({DIRECT: torch.zeros(started.size, 0, self.layout.dim, device=self._device)}, {})
        try:
            return self._look_up(started, started.ids)
        except (RuntimeError, IndexError):
            self._check_range(started.ids)
            raise

    def drop(self, started: StartedLookup) -> None:
        """Let a lookup that will not be finished arrive, so that nothing is on its way any more."""
        if self.sharded is not None and started.begun is not None:
            self.sharded.drop(started.begun)

    def close(self) -> None:
        """Give back what is not memory."""
        if self.sharded is not None:
            self.sharded.close()

    @property
    def note(self) -> str:
        """What the user should know of how rows are read from a disk; empty where there is nothing."""
        return self.sharded.beyond.note if self.sharded is not None and self.sharded.beyond is not None else ""

    def moved(self) -> dict[str, float]:
        """Of rows beyond memory, what was moved so far for this rank
        (:meth:`BeyondMemory.moved <ziggurat.embeddings.offload.OffloadedTables.moved>`); else nothing."""
        return self.sharded.beyond.moved() if self.sharded is not None and self.sharded.beyond is not None else {}

    @property
    def ahead(self) -> int:
        """How many batches should be started before their turn, so that their rows are there."""
        return AHEAD if self.sharded is not None and self.sharded.beyond is not None else 0

    def exchange(self) -> None:
        """Behind each backward pass: where there are several ranks, what they have to tell each other of rows that
        more than one of them holds."""
        if dist.get_world_size() > 1:
            exchange(list(self._replicated()))
        if self.sharded is not None:
            self.sharded.exchange()

    def scale_learning_rates(self, multiplier: float) -> None:
        """Set every table's learning rate to ``multiplier`` times its configured one."""
        if self.sharded is not None:
            self.sharded.scale_learning_rates(multiplier)
        for table in self._replicated():
            table.lr = float(table.spec.optimizer["lr"]) * multiplier

    @property
    def features(self) -> int:
        """F, the number of fields."""
        return len(self.layout.fields)

    def weights(self) -> dict[str, Tensor]:
        """This rank's weights by table, or by the part of a table that it holds, live."""
        return {tensor_slice.key: tensor_slice.tensor for tensor_slice in self.tensor_slices()}

    def tensor_slices(self) -> list[TensorSlice]:
        """This rank's weights, named by their tables, live."""
        tensor_slices = list(map(self._row_order.of_piece, self.sharded.weights())) if self.sharded is not None else []
        return tensor_slices + [TensorSlice.of_tensor(table.spec.name, table.weight_RD) for table in self._replicated()]

    def optimizer_state(self) -> dict[str, Tensor]:
        """This rank's optimizer states by ``table/state``, or by the part of it, live."""
        return {tensor_slice.key: tensor_slice.tensor for tensor_slice in self.state_slices()}

    def state_slices(self) -> list[TensorSlice]:
        """This rank's optimizer states, named ``table/state``, live."""
        tensor_slices = list(map(self._row_order.of_piece, self.sharded.states())) if self.sharded is not None else []
        for table in self._replicated():
            counted = {"steps": table.steps} if table.spec.optimizer["name"] == "adam" else {}
            states = {**table.state(), **counted}  # of the others as FBGEMM has them, so that a plan may change
            tensor_slices += [
                TensorSlice.of_tensor(f"{table.spec.name}/{name}", state) for name, state in states.items()
            ]
        return tensor_slices

    def shards(self) -> list[TrackedShard]:
        """This rank's parts of tables, live, with the marks of the rows that have changed."""
        sharded = self.sharded.shards() if self.sharded is not None else []
        whole = [TrackedShard.of(table.spec, (0, 0), table.marks) for table in self._replicated()]
        return [shard.in_order(self._row_order.of_piece) for shard in sharded] + whole

    def _ids(self, batch: Batch) -> tuple[KeyedJaggedTensor | None, dict[str, Tensor]]:
        """All ids under the keys that tables look up, and mask_BS of each sequence that has positions."""
        sequences, masks = batch.sequences, dict[str, Tensor]()
        if sequences is not None and self.layout.positions:
            sequences, masks = split_positions(sequences, self._table_of)
        parts = [part for part in (batch.bags, sequences) if part is not None]
        return KeyedJaggedTensor.concat(parts) if len(parts) > 1 else (parts[0] if parts else None), masks

    def _look_up(self, started: StartedLookup, ids: KeyedJaggedTensor) -> LookedUpRows:
        rows: dict[str, Tensor] = {}
        if self.sharded is not None:
            assert started.begun is not None
            keyed = _first_rows(self.sharded.finish(started.begun), started.size)
            if not self.replicated and self.layout.direct:
                return LookedUpRows({DIRECT: self._direct(keyed, started.size)}, {})
            rows.update(self._sharded_rows(keyed))
        for table in self._replicated():
            rows.update(_replicated_rows(table, ids, started.size))
        return LookedUpRows(rows, started.masks)

    def _direct(self, keyed: KeyedTensor, size: int) -> Tensor:
        """The tables' output as it is, but for the order of the features."""
        emb_BFD = keyed.values().view(size, -1, self.layout.dim)
        keys, wanted = tuple(keyed.keys()), self.layout.schema.sparse
        if keys == wanted:
            return emb_BFD
        if keys not in self._orders:
            vectors = [self._table_of[key].vectors for key in keys]
            starts = dict(zip(keys, accumulate(vectors, initial=0), strict=False))
            places = [starts[f] + number for f in wanted for number in range(self._table_of[f].vectors)]
            self._orders[keys] = FieldOrder(places, emb_BFD.device)
        return self._orders[keys](emb_BFD)

    def _sharded_rows(self, keyed: KeyedTensor) -> dict[str, Tensor]:
        """Feature -> (B, W), or (B, S, W): a feature's positions lie side by side, as its table lists them."""
        runs = [(feature, len(list(run))) for feature, run in groupby(keyed.keys(), self._feature_of.__getitem__)]
        blocks = keyed.values().split([count * self._table_of[feature].dim for feature, count in runs], dim=1)
        return {
            feature: block.unflatten(1, (count, -1)) if feature in self.layout.positions else block
            for (feature, count), block in zip(runs, blocks, strict=True)
        }

    def _replicated(self) -> Iterator[ReplicatedTable]:
        for table in self.replicated:
            assert isinstance(table, ReplicatedTable)
            yield table

    def _check_range(self, ids: KeyedJaggedTensor) -> None:
        values_L, counts_K = ids.values(), torch.tensor(ids.length_per_key())
        rows_K = torch.tensor([self._table_of[self._feature_of[key]].rows for key in ids.keys()])  # noqa: SIM118
        rows_L = rows_K.repeat_interleave(counts_K, output_size=len(values_L)).to(values_L.device)
        bad_L = (values_L < 0) | (values_L >= rows_L)
        if not bool(bad_L.any()):
            return
        position = int(bad_L.nonzero()[0])
        key = ids.keys()[int((counts_K.cumsum(0) <= position).sum())]
        feature = self._feature_of[key]
        spec = self._table_of[feature]
        raise FeatureError(
            f"feature {feature!r}: id {int(values_L[position])} is outside [0, {spec.rows}), the rows of table "
            f"{spec.name!r}, on rank {dist.get_rank()}",
            "encode the rows with the transform that was fitted with this model (`ziggurat prepare`)",
        ) from None


def _with_empty_rows(ids: KeyedJaggedTensor, batch: Batch) -> KeyedJaggedTensor:
    """As many rows as the largest batch of the step has: gloo gathers gradients only from ranks of equal batches."""
    missing = (batch.largest or batch.size) - batch.size
    if missing <= 0:
        return ids
    lengths_KB = F.pad(ids.lengths().view(-1, batch.size), (0, missing))
    return KeyedJaggedTensor(keys=ids.keys(), values=ids.values(), lengths=lengths_KB.view(-1))


def _first_rows(keyed: KeyedTensor, size: int) -> KeyedTensor:
    """Without the empty rows."""
    values = keyed.values()
    return keyed if len(values) == size else KeyedTensor(keyed.keys(), keyed.length_per_key(), values[:size])


def _replicated_rows(table: ReplicatedTable, ids: KeyedJaggedTensor, size: int) -> dict[str, Tensor]:
    """The table's features looked up together, so that a row they share is updated once; shaped as the others are."""
    jagged, spec = ids.to_dict(), table.spec
    parts = [jagged[key] for key in spec.keys]
    row_NW = table(torch.cat([part.values() for part in parts]), torch.cat([part.lengths() for part in parts]))
    blocks = row_NW.split([size * len(spec.keys_of(feature)) for feature in spec.features])
    return {
        feature: block.view(-1, size, spec.dim).transpose(0, 1) if feature in spec.positions else block
        for feature, block in zip(spec.features, blocks, strict=True)
    }
