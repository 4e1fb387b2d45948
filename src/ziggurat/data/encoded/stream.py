"""The stream of an epoch: every row of a split once, in an order that is a pure function of (seed, epoch).

1. The blocks of the split are permuted (seeded by seed and epoch) and grouped into *pools* of ``pool_blocks``;
2. the rows of a pool are permuted (seeded by seed, epoch and the pool's number).

Whoever has the split can make any ``[start, stop)`` of the stream, and two who do make the same batch to the bit.
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
    """The encoded blocks of one split, whether they lie on disk or are made when asked for."""

    @property
    def sizes(self) -> Sequence[int]:
        """Rows of each block, in file order."""
        ...

    def read(self, block: int) -> pa.RecordBatch:
        """One block. Thread-safe."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """What decides the order of an epoch's stream, beside the sizes of the blocks.

    Attributes:
        epoch: every epoch has another order.
        seed: of the permutations.
        shuffle: False keeps file order.
        pool_blocks: blocks that are shuffled together.
    """

    epoch: int
    seed: int
    shuffle: bool
    pool_blocks: int

    def blocks(self, count: int) -> Rows:
        """The numbers of ``count`` blocks in their order."""
        if not self.shuffle:
            return np.arange(count)
        return np.random.default_rng([self.seed, self.epoch, 0]).permutation(count)

    def rows(self, pool: int, count: int) -> Rows | None:
        """The order of a pool's ``count`` rows; None for file order."""
        return np.random.default_rng([self.seed, self.epoch, 1, pool]).permutation(count) if self.shuffle else None


class Stream:
    """Rows of one epoch's stream by position.

    Args:
        blocks: the split.
        schema: of the dataset.
        order: of the rows.
        cache: where pools are kept while they are in use; default: one of our own for one pool.
        name: tells this split's pools from those of others in a shared ``cache``.
    """

    def __init__(
        self, blocks: BlockSource, schema: Schema, order: Order, cache: PoolCache | None = None, name: Hashable = ""
    ) -> None:
        self._blocks, self._schema, self._order, self._name = blocks, schema, order, name
        self._cache = cache or PoolCache(1)
        sizes = np.asarray(blocks.sizes, np.int64)
        numbers = order.blocks(len(sizes))
        self._pools = [numbers[i : i + order.pool_blocks] for i in range(0, len(numbers), order.pool_blocks)]
        pool_rows = [int(sizes[pool].sum()) for pool in self._pools]
        self.starts: Rows = np.concatenate([[0], np.cumsum(pool_rows)]).astype(np.int64)
        """Where each pool begins, and behind them where the stream ends."""

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    def batch(self, start: int, stop: int) -> Batch:
        """Rows ``start`` to ``stop`` of the stream; they may run over from one pool into the next."""
        pieces: list[Batch] = []
        while start < stop:
            number = self.pool_at(start)
            first, end = int(self.starts[number]), min(stop, int(self.starts[number + 1]))
            pool = self.pool(number)
            within = slice(start - first, end - first)
            rows = np.arange(within.start, within.stop) if pool.order is None else pool.order[within]
            pieces.append(pool.columns.batch(rows))
            del pool  # let go of it before the next is read
            start = end
        return pieces[0] if len(pieces) == 1 else concatenate(pieces, self._schema)

    def pool_at(self, position: int) -> int:
        """The number of the pool that holds this row of the stream."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def pool(self, number: int) -> Pool:
        """One pool, read unless it is kept."""

        def read() -> Pool:
            columns = Columns([self._blocks.read(int(block)) for block in self._pools[number]], self._schema)
            return Pool(columns, self._order.rows(number, columns.rows))

        return self._cache.get((self._name, self._order, number), read)


@dataclass(frozen=True, slots=True)
class Pool:
    """The columns of a pool's blocks, and the order of their rows."""

    columns: Columns
    order: Rows | None


@dataclass(slots=True)
class _Place:
    """Where one pool is or will be; its lock is held by whoever reads it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    pool: Pool | None = None


class PoolCache:
    """The ``keep`` pools used last. Threads that want the same pool wait while one of them reads it."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Pool]) -> Pool:
        """The pool of this key. Room is made before it is read, so that ``keep`` pools are all that is held."""
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > self._keep:
                self._places.popitem(last=False)
        with place.lock:
            if place.pool is None:
                place.pool = read()
            return place.pool
