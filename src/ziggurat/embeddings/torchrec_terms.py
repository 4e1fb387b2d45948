"""Converts ziggurat's tables, placements and precisions to TorchRec's types."""

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

_SHARDING_TYPES = {
    "table_wise": ShardingType.TABLE_WISE,
    "row_wise": ShardingType.ROW_WISE,
    "column_wise": ShardingType.COLUMN_WISE,
    "table_row_wise": ShardingType.TABLE_ROW_WISE,
    "grid": ShardingType.GRID_SHARD,
}


def parameter_sharding(plan: Plan, spec: TableSpec, device: torch.device) -> ParameterSharding:
    """Converts a table's placement. TorchRec's own generators are not used, as they reject narrow columns."""
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
        sharding_type=_SHARDING_TYPES[plan.placements[spec.name].sharding].value,
        compute_kernel=EmbeddingComputeKernel.FUSED.value,
        ranks=[shard.rank for shard in shards],
        sharding_spec=EnumerableShardingSpec(metadata),
    )


def inner_name(table: str) -> str:
    """Returns a table's name inside torch modules, prefixed so that it cannot collide with a method such as
    ``items``."""
    return f"table:{table}"


def table_name(inner: str) -> str:
    """Returns the table's name, the inverse of :func:`inner_name`."""
    return inner.removeprefix(inner_name(""))


def shard_offset(table: Any) -> tuple[int, int]:
    """Returns the first row and column of a shard, from TorchRec's description of it."""
    row, column = table.local_metadata.shard_offsets
    return row, column


def collection_config(spec: TableSpec, pooling: Pooling) -> EmbeddingBagConfig:
    """Converts a table to TorchRec's config."""
    return EmbeddingBagConfig(
        name=inner_name(spec.name),
        embedding_dim=spec.dim,
        num_embeddings=spec.rows,
        feature_names=list(spec.keys),
        pooling=PoolingType.MEAN if pooling == "mean" else PoolingType.SUM,
    )


_COMM_TYPES: dict[Precision, CommType] = {"fp32": CommType.FP32, "fp16": CommType.FP16, "bf16": CommType.BF16}


def codecs(parallel: ParallelConfig, batch_size: int) -> Any:
    """Returns the registry of codecs that reduce the precision of rows and gradients between ranks; None for FP32.

    The loss is a mean over the batch, so gradients shrink as the batch grows, and FP16 cannot represent magnitudes
    below 6e-8. Therefore FP16 gradients are multiplied by the largest power of two that does not exceed the batch size;
    a power of two causes no rounding.
    """
    if not parallel.reduced:
        return None
    forward, backward = parallel.forward_precision, parallel.backward_precision
    registry = get_qcomm_codecs_registry(
        QCommsConfig(forward_precision=_COMM_TYPES[forward], backward_precision=_COMM_TYPES[backward])
    )
    for each in (registry or {}).values():
        if backward == "fp16":
            each.backward = cast("Any", _ScaledFP16(2.0 ** (batch_size.bit_length() - 1)))
    return registry


class _ScaledFP16(QuantizedCommCodec):
    """Encodes ``factor`` times the tensor as FP16.

    FBGEMM 1.8 has a loss scale of its own, but divides by it while the tensor is still FP16.
    """

    def __init__(self, factor: float) -> None:
        super().__init__(SparseType.FP16, is_fwd=False)
        self._factor = factor

    def encode(self, input_tensor: Tensor, ctx: QuantizationContext | None = None) -> Tensor:
        return super().encode(input_tensor * self._factor, ctx)

    def decode(self, input_tensor: Tensor, ctx: QuantizationContext | None = None) -> Tensor:
        return super().decode(input_tensor, ctx).div_(self._factor)
