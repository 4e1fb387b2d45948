"""A rank's part of a global batch."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.batch import Batch


def part(whole: Batch, rank: int, world_size: int) -> Batch:
    """Returns a rank's even part of the batch."""
    size = whole.size
    start, stop = size * rank // world_size, size * (rank + 1) // world_size

    def cut(ids: KeyedJaggedTensor | None) -> KeyedJaggedTensor:
        assert ids is not None
        jagged = [(key, ids[key]) for key in ids.keys()]  # noqa: SIM118 - no dict
        lengths = [each.lengths()[start:stop] for _, each in jagged]
        values = [each.values()[each.offsets()[start] : each.offsets()[stop]] for _, each in jagged]
        return KeyedJaggedTensor(keys=[key for key, _ in jagged], values=torch.cat(values), lengths=torch.cat(lengths))

    largest = -(-size // world_size)
    return Batch(
        whole.dense_BF[start:stop], cut(whole.bags), cut(whole.sequences), whole.labels_BT[start:stop], largest=largest
    )
