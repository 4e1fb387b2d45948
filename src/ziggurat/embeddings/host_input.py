"""Ranks of one host tell each other the ids of their batches through memory that they share.

What TorchRec's KJTAllToAll does in three exchanges, the sizes of messages first: here a rank writes its ids, and who
holds their tables reads them. Those of the next batch are written before this one is computed, so that nobody waits.

Shape legend: K keys, B rows of each rank's batch (all have equally many), N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torchrec.distributed.types import Awaitable, NoWait
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.parallel.shared_memory import LINE, SharedSlots


class HostInput(nn.Module):
    """Stands where TorchRec's input distribution of whole tables, or of columns, was.

    The ids of a batch may wait while other batches come and go, as those of the next training batch do while a split is
    evaluated. Their slot comes round again in four turns, so they are read before the second turn behind theirs begins:
    a rank that begins a turn has read all turns but the last, and so, four turns later, has every rank that was met.

    Args:
        splits: how many of the keys, which come rank by rank, each rank looks up.
        slots: of all ranks, four each.
    """

    def __init__(self, splits: Sequence[int], slots: SharedSlots) -> None:
        super().__init__()
        self._slots = slots
        before = list(accumulate(splits, initial=0))
        self._mine = slice(before[self._slots.rank], before[self._slots.rank + 1])
        self._begun: list[_Coming] = []

    def forward(self, ids: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        """Write the ids of this rank's batch; does not wait for those of others."""
        assert ids.weights_or_none() is None
        keys, size, values = ids.keys(), ids.stride(), ids.values().long()
        counts_K = ids.length_per_key()
        turn, head = self._slots.begin(), _Head(len(keys), size)
        for coming in self._begun:
            if coming.turn < turn - 1:
                coming.read()
        shared = self._slots.written(turn, head.values_at + values.nbytes)
        _tensor(shared, 0, torch.int64, len(counts_K)).copy_(torch.tensor(counts_K, dtype=torch.int64))
        _tensor(shared, head.lengths_at, torch.int32, len(keys) * size).copy_(ids.lengths())
        _tensor(shared, head.values_at, torch.int64, len(values)).copy_(values)
        self._slots.arrive(turn)
        self._begun = [coming for coming in self._begun if not coming.is_read]
        self._begun.append(_Coming(self, turn, keys, head))
        return NoWait(self._begun[-1])

    def of_all(self, turn: int, keys: Sequence[str], head: _Head) -> KeyedJaggedTensor:
        """The ids of all ranks for this rank's tables: of each key, one rank's rows after the other's."""
        slots, mine = self._slots, self._mine
        slots.meet(turn)
        lengths: list[Tensor] = []
        values: list[tuple[Tensor, ...]] = []
        for rank in range(slots.ranks):
            shared = slots.read(turn, rank, head.values_at)
            counts_K = _tensor(shared, 0, torch.int64, head.keys).tolist()
            lengths.append(
                _tensor(shared, head.lengths_at, torch.int32, head.keys * head.size).view(head.keys, -1)[mine]
            )
            first, stop = sum(counts_K[: mine.start]), sum(counts_K[: mine.stop])
            shared = slots.read(turn, rank, head.values_at + 8 * stop)
            values.append(_tensor(shared, head.values_at, torch.int64, stop)[first:].split(counts_K[mine]))
        parts = [part for of_key in zip(*values, strict=True) for part in of_key]
        return KeyedJaggedTensor(
            keys=list(keys[mine]),
            values=torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64),
            lengths=torch.cat(lengths, dim=1).view(-1),
            stride=slots.ranks * head.size,
            length_per_key=[sum(map(len, of_key)) for of_key in zip(*values, strict=True)],
        )


class _Head:
    """Where in a rank's memory what begins: ids of each key (K,) int64; of each bag (K·B,) int32; the ids, int64."""

    def __init__(self, keys: int, size: int) -> None:
        self.keys, self.size = keys, size
        self.lengths_at = _lines(8 * keys)
        self.values_at = self.lengths_at + _lines(4 * keys * size)


class _Coming(Awaitable[KeyedJaggedTensor]):
    """The ids of all ranks in one turn; read when they are waited for, or before their slots come round again."""

    def __init__(self, exchange: HostInput, turn: int, keys: Sequence[str], head: _Head) -> None:
        super().__init__()
        self.turn = turn
        self._exchange, self._keys, self._head = exchange, keys, head
        self._ids: KeyedJaggedTensor | None = None

    @property
    def is_read(self) -> bool:
        return self._ids is not None

    def read(self) -> KeyedJaggedTensor:
        """Waits for the ranks."""
        if self._ids is None:
            self._ids = self._exchange.of_all(self.turn, self._keys, self._head)
        return self._ids

    def _wait_impl(self) -> KeyedJaggedTensor:
        return self.read()


def _lines(size: int) -> int:
    """Bytes up to the next whole cache line."""
    return -(-size // LINE) * LINE


def _tensor(shared: memoryview, first: int, dtype: torch.dtype, numel: int) -> Tensor:
    if not numel:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer(shared, dtype=dtype, offset=first, count=numel)
