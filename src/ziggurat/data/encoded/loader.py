"""Batches from an encoded dataset: shuffled by block and within, split over ranks, prefetched, resumable to the row.

The rows of an epoch form one *stream* (``data/encoded/stream.py``), the same for every rank and world size.

Step i takes the next ``batch_size`` rows of the stream, and rank r the r-th even part of them; so the ranks together
see the batches that a single process would. A cursor is therefore just (epoch, rows of the stream consumed): it can be
saved between any two steps, restored exactly, and even restored at another world size. Only the last step of an epoch
is short; where it holds fewer rows than there are ranks it is left out, so no rank ever waits for a batch that another
does not have.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.dataset import SplitBlocks
from ziggurat.data.encoded.stream import Order, Stream


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where training stands in the data: ``rows`` of epoch ``epoch``'s stream (over all ranks) are consumed."""

    epoch: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class StepRows:
    """One rank's part of a step.

    Attributes:
        rows: of the epoch's stream.
        behind: the cursor that stands behind the step.
        largest: rows of the largest part that any rank has in it.
    """

    rows: range
    behind: Cursor
    largest: int


def check_shares(batch_size: int, ranks: int) -> None:
    """Nothing, where each of ``ranks`` gets a row of a batch.

    Raises:
        ConfigError: some would have none.
    """
    if batch_size < ranks:
        raise ConfigError(
            f"training.batch_size={batch_size}: a batch is shared by {ranks} ranks, some would have no row",
            f"--set training.batch_size={ranks} or larger, or start fewer ranks",
        )


class Loader:
    """Iterates over a split's batches for one rank.

    Args:
        blocks: the split.
        schema: the dataset's schema.
        batch_size: rows per step, over all ranks.
        shuffle: permute blocks and rows; otherwise file order.
        seed: of the permutations.
        rank, world_size: which even part of each step's rows is ours.
        pool_blocks: blocks that are shuffled together; memory is ``pool_blocks * block_rows * row bytes``, twice.
        prefetch: batches made ahead by a thread; 0 makes them in the caller's thread.
        deal: ``parts``: a step's rows are divided among the ranks. ``turns``: whole batches go round, the first one to
            rank 0, so that each holds the rows that it holds in a single process; a rank for which there is none in the
            last step gets the first row of the step instead, which is not its own (:meth:`is_idle`).

    Raises:
        ConfigError: shuffled training batches larger than the data, or with fewer rows than there are ranks.
    """

    def __init__(
        self,
        blocks: SplitBlocks,
        schema: Schema,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pool_blocks: int = 8,
        prefetch: int = 2,
        deal: Literal["parts", "turns"] = "parts",
    ) -> None:
        if shuffle and batch_size > blocks.rows:
            raise ConfigError(
                f"training.batch_size={batch_size} exceeds the {blocks.rows} training rows",
                f"--set training.batch_size={max(1, blocks.rows)} or smaller, or give more data",
            )
        if deal == "parts":
            check_shares(batch_size, world_size)
        self._blocks, self._schema = blocks, schema
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._rank, self._world_size = rank, world_size
        self._pool_blocks, self._prefetch, self._turns = pool_blocks, prefetch, deal == "turns"

    @property
    def rows(self) -> int:
        """Rows of an epoch over all ranks."""
        return self._blocks.rows

    @property
    def steps_per_epoch(self) -> int:
        if self._turns:
            return -(-self.rows // self._step_rows)
        full, rest = divmod(self.rows, self._step_rows)
        return full + (rest >= self._world_size)

    def is_idle(self, cursor: Cursor) -> bool:
        """Whether the rank has no rows of its own in the step that begins at ``cursor``."""
        return self._turns and cursor.rows + self._rank * self._batch_size >= self.rows

    @property
    def _step_rows(self) -> int:
        return self._batch_size * (self._world_size if self._turns else 1)

    def epoch(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        """The remaining batches of ``start.epoch``, each with the cursor that stands behind it.

        The cursor behind the epoch's last batch is the beginning of the next epoch.
        """
        source = self._generate(start)
        return _ahead(source, self._prefetch) if self._prefetch else source

    def steps(self, start: Cursor) -> Iterator[StepRows]:
        """The remaining steps of ``start.epoch``, for whoever makes their batches."""
        position, epoch = start.rows, start.epoch
        while position < self.rows:
            end = min(position + self._step_rows, self.rows)
            if end - position < self._world_size and not self._turns:
                return
            left_out = self.rows - end < self._world_size and not self._turns
            behind = Cursor(epoch + 1, 0) if end >= self.rows or left_out else Cursor(epoch, end)
            yield StepRows(self._mine(position, end), behind, self._largest(end - position))
            position = end

    def _largest(self, size: int) -> int:
        """Rows of the largest part of a step of ``size``."""
        return min(self._batch_size, size) if self._turns else -(-size // self._world_size)

    def _mine(self, position: int, end: int) -> range:
        """Our rows of the step from ``position`` to ``end``."""
        if not self._turns:
            size, rank, world = end - position, self._rank, self._world_size
            return range(position + size * rank // world, position + size * (rank + 1) // world)
        first = position + self._rank * self._batch_size
        return range(first, min(first + self._batch_size, end)) if first < end else range(position, position + 1)

    def order(self, epoch: int) -> Order:
        """What decides the order of an epoch's stream."""
        return Order(epoch, self._seed, self._shuffle, self._pool_blocks)

    def stream(self, epoch: int) -> Stream:
        """The rows of an epoch; nothing is read before they are asked for."""
        return Stream(self._blocks, self._schema, self.order(epoch))

    def _generate(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        stream = self.stream(start.epoch)
        for step in self.steps(start):
            yield replace(stream.batch(step.rows.start, step.rows.stop), largest=step.largest), step.behind


_Item = tuple[Batch, Cursor]


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _ahead(source: Iterator[_Item], depth: int) -> Iterator[_Item]:
    """``source``, produced by a thread up to ``depth`` items ahead; its errors are raised here."""
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
