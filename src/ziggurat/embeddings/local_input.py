"""The exchange of ids where there is one rank, which needs no process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingSharding
from torchrec.distributed.types import Awaitable, NoWait
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class LocalInput(nn.Module):
    """Replaces TorchRec's input distribution of table-wise or column-wise shards at world size 1.

    TorchRec's own passes the ids on as well, but asks the default process group for the rank at each batch. With this
    one, a lookup that has been assembled does not need the group any more.
    """

    def forward(self, ids: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        """Returns the ids as they are."""
        ids.sync()
        return NoWait(NoWait(ids))


def keep_ids_local(shardings: Sequence[Any]) -> None:
    """Makes TorchRec's table- and column-wise shardings create a :class:`LocalInput` at their first batch."""
    for sharding in shardings:
        if isinstance(sharding, TwPooledEmbeddingSharding):
            sharding.create_input_dist = lambda device=None: LocalInput()  # pyright: ignore[reportAttributeAccessIssue]
