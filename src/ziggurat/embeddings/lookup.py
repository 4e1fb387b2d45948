"""The embedding lookup: ids to rows, for any plan and any row optimizers.

Shape legend: B rows of the batch, F fields, D embedding width, W floats of a table's row, L ids, N bags, S positions.
"""

from __future__ import annotations

from collections import Counter
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
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks
from ziggurat.embeddings.dirty_rows import TrackedShard
from ziggurat.embeddings.field_order import FieldOrder
from ziggurat.embeddings.fields import DIRECT, Fields
from ziggurat.embeddings.id_range import DeferredIdCheck, IdRange
from ziggurat.embeddings.initial import fill_initial, fill_initial_rows
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.offload import OffloadedTables, OffloadFolder
from ziggurat.embeddings.positions import split_positions
from ziggurat.embeddings.replicated import ReplicatedTable, exchange, is_replicated
from ziggurat.embeddings.row_order import RowOrder
from ziggurat.embeddings.row_tiers.tiered_lookup import TieredBatch, TieredTables
from ziggurat.embeddings.sharding import InFlightIds, ShardedTables
from ziggurat.embeddings.tower_transform.transform import TowerTransform
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.own_random import OwnRandom
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World

PREFETCH_BATCHES = 4
"""Batches whose lookup is started ahead of their step if some tables are offloaded."""


@dataclass(frozen=True, slots=True)
class StartedLookup:
    """A lookup whose ids are being sent.

    Attributes:
        ids: all ids of the batch; None if it has no sparse features, or if tables with tiers, which have taken theirs,
            are the only ones.
        masks: sequence with positions -> which positions exist, (B, S).
        size: B.
        in_flight: the ids of the sharded tables on their way to other ranks; None without such tables.
        tiered: those of tables with tiers of rows; None without such tables.
    """

    ids: KeyedJaggedTensor | None
    masks: dict[str, Tensor]
    size: int
    in_flight: InFlightIds | None
    tiered: TieredBatch | None = None


@dataclass(frozen=True, slots=True)
class LookedUpRows:
    """The rows of a batch, from which :class:`~ziggurat.embeddings.fields.Fields` makes the fields.

    Attributes:
        by_feature: feature -> (B, W), or (B, S, W) for a sequence with positions; or only ``DIRECT`` -> emb_BFD.
        masks: sequence with positions -> which positions exist, (B, S).
    """

    by_feature: dict[str, Tensor]
    masks: dict[str, Tensor]


class EmbeddingLookup(nn.Module):
    """Looks up the rows of a batch. The rows' own optimizers update them during the backward pass.

    Tables live in TorchRec's DistributedModelParallel, placed by ``plan``. Tables that the plan replicates, and those
    whose Adam has no FBGEMM kernel (on the CPU, or with ``rows: all``), are :class:`ReplicatedTable`; those whose rows
    it splits into tiers are in :class:`~ziggurat.embeddings.row_tiers.tiered_lookup.TieredTables`. If the plan
    orders rows by frequency, ids are mapped to positions here; nothing outside this class sees positions. At world size
    1 the process group is needed only while the lookup is assembled.

    Args:
        layout: the tables, and the fields that are made of their rows.
        plan: which ranks hold which shards.
        device: the device of the tables.
        seed: the seed of the tables' initial weights; those of the fields come from torch's global generator.
        parallel: the precision in which rows and their gradients are sent between ranks.
        batch_size: the number of rows that the loss is averaged over.
        row_ranks: table -> the rank of each row by falling frequency, for the tables whose rows the plan orders.
        offload: the folder for the rows of tables to which the plan gives slots.
        towers: the exchange of rows within hosts and between them, for a plan that keeps each tower's tables on its
            host; None for one exchange between all ranks.
    """

    def __init__(
        self,
        layout: Layout,
        plan: Plan,
        device: torch.device,
        seed: int,
        parallel: ParallelConfig = ParallelConfig(),  # noqa: B008 - frozen
        batch_size: int = 1,
        row_ranks: Mapping[str, FrequencyRanks] = MappingProxyType({}),
        offload: OffloadFolder | None = None,
        towers: TowerTransform | None = None,
    ) -> None:
        super().__init__()
        self.layout, tables, self.towers = layout, layout.tables, towers
        self._device = device
        self._ranks = dist.get_world_size()
        self._id_range = IdRange(layout.table_of, dist.get_rank())
        self._deferred = DeferredIdCheck(self._id_range, device) if device.type == "cuda" else None
        replicated = [spec for spec in tables if is_replicated(spec, device, plan.placements[spec.name].sharding)]
        tiered = [spec for spec in tables if plan.placements[spec.name].sharding == "row_tiers"]
        assert not tiered or towers is None, "towers keep tables on one host"
        fused = [spec for spec in tables if spec not in replicated and spec not in tiered]
        self._row_order = RowOrder(fused + tiered, plan, row_ranks, device)
        # TorchRec draws random weights for the shards of this rank; from the global generators, the weights of fields
        # and model would differ between ranks.
        with OwnRandom(seed):
            within = None if towers is None else towers.ranks
            self.sharded = (
                ShardedTables(fused, plan, device, parallel, batch_size, offload, seed, within) if fused else None
            )
            self.tiered = None
            if tiered:
                world, order = World(dist.get_rank(), plan.world_size, plan.local_size), self._row_order
                self.tiered = TieredTables(tiered, plan, device, parallel, batch_size, world, order, offload, seed)
        self.replicated = nn.ModuleList([ReplicatedTable(spec) for spec in replicated]).to(device)
        self.fields = Fields(layout).to(device)
        self._table_of = layout.table_of
        self._orders: dict[tuple[str, ...], FieldOrder] = {}
        self._feature_of = {key: f for f, spec in self._table_of.items() for key in spec.keys_of(f)}
        std = {spec.name: spec.init_std for spec in tables}
        dims = {spec.name: spec.dim for spec in tables}
        for tensor_slice in self.tensor_slices():
            row, column = tensor_slice.first
            if tensor_slice.tensor.is_meta:
                continue  # offloaded: a row is initialised when it is first looked up
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
        """Returns emb_BFD, the fields of ``layout``.

        Raises:
            FeatureError: an id is outside its table; the message names the feature, the id, the table's rows and the
                rank.
        """
        rows = self.finish(self.start(batch))
        self.check_ids()
        return self.fields(rows.by_feature, rows.masks, batch.dense_BF)

    def check_ids(self) -> None:
        """Raises the error of an id outside its table that was looked up since the last call.

        On the CPU it has been raised before. On a GPU, :meth:`start` raises it only where gradients are off: a training
        calls this method instead, before it uses or saves anything that was computed.

        Raises:
            FeatureError: as in :meth:`forward`.
        """
        if self._deferred is not None:
            self._deferred.check()

    def start(self, batch: Batch) -> StartedLookup:
        """Starts to send the batch's ids to the ranks that hold their rows. Does not wait, unless tables are offloaded.

        May be called while another batch is between its forward and its backward pass: only :meth:`finish` reads rows.

        Raises:
            FeatureError: as in :meth:`forward`. With several ranks it is raised here, to name the rank that got the id;
                on a GPU as in :meth:`check_ids`.
        """
        ids, masks = self._ids(batch)
        if ids is not None and self._deferred is not None:
            ids = self._deferred.confined(ids)
            if not torch.is_grad_enabled():  # its result is copied to the host next
                self._deferred.check()
        elif ids is not None and (self._ranks > 1 or self.tiered or self._row_order or self.prefetch_batches):
            self._id_range.check(ids)
        if ids is None or (self.sharded is None and self.tiered is None):
            return StartedLookup(ids, masks, batch.size, None)
        positions = self._row_order.to_positions(ids)
        tiered = None if self.tiered is None else self.tiered.start(positions, batch.size)
        if self.sharded is None:
            return StartedLookup(ids if self.replicated else None, masks, batch.size, None, tiered)
        try:
            in_flight = self.sharded.start(_with_empty_rows(positions, batch))
            return StartedLookup(ids, masks, batch.size, in_flight, tiered)
        except ValueError:  # TorchRec validates the first batch
            self._refuse_outside(ids)
            raise

    def send_ids(self, started: StartedLookup) -> None:
        """Waits until the ranks know how many ids they will receive, then starts to send the ids."""
        if self.sharded is not None and started.in_flight is not None:
            self.sharded.send_ids(started.in_flight)
        if self.tiered is not None and started.tiered is not None:
            self.tiered.send_ids(started.tiered)

    def finish(self, started: StartedLookup) -> LookedUpRows:
        """Waits for the ids of other ranks, looks them up and exchanges the rows."""
        if started.ids is None:
            if self.tiered is not None and started.tiered is not None:
                return LookedUpRows(self.tiered.finish(started.tiered), started.masks)
            return LookedUpRows({DIRECT: torch.zeros(started.size, 0, self.layout.dim, device=self._device)}, {})
        try:
            return self._look_up(started, started.ids)
        except (RuntimeError, IndexError):
            self._refuse_outside(started.ids)
            raise

    def drop(self, started: StartedLookup) -> None:
        """Completes the exchange of a lookup that will not be finished, so that nothing remains in flight."""
        if self.sharded is not None and started.in_flight is not None:
            self.sharded.drop(started.in_flight)
        if self.tiered is not None and started.tiered is not None:
            self.tiered.drop(started.tiered)

    def close(self) -> None:
        """Releases files and threads of offloaded tables."""
        if self.sharded is not None:
            self.sharded.close()
        if self.tiered is not None:
            self.tiered.close()

    @property
    def note(self) -> str:
        """A remark for the user on how rows are read from disk; empty if there is none."""
        return next((each.note for each in self._offloaded), "")

    def transferred(self) -> dict[str, float]:
        """Returns this rank's transfer statistics of offloaded tables so far; empty if there are none.

        See :meth:`OffloadedTables.transferred <ziggurat.embeddings.offload.OffloadedTables.transferred>` for the keys.
        """
        found: Counter[str] = Counter()
        for each in self._offloaded:
            found.update(each.transferred())
        return dict(found)

    @property
    def prefetch_batches(self) -> int:
        """How many batches should be started ahead of their step, so that their rows are in memory in time."""
        return PREFETCH_BATCHES if self._offloaded else 0

    @property
    def _offloaded(self) -> list[OffloadedTables]:
        """The tables, and tiers of tables, with rows on a disk."""
        sharded = None if self.sharded is None else self.sharded.offloaded
        return [*([] if sharded is None else [sharded]), *([] if self.tiered is None else self.tiered.offloaded)]

    @property
    def order_bytes(self) -> int:
        """Bytes that this rank holds for the order of rows, beside weights and states."""
        return self._row_order.held_bytes

    def exchange(self) -> None:
        """Completes the row updates after each backward pass: ranks that hold the same rows exchange their
        gradients."""
        if self._ranks > 1:
            exchange(list(self._replicated()))
        if self.sharded is not None:
            self.sharded.exchange()
        if self.tiered is not None:
            self.tiered.exchange()

    def release(self) -> None:
        """Ends a batch that has no backward pass, instead of :meth:`exchange`: rows keep their values."""
        if self.sharded is not None:
            self.sharded.release()
        if self.tiered is not None:
            self.tiered.release()

    def scale_learning_rates(self, multiplier: float) -> None:
        """Sets every table's learning rate to ``multiplier`` times its configured one."""
        if self.sharded is not None:
            self.sharded.scale_learning_rates(multiplier)
        if self.tiered is not None:
            self.tiered.scale_learning_rates(multiplier)
        for table in self._replicated():
            table.lr = float(table.spec.optimizer["lr"]) * multiplier

    @property
    def features(self) -> int:
        """F, the number of fields."""
        return len(self.layout.fields)

    def weights(self) -> dict[str, Tensor]:
        """Returns this rank's weights by table, or by table slice if it holds a part of one; live, not copies."""
        return {tensor_slice.key: tensor_slice.tensor for tensor_slice in self.tensor_slices()}

    def tensor_slices(self) -> list[TensorSlice]:
        """Returns this rank's weights, named by their tables; live, not copies."""
        tensor_slices = (
            list(map(self._row_order.with_row_ids, self.sharded.weights())) if self.sharded is not None else []
        )
        if self.tiered is not None:
            tensor_slices += map(self._row_order.with_row_ids, self.tiered.weights())
        return tensor_slices + [TensorSlice.of_tensor(table.spec.name, table.weight_RD) for table in self._replicated()]

    def optimizer_state(self) -> dict[str, Tensor]:
        """Returns this rank's optimizer states by ``table/state``, or by slice of it; live, not copies."""
        return {tensor_slice.key: tensor_slice.tensor for tensor_slice in self.state_slices()}

    def state_slices(self) -> list[TensorSlice]:
        """Returns this rank's optimizer states, named ``table/state``; live, not copies."""
        tensor_slices = (
            [*map(self._row_order.with_row_ids, self.sharded.states()), *self.sharded.steps()]
            if self.sharded is not None
            else []
        )
        if self.tiered is not None:
            tensor_slices += map(self._row_order.with_row_ids, self.tiered.states())
        for table in self._replicated():
            counted = {"steps": table.steps} if table.spec.optimizer["name"] == "adam" else {}
            states = {**table.state(), **counted}  # else the same states as FBGEMM: plans may change
            tensor_slices += [
                TensorSlice.of_tensor(f"{table.spec.name}/{name}", state) for name, state in states.items()
            ]
        return tensor_slices

    def shards(self) -> list[TrackedShard]:
        """Returns this rank's shards with their dirty rows; live, not copies."""
        sharded = self.sharded.shards() if self.sharded is not None else []
        sharded += self.tiered.shards() if self.tiered is not None else ()
        whole = [TrackedShard.of(table.spec, (0, 0), table.dirty) for table in self._replicated()]
        return [shard.with_row_ids(self._row_order.with_row_ids) for shard in sharded] + whole

    def _ids(self, batch: Batch) -> tuple[KeyedJaggedTensor | None, dict[str, Tensor]]:
        """Returns all ids under the keys that tables look up, and mask_BS of each sequence with positions."""
        sequences, masks = batch.sequences, dict[str, Tensor]()
        if sequences is not None and self.layout.positions:
            sequences, masks = split_positions(sequences, self._table_of)
        parts = [part for part in (batch.bags, sequences) if part is not None]
        return KeyedJaggedTensor.concat(parts) if len(parts) > 1 else (parts[0] if parts else None), masks

    def _look_up(self, started: StartedLookup, ids: KeyedJaggedTensor) -> LookedUpRows:
        rows: dict[str, Tensor] = {}
        if self.sharded is not None:
            assert started.in_flight is not None
            if self.towers is not None:
                fields = self.towers(self.sharded.finish(started.in_flight))
                return LookedUpRows({DIRECT: fields[: started.size]}, {})
            keyed = _first_rows(self.sharded.finish(started.in_flight), started.size)
            if not self.replicated and self.tiered is None and self.layout.direct:
                return LookedUpRows({DIRECT: self._direct(keyed, started.size)}, {})
            rows.update(self._sharded_rows(keyed))
        if self.tiered is not None and started.tiered is not None:
            rows.update(self.tiered.finish(started.tiered))
        for table in self._replicated():
            rows.update(_replicated_rows(table, ids, started.size))
        return LookedUpRows(rows, started.masks)

    def _direct(self, keyed: KeyedTensor, size: int) -> Tensor:
        """Returns the tables' output as emb_BFD, in the order of the schema's features."""
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
        """Returns feature -> (B, W), or (B, S, W): a feature's positions are adjacent, in its table's key order."""
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

    def _refuse_outside(self, ids: KeyedJaggedTensor) -> None:
        """Raises the error of an id that a kernel on the CPU refused. On a GPU they get none that is outside."""
        if self._deferred is None:
            self._id_range.check(ids)


def _with_empty_rows(ids: KeyedJaggedTensor, batch: Batch) -> KeyedJaggedTensor:
    """Pads the batch to the largest one of the step: gloo gathers gradients only from ranks with equal batch sizes."""
    missing = (batch.largest or batch.size) - batch.size
    if missing <= 0:
        return ids
    lengths_KB = F.pad(ids.lengths().view(-1, batch.size), (0, missing))
    return KeyedJaggedTensor(keys=ids.keys(), values=ids.values(), lengths=lengths_KB.view(-1))


def _first_rows(keyed: KeyedTensor, size: int) -> KeyedTensor:
    """Removes the rows that :func:`_with_empty_rows` added."""
    values = keyed.values()
    return keyed if len(values) == size else KeyedTensor(keyed.keys(), keyed.length_per_key(), values[:size])


def _replicated_rows(table: ReplicatedTable, ids: KeyedJaggedTensor, size: int) -> dict[str, Tensor]:
    """Looks up the table's features together, so that a row they share is updated once.

    Returns:
        Feature -> (B, W), or (B, S, W) for a sequence with positions.
    """
    jagged, spec = ids.to_dict(), table.spec
    parts = [jagged[key] for key in spec.keys]
    row_NW = table(torch.cat([part.values() for part in parts]), torch.cat([part.lengths() for part in parts]))
    blocks = row_NW.split([size * len(spec.keys_of(feature)) for feature in spec.features])
    return {
        feature: block.view(-1, size, spec.dim).transpose(0, 1) if feature in spec.positions else block
        for feature, block in zip(spec.features, blocks, strict=True)
    }
