"""Loads batches of an encoded dataset: shuffled between and within blocks, split over ranks, prefetched, resumable.

The rows of an epoch form one *stream* (``data/encoded/stream.py``), the same for every rank and world size.

Each step takes the next ``batch_size`` rows of the stream, and rank r the r-th of ``world_size`` even parts of them, so
the ranks together process the batches of a single process. A cursor is therefore just (epoch, rows of the stream
consumed). It can be saved between any two steps and restored exactly, even at another world size. Only the last step of
an epoch can be short. It is dropped if it has fewer rows than there are ranks, so that no rank waits for a batch that
another rank does not have.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.stream import BlockSource, Order, Stream


@dataclass(frozen=True, slots=True)
class Cursor:
    """Training's position in the data: ``rows`` rows of the stream of ``epoch`` (over all ranks) are consumed."""

    epoch: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class StepRows:
    """One rank's part of a step.

    Attributes:
        rows: range of rows of the epoch's stream.
        next_cursor: the cursor after the step.
        largest: number of rows of the largest part of any rank.
    """

    rows: range
    next_cursor: Cursor
    largest: int


def check_batch_size(batch_size: int, ranks: int) -> None:
    """Validates that every one of ``ranks`` ranks gets at least one row of a batch.

    Raises:
        ConfigError: the batch has fewer rows than there are ranks.
    """
    if batch_size < ranks:
        raise ConfigError(
            f"training.batch_size={batch_size}: a batch is shared by {ranks} ranks, some would have no row",
            f"--set training.batch_size={ranks} or larger, or start fewer ranks",
        )


class CountedBlocks(BlockSource, Protocol):
    """The blocks of a split, or a part of their rows, with the number of rows of all."""

    @property
    def rows(self) -> int:
        """Number of rows in all blocks."""
        ...


class Loader:
    """Iterates over the batches of a split for one rank.

    Args:
        blocks: the blocks of the split.
        schema: the dataset's schema.
        batch_size: rows per step, over all ranks.
        shuffle: whether to permute blocks and rows; otherwise file order.
        seed: seed of the permutations.
        rank, world_size: this rank, and the number of ranks.
        pool_blocks: blocks that are shuffled together; memory is twice ``pool_blocks * block_rows * row bytes``.
        prefetch: number of batches that a thread prepares in advance; 0 makes them in the caller's thread.
        assignment: ``split`` divides the rows of a step among the ranks. ``round_robin`` gives whole batches to the
            ranks in turn, the first to rank 0, so that every batch has the same rows as in a single process; a rank
            without a batch in the last step gets the first row of the step instead, to ignore (:meth:`is_idle`).

    Raises:
        ConfigError: a batch of shuffled training rows is larger than the data, or has fewer rows than there are ranks.
    """

    def __init__(
        self,
        blocks: CountedBlocks,
        schema: Schema,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pool_blocks: int = 8,
        prefetch: int = 2,
        assignment: Literal["split", "round_robin"] = "split",
    ) -> None:
        if shuffle and batch_size > blocks.rows:
            raise ConfigError(
                f"training.batch_size={batch_size} exceeds the {blocks.rows} training rows",
                f"--set training.batch_size={max(1, blocks.rows)} or smaller, or give more data",
            )
        if assignment == "split":
            check_batch_size(batch_size, world_size)
        self._blocks, self._schema = blocks, schema
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._rank, self._world_size = rank, world_size
        self._pool_blocks, self._prefetch, self._round_robin = pool_blocks, prefetch, assignment == "round_robin"

    @property
    def rows(self) -> int:
        """Number of rows in an epoch, over all ranks."""
        return self._blocks.rows

    @property
    def steps_per_epoch(self) -> int:
        if self._round_robin:
            return -(-self.rows // self._step_rows)
        full, rest = divmod(self.rows, self._step_rows)
        return full + (rest >= self._world_size)

    def is_idle(self, cursor: Cursor) -> bool:
        """Whether the rank has no rows of its own in the step that begins at ``cursor``."""
        return self._round_robin and cursor.rows + self._rank * self._batch_size >= self.rows

    @property
    def _step_rows(self) -> int:
        return self._batch_size * (self._world_size if self._round_robin else 1)

    def epoch(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        """Yields the remaining batches of ``start.epoch``, each with the cursor after it.

        The cursor after the last batch of an epoch is the beginning of the next epoch.
        """
        source = self._generate(start)
        return _prefetched(source, self._prefetch) if self._prefetch else source

    def steps(self, start: Cursor) -> Iterator[StepRows]:
        """Yields the rows of the remaining steps of ``start.epoch``, for callers that make the batches themselves."""
        position, epoch = start.rows, start.epoch
        while position < self.rows:
            end = min(position + self._step_rows, self.rows)
            if end - position < self._world_size and not self._round_robin:
                return
            rest_is_dropped = self.rows - end < self._world_size and not self._round_robin
            next_cursor = Cursor(epoch + 1, 0) if end >= self.rows or rest_is_dropped else Cursor(epoch, end)
            yield StepRows(self._rank_rows(position, end), next_cursor, self._largest(end - position))
            position = end

    def _largest(self, size: int) -> int:
        """Returns the number of rows in the largest part of a step of ``size`` rows."""
        return min(self._batch_size, size) if self._round_robin else -(-size // self._world_size)

    def _rank_rows(self, position: int, end: int) -> range:
        """Returns this rank's rows of the step from ``position`` to ``end``."""
        if not self._round_robin:
            size, rank, world = end - position, self._rank, self._world_size
            return range(position + size * rank // world, position + size * (rank + 1) // world)
        first = position + self._rank * self._batch_size
        return range(first, min(first + self._batch_size, end)) if first < end else range(position, position + 1)

    def order(self, epoch: int) -> Order:
        """Returns the parameters that determine the order of an epoch's stream."""
        return Order(epoch, self._seed, self._shuffle, self._pool_blocks)

    def stream(self, epoch: int) -> Stream:
        """Returns the stream of an epoch, which reads rows on demand."""
        return Stream(self._blocks, self._schema, self.order(epoch))

    def _generate(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        stream = self.stream(start.epoch)
        for step in self.steps(start):
            yield replace(stream.batch(step.rows.start, step.rows.stop), largest=step.largest), step.next_cursor


_Item = tuple[Batch, Cursor]


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _prefetched(source: Iterator[_Item], depth: int) -> Iterator[_Item]:
    """Yields the items of ``source``, which a thread produces up to ``depth`` in advance, and raises its errors."""
    items: queue.Queue[_Item | _Failure | None] = queue.Queue(maxsize=depth)
    closed = threading.Event()

    def put(item: _Item | _Failure | None) -> bool:
        while not closed.is_set():
            try:
                items.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in source:
                if not put(item):
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
            put(_Failure(error))

    thread = threading.Thread(target=produce, name="loader", daemon=True)
    thread.start()
    try:
        while (item := items.get()) is not None:
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        closed.set()
        thread.join()
