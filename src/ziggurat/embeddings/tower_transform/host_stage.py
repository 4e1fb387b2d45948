"""Puts the exchange within a host into TorchRec's lookup, in place of its exchange between all ranks.

Shape legend: G ranks, H hosts, b rows of a rank, R = H·b, W floats of this rank's tables, V of those of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist
from torchrec.distributed.types import Awaitable, NoWait

from ziggurat.embeddings.torchrec_terms import shard_offset
from ziggurat.embeddings.tower_transform.exchanges import HostRanks, SummedRows, WholeRows


class HostStage(nn.Module):
    """Replaces one of TorchRec's output exchanges: rows of this rank's tables (G·b, W) → of the host's (H·b, V).

    Args:
        exchange: the exchange.
        width: W.
        pieces: what the exchange returns of a row, in order.
    """

    def __init__(self, exchange: WholeRows | SummedRows, width: int, pieces: Sequence[_Piece]) -> None:
        super().__init__()
        self._exchange, self._width = exchange, width
        self._widths = [each.width for each in pieces]
        keys = list(dict.fromkeys(each.key for each in pieces))
        ranked = sorted(range(len(pieces)), key=lambda place: (keys.index(pieces[place].key), pieces[place].column))
        self._order = None if ranked == list(range(len(pieces))) else ranked
        self.keys = keys
        self.dims = [sum(each.width for each in pieces if each.key == key) for key in keys]

    def forward(self, local_GbW: Tensor, context: Any = None) -> Awaitable[Tensor]:
        sizes = list(context.batch_size_per_rank)
        assert len(set(sizes)) == 1, f"ranks have batches of different sizes: {sizes}"
        rows_RV = self._exchange(local_GbW.view(sum(sizes), self._width))
        if self._order is not None:
            parts = rows_RV.split(self._widths, dim=1)
            rows_RV = torch.cat([parts[place] for place in self._order], dim=1)
        return NoWait(rows_RV)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a rank looks up of a key: a range of columns.

    Attributes:
        key: the key.
        width: the number of columns.
        column: the first one; others of the key are looked up elsewhere if its table is split by columns.
    """

    key: str
    width: int
    column: int


def exchange_within_hosts(sharded: ShardedEmbeddingBagCollection, ranks: HostRanks) -> None:
    """Makes TorchRec's module return the rows of the tables of this host, for the rows of this rank and of its peers.

    Args:
        sharded: the module; each table is on one rank, or split by rows or by columns over ranks of a host.
        ranks: the groups.
    """
    world = ranks.world
    own = range(ranks.host * world.local_size, (ranks.host + 1) * world.local_size)
    names, dims = list[str](), list[int]()
    shardings: list[Any] = list(sharded._embedding_shardings)  # pyright: ignore[reportPrivateUsage]
    dists = sharded._output_dists  # pyright: ignore[reportPrivateUsage]
    for number, (sharding, replaced) in enumerate(zip(shardings, dists, strict=True)):
        by_rank = [_looked_up(sharding, rank) for rank in own]
        width = _width(by_rank[ranks.local])
        if isinstance(replaced, TwPooledEmbeddingDist):
            exchange = WholeRows(ranks, [_width(each) for each in by_rank])
        else:
            assert isinstance(replaced, TwRwPooledEmbeddingDist), replaced
            exchange, by_rank = SummedRows(ranks), by_rank[ranks.local : ranks.local + 1]
        stage = HostStage(exchange, width, [piece for pieces in by_rank for piece in pieces])
        names.extend(stage.keys)
        dims.extend(stage.dims)
        dists[number] = stage
    sharded._embedding_names[:], sharded._embedding_dims[:] = names, dims  # pyright: ignore[reportPrivateUsage]


def _width(pieces: Sequence[_Piece]) -> int:
    return sum(each.width for each in pieces)


def _looked_up(sharding: Any, rank: int) -> list[_Piece]:
    """Returns what a rank looks up under a sharding, in the order of its output."""
    tables = [table for group in sharding._grouped_embedding_configs_per_rank[rank] for table in group.embedding_tables]
    return [_Piece(key, table.local_cols, shard_offset(table)[1]) for table in tables for key in table.embedding_names]
