"""TorchRec's collection, some of whose tables have slots for a part of their rows only.

TorchRec makes kernels as large as shards are. Here a kernel is told of a smaller shard, while everything that sends ids
to the ranks that hold their rows goes on by the whole table; which row lies in which slot is
:mod:`~ziggurat.embeddings.offload`'s business. The sharded tensors that TorchRec makes for its own checkpoints
would not be whole, and are left out: ziggurat's checkpoints do without.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardMetadata
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from ziggurat.embeddings.torchrec_terms import table_name


class CachedSharder(EmbeddingBagCollectionSharder):
    """Makes :class:`CachedCollection`.

    Args:
        slots: table -> how many of its rows each shard has room for; the others have it for all.
        settings: of TorchRec's own sharder.
    """

    def __init__(self, slots: Mapping[str, int], **settings: Any) -> None:
        super().__init__(**settings)
        self._slots = dict(slots)

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedEmbeddingBagCollection:
        return CachedCollection(
            self._slots,
            module,
            params,
            env,
            self.fused_params,
            device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )


class CachedCollection(ShardedEmbeddingBagCollection):
    """See the module."""

    def __init__(self, slots: Mapping[str, int], *arguments: Any, **settings: Any) -> None:
        self._slots = slots
        super().__init__(*arguments, **settings)

    def _create_lookups(self) -> None:
        for sharding in self._embedding_shardings:
            here: list[Any] = sharding._grouped_embedding_configs_per_rank[dist.get_rank()]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - before kernels are made of them
            for group in here:
                for table in group.embedding_tables:
                    slots = self._slots.get(table_name(table.name))
                    if slots is not None:
                        _shrink(table, slots)
        super()._create_lookups()

    def _initialize_torch_state(self, skip_registering: bool = False) -> None:
        """Nothing: see the module."""


def _shrink(table: Any, slots: int) -> None:
    """Have TorchRec's description of a shard on this rank be that of its slots; split by rows, or not at all."""
    number = table.global_metadata.shards_metadata.index(table.local_metadata)
    whole = copy.deepcopy(table.global_metadata)
    for place, shard in enumerate(whole.shards_metadata):
        shard.shard_offsets, shard.shard_sizes = [place * slots, 0], [slots, table.embedding_dim]
    whole.size = torch.Size([slots * len(whole.shards_metadata), table.embedding_dim])
    local: ShardMetadata = whole.shards_metadata[number]
    table.local_rows, table.global_metadata, table.local_metadata = slots, whole, local
