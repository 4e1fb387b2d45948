"""The stream of an epoch: every row of a split once, in an order that is a pure function of (seed, epoch).

The order is made in two steps:

1. The blocks of the split are permuted (seeded by seed and epoch) and grouped into *pools* of ``pool_blocks``;
2. the rows of a pool are permuted (seeded by seed, epoch and the pool's number).

Any process that has the split can make any range ``[start, stop)`` of the stream, and all make bit-identical batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from ziggurat.core.batch import Batch
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.columns import Columns, Rows, concatenate


class BlockSource(Protocol):
    """The encoded blocks of one split, either stored on disk or made on demand."""

    @property
    def sizes(self) -> Sequence[int]:
        """Number of rows in each block, in file order."""
        ...

    def read(self, block: int) -> pa.RecordBatch:
        """Reads one block. Thread-safe."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters that, together with the sizes of the blocks, determine the order of an epoch's stream.

    Attributes:
        epoch: the epoch; each has a different order.
        seed: seed of the permutations.
        shuffle: whether to permute; False keeps file order.
        pool_blocks: blocks that are shuffled together.
    """

    epoch: int
    seed: int
    shuffle: bool
    pool_blocks: int

    def blocks(self, count: int) -> Rows:
        """Returns the indices of ``count`` blocks in stream order."""
        if not self.shuffle:
            return np.arange(count)
        return np.random.default_rng([self.seed, self.epoch, 0]).permutation(count)

    def rows(self, pool: int, count: int) -> Rows | None:
        """Returns the order of the ``count`` rows of a pool; None for file order."""
        return np.random.default_rng([self.seed, self.epoch, 1, pool]).permutation(count) if self.shuffle else None


class Stream:
    """Random access to the rows of one epoch's stream.

    Args:
        blocks: the blocks of the split.
        schema: the schema of the dataset.
        order: the order of the rows.
        cache: keeps pools while they are in use; default: a private cache of one pool.
        name: distinguishes the pools of this split from those of others in a shared ``cache``.
    """

    def __init__(
        self, blocks: BlockSource, schema: Schema, order: Order, cache: PoolCache | None = None, name: Hashable = ""
    ) -> None:
        self._blocks, self._schema, self._order, self._name = blocks, schema, order, name
        self._cache = cache or PoolCache(1)
        sizes = np.asarray(blocks.sizes, np.int64)
        block_order = order.blocks(len(sizes))
        self._pools = [block_order[i : i + order.pool_blocks] for i in range(0, len(block_order), order.pool_blocks)]
        pool_rows = [int(sizes[pool].sum()) for pool in self._pools]
        self.starts: Rows = np.concatenate([[0], np.cumsum(pool_rows)]).astype(np.int64)
        """The position at which each pool begins, and finally the end of the stream."""

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    def batch(self, start: int, stop: int) -> Batch:
        """Returns rows ``start`` to ``stop`` of the stream, which may span several pools."""
        parts: list[Batch] = []
        while start < stop:
            number = self.pool_at(start)
            first, end = int(self.starts[number]), min(stop, int(self.starts[number + 1]))
            pool = self.pool(number)
            pool_slice = slice(start - first, end - first)
            rows = np.arange(pool_slice.start, pool_slice.stop) if pool.order is None else pool.order[pool_slice]
            parts.append(pool.columns.batch(rows))
            del pool  # release it before the next one is read
            start = end
        return parts[0] if len(parts) == 1 else concatenate(parts, self._schema)

    def pool_at(self, position: int) -> int:
        """Returns the index of the pool that holds this row of the stream."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def pool(self, number: int) -> Pool:
        """Returns one pool, reading it unless it is in the cache."""

        def read() -> Pool:
            blocks = [self._blocks.read(int(block)) for block in self._pools[number]]
            columns = Columns(blocks, self._schema, shuffled=self._order.shuffle)
            return Pool(columns, self._order.rows(number, columns.rows))

        return self._cache.get((self._name, self._order, number), read)


@dataclass(frozen=True, slots=True)
class Pool:
    """The columns of a pool's blocks, and the order of their rows."""

    columns: Columns
    order: Rows | None


@dataclass(slots=True)
class _CacheEntry:
    """A cache entry for one pool; the thread that reads the pool holds the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    pool: Pool | None = None


class PoolCache:
    """Keeps the ``capacity`` most recently used pools.

    Threads that need the same pool wait while one of them reads it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, _CacheEntry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Pool]) -> Pool:
        """Returns the pool of this key. Evicts before reading, so that at most ``capacity`` pools are in memory."""
        with self._lock:
            entry = self._entries.setdefault(key, _CacheEntry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        with entry.lock:
            if entry.pool is None:
                entry.pool = read()
            return entry.pool
