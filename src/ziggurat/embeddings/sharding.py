"""Applies a Plan to tables: a TorchRec EmbeddingBagCollection under DistributedModelParallel, optimizers fused."""

from __future__ import annotations

import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
from torch import Tensor, nn
from torch.distributed.optim import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,  # pyright: ignore[reportPrivateUsage] - TorchRec's documented hook has no other name
)
from torch.distributed.optim import apply_optimizer_in_backward as in_backward
from torchrec.distributed.batched_embedding_kernel import BatchedFusedEmbeddingBag
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist, TwSparseFeaturesDist
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from ziggurat.core.plan import SPLIT_BY_ROWS, Placement, Plan, Span
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.cached_collection import CachedSharder
from ziggurat.embeddings.column_shards import ColumnKernel, ColumnShard, exchange
from ziggurat.embeddings.dirty_rows import OffloadedShard, TrackedShard, tensors_of, track_kernel
from ziggurat.embeddings.host_exchange import HostExchange
from ziggurat.embeddings.host_input import HostInput
from ziggurat.embeddings.kernel_steps import count_steps
from ziggurat.embeddings.local_input import keep_ids_local
from ziggurat.embeddings.offload import AnnouncedBatch, CachedTable, OffloadedTables, OffloadFolder, RowIds
from ziggurat.embeddings.torchrec_terms import (
    codecs,
    collection_config,
    inner_name,
    parameter_sharding,
    shard_offset,
    table_name,
)
from ziggurat.embeddings.tower_transform.exchanges import HostRanks
from ziggurat.embeddings.tower_transform.host_stage import exchange_within_hosts
from ziggurat.optim.rows import fused_optimizer
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.groups import new_group
from ziggurat.parallel.shared_memory import SharedSlots, shared_slots
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World

# DistributedModelParallel asks torch.fx whether it is tracing, which logs a deprecation notice that users cannot act
# on.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
# TorchRec calls torch's collectives by deprecated names; users cannot act on these warnings either.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning, r"torch\.distributed")


@dataclass(slots=True)
class InFlightIds:
    """Ids that are being sent to the ranks that hold their rows.

    Attributes:
        context: TorchRec's context of this exchange.
        ids: TorchRec's awaitable; once it was waited for, the ids that this rank received.
        lengths: key -> ids in each bag of this rank's batch (B,), for the keys whose mean is taken here.
        announced: the batch as announced to the prefetcher, if some tables are offloaded; its ids have arrived by then.
    """

    context: Any
    ids: Any
    lengths: dict[str, Tensor]
    announced: AnnouncedBatch | None = None


class ShardedTables(nn.Module):
    """Tables that are looked up together, sharded as the plan says.

    Requires an initialised process group, even for a world of one; there, only while the tables are assembled. Weights
    are left uninitialised, except those of tables to which the plan gives slots (offloaded tables): their rows are
    initialised from ``seed``.

    Args:
        tables: the embedding tables to shard.
        plan: which ranks hold which shards.
        device: the device of this rank.
        parallel: the precision in which rows are sent between ranks.
        batch_size: the number of rows that the loss is averaged over.
        offload: the folder for rows that do not fit in memory; required if the plan gives slots to a table.
        seed: the seed of the initial weights of offloaded tables.
        within_hosts: the groups of hosts, if rows are to be exchanged within hosts only: :meth:`finish` then returns
            those of the host's tables, for this rank's batch and those of its peers.
        row_ids: offloaded table -> returns the ids of the rows of a shard, where they are stored in another order.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        plan: Plan,
        device: torch.device,
        parallel: ParallelConfig,
        batch_size: int,
        offload: OffloadFolder | None = None,
        seed: int = 0,
        within_hosts: HostRanks | None = None,
        row_ids: Mapping[str, RowIds] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        world_size = dist.get_world_size()
        assert plan.world_size == world_size, (plan.world_size, world_size)
        if os.environ.get("LOCAL_WORLD_SIZE") != str(plan.local_size):
            os.environ["LOCAL_WORLD_SIZE"] = str(plan.local_size)  # TorchRec reads here which ranks share a host
        self._specs, self._row_ids = {spec.name: spec for spec in tables}, row_ids
        row_sharded = {spec.name for spec in tables if plan.placements[spec.name].sharding in SPLIT_BY_ROWS}
        # TorchRec 1.8 confuses keys when it averages some tables that are split by rows; so the mean is taken here.
        self._mean_keys = [
            key for spec in tables if spec.name in row_sharded and spec.pooling == "mean" for key in spec.keys
        ]
        configs = [collection_config(spec, "sum" if spec.name in row_sharded else spec.pooling) for spec in tables]
        collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        for spec in tables:
            kind, settings = fused_optimizer(spec.optimizer, device.type, spec.name)
            if _needs_shared_accumulator(
                spec, plan.placements[spec.name]
            ):  # replaced by ColumnKernel, so it needs no state
                kind, settings = fused_optimizer({"name": "sgd"}, device.type, spec.name)
            apply_optimizer_in_backward(kind, [_weight(collection, spec)], settings)
        slots = {name: each.slots for name, each in plan.placements.items() if name in self._specs and each.slots}
        settings: dict[str, Any] = {
            "fused_params": {"bounds_check_mode": BoundsCheckMode.FATAL},
            "qcomm_codecs_registry": codecs(parallel, batch_size),
        }
        sharder = CachedSharder(slots, **settings) if slots else EmbeddingBagCollectionSharder(**settings)
        module_plan = EmbeddingModuleShardingPlan(
            {inner_name(spec.name): parameter_sharding(plan, spec, device) for spec in tables}
        )
        assert dist.group.WORLD is not None
        self._parallel = DistributedModelParallel(
            collection,
            device=device,
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            plan=ShardingPlan(plan={"": module_plan}),
            sharders=[cast("Any", sharder)],
        )
        for spec in tables:  # torch would keep what belongs to these weights for the life of the process
            for kept in (in_backward.param_to_acc_grad_map, in_backward.param_to_optim_hook_handle_map):
                kept.pop(_weight(collection, spec), None)
        if world_size == 1:
            keep_ids_local(self._sharded._embedding_shardings)  # pyright: ignore[reportPrivateUsage]
        self._joint = self._join_columns(plan)
        self.offloaded: OffloadedTables | None = None
        self._offloaded_shards: dict[str, OffloadedShard] = {}
        if slots:
            assert offload is not None, f"{list(slots)}: no folder for their rows was given"
            self._create_offloaded(plan, slots, offload, seed)
        self._input_slots: dict[int, SharedSlots] = {}
        try:
            self._shards = list(self._tracked_shards(plan))
            self._steps = self._counted_steps()
            if within_hosts is not None:
                exchange_within_hosts(self._sharded, within_hosts)
            elif not parallel.reduced:
                self._replace_output_exchange(parallel, device)
            self._base_lr = [float(group["lr"]) for group in self._groups()]
        except BaseException:
            if self.offloaded is not None:
                self.offloaded.close()
            raise

    def forward(self, ids: KeyedJaggedTensor) -> KeyedTensor:
        """Returns the pooled rows for every key of these tables; ``ids`` may contain further keys."""
        return self.finish(self.start(ids))

    def start(self, ids: KeyedJaggedTensor) -> InFlightIds:
        """Starts to send ids to the ranks that hold their rows. Does not wait, unless some tables are offloaded."""
        sharded = self._sharded
        context = sharded.create_context()
        lengths = {key: ids[key].lengths() for key in self._mean_keys}
        in_flight = InFlightIds(context, sharded.input_dist(context, ids), lengths)
        if self._input_slots:
            self._replace_input_exchange()
        if self.offloaded is not None:
            self.wait_for_ids(in_flight)
            in_flight.announced = self.offloaded.announce(list(in_flight.ids), updates=torch.is_grad_enabled())
        return in_flight

    def send_ids(self, in_flight: InFlightIds) -> None:
        """Waits until the ranks know how many ids they will receive, then starts to send the ids."""
        if in_flight.announced is None:
            in_flight.ids = in_flight.ids.wait()

    def finish(self, in_flight: InFlightIds) -> KeyedTensor:
        """Waits for the ids of other ranks, looks them up and exchanges the pooled rows."""
        self.wait_for_ids(in_flight)
        if in_flight.announced is not None and self.offloaded is not None:
            in_flight.ids = KJTList(self.offloaded.slot_ids(in_flight.announced))
        keyed: KeyedTensor = self._sharded.compute_and_output_dist(in_flight.context, in_flight.ids).wait()
        if in_flight.announced is not None and self.offloaded is not None and not in_flight.announced.updates:
            self.offloaded.release()
        return _divide_by_lengths(keyed, in_flight.lengths) if in_flight.lengths else keyed

    def own_ids(self, places_N: Tensor) -> KeyedJaggedTensor:
        """Returns places in this rank's range of rows of the only table, as :meth:`own_rows` takes them."""
        (spec,) = self._specs.values()
        lengths_N = torch.ones_like(places_N, dtype=torch.int32)
        return KeyedJaggedTensor(keys=list(spec.keys), values=places_N, lengths=lengths_N)

    def own_rows(self, ids: KeyedJaggedTensor) -> Tensor:
        """Returns rows of the only table, of :meth:`own_ids` or their slots: (N, D), without an exchange.

        The rows are updated when the backward pass of the result is called.
        """
        (spec,) = self._specs.values()
        if not len(ids.values()):  # a rank whose range is empty has no kernel
            return torch.zeros(0, spec.dim, device=ids.device())
        return next(self._kernels())(ids)

    def wait_for_ids(self, in_flight: InFlightIds) -> None:
        """Waits for the ids of other ranks."""
        while hasattr(in_flight.ids, "wait"):
            in_flight.ids = in_flight.ids.wait()

    def drop(self, in_flight: InFlightIds) -> None:
        """Completes the exchange of ids that will not be looked up."""
        self.wait_for_ids(in_flight)
        if in_flight.announced is not None and self.offloaded is not None:
            self.offloaded.drop(in_flight.announced)

    def close(self) -> None:
        """Deletes the rows of offloaded tables on disk."""
        if self.offloaded is not None:
            self.offloaded.close()

    def exchange(self) -> None:
        """Completes the row updates; to be called after each backward pass.

        Rows whose columns are on several ranks take their optimizer step, and the slots of offloaded rows are released.
        """
        for shards in self._joint.values():
            exchange(shards)
        self.release()

    def release(self) -> None:
        """Releases the slots of offloaded rows that have been looked up."""
        if self.offloaded is not None:
            self.offloaded.release()

    def weights(self) -> Iterator[TensorSlice]:
        """Yields the weights of the shards on this rank."""
        for shard in self._shards:
            yield shard.weight

    def states(self) -> Iterator[TensorSlice]:
        """Yields the optimizer states of those shards, named ``table/state``."""
        for shard in self._shards:
            yield from shard.states.values()

    def steps(self) -> Iterator[TensorSlice]:
        """Yields the step counts of the tables that FBGEMM's Adam updates, named ``table/steps``."""
        for name, steps in self._steps.items():
            yield TensorSlice.of_tensor(f"{name}/steps", steps)

    def shards(self) -> list[TrackedShard]:
        """Returns the shards on this rank with their states and dirty rows; the tensors are live, not copies."""
        return list(self._shards)

    def scale_learning_rates(self, multiplier: float) -> None:
        """Sets every table's learning rate to ``multiplier`` times its configured one."""
        for group, base in zip(self._groups(), self._base_lr, strict=True):
            group["lr"] = base * multiplier
        self._parallel.fused_optimizer.step()  # passes the rates to the kernels; rows are updated inside backward
        for shards in self._joint.values():
            for shard in shards:
                shard.lr = float(shard.spec.optimizer["lr"]) * multiplier

    @property
    def _sharded(self) -> ShardedEmbeddingBagCollection:
        return cast("ShardedEmbeddingBagCollection", self._parallel.module)

    def _groups(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", list(self._parallel.fused_optimizer.param_groups))

    def _numbered_kernels(self) -> Iterator[tuple[int, BatchedFusedEmbeddingBag]]:
        """Yields the kernels, each with the index of the TorchRec sharding (one per sharding type) that it serves."""
        for number, lookup in enumerate(self._sharded._lookups):  # pyright: ignore[reportPrivateUsage] - a plain list, no submodules
            for module in lookup.modules():
                if isinstance(module, BatchedFusedEmbeddingBag):
                    yield number, module

    def _kernels(self) -> Iterator[BatchedFusedEmbeddingBag]:
        for _, kernel in self._numbered_kernels():
            yield kernel

    def _tracked_shards(self, plan: Plan) -> Iterator[TrackedShard]:
        for kernel in self._kernels():
            inner, tables = kernel.emb_module, kernel.config.embedding_tables
            names = [table_name(table.name) for table in tables]
            offloaded = {
                number: self._offloaded_shards[name]
                for number, name in enumerate(names)
                if name in self._offloaded_shards
            }
            dirty = inner.dirty_rows() if isinstance(inner, ColumnKernel) else track_kernel(kernel, offloaded)
            for name, table, each in zip(names, tables, dirty, strict=True):
                spec = self._specs[name]
                first = (_own_rows(plan, spec).first, 0) if name in self._offloaded_shards else shard_offset(table)
                shard = TrackedShard.of(spec, first, each)
                yield shard.with_sinks(self._offloaded_shards[name].sinks) if name in self._offloaded_shards else shard

    def _counted_steps(self) -> dict[str, Tensor]:
        """Has the steps of Adam's kernels counted; returns table -> its count."""
        counts: dict[str, Tensor] = {}
        for kernel in self._kernels():
            names = [table_name(each.name) for each in kernel.config.embedding_tables]
            if self._specs[names[0]].optimizer["name"] == "adam":
                count_steps(kernel.emb_module, names, counts)
        return counts

    def _create_offloaded(self, plan: Plan, slots: Mapping[str, int], offload: OffloadFolder, seed: int) -> None:
        """Creates the offloaded tables, which fill the kernels' slots from disk."""
        found: list[CachedTable] = []
        for number, kernel in self._numbered_kernels():
            names = [table_name(each.name) for each in kernel.config.embedding_tables]
            for name, tensors in zip(names, tensors_of(kernel), strict=True):
                if name in slots:
                    spec = self._specs[name]
                    rows = _own_rows(plan, spec)
                    ids = self._row_ids[name](rows.first, rows.size) if name in self._row_ids else None
                    found.append(CachedTable(spec, rows, tensors, number, ids))
        self.offloaded = OffloadedTables(found, offload, seed)
        self._offloaded_shards = {
            shard.spec.name: OffloadedShard(shard.shapes(), rows, rows.ids, rows.sinks())
            for shard, rows in zip(found, self.offloaded.rows(), strict=True)
        }

    def _join_columns(self, plan: Plan) -> dict[tuple[str, Span], list[ColumnShard]]:
        """Replaces kernels by :class:`ColumnKernel` where ranks that hold columns of a row must share its accumulator.

        Returns:
            (table, rows) -> its shards here, in the order of the plan's tables, so that all ranks exchange in one
            order.
        """
        groups = _column_groups(plan, list(self._specs.values()))
        found: dict[tuple[str, Span], list[ColumnShard]] = defaultdict(list)
        for kernel in self._kernels():
            tables = kernel.config.embedding_tables
            specs = [self._specs[table_name(table.name)] for table in tables]
            if not any(_needs_shared_accumulator(spec, plan.placements[spec.name]) for spec in specs):
                continue
            mean = kernel._pooling is PoolingMode.MEAN  # pyright: ignore[reportPrivateUsage] - SUM for tables split by rows
            shards: list[ColumnShard] = []
            for spec, table, weight in zip(specs, tables, kernel.split_embedding_weights(), strict=True):
                assert _needs_shared_accumulator(spec, plan.placements[spec.name]), spec.name
                rows = Span(shard_offset(table)[0], weight.shape[0])
                shard = ColumnShard(spec, rows, weight.detach(), "mean" if mean else "sum", groups[spec.name, rows])
                found[spec.name, rows].append(shard)
                shards.append(shard)
            kernel._emb_module = cast("Any", ColumnKernel(shards, [table.num_features() for table in tables]))  # pyright: ignore[reportPrivateUsage]
        return {key: found[key] for key in groups if key in found}

    def _replace_input_exchange(self) -> None:
        """Replaces TorchRec's gloo exchange of ids by :class:`HostInput`; TorchRec creates its own on the first
        batch."""
        dists = self._sharded._input_dists  # pyright: ignore[reportPrivateUsage]
        for number, slots in self._input_slots.items():
            replaced = dists[number]
            assert isinstance(replaced, TwSparseFeaturesDist)
            dists[number] = HostInput(replaced._dist._splits, slots)  # pyright: ignore[reportPrivateUsage]
        self._input_slots = {}

    def _replace_output_exchange(self, parallel: ParallelConfig, device: torch.device) -> None:
        """Replaces TorchRec's gloo exchange of pooled rows by :class:`HostExchange`, for table- and column-wise
        shards."""
        sharded = self._sharded
        dists = sharded._output_dists  # pyright: ignore[reportPrivateUsage]
        for number, replaced in enumerate(dists):
            if not isinstance(replaced, TwPooledEmbeddingDist):
                continue
            rows, ids = (shared_slots(parallel, World.current(), device, slots) for slots in (2, 4))
            if rows is None or ids is None:
                return
            widths, callbacks = replaced._emb_dim_per_rank_per_feature, replaced._callbacks or []  # pyright: ignore[reportPrivateUsage]
            order = self._reorder_output(sharded) if len(dists) == 1 and not callbacks else None
            dists[number] = HostExchange(widths, order, rows, callbacks)
            self._input_slots[number] = ids

    def _reorder_output(self, sharded: ShardedEmbeddingBagCollection) -> list[int]:
        """Reorders TorchRec's output to the order of our tables' keys.

        Returns:
            For each key in the order in which the ranks send them, its position in the output.
        """
        names, dims = sharded._embedding_names, sharded._embedding_dims  # pyright: ignore[reportPrivateUsage]
        dim_of = {key: spec.dim for spec in self._specs.values() for key in spec.keys}
        position = {key: index for index, key in enumerate(dim_of)}
        order = [position[name] for name in names]
        names[:], dims[:] = dim_of.keys(), dim_of.values()
        return order


def _divide_by_lengths(keyed: KeyedTensor, lengths: dict[str, Tensor]) -> KeyedTensor:
    """Divides the sums of the keys in ``lengths`` by the number of rows summed; an empty bag stays zero."""
    keys, widths = keyed.keys(), keyed.length_per_key()
    ones_B = torch.ones_like(next(iter(lengths.values())))
    counts_BK = torch.stack([lengths[key].clamp(min=1) if key in lengths else ones_B for key in keys], dim=1)
    values = keyed.values() / counts_BK.repeat_interleave(torch.tensor(widths, device=counts_BK.device), dim=1)
    return KeyedTensor(keys, widths, values)


def _weight(collection: EmbeddingBagCollection, spec: TableSpec) -> nn.Parameter:
    return cast("nn.Parameter", collection.embedding_bags[inner_name(spec.name)].weight)


def _own_rows(plan: Plan, spec: TableSpec) -> Span:
    """Returns the rows on this rank of a table that is not split by columns."""
    return next(shard.rows for shard in plan.shards(spec) if shard.rank == dist.get_rank())


def _needs_shared_accumulator(spec: TableSpec, placement: Placement) -> bool:
    return placement.sharding in {"column_wise", "grid"} and spec.optimizer["name"] == "rowwise_adagrad"


def _column_groups(plan: Plan, specs: Sequence[TableSpec]) -> dict[tuple[str, Span], dist.ProcessGroup | None]:
    """Returns (table, rows) -> the process group of the ranks that hold columns of these rows; None if one holds
    all."""
    groups: dict[tuple[str, Span], dist.ProcessGroup | None] = {}
    made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    for spec in specs:
        if not _needs_shared_accumulator(spec, plan.placements[spec.name]):
            continue
        holders: dict[Span, set[int]] = defaultdict(set)
        for shard in plan.shards(spec):
            holders[shard.rows].add(shard.rank)
        for rows, ranks in holders.items():
            key = tuple(sorted(ranks))
            if key not in made:  # torch requires every rank to create every group
                made[key] = new_group(key) if len(key) > 1 else None
            groups[spec.name, rows] = made[key]
    return groups
