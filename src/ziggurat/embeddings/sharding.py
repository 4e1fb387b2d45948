"""Applies a Plan to tables: a TorchRec EmbeddingBagCollection under DistributedModelParallel, optimizers fused."""

from __future__ import annotations

import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
from torch import Tensor, nn
from torch.distributed.optim import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,  # pyright: ignore[reportPrivateUsage] - TorchRec's documented hook has no other name
)
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
from ziggurat.embeddings.dirty_rows import Elsewhere, TrackedShard, marked, tensors_of
from ziggurat.embeddings.host_exchange import HostExchange
from ziggurat.embeddings.host_input import HostInput
from ziggurat.embeddings.offload import CachedTable, Line, OffloadedTables, OffloadFolder
from ziggurat.embeddings.torchrec_terms import (
    codecs,
    collection_config,
    first_of,
    inner_name,
    parameter_sharding,
    table_name,
)
from ziggurat.optim.rows import fused_optimizer
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.shared_memory import SharedSlots, shared_slots
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World

# DistributedModelParallel asks torch.fx whether it is tracing; the answer's deprecation notice is not for our users.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
# Nor is it our users who call torch's exchanges by their old names.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning, r"torch\.distributed")


@dataclass(slots=True)
class Distributed:
    """Ids on their way to the ranks that hold their rows.

    Attributes:
        context: TorchRec's.
        ids: what to wait for, then what came.
        lengths: key -> ids in each bag of ours (B,), of the keys whose mean is taken here.
        line: the ids on their way to become slots, where memory has no room for all rows; they have come then.
    """

    context: Any
    ids: Any
    lengths: dict[str, Tensor]
    line: Line | None = None


class ShardedTables(nn.Module):
    """Tables looked up together, their shards where the plan says.

    Needs an initialised process group, also for a world of one. Weights are left uninitialised, but for those of tables
    of which the plan says how many slots memory has: their rows begin as the seed says.

    Args:
        tables: they.
        plan: where their shards live.
        device: of this rank.
        parallel: in which precision rows travel.
        batch_size: rows that the loss is a mean over.
        beyond: where rows lie that memory has no room for.
        seed: of their initial weights.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        plan: Plan,
        device: torch.device,
        parallel: ParallelConfig,
        batch_size: int,
        beyond: OffloadFolder | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        world_size = dist.get_world_size()
        assert plan.world_size == world_size, (plan.world_size, world_size)
        os.environ["LOCAL_WORLD_SIZE"] = str(plan.local_size)  # where TorchRec looks which ranks share a host
        self._specs = {spec.name: spec for spec in tables}
        parts = {spec.name for spec in tables if plan.placements[spec.name].sharding in SPLIT_BY_ROWS}
        # TorchRec 1.8 confuses keys when it takes means of some tables that are split by rows; we take them.
        self._mean_keys = [key for spec in tables if spec.name in parts and spec.pooling == "mean" for key in spec.keys]
        configs = [collection_config(spec, "sum" if spec.name in parts else spec.pooling) for spec in tables]
        collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        for spec in tables:
            kind, settings = fused_optimizer(spec.optimizer, device.type, spec.name)
            if _needs_joint_rows(spec, plan.placements[spec.name]):  # the kernel is replaced: one without a state
                kind, settings = fused_optimizer({"name": "sgd"}, device.type, spec.name)
            apply_optimizer_in_backward(kind, [collection.embedding_bags[inner_name(spec.name)].weight], settings)
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
        self._joint = self._join_columns(plan)
        self.beyond: OffloadedTables | None = None
        self._elsewhere: dict[str, Elsewhere] = {}
        if slots:
            assert beyond is not None, f"{list(slots)}: nothing says where their rows lie"
            self._reach_beyond(plan, slots, beyond, seed)
        self._input_slots: dict[int, SharedSlots] = {}
        try:
            self._shards = list(self._held(plan))
            if not parallel.reduced:
                self._share_memory(parallel, device)
            self._base_lr = [float(group["lr"]) for group in self._groups()]
        except BaseException:
            if self.beyond is not None:
                self.beyond.close()
            raise

    def forward(self, ids: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled rows for every key of these tables; ``ids`` may carry further keys."""
        return self.finish(self.start(ids))

    def start(self, ids: KeyedJaggedTensor) -> Distributed:
        """Begin to send ids to the ranks that hold their rows; does not wait for them."""
        sharded = self._sharded
        context = sharded.create_context()
        lengths = {key: ids[key].lengths() for key in self._mean_keys}
        begun = Distributed(context, sharded.input_dist(context, ids), lengths)
        if self._input_slots:
            self._share_input()
        if self.beyond is not None:
            self.arrive(begun)
            begun.line = self.beyond.announce(list(begun.ids), updates=torch.is_grad_enabled())
        return begun

    def sent(self, begun: Distributed) -> None:
        """Wait until the ranks know how many ids will come, and begin to send these."""
        if begun.line is None:
            begun.ids = begun.ids.wait()

    def finish(self, begun: Distributed) -> KeyedTensor:
        """Wait for the ids of others, look them up, and exchange the pooled rows."""
        self.arrive(begun)
        if begun.line is not None and self.beyond is not None:
            begun.ids = KJTList(self.beyond.placed(begun.line))
        keyed: KeyedTensor = self._sharded.compute_and_output_dist(begun.context, begun.ids).wait()
        if begun.line is not None and self.beyond is not None and not begun.line.updates:
            self.beyond.over()
        return _meant(keyed, begun.lengths) if begun.lengths else keyed

    def arrive(self, begun: Distributed) -> None:
        """Wait for the ids of others."""
        while hasattr(begun.ids, "wait"):
            begun.ids = begun.ids.wait()

    def drop(self, begun: Distributed) -> None:
        """Let ids arrive that will not be looked up."""
        self.arrive(begun)
        if begun.line is not None and self.beyond is not None:
            self.beyond.drop(begun.line)

    def close(self) -> None:
        """Delete what lies on disk."""
        if self.beyond is not None:
            self.beyond.close()

    def exchange(self) -> None:
        """Behind each backward pass: the step of rows whose columns are on several ranks; and rows beyond memory may
        leave their slots."""
        for shards in self._joint.values():
            exchange(shards)
        if self.beyond is not None:
            self.beyond.over()

    def weights(self) -> Iterator[TensorSlice]:
        """The shards on this rank."""
        for shard in self._shards:
            yield shard.weight

    def states(self) -> Iterator[TensorSlice]:
        """The optimizer's states of those shards, named ``table/state``."""
        for shard in self._shards:
            yield from shard.states.values()

    def shards(self) -> list[TrackedShard]:
        """The shards on this rank, with their states and which rows have changed; writing in place changes them."""
        return list(self._shards)

    def scale_learning_rates(self, multiplier: float) -> None:
        """Set every table's learning rate to ``multiplier`` times its configured one."""
        for group, base in zip(self._groups(), self._base_lr, strict=True):
            group["lr"] = base * multiplier
        self._parallel.fused_optimizer.step()  # pushes the rates into the kernels; the rows update inside backward
        for shards in self._joint.values():
            for shard in shards:
                shard.lr = float(shard.spec.optimizer["lr"]) * multiplier

    @property
    def _sharded(self) -> ShardedEmbeddingBagCollection:
        return cast("ShardedEmbeddingBagCollection", self._parallel.module)

    def _groups(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", list(self._parallel.fused_optimizer.param_groups))

    def _numbered_kernels(self) -> Iterator[tuple[int, BatchedFusedEmbeddingBag]]:
        """With the number of TorchRec's way of sharding that each is of."""
        for number, lookup in enumerate(self._sharded._lookups):  # pyright: ignore[reportPrivateUsage] - a plain list, no submodules
            for module in lookup.modules():
                if isinstance(module, BatchedFusedEmbeddingBag):
                    yield number, module

    def _kernels(self) -> Iterator[BatchedFusedEmbeddingBag]:
        for _, kernel in self._numbered_kernels():
            yield kernel

    def _held(self, plan: Plan) -> Iterator[TrackedShard]:
        for kernel in self._kernels():
            inner, tables = kernel.emb_module, kernel.config.embedding_tables
            names = [table_name(table.name) for table in tables]
            elsewhere = {number: self._elsewhere[name] for number, name in enumerate(names) if name in self._elsewhere}
            marks = inner.marks() if isinstance(inner, ColumnKernel) else marked(kernel, elsewhere)
            for name, table, each in zip(names, tables, marks, strict=True):
                spec = self._specs[name]
                first = (_own_rows(plan, spec).first, 0) if name in self._elsewhere else first_of(table)
                shard = TrackedShard.of(spec, first, each)
                yield shard.into(self._elsewhere[name].sinks) if name in self._elsewhere else shard

    def _reach_beyond(self, plan: Plan, slots: Mapping[str, int], beyond: OffloadFolder, seed: int) -> None:
        """Have the kernels' slots filled from disk, where they have any."""
        found: list[CachedTable] = []
        for number, kernel in self._numbered_kernels():
            names = [table_name(each.name) for each in kernel.config.embedding_tables]
            for name, tensors in zip(names, tensors_of(kernel), strict=True):
                if name in slots:
                    spec = self._specs[name]
                    found.append(CachedTable(spec, _own_rows(plan, spec), tensors, number))
        self.beyond = OffloadedTables(found, beyond, seed)
        self._elsewhere = {
            shard.spec.name: Elsewhere(shard.shapes(), rows, rows.ids, rows.sinks())
            for shard, rows in zip(found, self.beyond.rows(), strict=True)
        }

    def _join_columns(self, plan: Plan) -> dict[tuple[str, Span], list[ColumnShard]]:
        """Put :class:`ColumnKernel` where a row's columns must step together; (table, rows) -> its shards here.

        In the order of the plan's tables, which is that of every rank's exchange.
        """
        groups = _column_groups(plan, list(self._specs.values()))
        found: dict[tuple[str, Span], list[ColumnShard]] = defaultdict(list)
        for kernel in self._kernels():
            tables = kernel.config.embedding_tables
            specs = [self._specs[table_name(table.name)] for table in tables]
            if not any(_needs_joint_rows(spec, plan.placements[spec.name]) for spec in specs):
                continue
            mean = kernel._pooling is PoolingMode.MEAN  # pyright: ignore[reportPrivateUsage] - of parts of rows: SUM
            shards: list[ColumnShard] = []
            for spec, table, weight in zip(specs, tables, kernel.split_embedding_weights(), strict=True):
                assert _needs_joint_rows(spec, plan.placements[spec.name]), spec.name
                rows = Span(first_of(table)[0], weight.shape[0])
                shard = ColumnShard(spec, rows, weight.detach(), "mean" if mean else "sum", groups[spec.name, rows])
                found[spec.name, rows].append(shard)
                shards.append(shard)
            kernel._emb_module = cast("Any", ColumnKernel(shards, [table.num_features() for table in tables]))  # pyright: ignore[reportPrivateUsage]
        return {key: found[key] for key in groups if key in found}

    def _share_input(self) -> None:
        """Put :class:`HostInput` where TorchRec sends ids through gloo; it makes its way with the first batch."""
        dists = self._sharded._input_dists  # pyright: ignore[reportPrivateUsage]
        for number, slots in self._input_slots.items():
            there = dists[number]
            assert isinstance(there, TwSparseFeaturesDist)
            dists[number] = HostInput(there._dist._splits, slots)  # pyright: ignore[reportPrivateUsage]
        self._input_slots = {}

    def _share_memory(self, parallel: ParallelConfig, device: torch.device) -> None:
        """Put :class:`HostExchange` where TorchRec sends pooled rows of whole tables, or of columns, through gloo."""
        sharded = self._sharded
        dists = sharded._output_dists  # pyright: ignore[reportPrivateUsage]
        for number, there in enumerate(dists):
            if not isinstance(there, TwPooledEmbeddingDist):
                continue
            rows, ids = (shared_slots(parallel, World.current(), device, slots) for slots in (2, 4))
            if rows is None or ids is None:
                return
            widths, callbacks = there._emb_dim_per_rank_per_feature, there._callbacks or []  # pyright: ignore[reportPrivateUsage]
            order = self._ordered(sharded) if len(dists) == 1 and not callbacks else None
            dists[number] = HostExchange(widths, order, rows, callbacks)
            self._input_slots[number] = ids

    def _ordered(self, sharded: ShardedEmbeddingBagCollection) -> list[int]:
        """Have the output in the order of our tables' keys; the place there of each key as it comes from the ranks."""
        names, dims = sharded._embedding_names, sharded._embedding_dims  # pyright: ignore[reportPrivateUsage]
        dim_of = {key: spec.dim for spec in self._specs.values() for key in spec.keys}
        place = {key: at for at, key in enumerate(dim_of)}
        order = [place[name] for name in names]
        names[:], dims[:] = dim_of.keys(), dim_of.values()
        return order


def _meant(keyed: KeyedTensor, lengths: dict[str, Tensor]) -> KeyedTensor:
    """The sums of some keys divided by how many rows were summed; an empty bag stays zero."""
    keys, widths = keyed.keys(), keyed.length_per_key()
    ones_B = torch.ones_like(next(iter(lengths.values())))
    counts_BK = torch.stack([lengths[key].clamp(min=1) if key in lengths else ones_B for key in keys], dim=1)
    values = keyed.values() / counts_BK.repeat_interleave(torch.tensor(widths, device=counts_BK.device), dim=1)
    return KeyedTensor(keys, widths, values)


def _own_rows(plan: Plan, spec: TableSpec) -> Span:
    """Of a table that is not split by columns, the rows on this rank."""
    return next(shard.rows for shard in plan.shards(spec) if shard.rank == dist.get_rank())


def _needs_joint_rows(spec: TableSpec, placement: Placement) -> bool:
    return placement.sharding in {"column_wise", "grid"} and spec.optimizer["name"] == "rowwise_adagrad"


def _column_groups(plan: Plan, specs: Sequence[TableSpec]) -> dict[tuple[str, Span], dist.ProcessGroup | None]:
    """(table, rows) -> the group of the ranks that hold columns of these rows, None where one holds them all."""
    groups: dict[tuple[str, Span], dist.ProcessGroup | None] = {}
    made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    for spec in specs:
        if not _needs_joint_rows(spec, plan.placements[spec.name]):
            continue
        holders: dict[Span, set[int]] = defaultdict(set)
        for shard in plan.shards(spec):
            holders[shard.rows].add(shard.rank)
        for rows, ranks in holders.items():
            key = tuple(sorted(ranks))
            if key not in made:  # on every rank, as torch demands
                made[key] = cast("dist.ProcessGroup", dist.new_group(list(key))) if len(key) > 1 else None
            groups[spec.name, rows] = made[key]
    return groups
