"""The loader of a trainer that is fed by readers: the batches of the local one, bit for bit, made elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ziggurat.core.batch import Batch
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.columns import Rows, concatenate
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.ingest.connection import Connection
from ziggurat.data.ingest.protocol import ReaderIdentity
from ziggurat.data.ingest.pull import Pull, Segment

SEGMENT_ROWS = 32_768
"""Enough that the question costs nothing beside the answer, and little to ask for again."""

_SPARE_SEGMENTS = 2
_MUCH_SECONDS, _MUCH_SHARE = 5.0, 0.1
"""Waiting that a trainer is told of."""


class IngestLoader:
    """Pulls what ``local`` would make.

    It holds at most a segment for each reader and two more, whatever the readers could send.

    Args:
        local: says which rows each step takes; its data need not be there.
        readers: addresses.
        split: whose rows ``local`` goes through.
        fingerprint: of the dataset.
        schema: of the dataset.
        seconds: how long every reader may be silent before that is an error; a single answer may take half of it.
        segment_rows: rows that are asked for together, or one batch where that is larger.
        note: told when a reader is lost or comes back, and when readers were what an epoch waited for.

    Raises:
        ConfigError: something that is no address.
    """

    def __init__(
        self,
        local: Loader,
        readers: Sequence[str],
        split: str,
        fingerprint: str,
        schema: Schema,
        *,
        seconds: float = 60.0,
        segment_rows: int = SEGMENT_ROWS,
        note: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._local, self._split, self._schema = local, split, schema
        self._identity = ReaderIdentity.here(fingerprint)
        self._seconds, self._segment_rows, self._note = seconds, segment_rows, note
        self._readers = list(dict.fromkeys(each.address for each in map(self._connection, readers)))
        self.waited_seconds = 0.0
        """How long the consumer waited for batches, over all epochs that have ended or were left."""

    @property
    def rows(self) -> int:
        """Rows of an epoch over all ranks."""
        return self._local.rows

    @property
    def steps_per_epoch(self) -> int:
        return self._local.steps_per_epoch

    def epoch(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        """The remaining batches of ``start.epoch``, each with the cursor that stands behind it.

        Raises:
            ReadersLost: no reader has sent anything for a while.
            DataError: a reader serves another dataset, or is of another version.
        """
        connections = [self._connection(address) for address in self._readers]
        pools = self._local.stream(start.epoch).starts
        pull = Pull(
            connections,
            self._split,
            self._local.order(start.epoch),
            self._segments(start, pools),
            pools[:-1].tolist(),
            len(connections) + _SPARE_SEGMENTS,
            self._seconds,
            self._note,
        )
        began = time.monotonic()
        try:
            with contextlib.closing(pull.batches()) as batches:
                for step in self._local.steps(start):
                    pieces = list(itertools.islice(batches, len(_pieces(step.rows, pools))))
                    batch = pieces[0] if len(pieces) == 1 else concatenate(pieces, self._schema)
                    yield replace(batch, largest=step.largest), step.behind
            self._tell_of_waiting(pull.waited_seconds, time.monotonic() - began)
        finally:
            self.waited_seconds += pull.waited_seconds

    def _tell_of_waiting(self, waited: float, elapsed: float) -> None:
        if waited > max(_MUCH_SECONDS, _MUCH_SHARE * elapsed):
            self._note(f"waited {waited:.0f} s of this epoch's {elapsed:.0f} s for readers: more of them would help")

    def _segments(self, start: Cursor, pools: Rows) -> Iterator[Segment]:
        """The rest of an epoch, cut into ranges that each lie in one pool, and these gathered into segments."""
        owed: deque[range] = deque()
        number, rows, pool = 0, 0, -1
        for step in self._local.steps(start):
            for piece in _pieces(step.rows, pools):
                its_pool = int(np.searchsorted(pools, piece.start, side="right")) - 1
                if owed and (its_pool != pool or rows + len(piece) > self._segment_rows):
                    yield Segment(number, pool, owed)
                    owed, number, rows = deque(), number + 1, 0
                owed.append(piece)
                rows, pool = rows + len(piece), its_pool
        if owed:
            yield Segment(number, pool, owed)

    def _connection(self, address: str) -> Connection:
        return Connection(address, self._identity, self._schema, self._seconds / 2)


def _pieces(rows: range, pools: Rows) -> list[range]:
    """``rows`` cut where a pool begins: a reader that makes one pool need not make the next for a few rows of it."""
    inside = pools[np.searchsorted(pools, rows.start, side="right") : np.searchsorted(pools, rows.stop)].tolist()
    bounds = [rows.start, *inside, rows.stop]
    return [range(first, stop) for first, stop in itertools.pairwise(bounds)]
