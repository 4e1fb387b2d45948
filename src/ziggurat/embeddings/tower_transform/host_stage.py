"""Puts the exchange within a host into TorchRec's lookup, in place of its exchange between all ranks.

Shape legend: G ranks, H hosts, b rows of a rank, W floats of this rank's tables, V of those of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist
from torchrec.distributed.types import Awaitable, NoWait

from ziggurat.embeddings.tower_transform.exchanges import HostRanks, SummedRows, WholeRows


class HostStage(nn.Module):
    """Replaces one of TorchRec's output exchanges: rows of this rank's tables (G·b, W) → of the host's (H·b, V)."""

    def __init__(self, exchange: WholeRows | SummedRows, width: int) -> None:
        super().__init__()
        self._exchange, self._width = exchange, width

    def forward(self, local_GbW: Tensor, context: Any = None) -> Awaitable[Tensor]:
        sizes = list(context.batch_size_per_rank)
        assert len(set(sizes)) == 1, f"ranks have batches of different sizes: {sizes}"
        return NoWait(self._exchange(local_GbW.view(sum(sizes), self._width)))


def exchange_within_hosts(sharded: ShardedEmbeddingBagCollection, ranks: HostRanks) -> None:
    """Makes TorchRec's module return the rows of the tables of this host, for the rows of this rank and of its peers.

    Args:
        sharded: the module; each table is on one rank, or split by rows over the ranks of a host.
        ranks: the groups.
    """
    world = ranks.world
    own = range(ranks.host * world.local_size, (ranks.host + 1) * world.local_size)
    names, dims = list[str](), list[int]()
    shardings: list[Any] = list(sharded._embedding_shardings)  # pyright: ignore[reportPrivateUsage]
    dists = sharded._output_dists  # pyright: ignore[reportPrivateUsage]
    for number, (sharding, replaced) in enumerate(zip(shardings, dists, strict=True)):
        by_rank = [_looked_up(sharding, rank) for rank in own]
        width = sum(by_rank[ranks.local][1])
        if isinstance(replaced, TwPooledEmbeddingDist):
            exchange = WholeRows(ranks, [sum(each) for _, each in by_rank])
        else:
            assert isinstance(replaced, TwRwPooledEmbeddingDist), replaced
            exchange, by_rank = SummedRows(ranks), by_rank[ranks.local : ranks.local + 1]
        for keys, widths in by_rank:
            names.extend(keys)
            dims.extend(widths)
        dists[number] = HostStage(exchange, width)
    sharded._embedding_names[:], sharded._embedding_dims[:] = names, dims  # pyright: ignore[reportPrivateUsage]


def _looked_up(sharding: Any, rank: int) -> tuple[Sequence[str], Sequence[int]]:
    """Returns the keys that a rank looks up under a sharding, in the order of its output, and their widths."""
    groups = sharding._grouped_embedding_configs_per_rank[rank]
    return [name for each in groups for name in each.embedding_names()], [
        dim for each in groups for dim in each.embedding_dims()
    ]
