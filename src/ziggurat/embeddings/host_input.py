"""Exchange of ids between the ranks of one host through shared memory.

TorchRec's KJTAllToAll needs three exchanges, of message sizes first. Here each rank writes its ids, and the ranks that
hold the tables read them. The ids of the next batch are written before the current one is computed, so that no rank
waits.

Shape legend: K keys, B rows of each rank's batch (the same for all ranks), N ranks.
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
    """Replaces TorchRec's input distribution of table-wise or column-wise shards.

    The ids of a batch may wait while other batches are exchanged, for example those of the next training batch during
    an evaluation. Their slot is reused after four turns, so they are read before the second turn after theirs starts: a
    rank that starts a turn has read all turns but the last. Four turns later, so has every rank that was waited for.

    Args:
        splits: the number of keys that each rank looks up; keys are grouped by rank.
        slots: the shared memory of all ranks, with four slots each.
    """

    def __init__(self, splits: Sequence[int], slots: SharedSlots) -> None:
        super().__init__()
        self._slots = slots
        before = list(accumulate(splits, initial=0))
        self._mine = slice(before[self._slots.rank], before[self._slots.rank + 1])
        self._pending: list[_PendingIds] = []

    def forward(self, ids: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        """Writes the ids of this rank's batch; does not wait for those of other ranks."""
        assert ids.weights_or_none() is None
        keys, size, values = ids.keys(), ids.stride(), ids.values().long()
        counts_K = ids.length_per_key()
        turn, header = self._slots.begin_turn(), _Header(len(keys), size)
        for pending in self._pending:
            if pending.turn < turn - 1:
                pending.read()
        shared = self._slots.write_buffer(turn, header.values_at + values.nbytes)
        _tensor(shared, 0, torch.int64, len(counts_K)).copy_(torch.tensor(counts_K, dtype=torch.int64))
        _tensor(shared, header.lengths_at, torch.int32, len(keys) * size).copy_(ids.lengths())
        _tensor(shared, header.values_at, torch.int64, len(values)).copy_(values)
        self._slots.publish(turn)
        self._pending = [pending for pending in self._pending if not pending.is_read]
        self._pending.append(_PendingIds(self, turn, keys, header))
        return NoWait(self._pending[-1])

    def gather(self, turn: int, keys: Sequence[str], header: _Header) -> KeyedJaggedTensor:
        """Returns the ids of all ranks for this rank's tables; for each key, the ranks' rows are concatenated in
        order."""
        slots, mine = self._slots, self._mine
        slots.wait(turn)
        lengths: list[Tensor] = []
        values: list[tuple[Tensor, ...]] = []
        for rank in range(slots.ranks):
            shared = slots.read(turn, rank, header.values_at)
            counts_K = _tensor(shared, 0, torch.int64, header.keys).tolist()
            lengths.append(
                _tensor(shared, header.lengths_at, torch.int32, header.keys * header.size).view(header.keys, -1)[mine]
            )
            first, stop = sum(counts_K[: mine.start]), sum(counts_K[: mine.stop])
            shared = slots.read(turn, rank, header.values_at + 8 * stop)
            values.append(_tensor(shared, header.values_at, torch.int64, stop)[first:].split(counts_K[mine]))
        parts = [part for of_key in zip(*values, strict=True) for part in of_key]
        return KeyedJaggedTensor(
            keys=list(keys[mine]),
            values=torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64),
            lengths=torch.cat(lengths, dim=1).view(-1),
            stride=slots.ranks * header.size,
            length_per_key=[sum(map(len, of_key)) for of_key in zip(*values, strict=True)],
        )


class _Header:
    """The layout of a rank's memory: ids per key (K,) int64 at 0, ids per bag (K·B,) int32, then the ids, int64."""

    def __init__(self, keys: int, size: int) -> None:
        self.keys, self.size = keys, size
        self.lengths_at = _whole_lines(8 * keys)
        self.values_at = self.lengths_at + _whole_lines(4 * keys * size)


class _PendingIds(Awaitable[KeyedJaggedTensor]):
    """The ids of all ranks in one turn; read when they are waited for, or before their slots are reused."""

    def __init__(self, exchange: HostInput, turn: int, keys: Sequence[str], header: _Header) -> None:
        super().__init__()
        self.turn = turn
        self._exchange, self._keys, self._head = exchange, keys, header
        self._ids: KeyedJaggedTensor | None = None

    @property
    def is_read(self) -> bool:
        return self._ids is not None

    def read(self) -> KeyedJaggedTensor:
        """Waits for all ranks and returns the ids."""
        if self._ids is None:
            self._ids = self._exchange.gather(self.turn, self._keys, self._head)
        return self._ids

    def _wait_impl(self) -> KeyedJaggedTensor:
        return self.read()


def _whole_lines(size: int) -> int:
    """Rounds a number of bytes up to whole cache lines."""
    return -(-size // LINE) * LINE


def _tensor(shared: memoryview, first: int, dtype: torch.dtype, numel: int) -> Tensor:
    if not numel:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer(shared, dtype=dtype, offset=first, count=numel)
