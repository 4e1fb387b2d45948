"""Our tables and placements in TorchRec's terms."""

from __future__ import annotations

from typing import Any, cast

import torch
from fbgemm_gpu.quantize_comm import QuantizationContext, QuantizedCommCodec
from fbgemm_gpu.split_embedding_configs import SparseType
from torch import Tensor
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.sharding_plan import placement as placed_on
from torchrec.distributed.types import EnumerableShardingSpec, ParameterSharding, ShardingType, ShardMetadata
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType

from ziggurat.core.plan import Plan
from ziggurat.core.tables import Pooling, TableSpec
from ziggurat.parallel.config import ParallelConfig, Precision

_TYPES = {
    "table_wise": ShardingType.TABLE_WISE,
    "row_wise": ShardingType.ROW_WISE,
    "column_wise": ShardingType.COLUMN_WISE,
    "table_row_wise": ShardingType.TABLE_ROW_WISE,
    "grid": ShardingType.GRID_SHARD,
}


def parameter_sharding(plan: Plan, spec: TableSpec, device: torch.device) -> ParameterSharding:
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


def table_name(inner: str) -> str:
    """The table that :func:`inner_name` named."""
    return inner.removeprefix(inner_name(""))


def first_of(table: Any) -> tuple[int, int]:
    """First row and column of a shard, from TorchRec's own description of it."""
    row, column = table.local_metadata.shard_offsets
    return row, column


def collection_config(spec: TableSpec, pooling: Pooling) -> EmbeddingBagConfig:
    """A table as TorchRec describes one."""
    return EmbeddingBagConfig(
        name=inner_name(spec.name),
        embedding_dim=spec.dim,
        num_embeddings=spec.rows,
        feature_names=list(spec.keys),
        pooling=PoolingType.MEAN if pooling == "mean" else PoolingType.SUM,
    )


_TRAVELS: dict[Precision, CommType] = {"fp32": CommType.FP32, "fp16": CommType.FP16, "bf16": CommType.BF16}


def codecs(parallel: ParallelConfig, batch_size: int) -> Any:
    """How rows and their gradients are written for the way between ranks; None: as they are.

    The loss is a mean over the batch, so the larger that is, the smaller are gradients, and FP16 knows none below 6e-8:
    they are sent times the batch size, or the power of two below it, which rounds nothing.
    """
    if not parallel.reduced:
        return None
    forward, backward = parallel.forward_precision, parallel.backward_precision
    registry = get_qcomm_codecs_registry(
        QCommsConfig(forward_precision=_TRAVELS[forward], backward_precision=_TRAVELS[backward])
    )
    for each in (registry or {}).values():
        if backward == "fp16":
            each.backward = cast("Any", _Scaled(2.0 ** (batch_size.bit_length() - 1)))
    return registry


class _Scaled(QuantizedCommCodec):
    """FP16 of numbers times ``factor``. FBGEMM 1.8 has a loss scale, but divides by it while numbers are FP16 still."""

    def __init__(self, factor: float) -> None:
        super().__init__(SparseType.FP16, is_fwd=False)
        self._factor = factor

    def encode(self, input_tensor: Tensor, ctx: QuantizationContext | None = None) -> Tensor:
        return super().encode(input_tensor * self._factor, ctx)

    def decode(self, input_tensor: Tensor, ctx: QuantizationContext | None = None) -> Tensor:
        return super().decode(input_tensor, ctx).div_(self._factor)
