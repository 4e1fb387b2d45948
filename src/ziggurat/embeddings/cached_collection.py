"""TorchRec's collection with some tables whose kernels have slots for only a part of their rows.

TorchRec makes each kernel as large as its shard. Here kernels are built from the description of a smaller shard, while
everything that sends ids to the ranks still uses the whole table's rows. :mod:`~ziggurat.embeddings.offload` decides
which row is in which slot. The sharded tensors that TorchRec makes for its own checkpoints would be incomplete, so they
are left out; ziggurat's checkpoints do not need them.
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
    """Creates a :class:`CachedCollection`.

    Args:
        slots: table -> the slots of each of its shards; other tables hold all rows.
        settings: the arguments of TorchRec's own sharder.
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
    """A sharded collection whose kernels are sized by slots; see the module."""

    def __init__(self, slots: Mapping[str, int], *arguments: Any, **settings: Any) -> None:
        self._slots = slots
        super().__init__(*arguments, **settings)

    def _create_lookups(self) -> None:
        for sharding in self._embedding_shardings:
            here: list[Any] = sharding._grouped_embedding_configs_per_rank[dist.get_rank()]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - changed before TorchRec makes kernels of it
            for group in here:
                for table in group.embedding_tables:
                    slots = self._slots.get(table_name(table.name))
                    if slots is not None:
                        _shrink(table, slots)
        super()._create_lookups()

    def _initialize_torch_state(self, skip_registering: bool = False) -> None:
        """Registers no sharded tensors; see the module."""


def _shrink(table: Any, slots: int) -> None:
    """Makes TorchRec's description of a shard on this rank that of its slots; the table is split by rows or not at
    all."""
    number = table.global_metadata.shards_metadata.index(table.local_metadata)
    whole = copy.deepcopy(table.global_metadata)
    for place, shard in enumerate(whole.shards_metadata):
        shard.shard_offsets, shard.shard_sizes = [place * slots, 0], [slots, table.embedding_dim]
    whole.size = torch.Size([slots * len(whole.shards_metadata), table.embedding_dim])
    local: ShardMetadata = whole.shards_metadata[number]
    table.local_rows, table.global_metadata, table.local_metadata = slots, whole, local
