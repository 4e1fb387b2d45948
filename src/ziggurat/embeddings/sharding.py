"""Applies a Plan to tables: a TorchRec EmbeddingBagCollection under DistributedModelParallel, optimizers fused."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import Tensor, nn
from torch.distributed.optim import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,  # pyright: ignore[reportPrivateUsage] - TorchRec's documented hook has no other name
)
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import placement as placed_on
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardedTensor,
    ShardingEnv,
    ShardingPlan,
    ShardingType,
    ShardMetadata,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from ziggurat.core.plan import Plan
from ziggurat.core.tables import TableSpec
from ziggurat.optim.rows import fused_optimizer

# DistributedModelParallel asks torch.fx whether it is tracing; the answer's deprecation notice is not for our users.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)


class ShardedTables(nn.Module):
    """Tables looked up together, their shards where the plan says.

    Needs an initialised process group, also for a world of one. Weights are left uninitialised.
    """

    def __init__(self, tables: Sequence[TableSpec], plan: Plan, device: torch.device) -> None:
        super().__init__()
        world_size = dist.get_world_size()
        assert plan.world_size == world_size, (plan.world_size, world_size)
        os.environ["LOCAL_WORLD_SIZE"] = str(plan.local_size)  # where TorchRec looks which ranks share a host
        collection = EmbeddingBagCollection(tables=[_config(spec) for spec in tables], device=torch.device("meta"))
        for spec in tables:
            kind, settings = fused_optimizer(spec.optimizer, device.type, spec.name)
            apply_optimizer_in_backward(kind, [collection.embedding_bags[inner_name(spec.name)].weight], settings)
        sharder = EmbeddingBagCollectionSharder(fused_params={"bounds_check_mode": BoundsCheckMode.FATAL})
        module_plan = EmbeddingModuleShardingPlan(
            {inner_name(spec.name): _sharding(plan, spec, device) for spec in tables}
        )
        assert dist.group.WORLD is not None
        self._parallel = DistributedModelParallel(
            collection,
            device=device,
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            plan=ShardingPlan(plan={"": module_plan}),
            sharders=[cast("Any", sharder)],
        )
        self._base_lr = [float(group["lr"]) for group in self._groups()]

    def forward(self, ids: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled rows for every key of these tables; ``ids`` may carry further keys."""
        return self._parallel(ids)

    def weight_shards(self) -> Iterator[tuple[str, Tensor, int, int]]:
        """(table, local weights, first row, first column) of each shard on this rank; writing in place changes the
        table."""
        for key, sharded in self._parallel.state_dict().items():
            for shard in _local(sharded):
                row, column = shard.metadata.shard_offsets
                yield _table(key.split(".")[-2]), shard.tensor, row, column

    def optimizer_shards(self) -> Iterator[tuple[str, str, Tensor]]:
        """(table, name of the state, local tensor) of each fused optimizer state; writing in place changes it."""
        for key, states in self._parallel.fused_optimizer.state_dict()["state"].items():
            inner = key.split(".")[-2]
            for name, state in states.items():
                for shard in _local(state):
                    yield _table(inner), name.removeprefix(f"{inner}."), shard.tensor

    def scale_learning_rates(self, multiplier: float) -> None:
        """Set every table's learning rate to ``multiplier`` times its configured one."""
        for group, base in zip(self._groups(), self._base_lr, strict=True):
            group["lr"] = base * multiplier
        self._parallel.fused_optimizer.step()  # pushes the rates into the kernels; the rows update inside backward

    def _groups(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", list(self._parallel.fused_optimizer.param_groups))


_TYPES = {
    "table_wise": ShardingType.TABLE_WISE,
    "row_wise": ShardingType.ROW_WISE,
    "column_wise": ShardingType.COLUMN_WISE,
    "table_row_wise": ShardingType.TABLE_ROW_WISE,
    "grid": ShardingType.GRID_SHARD,
}


def _sharding(plan: Plan, spec: TableSpec, device: torch.device) -> ParameterSharding:
    """What TorchRec calls a table's placement. Not from its own generators: those refuse narrow columns."""
    shards = plan.shards(spec)
    metadata = [
        ShardMetadata(
            shard_sizes=[shard.rows.size, shard.columns.size],
            shard_offsets=[shard.rows.first, shard.columns.first],
            placement=placed_on(device.type, shard.rank, plan.local_size),
        )
        for shard in shards
    ]
    return ParameterSharding(
        sharding_type=_TYPES[plan.placements[spec.name].sharding].value,
        compute_kernel=EmbeddingComputeKernel.FUSED.value,
        ranks=[shard.rank for shard in shards],
        sharding_spec=EnumerableShardingSpec(metadata),
    )


def inner_name(table: str) -> str:
    """A table's name inside torch modules, where a bare one could be a method's, such as ``type`` or ``items``."""
    return f"table:{table}"


def _table(inner: str) -> str:
    return inner.removeprefix(inner_name(""))


def _config(spec: TableSpec) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=inner_name(spec.name),
        embedding_dim=spec.dim,
        num_embeddings=spec.rows,
        feature_names=list(spec.keys),
        pooling=PoolingType.MEAN if spec.pooling == "mean" else PoolingType.SUM,
    )


def _local(sharded: Any) -> list[Any]:
    assert isinstance(sharded, ShardedTensor), type(sharded)
    return sharded.local_shards()
